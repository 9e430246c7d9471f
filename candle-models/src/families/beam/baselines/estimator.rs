//! What the measurements of an episode say about its channel: the posterior under the channel's own statistics, by sequential Monte
//! Carlo (Del Moral, Doucet and Jasra 2006). It takes thousands of times as long as a network; the beams that it would choose show what
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

use super::super::channel::{ChannelConfig, ChannelModel, Channels, Geometric, PathParameters};
use super::super::complex::{Complex, add_scaled, inner, inner_f64, normalise, product, squared_norm};
use super::super::metrics::decibels;
use super::super::{Array, Codebook, within};
use super::genie;
use crate::random::Random;
use crate::{Error, Result};

/// Particles.
const PARTICLES: usize = 256;
/// Stages in which the noise falls.
const STAGES: usize = 120;
/// Moves of a particle in a stage, and behind the last.
const MOVES: [usize; 2] = [6, 24];
/// Points of a table of responses for each element of an array: from one to the next the phase of the last element turns by pi / 64.
const FINENESS: usize = 128;
/// Steps of the search for a beam, and turns of the search for a pair.
const CLIMB: [usize; 2] = [24, 4];
/// Draws of the posterior from whose own best beams the search for a pair starts.
const STARTS: usize = 3;

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

/// A pair of unit-norm beams.
#[derive(Debug, Clone, PartialEq)]
pub struct Conclusion {
    /// The receive beam `[N_RX, 2]`.
    pub receive: Vec<f32>,
    /// The transmit beam `[N_TX, 2]`.
    pub transmit: Vec<f32>,
    /// The mean of `10 log10 G` over the posterior.
    pub expected_db: f64,
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
        self.check(measured)?;
        let channels = self.posterior(measured, &mut Draws { random, next: 0 })?;
        if transmits == Transmits::Any {
            return Ok(best_pair(&channels));
        }
        let with = |c: usize| {
            let (receive, expected_db) = strongest(&received(&channels, self.swept.beam(c)), self.receive.elements());
            Conclusion { receive, transmit: self.swept.beam(c).to_vec(), expected_db }
        };
        Ok((1..self.swept.count()).map(with).fold(with(0), better))
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

    /// Channels drawn from the posterior, one for each particle.
    fn posterior(&self, measured: &Measured, draws: &mut Draws) -> Result<Channels> {
        let problem = Problem { of: self, measured, heard: Responses::new(&self.receive, measured.beams) };
        let received = squared_norm(measured.values) / measured.sent.len() as f64;
        let loudest = received.max(10.0 * measured.noise);
        let mut particles: Vec<Particle> = (0..PARTICLES).map(|_| problem.drawn(draws)).collect();
        for stage in 0..=STAGES {
            let noise = loudest * (measured.noise / loudest).powf(stage as f64 / STAGES as f64);
            let weight = |particle: &mut Particle| {
                let likelihood = problem.likelihood(particle, noise);
                likelihood - std::mem::replace(&mut particle.likelihood, likelihood)
            };
            let weights: Vec<f64> = particles.iter_mut().map(weight).collect();
            particles = resampled(&particles, &weights, draws.uniform());
            for particle in &mut particles {
                for step in 0..MOVES[usize::from(stage == STAGES)] {
                    problem.step(particle, (stage + step) % self.paths, noise, draws);
                }
            }
        }
        let gains: Vec<f32> = particles.iter().flat_map(|particle| problem.gains(particle, draws)).collect();
        let angles = |side: usize| particles.iter().flat_map(|p| &p.angles).flat_map(|angles| [angles[side], 0.0]).collect::<Vec<_>>();
        let given =
            PathParameters { batch: PARTICLES, steps: 1, paths: self.paths, gains: &gains, arrival: &angles(0), departure: &angles(1) };
        Channels::from_paths(&self.receive, &self.transmit, &given)
    }
}

/// What an array's beams receive from everywhere: `b^H a(u)` for direction cosines u from -1 to 1.
struct Responses {
    beams: usize,
    points: usize,
    /// `[points + 1, beams, 2]`.
    values: Vec<f32>,
}

impl Responses {
    /// Of beams `[beams, N, 2]`.
    fn new(array: &Array, beams: &[f32]) -> Self {
        let (width, points) = (2 * array.elements(), FINENESS * array.elements());
        let mut steering = vec![0.0; width];
        let mut values = Vec::with_capacity((points + 1) * beams.len() / width * 2);
        for point in 0..=points {
            array.response(2.0 * point as f64 / points as f64 - 1.0, 0.0, &mut steering);
            values.extend(beams.chunks_exact(width).flat_map(|beam| inner(beam, &steering)));
        }
        Self { beams: beams.len() / width, points, values }
    }

    /// The responses of all beams between two points, by a straight line.
    fn at(&self, azimuth: f32) -> impl Fn(usize) -> [f32; 2] {
        let place = (azimuth.sin() + 1.0) / 2.0 * self.points as f32;
        let low = (place as usize).min(self.points - 1);
        let (share, width) = (place - low as f32, 2 * self.beams);
        let (below, above) = self.values[low * width..][..2 * width].split_at(width);
        move |beam| [0, 1].map(|part| below[2 * beam + part] + share * (above[2 * beam + part] - below[2 * beam + part]))
    }
}

/// Directions of all paths, and what the likelihood reads of them.
#[derive(Debug, Clone)]
struct Particle {
    /// Azimuths of arrival and departure in radians, `[L]`.
    angles: Vec<[f32; 2]>,
    /// Phi, column by column: `[L, T, 2]`.
    columns: Vec<f32>,
    /// `Phi^H Phi`, `[L, L]`.
    gram: Vec<Complex>,
    /// `Phi^H y`, `[L]`.
    right: Vec<Complex>,
    /// The logarithm of the likelihood at the noise at hand, but for a constant.
    likelihood: f64,
}

/// An estimator at the measurements of an episode.
struct Problem<'a> {
    of: &'a Estimator,
    measured: &'a Measured<'a>,
    /// `w_t^H a_rx` of all measurements.
    heard: Responses,
}

impl Problem<'_> {
    /// A particle of the prior.
    fn drawn(&self, draws: &mut Draws) -> Particle {
        let (paths, width) = (self.of.paths, 2 * self.measured.sent.len());
        let mut particle = Particle {
            angles: vec![[0.0; 2]; paths],
            columns: vec![0.0; paths * width],
            gram: vec![Complex::default(); paths * paths],
            right: vec![Complex::default(); paths],
            likelihood: 0.0,
        };
        (0..paths).for_each(|path| self.put(&mut particle, path, [0; 2].map(|_| self.anywhere(draws))));
        particle
    }

    fn anywhere(&self, draws: &mut Draws) -> f32 {
        self.of.azimuth * (2.0 * draws.uniform() - 1.0)
    }

    /// Gives a path other directions.
    fn put(&self, particle: &mut Particle, path: usize, angles: [f32; 2]) {
        let (paths, steps) = (self.of.paths, self.measured.sent.len());
        particle.angles[path] = angles;
        let (heard, sent) = (self.heard.at(angles[0]), self.of.sent.at(angles[1]));
        for (t, (value, index)) in particle.columns[path * 2 * steps..].chunks_exact_mut(2).zip(self.measured.sent).enumerate() {
            let [re, im] = sent(*index);
            value.copy_from_slice(&product(heard(t), [re, -im]));
        }
        let column = |l: usize| &particle.columns[l * 2 * steps..][..2 * steps];
        for other in 0..paths {
            let entry = Complex::from(inner_f64(column(path), column(other)));
            particle.gram[path * paths + other] = entry;
            particle.gram[other * paths + path] = entry.conjugate();
        }
        particle.right[path] = inner_f64(column(path), self.measured.values).into();
    }

    /// The lower triangle C of `C C^H = p Phi^H Phi + s I`, row by row.
    fn triangle(&self, particle: &Particle, noise: f64) -> Vec<Complex> {
        let n = self.of.paths;
        let mut lower = vec![Complex::default(); n * n];
        for i in 0..n {
            for j in 0..=i {
                let done = (0..j).map(|k| lower[i * n + k] * lower[j * n + k].conjugate());
                let entry = done.fold(particle.gram[i * n + j].scaled(self.of.power), |rest, x| rest - x);
                // What rounding leaves on the diagonal is not below the noise.
                lower[i * n + j] =
                    if i == j { Complex((entry.0 + noise).max(noise).sqrt(), 0.0) } else { entry.scaled(lower[j * n + j].0.recip()) };
            }
        }
        lower
    }

    /// `C^-1 Phi^H y`.
    fn solved(&self, particle: &Particle, lower: &[Complex]) -> Vec<Complex> {
        let n = self.of.paths;
        let mut out: Vec<Complex> = Vec::with_capacity(n);
        for i in 0..n {
            let rest = (0..i).fold(particle.right[i], |rest, k| rest - lower[i * n + k] * out[k]);
            out.push(rest.scaled(lower[i * n + i].0.recip()));
        }
        out
    }

    fn likelihood(&self, particle: &Particle, noise: f64) -> f64 {
        let (n, steps) = (self.of.paths, self.measured.sent.len());
        let lower = self.triangle(particle, noise);
        let explained: f64 = self.solved(particle, &lower).iter().map(|x| x.power()).sum();
        let determinant: f64 = (0..n).map(|i| 2.0 * lower[i * n + i].0.ln()).sum();
        let unexplained = squared_norm(self.measured.values) - self.of.power * explained;
        -unexplained / noise - determinant - (steps as f64 - n as f64) * noise.ln()
    }

    /// One move of a path: both directions anew, or one or both by a little.
    fn step(&self, particle: &mut Particle, path: usize, noise: f64, draws: &mut Draws) {
        let (kind, scale) = (draws.uniform(), 0.5 * 10f32.powf(-3.0 * draws.uniform()));
        let [arrival, departure] = particle.angles[path];
        let mut near = |angle: f32| angle + scale * draws.normal();
        let angles = match kind {
            x if x < 0.25 => [near(arrival), departure],
            x if x < 0.5 => [arrival, near(departure)],
            x if x < 0.85 => [near(arrival), near(departure)],
            _ => [0; 2].map(|_| self.anywhere(draws)),
        };
        if angles.iter().any(|angle| angle.abs() > self.of.azimuth) {
            return;
        }
        let mut moved = particle.clone();
        self.put(&mut moved, path, angles);
        moved.likelihood = self.likelihood(&moved, noise);
        if f64::from(draws.uniform()).ln() < moved.likelihood - particle.likelihood {
            *particle = moved;
        }
    }

    /// Gains of all paths as the measurements leave them, `[L, 2]`.
    fn gains(&self, particle: &Particle, draws: &mut Draws) -> Vec<f32> {
        let (n, noise) = (self.of.paths, self.measured.noise);
        let lower = self.triangle(particle, noise);
        // Mean p M^-1 Phi^H y and covariance p s M^-1, M = C C^H: both are C^-H times something.
        let spread = (noise / self.of.power / 2.0).sqrt();
        let mut normal = || spread * f64::from(draws.normal());
        let mut gains: Vec<Complex> = self.solved(particle, &lower).iter().map(|x| *x + Complex(normal(), normal())).collect();
        for i in (0..n).rev() {
            let rest = (i + 1..n).fold(gains[i], |rest, k| rest - lower[k * n + i].conjugate() * gains[k]);
            gains[i] = rest.scaled(lower[i * n + i].0.recip());
        }
        gains.iter().flat_map(|x| [x.0, x.1].map(|x| (self.of.power * x) as f32)).collect()
    }
}

/// As many particles, drawn by their weights at even distances (systematic resampling); weights are logarithms.
fn resampled(particles: &[Particle], weights: &[f64], uniform: f32) -> Vec<Particle> {
    let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = weights.iter().map(|weight| (weight - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let (mut sum, mut at) = (weights[0], 0);
    let pick = |i: usize| {
        let place = (i as f64 + f64::from(uniform)) / particles.len() as f64 * total;
        while sum < place && at + 1 < weights.len() {
            at += 1;
            sum += weights[at];
        }
        particles[at].clone()
    };
    (0..particles.len()).map(pick).collect()
}

/// Random numbers one after the other.
struct Draws {
    random: Random,
    next: u64,
}

impl Draws {
    fn uniform(&mut self) -> f32 {
        self.next += 1;
        self.random.uniform(self.next)
    }

    fn normal(&mut self) -> f32 {
        self.next += 1;
        self.random.normal(self.next)
    }
}

/// `H f` of all channels, `[B, N_RX, 2]`.
fn received(channels: &Channels, f: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; channels.batch() * 2 * channels.receive_elements()];
    out.chunks_exact_mut(2 * channels.receive_elements()).enumerate().for_each(|(b, out)| channels.at(b, 0).received(f, out));
    out
}

/// `H^H w` of all channels, `[B, N_TX, 2]`.
fn returned(channels: &Channels, w: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; channels.batch() * 2 * channels.transmit_elements()];
    out.chunks_exact_mut(2 * channels.transmit_elements()).enumerate().for_each(|(b, out)| channels.at(b, 0).returned(w, out));
    out
}

fn better(a: Conclusion, b: Conclusion) -> Conclusion {
    if b.expected_db > a.expected_db { b } else { a }
}

/// Both beams in turn, from the best of some draws on.
fn best_pair(channels: &Channels) -> Conclusion {
    let from = |start: usize| {
        let (mut w, mut f) = (vec![0.0; 2 * channels.receive_elements()], vec![0.0; 2 * channels.transmit_elements()]);
        genie::singular_vectors(&channels.at(start * channels.batch() / STARTS, 0), &mut w, &mut f);
        let mut expected_db = 0.0;
        for _ in 0..CLIMB[1] {
            w = strongest(&received(channels, &f), channels.receive_elements()).0;
            (f, expected_db) = strongest(&returned(channels, &w), channels.transmit_elements());
        }
        Conclusion { receive: w, transmit: f, expected_db }
    };
    (1..STARTS).map(from).fold(from(0), better)
}

/// The unit-norm beam b with the largest mean of `10 log10 |b^H h|^2` over vectors `[B, N, 2]`, and that mean. A step goes where the
/// gradient points, which is `h h^H b / |b^H h|^2` summed up; the first are those to the largest mean power.
fn strongest(vectors: &[f32], elements: usize) -> (Vec<f32>, f64) {
    let vectors: Vec<&[f32]> = vectors.chunks_exact(2 * elements).collect();
    let power = vectors.iter().map(|h| squared_norm(h)).sum::<f64>() / vectors.len() as f64;
    // A vector that is hardly seen must not outweigh all others in a step, nor one in a null decide between beams.
    let [floor, null] = [1e-3, 1e-6].map(|share| (share * power) as f32);
    let expected = |b: &[f32]| {
        let gains = vectors.iter().map(|h| inner(b, h)).map(|[re, im]| decibels(re * re + im * im + null));
        gains.sum::<f64>() / vectors.len() as f64
    };
    let loudest = vectors.iter().fold(vectors[0], |a, b| if squared_norm(b) > squared_norm(a) { b } else { a });
    let mut beam = loudest.to_vec();
    normalise(&mut beam);
    let mut best = (beam.clone(), expected(&beam));
    for step in 0..CLIMB[0] {
        let mut next = vec![0.0; beam.len()];
        for h in &vectors {
            let [re, im] = inner(h, &beam);
            let weight = if step < CLIMB[0] / 3 { 1.0 } else { (re * re + im * im + floor).recip() };
            add_scaled([weight * re, weight * im], h, &mut next);
        }
        normalise(&mut next);
        beam = next;
        let found = expected(&beam);
        if found > best.1 {
            best = (beam.clone(), found);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::super::CodebookConfig;
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
    fn expected_is_gained(links: usize) {
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
    fn what_is_expected_is_what_is_gained() {
        expected_is_gained(8);
    }

    #[test]
    #[ignore = "deep: three times as many links as the test above"]
    fn what_is_expected_of_many_links_is_what_is_gained() {
        expected_is_gained(24);
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
