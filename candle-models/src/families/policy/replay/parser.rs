//! From events to frames: the library's state, and what is converted of its newest rows.

use super::{Known, guarded};
use crate::families::policy::game::{Controller, Fighter, Frame, Player, PlayerFrame, Projectile};
use peppi::frame::mutable;
use peppi::game::{Game as _, PlayerType};
use peppi::io::slippi::de::{self, Event, ParseState};
use std::io::{self, Read};

/// The library's columns are thrown away and begun anew after this many raw frames.
const ROWS: usize = 1024;

/// What an event brought.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack: a box would be an allocation per frame")]
pub(super) enum Progress {
    Event,
    Frame(Frame),
    End,
}

/// The library's state with what is needed to convert its newest rows.
pub(super) struct Parser {
    pub(super) state: ParseState,
    /// The bytes before the first frame, from which a fresh state is made.
    header: Vec<u8>,
    rows: Rows,
    open: Option<OpenFrame>,
    /// Up to which frame nothing is rolled back any more, by the end of the last frame; formats before 3.7 do not say.
    pub(super) settled: Option<i32>,
}

/// How many rows were converted, for both players and their followers.
#[derive(Clone, Copy, Default, PartialEq)]
struct Rows {
    frames: usize,
    slots: [[(usize, usize); 2]; 2],
}

/// A frame whose events are still coming in. First index: player; second: fighter or follower.
#[derive(Default)]
struct OpenFrame {
    frame: Frame,
    seen: [[(bool, bool); 2]; 2],
    projectiles: Vec<(u32, Projectile)>,
}

impl Parser {
    pub(super) fn start(input: &mut impl Read) -> Result<Self, String> {
        let mut header = Vec::new();
        let state = guarded(|| de::parse_start(Tee { inner: input, copy: &mut header }, None))?;
        Ok(Self { state, header, rows: Rows::default(), open: None, settled: None })
    }

    pub(super) fn version(&self) -> (u8, u8, u8) {
        let version = self.state.start().slippi.version;
        (version.0, version.1, version.2)
    }

    pub(super) fn stage(&self) -> u16 {
        self.state.start().stage
    }

    pub(super) fn gte(&self, major: u8, minor: u8) -> bool {
        self.state.start().slippi.version.gte(major, minor)
    }

    /// The two players in port order, and when the recording began. `known` gives what the file's metadata knows.
    pub(super) fn players(&mut self, known: impl FnOnce(&mut Self) -> Known) -> Result<([Player; 2], Option<i64>), String> {
        let humans = self.state.start().players.iter().filter(|player| player.r#type == PlayerType::Human).count();
        let others = self.state.start().players.len() - humans;
        if humans == 0 || humans + others != 2 {
            let found = format!("found {humans} human and {others} computer players");
            return Err(format!("a game of two players is needed, at least one of them human, {found}"));
        }
        let Known { players: known, recorded } = known(self);
        let mut players = self.state.start().players.iter().map(|player| {
            let netplay = player.netplay.as_ref().map(|netplay| [netplay.name.to_normalized(), netplay.code.to_normalized()]);
            let [own_name, own_code] = netplay.map_or([None, None], |texts| texts.map(Some));
            let tag = player.name_tag.as_ref().map(|tag| tag.to_normalized());
            let port = player.port as u8;
            let [name, code] = known[usize::from(port)].clone();
            let first = |texts: [Option<String>; 3]| texts.into_iter().flatten().find(|text| !text.is_empty()).unwrap_or_default();
            Player {
                port,
                character: player.character,
                name: first([own_name, Some(name), tag]),
                code: first([own_code, Some(code), None]),
                computer: player.r#type != PlayerType::Human,
            }
        });
        match (players.next(), players.next()) {
            (Some(first), Some(second)) => Ok(([first, second], recorded)),
            _ => Err("a game of two players is needed".to_owned()),
        }
    }

    /// Parses one event and converts what it brought.
    pub(super) fn event(&mut self, input: &mut impl Read) -> Result<Progress, String> {
        let code = guarded(|| de::parse_event(input, &mut self.state, None))?;
        match Event::try_from(code) {
            Ok(Event::FrameStart) => Ok(self.open_frame()),
            Ok(Event::FramePre) => {
                let progress = self.open_frame();
                self.take_rows()?;
                Ok(progress)
            }
            Ok(Event::FramePost) => self.take_rows().map(|()| Progress::Event),
            Ok(Event::Item) => {
                self.take_item();
                Ok(Progress::Event)
            }
            Ok(Event::FrameEnd) => self.close_frame(),
            Ok(Event::GameEnd) => Ok(Progress::End),
            _ => Ok(Progress::Event),
        }
    }

    /// Begins a frame if the library has begun one; the frame before it, if still open, was complete (before format 3.0).
    fn open_frame(&mut self) -> Progress {
        let frames = self.state.frames();
        if frames.len() == self.rows.frames {
            return Progress::Event;
        }
        let id = last(frames.id.values());
        let complete = self.last_frame();
        if self.gte(2, 2) {
            // The library has filled up the rows of absent followers.
            self.rows = count_rows(self.state.frames());
        } else {
            self.rows.frames = self.state.frames().len();
        }
        self.open = Some(OpenFrame { frame: Frame { id, ..Frame::default() }, ..OpenFrame::default() });
        complete.map_or(Progress::Event, Progress::Frame)
    }

    fn close_frame(&mut self) -> Result<Progress, String> {
        self.rows = count_rows(self.state.frames());
        let open = self.open.take().ok_or("a frame ends that did not start")?;
        let id = open.frame.id;
        let end = self.state.frames().end.as_ref();
        self.settled = end.and_then(|end| end.latest_finalized_frame.as_ref()).map(|column| last(column.values()));
        if self.rows.frames >= ROWS {
            self.state = guarded(|| de::parse_start(self.header.as_slice(), None))?;
            self.rows = Rows::default();
        }
        open.finish().map(Progress::Frame).ok_or_else(|| format!("frame {id} lacks a player"))
    }

    /// The open frame, if it has all its parts and no later event will say so.
    pub(super) fn last_frame(&mut self) -> Option<Frame> {
        let open = self.open.take()?;
        if self.gte(3, 0) { None } else { open.finish() }
    }

    /// Converts the row that the last event appended.
    fn take_rows(&mut self) -> Result<(), String> {
        let rows = count_rows(self.state.frames());
        let Some(open) = &mut self.open else { return Err("player data outside a frame".to_owned()) };
        for (player, port) in self.state.frames().ports.iter().enumerate().take(2) {
            for (slot, data) in [Some(&port.leader), port.follower.as_ref()].into_iter().enumerate() {
                let Some(data) = data else { continue };
                let (now, before) = (rows.slots[player][slot], self.rows.slots[player][slot]);
                if now != before {
                    open.take(player, slot, data, (now.0 > before.0, now.1 > before.1))?;
                }
            }
        }
        self.rows = rows;
        Ok(())
    }

    fn take_item(&mut self) {
        let frames = self.state.frames();
        let (Some(open), Some(item)) = (&mut self.open, &frames.item) else { return };
        let owner = item.owner.as_ref().map_or(-1, |column| last(column.values()));
        let owner = frames.ports.iter().position(|port| port.port as i8 == owner);
        let projectile = Projectile {
            owner: owner.map(|index| index as u8),
            kind: last(item.r#type.values()),
            position: [number(item.position.x.values()), number(item.position.y.values())],
            velocity: [number(item.velocity.x.values()), number(item.velocity.y.values())],
        };
        open.projectiles.push((last(item.id.values()), projectile));
    }
}

impl OpenFrame {
    fn take(&mut self, player: usize, slot: usize, data: &mutable::Data, new: (bool, bool)) -> Result<(), String> {
        let seen = &mut self.seen[player][slot];
        if (new.0 && seen.0) || (new.1 && seen.1) {
            return Err(format!("frame {} gives a player twice", self.frame.id));
        }
        if new.1 && !seen.0 {
            return Err(format!("frame {} gives a player's state without inputs", self.frame.id));
        }
        let target: &mut PlayerFrame = &mut self.frame.players[player];
        // The follower's inputs are the leader's, some frames late: nothing that a player decides.
        if new.0 && slot == 0 {
            target.controller = controller(&data.pre);
        }
        if new.1 {
            match slot {
                0 => target.fighter = fighter(&data.post),
                _ => target.nana = Some(fighter(&data.post)),
            }
        }
        *seen = (seen.0 || new.0, seen.1 || new.1);
        Ok(())
    }

    /// The frame, if both players are there and no fighter has inputs without a state.
    fn finish(mut self) -> Option<Frame> {
        let complete = self.seen.iter().all(|[leader, follower]| *leader == (true, true) && follower.0 == follower.1);
        if !complete {
            return None;
        }
        self.projectiles.sort_by_key(|(spawn, _)| *spawn);
        for (slot, (_, projectile)) in self.frame.projectiles.iter_mut().zip(self.projectiles) {
            *slot = Some(projectile);
        }
        Some(self.frame)
    }
}

fn count_rows(frames: &mutable::Frame) -> Rows {
    let mut rows = Rows { frames: frames.len(), ..Rows::default() };
    let count = |data: &mutable::Data| (data.pre.random_seed.values().len(), data.post.character.values().len());
    for (slots, port) in rows.slots.iter_mut().zip(&frames.ports) {
        *slots = [count(&port.leader), port.follower.as_ref().map_or((0, 0), count)];
    }
    rows
}

fn controller(pre: &mutable::Pre) -> Controller {
    Controller {
        buttons: last(pre.buttons_physical.values()),
        main_stick: [number(pre.joystick.x.values()), number(pre.joystick.y.values())],
        c_stick: [number(pre.cstick.x.values()), number(pre.cstick.y.values())],
        shoulder: number(pre.triggers.values()),
    }
}

fn fighter(post: &mutable::Post) -> Fighter {
    // The library's column is shared by many states: only this flag says that it counts hitstun.
    let in_hitstun = post.state_flags.as_ref().is_some_and(|flags| last(flags.3.values()) & 0x02 != 0);
    let hitstun = post.misc_as.as_ref().filter(|_| in_hitstun).map_or(0.0, |column| number(column.values()));
    Fighter {
        character: last(post.character.values()),
        action_state: last(post.state.values()),
        action_frame: post.state_age.as_ref().map_or(0.0, |column| number(column.values())),
        position: [number(post.position.x.values()), number(post.position.y.values())],
        facing: number(post.direction.values()),
        percent: number(post.percent.values()),
        shield: number(post.shield.values()),
        stocks: last(post.stocks.values()),
        jumps: post.jumps.as_ref().map_or(0, |column| last(column.values())),
        on_ground: post.airborne.as_ref().is_some_and(|column| last(column.values()) == 0),
        invulnerable: post.hurtbox_state.as_ref().is_some_and(|column| last(column.values()) != 0),
        hitstun,
        velocity: post.velocities.as_ref().map_or([0.0; 5], |v| {
            [&v.self_x_air, &v.self_x_ground, &v.self_y, &v.knockback_x, &v.knockback_y].map(|column| number(column.values()))
        }),
    }
}

fn last<T: Copy + Default>(column: &[T]) -> T {
    column.last().copied().unwrap_or_default()
}

/// The newest value; 0 for one that is not finite, which would poison every later state of a recurrent policy.
fn number(column: &[f32]) -> f32 {
    let value = last(column);
    if value.is_finite() { value } else { 0.0 }
}

/// Keeps a copy of what is read.
struct Tee<'a, R> {
    inner: R,
    copy: &'a mut Vec<u8>,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.copy.extend_from_slice(&buffer[..read]);
        Ok(read)
    }
}
