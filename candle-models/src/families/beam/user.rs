//! The user's network while it measures: a measurement in, the next beam out.

use super::FAMILY;
use super::config::{BeamConfig, MemoryConfig, View};
use crate::Result;
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Gru, Linear, Mamba, Norm, Params};
use crate::ops::Activation;
use crate::signature::{Signature, TensorSpec};

enum Memory {
    Gru(Vec<Gru>),
    /// The layer in front, the blocks and the norm behind them.
    Mamba(Linear, Vec<Mamba>, Norm),
}

/// The layers of the user's network while it measures: a measurement in, the next beam and the state out.
pub struct UserEquipment {
    memory: Memory,
    beam: Linear,
    unit: Norm,
}

/// What measurements are multiplied by, so that inputs have a size of about one.
pub(super) const SCALE: f32 = 0.4;
/// The same for measurements in antenna space, where a beam's numbers are a quarter.
pub(super) const ANTENNA_SCALE: f32 = 2.4;

/// The signal-to-noise ratio in dB that the networks read as 1.
pub(super) const SNR_SCALE: f32 = 30.0;

/// A measurement as the user's network sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation<'a> {
    /// What was received, `[re, im]`, turned to the reference.
    pub measurement: [f32; 2],
    /// The beam that it was received with, `[N_RX, 2]`.
    pub beam: &'a [f32],
    /// The number of the beam that it was sent with.
    pub index: usize,
    /// The number under which the networks see that beam.
    pub seen: usize,
    /// How many measurements there were before.
    pub step: usize,
    /// Signal-to-noise ratio in dB.
    pub snr_db: f32,
}

impl Observation<'_> {
    /// Writes what the network reads: see [`View`].
    pub fn write(&self, config: &BeamConfig, features: &mut [f32]) {
        let [re, im] = self.measurement;
        if config.view == View::Scalars {
            features.copy_from_slice(&[re, im, self.index as f32]);
            return;
        }
        features.fill(0.0);
        let (antennas, rest) = features.split_at_mut(config.codebook.count() * self.beam.len());
        self.write_antennas(&mut antennas[self.seen * self.beam.len()..][..self.beam.len()]);
        rest[..2].copy_from_slice(&[SCALE * re, SCALE * im]);
        rest[2 + self.index] = 1.0;
        let [progress, snr] = &mut rest[2 + config.codebook.count()..] else { return };
        *progress = self.step as f32 / (config.measurements.max(2) - 1) as f32;
        *snr = self.snr_db / SNR_SCALE;
    }

    /// Writes the measurement in antenna space, `y w`.
    pub fn write_antennas(&self, to: &mut [f32]) {
        let [re, im] = self.measurement.map(|y| ANTENNA_SCALE * y);
        for (to, w) in to.chunks_exact_mut(2).zip(self.beam.chunks_exact(2)) {
            (to[0], to[1]) = (re * w[0] - im * w[1], re * w[1] + im * w[0]);
        }
    }
}

impl UserEquipment {
    /// The network with parameters from `params`.
    pub(super) fn network(config: &BeamConfig, params: &Params) -> Result<Network<Self>> {
        let (features, width) = (config.features(), config.hidden);
        let mut state = Vec::new();
        let memory = match &config.memory {
            MemoryConfig::Gru { layers } => {
                let gru = |i: usize| Gru::new(if i == 0 { features } else { width }, width, &params.pp(format!("memory.{i}")), &mut state);
                Memory::Gru((0..*layers).map(gru).collect::<Result<_>>()?)
            }
            MemoryConfig::Mamba { layers, block } => {
                let input = Linear::new(features, width, &params.pp("input"))?;
                let mamba = |i: usize| Mamba::new(width, block, &params.pp(format!("memory.{i}")), &mut state);
                Memory::Mamba(input, (0..*layers).map(mamba).collect::<Result<_>>()?, Norm::rms(width, &params.pp("norm"))?)
            }
        };
        let signature = Signature {
            inputs: vec![TensorSpec::f32("features", &[features])],
            outputs: vec![TensorSpec::f32("beam", &[config.receive_width()]), TensorSpec::f32("state", &[width])],
            state,
        };
        let beam = Linear::new(width, config.receive_width(), &params.pp("beam"))?;
        let layers = Self { memory, unit: config.receive_weights.norm(&beam, config.receive_width())?, beam };
        Network::of((FAMILY, config), signature, params.device(), layers)
    }

    /// The next beam `[rows, 2 N_RX]` and the state `[rows, hidden]`.
    pub(super) fn forward<E: Executor>(&self, e: &mut E) -> Result<[E::V; 2]> {
        let mut x = e.input("features")?;
        match &self.memory {
            Memory::Gru(layers) => {
                for layer in layers {
                    x = layer.forward(e, &x)?;
                }
            }
            Memory::Mamba(input, blocks, norm) => {
                x = e.linear(&x, input, Activation::None)?;
                for block in blocks {
                    x = block.forward(e, &x)?;
                }
                x = e.norm(&x, norm, Activation::None)?;
            }
        }
        let beam = e.linear(&x, &self.beam, Activation::None)?;
        let beam = e.norm(&beam, &self.unit, Activation::None)?;
        Ok([beam, x])
    }
}

impl Layers for UserEquipment {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        Ok(self.forward(e)?.map(Output::Floats).into())
    }
}
