//! Beams from methods that learn nothing: bounds that no policy passes, and searches that it should beat.
//!
//! All of them give beams for a batch of channels; [`Beams::gains`] says what those are worth.

mod estimator;
mod genie;
mod omp;
mod search;

use super::array::Array;
use super::channel::{Channels, Link, noise_deviation};
use super::codebook::Codebook;
use super::{ChannelConfig, within};
use crate::Result;
use crate::random::Random;
pub use estimator::{Conclusion, Estimator, Measured, Posterior, Transmits};
pub use omp::Omp;
use rayon::prelude::*;
pub use search::Hierarchy;

/// Channels that one task of the thread pool takes.
const TASK: usize = 16;

/// A method that finds beams.
#[derive(Debug, Clone)]
pub enum Baseline {
    /// The dominant singular vectors of H: no beams have more gain.
    Genie,
    /// The codebook's transmit beam with the largest `||H f||`, received with maximum-ratio combining, both without noise: the
    /// ceiling of every scheme that transmits with one of those beams.
    Mrc(Codebook),
    /// Every pair of a transmit and a receive beam is measured, the strongest is taken.
    Exhaustive {
        /// Transmit beams.
        transmit: Codebook,
        /// Receive beams.
        receive: Codebook,
        /// Whether the measurements have noise.
        probing: Probing,
    },
    /// Bisection of both sides' sectors: at each level the strongest of the pairs of halves.
    Hierarchical(Hierarchy),
    /// The strongest of so many pairs of random beams, measured with noise. A single pair needs no measurement.
    Random(usize),
    /// Orthogonal matching pursuit on measurements with random beams, then the singular vectors of the estimate.
    Omp(Omp),
}

/// How a search measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probing {
    /// At the SNR of the trial.
    Noisy,
    /// Without noise: the bound of the search.
    Ideal,
}

/// The channels to find beams for, and the noise of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The channels.
    pub channels: &'a Channels,
    /// The step of the channels at which all measurements are made.
    pub step: usize,
    /// SNR of a measurement with unit-norm beams in dB: the noise has variance `1 / SNR`.
    pub snr_db: f32,
    /// Stream of the noise: that of channel b is number `first + b` below it.
    pub noise: Random,
    /// Number of the first channel.
    pub first: u64,
}

/// A pair of unit-norm beams for each channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Beams {
    /// Receive beams w `[B, N_RX, 2]`.
    pub receive: Vec<f32>,
    /// Transmit beams f `[B, N_TX, 2]`.
    pub transmit: Vec<f32>,
}

impl Beams {
    /// The gains `G = |w^H H f|^2` `[B]` on the channels at a step.
    ///
    /// # Panics
    /// If the beams are for other channels, or there is no such step.
    pub fn gains(&self, channels: &Channels, step: usize) -> Vec<f32> {
        let (rx, tx) = (2 * channels.receive_elements(), 2 * channels.transmit_elements());
        assert_eq!((self.receive.len(), self.transmit.len()), (channels.batch() * rx, channels.batch() * tx), "beams of other channels");
        let pairs = self.receive.par_chunks(rx).zip(self.transmit.par_chunks(tx));
        pairs.enumerate().with_min_len(TASK).map(|(b, (w, f))| channels.at(b, step).gain(w, f)).collect()
    }
}

impl Baseline {
    /// The baselines of the beam family's tables for a channel: genie, full DFT codebook with maximum-ratio combining, exhaustive
    /// search over both full DFT codebooks without and with noise, bisection, matching pursuit on 16 measurements, and one
    /// random pair.
    ///
    /// # Errors
    /// A configuration out of range.
    pub fn standard(config: &ChannelConfig) -> Result<Vec<Self>> {
        config.validate()?;
        let full = |array: &Array| {
            let (rows, columns) = array.shape();
            Codebook::dft(array, rows, columns)
        };
        let (transmit, receive) = (full(&config.transmit)?, full(&config.receive)?);
        let exhaustive = |probing| Self::Exhaustive { transmit: transmit.clone(), receive: receive.clone(), probing };
        Ok(vec![
            Self::Genie,
            Self::Mrc(transmit.clone()),
            exhaustive(Probing::Ideal),
            exhaustive(Probing::Noisy),
            Self::Hierarchical(Hierarchy::new(&config.transmit, &config.receive)?),
            Self::Omp(Omp::new(&config.transmit, &config.receive, 16, 3)?),
            Self::Random(1),
        ])
    }

    /// What tables and plots call it.
    pub fn name(&self) -> String {
        match self {
            Self::Genie => "SVD genie".into(),
            Self::Mrc(codebook) => format!("best of {} transmit beams + ideal MRC", codebook.count()),
            Self::Exhaustive { probing: Probing::Noisy, .. } => format!("exhaustive, {} probes", self.probes()),
            Self::Exhaustive { probing: Probing::Ideal, .. } => format!("exhaustive, {} probes, noiseless", self.probes()),
            Self::Hierarchical(_) => format!("hierarchical bisection, {} probes", self.probes()),
            Self::Random(1) => "random beams".into(),
            Self::Random(pairs) => format!("best of {pairs} random pairs"),
            Self::Omp(omp) => format!("OMP + SVD, {} probes", omp.probes()),
        }
    }

    /// Measurements for one channel; 0 where the channel is known, or nothing is.
    pub fn probes(&self) -> usize {
        match self {
            Self::Genie | Self::Mrc(_) | Self::Random(1) => 0,
            Self::Exhaustive { transmit, receive, .. } => transmit.count() * receive.count(),
            Self::Hierarchical(hierarchy) => hierarchy.probes(),
            Self::Random(pairs) => *pairs,
            Self::Omp(omp) => omp.probes(),
        }
    }

    /// Beams for every channel of a trial; the same for any number of threads.
    ///
    /// # Errors
    /// An SNR that is not finite, no random pair, a codebook for another number of elements than the channels' arrays have.
    pub fn beams(&self, trial: &Trial) -> Result<Beams> {
        let (n_rx, n_tx) = (trial.channels.receive_elements(), trial.channels.transmit_elements());
        match self {
            Self::Genie => trial.each(|probe, w, f| genie::singular_vectors(&probe.link, w, f)),
            Self::Mrc(codebook) => {
                codebook.check_elements("transmit", n_tx)?;
                trial.each(|probe, w, f| search::best_with_mrc(codebook, &probe.link, w, f))
            }
            Self::Exhaustive { transmit, receive, probing } => {
                transmit.check_elements("transmit", n_tx)?;
                receive.check_elements("receive", n_rx)?;
                trial.each(|probe, w, f| search::exhaustive(transmit, receive, &probe.with(*probing), w, f))
            }
            Self::Hierarchical(hierarchy) => {
                hierarchy.check(n_rx, n_tx)?;
                trial.each(|probe, w, f| hierarchy.search(probe, w, f))
            }
            Self::Random(pairs) => {
                within("pairs", *pairs, 1..=1 << 20)?;
                trial.each(|probe, w, f| search::random(*pairs, probe, w, f))
            }
            Self::Omp(omp) => {
                omp.check(n_rx, n_tx)?;
                trial.each(|probe, w, f| omp.search(probe, w, f))
            }
        }
    }
}

/// One channel to measure.
#[derive(Debug, Clone, Copy)]
struct Probe<'a> {
    link: Link<'a>,
    noise: Random,
    deviation: f32,
}

impl Probe<'_> {
    fn with(mut self, probing: Probing) -> Self {
        if probing == Probing::Ideal {
            self.deviation = 0.;
        }
        self
    }

    /// Measurement number `index`: the signal with noise.
    fn noisy(&self, index: usize, [re, im]: [f32; 2]) -> [f32; 2] {
        if self.deviation == 0. {
            return [re, im];
        }
        let noise = |part: u64| self.deviation * self.noise.normal(2 * index as u64 + part);
        [re + noise(0), im + noise(1)]
    }
}

impl Trial<'_> {
    /// Beams of every channel from a method that writes w and f.
    fn each(&self, find: impl Fn(&Probe, &mut [f32], &mut [f32]) + Sync) -> Result<Beams> {
        let deviation = noise_deviation(self.snr_db)?;
        if self.channels.steps() > 1 {
            within("step", self.step, 0..=self.channels.steps() - 1)?;
        }
        let (rx, tx) = (2 * self.channels.receive_elements(), 2 * self.channels.transmit_elements());
        let zeros = |width: usize| vec![0.; self.channels.batch() * width];
        let mut beams = Beams { receive: zeros(rx), transmit: zeros(tx) };
        let pairs = beams.receive.par_chunks_mut(rx).zip(beams.transmit.par_chunks_mut(tx));
        pairs.enumerate().with_min_len(TASK).for_each(|(b, (w, f))| {
            let noise = self.noise.at(self.first.wrapping_add(b as u64));
            find(&Probe { link: self.channels.at(b, self.step), noise, deviation }, w, f);
        });
        Ok(beams)
    }
}

#[cfg(test)]
mod tests;
