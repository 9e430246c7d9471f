//! One game as the policy sees it: unique frames in order, two players, plain numbers in the game's units.
//!
//! Values are as recorded; clamping and scaling belong to the embedding. Fields that a replay's format version does not
//! have are zero, and so are numbers that are not finite. Coordinates are game units, percent is damage, times are frames of 1/60 s.
//!
//! ```
//! use candle_models::policy::simulation::simulate;
//!
//! let game = simulate(1, 200);
//! let [one, two] = game.frames[150].players;
//! assert!(one.fighter.position[0].is_finite() && two.controller.main_stick[0].abs() <= 1.0);
//! ```

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

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
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
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
    /// Netplay connect code (`FALC#123`), empty when the replay has none.
    pub code: String,
    /// Whether the computer plays.
    pub computer: bool,
}

/// Fighters by internal id, as far as a player can choose them (11 is the follower of 10).
const CHARACTERS: [&str; 27] = [
    "Mario",
    "Fox",
    "Captain Falcon",
    "Donkey Kong",
    "Kirby",
    "Bowser",
    "Link",
    "Sheik",
    "Ness",
    "Peach",
    "Popo",
    "Nana",
    "Pikachu",
    "Samus",
    "Yoshi",
    "Jigglypuff",
    "Mewtwo",
    "Luigi",
    "Marth",
    "Zelda",
    "Young Link",
    "Dr. Mario",
    "Falco",
    "Pichu",
    "Mr. Game & Watch",
    "Ganondorf",
    "Roy",
];

/// Internal ids beyond the playable fighters.
const OTHER_CHARACTERS: [&str; 6] = ["Master Hand", "Crazy Hand", "Male Wireframe", "Female Wireframe", "Giga Bowser", "Sandbag"];

/// The internal id of each external one (the order of the selection screen).
const INTERNAL: [u8; 26] = [2, 3, 1, 24, 4, 5, 6, 17, 0, 18, 16, 8, 9, 12, 10, 15, 13, 14, 19, 7, 22, 20, 21, 26, 23, 25];

/// The six stages of tournament play, with half the width of their main floor in game units.
pub const STAGES: [(u16, &str, f32); 6] = [
    (2, "Fountain of Dreams", 63.3475),
    (3, "Pokemon Stadium", 87.75),
    (8, "Yoshi's Story", 56.0),
    (28, "Dream Land", 77.2713),
    (31, "Battlefield", 68.4),
    (32, "Final Destination", 85.5657),
];

/// The name of a playable fighter by internal id, `None` for other ids.
pub fn character_name(internal: u8) -> Option<&'static str> {
    CHARACTERS.get(usize::from(internal)).copied()
}

/// The internal id (as in [`Fighter::character`]) of an external one (as in [`Player::character`]).
pub fn internal_character(external: u8) -> Option<u8> {
    INTERNAL.get(usize::from(external)).copied()
}

/// Whether a player's name, or the letters of a connect code, are nobody's: none, one letter again and again, or `ANON`, as anonymised
/// recordings have them.
///
/// ```
/// use candle_models::policy::game::is_placeholder;
///
/// assert!(is_placeholder("") && is_placeholder("xxxxxx") && is_placeholder("Anon"));
/// assert!(!is_placeholder("x") && !is_placeholder("Anna"));
/// ```
pub fn is_placeholder(name: &str) -> bool {
    let letters = name.split('#').next().unwrap_or_default().to_lowercase();
    let one = letters.chars().all(|letter| letters.starts_with(letter));
    (one && (letters.chars().count() != 1 || name.contains('#'))) || letters == "anon"
}

/// Refuses a stage that is not one of [`STAGES`]; [`Error::Input`] names it.
pub fn check_stage(stage: u16) -> Result<()> {
    if STAGES.iter().any(|(id, ..)| *id == stage) {
        return Ok(());
    }
    let legal: Vec<_> = STAGES.iter().map(|(id, name, _)| format!("{id} {name}")).collect();
    Err(Error::Input(format!("stage {stage} is not supported (supported: {})", legal.join(", "))))
}

/// Refuses a fighter that no player can choose, by internal id; [`Error::Input`] names it.
pub fn check_character(internal: u8) -> Result<()> {
    if character_name(internal).is_some() {
        return Ok(());
    }
    let name = OTHER_CHARACTERS.get(usize::from(internal).wrapping_sub(CHARACTERS.len())).unwrap_or(&"unknown");
    Err(Error::Input(format!("character {internal} ({name}) is not supported (supported: internal ids 0 to {})", CHARACTERS.len() - 1)))
}

impl Frame {
    /// Refuses a frame with a fighter that the policy does not know.
    pub fn check(&self) -> Result<()> {
        for player in &self.players {
            check_character(player.fighter.character)?;
            if let Some(nana) = &player.nana {
                check_character(nana.character)?;
            }
        }
        Ok(())
    }
}

/// A whole game between two players.
///
/// ```
/// use candle_models::policy::simulation::simulate;
///
/// let game = simulate(1, 200);
/// assert_eq!(game.frames.len(), 200);
/// assert!(game.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Game {
    /// Stage id: 2 FoD, 3 PS, 8 YS, 28 DL, 31 BF, 32 FD.
    pub stage: u16,
    /// Replay format version.
    pub version: (u8, u8, u8),
    /// Both players, in port order; at least one of them is human.
    pub players: [Player; 2],
    /// Unique frames by rising id.
    pub frames: Vec<Frame>,
    /// When the recording began, in seconds since 1970 by the recording machine's clock, whose time zone is often unknown; `None` when the replay
    /// does not say.
    pub recorded: Option<i64>,
    /// How many raw frames the file held, rolled-back ones counted.
    pub raw_frames: usize,
    /// Whether the recording has its end; `Some(reason)` when frames were recovered from a damaged or unfinished file.
    pub incomplete: Option<String>,
}

impl Game {
    /// Refuses a game on another stage or with another fighter than the policy knows.
    ///
    /// # Errors
    /// [`Error::Input`] naming the stage, or the character and the frame.
    pub fn check(&self) -> Result<()> {
        check_stage(self.stage)?;
        self.frames.iter().try_for_each(|frame| frame.check().map_err(|error| Error::Input(format!("frame {}: {error}", frame.id))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_ids_cover_every_fighter_but_the_follower() {
        let mut internal: Vec<u8> = (0..26).filter_map(internal_character).collect();
        internal.sort_unstable();
        assert_eq!(internal, (0..27).filter(|id| *id != 11).collect::<Vec<_>>());
        assert_eq!(internal_character(26), None);
        assert_eq!(internal_character(2).and_then(character_name), Some("Fox"));
        assert_eq!(internal_character(20).and_then(character_name), Some("Falco"));
    }

    #[test]
    fn an_unsupported_stage_or_character_is_named() {
        let mut game = Game { stage: 32, frames: vec![Frame::default()], ..Game::default() };
        game.check().unwrap();
        game.frames[0].players[1].fighter.character = 31;
        assert_eq!(
            game.check().unwrap_err().to_string(),
            "frame 0: character 31 (Giga Bowser) is not supported (supported: internal ids 0 to 26)"
        );
        game.stage = 4;
        assert!(game.check().unwrap_err().to_string().starts_with("stage 4 is not supported (supported: 2 Fountain of Dreams, "));
    }
}
