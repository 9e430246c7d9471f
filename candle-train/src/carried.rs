//! What a recurrent network remembers from one step of its training to the next: the state of every lane, through which no gradient flows
//! (truncated backpropagation through time).

use crate::task::StepDone;
use candle_core::Device;
use candle_models::Result;
use candle_models::exec::tensors::Regularisation;
use candle_models::network::{Layers, Network};
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;

/// The state of every lane of a batch, which a [`Task`](crate::task::Task) keeps from batch to batch and in its checkpoints.
///
/// ```
/// use candle_models::agent::{Agent, AgentConfig};
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::Regularisation;
/// use candle_models::prelude::*;
/// use candle_models::random::Random;
/// use candle_models::recurrent::Recurrent;
/// use candle_train::carried::Carried;
///
/// # fn main() -> candle_models::Result<()> {
/// let agent = Agent::new(&AgentConfig::default(), &Params::init(Random::new(1), &Device::Cpu))?;
/// let mut carried = Carried::new(agent.signature(), 2, &Device::Cpu)?;
/// let (lanes, frames) = (2, 3);
/// let mut inputs = NamedTensors::zeros(&agent.signature().inputs, lanes * frames, &Device::Cpu)?;
/// inputs = inputs.map(|_, tensor| Ok(tensor.reshape((lanes, frames, tensor.dim(1)?))?))?;
/// let noise = Regularisation { dropout: 0.0, drop_ids: 0.0, random: Random::new(2), first_row: 0 };
/// let outputs = carried.unroll(&agent, &inputs, &[false; 6], &noise)?;
/// assert_eq!(outputs.get("logits")?.dims(), [2, 3, 3]);
/// assert_eq!(carried.rows().iter().next().map(|(_, tensor)| tensor.dims()), Some(&[2, 64][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Carried {
    specs: Vec<TensorSpec>,
    lanes: usize,
    device: Device,
    rows: NamedTensors,
}

impl Carried {
    /// Of a network with that signature on `device`, which remembers nothing yet.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn new(signature: &Signature, lanes: usize, device: &Device) -> Result<Self> {
        let mut carried = Self { specs: signature.state.clone(), lanes, device: device.clone(), rows: NamedTensors::new() };
        carried.forget()?;
        Ok(carried)
    }

    /// Begins every lane with no memory of any frame.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.rows = NamedTensors::zeros(&self.specs, self.lanes, &self.device)?;
        Ok(())
    }

    /// The network's outputs over the next frames, `[lanes, frames, ...]`, with gradients; its state behind them is kept.
    ///
    /// # Errors
    /// As [`Network::train_unroll`].
    pub fn unroll<L: Layers>(
        &mut self,
        network: &Network<L>,
        inputs: &NamedTensors,
        resets: &[bool],
        noise: &Regularisation,
    ) -> Result<NamedTensors> {
        let (outputs, state) = network.train_unroll(inputs, resets, &self.rows, noise)?;
        self.rows = state.map(|_, tensor| Ok(tensor.detach()))?;
        Ok(outputs)
    }

    /// Forgets what a step has left that was not taken: its gradients were not finite, so the state may not be either.
    ///
    /// # Errors
    /// As [`forget`](Self::forget).
    pub fn after_step(&mut self, step: &StepDone) -> Result<()> {
        if step.updated { Ok(()) } else { self.forget() }
    }

    /// The state, `[lanes, ...]`, as checkpoints keep it.
    pub fn rows(&self) -> &NamedTensors {
        &self.rows
    }

    /// Goes on from the state of a checkpoint.
    ///
    /// # Errors
    /// If it is that of another network or of another number of lanes.
    pub fn restore(&mut self, rows: &NamedTensors) -> Result<()> {
        rows.check(&self.specs, &[self.lanes])?;
        self.rows = rows.clone();
        Ok(())
    }
}
