//! What the policy sees of a frame: 288 floats and six ids.
//!
//! [`SCHEMA`] lists the fields once: name, place, scale and limits. Encoding gathers raw values in the order of the schema and
//! passes each through `y = clip(scale * v)`; a value that is not finite counts as 0, so nothing but finite numbers
//! leaves. Ids are separate integers for the model's learned tables.
//!
//! An [`Observation`] holds what is known when the action of frame t is chosen: everything up to and including frame t - 1. The
//! controllers of frame t act on frame t, so reading the fighters of frame t would give the answer away.
//!
//! The schema has 283 floats. The 287 that are published for this layout count four ids as floats; here they are ids.
//! Columns 283 to 287 are zero, so that a row is a whole number of vector registers.
//!
//! ```
//! use candle_models::policy::embedding::{Embedding, IDS, WIDTH};
//! use candle_models::policy::simulation::simulate;
//! # fn main() -> candle_models::Result<()> {
//! let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
//! Embedding::default().encode(&simulate(1, 200), 130, 0, None, &mut features, &mut ids)?;
//! assert!(features.iter().all(|x| x.is_finite()));
//! # Ok(())
//! # }
//! ```

use super::game::{Controller, Fighter, Game, PROJECTILES, PlayerFrame, Projectile, buttons};
use crate::{Error, Result};
use std::collections::HashSet;
use std::ops::Range;

/// Floats of a frame.
pub const WIDTH: usize = 288;
/// Ids of a frame: own and opponent's action state, own and opponent's Nana's action state, own and opponent's character.
pub const IDS: usize = 6;
/// What each is.
pub const ID_NAMES: [&str; IDS] = [
    "own action state",
    "opponent's action state",
    "own Nana's action state",
    "opponent's Nana's action state",
    "own character",
    "opponent's character",
];
/// Action state ids: 0 to 397, and 398 for every other one and for an absent Nana.
pub const ACTION_STATES: u32 = 399;
/// Character ids: 0 to 31, and 32 for unknown.
pub const CHARACTERS: u32 = 33;
/// How many values each of them can take: the rows of the table that it looks into.
pub const ID_LIMITS: [u32; IDS] = [ACTION_STATES, ACTION_STATES, ACTION_STATES, ACTION_STATES, CHARACTERS, CHARACTERS];
/// Player names that a policy can tell apart.
pub const NAMES: usize = 112;
/// Categories of a Nana's action state, [`ACTION_CATEGORIES`].
const CATEGORIES: usize = 25;
const OTHER_STATE: u32 = ACTION_STATES - 1;

/// One field of a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Unique name; a block of columns has one name.
    pub name: &'static str,
    /// Its first column.
    pub offset: usize,
    /// How many columns it has.
    pub width: usize,
    /// Factor on the raw value.
    pub scale: f32,
    /// Lowest and highest value after scaling.
    pub clip: [f32; 2],
    /// Which of its columns change sign on a mirrored stage, as bits: bit 0 is the first column.
    pub odd: u8,
}

const fn field(name: &'static str, width: usize, scale: f32, clip: [f32; 2], odd: u8) -> Field {
    Field { name, offset: 0, width, scale, clip, odd }
}

const WIDE: [f32; 2] = [-10.0, 10.0];
const UNIT: [f32; 2] = [0.0, 1.0];
const SIGNED: [f32; 2] = [-1.0, 1.0];

macro_rules! player {
    ($who:literal) => {
        [
            field(concat!($who, ".percent"), 1, 0.01, [0.0, 5.0], 0),
            field(concat!($who, ".facing"), 1, 1.0, SIGNED, 1),
            field(concat!($who, ".position"), 2, 0.05, WIDE, 0b01),
            field(concat!($who, ".invulnerable"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".jumps"), 1, 1.0 / 6.0, UNIT, 0),
            field(concat!($who, ".shield"), 1, 0.01, UNIT, 0),
            field(concat!($who, ".on_ground"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".velocity"), 5, 0.5, WIDE, 0b01011),
            field(concat!($who, ".hitstun"), 1, 1.0 / 120.0, UNIT, 0),
            field(concat!($who, ".action_frame"), 1, 1.0 / 60.0, [0.0, 2.0], 0),
            field(concat!($who, ".stocks"), 1, 0.25, WIDE, 0),
            field(concat!($who, ".ledge"), 1, 1.0, WIDE, 0),
            field(concat!($who, ".nana.exists"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.position"), 2, 0.05, WIDE, 0b01),
            field(concat!($who, ".nana.facing"), 1, 1.0, SIGNED, 1),
            field(concat!($who, ".nana.on_ground"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.percent"), 1, 0.01, [0.0, 5.0], 0),
            field(concat!($who, ".nana.stocks"), 1, 0.25, WIDE, 0),
            field(concat!($who, ".nana.hitstun"), 1, 1.0 / 120.0, UNIT, 0),
            field(concat!($who, ".nana.action_frame"), 1, 1.0 / 60.0, [0.0, 2.0], 0),
            field(concat!($who, ".nana.invulnerable"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.category"), CATEGORIES, 1.0, UNIT, 0),
            field(concat!($who, ".nana.attacking"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.grabbing"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.can_act"), 1, 1.0, UNIT, 0),
            field(concat!($who, ".nana.synced"), 1, 1.0, UNIT, 0),
        ]
    };
}

macro_rules! projectile {
    ($which:literal) => {
        [
            field(concat!("projectile", $which, ".exists"), 1, 1.0, UNIT, 0),
            field(concat!("projectile", $which, ".owner"), 1, 0.5, WIDE, 0),
            field(concat!("projectile", $which, ".position"), 2, 0.05, WIDE, 0b01),
            field(concat!("projectile", $which, ".kind"), 1, 0.01, WIDE, 0),
            field(concat!("projectile", $which, ".velocity"), 2, 0.5, WIDE, 0b01),
        ]
    };
}

const MIDDLE: [Field; 9] = [
    field("stage", 7, 1.0, UNIT, 0),
    field("previous.buttons", 8, 1.0, UNIT, 0),
    field("previous.main_stick", 2, 1.0, SIGNED, 0b01),
    field("previous.c_stick", 2, 1.0, SIGNED, 0b01),
    field("previous.shoulder", 1, 1.0, UNIT, 0),
    field("name", NAMES, 1.0, UNIT, 0),
    field("distance", 1, 1.0 / 200.0, [0.0, 1.5], 0),
    // The two axes of the way to the opponent have scales of their own.
    field("relative.x", 1, 1.0 / 200.0, WIDE, 1),
    field("relative.y", 1, 1.0 / 100.0, WIDE, 0),
];

const PLAYER_FIELDS: usize = 26;
const PROJECTILE_FIELDS: usize = 5;
const FIELDS: usize = 2 * PLAYER_FIELDS + MIDDLE.len() + 1 + PROJECTILES * PROJECTILE_FIELDS;

/// Every field in the order of its columns.
pub const SCHEMA: [Field; FIELDS] = {
    let players: [[Field; PLAYER_FIELDS]; 2] = [player!("own"), player!("opponent")];
    let slots: [[Field; PROJECTILE_FIELDS]; PROJECTILES] =
        [projectile!("0"), projectile!("1"), projectile!("2"), projectile!("3"), projectile!("4")];
    let (middle, frame) = (2 * PLAYER_FIELDS, 2 * PLAYER_FIELDS + MIDDLE.len());
    let mut fields = [field("frame", 1, 1.0 / 28800.0, WIDE, 0); FIELDS];
    let (mut i, mut offset) = (0, 0);
    while i < FIELDS {
        if i < middle {
            fields[i] = players[i / PLAYER_FIELDS][i % PLAYER_FIELDS];
        } else if i < frame {
            fields[i] = MIDDLE[i - middle];
        } else if i > frame {
            fields[i] = slots[(i - frame - 1) / PROJECTILE_FIELDS][(i - frame - 1) % PROJECTILE_FIELDS];
        }
        fields[i].offset = offset;
        offset += fields[i].width;
        i += 1;
    }
    assert!(offset <= WIDTH);
    fields
};

/// The schema spread over the columns, for the arithmetic and the mirror.
struct Columns {
    scale: [f32; WIDTH],
    low: [f32; WIDTH],
    high: [f32; WIDTH],
    sign: [f32; WIDTH],
}

static COLUMNS: Columns = {
    let mut columns = Columns { scale: [1.0; WIDTH], low: [0.0; WIDTH], high: [0.0; WIDTH], sign: [1.0; WIDTH] };
    let mut i = 0;
    while i < FIELDS {
        let field = SCHEMA[i];
        assert!(field.clip[0] <= 0.0 && field.clip[1] >= 0.0, "nothing must be a zero");
        let mut k = 0;
        while k < field.width {
            let column = field.offset + k;
            columns.scale[column] = field.scale;
            columns.low[column] = field.clip[0];
            columns.high[column] = field.clip[1];
            if k < 8 && field.odd >> k & 1 == 1 {
                columns.sign[column] = -1.0;
            }
            k += 1;
        }
        i += 1;
    }
    columns
};

/// The column where a field starts. An unknown name stops the build.
const fn offset(name: &str) -> usize {
    let mut i = 0;
    while i < FIELDS {
        if equal(SCHEMA[i].name.as_bytes(), name.as_bytes()) {
            return SCHEMA[i].offset;
        }
        i += 1;
    }
    panic!("no such field")
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Stage ids in the order of the one-hot, each with the x of its right edge.
const STAGES: [(u16, f32); 6] = [(2, 63.35), (3, 87.75), (8, 56.0), (28, 77.27), (31, 68.4), (32, 85.57)];
/// The edge where the stage is none of the six: their mean.
const OTHER_EDGE: f32 = 73.06;

/// Categories of action states, in the order of the one-hot: the first and last id of each. What is in none of them, items and
/// being carried among it, is the last category.
pub const ACTION_CATEGORIES: [(&str, u16, u16); CATEGORIES - 1] = [
    ("dead", 0, 10),
    ("respawn", 11, 13),
    ("stand", 14, 14),
    ("walk or turn", 15, 19),
    ("dash or run", 20, 23),
    ("jump", 24, 28),
    ("fall", 29, 34),
    ("helpless or tumbling", 35, 38),
    ("crouch", 39, 41),
    ("landing", 42, 43),
    ("jab, dash attack or tilt", 44, 57),
    ("smash attack", 58, 64),
    ("aerial attack", 65, 69),
    ("landing with an aerial attack", 70, 74),
    ("hit", 75, 91),
    ("shield", 178, 182),
    ("lying or getting up", 183, 198),
    ("tech", 199, 204),
    ("shield broken", 205, 211),
    ("grab or throw", 212, 222),
    ("grabbed", 223, 232),
    ("dodge or roll", 233, 236),
    ("thrown", 239, 243),
    ("ledge", 252, 263),
];

fn category(action_state: u16) -> usize {
    let found = ACTION_CATEGORIES.iter().position(|(_, first, last)| (*first..=*last).contains(&action_state));
    found.unwrap_or(CATEGORIES - 1)
}

/// What a player knows when the action of the next frame is chosen.
///
/// ```
/// use candle_models::policy::{embedding::Observation, simulation::simulate};
/// # fn main() -> candle_models::Result<()> {
/// let game = simulate(1, 200);
/// let seen = Observation::of(&game, 130, 1)?; // what player 1 knows when the action of frame 130 is chosen
/// assert_eq!(seen.frame_id, game.frames[129].id);
/// assert_eq!(seen.mirror().mirror(), seen);
/// assert!(Observation::of(&game, 0, 1).is_err()); // nothing has been seen yet
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observation {
    /// Stage id, as in [`Game::stage`].
    pub stage: u16,
    /// Id of the last frame seen.
    pub frame_id: i32,
    /// The player and the opponent after that frame. The player's own controller is read, the opponent's is not: nobody sees it.
    pub players: [PlayerFrame; 2],
    /// Projectiles; the owner is 0 for the player and 1 for the opponent.
    pub projectiles: [Option<Projectile>; PROJECTILES],
}

impl Observation {
    /// What `player` (0 or 1) knows of a recorded game when the action of frame index `t` is chosen: the frame `t - 1`.
    ///
    /// `t` is 1 to the number of frames; that last one is the frame after the recording.
    pub fn of(game: &Game, t: usize, player: usize) -> Result<Self> {
        let frame = t.checked_sub(1).and_then(|t| game.frames.get(t)).ok_or_else(|| {
            Error::Input(format!("frame {t}: expected a frame of 1 to {}, the first has nothing before it", game.frames.len()))
        })?;
        if player > 1 {
            return Err(Error::Input(format!("player {player}: expected 0 or 1")));
        }
        let mut projectiles = frame.projectiles;
        if player == 1 {
            for owner in projectiles.iter_mut().flatten().filter_map(|p| p.owner.as_mut()) {
                *owner = 1u8.wrapping_sub(*owner);
            }
        }
        let players = [frame.players[player], frame.players[1 - player]];
        Ok(Self { stage: game.stage, frame_id: frame.id, players, projectiles })
    }

    /// The same moment on a mirrored stage: left and right change places. Twice is the same observation again.
    pub fn mirror(&self) -> Self {
        Self {
            players: self.players.map(|p| PlayerFrame {
                controller: mirror_controller(p.controller),
                fighter: mirror_fighter(p.fighter),
                nana: p.nana.map(mirror_fighter),
            }),
            projectiles: self.projectiles.map(|slot| {
                slot.map(|p| Projectile { position: [-p.position[0], p.position[1]], velocity: [-p.velocity[0], p.velocity[1]], ..p })
            }),
            ..*self
        }
    }
}

fn mirror_controller(c: Controller) -> Controller {
    Controller { main_stick: [-c.main_stick[0], c.main_stick[1]], c_stick: [-c.c_stick[0], c.c_stick[1]], ..c }
}

fn mirror_fighter(f: Fighter) -> Fighter {
    let [air_x, ground_x, y, attack_x, attack_y] = f.velocity;
    Fighter {
        action_state: mirror_action_state(f.action_state.into()) as u16,
        position: [-f.position[0], f.position[1]],
        facing: -f.facing,
        velocity: [-air_x, -ground_x, y, -attack_x, attack_y],
        ..f
    }
}

/// Action states that name a side: dying over the left or right edge, taunting to the right or left.
const fn mirror_action_state(id: u32) -> u32 {
    match id {
        1 => 2,
        2 => 1,
        264 => 265,
        265 => 264,
        _ => id,
    }
}

/// Mirrors encoded frames in place: `features` `[frames, 288]`, `ids` `[frames, 6]`. The same as encoding mirrored observations.
pub fn mirror(features: &mut [f32], ids: &mut [u32]) {
    for row in features.chunks_exact_mut(WIDTH) {
        row.iter_mut().zip(&COLUMNS.sign).for_each(|(value, sign)| *value *= sign);
    }
    for row in ids.chunks_exact_mut(IDS) {
        row[..4].iter_mut().for_each(|id| *id = mirror_action_state(*id));
    }
}

/// The encoder: the schema and the player names that the policy knows.
///
/// ```
/// use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
/// use candle_models::policy::simulation::simulate;
/// # fn main() -> candle_models::Result<()> {
/// let embedding = Embedding::new(&["Ann".to_owned()])?;
/// let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
/// let seen = Observation::of(&simulate(1, 200), 130, 0)?;
/// embedding.observe(&seen, embedding.name_index("Ann"), &mut features, &mut ids)?;
/// assert!(features.iter().all(|x| x.abs() <= 10.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Embedding {
    names: Vec<String>,
}

impl Embedding {
    /// An encoder that tells these players apart: at most 112 names, none empty, none twice.
    pub fn new(names: &[String]) -> Result<Self> {
        if names.len() > NAMES {
            return Err(Error::config("names", format!("expected at most {NAMES} player names, found {}", names.len())));
        }
        let mut seen = HashSet::new();
        if let Some(name) = names.iter().find(|name| name.is_empty() || !seen.insert(name.as_str())) {
            return Err(Error::config("names", format!("player name {name:?} is empty or comes twice")));
        }
        Ok(Self { names: names.to_vec() })
    }

    /// The player names, in the order of their columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The index of a player's name, if the policy knows it.
    pub fn name_index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// Encodes what `player` knows when the action of frame index `t` is chosen, as `features` `[288]` and `ids` `[6]`.
    pub fn encode(&self, game: &Game, t: usize, player: usize, name: Option<usize>, features: &mut [f32], ids: &mut [u32]) -> Result<()> {
        self.observe(&Observation::of(game, t, player)?, name, features, ids)
    }

    /// Encodes the frames `frames` (indices of the actions to be chosen, see [`Embedding::encode`]) of one player's view, as
    /// `features` `[frames, 288]` and `ids` `[frames, 6]`.
    pub fn encode_game(
        &self,
        game: &Game,
        frames: Range<usize>,
        player: usize,
        name: Option<usize>,
        features: &mut [f32],
        ids: &mut [u32],
    ) -> Result<()> {
        check_len("features", features.len(), frames.len() * WIDTH)?;
        check_len("ids", ids.len(), frames.len() * IDS)?;
        for ((t, features), ids) in frames.zip(features.chunks_exact_mut(WIDTH)).zip(ids.chunks_exact_mut(IDS)) {
            self.encode(game, t, player, name, features, ids)?;
        }
        Ok(())
    }

    /// Encodes an observation as `features` `[288]` and `ids` `[6]`. `name` is the index of the player to imitate.
    pub fn observe(&self, observation: &Observation, name: Option<usize>, features: &mut [f32], ids: &mut [u32]) -> Result<()> {
        check_len("features", features.len(), WIDTH)?;
        check_len("ids", ids.len(), IDS)?;
        if let Some(name) = name.filter(|name| *name >= self.names.len()) {
            return Err(Error::Input(format!("player name {name}: the policy knows {} names", self.names.len())));
        }
        write(observation, name, features);
        let [own, opponent] = &observation.players;
        let state = |fighter: Option<&Fighter>| fighter.map_or(OTHER_STATE, |f| u32::from(f.action_state).min(OTHER_STATE));
        let character = |fighter: &Fighter| u32::from(fighter.character).min(CHARACTERS - 1);
        ids.copy_from_slice(&[
            state(Some(&own.fighter)),
            state(Some(&opponent.fighter)),
            state(own.nana.as_ref()),
            state(opponent.nana.as_ref()),
            character(&own.fighter),
            character(&opponent.fighter),
        ]);
        Ok(())
    }
}

fn check_len(name: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::tensor(name, format!("{expected} values"), found)) }
}

/// Writes raw values to the columns from `column` on as the model reads them: the one place with arithmetic of encoding.
fn put<const N: usize>(row: &mut [f32], column: usize, raw: [f32; N]) {
    let columns = column..column + N;
    let Columns { scale, low, high, .. } = &COLUMNS;
    let limits = low[columns.clone()].iter().zip(&high[columns.clone()]);
    for (((to, raw), scale), (low, high)) in row[columns.clone()].iter_mut().zip(raw).zip(&scale[columns]).zip(limits) {
        let finite = if raw.is_finite() { raw } else { 0.0 };
        *to = (finite * scale).max(*low).min(*high);
    }
}

/// Writes all columns. Nothing is a zero in every one of them, so only what is there costs arithmetic.
fn write(observation: &Observation, name: Option<usize>, row: &mut [f32]) {
    const STAGE: usize = offset("stage");
    const PREVIOUS: usize = offset("previous.buttons");
    const NAME: usize = offset("name");
    const DISTANCE: usize = offset("distance");
    const FIRST_PROJECTILE: usize = offset("projectile0.exists");
    const PROJECTILE_WIDTH: usize = offset("projectile1.exists") - FIRST_PROJECTILE;
    const OPPONENT: usize = offset("opponent.percent");
    row.fill(0.0);
    let stage = STAGES.iter().position(|(id, _)| *id == observation.stage);
    let edge = stage.map_or(OTHER_EDGE, |i| STAGES[i].1);
    let [own, opponent] = &observation.players;
    put_player(own, edge, row, 0);
    put_player(opponent, edge, row, OPPONENT);
    put(row, STAGE + stage.unwrap_or(STAGES.len()), [1.0]);
    put(row, PREVIOUS, controller(&own.controller));
    if let Some(name) = name {
        put(row, NAME + name, [1.0]);
    }
    let [dx, dy] = [0, 1].map(|axis| opponent.fighter.position[axis] - own.fighter.position[axis]);
    put(row, DISTANCE, [dx.hypot(dy), dx, dy, observation.frame_id as f32]);
    for (slot, projectile) in observation.projectiles.iter().enumerate() {
        if let Some(projectile) = projectile {
            put::<PROJECTILE_WIDTH>(row, FIRST_PROJECTILE + slot * PROJECTILE_WIDTH, gather_projectile(projectile));
        }
    }
}

fn controller(controller: &Controller) -> [f32; 13] {
    const ORDER: [u16; 8] = [buttons::A, buttons::B, buttons::X, buttons::Y, buttons::Z, buttons::L, buttons::R, buttons::D_UP];
    let mut out = [0.0; 13];
    for (value, bits) in out.iter_mut().zip(ORDER) {
        *value = flag(controller.buttons & bits != 0);
    }
    out[8..10].copy_from_slice(&controller.main_stick);
    out[10..12].copy_from_slice(&controller.c_stick);
    out[12] = controller.shoulder;
    out
}

/// The columns of one player, from `first` on.
fn put_player(player: &PlayerFrame, edge: f32, row: &mut [f32], first: usize) {
    const NANA: usize = offset("own.nana.exists");
    const CATEGORY: usize = offset("own.nana.category");
    const ATTACKING: usize = offset("own.nana.attacking");
    let f = &player.fighter;
    let [x, y] = f.position;
    let [air_x, ground_x, self_y, attack_x, attack_y] = f.velocity;
    let main = [
        f.percent,
        f.facing,
        x,
        y,
        flag(f.invulnerable),
        f32::from(f.jumps),
        f.shield,
        flag(f.on_ground),
        air_x,
        ground_x,
        self_y,
        attack_x,
        attack_y,
        f.hitstun,
        f.action_frame,
        f32::from(f.stocks),
        (edge - x.abs()) / edge,
    ];
    put::<NANA>(row, first, main);
    let Some(nana) = &player.nana else { return };
    let follower = [
        1.0,
        nana.position[0],
        nana.position[1],
        nana.facing,
        flag(nana.on_ground),
        nana.percent,
        f32::from(nana.stocks),
        nana.hitstun,
        nana.action_frame,
        flag(nana.invulnerable),
    ];
    put::<{ CATEGORY - NANA }>(row, first + NANA, follower);
    let state = nana.action_state;
    put(row, first + CATEGORY + category(state), [1.0]);
    let can = [
        flag(matches!(state, 44..=69)),
        flag(matches!(state, 212..=222)),
        flag(matches!(state, 14..=23 | 25..=34 | 39..=42 | 178..=180)),
        flag(state == f.action_state),
    ];
    put(row, first + ATTACKING, can);
}

/// The owner is +1 for the player, -1 for the opponent, 0 for nobody.
fn gather_projectile(projectile: &Projectile) -> [f32; 7] {
    let owner = match projectile.owner {
        Some(0) => 1.0,
        Some(1) => -1.0,
        _ => 0.0,
    };
    let ([x, y], [speed_x, speed_y]) = (projectile.position, projectile.velocity);
    [1.0, owner, x, y, f32::from(projectile.kind), speed_x, speed_y]
}

fn flag(on: bool) -> f32 {
    f32::from(u8::from(on))
}

#[cfg(test)]
mod tests {
    use super::super::game::{Frame, Player};
    use super::*;
    use crate::random::numbers;

    fn fighter(next: &mut impl FnMut() -> f32) -> Fighter {
        let mut signed = |range: f32| (next() - 0.5) * 2.0 * range;
        let [x, y] = [signed(120.0), signed(80.0)];
        let velocity = std::array::from_fn(|_| signed(4.0));
        Fighter {
            character: (next() * 40.0) as u8,
            action_state: if next() < 0.3 { (next() * 3.0) as u16 } else { (next() * 410.0) as u16 },
            action_frame: next() * 100.0,
            position: [x, y],
            facing: if next() < 0.5 { -1.0 } else { 1.0 },
            percent: next() * 180.0,
            shield: next() * 60.0,
            stocks: (next() * 5.0) as u8,
            jumps: (next() * 7.0) as u8,
            on_ground: next() < 0.5,
            invulnerable: next() < 0.5,
            hitstun: next() * 80.0,
            velocity,
        }
    }

    fn player(next: &mut impl FnMut() -> f32) -> PlayerFrame {
        let mut signed = || next() * 2.0 - 1.0;
        let controller = Controller { main_stick: [signed(), signed()], c_stick: [signed(), signed()], shoulder: 0.4, buttons: 0 };
        let controller = Controller { buttons: (next() * 8192.0) as u16, shoulder: next(), ..controller };
        PlayerFrame { controller, fighter: fighter(next), nana: (next() < 0.5).then(|| fighter(next)) }
    }

    fn game(seed: u64, frames: usize) -> Game {
        let mut next = numbers(seed);
        let frame = |id: usize, next: &mut dyn FnMut() -> f32| {
            let mut next = next;
            let players = [player(&mut next), player(&mut next)];
            let projectiles = std::array::from_fn(|_| {
                (next() < 0.5).then(|| Projectile {
                    owner: [None, Some(0), Some(1)][(next() * 3.0) as usize],
                    kind: (next() * 200.0) as u16,
                    position: [next() * 100.0 - 50.0, next() * 50.0],
                    velocity: [next() * 8.0 - 4.0, next() - 0.5],
                })
            });
            Frame { id: id as i32 - 123, players, projectiles }
        };
        let frames = (0..frames).map(|id| frame(id, &mut next)).collect();
        Game { stage: 31, players: [Player::default(), Player::default()], frames, ..Game::default() }
    }

    fn row(game: &Game, t: usize, player: usize) -> (Vec<f32>, Vec<u32>) {
        let (mut features, mut ids) = (vec![f32::NAN; WIDTH], vec![7777; IDS]);
        Embedding::default().encode(game, t, player, None, &mut features, &mut ids).unwrap();
        (features, ids)
    }

    fn observe(observation: &Observation) -> (Vec<f32>, Vec<u32>) {
        let (mut features, mut ids) = (vec![f32::NAN; WIDTH], vec![7777; IDS]);
        Embedding::default().observe(observation, None, &mut features, &mut ids).unwrap();
        (features, ids)
    }

    #[test]
    fn the_schema_adds_up() {
        let mut end = 0;
        for field in &SCHEMA {
            assert_eq!(field.offset, end, "{} starts where the one before it ends", field.name);
            assert!(field.width > 0 && field.scale > 0.0 && field.clip[0] < field.clip[1], "{}", field.name);
            assert!((field.odd as usize) < 1 << field.width.min(8), "{}", field.name);
            // Changing the sign stays within the limits only if they are symmetric.
            assert!(field.odd == 0 || field.clip[0] == -field.clip[1], "{}", field.name);
            end += field.width;
        }
        assert_eq!(end, 283);
        let names: HashSet<&str> = SCHEMA.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), FIELDS);
        let starts = ["own.percent", "opponent.percent", "stage", "previous.buttons", "name", "distance", "projectile0.exists"];
        assert_eq!(starts.map(offset), [0, 56, 112, 119, 132, 244, 248]);
        let categories = ACTION_CATEGORIES;
        assert!(categories.windows(2).all(|pair| pair[0].2 < pair[1].1) && categories.iter().all(|c| c.1 <= c.2));
    }

    /// One input at a time, through the whole path, against the column and the value that the schema names.
    #[test]
    fn every_input_lands_in_its_column() {
        let base = Observation { stage: 31, ..Observation::default() };
        let check = |name: &str, k: usize, expected: f32, change: &dyn Fn(&mut Observation)| {
            let mut observation = base;
            change(&mut observation);
            let found = observe(&observation).0[offset(name) + k];
            assert!((found - expected).abs() < 1e-6, "{name}[{k}]: expected {expected}, found {found}");
        };
        type Set = fn(&mut Fighter);
        let fields: [(&str, usize, f32, Set); 16] = [
            ("percent", 0, 0.5, |f| f.percent = 50.0),
            ("facing", 0, -1.0, |f| f.facing = -1.0),
            ("position", 0, -2.0, |f| f.position[0] = -40.0),
            ("position", 1, 1.5, |f| f.position[1] = 30.0),
            ("invulnerable", 0, 1.0, |f| f.invulnerable = true),
            ("jumps", 0, 1.0 / 3.0, |f| f.jumps = 2),
            ("shield", 0, 0.6, |f| f.shield = 60.0),
            ("on_ground", 0, 1.0, |f| f.on_ground = true),
            ("velocity", 0, 0.5, |f| f.velocity[0] = 1.0),
            ("velocity", 1, 1.0, |f| f.velocity[1] = 2.0),
            ("velocity", 2, 1.5, |f| f.velocity[2] = 3.0),
            ("velocity", 4, 2.5, |f| f.velocity[4] = 5.0),
            ("hitstun", 0, 0.25, |f| f.hitstun = 30.0),
            ("action_frame", 0, 2.0, |f| f.action_frame = 200.0),
            ("stocks", 0, 0.75, |f| f.stocks = 3),
            ("ledge", 0, 0.5, |f| f.position[0] = -34.2),
        ];
        for (who, side) in ["own", "opponent"].into_iter().enumerate() {
            for (name, k, expected, set) in fields {
                check(&format!("{side}.{name}"), k, expected, &|o| set(&mut o.players[who].fighter));
                if !["jumps", "shield", "velocity", "ledge"].contains(&name) {
                    check(&format!("{side}.nana.{name}"), k, expected, &|o| set(o.players[who].nana.insert(Fighter::default())));
                }
            }
            let nana = |state: u16| move |o: &mut Observation| o.players[who].nana.insert(Fighter::default()).action_state = state;
            check(&format!("{side}.nana.exists"), 0, 1.0, &|o| nana(14)(o));
            check(&format!("{side}.nana.exists"), 0, 0.0, &|_| ());
            check(&format!("{side}.nana.category"), 0, 1.0, &|o| nana(10)(o));
            check(&format!("{side}.nana.category"), 12, 1.0, &|o| nana(65)(o));
            check(&format!("{side}.nana.category"), 24, 1.0, &|o| nana(382)(o));
            check(&format!("{side}.nana.attacking"), 0, 1.0, &|o| nana(44)(o));
            check(&format!("{side}.nana.grabbing"), 0, 1.0, &|o| nana(212)(o));
            check(&format!("{side}.nana.can_act"), 0, 1.0, &|o| nana(14)(o));
            check(&format!("{side}.nana.synced"), 0, 1.0, &|o| nana(0)(o));
            check(&format!("{side}.nana.synced"), 0, 0.0, &|o| nana(14)(o));
        }
        for (i, (id, _)) in STAGES.into_iter().enumerate() {
            check("stage", i, 1.0, &|o| o.stage = id);
        }
        check("stage", 6, 1.0, &|o| o.stage = 9);
        check("previous.buttons", 0, 1.0, &|o| o.players[0].controller.buttons = buttons::A);
        check("previous.buttons", 7, 1.0, &|o| o.players[0].controller.buttons = buttons::D_UP);
        check("previous.main_stick", 1, -0.5, &|o| o.players[0].controller.main_stick[1] = -0.5);
        check("previous.c_stick", 0, 0.25, &|o| o.players[0].controller.c_stick[0] = 0.25);
        check("previous.shoulder", 0, 0.35, &|o| o.players[0].controller.shoulder = 0.35);
        let apart = |o: &mut Observation| o.players[1].fighter.position = [-30.0, 40.0];
        check("distance", 0, 0.25, &apart);
        check("relative.x", 0, -0.15, &apart);
        check("relative.y", 0, 0.4, &apart);
        check("frame", 0, 0.5, &|o| o.frame_id = 14400);
        let projectile = Projectile { owner: Some(1), kind: 99, position: [20.0, -20.0], velocity: [2.0, -4.0] };
        for (i, expected) in [1.0, -0.5, 1.0, -1.0, 0.99, 1.0, -2.0].into_iter().enumerate() {
            check("projectile4.exists", i, expected, &|o| o.projectiles[4] = Some(projectile));
        }
    }

    /// The action of frame t must not be readable from what is encoded for it.
    #[test]
    fn nothing_of_the_frame_to_predict_leaks() {
        let whole = game(1, 12);
        for t in 1..12 {
            let mut other = whole.clone();
            other.frames[t..].clone_from_slice(&game(2, 12).frames[t..]);
            assert_ne!(whole.frames[t], other.frames[t]);
            for player in 0..2 {
                assert_eq!(row(&whole, t, player), row(&other, t, player), "frame {t}");
            }
            // And the frame before does matter: its fighters and the player's own controller, not the opponent's.
            let mut before = whole.clone();
            before.frames[t - 1].players[1].controller.main_stick = [0.123, 0.456];
            assert_eq!(row(&whole, t, 0), row(&before, t, 0));
            let (own, stick) = (row(&before, t, 1).0, offset("previous.main_stick"));
            assert_eq!(own[stick..stick + 2], [0.123, 0.456]);
            before.frames[t - 1].players[1].fighter.percent = 199.0;
            assert_ne!(row(&whole, t, 0), row(&before, t, 0));
        }
    }

    #[test]
    fn both_players_see_the_same_from_their_sides() {
        let mut whole = game(3, 4);
        let shot = Projectile { owner: Some(1), kind: 54, ..Projectile::default() };
        whole.frames[1].projectiles[0] = Some(shot);
        let (one, two) = (row(&whole, 2, 0), row(&whole, 2, 1));
        let opponent = offset("opponent.percent");
        assert_eq!(one.0[..opponent], two.0[opponent..2 * opponent]);
        assert_eq!([one.1[0], one.1[2], one.1[4]], [two.1[1], two.1[3], two.1[5]]);
        let owner = offset("projectile0.owner");
        assert_eq!((one.0[owner], two.0[owner]), (-0.5, 0.5));
        assert_eq!(one.0[offset("relative.x")], -two.0[offset("relative.x")]);
    }

    /// Left and right exchanged in the whole recording, written without the code under test.
    fn mirrored(game: &Game) -> Game {
        let mut game = game.clone();
        for frame in &mut game.frames {
            for player in &mut frame.players {
                player.controller.main_stick[0] *= -1.0;
                player.controller.c_stick[0] *= -1.0;
                for fighter in [Some(&mut player.fighter), player.nana.as_mut()].into_iter().flatten() {
                    fighter.position[0] *= -1.0;
                    fighter.facing *= -1.0;
                    [0, 1, 3].iter().for_each(|i| fighter.velocity[*i] *= -1.0);
                    let sides = [(1, 2), (2, 1), (264, 265), (265, 264)];
                    if let Some((_, other)) = sides.iter().find(|(id, _)| *id == fighter.action_state) {
                        fighter.action_state = *other;
                    }
                }
            }
            for projectile in frame.projectiles.iter_mut().flatten() {
                projectile.position[0] *= -1.0;
                projectile.velocity[0] *= -1.0;
            }
        }
        game
    }

    #[test]
    fn the_mirror_is_an_involution_and_the_mirrored_game() {
        let whole = game(4, 200);
        let other = mirrored(&whole);
        let mut swapped = 0;
        for t in 1..=200 {
            for player in 0..2 {
                let observation = Observation::of(&whole, t, player).unwrap();
                assert_eq!(observation.mirror().mirror(), observation);
                assert_eq!(observation.mirror(), Observation::of(&other, t, player).unwrap());
                let (features, ids) = row(&whole, t, player);
                let (mut m, mut m_ids) = (features.clone(), ids.clone());
                mirror(&mut m, &mut m_ids);
                assert_eq!((&m, &m_ids), (&row(&other, t, player).0, &row(&other, t, player).1));
                assert_ne!(m, features);
                swapped += usize::from(m_ids != ids);
                mirror(&mut m, &mut m_ids);
                assert!(m.iter().zip(&features).all(|(a, b)| a.to_bits() == b.to_bits()));
                assert_eq!(m_ids, ids);
            }
        }
        assert!(swapped > 10, "the source has deaths to the left and right");
    }

    #[test]
    fn whatever_goes_in_finite_numbers_within_the_limits_come_out() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 3.8e22, -1e30, 1e-40] {
            let fighter = Fighter {
                character: 255,
                action_state: u16::MAX,
                action_frame: bad,
                position: [bad, -bad],
                facing: bad,
                percent: bad,
                shield: bad,
                hitstun: bad,
                velocity: [bad; 5],
                ..Fighter::default()
            };
            let controller = Controller { main_stick: [bad; 2], c_stick: [bad; 2], shoulder: bad, buttons: u16::MAX };
            let player = PlayerFrame { controller, fighter, nana: Some(fighter) };
            let projectile = Projectile { owner: Some(9), kind: u16::MAX, position: [bad; 2], velocity: [bad; 2] };
            let observation = Observation {
                stage: u16::MAX,
                frame_id: i32::MIN,
                players: [player, PlayerFrame::default()],
                projectiles: [Some(projectile); PROJECTILES],
            };
            let (features, ids) = observe(&observation);
            for field in &SCHEMA {
                let columns = &features[field.offset..field.offset + field.width];
                assert!(columns.iter().all(|v| (field.clip[0]..=field.clip[1]).contains(v)), "{} of {bad}: {columns:?}", field.name);
            }
            assert_eq!(features[283..], [0.0; 5]);
            assert_eq!(ids, [398, 0, 398, 398, 32, 0]);
        }
    }

    #[test]
    fn names_have_their_columns() {
        let names: Vec<String> = (0..NAMES).map(|i| format!("P{i}")).collect();
        let embedding = Embedding::new(&names).unwrap();
        assert_eq!((embedding.name_index("P111"), embedding.name_index("nobody")), (Some(111), None));
        let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
        embedding.observe(&Observation::default(), Some(111), &mut features, &mut ids).unwrap();
        let block = &features[offset("name")..offset("name") + NAMES];
        assert_eq!((block.iter().sum::<f32>(), block[111]), (1.0, 1.0));
        let error = embedding.observe(&Observation::default(), Some(112), &mut features, &mut ids).unwrap_err();
        assert!(error.to_string().contains("112"));
        let more: Vec<String> = (0..=NAMES).map(|i| format!("P{i}")).collect();
        for wrong in [more, vec!["A".into(), "A".into()], vec![String::new()]] {
            assert!(Embedding::new(&wrong).unwrap_err().to_string().starts_with("config: names"));
        }
    }

    #[test]
    fn a_range_of_frames_is_the_frames_one_by_one() {
        let whole = game(5, 40);
        let (mut features, mut ids) = (vec![0.0; 40 * WIDTH], vec![0; 40 * IDS]);
        Embedding::default().encode_game(&whole, 1..41, 1, None, &mut features, &mut ids).unwrap();
        for t in 1..41 {
            let (f, i) = row(&whole, t, 1);
            assert_eq!((&features[(t - 1) * WIDTH..t * WIDTH], &ids[(t - 1) * IDS..t * IDS]), (&f[..], &i[..]));
        }
    }

    #[test]
    fn wrong_requests_are_errors() {
        let whole = game(6, 3);
        let embedding = Embedding::default();
        let (mut features, mut ids) = (vec![0.0; WIDTH], vec![0; IDS]);
        for (t, player, part) in [(0, 0, "frame 0"), (4, 0, "frame 4"), (usize::MAX, 0, "expected a frame of 1 to 3"), (1, 2, "player 2")] {
            let error = embedding.encode(&whole, t, player, None, &mut features, &mut ids).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(embedding.encode(&whole, 1, 0, None, &mut features[1..], &mut ids).is_err());
        assert!(embedding.encode(&whole, 1, 0, None, &mut features, &mut ids[1..]).is_err());
        assert!(embedding.encode_game(&whole, 1..3, 0, None, &mut features, &mut ids).is_err());
        assert!(Observation::of(&Game::default(), 1, 0).is_err());
    }
}
