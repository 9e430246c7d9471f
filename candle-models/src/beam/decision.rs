//! What is decided behind the last measurement, at both ends of the link.

use super::config::{BeamConfig, DecisionConfig};
use super::{FAMILY, model};
use crate::Result;
use crate::engine::{IndexLimits, Model};
use crate::exec::Executor;
use crate::exec::program::{Output, Recorder};
use crate::exec::tape::Tapes;
use crate::nn::{Dense, FeedForward, Linear, Norm, Params};
use crate::ops::Activation;
use crate::recurrent::Recurrent;
use crate::tensors::{NamedTensors, Signature, TensorSpec};
use candle_core::{Device, Tensor};

/// The user's network behind the last measurement: all measurements and the state in, the beam to receive with and the feedback out.
pub struct Decision {
    config: BeamConfig,
    signature: Signature,
    device: Device,
    /// The layer in front, the blocks and the norm behind them.
    blocks: Option<(Linear, Vec<FeedForward>, Norm)>,
    beam: Linear,
    unit: Norm,
    feedback: Linear,
}

impl Decision {
    pub(super) fn new(config: &BeamConfig, params: &Params) -> Result<Self> {
        let (record, state) = (config.record(), config.hidden);
        let (blocks, width) = match config.decision {
            DecisionConfig::State => (None, state),
            DecisionConfig::Measurements { width, layers } => {
                let input = Linear::new(record + state, width, &params.pp("input"))?;
                let block = |i: usize| FeedForward::new(width, width, &params.pp(format!("blocks.{i}")));
                (Some((input, (0..layers).map(block).collect::<Result<_>>()?, Norm::rms(width, &params.pp("norm"))?)), width)
            }
        };
        let beam = Linear::new(width, config.receive_width(), &params.pp("beam"))?;
        Ok(Self {
            blocks,
            unit: config.receive_weights.norm(&beam)?,
            beam,
            feedback: Linear::new(width, config.feedback_width(), &params.pp("feedback"))?,
            device: params.device().clone(),
            config: config.clone(),
            signature: Signature {
                inputs: vec![TensorSpec::f32("measurements", &[record]), TensorSpec::f32("state", &[state])],
                outputs: vec![TensorSpec::f32("beam", &[config.receive_width()]), TensorSpec::f32("feedback", &[config.feedback_width()])],
                state: Vec::new(),
            },
        })
    }

    fn pass<E: Executor>(&self, e: &mut E) -> Result<[E::V; 2]> {
        let state = e.input("state")?;
        let x = match &self.blocks {
            None => state,
            Some((input, blocks, norm)) => {
                let measurements = e.input("measurements")?;
                let x = e.join(&[measurements, state])?;
                let mut x = e.linear(&x, input, Activation::None)?;
                for block in blocks {
                    x = block.forward(e, &x)?;
                }
                e.norm(&x, norm, Activation::None)?
            }
        };
        let beam = e.linear(&x, &self.beam, Activation::None)?;
        let beam = e.norm(&beam, &self.unit, Activation::None)?;
        Ok([beam, e.linear(&x, &self.feedback, Activation::None)?])
    }

    /// The beam `[rows, 2 N_RX]` and the feedback `[rows, F]`, from all measurements and the state side by side `[rows, R + hidden]`, with
    /// gradients.
    pub(super) fn decide(&self, seen: &Tensor, tapes: &Tapes) -> Result<[Tensor; 2]> {
        let found = model::feed(self, seen, tapes, |e| self.pass(e))?;
        let width = self.config.receive_width();
        let beam = self.config.receive_weights.rounded(&found.narrow(1, 0, width)?.contiguous()?)?;
        Ok([beam, found.narrow(1, width, self.config.feedback_width())?.contiguous()?])
    }
}

impl Recurrent for Decision {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        model::unroll(self, inputs, resets, state, |e| self.pass(e))
    }
}

impl Model for Decision {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn config(&self) -> serde_json::Value {
        model::as_json(&self.config)
    }

    fn index_limits(&self, _: &str) -> IndexLimits {
        IndexLimits::default()
    }

    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>> {
        Ok(self.pass(recorder)?.map(Output::Floats).to_vec())
    }
}

/// The base station's network: what the user said in, the beam to transmit with out.
pub struct BaseStation {
    config: BeamConfig,
    signature: Signature,
    device: Device,
    layers: [Dense; 2],
    beam: Linear,
    unit: Norm,
}

impl BaseStation {
    pub(super) fn new(config: &BeamConfig, params: &Params) -> Result<Self> {
        let (inputs, width) = (config.feedback_width(), config.base);
        let beam = Linear::new(width, config.transmit_width(), &params.pp("beam"))?;
        Ok(Self {
            layers: [Dense::new(inputs, width, &params.pp("layers.0"))?, Dense::new(width, width, &params.pp("layers.1"))?],
            unit: config.transmit_weights.norm(&beam)?,
            beam,
            device: params.device().clone(),
            config: config.clone(),
            signature: Signature {
                inputs: vec![TensorSpec::f32("feedback", &[inputs])],
                outputs: vec![TensorSpec::f32("beam", &[config.transmit_width()])],
                state: Vec::new(),
            },
        })
    }

    fn pass<E: Executor>(&self, e: &mut E) -> Result<[E::V; 1]> {
        let x = e.input("feedback")?;
        let x = self.layers[0].forward(e, &x)?;
        let x = self.layers[1].forward(e, &x)?;
        let x = e.linear(&x, &self.beam, Activation::None)?;
        Ok([e.norm(&x, &self.unit, Activation::None)?])
    }

    /// The beam `[rows, 2 N_TX]` for what arrived, `[rows, F]`, with gradients.
    pub(super) fn transmit(&self, feedback: &Tensor, tapes: &Tapes) -> Result<Tensor> {
        model::feed(self, feedback, tapes, |e| self.pass(e))
    }
}

impl Recurrent for BaseStation {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        model::unroll(self, inputs, resets, state, |e| self.pass(e))
    }
}

impl Model for BaseStation {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn config(&self) -> serde_json::Value {
        model::as_json(&self.config)
    }

    fn index_limits(&self, _: &str) -> IndexLimits {
        IndexLimits::default()
    }

    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>> {
        Ok(self.pass(recorder)?.map(Output::Floats).to_vec())
    }
}
