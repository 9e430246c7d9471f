//! A simulated fight of two: something to see, try and test for people without replays, and to play.
//!
//! Not Melee, but of its form: the geometry of Final Destination, Melee's action states and units, physics of one frame
//! per step. A [`Fight`] obeys two controllers, whoever holds them; players that are programs are [`Bot`]s, who see both fighters.
//! So what a fighter does next follows from the situation and from what its controller did, which is what a policy has to learn.
//! [`simulate`] records two [`Script`]s. A [`Duel`] is a fight of somebody else against a bot, and [`score`] counts what comes of many.
//!
//! Everything follows from the seed by additions, multiplications and comparisons of `f32`: the same on every machine.

use super::embedding::Observation;
use super::game::{Controller, Fighter, Frame, Game, Player, PlayerFrame};
use crate::random::Random;
use serde::{Deserialize, Serialize};

mod bots;
mod duel;
mod fighter;
mod score;
mod script;

pub use bots::{Bot, Keys, Punish};
pub use duel::Duel;
pub use fighter::{BLAST_X, BLAST_Y, EDGE};
pub use score::{Score, Seat, Side, bots, policy, score};
pub use script::Script;

use fighter::{Body, Kind};

/// The stage: Final Destination.
pub const STAGE: u16 = 32;

/// Frames that players act in until a fight that nobody has won is a draw: eight minutes.
pub const TIME: u32 = 28_800;

/// Who fights, in the order of the players.
pub const NAMES: [&str; 2] = ["Marth", "Fox"];

/// The first frame of every game; players act from frame 0.
const FIRST_FRAME: i32 = -123;

/// A fight as it stands after a frame: two fighters, and what both controllers said in it.
///
/// ```
/// use candle_models::policy::simulation::{Bot, Fight, Punish, Script};
/// use candle_models::random::Random;
///
/// let mut fight = Fight::ready();
/// let (mut one, mut two) = (Script::new(Random::new(1)), Punish::new(Random::new(2)));
/// while fight.winner().is_none() {
///     let (frame, [marth, fox]) = (fight.frame() + 1, fight.fighters());
///     fight.step([one.decide(frame, &marth, &fox), two.decide(frame, &fox, &marth)]);
/// }
/// assert!(fight.fighters().iter().any(|fighter| fighter.stocks == 0));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fight {
    frame: i32,
    bodies: [Body; 2],
    controllers: [Controller; 2],
}

/// What a frame did to the players.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Exchange {
    /// Damage that each took, in percent. A shield takes it in its place.
    pub damage: [f32; 2],
    /// Whether each lost a stock.
    pub lost: [bool; 2],
}

impl Default for Fight {
    /// Before the first frame of a recording, -123.
    fn default() -> Self {
        let bodies = [Kind::Marth, Kind::Fox].map(Body::new);
        Self { frame: FIRST_FRAME - 1, bodies, controllers: [Controller::default(); 2] }
    }
}

impl Fight {
    /// After frame -1: the players act in the next one.
    pub fn ready() -> Self {
        let mut fight = Self::default();
        while fight.frame < -1 {
            fight.step([Controller::default(); 2]);
        }
        fight
    }

    /// The id of the last frame. Players act from frame 0 on.
    pub fn frame(&self) -> i32 {
        self.frame
    }

    /// Both fighters as a replay tells them: Marth and Fox.
    pub fn fighters(&self) -> [Fighter; 2] {
        self.bodies.each_ref().map(Body::view)
    }

    /// Both players in the last frame, as a replay tells it.
    pub fn players(&self) -> [PlayerFrame; 2] {
        let [one, two] = self.fighters();
        let [first, second] = self.controllers;
        [(first, one), (second, two)].map(|(controller, fighter)| PlayerFrame { controller, fighter, nana: None })
    }

    /// What player 0, or 1, knows when the next frame's action is chosen.
    pub fn seen(&self, player: usize) -> Observation {
        Observation { stage: STAGE, frame_id: self.frame, players: own_first(player, self.players()), projectiles: Default::default() }
    }

    /// Who has won: the one with stocks left where the other has none. [`None`] in a fight that is on, and where both lost the last one at once.
    pub fn winner(&self) -> Option<usize> {
        match self.bodies.each_ref().map(|body| body.stocks > 0) {
            [true, false] => Some(0),
            [false, true] => Some(1),
            _ => None,
        }
    }

    /// Whether a player has no stocks left.
    pub fn is_over(&self) -> bool {
        self.bodies.iter().any(|body| body.stocks == 0)
    }

    /// The next frame: both move, then blows land, all of them at once.
    pub fn step(&mut self, controllers: [Controller; 2]) -> Exchange {
        self.frame += 1;
        self.controllers = controllers;
        let before = self.bodies.each_ref().map(|body| body.stocks);
        for (body, controller) in self.bodies.iter_mut().zip(&controllers) {
            body.step(self.frame, controller);
        }
        let [one, two] = &mut self.bodies;
        let hits = [one.hit(two), two.hit(one)];
        let mut damage = [0.0; 2];
        if let Some(hit) = &hits[0] {
            one.landed();
            damage[1] = two.receive(hit);
        }
        if let Some(hit) = &hits[1] {
            two.landed();
            damage[0] = one.receive(hit);
        }
        Exchange { damage, lost: [one.stocks < before[0], two.stocks < before[1]] }
    }
}

/// The chances of player 0, or 1, in the fight of a seed.
pub fn chances(seed: u64, player: usize) -> Random {
    Random::new(seed).stream("simulated game").at(player as u64)
}

/// A pair with the part of player 0, or 1, first. Twice is the same pair again.
pub fn own_first<T>(player: usize, [one, two]: [T; 2]) -> [T; 2] {
    if player == 0 { [one, two] } else { [two, one] }
}

/// Simulates a game of at most `frames` frames (from -123, like every replay). It ends early when a player has lost all
/// stocks. The same seed gives the same game, and a shorter one is its beginning.
pub fn simulate(seed: u64, frames: usize) -> Game {
    let mut scripts = [0, 1].map(|player| Script::new(chances(seed, player)));
    let mut fight = Fight::default();
    let mut game = Game {
        stage: STAGE,
        version: (3, 9, 0),
        players: [
            Player { port: 0, character: 9, name: "Simulated 1".to_owned(), code: format!("ONE#{seed}"), computer: false },
            Player { port: 1, character: 2, name: "Simulated 2".to_owned(), code: format!("TWO#{seed}"), computer: false },
        ],
        ..Game::default()
    };
    while game.frames.len() < frames && !fight.is_over() {
        let (id, seen) = (fight.frame + 1, fight.fighters());
        let mut controllers = [Controller::default(); 2];
        if id >= 0 {
            controllers = [0, 1].map(|player: usize| scripts[player].decide(id, &seen[player], &seen[1 - player]));
        }
        fight.step(controllers);
        game.frames.push(Frame { id, players: fight.players(), ..Frame::default() });
    }
    game.raw_frames = game.frames.len();
    game
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::game::{STAGES, buttons};

    #[test]
    fn a_seed_is_a_game() {
        let game = simulate(7, 3000);
        assert_eq!(game, simulate(7, 3000));
        assert_ne!(game.frames, simulate(8, 3000).frames);
        assert_eq!(simulate(7, 1000).frames[..], game.frames[..1000]);
    }

    /// Whoever looks at a fight only from outside knows as much as those who were told; a fight that was saved in the middle goes on alike.
    #[test]
    fn a_frame_tells_what_it_did() {
        let (mut fight, mut lost, mut hit) = (Fight::ready(), 0, 0);
        let mut scripts = [0, 1].map(|player| Script::new(chances(4, player)));
        let mut saved = None;
        while !fight.is_over() {
            let (id, before) = (fight.frame() + 1, fight.fighters());
            if id == 500 {
                saved = Some(serde_json::to_string(&(&fight, &scripts)).unwrap());
            }
            let controllers = [0, 1].map(|player: usize| scripts[player].decide(id, &before[player], &before[1 - player]));
            let exchange = fight.step(controllers);
            let after = fight.fighters();
            for player in 0..2 {
                assert_eq!(exchange.lost[player], after[player].stocks < before[player].stocks);
                if after[player].action_state > 12 {
                    assert_eq!(exchange.damage[player], after[player].percent - before[player].percent, "frame {id}");
                }
                (lost, hit) = (lost + usize::from(exchange.lost[player]), hit + usize::from(exchange.damage[player] > 0.0));
                assert_eq!(fight.players()[player].controller, controllers[player]);
            }
        }
        assert!(lost >= 4 && hit > 20, "{lost} stocks, {hit} hits");
        assert_eq!(simulate(4, usize::MAX).frames.last().unwrap().players, fight.players());
        let (mut other, mut scripts): (Fight, [Script; 2]) = serde_json::from_str(&saved.unwrap()).unwrap();
        while !other.is_over() {
            let (id, seen) = (other.frame() + 1, other.fighters());
            other.step([0, 1].map(|player: usize| scripts[player].decide(id, &seen[player], &seen[1 - player])));
        }
        assert_eq!(other, fight);
    }

    #[test]
    fn each_player_knows_its_own_side() {
        let game = simulate(5, 700);
        let mut fight = Fight::default();
        for frame in &game.frames {
            fight.step(frame.players.map(|player| player.controller));
        }
        assert_eq!(fight.players(), game.frames[699].players);
        for player in 0..2 {
            assert_eq!(fight.seen(player), Observation::of(&game, 700, player).unwrap());
        }
        assert_eq!(own_first(1, own_first(1, [3, 4])), [3, 4]);
    }

    #[test]
    fn fighters_do_what_fighters_do() {
        let mut states = std::collections::BTreeSet::new();
        let mut pressed = 0;
        let mut lost = 0;
        for seed in 0..8 {
            let game = simulate(seed, 7200);
            game.check().unwrap();
            for pair in game.frames.windows(2) {
                for (before, after) in pair[0].players.iter().zip(&pair[1].players) {
                    states.insert(after.fighter.action_state);
                    pressed |= after.controller.buttons;
                    lost += usize::from(after.fighter.stocks < before.fighter.stocks);
                    let [x, y] = after.fighter.position;
                    assert!(x.abs() < 300.0 && y.abs() < 250.0, "{x} {y}");
                    assert!((0.0..=60.0).contains(&after.fighter.shield));
                    assert!(after.fighter.facing.abs() == 1.0 && after.fighter.jumps <= 2);
                    if after.fighter.on_ground {
                        assert!(y == 0.0 && x.abs() <= STAGES[5].2, "on ground at {x} {y}");
                    }
                }
            }
        }
        assert!(lost >= 8, "{lost} stocks were lost");
        let wanted = [0, 12, 13, 14, 15, 18, 20, 21, 24, 25, 27, 29, 42, 44, 53, 60, 65, 66, 75, 88, 178, 179, 180, 181];
        for state in wanted {
            assert!(states.contains(&state), "nobody was in action state {state}: {states:?}");
        }
        for button in [buttons::A, buttons::X, buttons::R] {
            assert!(pressed & button != 0, "nobody pressed {button:#x}");
        }
    }

    /// What a policy can learn: the controller causes the motion, in the frame that it acts on.
    #[test]
    fn the_controller_causes_the_motion() {
        let game = simulate(3, 7200);
        let mut jumps = 0;
        for pair in game.frames.windows(2) {
            for (before, after) in pair[0].players.iter().zip(&pair[1].players) {
                let standing = before.fighter.action_state == 14;
                if standing && after.fighter.action_state == 24 {
                    jumps += 1;
                    assert!(after.controller.buttons & buttons::X != 0);
                }
                if standing && after.fighter.action_state == 20 {
                    assert!(after.controller.main_stick[0] * after.fighter.velocity[1] > 0.0);
                }
            }
        }
        assert!(jumps > 5, "{jumps} jumps");
    }
}
