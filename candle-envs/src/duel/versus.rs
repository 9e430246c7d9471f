//! A fight of two who are both told what to do.

use super::{Duel, controller, draw, observe, reward};
use crate::{Actions, Env, EnvError, Episode, Frame, Result, Resumable, Scene, Spec, VectorEnv, View};
use candle_models::policy::simulation::{Exchange, Fight, Script, TIME, own_first};
use serde::{Deserialize, Serialize};

/// One fight that two play, each in a lane of its own: lane 0 is Marth's, lane 1 Fox's. Each sees and does what the player of a [`Duel`] does. What is
/// over begins anew in the next step, as with [`Autoreset::NextStep`](crate::Autoreset::NextStep).
///
/// ```
/// use candle_envs::duel::Versus;
/// use candle_envs::{Actions, VectorEnv};
/// use candle_models::policy::actions::Action;
///
/// # fn main() -> candle_envs::Result<()> {
/// let mut fight = Versus::default();
/// fight.reset(1)?;
/// let frame = fight.step(&Actions::classes(Action::default().to_ids().repeat(2)))?;
/// assert_eq!(frame.rewards, [0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Versus {
    game: Game,
    spec: Spec,
    frame: Frame,
}

/// The fight, and how it has gone so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Game {
    fight: Fight,
    steps: u32,
    rewards: [f64; 2],
    ended: bool,
}

impl Default for Game {
    fn default() -> Self {
        Self { fight: Fight::ready(), steps: 0, rewards: [0.0; 2], ended: false }
    }
}

impl Default for Versus {
    fn default() -> Self {
        let spec = Duel::<Script>::spec();
        let mut new = Self { game: Game::default(), frame: Frame::new(2, &spec), spec };
        new.begin();
        new
    }
}

impl Versus {
    /// A fight from its beginning, in which nothing is left to chance.
    fn begin(&mut self) {
        self.game = Game::default();
        self.frame.rewards.fill(0.0);
        for flags in [&mut self.frame.terminated, &mut self.frame.truncated, &mut self.frame.ignored] {
            flags.fill(false);
        }
        self.frame.first.fill(true);
        self.show();
    }

    fn show(&mut self) {
        let (floats, ids) = (self.spec.floats(), self.spec.ids());
        let views = self.frame.floats.chunks_exact_mut(floats).zip(self.frame.ids.chunks_exact_mut(ids));
        for (player, (floats, ids)) in views.enumerate() {
            observe(&self.game.fight, player, View { floats, ids });
        }
    }
}

impl VectorEnv for Versus {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn lanes(&self) -> usize {
        2
    }

    fn reset(&mut self, _: u64) -> Result<&Frame> {
        self.frame.episodes.clear();
        self.begin();
        Ok(&self.frame)
    }

    /// Both lanes are one fight: it begins anew if either is to.
    fn reset_lanes(&mut self, which: &[bool]) -> Result<&Frame> {
        if which.len() != 2 {
            return Err(EnvError::Shape { what: "flags of environments to reset", expected: 2, found: which.len() });
        }
        self.frame.episodes.clear();
        if which.contains(&true) {
            self.begin();
        }
        Ok(&self.frame)
    }

    fn step(&mut self, actions: &Actions) -> Result<&Frame> {
        let columns = self.spec.columns();
        if actions.classes.len() != 2 * columns {
            return Err(EnvError::Shape { what: "classes of actions", expected: 2 * columns, found: actions.classes.len() });
        }
        self.frame.episodes.clear();
        if self.game.ended {
            self.begin();
            self.frame.ignored.fill(true);
            return Ok(&self.frame);
        }
        let [one, two] =
            [0, 1].map(|player| controller(&actions.classes[player * columns..][..columns]).map_err(|e| e.of(&self.spec.name, player)));
        let Exchange { damage, lost } = self.game.fight.step([one?, two?]);
        self.game.steps += 1;
        let terminated = self.game.fight.is_over();
        self.game.ended = terminated || self.game.steps >= TIME;
        for player in 0..2 {
            let reward = reward(Exchange { damage: own_first(player, damage), lost: own_first(player, lost) });
            self.game.rewards[player] += reward;
            self.frame.rewards[player] = reward as f32;
        }
        self.frame.first.fill(false);
        self.frame.ignored.fill(false);
        self.frame.terminated.fill(terminated);
        self.frame.truncated.fill(self.game.ended && !terminated);
        if self.game.ended {
            let ended = (0..2).map(|lane| Episode { lane, reward: self.game.rewards[lane], steps: self.game.steps, terminated });
            self.frame.episodes.extend(ended);
        }
        self.show();
        Ok(&self.frame)
    }

    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn draw(&self, lane: usize) -> Option<Scene> {
        Some(draw(&self.game.fight, lane, "opponent"))
    }

    fn resumable(&mut self) -> Option<&mut dyn Resumable> {
        Some(self)
    }
}

impl Resumable for Versus {
    fn save(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.game).map_err(|e| EnvError::Saved { env: self.spec.name.to_string(), reason: e.to_string() })
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let damaged = |e: serde_json::Error| EnvError::Saved { env: self.spec.name.to_string(), reason: e.to_string() };
        self.game = serde_json::from_slice(saved).map_err(damaged)?;
        self.frame = Frame::new(2, &self.spec);
        self.frame.first.fill(self.game.steps == 0);
        self.show();
        Ok(())
    }
}
