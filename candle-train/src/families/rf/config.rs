//! What a training run of a radio network is, as plain data.

use super::signals::{Channel, Class, Signals};
use crate::optim::OptimiserConfig;
use crate::overlay;
use crate::schedule::Schedule;
use crate::trainer::TrainerConfig;
use candle_models::rf::classifier::Scale;
use candle_models::rf::synthesis::{Content, Digital, Modulation, Range, Sound};
use candle_models::rf::{ClassifierConfig, LocaliserConfig, RfConfig};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A training run of a radio network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// Examples of the run, each drawn once.
    pub examples: u64,
    /// Examples of a micro batch.
    pub batch: usize,
    /// Examples of an evaluation, which training never draws.
    pub evaluated: usize,
    /// What is learnt.
    pub task: TaskConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

/// What a radio network learns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TaskConfig {
    /// Where emitters are, from how strongly the published receivers hear them.
    Localisation {
        /// The network.
        model: LocaliserConfig,
    },
    /// What kind signals are. The network's classes are those of the signals.
    Classification {
        /// The network; its classes are set from the signals.
        model: ClassifierConfig,
        /// What is drawn.
        signals: Box<Signals>,
    },
}

impl TaskConfig {
    /// The network as a bundle describes it.
    pub fn network(&self) -> RfConfig {
        match self {
            Self::Localisation { model } => RfConfig::Localiser(model.clone()),
            Self::Classification { model, signals } => RfConfig::Classifier(ClassifierConfig { classes: signals.names(), ..model.clone() }),
        }
    }

    /// What an example is called.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Localisation { .. } => "events",
            Self::Classification { .. } => "signals",
        }
    }

    fn validate(&self) -> Result<()> {
        let named = |error| match error {
            Error::Config { field, reason } => Error::config(format!("task.model.{field}"), reason),
            other => other,
        };
        if let Self::Classification { model, signals } = self {
            signals.validate(model.samples)?;
        }
        match self.network() {
            RfConfig::Localiser(model) => model.validate().map_err(named),
            RfConfig::Classifier(model) => model.validate().map_err(named),
        }
    }
}

/// The presets of a localiser.
pub const LOCALISERS: [&str; 2] = ["standard", "quick"];
/// The presets of a classifier.
pub const CLASSIFIERS: [&str; 2] = ["received", "coherent"];

impl RunConfig {
    fn new(task: TaskConfig, examples: u64, batch: usize) -> Self {
        let schedule = Schedule { peak: 2e-3, warmup: 200, floor: 0.01, ..Schedule::default() };
        let optimiser = OptimiserConfig { weight_decay: 0.0, clip: 1.0, ema: 0.998, ..OptimiserConfig::default() };
        let trainer =
            TrainerConfig { log_every: 100, evaluate_every: 1000, save_every: 1000, schedule, optimiser, ..TrainerConfig::default() };
        Self { seed: 1, examples, batch, evaluated: 10_000, task, trainer }
    }

    /// A localiser of the published receivers. `standard`: four million events. `quick`: a small network on 200 000 of them.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn localiser(preset: &str) -> Result<Self> {
        let task = |model| TaskConfig::Localisation { model };
        match preset {
            "standard" => Ok(Self::new(task(LocaliserConfig::default()), 4_000_000, 1024)),
            "quick" => {
                let model = LocaliserConfig { hidden: 32, ..LocaliserConfig::default() };
                Ok(Self { evaluated: 2000, ..Self::new(task(model), 200_000, 256) })
            }
            _ => Err(unknown(preset, &LOCALISERS)),
        }
    }

    /// A classifier of modulations. `received`: nine kinds of signals in 128 samples, 16 symbols, as a receiver has them, whose phase, timing, power and
    /// frequency nobody knows. `coherent`: 16 symbols of five modulations behind a filter of their pulse, phase, timing and power known, for which there is
    /// a best classifier.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn classifier(preset: &str) -> Result<Self> {
        let linear = [
            ("BPSK", Modulation::Bpsk),
            ("QPSK", Modulation::Qpsk),
            ("8PSK", Modulation::Psk8),
            ("16QAM", Modulation::Qam16),
            ("64QAM", Modulation::Qam64),
        ];
        let shifts = [("GFSK", Modulation::Gfsk), ("CPFSK", Modulation::Cpfsk)];
        let class = |name: &str, content| Class { name: name.to_owned(), content };
        let digital = |(name, modulation)| class(name, Content::Digital(Digital { modulation, samples_per_symbol: 8 }));
        let model = ClassifierConfig::default();
        match preset {
            "received" => {
                let analog = [
                    class("AM", Content::Am { sound: Sound::Voice, depth: 0.8 }),
                    class("FM", Content::Fm { sound: Sound::Voice, deviation_hz: 5000.0 }),
                ];
                let classes = linear.into_iter().chain(shifts).map(digital).chain(analog).collect();
                let signals = Signals { classes, snr_db: Range(-20.0, 18.0), channel: Channel::received(model.samples) };
                Ok(Self::new(TaskConfig::Classification { model, signals: Box::new(signals) }, 1_000_000, 512))
            }
            "coherent" => {
                let model = ClassifierConfig { samples: 16, scale: Scale::Given, channels: 64, kernel: 1, blocks: 2, stride: 1, ..model };
                let signals =
                    Signals { classes: linear.into_iter().map(digital).collect(), snr_db: Range(-10.0, 16.0), channel: Channel::Coherent };
                Ok(Self::new(TaskConfig::Classification { model, signals: Box::new(signals) }, 2_000_000, 512))
            }
            _ => Err(unknown(preset, &CLASSIFIERS)),
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
        overlay::check_counts(&[
            ("examples", self.examples, u64::MAX),
            ("batch", self.batch as u64, 1 << 20),
            ("evaluated", self.evaluated as u64, 1 << 24),
        ])?;
        self.task.validate()?;
        self.trainer.validate()
    }
}

fn unknown(preset: &str, there_are: &[&str]) -> Error {
    Error::config("preset", format!("expected one of {}, found '{preset}'", there_are.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_what_is_wrong_is_named() {
        let presets = LOCALISERS.map(RunConfig::localiser).into_iter().chain(CLASSIFIERS.map(RunConfig::classifier));
        for preset in presets.map(Result::unwrap) {
            assert_eq!(RunConfig::resolve(&preset, Some(&overlay::to_toml(&preset).unwrap()), &[]).unwrap(), preset);
        }
        let refused = |preset: Result<RunConfig>, set: &str, message: &str| {
            let error = RunConfig::resolve(&preset.unwrap(), None, &[set.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{set}: {error}");
        };
        for (set, message) in [
            ("examples=0", "config: examples: expected 1 to "),
            ("batch=0", "config: batch: expected 1 to "),
            ("evaluated=0", "config: evaluated: expected 1 to "),
            ("task.model.heads=5", "config: task.model.heads: expected a divisor of hidden = 64, found 5"),
            ("task.model.speed=1", "config: task.model.speed: no such key (there are "),
        ] {
            refused(RunConfig::localiser("standard"), set, message);
        }
        for (set, message) in [
            ("task.model.kernel=2", "config: task.model.kernel: expected an odd number"),
            ("task.model.samples=64", "config: task.signals.channel.signal.samples: expected the 64 of task.model.samples, found 128"),
            ("task.signals.snr_db=[3.0, 1.0]", "config: task.signals.snr_db: expected from 3 to "),
            ("task.signals.channel.signal.bits=1", "config: task.signals.channel.signal.bits: expected from 2 to 24"),
            (
                "task.signals.channel.kind=\"coherent\"",
                "config: task.signals.classes: 'GFSK': expected a modulation whose symbols are points",
            ),
        ] {
            refused(RunConfig::classifier("received"), set, message);
        }
        assert!(
            RunConfig::classifier("standard").unwrap_err().to_string().contains("expected one of received, coherent, found 'standard'")
        );
    }
}
