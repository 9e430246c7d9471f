//! The temporal contract: state is a value, not a secret.
//!
//! A model takes named inputs `[B, T, ...]` and the state before the first frame, and gives named outputs `[B, T, ...]`
//! and the state after the last one. A reset at frame t puts the row back to its initial state before frame t is read.
//! State can be cloned, reset by row, gathered and scattered, so a server keeps rows and a tree search forks them.

use crate::Result;
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use candle_core::Device;

/// A model that reads frames one after the other.
///
/// ```
/// use candle_models::Result;
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::prelude::*;
///
/// /// The sum of all that it has seen since the last reset.
/// struct Sum(Signature);
///
/// impl Recurrent for Sum {
///     fn signature(&self) -> &Signature {
///         &self.0
///     }
///     fn device(&self) -> &Device {
///         &Device::Cpu
///     }
///     fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
///         let (x, mut state, mut sums) = (inputs.get("x")?, state.clone(), Vec::new());
///         let steps = x.dim(1)?;
///         for t in 0..steps {
///             let anew: Vec<bool> = resets.iter().skip(t).step_by(steps).copied().collect();
///             state = state.reset_rows(&anew)?.map(|_, sum| Ok((sum + x.narrow(1, t, 1)?.squeeze(1)?)?))?;
///             sums.push(state.get("sum")?.clone());
///         }
///         Ok((NamedTensors::from_iter([("y".to_owned(), Tensor::stack(&sums, 1)?)]), state))
///     }
/// }
///
/// # fn main() -> candle_models::Result<()> {
/// let spec = |name| vec![TensorSpec::f32(name, &[1])];
/// let model = Sum(Signature { inputs: spec("x"), outputs: spec("y"), state: spec("sum") });
/// let x = Tensor::new(&[[[1f32], [2.0], [4.0]]], &Device::Cpu)?;
/// let inputs = NamedTensors::from_iter([("x".to_owned(), x)]);
/// let (outputs, after) = model.unroll(&inputs, &[false, false, true], &model.initial_state(1)?)?;
/// assert_eq!(outputs.get("y")?.flatten_all()?.to_vec1::<f32>()?, [1.0, 3.0, 4.0]);
/// assert_eq!(after.get("sum")?.flatten_all()?.to_vec1::<f32>()?, [4.0]);
/// # Ok(())
/// # }
/// ```
pub trait Recurrent {
    /// Names, dtypes and shapes of inputs, outputs and state, per row and frame.
    fn signature(&self) -> &Signature;

    /// The device that the weights are on.
    fn device(&self) -> &Device;

    /// The whole sequence: `inputs` `[B, T, ...]`, `resets` `B * T` values row by row, `state` `[B, ...]`.
    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)>;

    /// The state before any frame: zeros.
    fn initial_state(&self, batch: usize) -> Result<NamedTensors> {
        NamedTensors::zeros(&self.signature().state, batch, self.device())
    }

    /// One frame: `inputs` `[B, ...]`, `resets` one per row. The same as an unroll over one frame.
    fn step(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        let inputs = inputs.map(|_, x| Ok(x.unsqueeze(1)?))?;
        let (outputs, state) = self.unroll(&inputs, resets, state)?;
        Ok((outputs.map(|_, y| Ok(y.squeeze(1)?))?, state))
    }
}
