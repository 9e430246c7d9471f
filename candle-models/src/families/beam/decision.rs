//! What is decided behind the last measurement, at both ends of the link.

use super::FAMILY;
use super::config::{BeamConfig, DecisionConfig, Feedback};
use super::sparse::SparseChannel;
use super::steering::SteeredBeam;
use super::user::SNR_SCALE;
use crate::exec::program::Output;
use crate::exec::tape::Tapes;
use crate::exec::{Executor, host};
use crate::network::{Layers, Network};
use crate::nn::{Dense, FeedForward, Init, Linear, Norm, Params};
use crate::ops::Activation;
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// The layers of the user's network behind the last measurement: all measurements and the state in, for an estimate the SNR in dB over 30
/// as well; the beam to receive with and the feedback out.
pub struct Decision {
    config: BeamConfig,
    /// What the measurements say before anything is learned.
    estimate: Option<SparseChannel>,
    /// The layer in front, the blocks and the norm behind them.
    blocks: Option<(Linear, Vec<FeedForward>, Norm)>,
    beam: Linear,
    unit: Norm,
    feedback: Linear,
}

impl Decision {
    /// The network with parameters from `params`, for measurements of what is sent with the beams `[C, 2 N_TX]` that `swept` makes where an
    /// estimate needs them.
    pub(super) fn network(config: &BeamConfig, swept: impl FnOnce() -> Result<Tensor>, params: &Params) -> Result<Network<Self>> {
        let (record, state) = (config.record(), config.hidden);
        let estimate = config.pursuit().map(|pursuit| {
            let (swept, choice) = (host(&swept()?)?, config.feedback == Feedback::Index);
            let of_a_beam = record / config.receive_width() / config.codebook.count();
            let sent: Vec<f32> = swept.chunks_exact(config.transmit_width()).flat_map(|beam| beam.repeat(of_a_beam)).collect();
            let antennas = [config.channel.receive, config.channel.transmit].map(|array| array.elements());
            SparseChannel::new(pursuit, antennas, &sent, if choice { &swept } else { &[] })
        });
        let estimate = estimate.transpose()?;
        let (found, told) = estimate.as_ref().map_or((0, 0), |estimate| (estimate.outputs(), estimate.told()));
        let (blocks, width) = match config.decision {
            DecisionConfig::State => (None, state),
            DecisionConfig::Measurements { width, layers, .. } => {
                let input = Linear::new(record + state + found, width, &params.pp("input"))?;
                let block = |i: usize| FeedForward::new(width, width, &params.pp(format!("blocks.{i}")));
                (Some((input, (0..layers).map(block).collect::<Result<_>>()?, Norm::rms(width, &params.pp("norm"))?)), width)
            }
        };
        let (candidates, receive) = (config.candidates(), config.receive_width());
        let beam = head(estimate.is_some(), width, candidates * receive, &params.pp("beam"))?;
        let chooses = estimate.as_ref().is_some_and(|estimate| estimate.choices() > 0);
        let feedback = head(chooses, width, config.feedback_width() - told, &params.pp("feedback"))?;
        let mut inputs = vec![TensorSpec::f32("measurements", &[record]), TensorSpec::f32("state", &[state])];
        inputs.extend(estimate.as_ref().map(|_| TensorSpec::f32("snr", &[1])));
        let signature = Signature {
            inputs,
            outputs: vec![TensorSpec::f32("beam", &[candidates * receive]), TensorSpec::f32("feedback", &[config.feedback_width()])],
            state: Vec::new(),
        };
        let layers = Self { config: config.clone(), estimate, blocks, unit: config.receive_weights.norm(&beam, receive)?, beam, feedback };
        Network::of((FAMILY, config), signature, params.device(), layers)
    }
}

/// A head. One that adds to an estimate begins at zero, so that training begins with the estimate alone.
fn head(adds: bool, inputs: usize, outputs: usize, params: &Params) -> Result<Linear> {
    if adds {
        Linear::started(inputs, outputs, [Init::Constant(0.0), Init::Constant(0.0)], params)
    } else {
        Linear::new(inputs, outputs, params)
    }
}

impl Layers for Decision {
    /// The beam, or all that there is a choice of, `[rows, K 2 N_RX]`, and the feedback `[rows, F]`.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let state = e.input("state")?;
        let mut estimate = None;
        let x = match &self.blocks {
            None => state,
            Some((input, blocks, norm)) => {
                let measurements = e.input("measurements")?;
                let mut read = vec![measurements, state];
                if let Some(sparse) = &self.estimate {
                    let snr = e.input("snr")?;
                    read.push(estimate.insert(e.apply(sparse.clone(), &[&read[0], &snr])?).clone());
                }
                let x = e.join(&read)?;
                let mut x = e.linear(&x, input, Activation::None)?;
                for block in blocks {
                    x = block.forward(e, &x)?;
                }
                e.norm(&x, norm, Activation::None)?
            }
        };
        let mut beam = e.linear(&x, &self.beam, Activation::None)?;
        let mut feedback = e.linear(&x, &self.feedback, Activation::None)?;
        if let (Some(estimate), Some(sparse)) = (&estimate, &self.estimate) {
            let (told, beams) = (sparse.told(), self.config.candidates() * self.config.receive_width());
            feedback = if sparse.choices() > 0 {
                let logits = e.columns(estimate, beams, sparse.choices())?;
                e.add(&feedback, &logits)?
            } else {
                let paths = e.columns(estimate, 0, told)?;
                e.join(&[paths, feedback])?
            };
            let to_receive = e.columns(estimate, told, beams)?;
            beam = e.add(&beam, &to_receive)?;
        }
        let beam = e.norm(&beam, &self.unit, Activation::None)?;
        Ok(vec![Output::Floats(beam), Output::Floats(feedback)])
    }
}

impl Network<Decision> {
    /// The beams that there is a choice of `[rows, K, 2 N_RX]` and the feedback `[rows, F]`, from all measurements and the state side by side
    /// `[rows, R + hidden]` and an SNR for each row, with gradients.
    pub(super) fn decide(&self, seen: &Tensor, snr_db: &[f32], tapes: &Tapes) -> Result<[Tensor; 2]> {
        let config = &self.layers().config;
        let found = if config.pursuit().is_none() {
            self.feed(seen, tapes)?
        } else {
            let snr = Tensor::from_iter(snr_db.iter().map(|snr| snr / SNR_SCALE), &Device::Cpu)?.reshape(((), 1))?;
            self.feed(&Tensor::cat(&[seen, &snr.to_dtype(seen.dtype())?.to_device(seen.device())?], 1)?, tapes)?
        };
        let (candidates, width) = (config.candidates(), config.receive_width());
        let feedback = found.narrow(1, candidates * width, config.feedback_width())?.contiguous()?;
        let beams = found.narrow(1, 0, candidates * width)?.reshape(((), candidates, width))?;
        Ok([config.receive_weights.rounded(&beams)?, feedback])
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
    /// The beam of the paths that the feedback begins with, where it tells of an estimate.
    steered: Option<SteeredBeam>,
}

impl BaseStation {
    /// The network with parameters from `params`.
    pub(super) fn network(config: &BeamConfig, params: &Params) -> Result<Network<Self>> {
        let (inputs, width) = (config.feedback_width(), config.base);
        let steered = config.pursuit().map(|_| SteeredBeam::new(SparseChannel::TOLD, config.channel.transmit.elements())).transpose()?;
        let beam = head(steered.is_some(), width, config.transmit_width(), &params.pp("beam"))?;
        let layers = [Dense::new(inputs, width, &params.pp("layers.0"))?, Dense::new(width, width, &params.pp("layers.1"))?];
        let signature = Signature {
            inputs: vec![TensorSpec::f32("feedback", &[inputs])],
            outputs: vec![TensorSpec::f32("beam", &[config.transmit_width()])],
            state: Vec::new(),
        };
        let layers = Self { layers, unit: config.transmit_weights.norm(&beam, config.transmit_width())?, beam, steered };
        Network::of((FAMILY, config), signature, params.device(), layers)
    }
}

impl Layers for BaseStation {
    /// The beam `[rows, 2 N_TX]`.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let feedback = e.input("feedback")?;
        let x = self.layers[0].forward(e, &feedback)?;
        let x = self.layers[1].forward(e, &x)?;
        let mut x = e.linear(&x, &self.beam, Activation::None)?;
        if let Some(steered) = &self.steered {
            let paths = e.columns(&feedback, 0, steered.inputs())?;
            let told = e.apply(steered.clone(), &[&paths])?;
            x = e.add(&x, &told)?;
        }
        Ok(vec![Output::Floats(e.norm(&x, &self.unit, Activation::None)?)])
    }
}
