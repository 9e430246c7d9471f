//! Gated recurrent unit (Cho et al. 2014), gates in PyTorch's order: reset, update, candidate.

use super::{Linear, Params};
use crate::Result;
use crate::exec::Executor;
use crate::ops::Activation;
use crate::signature::TensorSpec;

/// One layer: the product of the inputs is taken for all frames at once, the product of the state frame by frame.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::TensorExecutor;
/// use candle_models::nn::{Gru, Params};
/// use candle_models::random::Random;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let (params, mut states) = (Params::init(Random::new(1), &Device::Cpu), Vec::new());
/// let layer = Gru::new(3, 8, &params.pp("gru"), &mut states)?;
/// let before = NamedTensors::zeros(&states, 1, &Device::Cpu)?; // of one sequence
/// let before = states.iter().map(|spec| before.get(&spec.name).cloned()).collect::<candle_models::Result<_>>()?;
/// let (inputs, resets) = (NamedTensors::new(), [true, false, false, false, false]); // five frames
/// let mut e = TensorExecutor::new(&inputs, &resets, before, &Device::Cpu);
/// let y = layer.forward(&mut e, &Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
/// assert_eq!((y.dims(), e.into_states().len()), (&[5, 8][..], states.len()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Gru {
    input: Linear,
    hidden: Linear,
    state: usize,
}

impl Gru {
    /// Registers its state in `states` and remembers its number.
    pub fn new(inputs: usize, width: usize, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let state = states.len();
        states.push(TensorSpec::f32(format!("{state:02}.gru"), &[width]));
        Ok(Self {
            input: Linear::new(inputs, 3 * width, &params.pp("input"))?,
            hidden: Linear::new(width, 3 * width, &params.pp("hidden"))?,
            state,
        })
    }

    /// `x` `[rows, inputs]` to `[rows, width]`.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let x = e.linear(x, &self.input, Activation::None)?;
        e.gru(&x, &self.hidden, self.state)
    }
}
