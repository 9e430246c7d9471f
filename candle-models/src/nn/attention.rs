//! Sliding-window attention block, pre-norm and residual, with normalised queries and keys (Henry et al. 2020).

use super::{Init, Linear, Norm, Params};
use crate::Result;
use crate::exec::Executor;
use crate::ops::{Activation, Attention};
use crate::signature::TensorSpec;
use candle_core::Tensor;

/// `x + W_o attention(rms_norm(x))`; positions enter as a learned slope per head over the distance.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::TensorExecutor;
/// use candle_models::nn::{Params, SlidingAttention};
/// use candle_models::random::Random;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let (params, mut states) = (Params::init(Random::new(1), &Device::Cpu), Vec::new());
/// let shape = candle_models::ops::Attention { heads: 2, window: 4 };
/// let layer = SlidingAttention::new(8, shape, &params.pp("attend"), &mut states)?;
/// let before = NamedTensors::zeros(&states, 1, &Device::Cpu)?; // of one sequence
/// let before = states.iter().map(|spec| before.get(&spec.name).cloned()).collect::<candle_models::Result<_>>()?;
/// let (inputs, resets) = (NamedTensors::new(), [true, false, false, false, false]); // five frames
/// let mut e = TensorExecutor::new(&inputs, &resets, before, &Device::Cpu);
/// let y = layer.forward(&mut e, &Tensor::ones((5, 8), DType::F32, &Device::Cpu)?)?;
/// assert_eq!((y.dims(), e.into_states().len()), (&[5, 8][..], states.len()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SlidingAttention {
    shape: Attention,
    norm: Norm,
    qkv: Linear,
    query_norm: Norm,
    key_norm: Norm,
    slopes: Tensor,
    out: Linear,
    width: usize,
    state: usize,
}

impl SlidingAttention {
    /// Over `width` values, a multiple of the heads. Registers keys, values and their count in `states`.
    pub fn new(width: usize, shape: Attention, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let state = states.len();
        states.push(TensorSpec::f32(format!("{state:02}.keys"), &[shape.window - 1, width]));
        states.push(TensorSpec::f32(format!("{:02}.values", state + 1), &[shape.window - 1, width]));
        states.push(TensorSpec::f32(format!("{:02}.count", state + 2), &[1]));
        let head = width / shape.heads;
        Ok(Self {
            shape,
            norm: Norm::rms(width, &params.pp("norm"))?,
            qkv: Linear::without_bias(width, 3 * width, &params.pp("qkv"))?,
            query_norm: Norm::rms(head, &params.pp("query_norm"))?,
            key_norm: Norm::rms(head, &params.pp("key_norm"))?,
            // The slopes of the paper: 2^(-8 / heads), its square ...
            slopes: params.get("slopes", &[shape.heads], Init::Values(&|i, _| (-8.0 * (i + 1) as f32 / shape.heads as f32).exp2()))?,
            out: Linear::without_bias(width, width, &params.pp("out"))?,
            width,
            state,
        })
    }

    /// `x` `[rows, width]` to the same shape.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let w = self.width;
        let y = e.norm(x, &self.norm, Activation::None)?;
        let qkv = e.linear(&y, &self.qkv, Activation::None)?;
        let (q, k, v) = (e.columns(&qkv, 0, w)?, e.columns(&qkv, w, w)?, e.columns(&qkv, 2 * w, w)?);
        let (q, k) = (e.norm(&q, &self.query_norm, Activation::None)?, e.norm(&k, &self.key_norm, Activation::None)?);
        let y = e.attention(self.shape, [&q, &k, &v], &self.slopes, self.state)?;
        let y = e.linear(&y, &self.out, Activation::None)?;
        let y = e.dropout(&y)?;
        e.add(x, &y)
    }
}
