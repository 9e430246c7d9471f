//! What a training run of a neural operator is, as plain data.

use super::loss::Norm;
use super::source::{Equation, Source};
use crate::optim::OptimiserConfig;
use crate::overlay;
use crate::schedule::Schedule;
use crate::trainer::TrainerConfig;
use candle_models::fno::{FnoConfig, Normaliser};
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
    /// Runs at the end of the first data that are not learnt from, and by which the run is evaluated: a pair is a run of its own, unless it leads to the next
    /// one of a roll-out.
    pub held_out: usize,
    /// Whether half of the pairs, drawn anew in every epoch, have their axes exchanged: exact where the equation has no preferred axis.
    pub transposed: bool,
    /// Deviation of the noise on what is read, as a part of that of the answers: an operator that is applied to its own answers meets such errors.
    pub noise: f64,
    /// What is minimised.
    pub loss: Norm,
    /// What pairs are made where no files are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Source>,
    /// The network. Grid, channels and normalisation are those of the data.
    pub model: ModelConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
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
    /// Whether it learns to say a variance of the truth around its answer as well.
    #[serde(default)]
    pub variance: bool,
    /// Whether it says by how much the answer differs from the field that it reads.
    #[serde(default)]
    pub residual: bool,
    /// Whether what leaves the grid on one side comes back on the other.
    #[serde(default)]
    pub periodic: bool,
}

impl ModelConfig {
    /// The network for fields on such a grid with these channels.
    ///
    /// # Errors
    /// If a size is out of range.
    pub fn on(&self, grid: [usize; 2], channels: [usize; 2], output: Normaliser) -> Result<FnoConfig> {
        let Self { modes, hidden, layers, padding, rank, variance, residual, periodic } = *self;
        let config =
            FnoConfig { grid, channels, modes, hidden, layers, padding, rank, output, variance, residual, periodic, ensemble: None };
        config.validate().map_err(within("model"))?;
        Ok(config)
    }
}

impl RunConfig {
    /// The names of the presets.
    pub const PRESETS: [&str; 3] = ["darcy", "burgers", "ns"];

    /// `darcy`: media and pressures on a square. `burgers`: a state at the beginning to those at several times. `ns`: the vorticity of a flow to
    /// that of a while later, again and again.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let source = Source { seed: 1, count: 1000, equation: Equation::preset(name)? };
        let schedule = Schedule { peak: 1e-2, warmup: 30, floor: 1e-3, ..Schedule::default() };
        let optimiser = OptimiserConfig { weight_decay: 0.1, clip: 1.0, ema: 0.99, ..OptimiserConfig::default() };
        let trainer =
            TrainerConfig { log_every: 50, evaluate_every: 200, save_every: 500, schedule, optimiser, ..TrainerConfig::default() };
        let darcy = Self {
            seed: 1,
            epochs: 50,
            batch: 20,
            held_out: 100,
            transposed: true,
            noise: 0.0,
            loss: Norm::H1Periodic,
            data: Some(source.clone()),
            model: ModelConfig {
                modes: [8, 8],
                hidden: 24,
                layers: 4,
                padding: 0.0,
                rank: None,
                variance: false,
                residual: false,
                periodic: false,
            },
            trainer,
        };
        // The states that follow from a beginning leave nothing to guess, and what is learnt of them need not be small.
        let mut states = Self { transposed: false, loss: Norm::L2, ..darcy.clone() };
        states.trainer.optimiser.weight_decay = 1e-4;
        Ok(match name {
            "burgers" => states,
            "ns" => {
                let model = ModelConfig { modes: [12, 12], hidden: 20, residual: true, periodic: true, ..states.model };
                let source = Source { count: 100, ..source };
                // The square is periodic, and so are its slopes; noise, norm and epochs by the roll-outs of flows that were held out.
                Self { held_out: 10, epochs: 40, noise: 0.003, loss: Norm::H1Periodic, model, data: Some(source), ..states }
            }
            _ => darcy,
        })
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
        if !(0.0..=10.0).contains(&self.noise) {
            return Err(Error::config("noise", format!("expected from 0 to 10, found {}", self.noise)));
        }
        self.data.iter().try_for_each(|data| data.validate().map_err(within("data")))?;
        self.trainer.validate()
    }
}

/// The same error, with the name of what its field belongs to.
pub(super) fn within(whole: &str) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Config { field, reason } => Error::config(format!("{whole}.{field}"), reason),
        other => other,
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
            ("noise=-1", "config: noise: expected from 0 to 10"),
            ("loss=\"l1\"", "config: value: unknown variant `l1`"),
            ("model.width=3", "config: model.width: no such key (there are "),
        ] {
            let error = of(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        }
        for (set, message) in
            [("data.equation.places=1", "config: data.equation.places: 1 is outside"), ("data.count=0", "config: data.count: expected 1")]
        {
            let error = of(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        }
        let broken = ModelConfig { hidden: 1, ..preset.model.clone() };
        let error = broken.on([4, 4], [1, 1], Normaliser { mean: 0.0, deviation: 1.0 }).unwrap_err().to_string();
        assert!(error.starts_with("config: model.hidden"), "{error}");
    }
}
