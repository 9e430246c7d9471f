//! What a training run of a localiser is, as plain data.

use crate::optim::OptimiserConfig;
use crate::overlay;
use crate::schedule::Schedule;
use crate::trainer::TrainerConfig;
use candle_models::rf::LocaliserConfig;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A training run of a localiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// Events of the run, each drawn once.
    pub events: u64,
    /// Events of a micro batch.
    pub batch: usize,
    /// Events of an evaluation, which training never draws.
    pub evaluated: usize,
    /// The network.
    pub model: LocaliserConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 2] = ["standard", "quick"];

    /// `standard`: the published receivers, four million events. `quick`: a small network on 200 000 of them.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let schedule = Schedule { peak: 2e-3, warmup: 200, floor: 0.01, ..Schedule::default() };
        let optimiser = OptimiserConfig { weight_decay: 0.0, clip: 1.0, ema: 0.998, ..OptimiserConfig::default() };
        let trainer =
            TrainerConfig { log_every: 100, evaluate_every: 1000, save_every: 1000, schedule, optimiser, ..TrainerConfig::default() };
        let run = Self { seed: 1, events: 4_000_000, batch: 1024, evaluated: 10_000, model: LocaliserConfig::default(), trainer };
        match name {
            "standard" => Ok(run),
            "quick" => Ok(Self { events: 200_000, batch: 256, evaluated: 2000, model: LocaliserConfig { hidden: 32, ..run.model }, ..run }),
            _ => Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
    }

    /// The preset, with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &str, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let run = overlay::resolve(&Self::preset(preset)?, file, sets, &overlay::kind_alone)?;
        run.validate()?;
        Ok(run)
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        let counts =
            [("events", self.events, u64::MAX), ("batch", self.batch as u64, 1 << 20), ("evaluated", self.evaluated as u64, 1 << 24)];
        if let Some((field, found, most)) = counts.into_iter().find(|(_, n, most)| *n == 0 || n > most) {
            return Err(Error::config(field, format!("expected 1 to {most}, found {found}")));
        }
        self.model.validate().map_err(|error| match error {
            Error::Config { field, reason } => Error::config(format!("model.{field}"), reason),
            other => other,
        })?;
        self.trainer.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_what_is_wrong_is_named() {
        for preset in RunConfig::PRESETS {
            assert_eq!(RunConfig::resolve(preset, None, &[]).unwrap(), RunConfig::preset(preset).unwrap());
        }
        for (set, message) in [
            ("events=0", "config: events: expected 1 to "),
            ("batch=0", "config: batch: expected 1 to "),
            ("evaluated=0", "config: evaluated: expected 1 to "),
            ("model.heads=5", "config: model.heads: expected a divisor of hidden = 64, found 5"),
            ("model.speed=1", "config: model.speed: no such key (there are "),
        ] {
            let error = RunConfig::resolve("standard", None, &[set.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        }
    }
}
