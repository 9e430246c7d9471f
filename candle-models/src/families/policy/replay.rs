//! Slippi replays (`.slp`): reading them into a [`Game`], whole or frame by frame, and writing one.
//!
//! The one module that knows the parsing library. It is driven event by event: every event appends one row to the
//! library's columns, and that row is converted at once. So a file that breaks off keeps all its complete frames, a
//! misplaced event cannot shift the rows of later frames, and memory does not grow with the game.
//!
//! Rollbacks: a frame id that comes again replaces the earlier frame. A panic of the library on a malformed file becomes
//! the reason of the error (or of [`Game::incomplete`]); that needs `panic = "unwind"`.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use peppi::frame::mutable;
use peppi::game::{Game as _, NUM_PORTS, PlayerType};
use peppi::io::slippi::FILE_SIGNATURE;
use peppi::io::slippi::de::{self, Event, ParseState};

use super::game::{Controller, Fighter, Frame, Game, Player, PlayerFrame, Projectile};
use crate::files::read_limited;
use crate::{Error, Result};

mod archive;
mod arrivals;
mod write;
pub use archive::file_of;
pub(super) use arrivals::Sizes;
pub use arrivals::{Arrival, Arrivals};
pub use write::{FORMAT, to_bytes, write};

/// Largest file that is read: about an hour and a half of play, ten times the longest timed game.
pub const MAX_BYTES: u64 = 128 << 20;

/// Bytes of a replay before its events: the signature and how many bytes of events there are, 0 while it is being recorded.
pub const HEADER_BYTES: usize = FILE_SIGNATURE.len() + 4;

/// How many frames back a rollback may reach. The game itself rolls back at most 7.
pub const MAX_ROLLBACK: usize = 128;

/// The library's columns are thrown away and begun anew after this many raw frames.
const ROWS: usize = 1024;

/// The largest block of file metadata that is looked at, and the deepest nesting: the library reads it by recursion.
const MAX_METADATA: u64 = 64 << 10;
const MAX_METADATA_MAPS: usize = 64;

/// Reads a replay of two players, of whom one may be the computer.
///
/// Values that the format version does not have, and numbers that are not finite, are zero. Characters and stages are
/// not judged here: see [`Game::check`].
///
/// # Errors
/// [`Error::Io`] when the file cannot be opened; [`Error::File`] when it is no replay, is larger than [`MAX_BYTES`], has
/// other than two players or no human one, or holds no complete frame. A damaged or unfinished file with complete frames is no
/// error: see [`Game::incomplete`].
pub fn read(path: impl AsRef<Path>) -> Result<Game> {
    // Not generic inside: the parser is compiled here, once and optimised, whatever the crate that calls it is.
    fn read(path: &Path) -> Result<Game> {
        Reader::open(path).map(Reader::into_game)
    }
    read(path.as_ref())
}

/// [`read`] from memory; `name` stands for the path in errors.
pub fn read_bytes(bytes: &[u8], name: impl AsRef<Path>) -> Result<Game> {
    fn read_bytes(bytes: &[u8], name: &Path) -> Result<Game> {
        Reader::new(Cursor::new(bytes), name).map(Reader::into_game)
    }
    read_bytes(bytes, name.as_ref())
}

/// The replays among files, folders and archives: a file as it is named, a folder's `.slp` files (any depth) in sorted order, those of an archive
/// (`.zip`, `.tar`, `.tar.gz`, `.tgz`) in its own order and as paths below it: `games.zip/a.slp`, which [`read`] and its like take too. Archives in
/// a folder are not looked into.
///
/// # Errors
/// [`Error::Io`] for a path that does not exist or cannot be listed; [`Error::File`] for a folder or an archive without replays, and for an archive
/// that is damaged, unpacks to far more than replays would, or has a member that names a place outside of it.
pub fn collect<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if !file_of(path).metadata().map_err(Error::io(path))?.is_dir() {
            match archive::is_archive(path) {
                true => files.extend(archive::list(path)?),
                false => files.push(path.to_owned()),
            }
            continue;
        }
        let before = files.len();
        collect_folder(path, &mut files)?;
        if files.len() == before {
            return Err(Error::file(path, "the folder holds no .slp file (archives in it are to be named themselves)"));
        }
        files[before..].sort();
    }
    Ok(files)
}

/// Links to folders are not followed: they may form a circle.
fn collect_folder(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder.read_dir().map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io(&path))?;
        if kind.is_dir() {
            collect_folder(&path, files)?;
        } else if is_replay(&path) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a path is called as replays are.
pub fn is_replay(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("slp"))
}

/// The bytes of a replay, which may lie in an archive.
///
/// # Errors
/// [`Error::Io`] when it cannot be read, [`Error::File`] when it is larger than [`MAX_BYTES`] or the archive is damaged.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    match file_of(path) {
        archive if archive != path => archive::read(archive, path),
        _ => read_limited(path, MAX_BYTES),
    }
}

/// Reads a replay frame by frame, in constant memory: an iterator over the frames that [`Game::frames`] would hold.
pub struct Reader<R> {
    input: Counted<R>,
    parser: Parser,
    /// Everything but the frames.
    game: Game,
    /// Frames that a rollback may still replace, by rising id without gaps.
    window: VecDeque<Frame>,
    /// Bytes of events by the file's header; 0 when the recording was never closed.
    declared: u64,
    done: bool,
}

/// A replay's file, or its bytes where it lies in an archive.
pub enum Input {
    /// A file.
    File(BufReader<File>),
    /// Bytes.
    Bytes(Cursor<Vec<u8>>),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Bytes(bytes) => bytes.read(buffer),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(position),
            Self::Bytes(bytes) => bytes.seek(position),
        }
    }
}

impl Reader<Input> {
    /// Opens a replay; the errors are those of [`read`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if file_of(path) != path {
            return Self::new(Input::Bytes(Cursor::new(bytes(path)?)), path);
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let data = file.metadata().map_err(Error::io(path))?;
        if data.is_dir() {
            return Err(Error::file(path, "is a directory, not a replay"));
        }
        if data.len() > MAX_BYTES {
            return Err(Error::file(path, format!("{} bytes are too many for a replay (at most {MAX_BYTES})", data.len())));
        }
        Self::new(Input::File(BufReader::with_capacity(64 << 10, file)), path)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads from any source that starts at a replay's first byte; `name` stands for the path in errors.
    pub fn new(input: R, name: impl AsRef<Path>) -> Result<Self> {
        Self::start(input).and_then(Self::first_frames).map_err(|reason| Error::file(name, reason))
    }

    fn start(mut input: R) -> Result<Self, String> {
        let mut head = [0; HEADER_BYTES];
        match input.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err("too short for a Slippi replay".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let declared = declared_bytes(&head)?;
        let mut input = Counted { inner: input, count: 0 };
        let mut parser = Parser::start(&mut input)?;
        let (players, recorded) = parser.players(|parser| read_metadata(&mut input, declared, parser))?;
        let game = Game { stage: parser.stage(), version: parser.version(), players, recorded, ..Game::default() };
        let window = VecDeque::with_capacity(MAX_ROLLBACK + 1);
        Ok(Self { input, parser, game, window, declared, done: false })
    }

    /// A file without a single complete frame is refused at once.
    fn first_frames(mut self) -> Result<Self, String> {
        self.fill();
        if self.window.is_empty() {
            let reason = self.game.incomplete.map_or(String::new(), |reason| format!(": {reason}"));
            return Err(format!("no complete frame{reason}"));
        }
        Ok(self)
    }

    /// Reads until a frame is out of a rollback's reach, or to the end.
    fn fill(&mut self) {
        while !self.done && self.window.len() <= MAX_ROLLBACK {
            match self.advance() {
                Ok(Progress::Frame(frame)) => {
                    if let Err(reason) = self.accept(frame) {
                        self.stop(Some(reason));
                    }
                }
                Ok(Progress::Event) => {}
                Ok(Progress::End) => self.stop_after_last(None),
                Err(reason) => self.stop_after_last(Some(reason)),
            }
        }
    }

    fn advance(&mut self) -> Result<Progress, String> {
        if self.declared > 0 && self.input.count >= self.declared {
            return Err("the recording has no game end".to_owned());
        }
        let at = self.input.count;
        self.parser.event(&mut self.input).map_err(|reason| {
            let total = if self.declared > 0 { format!(" of {}", self.declared) } else { String::new() };
            format!("{reason} (event byte {at}{total})")
        })
    }

    /// Ends the reading; before format 3.0 nothing but the next frame says that a frame is complete.
    fn stop_after_last(&mut self, reason: Option<String>) {
        let last = self.parser.last_frame().map_or(Ok(()), |frame| self.accept(frame));
        self.stop(reason.or(last.err()));
    }

    fn stop(&mut self, reason: Option<String>) {
        self.done = true;
        self.game.incomplete = reason;
    }

    fn accept(&mut self, frame: Frame) -> Result<(), String> {
        self.game.raw_frames += 1;
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            self.window.push_back(frame);
            return Ok(());
        };
        match place(first.id, last.id, frame.id)? {
            index if index == self.window.len() => self.window.push_back(frame),
            index => self.window[index] = frame,
        }
        Ok(())
    }

    /// What is known so far: everything of the game but its frames. `raw_frames` and `incomplete` are final when the
    /// iterator has ended.
    pub fn game(&self) -> &Game {
        &self.game
    }

    /// Reads the rest.
    pub fn into_game(mut self) -> Game {
        let frames = self.by_ref().collect();
        Game { frames, ..self.game }
    }
}

impl<R: Read + Seek> Iterator for Reader<R> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        self.fill();
        self.window.pop_front()
    }
}

/// How many bytes of events a file's header declares.
pub(super) fn declared_bytes(head: &[u8; HEADER_BYTES]) -> Result<u64, String> {
    match head.strip_prefix(&FILE_SIGNATURE) {
        Some(&[a, b, c, d]) => Ok(u64::from(u32::from_be_bytes([a, b, c, d]))),
        _ => Err("not a Slippi replay: the signature is missing".to_owned()),
    }
}

/// Where a frame belongs among the frames `first` to `last`, which a rollback may replace: on one of them, or right behind.
fn place(first: i32, last: i32, id: i32) -> Result<usize, String> {
    match usize::try_from(i64::from(id) - i64::from(first)) {
        Ok(index) if i64::from(id) <= i64::from(last) + 1 => Ok(index),
        Ok(_) => Err(format!("frame {id} follows frame {last}: frames are missing")),
        Err(_) => Err(format!("frame {id} after frame {last} is no rollback: it reaches back more than {MAX_ROLLBACK} frames")),
    }
}

/// What an event brought.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack: a box would be an allocation per frame")]
enum Progress {
    Event,
    Frame(Frame),
    End,
}

/// The library's state with what is needed to convert its newest rows.
struct Parser {
    state: ParseState,
    /// The bytes before the first frame, from which a fresh state is made.
    header: Vec<u8>,
    rows: Rows,
    open: Option<OpenFrame>,
    /// Up to which frame nothing is rolled back any more, by the end of the last frame; formats before 3.7 do not say.
    settled: Option<i32>,
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
    fn start(input: &mut impl Read) -> Result<Self, String> {
        let mut header = Vec::new();
        let state = guarded(|| de::parse_start(Tee { inner: input, copy: &mut header }, None))?;
        Ok(Self { state, header, rows: Rows::default(), open: None, settled: None })
    }

    fn version(&self) -> (u8, u8, u8) {
        let version = self.state.start().slippi.version;
        (version.0, version.1, version.2)
    }

    fn stage(&self) -> u16 {
        self.state.start().stage
    }

    fn gte(&self, major: u8, minor: u8) -> bool {
        self.state.start().slippi.version.gte(major, minor)
    }

    /// The two players in port order, and when the recording began. `known` gives what the file's metadata knows.
    fn players(&mut self, known: impl FnOnce(&mut Self) -> Known) -> Result<([Player; 2], Option<i64>), String> {
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
    fn event(&mut self, input: &mut impl Read) -> Result<Progress, String> {
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
    fn last_frame(&mut self) -> Option<Frame> {
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

/// What the block after the events knows.
#[derive(Default)]
struct Known {
    /// Netplay name and connect code by port; formats from 3.9 on have them among the events, too.
    players: [[String; 2]; NUM_PORTS],
    recorded: Option<i64>,
}

/// Whatever is wrong with the block costs only what it knows.
fn read_metadata<R: Read + Seek>(input: &mut Counted<R>, declared: u64, parser: &mut Parser) -> Known {
    let mut known = Known::default();
    if declared == 0 {
        return known;
    }
    let Ok(bytes) = input.peek(declared, MAX_METADATA) else { return known };
    let maps = bytes.iter().filter(|byte| **byte == b'{').count();
    if bytes.first() != Some(&b'U') || maps > MAX_METADATA_MAPS {
        return known;
    }
    if guarded(|| de::parse_metadata(&bytes[1..], &mut parser.state, None)).is_err() {
        return known;
    }
    let Some(map) = parser.state.metadata().as_ref() else { return known };
    for (port, texts) in known.players.iter_mut().enumerate() {
        let names = map.get("players").and_then(|players| players.get(port.to_string())?.get("names"));
        let text = |key: &str| names.and_then(|names| names.get(key)?.as_str()).unwrap_or_default().to_owned();
        *texts = [text("netplay"), text("code")];
    }
    known.recorded = map.get("startAt").and_then(|time| seconds(time.as_str()?));
    known
}

/// Seconds since 1970 of a date and time like `2022-12-28T01:34:58Z`. Fractions and time zones are not looked at.
fn seconds(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u16>().ok().map(i64::from);
    let [year, month, day] = [number(0..4)?, number(5..7)?, number(8..10)?];
    let [hour, minute, second] = [number(11..13)?, number(14..16)?, number(17..19)?];
    if !((1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60) {
        return None;
    }
    // Years from March on, so that the day that comes and goes is the last one (Hinnant's days_from_civil).
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// A source that knows how much of it was read.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        Ok(read)
    }
}

impl<R: Read + Seek> Counted<R> {
    /// At most `limit` bytes from `offset` (counted like `count`), without moving.
    fn peek(&mut self, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let here = self.inner.stream_position()?;
        let start = here - self.count;
        self.inner.seek(SeekFrom::Start(start + offset))?;
        let mut bytes = Vec::new();
        self.inner.by_ref().take(limit).read_to_end(&mut bytes)?;
        self.inner.seek(SeekFrom::Start(here))?;
        Ok(bytes)
    }
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

thread_local! {
    /// Whether this thread is inside the parsing library, whose panics are answers and not reports.
    static PARSING: Cell<bool> = const { Cell::new(false) };
}

/// Runs the library; errors and panics come back as one line of text.
fn guarded<T>(parse: impl FnOnce() -> peppi::io::Result<T>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PARSING.get() {
                previous(info);
            }
        }));
    });
    PARSING.set(true);
    // The state is thrown away after a panic: nothing half-changed is looked at.
    let outcome = catch_unwind(AssertUnwindSafe(parse));
    PARSING.set(false);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(peppi::io::Error::Io(error))) if error.kind() == io::ErrorKind::UnexpectedEof => Err("the file breaks off".to_owned()),
        Ok(Err(error)) => Err(one_line(&error.to_string())),
        Err(panic) => Err(format!("malformed event: {}", one_line(panic_text(panic.as_ref())))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
