//! MinAtar: five games of the Atari 2600 in miniature, on a grid of ten by ten (Young, Tian, "MinAtar: An Atari-Inspired Testbed for Thorough
//! and Reproducible Reinforcement Learning Experiments", 2019).
//!
//! They are written anew from their rules, and play as MinAtar 1.0.15 with its ramps of difficulty: with the same draws every observation, reward
//! and end is the same, which traces of it check. One thing differs: the move before the first of an episode is none, where MinAtar repeats the
//! last one of the episode before.
//!
//! What is seen is a grid of channels of 0 and 1, in MinAtar's order; the six actions are nothing, left, up, right, down and fire.

mod asterix;
mod breakout;
mod freeway;
mod game;
mod seaquest;
mod space_invaders;
#[cfg(test)]
mod tests;

pub use asterix::Asterix;
pub use breakout::Breakout;
pub use freeway::Freeway;
pub use seaquest::Seaquest;
pub use space_invaders::SpaceInvaders;

use crate::{Action, Env, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::{Component, Observation};
use game::{Draws, Game, Grid, Move, SIDE};
use serde::{Deserialize, Serialize};

/// How often the action before is done again, in place of the one that is asked for.
const STICKY: f64 = 0.1;

/// One of the games as an environment.
///
/// ```
/// use candle_envs::minatar::{Breakout, MinAtar};
/// use candle_envs::{Autoreset, Vector, VectorEnv};
///
/// # fn main() -> candle_envs::Result<()> {
/// let mut games = Vector::<MinAtar<Breakout>>::new(8, Autoreset::SameStep)?;
/// assert_eq!(games.reset(1)?.floats.len(), 8 * 10 * 10 * 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(bound = "G: Game")]
pub struct MinAtar<G> {
    game: G,
    /// What was done last.
    last: Move,
    random: Pcg64,
}

impl<G: Game> Env for MinAtar<G> {
    fn spec() -> Spec {
        let side = SIDE as usize;
        let grid = Observation::Grid { name: "grid".to_owned(), height: side, width: side, channels: G::COLORS.len(), layers: Vec::new() };
        Spec {
            name: G::NAME.into(),
            observation: vec![grid],
            action: vec![Component::Discrete { name: "move".to_owned(), classes: Move::ALL.len() }],
            players: 1,
            // Who never loses would play for ever.
            max_steps: Some(10_000),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        self.game.reset(&mut random);
        (self.last, self.random) = (Move::Nothing, random);
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let chosen = Move::of(action.classes)?;
        Ok(sticky_step(&mut self.game, &mut self.last, chosen, &mut self.random))
    }

    fn observe(&self, to: View) {
        self.game.show(&mut Grid::empty(to.floats, G::COLORS.len()));
    }

    /// Slow enough for people to play.
    fn rate() -> f32 {
        10.0
    }

    fn draw(&self) -> Scene {
        let channels = G::COLORS.len();
        let mut cells = vec![0.0; SIDE as usize * SIDE as usize * channels];
        self.game.show(&mut Grid::empty(&mut cells, channels));
        let mut scene = Scene::new(f32::from(SIDE), f32::from(SIDE), [0; 3]);
        // The first channel is the player's, which is to be seen above everything else.
        for (channel, color) in G::COLORS.iter().enumerate().rev() {
            for (cell, _) in cells.chunks(channels).enumerate().filter(|(_, here)| here[channel] != 0.0) {
                scene.rectangle([(cell % SIDE as usize) as f32, (cell / SIDE as usize) as f32], [1.0; 2], *color);
            }
        }
        scene
    }
}

/// A step of a game, in which chance may choose the action before.
fn sticky_step<G: Game>(game: &mut G, last: &mut Move, chosen: Move, draws: &mut impl Draws) -> Step {
    if !draws.chance(STICKY) {
        *last = chosen;
    }
    let outcome = game.step(*last, draws);
    Step { reward: f64::from(outcome.reward), terminated: outcome.over, truncated: false }
}
