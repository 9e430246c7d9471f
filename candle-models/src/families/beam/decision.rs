//! What is decided behind the last measurement, at both ends of the link.

use super::FAMILY;
use super::config::{BeamConfig, DecisionConfig, Feedback};
use super::pursuit::Pursuit;
use crate::exec::program::Output;
use crate::exec::tape::Tapes;
use crate::exec::{Executor, host};
use crate::network::{Layers, Network};
use crate::nn::{Dense, FeedForward, Linear, Norm, Params};
use crate::ops::Activation;
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{D, Tensor};

/// The layers of the user's network behind the last measurement: all measurements and the state in, the beam to receive with and the
/// feedback out.
pub struct Decision {
    config: BeamConfig,
    /// What is looked for in the measurements.
    pursuit: Option<Pursuit>,
    /// The layer in front, the blocks and the norm behind them.
    blocks: Option<(Linear, Vec<FeedForward>, Norm)>,
    beam: Linear,
    unit: Norm,
    feedback: Linear,
}

impl Decision {
    /// The network with parameters from `params`, for measurements of what is sent with the beams `[C, 2 N_TX]` that `swept` makes where a pursuit
    /// needs them.
    pub(super) fn network(config: &BeamConfig, swept: impl FnOnce() -> Result<Tensor>, params: &Params) -> Result<Network<Self>> {
        let (record, state) = (config.record(), config.hidden);
        let (mut pursuit, mut found) = (None, 0);
        let (blocks, width) = match config.decision {
            DecisionConfig::State => (None, state),
            DecisionConfig::Measurements { width, layers, pursuit: paths } => {
                if paths > 0 {
                    let of_a_beam = record / config.receive_width() / config.codebook.count();
                    let sent: Vec<f32> =
                        host(&swept()?)?.chunks_exact(config.transmit_width()).flat_map(|beam| beam.repeat(of_a_beam)).collect();
                    let antennas = [config.channel.receive, config.channel.transmit].map(|array| array.elements());
                    let op = pursuit.insert(Pursuit::new(paths, antennas, &sent)?);
                    found = op.outputs();
                }
                let input = Linear::new(record + state + found, width, &params.pp("input"))?;
                let block = |i: usize| FeedForward::new(width, width, &params.pp(format!("blocks.{i}")));
                (Some((input, (0..layers).map(block).collect::<Result<_>>()?, Norm::rms(width, &params.pp("norm"))?)), width)
            }
        };
        let (candidates, receive) = (config.candidates(), config.receive_width());
        let beam = Linear::new(width, candidates * receive, &params.pp("beam"))?;
        let feedback = Linear::new(width, config.feedback_width(), &params.pp("feedback"))?;
        let signature = Signature {
            inputs: vec![TensorSpec::f32("measurements", &[record]), TensorSpec::f32("state", &[state])],
            outputs: vec![TensorSpec::f32("beam", &[candidates * receive]), TensorSpec::f32("feedback", &[config.feedback_width()])],
            state: Vec::new(),
        };
        let layers = Self { config: config.clone(), pursuit, blocks, unit: config.receive_weights.norm(&beam, receive)?, beam, feedback };
        Network::of((FAMILY, config), signature, params.device(), layers)
    }
}

impl Layers for Decision {
    /// The beam, or all that there is a choice of, `[rows, K 2 N_RX]`, and the feedback `[rows, F]`.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let state = e.input("state")?;
        let x = match &self.blocks {
            None => state,
            Some((input, blocks, norm)) => {
                let measurements = e.input("measurements")?;
                let mut read = vec![measurements, state];
                if let Some(pursuit) = &self.pursuit {
                    let measurements = e.detach(&read[0])?;
                    read.push(e.apply(pursuit.clone(), &[&measurements])?);
                }
                let x = e.join(&read)?;
                let mut x = e.linear(&x, input, Activation::None)?;
                for block in blocks {
                    x = block.forward(e, &x)?;
                }
                e.norm(&x, norm, Activation::None)?
            }
        };
        let beam = e.linear(&x, &self.beam, Activation::None)?;
        let beam = e.norm(&beam, &self.unit, Activation::None)?;
        Ok(vec![Output::Floats(beam), Output::Floats(e.linear(&x, &self.feedback, Activation::None)?)])
    }
}

impl Network<Decision> {
    /// The beam `[rows, 2 N_RX]` and the feedback `[rows, F]`, from all measurements and the state side by side `[rows, R + hidden]`, with
    /// gradients.
    pub(super) fn decide(&self, seen: &Tensor, tapes: &Tapes) -> Result<[Tensor; 2]> {
        let (found, config) = (self.feed(seen, tapes)?, &self.layers().config);
        let (candidates, width) = (config.candidates(), config.receive_width());
        let feedback = found.narrow(1, candidates * width, config.feedback_width())?.contiguous()?;
        let mut beam = found.narrow(1, 0, candidates * width)?.contiguous()?;
        if candidates > 1 {
            let rows = beam.dim(0)?;
            let chosen = feedback.argmax(D::Minus1)?.reshape((rows, 1, 1))?.broadcast_as((rows, 1, width))?.contiguous()?;
            beam = beam.reshape((rows, candidates, width))?.gather(&chosen, 1)?.squeeze(1)?;
        }
        Ok([config.receive_weights.rounded(&beam)?, feedback])
    }
}

impl BeamConfig {
    /// What a user keeps of its decision: the number of the beam to ask the base station for, with scheme C1, and the beam to receive
    /// with, as its array forms it.
    ///
    /// # Errors
    /// Outputs of the decision of other lengths.
    pub fn keep(&self, beams: &[f32], feedback: &[f32]) -> Result<(Option<usize>, Vec<f32>)> {
        let width = self.receive_width();
        for (name, found, expected) in
            [("beam", beams.len(), self.candidates() * width), ("feedback", feedback.len(), self.feedback_width())]
        {
            if found != expected {
                return Err(Error::tensor(name, format!("[{expected}]"), format!("[{found}]")));
            }
        }
        let highest = (1..feedback.len()).fold(0, |best, i| if feedback[i] > feedback[best] { i } else { best });
        let index = (self.feedback == Feedback::Index).then_some(highest);
        let mut beam = beams[if self.candidates() > 1 { highest * width } else { 0 }..][..width].to_vec();
        self.receive_weights.round(&mut beam);
        Ok((index, beam))
    }
}

/// The layers of the base station's network: what the user said in, the beam to transmit with out.
pub struct BaseStation {
    layers: [Dense; 2],
    beam: Linear,
    unit: Norm,
}

impl BaseStation {
    /// The network with parameters from `params`.
    pub(super) fn network(config: &BeamConfig, params: &Params) -> Result<Network<Self>> {
        let (inputs, width) = (config.feedback_width(), config.base);
        let beam = Linear::new(width, config.transmit_width(), &params.pp("beam"))?;
        let layers = [Dense::new(inputs, width, &params.pp("layers.0"))?, Dense::new(width, width, &params.pp("layers.1"))?];
        let signature = Signature {
            inputs: vec![TensorSpec::f32("feedback", &[inputs])],
            outputs: vec![TensorSpec::f32("beam", &[config.transmit_width()])],
            state: Vec::new(),
        };
        let layers = Self { layers, unit: config.transmit_weights.norm(&beam, config.transmit_width())?, beam };
        Network::of((FAMILY, config), signature, params.device(), layers)
    }
}

impl Layers for BaseStation {
    /// The beam `[rows, 2 N_TX]`.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let x = e.input("feedback")?;
        let x = self.layers[0].forward(e, &x)?;
        let x = self.layers[1].forward(e, &x)?;
        let x = e.linear(&x, &self.beam, Activation::None)?;
        Ok(vec![Output::Floats(e.norm(&x, &self.unit, Activation::None)?)])
    }
}
