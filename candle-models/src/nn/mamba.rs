//! Mamba blocks: their sizes and how they start. What they compute stands in `ops/mamba`.

use super::{Init, Linear, Norm, Params};
use crate::exec::Executor;
pub use crate::ops::Mamba;
use crate::ops::MambaSizes;
use crate::signature::TensorSpec;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Sizes of a Mamba block.
///
/// ```
/// use candle_models::nn::MambaConfig;
///
/// let config = MambaConfig { state: 8, ..MambaConfig::default() };
/// assert!(config.validate().is_ok());
/// assert!(MambaConfig { conv: 0, ..config }.validate().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MambaConfig {
    /// States per channel (N).
    pub state: usize,
    /// Inner width over model width (E / D).
    pub expand: usize,
    /// Taps of the causal convolution (K).
    pub conv: usize,
}

impl Default for MambaConfig {
    fn default() -> Self {
        Self { state: 16, expand: 2, conv: 4 }
    }
}

impl MambaConfig {
    /// Names the field that is out of range.
    pub fn validate(&self) -> Result<()> {
        for (field, value, range) in [("state", self.state, 1..=256), ("expand", self.expand, 1..=8), ("conv", self.conv, 2..=16)] {
            if !range.contains(&value) {
                return Err(Error::config(field, format!("{value} is outside {}..={}", range.start(), range.end())));
            }
        }
        Ok(())
    }

    /// Rank of the step size: a sixteenth of the model width.
    pub fn rank(&self, width: usize) -> usize {
        width.div_ceil(16)
    }
}

impl Mamba {
    /// Over `width` values. Registers the states of convolution and scan in `states`.
    pub fn new(width: usize, config: &MambaConfig, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let sizes = MambaSizes { inner: config.expand * width, states: config.state, rank: config.rank(width) };
        let MambaSizes { inner, states: n, rank } = sizes;
        let state = states.len();
        states.push(TensorSpec::f32(format!("{state:02}.conv"), &[config.conv - 1, inner]));
        states.push(TensorSpec::f32(format!("{:02}.scan", state + 1), &[n, inner]));
        let conv = params.pp("conv");
        let step = [Init::Uniform((rank as f32).powf(-0.5)), Init::Values(&|_, u| inverse_softplus(step_size(u)))];
        let taps = 1.0 / (config.conv as f32).sqrt();
        Ok(Self {
            norm: Norm::rms(width, &params.pp("norm"))?,
            in_proj: Linear::without_bias(width, 2 * inner, &params.pp("in_proj"))?,
            conv_weight: conv.get("weight", &[config.conv, inner], Init::Uniform(taps))?,
            conv_bias: conv.get("bias", &[inner], Init::Uniform(taps))?,
            x_proj: Linear::without_bias(inner, rank + 2 * n, &params.pp("x_proj"))?,
            dt_proj: Linear::started(rank, inner, step, &params.pp("dt_proj"))?,
            // Real part of S4D: A = -1, -2 ... -N for every channel.
            a_log: params.get("a_log", &[inner, n], Init::Values(&|i, _| ((i % n + 1) as f32).ln()))?,
            skip: params.get("d", &[inner], Init::Constant(1.0))?,
            out_proj: Linear::without_bias(inner, width, &params.pp("out_proj"))?,
            sizes,
            state,
        })
    }

    /// `x` `[rows, D]` to the same shape.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        e.block(self, &[x], &[])?.into_floats()
    }
}

/// Step sizes start log-uniform in [0.001, 0.1].
fn step_size(uniform: f32) -> f32 {
    (0.001f32.ln() + uniform * (0.1f32.ln() - 0.001f32.ln())).exp()
}

fn inverse_softplus(y: f32) -> f32 {
    y + (-(-y).exp_m1()).ln()
}
