//! What a training run is, as plain data: a preset, overlaid by a TOML file, overlaid by `--set a.b=c`. The description of the agent is the
//! part `model`.

use super::example;
use crate::overlay;
use crate::trainer::TrainerConfig;
use candle_models::agent::AgentConfig;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// Which frames make a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Sequences side by side in a micro batch.
    pub batch: usize,
    /// Frames of a sequence between two updates. State is carried on.
    pub unroll: usize,
    /// Share of the files, or of the episodes of a single file, that is held out.
    pub held_out: f64,
}

/// A training run of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// Times that every training episode is seen.
    pub epochs: u64,
    /// Probability that a hidden value is dropped in training.
    pub dropout: f64,
    /// Which frames make a step.
    pub data: DataConfig,
    /// The description of the agent.
    pub model: AgentConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

/// An agent's description in TOML.
///
/// # Errors
/// If it is no TOML, a key is unknown or missing, or a value is out of range: in one line that names it.
pub fn description(text: &str) -> Result<AgentConfig> {
    let config: AgentConfig = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        Error::config("description", format!("line {line}: {}", e.message().split_whitespace().collect::<Vec<_>>().join(" ")))
    })?;
    config.validate()?;
    Ok(config)
}

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 2] = ["quick", "standard"];

    /// `quick`: three epochs, to see that everything works. `standard`: sixty with dropout. The agent is that of the made-up game.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let mut trainer = TrainerConfig { evaluate_every: 200, ..TrainerConfig::default() };
        (trainer.schedule.peak, trainer.schedule.warmup) = (5e-3, 20);
        // The usual decay, made for large networks and long runs, keeps small ones from remembering: the made-up game is not learnt with it.
        trainer.optimiser.weight_decay = 0.01;
        let data = DataConfig { batch: 16, unroll: 32, held_out: 0.1 };
        let run = Self { seed: 1, epochs: 60, dropout: 0.1, data, model: example::description(), trainer };
        match name {
            "quick" => Ok(Self { epochs: 3, dropout: 0.0, ..run }),
            "standard" => Ok(run),
            _ => Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
    }

    /// The preset with another agent, if one is given, and with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its
    /// own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &str, model: Option<AgentConfig>, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let preset = Self::preset(preset)?;
        let model = model.unwrap_or_else(|| preset.model.clone());
        let run = overlay::resolve(&Self { model, ..preset }, file, sets, &overlay::usual_backbone)?;
        run.validate()?;
        Ok(run)
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        for (field, value) in [("epochs", self.epochs), ("data.batch", self.data.batch as u64), ("data.unroll", self.data.unroll as u64)] {
            if value == 0 {
                return Err(Error::config(field, "expected at least 1, found 0"));
            }
        }
        // Candle and the shapes of a step count in 32 bits in places; this is far beyond any memory.
        if self.data.batch.saturating_mul(self.data.unroll) > 1 << 20 {
            return Err(Error::config("data.batch", format!("{} x {} rows exceed 2^20", self.data.batch, self.data.unroll)));
        }
        for (field, x, limit) in [("data.held_out", self.data.held_out, 0.9), ("dropout", self.dropout, 0.95)] {
            if !(0.0..=limit).contains(&x) {
                return Err(Error::config(field, format!("expected 0 to {limit}, found {x}")));
            }
        }
        self.model.validate()?;
        self.trainer.validate()
    }
}
