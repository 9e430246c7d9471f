//! How to train, and with what.

use crate::checkpoint::Retention;
use crate::early_stop::EarlyStop;
use crate::optim::OptimiserConfig;
use crate::parallel::{Communicator, Single};
use crate::schedule::Schedule;
use candle_core::{DType, Device};
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What matrices are rounded to while they are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// Not at all.
    #[default]
    F32,
    /// To the 8-bit grid that they will be stored in: quantisation-aware training.
    Q8,
}

impl Weights {
    /// Parameters as losses see them.
    pub fn view(self, params: Params) -> Params {
        match self {
            Self::F32 => params,
            Self::Q8 => params.rounded_to_8_bits(),
        }
    }
}

/// How to train.
///
/// ```
/// use candle_train::run::TrainerConfig;
///
/// let config = TrainerConfig { accumulate: 4, save_every: 50, ..TrainerConfig::default() };
/// assert!(config.validate().is_ok());
/// // How often it saves changes no parameter, so that a run can go on with another number.
/// assert_eq!(config.identity(), TrainerConfig { save_every: 1000, ..config.clone() }.identity());
/// let refused = TrainerConfig { accumulate: 0, ..config }.validate().unwrap_err();
/// assert_eq!(refused.to_string(), "config: trainer.accumulate: expected at least 1, found 0");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// Micro batches per step.
    pub accumulate: usize,
    /// Steps between lines of metrics.
    pub log_every: u64,
    /// Steps between evaluations; 0 evaluates at the end only.
    pub evaluate_every: u64,
    /// Steps between checkpoints; 0 saves at the end only.
    pub save_every: u64,
    /// Steps between comparisons of the ranks' parameters.
    pub compare_every: u64,
    /// Megabytes of gradients that travel between ranks at a time.
    pub bucket_mb: f64,
    /// Whether they travel while the backward pass goes on. Pays where the network is slow and processors are free.
    pub overlap: bool,
    /// Steps in a row that may be skipped because a gradient is not finite.
    pub patience: u64,
    /// What matrices are rounded to while they are trained.
    pub weights: Weights,
    /// Which checkpoints are kept.
    pub keep: Retention,
    /// When to give up because held-out scores no longer improve.
    pub early_stop: EarlyStop,
    /// The learning rate.
    pub schedule: Schedule,
    /// The optimiser.
    pub optimiser: OptimiserConfig,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            accumulate: 1,
            log_every: 10,
            evaluate_every: 0,
            save_every: 200,
            compare_every: 200,
            bucket_mb: 25.0,
            overlap: false,
            patience: 10,
            weights: Weights::default(),
            keep: Retention::default(),
            early_stop: EarlyStop::default(),
            schedule: Schedule::default(),
            optimiser: OptimiserConfig::default(),
        }
    }
}

impl TrainerConfig {
    /// Without what changes no parameter: what a checkpoint must agree on.
    #[must_use]
    pub fn identity(&self) -> Self {
        let Self { log_every, evaluate_every, save_every, compare_every, bucket_mb, overlap, keep, .. } = Self::default();
        Self { log_every, evaluate_every, save_every, compare_every, bucket_mb, overlap, keep, ..self.clone() }
    }

    /// Names the field at fault.
    pub fn validate(&self) -> Result<()> {
        let least_one = [
            ("accumulate", self.accumulate as u64),
            ("log_every", self.log_every),
            ("compare_every", self.compare_every),
            ("patience", self.patience),
        ];
        if let Some((field, _)) = least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::config(format!("trainer.{field}"), "expected at least 1, found 0"));
        }
        if !(1e-6..=1024.0).contains(&self.bucket_mb) {
            return Err(Error::config("trainer.bucket_mb", format!("expected 0.000001 to 1024, found {}", self.bucket_mb)));
        }
        if self.early_stop.patience > 0 && self.keep.best == 0 {
            return Err(Error::config("trainer.keep.best", "early stopping ends with the best checkpoint: expected at least 1, found 0"));
        }
        self.early_stop.validate()?;
        self.schedule.validate()?;
        self.optimiser.validate()
    }
}

/// What a run computes with. None of it belongs to what a checkpoint must agree on.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Where the parameters lie.
    pub device: Device,
    /// What losses are computed in: f32, or bf16 or f16 with the parameters in f32 (on the CPU, which is not fast in those, that is
    /// emulated).
    pub dtype: DType,
    /// What products with parameters are taken in: bf16 on a CPU that was asked for it, whose values between products stay in f32.
    pub products: Products,
    /// Who trains together.
    pub ranks: Arc<dyn Communicator>,
}

impl Resources {
    /// `dtype` is what was asked for: on the CPU bf16 is one of products alone.
    pub fn new(device: Device, dtype: DType, ranks: Arc<dyn Communicator>) -> Self {
        let (products, dtype) = if device.is_cpu() && dtype == DType::BF16 { (Products::Bf16, DType::F32) } else { (Products::F32, dtype) };
        Self { device, dtype, products, ranks }
    }
}

impl Default for Resources {
    /// The CPU, f32, one rank.
    fn default() -> Self {
        Self::new(Device::Cpu, DType::F32, Arc::new(Single))
    }
}
