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

#[cfg(test)]
mod tests;

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
