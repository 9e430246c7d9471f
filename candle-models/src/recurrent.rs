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
