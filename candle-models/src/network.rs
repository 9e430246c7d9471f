//! A network whose pass is written once: layers over any executor. Everything else follows from it: unrolling on tensors with gradients, recording
//! for the engine on the CPU and CUDA, printing, export.
//!
//! ```
//! use candle_models::candle_core::Device;
//! use candle_models::exec::{Executor, program::Output};
//! use candle_models::network::{Layers, Network};
//! use candle_models::nn::{Gru, Linear, Params};
//! use candle_models::ops::Activation;
//! use candle_models::prelude::*;
//! use candle_models::random::Random;
//! use candle_models::signature::{Signature, TensorSpec};
//!
//! /// A number in, a number out, with memory.
//! struct Follower(Gru, Linear);
//!
//! impl Layers for Follower {
//!     fn pass<E: Executor>(&self, e: &mut E) -> candle_models::Result<Vec<Output<E::V, E::I>>> {
//!         let x = e.input("x")?;
//!         let x = self.0.forward(e, &x)?;
//!         Ok(vec![Output::Floats(e.linear(&x, &self.1, Activation::None)?)])
//!     }
//! }
//!
//! # fn main() -> candle_models::Result<()> {
//! let params = Params::init(Random::new(1), &Device::Cpu);
//! let mut state = Vec::new();
//! let layers = Follower(Gru::new(1, 16, &params.pp("memory"), &mut state)?, Linear::new(16, 1, &params.pp("output"))?);
//! let [inputs, outputs] = ["x", "y"].map(|name| vec![TensorSpec::f32(name, &[1])]);
//! let network = Network::of(("follower", &16), Signature { inputs, outputs, state }, params.device(), layers)?;
//! let engine = Engine::start(std::sync::Arc::new(network), &Options::default())?;
//! let mut session = engine.open()?;
//! session.set_f32("x", &[0.5])?;
//! session.step()?;
//! assert!(session.floats("y")?[0].is_finite());
//! # Ok(())
//! # }
//! ```

use crate::Result;
use crate::engine::Model;
use crate::exec::Executor;
use crate::exec::program::{Output, Recorder};
use crate::exec::tape;
pub use crate::exec::tape::Tapes;
use crate::exec::tensors::{self, Regularisation, TensorExecutor};
use crate::recurrent::Recurrent;
use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor};
use serde::Serialize;

/// Layers of a network.
pub trait Layers: Send + Sync {
    /// One pass: the outputs `[rows, width]`, in the signature's order.
    ///
    /// # Errors
    /// If the layers do not fit each other or the inputs.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>>;
}

/// Layers, and what they read, give and remember.
pub struct Network<L> {
    layers: L,
    signature: Signature,
    device: Device,
    family: &'static str,
    config: serde_json::Value,
}

impl<L> Network<L> {
    /// Layers with parameters on `device`, of that family and configuration.
    ///
    /// # Errors
    /// If the configuration has no JSON form.
    pub fn of((family, config): (&'static str, &impl Serialize), signature: Signature, device: &Device, layers: L) -> Result<Self> {
        let config = serde_json::to_value(config).map_err(|e| crate::Error::config(family, e.to_string()))?;
        Ok(Self { layers, signature, device: device.clone(), family, config })
    }

    /// The layers.
    pub fn layers(&self) -> &L {
        &self.layers
    }
}

impl<L: Layers> Network<L> {
    /// [`Recurrent::unroll`] with training noise. Inputs and state may lie on the host, indices always should: they are checked there.
    ///
    /// # Errors
    /// As [`Recurrent::unroll`].
    pub fn train_unroll(
        &self,
        inputs: &NamedTensors,
        resets: &[bool],
        state: &NamedTensors,
        noise: &Regularisation,
    ) -> Result<(NamedTensors, NamedTensors)> {
        self.unroll_with(inputs, resets, state, Some(*noise))
    }

    fn unroll_with(
        &self,
        inputs: &NamedTensors,
        resets: &[bool],
        state: &NamedTensors,
        noise: Option<Regularisation>,
    ) -> Result<(NamedTensors, NamedTensors)> {
        tensors::unroll((&self.signature, &self.device), (inputs, resets, state), |executor| {
            if let Some(noise) = noise {
                executor.set_noise(noise);
            }
            self.layers.pass(executor)
        })
    }

    /// A network without memory over all its inputs side by side `[rows, ...]`, those of floats before those of indices, which are numbers here:
    /// its outputs side by side in the dtype of its inputs, with gradients.
    ///
    /// # Errors
    /// If the inputs have another width, or an index is out of range.
    pub fn feed(&self, inputs: &Tensor, tapes: &Tapes) -> Result<Tensor> {
        let of = |dtype: DType| self.signature.inputs.iter().filter(move |spec| dtype == spec.dtype());
        let floats: usize = of(DType::F32).map(TensorSpec::width).sum();
        let (mut named, mut start) = (NamedTensors::new(), floats);
        for spec in of(DType::U32) {
            let indices = inputs.narrow(1, start, spec.width())?.to_dtype(DType::U32)?.to_device(&Device::Cpu)?;
            spec.check_u32_from(0, &indices.flatten_all()?.to_vec1()?)?;
            named.insert(spec.name.clone(), indices.unsqueeze(1)?);
            start += spec.width();
        }
        if inputs.device().is_cpu() && inputs.dtype() == DType::F32 {
            return tape::feed(&self.signature, |recorder| self.record(recorder), inputs, tapes);
        }
        start = 0;
        for spec in of(DType::F32) {
            named.insert(spec.name.clone(), inputs.narrow(1, start, spec.width())?.unsqueeze(1)?);
            start += spec.width();
        }
        let resets = vec![false; inputs.dim(0)?];
        let found = self.layers.pass(&mut TensorExecutor::new(&named, &resets, Vec::new(), &self.device))?;
        let found = found.into_iter().map(Output::into_tensor).collect::<Result<Vec<_>>>()?;
        // Networks may compute in a narrower dtype than what is between them.
        Ok(Tensor::cat(&found, 1)?.to_dtype(inputs.dtype())?)
    }
}

impl<L: Layers> Recurrent for Network<L> {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        self.unroll_with(inputs, resets, state, None)
    }
}

impl<L: Layers> Model for Network<L> {
    fn family(&self) -> &'static str {
        self.family
    }

    fn config(&self) -> serde_json::Value {
        self.config.clone()
    }

    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>> {
        self.layers.pass(recorder)
    }
}
