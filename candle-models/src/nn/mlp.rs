//! Feed-forward blocks.

use super::{Linear, Norm, Params};
use crate::Result;
use crate::exec::Executor;
use crate::ops::Activation;

/// `GELU(layer_norm(x W + b))`.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::TensorExecutor;
/// use candle_models::nn::{Dense, Params};
/// use candle_models::random::Random;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// let layer = Dense::new(3, 8, &params.pp("first"))?;
/// let (inputs, resets) = (NamedTensors::new(), [false; 5]); // five frames
/// let mut e = TensorExecutor::new(&inputs, &resets, Vec::new(), &Device::Cpu);
/// let y = layer.forward(&mut e, &Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [5, 8]);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::TensorExecutor;
/// use candle_models::nn::{FeedForward, Params};
/// use candle_models::random::Random;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// let layer = FeedForward::new(8, 32, &params.pp("feed"))?;
/// let (inputs, resets) = (NamedTensors::new(), [false; 5]); // five frames
/// let mut e = TensorExecutor::new(&inputs, &resets, Vec::new(), &Device::Cpu);
/// let y = layer.forward(&mut e, &Tensor::ones((5, 8), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [5, 8]);
/// # Ok(())
/// # }
/// ```
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
