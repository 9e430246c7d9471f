//! One game as the policy sees it: unique frames in order, two players, plain numbers in the game's units.
//!
//! Values are as recorded; clamping and scaling belong to the embedding. Fields that a replay's format version does not
//! have are zero. Coordinates are game units, percent is damage, times are frames of 1/60 s.

/// Buttons of the physical controller, as bits of [`Controller::buttons`].
pub mod buttons {
    #![allow(missing_docs)]
    pub const D_LEFT: u16 = 0x1;
    pub const D_RIGHT: u16 = 0x2;
    pub const D_DOWN: u16 = 0x4;
    pub const D_UP: u16 = 0x8;
    pub const Z: u16 = 0x10;
    pub const R: u16 = 0x20;
    pub const L: u16 = 0x40;
    pub const A: u16 = 0x100;
    pub const B: u16 = 0x200;
    pub const X: u16 = 0x400;
    pub const Y: u16 = 0x800;
    pub const START: u16 = 0x1000;
}

/// What a player's controller said in one frame. It acts on this frame.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Controller {
    /// Physical buttons, bits of [`buttons`].
    pub buttons: u16,
    /// Main stick, x and y in [-1, 1], 0 is neutral.
    pub main_stick: [f32; 2],
    /// C-stick, x and y in [-1, 1], 0 is neutral.
    pub c_stick: [f32; 2],
    /// Analog shoulder (the stronger trigger), 0 to 1.
    pub shoulder: f32,
}

/// The state of one fighter after a frame (`post` of the replay).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fighter {
    /// Internal character id (changes when Zelda and Sheik transform).
    pub character: u8,
    /// Action state id.
    pub action_state: u16,
    /// Frames in the action state.
    pub action_frame: f32,
    /// Position x, y.
    pub position: [f32; 2],
    /// -1 left, +1 right.
    pub facing: f32,
    /// Damage.
    pub percent: f32,
    /// Shield health, 60 is full.
    pub shield: f32,
    /// Stocks left.
    pub stocks: u8,
    /// Jumps left.
    pub jumps: u8,
    /// Standing on ground.
    pub on_ground: bool,
    /// Cannot be hurt.
    pub invulnerable: bool,
    /// Frames of hitstun left.
    pub hitstun: f32,
    /// Own speed in the air (x), on the ground (x), own speed y, speed x and y from attacks.
    pub velocity: [f32; 5],
}

/// One player in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlayerFrame {
    /// The inputs that act on this frame.
    pub controller: Controller,
    /// The state after this frame.
    pub fighter: Fighter,
    /// The second Ice Climber, if there is one and it lives.
    pub nana: Option<Fighter>,
}

/// A projectile or item on the stage.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Projectile {
    /// The player that owns it: index into [`Game::players`], `None` when nobody does.
    pub owner: Option<u8>,
    /// Item type id.
    pub kind: u16,
    /// Position x, y.
    pub position: [f32; 2],
    /// Speed x, y.
    pub velocity: [f32; 2],
}

/// How many projectiles a frame keeps: the first in order of spawn id.
pub const PROJECTILES: usize = 5;

/// One frame, after rollbacks are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Frame {
    /// -123 is the first frame, 0 is "Go!".
    pub id: i32,
    /// Both players, in port order.
    pub players: [PlayerFrame; 2],
    /// Projectiles in play.
    pub projectiles: [Option<Projectile>; PROJECTILES],
}

/// Who plays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Player {
    /// Controller port, 0 to 3.
    pub port: u8,
    /// External character id chosen at the start.
    pub character: u8,
    /// Name tag or netplay name, empty when the replay has none.
    pub name: String,
}

/// A whole game between two players.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Game {
    /// Stage id: 2 FoD, 3 PS, 8 YS, 28 DL, 31 BF, 32 FD.
    pub stage: u16,
    /// Replay format version.
    pub version: (u8, u8, u8),
    /// Both players, in port order.
    pub players: [Player; 2],
    /// Unique frames by rising id.
    pub frames: Vec<Frame>,
    /// How many raw frames the file held, rolled-back ones counted.
    pub raw_frames: usize,
    /// Whether the recording has its end; `Some(reason)` when frames were recovered from a damaged or unfinished file.
    pub incomplete: Option<String>,
}
