//! Writing a game as a replay. What is written was not recorded by the game, and says so: `playedOn` is "simulated".

use std::path::Path;

use peppi::frame::PortOccupancy;
use peppi::frame::mutable;
use peppi::game::{self, Bytes, EndMethod, NUM_PORTS, Netplay, PlayerEnd, PlayerType, Port, Scene, shift_jis::MeleeString};
use peppi::io::slippi::de::PartialGame;
use peppi::io::slippi::{self, Slippi, Version};
use serde_json::json;

use crate::families::policy::game::{Controller, Fighter, Frame, Game, Player, Projectile};
use crate::{Error, Result, files};

/// The format version that [`write()`] gives: the first with netplay names, which has every value of a [`Frame`].
pub const FORMAT: (u8, u8, u8) = (3, 9, 0);

const VERSION: Version = Version(FORMAT.0, FORMAT.1, FORMAT.2);

/// Bytes of the start event in this format, and where in them each player's entry begins.
const START_BYTES: usize = 584;
const PLAYERS_AT: usize = 100;
const PLAYER_BYTES: usize = 36;
/// A port without a player.
const EMPTY_PORT: u8 = 3;
const ICE_CLIMBERS: u8 = game::ICE_CLIMBERS;

/// Writes a game as a replay of format [`FORMAT`], labelled "simulated". Reading it back gives the same game with that
/// version, if no frame was incomplete and its numbers are finite.
///
/// The file appears under its name only when it is complete.
///
/// # Errors
/// [`Error::Input`] for a game that the format cannot hold (ports, names longer than 30 bytes, a follower without Ice
/// Climbers); [`Error::Io`] when writing fails.
pub fn write(game: &Game, path: impl AsRef<Path>) -> Result<()> {
    files::write_atomic(path, &to_bytes(game)?)
}

/// The bytes that [`write()`] stores.
pub fn to_bytes(game: &Game) -> Result<Vec<u8>> {
    check(game)?;
    let start = start(game)?;
    let replay = PartialGame {
        frames: frames(game, &start)?,
        end: game.incomplete.is_none().then(|| end(game)),
        metadata: Some(metadata(game)),
        gecko_codes: None,
        hash: None,
        quirks: None,
        start,
    };
    let mut bytes = Vec::new();
    super::guarded(|| slippi::write(&mut bytes, &replay.into()))
        .map_err(|reason| Error::Input(format!("cannot be written as a replay: {reason}")))?;
    Ok(bytes)
}

fn check(game: &Game) -> Result<()> {
    let ports = [game.players[0].port, game.players[1].port];
    if ports[0] >= ports[1] || usize::from(ports[1]) >= NUM_PORTS {
        return Err(Error::Input(format!("ports {} and {}: two rising ports from 0 to {} are needed", ports[0], ports[1], NUM_PORTS - 1)));
    }
    if game.frames.is_empty() {
        return Err(Error::Input("a replay needs at least one frame".to_owned()));
    }
    for (index, player) in game.players.iter().enumerate() {
        let follower = game.frames.iter().find(|frame| frame.players[index].nana.is_some());
        if let (Some(frame), true) = (follower, player.character != ICE_CLIMBERS) {
            return Err(Error::Input(format!("frame {}: player {index} has a follower but does not play the Ice Climbers", frame.id)));
        }
    }
    Ok(())
}

fn port(index: u8) -> Result<Port> {
    Port::try_from(index).map_err(|_| Error::Input(format!("port {index} is out of range")))
}

fn start(game: &Game) -> Result<game::Start> {
    let mut bytes = vec![0; START_BYTES];
    for slot in 0..game::MAX_PLAYERS {
        if game.players.iter().all(|player| usize::from(player.port) != slot) {
            bytes[PLAYERS_AT + PLAYER_BYTES * slot + 1] = EMPTY_PORT;
        }
    }
    let players = game.players.iter().enumerate().map(|(index, player)| start_player(game, index, player)).collect::<Result<_>>()?;
    Ok(game::Start {
        slippi: Slippi { version: VERSION },
        bitfield: [50, 1, 134, 76],
        is_raining_bombs: false,
        is_teams: false,
        item_spawn_frequency: -1,
        self_destruct_score: -1,
        stage: game.stage,
        timer: 480,
        item_spawn_bitfield: [255; 5],
        damage_ratio: 1.0,
        players,
        random_seed: 0,
        bytes: Bytes(bytes),
        is_pal: Some(false),
        is_frozen_ps: Some(false),
        scene: Some(Scene { minor: 2, major: 8 }),
        language: None,
        r#match: None,
    })
}

fn start_player(game: &Game, index: usize, player: &Player) -> Result<game::Player> {
    let stocks = game.frames.iter().map(|frame| frame.players[index].fighter.stocks).max().unwrap_or_default();
    Ok(game::Player {
        port: port(player.port)?,
        character: player.character,
        r#type: if player.computer { PlayerType::Cpu } else { PlayerType::Human },
        stocks,
        costume: 0,
        team: None,
        handicap: 9,
        bitfield: 192,
        // The format has a level for every computer; a game does not know it.
        cpu_level: player.computer.then_some(1),
        damage_start: 0,
        damage_spawn: 0,
        offense_ratio: 1.0,
        defense_ratio: 1.0,
        model_scale: 1.0,
        ucf: Some(game::Ucf { dash_back: None, shield_drop: None }),
        name_tag: Some(MeleeString(String::new())),
        netplay: Some(Netplay { name: MeleeString(player.name.clone()), code: MeleeString(player.code.clone()), suid: None }),
    })
}

fn end(game: &Game) -> game::End {
    let stocks = game.frames.last().map_or([0, 0], |frame| [frame.players[0].fighter.stocks, frame.players[1].fighter.stocks]);
    // A game that stops while both stand was called off.
    let method = if stocks.contains(&0) { EndMethod::Game } else { EndMethod::NoContest };
    game::End { method, bytes: Bytes(vec![0; 2]), lras_initiator: Some(None), players: None::<Vec<PlayerEnd>> }
}

fn metadata(game: &Game) -> serde_json::Map<String, serde_json::Value> {
    let mut map = serde_json::Map::new();
    map.insert("lastFrame".to_owned(), json!(game.frames.last().map_or(0, |frame| frame.id)));
    map.insert("playedOn".to_owned(), json!("simulated"));
    map.insert("consoleNick".to_owned(), json!("simulated"));
    map
}

/// The columns, filled through the library's own reading of event payloads: they have no other constructor of rows.
fn frames(game: &Game, start: &game::Start) -> Result<mutable::Frame> {
    let occupancy: Vec<_> =
        start.players.iter().map(|player| PortOccupancy { port: player.port, follower: player.character == ICE_CLIMBERS }).collect();
    let mut columns = mutable::Frame::with_capacity(game.frames.len(), VERSION, &occupancy);
    for frame in &game.frames {
        push_frame(&mut columns, frame, game).map_err(|error| Error::Input(format!("frame {}: {error}", frame.id)))?;
    }
    Ok(columns)
}

fn push_frame(columns: &mut mutable::Frame, frame: &Frame, game: &Game) -> std::io::Result<()> {
    columns.id.push(Some(frame.id));
    if let Some(start) = &mut columns.start {
        start.read_push(&mut [0; 4].as_slice(), VERSION)?;
    }
    for (port, player) in columns.ports.iter_mut().zip(&frame.players) {
        push_fighter(&mut port.leader, &player.controller, &player.fighter)?;
        match (&mut port.follower, &player.nana) {
            (Some(column), Some(nana)) => push_fighter(column, &Controller::default(), nana)?,
            (Some(column), None) => column.push_null(VERSION),
            (None, _) => {}
        }
    }
    let projectiles: Vec<_> = frame.projectiles.iter().flatten().collect();
    if let (Some(column), Some(offset)) = (&mut columns.item, &mut columns.item_offset) {
        for (spawn, projectile) in projectiles.iter().enumerate() {
            column.read_push(&mut item(projectile, spawn as u32, game).as_slice(), VERSION)?;
        }
        offset.try_push(projectiles.len() as i32).map_err(std::io::Error::other)?;
    }
    if let Some(end) = &mut columns.end {
        end.read_push(&mut frame.id.to_be_bytes().as_slice(), VERSION)?;
    }
    Ok(())
}

fn push_fighter(column: &mut mutable::Data, controller: &Controller, fighter: &Fighter) -> std::io::Result<()> {
    column.pre.read_push(&mut pre(controller, fighter).as_slice(), VERSION)?;
    column.post.read_push(&mut post(fighter).as_slice(), VERSION)?;
    if let Some(validity) = &mut column.validity {
        validity.push(true);
    }
    Ok(())
}

/// A big-endian payload, written field by field.
#[derive(Default)]
struct Payload(Vec<u8>);

impl Payload {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn float(self, value: f32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn pair(self, value: [f32; 2]) -> Self {
        self.float(value[0]).float(value[1])
    }
}

/// The payload of a frame's inputs after its ids: seed, state, position, facing, sticks, triggers, buttons.
fn pre(controller: &Controller, fighter: &Fighter) -> Vec<u8> {
    let raw_x = (controller.main_stick[0].clamp(-1.0, 1.0) * 80.0) as i8;
    Payload::default()
        .bytes(&[0; 4])
        .bytes(&fighter.action_state.to_be_bytes())
        .pair(fighter.position)
        .float(fighter.facing)
        .pair(controller.main_stick)
        .pair(controller.c_stick)
        .float(controller.shoulder)
        .bytes(&u32::from(controller.buttons).to_be_bytes())
        .bytes(&controller.buttons.to_be_bytes())
        .pair([controller.shoulder, 0.0])
        .bytes(&raw_x.to_be_bytes())
        .float(fighter.percent)
        .0
}

/// The payload of a frame's resulting state after its ids.
fn post(fighter: &Fighter) -> Vec<u8> {
    let hitstun = if fighter.hitstun == 0.0 { 0 } else { 0x02 };
    let [air, ground, y, attack_x, attack_y] = fighter.velocity;
    Payload::default()
        .bytes(&[fighter.character])
        .bytes(&fighter.action_state.to_be_bytes())
        .pair(fighter.position)
        .float(fighter.facing)
        .float(fighter.percent)
        .float(fighter.shield)
        // Last attack landed, combo count, last hit by (6: nobody).
        .bytes(&[0, 0, 6, fighter.stocks])
        .float(fighter.action_frame)
        .bytes(&[0, 0, 0, hitstun, 0])
        .float(fighter.hitstun)
        .bytes(&[u8::from(!fighter.on_ground), 0, 0, fighter.jumps, 0, u8::from(fighter.invulnerable)])
        .pair([air, y])
        .pair([attack_x, attack_y])
        .float(ground)
        .float(0.0)
        .0
}

/// The payload of an item: type, state, facing, velocity, position, damage, timer, spawn id, misc, owner.
fn item(projectile: &Projectile, spawn: u32, game: &Game) -> Vec<u8> {
    let owner = projectile.owner.and_then(|index| game.players.get(usize::from(index))).map_or(u8::MAX, |player| player.port);
    Payload::default()
        .bytes(&projectile.kind.to_be_bytes())
        .bytes(&[0])
        .float(if projectile.velocity[0] < 0.0 { -1.0 } else { 1.0 })
        .pair(projectile.velocity)
        .pair(projectile.position)
        .bytes(&[0; 2])
        .float(0.0)
        .bytes(&spawn.to_be_bytes())
        .bytes(&[0; 4])
        .bytes(&[owner])
        .0
}
