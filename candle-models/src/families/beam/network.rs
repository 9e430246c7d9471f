//! A network of a link: layers, what they read and give, and what the executors make of them.

use super::config::BeamConfig;
use super::{FAMILY, Tapes};
use crate::Result;
use crate::engine::Model;
use crate::exec::Executor;
use crate::exec::program::{Output, Recorder};
use crate::exec::tape;
use crate::exec::tensors::{self, TensorExecutor};
use crate::nn::Params;
use crate::recurrent::Recurrent;
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor};

/// The layers of a network, written once for all executors.
pub trait Layers: Sized + Send + Sync {
    /// A value for each output.
    type Outputs<V>: IntoIterator<Item = V>;

    /// Layers with parameters from `params`, and what they read, give and remember.
    fn new(config: &BeamConfig, params: &Params) -> Result<(Self, Signature)>;

    /// One pass: the outputs `[rows, width]`, in the signature's order.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Self::Outputs<E::V>>;
}

/// One of the networks of a link.
pub struct Network<L> {
    pub(super) config: BeamConfig,
    signature: Signature,
    device: Device,
    layers: L,
}

impl<L: Layers> Network<L> {
    pub(super) fn new(config: &BeamConfig, params: &Params) -> Result<Self> {
        let (layers, signature) = L::new(config, params)?;
        Ok(Self { config: config.clone(), signature, device: params.device().clone(), layers })
    }

    /// One pass: the outputs `[rows, width]`, in the signature's order.
    pub(super) fn pass<E: Executor>(&self, e: &mut E) -> Result<L::Outputs<E::V>> {
        self.layers.pass(e)
    }

    /// A network without memory over all its inputs side by side `[rows, ...]`: its outputs side by side in the dtype of its inputs,
    /// with gradients.
    pub(super) fn feed(&self, inputs: &Tensor, tapes: &Tapes) -> Result<Tensor> {
        if inputs.device().is_cpu() && inputs.dtype() == DType::F32 {
            return tape::feed(&self.signature, |recorder| self.record(recorder), inputs, tapes);
        }
        let mut start = 0;
        let mut named = NamedTensors::new();
        for spec in &self.signature.inputs {
            named.insert(spec.name.clone(), inputs.narrow(1, start, spec.width())?.unsqueeze(1)?);
            start += spec.width();
        }
        let resets = vec![false; inputs.dim(0)?];
        let found = self.pass(&mut TensorExecutor::new(&named, &resets, Vec::new(), &self.device))?;
        // Networks may compute in a narrower dtype than what is between them.
        Ok(Tensor::cat(&found.into_iter().collect::<Vec<_>>(), 1)?.to_dtype(inputs.dtype())?)
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
        tensors::unroll((&self.signature, &self.device), (inputs, resets, state), |executor| Ok(self.pass(executor)?.into_iter().collect()))
    }
}

impl<L: Layers> Model for Network<L> {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn config(&self) -> serde_json::Value {
        // A struct of numbers and strings always has a JSON form.
        serde_json::to_value(&self.config).unwrap_or_default()
    }

    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>> {
        Ok(self.pass(recorder)?.into_iter().map(Output::Floats).collect())
    }
}
