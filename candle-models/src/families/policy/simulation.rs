//! A simulated game of two fighters: something to see, try and test for people without replays.
//!
//! Not Melee, but of its form: the geometry of Final Destination, Melee's action states and units, physics of one frame
//! per step, and two scripted players who see each other and act only through the controller. So what a fighter does next
//! follows from the situation and from what its controller did, which is what a policy has to learn.
//!
//! Everything follows from the seed by additions, multiplications and comparisons of `f32`: the same on every machine.

use super::game::{Controller, Frame, Game, Player, PlayerFrame};
use crate::random::Random;

mod fighter;
mod script;

use fighter::Body;
use script::Script;

/// The stage: Final Destination.
const STAGE: u16 = 32;

/// The first frame of every game; players act from frame 0.
const FIRST_FRAME: i32 = -123;

/// Simulates a game of at most `frames` frames (from -123, like every replay). It ends early when a player has lost all
/// stocks. The same seed gives the same game, and a shorter one is its beginning.
pub fn simulate(seed: u64, frames: usize) -> Game {
    let random = Random::new(seed).stream("simulated game");
    let mut bodies = [Body::new(0), Body::new(1)];
    let mut scripts = [0, 1].map(|player| Script::new(random.at(player)));
    let mut game = Game {
        stage: STAGE,
        version: (3, 9, 0),
        players: [
            Player { port: 0, character: 9, name: "Simulated 1".to_owned(), code: format!("ONE#{seed}"), computer: false },
            Player { port: 1, character: 2, name: "Simulated 2".to_owned(), code: format!("TWO#{seed}"), computer: false },
        ],
        ..Game::default()
    };
    for id in (FIRST_FRAME..).take(frames) {
        let seen = [bodies[0].view(), bodies[1].view()];
        let mut players = [PlayerFrame::default(); 2];
        for index in 0..2 {
            let controller = if id < 0 { Controller::default() } else { scripts[index].decide(id, &seen[index], &seen[1 - index]) };
            bodies[index].step(id, &controller);
            players[index].controller = controller;
        }
        let hits = [bodies[0].hit(&bodies[1]), bodies[1].hit(&bodies[0])];
        for (index, hit) in hits.into_iter().enumerate() {
            if let Some(hit) = hit {
                bodies[index].landed();
                bodies[1 - index].receive(&hit);
            }
        }
        for (player, body) in players.iter_mut().zip(&bodies) {
            player.fighter = body.view();
        }
        game.frames.push(Frame { id, players, ..Frame::default() });
        if bodies.iter().any(|body| body.stocks == 0) {
            break;
        }
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
