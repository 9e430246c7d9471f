//! A sweep as the user's side lives it: one measurement after the other.

use super::complex::product;
use super::config::BeamConfig;
use super::episode::reference;
use super::user::{Observation, SNR_SCALE};
use super::{Beam, within};
use crate::{Error, Result};

/// What a user remembers of a sweep beside the state of its network. For every measurement: receive with [`Self::beam`] what the base
/// station sends with beam [`Self::transmitted`] of its codebook, [`observe`](Self::observe) it, run the user's network on the features,
/// and [`follow`](Self::follow) the beam that it gives. Behind the last one the decision's network reads [`Self::measurements`], the
/// state and, where it begins with an estimate, [`Self::snr`].
#[derive(Debug, Clone)]
pub struct Sounder {
    config: BeamConfig,
    start: u32,
    step: usize,
    reference: [f32; 2],
    beam: Vec<f32>,
    measurements: Vec<f32>,
    snr: f32,
}

impl Sounder {
    /// A sweep from beam `start` of the codebook on.
    ///
    /// # Errors
    /// If the codebook has no such beam.
    pub fn new(model: &Beam, start: u32) -> Result<Self> {
        let config = model.config.clone();
        within("start", start as usize, 0..=config.codebook.count() - 1)?;
        let (beam, measurements) = (model.first_beam()?.flatten_all()?.to_vec1()?, vec![0.0; config.record()]);
        Ok(Self { config, start, step: 0, reference: [1.0, 0.0], beam, measurements, snr: 0.0 })
    }

    /// The beam to receive with, `[N_RX, 2]`.
    pub fn beam(&self) -> &[f32] {
        &self.beam
    }

    /// The number of the beam that the base station sends with.
    pub fn transmitted(&self) -> usize {
        self.config.sent(self.start, self.step)
    }

    /// How many measurements there were.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Takes in what was received, `[re, im]`, in units in which a path has power one, and writes what the user's network reads.
    ///
    /// # Errors
    /// A number that is not finite, one measurement too many, or features of another length.
    pub fn observe(&mut self, measurement: [f32; 2], snr_db: f32, features: &mut [f32]) -> Result<()> {
        let step = self.step;
        if measurement.iter().chain([&snr_db]).any(|x| !x.is_finite()) {
            return Err(Error::Input(format!("measurement {step}: expected finite numbers, found {measurement:?} at {snr_db} dB")));
        }
        within("measurements", step + 1, 1..=self.config.measurements)?;
        if features.len() != self.config.features() {
            return Err(Error::tensor("features", format!("[{}]", self.config.features()), format!("[{}]", features.len())));
        }
        if step == 0 {
            self.reference = reference(self.config.view, measurement);
        }
        let (measurement, seen) = (product(measurement, self.reference), self.config.seen(self.start, step));
        let observed = Observation { measurement, beam: &self.beam, index: self.transmitted(), seen, step, snr_db };
        observed.write_antennas(&mut self.measurements[self.config.record_place(step, seen)]);
        observed.write(&self.config, features);
        self.snr = snr_db / SNR_SCALE;
        self.step += 1;
        Ok(())
    }

    /// Goes on with the beam that the user's network gave, as far as the array can form it.
    ///
    /// # Errors
    /// A beam of another length, or one that is not finite.
    pub fn follow(&mut self, beam: &[f32]) -> Result<()> {
        if beam.len() != self.beam.len() {
            return Err(Error::tensor("beam", format!("[{}]", self.beam.len()), format!("[{}]", beam.len())));
        }
        if let Some(i) = beam.iter().position(|x| !x.is_finite()) {
            return Err(Error::tensor("beam", "finite numbers", format!("{} at {i}", beam[i])));
        }
        self.beam.copy_from_slice(beam);
        self.config.receive_weights.round(&mut self.beam);
        Ok(())
    }

    /// All measurements in antenna space, zero where there was none yet.
    pub fn measurements(&self) -> &[f32] {
        &self.measurements
    }

    /// The signal-to-noise ratio of the last measurement, in dB over 30.
    pub fn snr(&self) -> f32 {
        self.snr
    }

    /// The beam to transmit with, from the one that the base station's network gave, which sees every sweep from its start.
    ///
    /// # Errors
    /// A beam of another length.
    pub fn transmit(&self, beam: &mut [f32]) -> Result<()> {
        if beam.len() != self.config.transmit_width() {
            return Err(Error::tensor("beam", format!("[{}]", self.config.transmit_width()), format!("[{}]", beam.len())));
        }
        if self.config.is_relative() {
            for (x, phase) in beam.chunks_exact_mut(2).zip(self.config.shift(self.start).chunks_exact(2)) {
                x.copy_from_slice(&product([x[0], x[1]], [phase[0], phase[1]]));
            }
        }
        self.config.transmit_weights.round(beam);
        Ok(())
    }
}
