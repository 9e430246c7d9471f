//! What a training run of a beam controller is, as plain data.

use crate::optim::OptimiserConfig;
use crate::overlay;
use crate::schedule::{Schedule, Shape};
use crate::trainer::TrainerConfig;
use candle_models::beam::{BeamConfig, CodebookConfig, DecisionConfig, Feedback, Scheme, Sweep, View};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// What is made large.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    /// As published: the mean share of the channel's power, `G / ||H||_F^2`.
    Share,
    /// The mean logarithm of the share plus `floor`: a link that fails counts.
    Logarithm {
        /// What keeps a link without gain finite.
        floor: f64,
    },
}

/// The loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossConfig {
    /// What is made large.
    pub objective: Objective,
    /// Weight of what either beam could have with the best beam at the other end, in the first step.
    pub auxiliary: f64,
    /// The share of the run over which that weight falls to zero.
    pub auxiliary_until: f64,
    /// Weight of the cross-entropy between scheme C1's scores and the beam that arrives strongest, beside what a beam drawn by the scores gains.
    pub choice: f64,
}

/// The episodes of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpisodeConfig {
    /// Episodes of a micro batch.
    pub batch: usize,
    /// The lowest signal-to-noise ratio in dB; each episode draws one.
    pub snr_low: f64,
    /// The highest; the same as the lowest fixes it.
    pub snr_high: f64,
    /// The fewest measurements of an episode; each batch draws how many. The model's own number fixes it.
    pub fewest: usize,
    /// Episodes of an evaluation, at `snr` dB.
    pub evaluated: usize,
    /// The signal-to-noise ratio of an evaluation in dB.
    pub snr: f64,
}

/// What a run changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Learns {
    /// Everything.
    #[default]
    All,
    /// What is decided behind the last measurement, at both ends. What measures stays that of the controller that the run begins with, so
    /// that no gradient goes back through an episode.
    Decision,
}

/// A training run of a beam controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// Episodes of the run.
    pub episodes: u64,
    /// What changes.
    #[serde(default)]
    pub learns: Learns,
    /// The episodes.
    pub episode: EpisodeConfig,
    /// The loss.
    pub loss: LossConfig,
    /// The networks, the arrays and the channels.
    pub model: BeamConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 4] = ["c1", "c2", "c3", "paper"];

    /// `c1`, `c2` and `c3`: the three schemes with our recipe. `paper`: scheme C3 as published.
    pub fn preset(name: &str) -> Result<Self> {
        let schedule = Schedule { peak: 4e-3, warmup: 200, floor: 0.01, ..Schedule::default() };
        let optimiser = OptimiserConfig { weight_decay: 0.0, clip: 5.0, ema: 0.998, ..OptimiserConfig::default() };
        let trainer =
            TrainerConfig { log_every: 100, evaluate_every: 1000, save_every: 1000, schedule, optimiser, ..TrainerConfig::default() };
        let objective = Objective::Logarithm { floor: 1e-3 };
        let mut run = Self {
            seed: 1,
            episodes: 6_000_000,
            learns: Learns::All,
            episode: EpisodeConfig { batch: 512, snr_low: -10.0, snr_high: 20.0, fewest: 16, evaluated: 4096, snr: 10.0 },
            loss: LossConfig { objective, auxiliary: 0.3, auxiliary_until: 0.3, choice: 0.1 },
            model: BeamConfig::default(),
            trainer,
        };
        match name {
            "c1" => {
                (run.episodes, run.episode.snr_low) = (4_000_000, 0.0);
                run.loss.choice = 1.0;
                run.model = BeamConfig {
                    scheme: Scheme::C1,
                    feedback: Feedback::Index,
                    codebook: CodebookConfig::Published { count: 8 },
                    ..run.model
                };
            }
            "c2" => (run.episode.snr_low, run.model.scheme) = (0.0, Scheme::C2),
            "c3" => {}
            "paper" => {
                run.model = BeamConfig {
                    codebook: CodebookConfig::Published { count: 8 },
                    sweep: Sweep::Free,
                    view: View::Scalars,
                    hidden: 384,
                    decision: DecisionConfig::State,
                    ..run.model
                };
                run.loss = LossConfig { objective: Objective::Share, auxiliary: 0.0, auxiliary_until: 0.0, choice: 0.1 };
                // 100 000 channels are an epoch of 98 batches; the rate falls every ten.
                (run.episode.batch, run.episode.snr_low, run.episode.snr_high) = (1024, 10.0, 10.0);
                let shape = Shape::Step;
                run.trainer.schedule =
                    Schedule { peak: 1e-3, warmup: 0, shape, period: 980, decay: 0.96, floor: 0.0, ..Schedule::default() };
            }
            _ => return Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
        Ok(run)
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
    pub fn validate(&self) -> Result<()> {
        self.model.validate()?;
        let counts = [
            ("episodes", self.episodes, u64::MAX),
            ("episode.batch", self.episode.batch as u64, 1 << 16),
            ("episode.fewest", self.episode.fewest as u64, self.model.measurements as u64),
            ("episode.evaluated", self.episode.evaluated as u64, 1 << 20),
        ];
        if let Some((field, found, most)) = counts.into_iter().find(|(_, n, most)| *n == 0 || n > most) {
            return Err(Error::config(field, format!("expected 1 to {most}, found {found}")));
        }
        let (low, high) = (self.episode.snr_low, self.episode.snr_high);
        for (field, snr) in [("episode.snr_low", low), ("episode.snr_high", high), ("episode.snr", self.episode.snr)] {
            if !(-100.0..=100.0).contains(&snr) {
                return Err(Error::config(field, format!("expected -100 to 100 dB, found {snr}")));
            }
        }
        if low > high {
            return Err(Error::config("episode.snr_high", format!("{high} is below episode.snr_low {low}")));
        }
        let floor = if let Objective::Logarithm { floor } = self.loss.objective { floor } else { 1.0 };
        if !(floor > 0.0 && floor <= 1.0) {
            return Err(Error::config("loss.objective.floor", format!("expected above 0 to 1, found {floor}")));
        }
        let weights = [
            ("loss.auxiliary", self.loss.auxiliary, 1e6),
            ("loss.auxiliary_until", self.loss.auxiliary_until, 1.0),
            ("loss.choice", self.loss.choice, 1e6),
        ];
        if let Some((field, x, limit)) = weights.into_iter().find(|(_, x, limit)| !(0.0..=*limit).contains(x)) {
            return Err(Error::config(field, format!("expected 0 to {limit}, found {x}")));
        }
        self.trainer.validate()
    }

    /// The configuration as TOML, as it is printed and saved.
    pub fn to_toml(&self) -> Result<String> {
        overlay::to_toml(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::beam::{ChannelModel, MemoryConfig, Mobility, Profile};

    fn resolve(sets: &[&str]) -> Result<RunConfig> {
        RunConfig::resolve(&RunConfig::preset("c3").unwrap(), None, &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn presets_are_valid_and_survive_toml() {
        for preset in RunConfig::PRESETS {
            let run = RunConfig::preset(preset).unwrap();
            assert!(run.validate().is_ok());
            // The keys of another preset's kinds are not the same: each over itself.
            assert_eq!(RunConfig::resolve(&run, Some(&run.to_toml().unwrap()), &[]).unwrap(), run);
        }
        assert!(RunConfig::preset("c4").unwrap_err().to_string().ends_with("expected one of c1, c2, c3, paper, found 'c4'"));
    }

    #[test]
    fn kinds_and_what_can_be_left_out_can_be_set() {
        let run = resolve(&["model.memory.kind=mamba", "model.memory.layers=2"]).unwrap();
        assert!(matches!(run.model.memory, MemoryConfig::Mamba { layers: 2, .. }));
        let run = resolve(&["model.channel.mobility.doppler=0.01"]).unwrap();
        assert_eq!(run.model.channel.mobility, Some(Mobility { doppler: 0.01, drift: 0.0 }));
        let run = resolve(&["model.channel.model={ kind = \"cdl\", profile = \"B\" }"]).unwrap();
        assert!(matches!(&run.model.channel.model, ChannelModel::Cdl(cdl) if cdl.profile == Profile::B));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (set, message) in [
            ("episodes=0", "config: episodes: expected 1 to "),
            ("episode.batch=0", "config: episode.batch: expected 1 to 65536, found 0"),
            ("episode.fewest=17", "config: episode.fewest: expected 1 to 16, found 17"),
            ("episode.snr_low=nan", "config: episode.snr_low: expected -100 to 100 dB, found NaN"),
            ("episode.snr_high=inf", "config: episode.snr_high: expected -100 to 100 dB, found inf"),
            ("episode.snr_low=30", "config: episode.snr_high: 20 is below episode.snr_low 30"),
            ("loss.objective.floor=0", "config: loss.objective.floor: "),
            ("loss.auxiliary=-1", "config: loss.auxiliary: "),
            ("model.measurements=0", "config: measurements: 0 is outside"),
            ("model.channel.model.paths=0", "config: model.paths: 0 is outside"),
            ("model.channel.receive.elements=1", "config: receive.elements: 1 is outside"),
            ("model.speed=1", "config: model.speed: no such key (there are "),
            ("model.feedback.kind=index", "config: feedback.kind: "),
        ] {
            let error = resolve(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains('\n'), "{set}: {error}");
        }
    }
}
