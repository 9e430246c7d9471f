//! A frame's bytes, as the game has its values: everything that the embedding reads and the action is made of.
//!
//! Little-endian, without padding, in this order:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | id, i32 |
//! | 2 x 4 | returns of both players from this frame on, f32; of the last frame 0 |
//! | 2 | flags, u16: bits 0 to 4 the first player's, 5 to 9 the second's (on the ground, invulnerable, Nana there, Nana on the ground, Nana invulnerable), 10 to 14 projectile slots in use |
//! | 2 x 75 | each player's controller (buttons u16, main stick, C-stick, shoulder f32) and fighter (below) |
//! | 53 | for each Nana: a fighter |
//! | 19 | for each projectile: owner u8 (255 is nobody), kind u16, position and velocity f32 |
//! | 4 | CRC-32C of the game's replay, the frame's number and the bytes before |
//!
//! A fighter is character u8, action state u16, stocks u8, jumps u8, and f32: action frame, position, facing, percent, shield, hitstun, velocity.

use candle_models::policy::game::{Controller, Fighter, Frame, PROJECTILES, PlayerFrame, Projectile};

const CONTROLLER: usize = 22;
const FIGHTER: usize = 53;
const PROJECTILE: usize = 19;
/// Where the flags and the players begin, and where they end.
const FLAGS: usize = 12;
const PLAYERS: usize = FLAGS + 2;
const FIXED: usize = PLAYERS + 2 * (CONTROLLER + FIGHTER);
const CHECK: usize = 4;
/// Flags of a player, and the first one of the projectiles.
const PLAYER_FLAGS: usize = 5;
const SLOTS: usize = 2 * PLAYER_FLAGS;
const NOBODY: u8 = u8::MAX;

/// What the checksums of a game's frames begin with, so that no frame passes for one of another game.
pub(super) fn seed(replay: &str) -> u32 {
    crc32c::crc32c(replay.as_bytes())
}

fn check(seed: u32, number: usize, bytes: &[u8]) -> [u8; CHECK] {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &(number as u64).to_le_bytes()), bytes).to_le_bytes()
}

/// Appends a frame.
pub(super) fn put(out: &mut Vec<u8>, seed: u32, number: usize, frame: &Frame, returns: [f32; 2]) {
    let start = out.len();
    out.extend(frame.id.to_le_bytes());
    put_floats(out, &returns);
    let player = |player: &PlayerFrame| {
        let nana = player.nana.as_ref();
        let fighters = [Some(&player.fighter), nana].map(|f| [f.is_some_and(|f| f.on_ground), f.is_some_and(|f| f.invulnerable)]);
        let [[ground, invulnerable], [nana_ground, nana_invulnerable]] = fighters;
        [ground, invulnerable, nana.is_some(), nana_ground, nana_invulnerable]
    };
    let all = frame.players.iter().flat_map(player).chain(frame.projectiles.iter().map(Option::is_some));
    let flags = all.enumerate().fold(0u16, |flags, (i, on)| flags | u16::from(on) << i);
    out.extend(flags.to_le_bytes());
    for PlayerFrame { controller, fighter, .. } in &frame.players {
        out.extend(controller.buttons.to_le_bytes());
        put_floats(out, &controller.main_stick);
        put_floats(out, &controller.c_stick);
        put_floats(out, &[controller.shoulder]);
        put_fighter(out, fighter);
    }
    frame.players.iter().filter_map(|player| player.nana.as_ref()).for_each(|nana| put_fighter(out, nana));
    for projectile in frame.projectiles.iter().flatten() {
        out.push(projectile.owner.unwrap_or(NOBODY));
        out.extend(projectile.kind.to_le_bytes());
        put_floats(out, &projectile.position);
        put_floats(out, &projectile.velocity);
    }
    let check = check(seed, number, &out[start..]);
    out.extend(check);
}

fn put_floats(out: &mut Vec<u8>, values: &[f32]) {
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

fn put_fighter(out: &mut Vec<u8>, f: &Fighter) {
    out.push(f.character);
    out.extend(f.action_state.to_le_bytes());
    out.extend([f.stocks, f.jumps]);
    put_floats(out, &[f.action_frame, f.position[0], f.position[1], f.facing, f.percent, f.shield, f.hitstun]);
    put_floats(out, &f.velocity);
}

/// Whether a frame's bytes are what was written, as long as their flags say, with finite returns.
pub(super) fn is_whole(bytes: &[u8], seed: u32, number: usize) -> bool {
    let Some((bytes, written)) = bytes.split_last_chunk::<CHECK>() else { return false };
    if check(seed, number, bytes) != *written || bytes.len() < FIXED {
        return false;
    }
    let record = Record(bytes);
    let nanas = [0, 1].into_iter().filter(|player| record.flag(player * PLAYER_FLAGS + 2)).count();
    let projectiles = (0..PROJECTILES).filter(|slot| record.flag(SLOTS + slot)).count();
    bytes.len() == FIXED + nanas * FIGHTER + projectiles * PROJECTILE && [0, 1].iter().all(|player| record.value(*player).is_finite())
}

/// A frame's bytes that were found to be whole.
pub(super) struct Record<'a>(pub &'a [u8]);

impl Record<'_> {
    fn flag(&self, bit: usize) -> bool {
        u16::from_le_bytes([self.0[FLAGS], self.0[FLAGS + 1]]) >> bit & 1 == 1
    }

    /// A player's return.
    pub fn value(&self, player: usize) -> f32 {
        Bytes(&self.0[4 + 4 * player..]).float()
    }

    /// A player's controller.
    pub fn controller(&self, player: usize) -> Controller {
        Bytes(&self.0[PLAYERS + player * (CONTROLLER + FIGHTER)..]).controller()
    }

    /// All of it.
    pub fn frame(&self) -> Frame {
        let mut bytes = Bytes(self.0);
        let id = i32::from_le_bytes(bytes.take());
        bytes = Bytes(&self.0[PLAYERS..]);
        let flags = |player: usize, nana: usize| [0, 1].map(|i| self.flag(player * PLAYER_FLAGS + nana + i));
        let mut players = [0, 1].map(|player| {
            let (controller, fighter) = (bytes.controller(), bytes.fighter(flags(player, 0)));
            PlayerFrame { controller, fighter, nana: None }
        });
        for (i, player) in players.iter_mut().enumerate().filter(|(i, _)| self.flag(i * PLAYER_FLAGS + 2)) {
            player.nana = Some(bytes.fighter(flags(i, 3)));
        }
        let projectiles = std::array::from_fn(|slot| self.flag(SLOTS + slot).then(|| bytes.projectile()));
        Frame { id, players, projectiles }
    }
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    /// Zeros behind the end, where nobody comes: the length was checked.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *taken
    }

    fn float(&mut self) -> f32 {
        f32::from_le_bytes(self.take())
    }

    fn floats<const N: usize>(&mut self) -> [f32; N] {
        std::array::from_fn(|_| self.float())
    }

    fn controller(&mut self) -> Controller {
        let buttons = u16::from_le_bytes(self.take());
        let [main_x, main_y, c_x, c_y, shoulder] = self.floats();
        Controller { buttons, main_stick: [main_x, main_y], c_stick: [c_x, c_y], shoulder }
    }

    fn fighter(&mut self, [on_ground, invulnerable]: [bool; 2]) -> Fighter {
        let [character] = self.take();
        let action_state = u16::from_le_bytes(self.take());
        let [stocks, jumps] = self.take();
        let [action_frame, x, y, facing, percent, shield, hitstun] = self.floats();
        let velocity = self.floats();
        let position = [x, y];
        Fighter {
            character,
            action_state,
            action_frame,
            position,
            facing,
            percent,
            shield,
            stocks,
            jumps,
            on_ground,
            invulnerable,
            hitstun,
            velocity,
        }
    }

    fn projectile(&mut self) -> Projectile {
        let [owner] = self.take();
        let kind = u16::from_le_bytes(self.take());
        let [x, y, speed_x, speed_y] = self.floats();
        Projectile { owner: (owner != NOBODY).then_some(owner), kind, position: [x, y], velocity: [speed_x, speed_y] }
    }
}
