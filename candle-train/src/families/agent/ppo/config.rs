//! What a run is, as plain data: a preset, overlaid by a TOML file, overlaid by `--set a.b=c`.

use super::acting::Manner;
use crate::overlay;
use crate::schedule::{Schedule, Shape};
use crate::trainer::TrainerConfig;
use candle_envs::Spec;
use candle_models::agent::{AgentConfig, Component};
use candle_models::nn::{BackboneConfig, Heads};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A run of proximal policy optimisation.
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
    pub rollout: RolloutConfig,
    /// How it learns from what it played.
    pub update: UpdateConfig,
    /// The actor, where it is not begun from a bundle.
    pub actor: NetworkConfig,
    /// The critic, which is left behind when training is over.
    pub critic: NetworkConfig,
    /// How it is measured.
    pub evaluation: EvaluationConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

/// What is played between two updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutConfig {
    /// Environments side by side.
    pub lanes: usize,
    /// Steps of each.
    pub steps: usize,
}

/// How a rollout is learnt from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateConfig {
    /// Times that every step is seen.
    pub epochs: usize,
    /// Parts of an epoch, an update each.
    pub minibatches: usize,
    /// What a reward is worth a step later.
    pub discount: f64,
    /// Decay of generalised advantage estimation.
    pub decay: f64,
    /// How far the probability of an action may move before its gradient is cut off, as a ratio; the critic's values likewise.
    pub clip: f64,
    /// Weight of the entropy, which is to be high.
    pub entropy: f64,
    /// Weight of the critic's squared error.
    pub value: f64,
    /// Weight of the divergence of the new policy from the one that played.
    pub stay: f64,
    /// Weight of the divergences between the new policy and the teacher, in both directions; with `--teacher`, or where training begins from a bundle.
    pub teacher: f64,
    /// The divergence from the policy that played above which the rest of a rollout moves the critic alone; 0 for no limit.
    pub limit: f64,
    /// Rollouts in the beginning that move the critic alone: a critic that knows nothing would lead a good actor astray.
    pub critic_alone: u64,
}

/// A network over what the environment shows, as the part of an agent's description that does not follow from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// Width of the first layer and of the trunk (an MLP's layers say their own).
    pub hidden: usize,
    /// Width of the tables in which the last action is looked up; 0: it is not seen.
    pub previous_action: usize,
    /// How the components of an action depend on each other.
    pub heads: Heads,
    /// The temporal part.
    pub backbone: BackboneConfig,
}

impl NetworkConfig {
    /// An agent that sees what the environment shows and does that.
    pub fn agent(&self, spec: &Spec, action: Vec<Component>) -> AgentConfig {
        let Self { hidden, previous_action, heads, backbone } = self.clone();
        AgentConfig { hidden, previous_action, heads, backbone, observation: spec.observation.clone(), action }
    }
}

/// How a run is measured: on episodes that begin from other seeds than those in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Episodes.
    pub episodes: usize,
    /// How actions are chosen.
    pub choice: Manner,
}

/// The name of the critic's one output.
pub const VALUE: &str = "value";

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 5] = ["quick", "classic", "recurrent", "minatar", "duel"];

    /// `classic`: two layers of 64 over 8 environments, for classic control. `quick`: the same over a tenth of the steps, to see that everything works.
    /// `recurrent`: a gated recurrent unit. `minatar`: two layers of 256 over 128 environments and ten million steps.
    /// `duel`: small steps from a game policy that has learnt by imitation, which is its teacher (`--start-from`).
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let mlp = |layers: &[usize]| NetworkConfig {
            hidden: 64,
            previous_action: 0,
            heads: Heads::Independent,
            backbone: BackboneConfig::Mlp { layers: layers.to_vec() },
        };
        let mut trainer = TrainerConfig { evaluate_every: 500, save_every: 500, ..TrainerConfig::default() };
        trainer.schedule = Schedule { peak: 1e-3, warmup: 0, shape: Shape::Linear, floor: 0.0, ..Schedule::default() };
        (trainer.optimiser.weight_decay, trainer.optimiser.eps, trainer.optimiser.clip) = (0.0, 1e-5, 0.5);
        let update = UpdateConfig {
            epochs: 4,
            minibatches: 4,
            discount: 0.99,
            decay: 0.95,
            clip: 0.2,
            entropy: 0.01,
            value: 0.5,
            stay: 0.0,
            teacher: 0.0,
            limit: 0.0,
            critic_alone: 0,
        };
        let run = Self {
            seed: 1,
            env: "cartpole".to_owned(),
            frames: 100_000,
            rollout: RolloutConfig { lanes: 8, steps: 128 },
            update,
            actor: mlp(&[64, 64]),
            critic: mlp(&[64, 64]),
            evaluation: EvaluationConfig { episodes: 100, choice: Manner::Greedy },
            trainer,
        };
        let recurrent = NetworkConfig { backbone: BackboneConfig::Gru { layers: 1 }, ..mlp(&[]) };
        match name {
            "quick" => Ok(Self { frames: 10_000, ..run }),
            "classic" => Ok(run),
            "recurrent" => Ok(Self { actor: recurrent.clone(), critic: recurrent, ..run }),
            "minatar" => {
                let mut run =
                    Self { env: "breakout".to_owned(), frames: 10_000_000, actor: mlp(&[256, 256]), critic: mlp(&[256, 256]), ..run };
                run.rollout = RolloutConfig { lanes: 128, steps: 128 };
                run.update.minibatches = 8;
                Ok(run)
            }
            "duel" => {
                let mut run = Self { env: "duel".to_owned(), frames: 5_000_000, actor: mlp(&[128, 128]), critic: mlp(&[128, 128]), ..run };
                run.rollout = RolloutConfig { lanes: 64, steps: 80 };
                // A reward is worth half of it eight seconds later.
                run.update = UpdateConfig { epochs: 2, discount: 0.5f64.powf(1.0 / 480.0), entropy: 0.0, critic_alone: 8, ..run.update };
                (run.update.stay, run.update.teacher) = (0.3, 0.1);
                run.trainer.schedule.peak = 1e-4;
                run.evaluation = EvaluationConfig { episodes: 64, choice: Manner::Sample };
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
        let run = overlay::resolve(&Self::preset(preset)?, file, sets, &overlay::usual_backbone)?;
        run.validate()?;
        Ok(run)
    }

    /// Updates of a rollout.
    pub fn updates(&self) -> u64 {
        (self.update.epochs * self.update.minibatches) as u64
    }

    /// Rollouts of the run.
    pub fn rollouts(&self) -> u64 {
        self.frames.div_ceil((self.rollout.lanes * self.rollout.steps) as u64)
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        let RolloutConfig { lanes, steps } = self.rollout;
        let u = &self.update;
        overlay::check_counts(&[
            ("rollout.lanes", lanes as u64, 1 << 16),
            ("rollout.steps", steps as u64, (1 << 24) / lanes.max(1) as u64),
            ("update.epochs", u.epochs as u64, 100),
            ("update.minibatches", u.minibatches as u64, lanes as u64 * steps as u64),
            ("evaluation.episodes", self.evaluation.episodes as u64, 1 << 16),
            ("frames", self.frames, 1 << 50),
        ])?;
        for (field, x, range) in [("discount", u.discount, 0.0..=1.0), ("decay", u.decay, 0.0..=1.0), ("clip", u.clip, 1e-6..=10.0)] {
            if !range.contains(&x) {
                return Err(Error::config(format!("update.{field}"), format!("expected {} to {}, found {x}", range.start(), range.end())));
            }
        }
        for (field, x) in [("entropy", u.entropy), ("value", u.value), ("stay", u.stay), ("teacher", u.teacher), ("limit", u.limit)] {
            if !(x.is_finite() && x >= 0.0) {
                return Err(Error::config(format!("update.{field}"), format!("expected a value of 0 or more, found {x}")));
            }
        }
        if self.trainer.accumulate != 1 {
            return Err(Error::config(
                "trainer.accumulate",
                format!("expected 1, found {}: minibatches are updates", self.trainer.accumulate),
            ));
        }
        self.trainer.validate()
    }
}
