//! What a training run of a neural operator is, as plain data.

use super::fields::Fields;
use super::loss::Norm;
use crate::optim::OptimiserConfig;
use crate::overlay;
use crate::schedule::Schedule;
use crate::trainer::TrainerConfig;
use candle_models::fno::burgers::Burgers;
use candle_models::fno::darcy::Darcy;
use candle_models::fno::{FnoConfig, Normaliser};
use candle_models::random::Random;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A training run of a neural operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// How often each pair is seen.
    pub epochs: u64,
    /// Pairs of a micro batch.
    pub batch: usize,
    /// Pairs at the end of the data that are not learnt from, and by which the run is evaluated.
    pub held_out: usize,
    /// Whether half of the pairs, drawn anew in every epoch, have their axes exchanged: exact where the equation has no preferred axis.
    pub transposed: bool,
    /// What is minimised.
    pub loss: Norm,
    /// What pairs are made where no file is given.
    pub data: DataConfig,
    /// The network. Grid, channels and normalisation are those of the data.
    pub model: ModelConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

/// Pairs of fields that a solver makes when the run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DataConfig {
    /// Darcy flow through random media.
    Darcy {
        /// Pairs.
        #[serde(default = "thousand")]
        count: usize,
        /// Places down and across.
        #[serde(default = "sixteen")]
        places: usize,
    },
    /// States of Burgers' equation at 17 times.
    Burgers {
        /// Pairs.
        #[serde(default = "thousand")]
        count: usize,
        /// Places.
        #[serde(default = "sixteen")]
        places: usize,
    },
}

impl DataConfig {
    fn validate(&self) -> Result<()> {
        let named = |error| match error {
            Error::Config { field, reason } => Error::config(format!("data.{field}"), reason),
            other => other,
        };
        let (&Self::Darcy { count, places } | &Self::Burgers { count, places }) = self;
        overlay::check_counts(&[("data.count", count as u64, 1 << 24)])?;
        match self {
            Self::Darcy { .. } => Darcy { places, ..Darcy::default() }.validate(),
            Self::Burgers { .. } => Burgers { places, ..Burgers::default() }.validate(),
        }
        .map_err(named)
    }

    /// How many pairs there are, and their places.
    pub fn shape(&self) -> (usize, [usize; 2]) {
        match *self {
            Self::Darcy { count, places } => (count, [places; 2]),
            Self::Burgers { count, places } => (count, [Burgers::default().times, places]),
        }
    }

    /// The pairs.
    ///
    /// # Errors
    /// If a solution is not found.
    pub fn generate(&self, random: Random) -> Result<Fields> {
        match *self {
            Self::Darcy { count, places } => Fields::darcy(&Darcy { places, ..Darcy::default() }, random, count),
            Self::Burgers { count, places } => Fields::burgers(&Burgers { places, ..Burgers::default() }, random, count),
        }
    }
}

fn thousand() -> usize {
    1000
}

fn sixteen() -> usize {
    16
}

/// The sizes of a Fourier neural operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Waves down, and twice those across.
    pub modes: [usize; 2],
    /// Hidden channels.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Zeros on each side of the grid as a part of its places.
    pub padding: f64,
    /// Weights of waves as a Tucker product with so many times the numbers of a dense one.
    pub rank: Option<f64>,
}

impl ModelConfig {
    /// The network for fields on such a grid with these channels.
    ///
    /// # Errors
    /// If a size is out of range.
    pub fn on(&self, grid: [usize; 2], channels: [usize; 2], output: Normaliser) -> Result<FnoConfig> {
        let Self { modes, hidden, layers, padding, rank } = *self;
        let config = FnoConfig { grid, channels, modes, hidden, layers, padding, rank, output };
        config.validate().map_err(|error| match error {
            Error::Config { field, reason } => Error::config(format!("model.{field}"), reason),
            other => other,
        })?;
        Ok(config)
    }
}

impl RunConfig {
    /// The names of the presets.
    pub const PRESETS: [&str; 2] = ["darcy", "burgers"];

    /// `darcy`: media and pressures on a square. `burgers`: a state at the beginning to those at several times.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let schedule = Schedule { peak: 1e-2, warmup: 30, floor: 1e-3, ..Schedule::default() };
        let optimiser = OptimiserConfig { weight_decay: 1e-4, clip: 1.0, ema: 0.99, ..OptimiserConfig::default() };
        let trainer =
            TrainerConfig { log_every: 50, evaluate_every: 200, save_every: 500, schedule, optimiser, ..TrainerConfig::default() };
        let darcy = Self {
            seed: 1,
            epochs: 100,
            batch: 20,
            held_out: 100,
            transposed: true,
            loss: Norm::H1Periodic,
            data: DataConfig::Darcy { count: thousand(), places: sixteen() },
            model: ModelConfig { modes: [8, 8], hidden: 24, layers: 4, padding: 0.0, rank: None },
            trainer,
        };
        match name {
            "darcy" => Ok(darcy),
            "burgers" => {
                let data = DataConfig::Burgers { count: thousand(), places: sixteen() };
                Ok(Self { transposed: false, loss: Norm::L2, data, ..darcy })
            }
            _ => Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
    }

    /// The preset, with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &Self, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let run = overlay::resolve(preset, file, sets, &overlay::kind_alone)?;
        run.validate()?;
        Ok(run)
    }

    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        overlay::check_counts(&[("epochs", self.epochs, u64::MAX), ("batch", self.batch as u64, 1 << 20)])?;
        self.data.validate()?;
        self.trainer.validate()
    }

    /// Refuses to learn from so many pairs on such a grid.
    ///
    /// # Errors
    /// If too few are left for a batch, or a grid whose axes differ is to be transposed.
    pub fn check(&self, (pairs, [n, m]): (usize, [usize; 2])) -> Result<()> {
        if pairs < self.held_out.saturating_add(self.batch) {
            let reason = format!("{pairs} pairs do not make a batch of {} beside {} held out", self.batch, self.held_out);
            return Err(Error::config("batch", reason));
        }
        if self.transposed && n != m {
            return Err(Error::config("transposed", format!("expected a square grid, found {n} x {m}")));
        }
        Ok(())
    }

    /// The pairs that are made for the run.
    ///
    /// # Errors
    /// If a solution is not found.
    pub fn generate(&self) -> Result<Fields> {
        self.data.generate(Random::new(self.seed).stream("fields"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_what_is_wrong_is_named() {
        for preset in RunConfig::PRESETS.map(RunConfig::preset).map(Result::unwrap) {
            assert_eq!(RunConfig::resolve(&preset, Some(&overlay::to_toml(&preset).unwrap()), &[]).unwrap(), preset);
        }
        let preset = RunConfig::preset("darcy").unwrap();
        let of = |sets: &[&str]| RunConfig::resolve(&preset, None, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
        for (set, message) in [
            ("epochs=0", "config: epochs: expected 1 to "),
            ("batch=0", "config: batch: expected 1 to "),
            ("loss=\"l1\"", "config: value: unknown variant `l1`"),
            ("model.width=3", "config: model.width: no such key (there are "),
        ] {
            let error = of(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        }
        let error = of(&["data.places=1"]).unwrap_err().to_string();
        assert!(error.starts_with("config: data.places: 1 is outside"), "{error}");
        for kind in ["darcy", "burgers"] {
            let small = of(&[&format!("data.kind=\"{kind}\""), "data.count=9", "data.places=4", "held_out=3", "batch=5"]).unwrap();
            let fields = small.generate().unwrap();
            assert_eq!((fields.len(), fields.grid), small.data.shape());
            assert_eq!(small.check(small.data.shape()).is_ok(), kind == "darcy");
            let error = RunConfig { batch: 7, ..small.clone() }.check(small.data.shape()).unwrap_err().to_string();
            assert!(error.contains("batch: 9 pairs do not make a batch of 7 beside 3 held out"), "{error}");
        }
        let broken = ModelConfig { hidden: 1, ..preset.model.clone() };
        let error = broken.on([4, 4], [1, 1], Normaliser { mean: 0.0, deviation: 1.0 }).unwrap_err().to_string();
        assert!(error.starts_with("config: model.hidden"), "{error}");
    }
}
