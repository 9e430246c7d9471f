//! Feed-forward blocks.

use super::{Linear, Norm, Params};
use crate::Result;
use crate::exec::Executor;
use crate::ops::Activation;

/// `GELU(layer_norm(x W + b))`.
#[derive(Debug, Clone)]
pub struct Dense {
    linear: Linear,
    norm: Norm,
}

impl Dense {
    /// From `inputs` to `outputs` values.
    pub fn new(inputs: usize, outputs: usize, params: &Params) -> Result<Self> {
        Ok(Self { linear: Linear::new(inputs, outputs, &params.pp("linear"))?, norm: Norm::layer(outputs, &params.pp("norm"))? })
    }

    /// `x` `[rows, inputs]` to `[rows, outputs]`.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let y = e.linear(x, &self.linear, Activation::None)?;
        e.norm(&y, &self.norm, Activation::Gelu)
    }
}

/// Pre-norm residual `x + W2 GELU(W1 rms_norm(x))`.
#[derive(Debug, Clone)]
pub struct FeedForward {
    norm: Norm,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Over `width` values, `inner` inside.
    pub fn new(width: usize, inner: usize, params: &Params) -> Result<Self> {
        Ok(Self {
            norm: Norm::rms(width, &params.pp("norm"))?,
            up: Linear::new(width, inner, &params.pp("up"))?,
            down: Linear::new(inner, width, &params.pp("down"))?,
        })
    }

    /// `x` `[rows, width]` to the same shape.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let y = e.norm(x, &self.norm, Activation::None)?;
        let y = e.linear(&y, &self.up, Activation::Gelu)?;
        let y = e.linear(&y, &self.down, Activation::None)?;
        let y = e.dropout(&y)?;
        e.add(x, &y)
    }
}
