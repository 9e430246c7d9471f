//! What a training run is, as plain data: a preset, overlaid by a TOML file, overlaid by `--set a.b=c`.

use crate::overlay;
use crate::trainer::TrainerConfig;
use candle_models::nn::MambaConfig;
use candle_models::policy::embedding::NAMES;
use candle_models::policy::{BackboneConfig, PolicyConfig};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// Which rows make a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training games at most, in the order of their files; 0 takes all.
    pub files: usize,
    /// Sequences side by side in a micro batch.
    pub batch: usize,
    /// Frames of a sequence between two updates. State is carried on.
    pub unroll: usize,
    /// Frames without loss after a sequence starts in the middle of a game, at most one unroll.
    pub burn_in: usize,
    /// Probability that a pass through a game is mirrored.
    pub mirror: f64,
    /// Share of the games that is held out, by players and evenings, where none are named.
    pub held_out: f64,
    /// Player names that the policy can tell apart, at most 112; 0 leaves them out.
    pub names: usize,
}

/// The loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossConfig {
    /// Probability that label smoothing moves to all classes of a stick axis or the shoulder.
    pub smoothing: f64,
    /// Weight of the value head's squared error.
    pub value: f64,
    /// Share of the target that is what teachers expect, where there are any; the rest is what was recorded.
    pub teachers: f64,
}

/// What keeps the policy from learning games by heart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseConfig {
    /// Probability that a hidden value is dropped.
    pub dropout: f64,
    /// Probability that an action-state id is replaced by "absent".
    pub drop_ids: f64,
}

/// A training run of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Address of everything random.
    pub seed: u64,
    /// Times that every training game is seen by both players.
    pub epochs: u64,
    /// Which rows make a step.
    pub data: DataConfig,
    /// The loss.
    pub loss: LossConfig,
    /// Regularisation.
    pub noise: NoiseConfig,
    /// The network. Its names are filled in from the training games when `data.names` is not 0.
    pub model: PolicyConfig,
    /// Optimiser, schedule, metrics and checkpoints.
    pub trainer: TrainerConfig,
}

impl RunConfig {
    /// The presets by name.
    pub const PRESETS: [&'static str; 4] = ["quick", "standard", "gru", "mamba"];

    /// `quick`: an MLP, five games, one epoch, to see that everything works. On all games `standard`, an MLP; `gru`, one GRU; `mamba`, two Mamba
    /// blocks. All have autoregressive heads over count tables and know no names: what they learn is to hold for people whom they never met. Sizes
    /// and epochs are those that fifteen games bear if the policy is calibrated afterwards ([`calibrate`](super::calibrate)); `weights/policy` has
    /// the comparisons.
    pub fn preset(name: &str) -> Result<Self> {
        let mlp = BackboneConfig::Mlp { layers: vec![512, 512] };
        let mut run = Self {
            seed: 1,
            epochs: 14,
            data: DataConfig { files: 0, batch: 32, unroll: 80, burn_in: 0, mirror: 0.5, held_out: 0.15, names: 0 },
            loss: LossConfig { smoothing: 0.0, value: 0.05, teachers: 0.7 },
            noise: NoiseConfig { dropout: 0.3, drop_ids: 0.1 },
            model: PolicyConfig { prior: true, ..PolicyConfig::default() },
            trainer: TrainerConfig::default(),
        };
        match name {
            "quick" => {
                (run.epochs, run.data.files, run.model.backbone) = (1, 5, mlp);
                // An MLP has no memory: short sequences cost it nothing and give one epoch twenty times as many steps.
                (run.data.unroll, run.noise.dropout) = (4, 0.1);
                (run.trainer.log_every, run.trainer.schedule.warmup, run.trainer.schedule.peak) = (50, 10, 3e-3);
            }
            "standard" => run.model.backbone = mlp,
            "gru" => {
                run.model.backbone = BackboneConfig::Gru { layers: 1 };
                (run.data.burn_in, run.noise) = (20, NoiseConfig { dropout: 0.4, drop_ids: 0.3 });
            }
            "mamba" => {
                let block = MambaConfig { state: 4, ..MambaConfig::default() };
                (run.model.hidden, run.model.backbone) = (128, BackboneConfig::Mamba { layers: 2, block });
                (run.data.burn_in, run.noise) = (20, NoiseConfig { dropout: 0.2, drop_ids: 0.4 });
            }
            _ => return Err(Error::config("preset", format!("expected one of {}, found '{name}'", Self::PRESETS.join(", ")))),
        }
        Ok(run)
    }

    /// The preset, with the keys of `file` (TOML) and then those of `sets` (`a.b=c`) in place of its own.
    ///
    /// # Errors
    /// If a key is unknown, or a value has the wrong type or is out of range; the key is named.
    pub fn resolve(preset: &str, file: Option<&str>, sets: &[String]) -> Result<Self> {
        let run = overlay::resolve(&Self::preset(preset)?, file, sets, &overlay::usual_backbone)?;
        run.validate()?;
        Ok(run)
    }

    /// Names the field that is out of range.
    pub fn validate(&self) -> Result<()> {
        let positive = |field: &str, x: u64| if x > 0 { Ok(()) } else { Err(Error::config(field, "expected at least 1, found 0")) };
        positive("epochs", self.epochs)?;
        positive("data.batch", self.data.batch as u64)?;
        positive("data.unroll", self.data.unroll as u64)?;
        // Candle and the shapes of a step count in 32 bits in places; this is far beyond any memory.
        if self.data.batch.saturating_mul(self.data.unroll) > 1 << 20 {
            return Err(Error::config("data.batch", format!("{} x {} rows exceed 2^20", self.data.batch, self.data.unroll)));
        }
        if self.data.burn_in > self.data.unroll {
            return Err(Error::config("data.burn_in", format!("{} exceeds data.unroll {}", self.data.burn_in, self.data.unroll)));
        }
        if self.data.names > NAMES {
            return Err(Error::config("data.names", format!("expected at most {NAMES}, found {}", self.data.names)));
        }
        let shares = [
            ("data.mirror", self.data.mirror, 1.0),
            ("data.held_out", self.data.held_out, 0.9),
            ("loss.smoothing", self.loss.smoothing, 0.9),
            ("loss.value", self.loss.value, 1e6),
            ("loss.teachers", self.loss.teachers, 1.0),
            ("noise.dropout", self.noise.dropout, 0.95),
            ("noise.drop_ids", self.noise.drop_ids, 0.95),
        ];
        if let Some((field, x, limit)) = shares.into_iter().find(|(_, x, limit)| !(0.0..=*limit).contains(x)) {
            return Err(Error::config(field, format!("expected 0 to {limit}, found {x}")));
        }
        self.model.validate()?;
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
    use candle_models::policy::Heads;

    fn resolve(sets: &[&str]) -> Result<RunConfig> {
        RunConfig::resolve("quick", None, &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn presets_are_valid_and_survive_toml() {
        for preset in RunConfig::PRESETS {
            let run = RunConfig::resolve(preset, None, &[]).unwrap();
            assert_eq!(run, RunConfig::preset(preset).unwrap());
            assert_eq!(RunConfig::resolve("quick", Some(&run.to_toml().unwrap()), &[]).unwrap(), run);
        }
        assert!(RunConfig::preset("huge").unwrap_err().to_string().ends_with("expected one of quick, standard, gru, mamba, found 'huge'"));
    }

    #[test]
    fn a_set_comes_over_the_file_over_the_preset() {
        let file = "epochs = 3\n[trainer.schedule]\npeak = 0.5\nwarmup = 7\n";
        let run = RunConfig::resolve("mamba", Some(file), &["trainer.schedule.peak=1".to_owned()]).unwrap();
        assert_eq!((run.epochs, run.trainer.schedule.warmup, run.trainer.schedule.peak), (3, 7, 1.0));
        assert_eq!(run.data.burn_in, 20);
        assert_eq!(resolve(&["model.heads=independent", "model.prior=false"]).unwrap().model.heads, Heads::Independent);
    }

    #[test]
    fn another_backbone_brings_its_own_keys() {
        let run = resolve(&["model.backbone.kind=mamba", "model.backbone.block.state=8", "model.backbone.layers=3"]).unwrap();
        let BackboneConfig::Mamba { layers, block } = run.model.backbone else { panic!("not mamba") };
        assert_eq!((layers, block.state), (3, 8));
        assert_eq!(resolve(&["model.backbone.layers=[64]"]).unwrap().model.backbone, BackboneConfig::Mlp { layers: vec![64] });
        let error = resolve(&["model.backbone.kind=lstm"]).unwrap_err().to_string();
        assert!(error.starts_with("config: model.backbone.kind: expected one of mlp"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (set, message) in [
            ("trainer.speed=1", "config: trainer.speed: no such key (there are accumulate,"),
            ("epochs=many", "config: epochs: expected integer, found string"),
            ("epochs=0", "config: epochs: expected at least 1"),
            ("epochs", "config: epochs: expected key=value"),
            ("noise.dropout=1.5", "config: noise.dropout: expected 0 to 0.95, found 1.5"),
            ("noise.dropout=nan", "config: noise.dropout: expected 0 to 0.95, found NaN"),
            ("data.burn_in=5", "config: data.burn_in: 5 exceeds data.unroll 4"),
            ("data.batch=1000000000", "config: data.batch: "),
            ("trainer.optimiser.beta1=1", "config: optimiser.beta1: "),
            ("model.hidden=-3", "config: value: "),
        ] {
            let error = resolve(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains('\n'), "{set}: {error}");
        }
    }
}
