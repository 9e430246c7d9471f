//! What a run is, as plain data: a preset, overlaid by a TOML file, overlaid by `--set a.b=c`.

use crate::overlay;
use crate::schedule::{Schedule, Shape};
use crate::trainer::TrainerConfig;
use candle_envs::Spec;
use candle_models::agent::Component;
use candle_models::muzero::{Dynamics, MuZeroConfig, NetworkConfig, Support};
use candle_models::search::{Gumbel, Method, Puct, Settings};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A run of MuZero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// The environment's name.
    pub env: String,
    /// Steps of all environments together.
    pub frames: u64,
    /// How it plays.
    pub play: PlayConfig,
    /// How it learns from what it played.
    pub learn: LearnConfig,
    /// The layers.
    pub network: NetworkConfig,
    /// What values and rewards are distributions over.
    pub support: Support,
    /// What says what comes of an action: `learnt`, or the `rules` of an environment that gives them.
    pub dynamics: Dynamics,
    /// How it is measured.
    pub evaluation: EvaluationConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

/// Which search plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Search {
    /// Gumbel MuZero: improves the policy with few simulations, too.
    Gumbel,
    /// The published one of MuZero.
    Puct,
}

impl Search {
    /// Its settings with the usual constants.
    pub fn settings(self, simulations: usize) -> Settings {
        let method = match self {
            Self::Gumbel => Method::Gumbel(Gumbel::default()),
            Self::Puct => Method::Puct(Puct::default()),
        };
        Settings { method, simulations, max_depth: None }
    }
}

/// What is played between two updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlayConfig {
    /// Environments side by side.
    pub lanes: usize,
    /// Steps of each in a round.
    pub steps: usize,
    /// Which search plays.
    pub search: Search,
    /// Simulations for each step.
    pub simulations: usize,
    /// Share of the steps in which an action is drawn among the legal ones, so that play gets to positions to which the search would not lead. What
    /// positions are worth is learnt from what the search said there, not from what came of it.
    pub random: f64,
    /// Rounds before the first update.
    pub warm_up: u64,
    /// Threads that play beside the learner, each some of the environments, with the parameters of the last round; with 0 the learner plays in turn with
    /// its updates, and a run that goes on is the same to the bit. Of several ranks each has so many.
    pub actors: usize,
    /// Rounds of actors that wait for the learner before they wait themselves.
    pub queue: usize,
}

/// How a round is learnt from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnConfig {
    /// Updates behind each round.
    pub updates: u64,
    /// Positions of an update.
    pub batch: usize,
    /// Steps that the model is unrolled over from each.
    pub unroll: usize,
    /// What a reward is worth a step later.
    pub discount: f64,
    /// Rewards that a value's target sums up before it goes by what the search said; a game of two is always played to its end.
    pub horizon: usize,
    /// Weight of the value beside policy and reward.
    pub value: f64,
    /// Weight of the self-consistency of EfficientZero, that what the dynamics expect look like what was then seen: 0 leaves it out, 2 is the published one.
    pub consistency: f64,
    /// Positions that are remembered.
    pub buffer: usize,
    /// Megabytes of memory that they may take.
    pub memory_mb: u64,
    /// Folder for a file with what was seen in them, which is most of what they are; without a name it is in memory.
    pub folder: String,
    /// How much more often positions are drawn whose value was wrong: 0 draws all alike.
    pub priority: f64,
    /// Remembered positions that are searched again with the present network in each round, as a share of those that are played.
    pub reanalyse: f64,
}

/// How a run is measured: on episodes from other seeds than those in training, without noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Episodes.
    pub episodes: usize,
    /// Simulations for each step.
    pub simulations: usize,
}

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 5] = ["quick", "classic", "tictactoe", "connect-four", "minatar"];

    /// `classic`: two layers of 128 for classic control. `quick`: the same over some thousand steps. `tictactoe`, `connect-four`: residual convolutions,
    /// against itself, the latter by the rules. `minatar`: two layers of 256 on the flat grid.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let mut trainer = TrainerConfig { evaluate_every: 1000, save_every: 1000, ..TrainerConfig::default() };
        trainer.schedule = Schedule { peak: 3e-3, warmup: 50, shape: Shape::Cosine, floor: 0.05, ..Schedule::default() };
        (trainer.optimiser.weight_decay, trainer.optimiser.eps, trainer.optimiser.clip) = (1e-4, 1e-8, 10.0);
        let run = Self {
            seed: 1,
            env: "cartpole".to_owned(),
            frames: 100_000,
            play: PlayConfig {
                lanes: 16,
                steps: 50,
                search: Search::Gumbel,
                simulations: 16,
                random: 0.0,
                warm_up: 2,
                actors: 0,
                queue: 2,
            },
            learn: LearnConfig {
                updates: 50,
                batch: 256,
                unroll: 5,
                discount: 0.997,
                horizon: 10,
                value: 0.25,
                consistency: 0.0,
                buffer: 100_000,
                memory_mb: 4096,
                folder: String::new(),
                priority: 0.6,
                reanalyse: 1.0,
            },
            network: NetworkConfig::Mlp { width: 128, layers: 2 },
            support: Support::Transformed { size: 20 },
            dynamics: Dynamics::Learnt,
            evaluation: EvaluationConfig { episodes: 32, simulations: 16 },
            trainer,
        };
        let board = || {
            let mut run = run.clone();
            (run.network, run.support) = (NetworkConfig::Board { channels: 32, blocks: 2 }, Support::Plain { size: 1 });
            (run.learn.discount, run.learn.horizon, run.learn.value, run.learn.unroll) = (1.0, 100, 1.0, 3);
            run.trainer.schedule.peak = 2e-3;
            run
        };
        match name {
            "quick" => Ok(Self { frames: 8_000, ..run }),
            "classic" => Ok(run),
            "tictactoe" => {
                let mut run = board();
                (run.env, run.frames) = ("tictactoe".to_owned(), 200_000);
                run.network = NetworkConfig::Board { channels: 16, blocks: 1 };
                run.play = PlayConfig { lanes: 64, steps: 16, simulations: 32, random: 0.25, ..run.play };
                Ok(run)
            }
            "connect-four" => {
                let mut run = board();
                (run.env, run.frames) = ("connect-four".to_owned(), 3_000_000);
                (run.dynamics, run.learn.unroll) = (Dynamics::Rules, 0);
                run.play = PlayConfig { lanes: 256, steps: 16, simulations: 32, random: 0.06, ..run.play };
                (run.learn.updates, run.learn.reanalyse, run.learn.priority) = (50, 0.0, 0.0);
                (run.learn.buffer, run.evaluation.simulations) = (500_000, 100);
                Ok(run)
            }
            "minatar" => {
                let mut run = Self { env: "breakout".to_owned(), frames: 1_500_000, ..run };
                run.network = NetworkConfig::Mlp { width: 256, layers: 2 };
                run.play = PlayConfig { lanes: 64, steps: 32, simulations: 25, ..run.play };
                (run.learn.updates, run.learn.buffer, run.trainer.schedule.peak) = (80, 200_000, 1e-3);
                run.learn.reanalyse = 0.5;
                Ok(run)
            }
            _ => Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
    }

    /// The preset with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &str, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let run = overlay::resolve(&Self::preset(preset)?, file, sets, &overlay::kind_alone)?;
        run.validate()?;
        Ok(run)
    }

    /// The networks for an environment.
    ///
    /// # Errors
    /// If its action is not one of several classes, or a field is out of range.
    pub fn model(&self, spec: &Spec) -> Result<MuZeroConfig> {
        let [Component::Discrete { classes, .. }] = &spec.action[..] else {
            return Err(Error::config("env", format!("{}: expected an action of one component of classes", spec.name)));
        };
        let model = MuZeroConfig {
            observation: spec.observation.clone(),
            actions: *classes,
            players: spec.players,
            discount: self.learn.discount,
            support: self.support,
            network: self.network.clone(),
            dynamics: self.dynamics,
        };
        model.validate()?;
        Ok(model)
    }

    /// Rounds of the run, those before the first update among them.
    pub fn rounds(&self) -> u64 {
        self.frames.div_ceil((self.play.lanes * self.play.steps) as u64).max(self.play.warm_up + 1)
    }

    /// Updates of the run.
    pub fn updates(&self) -> u64 {
        (self.rounds() - self.play.warm_up) * self.learn.updates
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        let (play, learn) = (&self.play, &self.learn);
        overlay::check_counts(&[
            ("play.lanes", play.lanes as u64, 1 << 16),
            ("play.steps", play.steps as u64, 1 << 20),
            ("play.simulations", play.simulations as u64, 1 << 16),
            ("play.warm_up", play.warm_up, 1 << 20),
            ("play.queue", play.queue as u64, 1 << 16),
            ("learn.updates", learn.updates, 1 << 20),
            ("learn.batch", learn.batch as u64, 1 << 16),
            ("learn.horizon", learn.horizon as u64, 1 << 16),
            ("learn.buffer", learn.buffer as u64, 1 << 32),
            ("learn.memory_mb", learn.memory_mb, 1 << 24),
            ("evaluation.episodes", self.evaluation.episodes as u64, 1 << 16),
            ("evaluation.simulations", self.evaluation.simulations as u64, 1 << 16),
            ("frames", self.frames, 1 << 50),
        ])?;
        if learn.buffer / play.lanes < play.steps.max(learn.unroll + learn.horizon.min(64) + 2) {
            let reason = format!("{} positions are too few for {} environments of {} steps", learn.buffer, play.lanes, play.steps);
            return Err(Error::config("learn.buffer", reason));
        }
        let unrolls = if self.dynamics == Dynamics::Rules { 0..=0 } else { 1..=64 };
        if !unrolls.contains(&learn.unroll) {
            let reason = format!("expected {} to {}, found {}", unrolls.start(), unrolls.end(), learn.unroll);
            return Err(Error::config("learn.unroll", reason));
        }
        if play.actors > play.lanes {
            let reason = format!("{} cannot share {} environments", play.actors, play.lanes);
            return Err(Error::config("play.actors", reason));
        }
        if !(0.0..=1.0).contains(&play.random) {
            return Err(Error::config("play.random", format!("expected 0 to 1, found {}", play.random)));
        }
        for (field, x, most) in [
            ("value", learn.value, 1e6),
            ("consistency", learn.consistency, 1e6),
            ("priority", learn.priority, 2.0),
            ("reanalyse", learn.reanalyse, 100.0),
        ] {
            if !(0.0..=most).contains(&x) {
                return Err(Error::config(format!("learn.{field}"), format!("expected 0 to {most}, found {x}")));
            }
        }
        if self.trainer.accumulate != 1 {
            return Err(Error::config(
                "trainer.accumulate",
                format!("expected 1, found {}: a batch is an update", self.trainer.accumulate),
            ));
        }
        self.trainer.validate()
    }
}
