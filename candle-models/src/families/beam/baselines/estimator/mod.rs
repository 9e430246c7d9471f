//! What the measurements of an episode say about its channel: the posterior under the channel's own statistics, by sequential Monte
//! Carlo (Del Moral, Doucet and Jasra 2006). It takes milliseconds where a network takes microseconds; the beams that it chooses show what
//! the measurements carry, and so what a controller loses in its decision and what in its measurements.
//!
//! Given the directions of the L paths, T measurements are linear in the gains, which integrate out:
//!
//! ```text
//! Phi[t, l] = (w_t^H a_rx,l) (a_tx,l^H f_t)          y ~ CN(0, p Phi Phi^H + s I)
//! ```
//!
//! with p the mean power of a gain and s that of the noise. So a particle is L pairs of directions. Particles start from the prior while
//! the noise is taken to be as strong as what was received; it falls to its own power in stages, and at each the particles are weighted,
//! drawn anew by their weights, and moved by Metropolis and Hastings.

mod beams;
mod draws;
mod particles;
mod responses;

use super::super::channel::{ChannelConfig, ChannelModel, Channels, Geometric, PathParameters};
use super::super::complex::squared_norm;
use super::super::{Array, Codebook, Scheme, within};
use crate::random::Random;
use crate::{Error, Result};
use draws::Draws;
use particles::{LANES, Level, Particles, Problem, Workspace};
use responses::Responses;

/// Groups of particles.
const GROUPS: usize = 256 / LANES;
/// Stages in which the noise falls.
const STAGES: usize = 60;
/// Moves of a particle in a stage, and behind the last.
const MOVES: [usize; 2] = [6, 24];

/// A user that knows the statistics of its channels and has time.
pub struct Estimator {
    paths: usize,
    /// Mean power of a gain.
    power: f64,
    /// Largest azimuth to either side, in radians.
    azimuth: f32,
    receive: Array,
    transmit: Array,
    swept: Codebook,
    /// `f_c^H a_tx` of all beams of the codebook.
    sent: Responses,
}

/// The measurements of an episode.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// The unit-norm beams that were received with, `[T, N_RX, 2]`.
    pub beams: &'a [f32],
    /// The number of the beam that each was sent with, `[T]`.
    pub sent: &'a [usize],
    /// What was measured, `[T, 2]`.
    pub values: &'a [f32],
    /// Power of the noise.
    pub noise: f64,
}

/// Which transmit beams there are to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmits {
    /// All.
    Any,
    /// Those of the codebook that was swept.
    Swept,
}

impl Transmits {
    /// Those that a controller's base station can be asked for, whatever its array can form.
    pub fn of(scheme: Scheme) -> Self {
        if scheme == Scheme::C1 { Self::Swept } else { Self::Any }
    }
}

/// A pair of unit-norm beams.
#[derive(Debug, Clone, PartialEq)]
pub struct Conclusion {
    /// The receive beam `[N_RX, 2]`.
    pub receive: Vec<f32>,
    /// The transmit beam `[N_TX, 2]`.
    pub transmit: Vec<f32>,
    /// The number of the transmit beam in the codebook, where only those of the codebook were to choose from.
    pub index: Option<usize>,
    /// The mean of `10 log10 G` over the posterior.
    pub expected_db: f64,
}

/// Paths of channels that are as likely as the measurements let them be.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    paths: usize,
    gains: Vec<f32>,
    arrival: Vec<f32>,
    departure: Vec<f32>,
}

impl Posterior {
    /// Channels of one step, each with the paths of a draw.
    pub fn parameters(&self) -> PathParameters<'_> {
        let batch = self.gains.len() / (2 * self.paths);
        PathParameters { batch, steps: 1, paths: self.paths, gains: &self.gains, arrival: &self.arrival, departure: &self.departure }
    }
}

impl Estimator {
    /// For channels of a configuration whose transmit beams were those of a codebook.
    ///
    /// # Errors
    /// Channels whose posterior this does not know: the field is named. It knows linear arrays, and paths in the plane that are alike and
    /// stay as they are.
    pub fn new(channel: &ChannelConfig, swept: Codebook) -> Result<Self> {
        let unknown = |field: &str, found: &str| Err(Error::config(field, format!("the posterior is not known with {found}")));
        for (field, array) in [("transmit", &channel.transmit), ("receive", &channel.receive)] {
            array.validate(field)?;
            if !matches!(array, Array::Ula { .. }) {
                return unknown(field, "a planar array");
            }
        }
        let ChannelModel::Geometric(Geometric { paths, azimuth, elevation, rician_db, normalise }) = channel.model else {
            return unknown("model", "a clustered delay line");
        };
        if elevation != 0.0 {
            return unknown("model.elevation", "elevations");
        }
        if rician_db.is_some() {
            return unknown("model.rician_db", "a line of sight");
        }
        if channel.mobility.is_some() {
            return unknown("mobility", "mobility");
        }
        swept.check_elements("codebook", channel.transmit.elements())?;
        Ok(Self {
            paths,
            power: if normalise { 1.0 / paths as f64 } else { 1.0 },
            azimuth: azimuth.to_radians(),
            receive: channel.receive,
            transmit: channel.transmit,
            sent: Responses::new(&channel.transmit, swept.beams()),
            swept,
        })
    }

    /// The beams with the largest mean of `log G` over the posterior. The same `random` gives the same beams.
    ///
    /// # Errors
    /// No measurements, lengths that do not fit each other, a beam that is not in the codebook, a noise that is not above 0.
    pub fn conclude(&self, measured: &Measured, transmits: Transmits, random: Random) -> Result<Conclusion> {
        self.beams(&self.posterior(measured, random)?, transmits)
    }

    /// The beams with the largest mean of `log G` over draws of the posterior.
    ///
    /// # Errors
    /// As [`Channels::from_paths`].
    pub fn beams(&self, posterior: &Posterior, transmits: Transmits) -> Result<Conclusion> {
        let channels = Channels::from_paths(&self.receive, &self.transmit, &posterior.parameters())?;
        Ok(match transmits {
            Transmits::Any => beams::best_pair(&channels),
            Transmits::Swept => beams::best_of(&channels, &self.swept),
        })
    }

    fn check(&self, measured: &Measured) -> Result<()> {
        let steps = measured.sent.len();
        within("measurements", steps, 1..=1024)?;
        let widths = [("beams", measured.beams.len(), 2 * self.receive.elements()), ("values", measured.values.len(), 2)];
        for (name, found, width) in widths {
            if found != steps * width {
                return Err(Error::tensor(name, format!("[{steps}, {width}]"), format!("{found} numbers")));
            }
        }
        if let Some(index) = measured.sent.iter().find(|index| **index >= self.swept.count()) {
            return Err(Error::Input(format!("sent: {index} in a codebook of {} beams", self.swept.count())));
        }
        let finite = measured.beams.iter().chain(measured.values).all(|x| x.is_finite()) && measured.noise.is_finite();
        if !(finite && measured.noise > 0.0) {
            return Err(Error::Input("measurements: expected finite numbers and a noise above 0".to_owned()));
        }
        Ok(())
    }

    /// Channels drawn from the posterior, one for each particle. The same `random` gives those that [`Estimator::conclude`] goes by.
    ///
    /// # Errors
    /// As [`Estimator::conclude`].
    pub fn posterior(&self, measured: &Measured, random: Random) -> Result<Posterior> {
        self.check(measured)?;
        let mut draws = Draws::new(random);
        let (steps, energy) = (measured.sent.len(), squared_norm(measured.values));
        let heard = Responses::new(&self.receive, measured.beams);
        let mut values = vec![0.0; 2 * heard.width()];
        for (t, value) in measured.values.chunks_exact(2).enumerate() {
            [values[t], values[heard.width() + t]] = [value[0], value[1]];
        }
        let sent = self.sent.of(measured.sent);
        let problem = Problem { paths: self.paths, power: self.power, azimuth: self.azimuth, steps, heard, sent, values, energy };
        let loudest = (energy / steps as f64).max(10.0 * measured.noise);
        let mut work = Workspace::new(&problem);
        let mut particles = Particles::drawn(&problem, GROUPS, &mut draws, &mut work);
        for stage in 0..=STAGES {
            let level = Level::new(loudest * (measured.noise / loudest).powf(stage as f64 / STAGES as f64));
            particles.resample(&problem, level, &mut draws, &mut work);
            for step in 0..MOVES[usize::from(stage == STAGES)] {
                particles.step(&problem, (stage + step) % self.paths, level, &mut draws, &mut work);
            }
        }
        let gains = particles.gains(&problem, Level::new(measured.noise), &mut draws, &mut work);
        let [arrival, departure] = [0, 1].map(|side| particles.directions(side, self.paths));
        Ok(Posterior { paths: self.paths, gains, arrival, departure })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::CodebookConfig;
    use super::super::super::metrics::decibels;
    use super::super::genie;
    use super::*;

    fn channel(edit: impl Fn(&mut Geometric)) -> ChannelConfig {
        let mut model = Geometric::default();
        edit(&mut model);
        ChannelConfig { model: ChannelModel::Geometric(model), ..ChannelConfig::default() }
    }

    /// For so many channels what the estimator concludes from 16 measurements with random beams at both ends, what that gains, and the
    /// genie's gain, both in dB.
    fn conclusions(config: &ChannelConfig, transmits: Transmits, snr_db: f32, count: usize) -> Vec<(Conclusion, f64, f64)> {
        let swept = Codebook::generate(&CodebookConfig::Random { count: 8, seed: 1 }, &config.transmit).unwrap();
        let heard = Codebook::generate(&CodebookConfig::Random { count: 16, seed: 2 }, &config.receive).unwrap();
        let estimator = Estimator::new(config, swept.clone()).unwrap();
        let channels = Channels::generate(config, Random::new(3), 0, count, 1).unwrap();
        let sent: Vec<usize> = (0..16).map(|t| t % 8).collect();
        let noise = 10f64.powf(-f64::from(snr_db) / 10.0);
        let one = |b: usize| {
            let (link, mut values) = (channels.at(b, 0), vec![0.0; 32]);
            Random::new(4).at(b as u64).fill_normal(0, &mut values);
            for (t, value) in values.chunks_exact_mut(2).enumerate() {
                let signal = link.measure(heard.beam(t), swept.beam(sent[t]));
                value.iter_mut().zip(signal).for_each(|(n, s)| *n = s + (noise / 2.0).sqrt() as f32 * *n);
            }
            let measured = Measured { beams: heard.beams(), sent: &sent, values: &values, noise };
            let conclude = || estimator.conclude(&measured, transmits, Random::new(5).at(b as u64)).unwrap();
            let found = conclude();
            assert!(b > 0 || found == conclude(), "two runs differ");
            let (mut w, mut f) = (vec![0.0; 32], vec![0.0; 64]);
            genie::singular_vectors(&link, &mut w, &mut f);
            let [gain, bound] = [link.gain(&found.receive, &found.transmit), link.gain(&w, &f)].map(decibels);
            (found, gain, bound)
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn a_path_that_is_heard_well_is_found() {
        for normalise in [false, true] {
            let config = channel(|model| (model.paths, model.normalise) = (1, normalise));
            for (found, gain, bound) in conclusions(&config, Transmits::Any, 30.0, 8) {
                assert!(bound - gain < 0.1 && (found.expected_db - gain).abs() < 0.5, "{gain} of {bound}, expected {}", found.expected_db);
            }
        }
    }

    /// A posterior that is right expects of its beams on average what they gain.
    #[test]
    fn what_is_expected_is_what_is_gained() {
        let links = 48;
        for (transmits, snr_db) in [(Transmits::Any, 10.0), (Transmits::Swept, 0.0)] {
            let found = conclusions(&channel(|_| {}), transmits, snr_db, links);
            let differences: Vec<f64> = found.iter().map(|(found, gain, _)| found.expected_db - gain).collect();
            let mean = differences.iter().sum::<f64>() / links as f64;
            let error = (differences.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (links - 1) as f64 / links as f64).sqrt();
            assert!(mean.abs() < 3.0 * error + 0.2, "{transmits:?}: {mean} +- {error} dB");
            assert!(found.iter().all(|(_, gain, bound)| *gain < bound + 1e-3));
        }
    }

    #[test]
    fn what_it_does_not_know_is_named() {
        let swept = |array: &Array| Codebook::generate(&CodebookConfig::Random { count: 3, seed: 1 }, array).unwrap();
        let usual = ChannelConfig::default();
        let cases = [
            (ChannelConfig { receive: Array::Planar { rows: 2, columns: 4 }, ..usual.clone() }, "receive"),
            (ChannelConfig { mobility: Some(super::super::super::Mobility { doppler: 0.1, drift: 0.0 }), ..usual.clone() }, "mobility"),
            (channel(|model| model.elevation = 10.0), "model.elevation"),
            (channel(|model| model.rician_db = Some(3.0)), "model.rician_db"),
        ];
        for (config, field) in cases {
            let message = Estimator::new(&config, swept(&config.transmit)).err().unwrap().to_string();
            assert!(message.starts_with(&format!("config: {field}: ")), "{message}");
        }
        assert!(Estimator::new(&usual, swept(&usual.receive)).err().unwrap().to_string().contains("codebook"));
        let estimator = Estimator::new(&usual, swept(&usual.transmit)).unwrap();
        let good = Measured { beams: &[0.5; 32], sent: &[2], values: &[1.0, 0.0], noise: 0.1 };
        let cases = [
            (Measured { sent: &[], ..good }, "measurements"),
            (Measured { beams: &[0.5; 30], ..good }, "beams"),
            (Measured { values: &[1.0], ..good }, "values"),
            (Measured { values: &[f32::NAN, 0.0], ..good }, "finite"),
            (Measured { noise: 0.0, ..good }, "noise"),
            (Measured { sent: &[3], ..good }, "codebook of 3"),
        ];
        for (measured, what) in cases {
            let message = estimator.conclude(&measured, Transmits::Any, Random::new(1)).unwrap_err().to_string();
            assert!(message.contains(what), "{message}");
        }
    }
}
