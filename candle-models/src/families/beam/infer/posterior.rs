//! Final beams by what the measurements say of the channel, in place of the networks that decide.

use super::episode::Episode;
use super::sweeps::Sweeps;
use crate::Result;
use crate::families::beam::baselines::{Estimator, Measured, Transmits};
use crate::families::beam::channel::noise_power;
use crate::families::beam::{Beam, BeamConfig};
use crate::random::Random;
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// An estimator in the place of a controller's networks.
pub struct ByPosterior {
    estimator: Estimator,
    transmits: Transmits,
    random: Random,
}

impl ByPosterior {
    /// For the measurements of this controller.
    ///
    /// # Errors
    /// Channels whose posterior is not known: the field is named.
    pub fn new(beam: &Beam, random: Random) -> Result<Self> {
        let estimator = Estimator::new(&beam.config.channel, beam.sweep()?)?;
        Ok(Self { estimator, transmits: Transmits::of(beam.config.scheme), random: random.stream("posterior") })
    }

    /// Decides sweeps from this one on, whose measurements are made, with beams as the arrays form them. Says how long it took, summed over threads.
    ///
    /// # Errors
    /// Numbers that are not finite.
    pub fn decide(&self, config: &BeamConfig, sweeps: &Sweeps, first: usize, episodes: &mut [Episode]) -> Result<Duration> {
        let one = |(row, episode): (usize, &mut Episode)| {
            let (begun, sweep) = (Instant::now(), first + row);
            let sent = sweeps.sent(sweep, config);
            let noise = noise_power(sweeps.snr_db[sweep])?;
            let measured = Measured { beams: &episode.beams, sent: &sent, values: &episode.measurements, noise };
            let found = self.estimator.conclude(&measured, self.transmits, self.random.at(sweep as u64))?;
            (episode.receive, episode.transmit, episode.index) = (found.receive, found.transmit, found.index.map(|i| i as u32));
            config.receive_weights.round(&mut episode.receive);
            if episode.index.is_none() {
                config.transmit_weights.round(&mut episode.transmit);
            }
            Ok(begun.elapsed())
        };
        episodes.par_iter_mut().enumerate().map(one).sum()
    }
}
