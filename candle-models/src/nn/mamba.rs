//! Mamba block (Gu and Dao 2023, figure 3 and algorithm 2), pre-norm and residual.
//!
//! `x + W_out (scan(silu(conv(x_in))) * silu(z))` with `x_in, z = W_in rms_norm(x)`. Shape letters: D model width, E = expand * D inner
//! width, N states per channel, R rank of the step size, K taps. The step size, B and C depend on the input; A and the skip
//! D are learned. Not included: the parallel scan over time (windows are short, the batch and the channels are the
//! parallel axes) and the normalisation of B and C of later work.

use super::{Init, Linear, Norm, Params};
use crate::exec::Executor;
use crate::ops::{Activation, MambaWeights};
use crate::tensors::TensorSpec;
use crate::{Error, Result};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// Sizes of a Mamba block.
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

/// The block.
#[derive(Debug, Clone)]
pub struct Mamba {
    norm: Norm,
    in_proj: Linear,
    conv_weight: Tensor,
    conv_bias: Tensor,
    x_proj: Linear,
    dt_proj: Linear,
    a_log: Tensor,
    skip: Tensor,
    out_proj: Linear,
    sizes: Sizes,
    state: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    inner: usize,
    states: usize,
    rank: usize,
}

impl Mamba {
    /// Over `width` values. Registers the states of convolution and scan in `states`.
    pub fn new(width: usize, config: &MambaConfig, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let sizes = Sizes { inner: config.expand * width, states: config.state, rank: config.rank(width) };
        let Sizes { inner, states: n, rank } = sizes;
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
        e.mamba(x, self)
    }

    /// The block, operation by operation.
    pub(crate) fn compose<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let Sizes { inner, states, rank } = self.sizes;
        let y = e.norm(x, &self.norm, Activation::None)?;
        let xz = e.linear(&y, &self.in_proj, Activation::None)?;
        let (u, z) = (e.columns(&xz, 0, inner)?, e.columns(&xz, inner, inner)?);
        let u = e.causal_conv(&u, &self.conv_weight, &self.conv_bias, self.state)?;
        let selection = e.linear(&u, &self.x_proj, Activation::None)?;
        let (low, bc) = (e.columns(&selection, 0, rank)?, e.columns(&selection, rank, 2 * states)?);
        let dt = e.linear(&low, &self.dt_proj, Activation::None)?;
        let y = e.selective_scan([&u, &dt, &bc], &self.a_log, &self.skip, self.state + 1)?;
        let y = e.gate(&y, &z)?;
        let y = e.linear(&y, &self.out_proj, Activation::None)?;
        let y = e.dropout(&y)?;
        e.add(x, &y)
    }
}

impl Mamba {
    /// The number of its first state.
    pub(crate) fn first_state(&self) -> usize {
        self.state
    }

    /// The parameters and what is added to the norm's mean square: for the block as one operation.
    pub(crate) fn weights(&self) -> Result<(MambaWeights<'_>, f64)> {
        let Some(dt_bias) = &self.dt_proj.bias else { return Err(Error::tensor("dt_proj.bias", "a parameter", "nothing")) };
        let weights = MambaWeights {
            norm: &self.norm.weight,
            in_proj: &self.in_proj.weight,
            conv_weight: &self.conv_weight,
            conv_bias: &self.conv_bias,
            x_proj: &self.x_proj.weight,
            dt_weight: &self.dt_proj.weight,
            dt_bias,
            a_log: &self.a_log,
            skip: &self.skip,
            out_proj: &self.out_proj.weight,
        };
        Ok((weights, self.norm.eps))
    }
}

/// Step sizes start log-uniform in [0.001, 0.1].
fn step_size(uniform: f32) -> f32 {
    (0.001f32.ln() + uniform * (0.1f32.ln() - 0.001f32.ln())).exp()
}

fn inverse_softplus(y: f32) -> f32 {
    y + (-(-y).exp_m1()).ln()
}
