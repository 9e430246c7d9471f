//! Channels of few paths, kept by path: the matrix H never exists on the way of training.
//!
//! ```text
//! H            = sum over l of  alpha_l a_rx,l a_tx,l^H
//! H f          = sum over l of  alpha_l a_rx,l (a_tx,l^H f)
//! ||H||_F^2    = sum over l, m of  alpha_l alpha_m* (a_rx,m^H a_rx,l) (a_tx,l^H a_tx,m)        Gram matrices, L x L
//! ```
//!
//! Shape letters: B channels, S steps, L paths, N_RX and N_TX elements, C beams.
//!
//! ```
//! use candle_models::beam::{BeamConfig, Channels};
//! use candle_models::random::Random;
//! # fn main() -> candle_models::Result<()> {
//! let config = BeamConfig::default().channel;
//! let random = Random::new(1).stream("channels");
//! let many = Channels::generate(&config, random, 0, 8, 1)?;
//! let alone = Channels::generate(&config, random, 5, 1, 1)?;
//! assert_eq!(many.at(5, 0).matrix(), alone.at(0, 0).matrix()); // channel 5 is channel 5
//! # Ok(())
//! # }
//! ```

use super::codebook::Codebook;
use super::complex::{add_scaled, inner, inner_f64, product, squared_norm};
use super::draw::{Path, Source};
pub use super::setting::{Cdl, ChannelConfig, ChannelModel, Geometric, Mobility};
use super::{Array, within};
use crate::random::Random;
use crate::{Error, Result};
use rayon::prelude::*;

/// Most numbers that one batch may hold (4 GiB of f32).
const MAX_NUMBERS: usize = 1 << 30;
/// Channels that one task of the thread pool makes.
const TASK: usize = 32;

/// A batch of channels, by path.
#[derive(Debug, Clone, PartialEq)]
pub struct Channels {
    batch: usize,
    steps: usize,
    paths: usize,
    receive_elements: usize,
    transmit_elements: usize,
    gains: Vec<f32>,
    receive: Vec<f32>,
    transmit: Vec<f32>,
    power: Vec<f32>,
}

/// Path parameters that come from elsewhere: a file, a ray tracer. Angles are (azimuth, elevation) in radians.
#[derive(Debug, Clone, Copy)]
pub struct PathParameters<'a> {
    /// Channels, B.
    pub batch: usize,
    /// Steps of each, S.
    pub steps: usize,
    /// Paths of each, L.
    pub paths: usize,
    /// Complex gains `[B, S, L, 2]`.
    pub gains: &'a [f32],
    /// Angles of departure `[B, S, L, 2]`.
    pub departure: &'a [f32],
    /// Angles of arrival `[B, S, L, 2]`.
    pub arrival: &'a [f32],
}

impl Channels {
    /// Channels `first..first + batch` of the stream `random`: channel i is the same whatever `first` and `batch` are, for any
    /// number of threads. Without mobility a channel has one step, which serves all `steps` of an episode.
    ///
    /// # Errors
    /// A configuration out of range, `batch` or `steps` of 0, or more numbers than 4 GiB hold.
    pub fn generate(config: &ChannelConfig, random: Random, first: u64, batch: usize, steps: usize) -> Result<Self> {
        config.validate()?;
        within("steps", steps, 1..=usize::MAX)?;
        let kept = if config.mobility.is_some() { steps } else { 1 };
        let source = Source::new(config);
        let mut channels = Self::zeros(batch, kept, source.paths(), &config.receive, &config.transmit)?;
        channels.fill(config, |i, paths| source.draw(random.at(first.wrapping_add(i as u64)), paths));
        Ok(channels)
    }

    /// Channels of given paths.
    ///
    /// # Errors
    /// Sizes that do not fit each other or are 0, or a value that is not finite; the message says where.
    pub fn from_paths(receive: &Array, transmit: &Array, given: &PathParameters) -> Result<Self> {
        receive.validate("receive")?;
        transmit.validate("transmit")?;
        let (batch, steps, paths) = (given.batch, given.steps, given.paths);
        let mut channels = Self::zeros(batch, steps, paths, receive, transmit)?;
        for (name, data) in [("gains", given.gains), ("departure", given.departure), ("arrival", given.arrival)] {
            check_values(name, data, &[batch, steps, paths, 2])?;
        }
        let (rx, tx) = (2 * receive.elements(), 2 * transmit.elements());
        channels.gains.copy_from_slice(given.gains);
        let angle = |angles: &[f32]| (f64::from(angles[0]), f64::from(angles[1]));
        channels.receive.par_chunks_mut(rx).zip(given.arrival.par_chunks(2)).with_min_len(TASK).for_each(|(out, angles)| {
            let (azimuth, elevation) = angle(angles);
            receive.steering(azimuth, elevation, out);
        });
        channels.transmit.par_chunks_mut(tx).zip(given.departure.par_chunks(2)).with_min_len(TASK).for_each(|(out, angles)| {
            let (azimuth, elevation) = angle(angles);
            transmit.steering(azimuth, elevation, out);
        });
        channels.find_power();
        Ok(channels)
    }

    /// Channels of given matrices H `[B, S, N_RX, N_TX, 2]`, with one "path" for each receive element: the unit vector there
    /// and the conjugate of H's row.
    ///
    /// # Errors
    /// As [`Channels::from_paths`].
    pub fn from_matrices(batch: usize, steps: usize, receive: &Array, transmit: &Array, matrices: &[f32]) -> Result<Self> {
        receive.validate("receive")?;
        transmit.validate("transmit")?;
        let (n_rx, n_tx) = (receive.elements(), transmit.elements());
        let mut channels = Self::zeros(batch, steps, n_rx, receive, transmit)?;
        check_values("matrices", matrices, &[batch, steps, n_rx, n_tx, 2])?;
        channels.gains.chunks_exact_mut(2).for_each(|gain| gain[0] = 1.);
        for (l, row) in channels.receive.chunks_exact_mut(2 * n_rx).enumerate() {
            row[2 * (l % n_rx)] = 1.;
        }
        for (out, x) in channels.transmit.chunks_exact_mut(2).zip(matrices.chunks_exact(2)) {
            out.copy_from_slice(&[x[0], -x[1]]);
        }
        channels.find_power();
        Ok(channels)
    }

    /// Number of channels, B.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Steps that are kept, S: 1 for block fading.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Paths of a channel, L.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// Elements of the receive array.
    pub fn receive_elements(&self) -> usize {
        self.receive_elements
    }

    /// Elements of the transmit array.
    pub fn transmit_elements(&self) -> usize {
        self.transmit_elements
    }

    /// Path gains alpha `[B, S, L, 2]`.
    pub fn gains(&self) -> &[f32] {
        &self.gains
    }

    /// Receive steering vectors `[B, S, L, N_RX, 2]`.
    pub fn receive(&self) -> &[f32] {
        &self.receive
    }

    /// Transmit steering vectors `[B, S, L, N_TX, 2]`.
    pub fn transmit(&self) -> &[f32] {
        &self.transmit
    }

    /// `||H||_F^2`, `[B, S]`; 0 where all gains are zero.
    pub fn power(&self) -> &[f32] {
        &self.power
    }

    /// Channel `b` at a step of an episode; one that is kept for a single step is the same at all of them.
    ///
    /// # Panics
    /// If there is no such channel or step.
    pub fn at(&self, b: usize, step: usize) -> Link<'_> {
        let step = if self.steps == 1 { 0 } else { step };
        assert!(b < self.batch && step < self.steps, "channel {b}, step {step} of {} channels, {} steps", self.batch, self.steps);
        let i = b * self.steps + step;
        let part = |data: &'_ [f32], width: usize| -> std::ops::Range<usize> {
            debug_assert_eq!(data.len(), self.batch * self.steps * width);
            i * width..(i + 1) * width
        };
        let (rx, tx) = (2 * self.receive_elements, 2 * self.transmit_elements);
        Link {
            gains: &self.gains[part(&self.gains, 2 * self.paths)],
            receive: &self.receive[part(&self.receive, self.paths * rx)],
            transmit: &self.transmit[part(&self.transmit, self.paths * tx)],
            power: self.power[i],
        }
    }

    /// `H f_c` for every channel, kept step and beam: `[B, S, C, N_RX, 2]`.
    ///
    /// # Errors
    /// A codebook for another number of elements than the transmit array has.
    pub fn responses(&self, codebook: &Codebook) -> Result<Vec<f32>> {
        codebook.check_elements("codebook", self.transmit_elements)?;
        let (rx, tx) = (2 * self.receive_elements, 2 * self.transmit_elements);
        let width = codebook.count() * rx;
        let mut out = vec![0.; self.batch * self.steps * width];
        out.par_chunks_mut(width).enumerate().with_min_len(TASK).for_each(|(i, out)| {
            let link = self.at(i / self.steps, i % self.steps);
            for (beam, out) in codebook.beams().chunks_exact(tx).zip(out.chunks_exact_mut(rx)) {
                link.received(beam, out);
            }
        });
        Ok(out)
    }

    fn zeros(batch: usize, steps: usize, paths: usize, receive: &Array, transmit: &Array) -> Result<Self> {
        let (receive_elements, transmit_elements) = (receive.elements(), transmit.elements());
        within("batch", batch, 1..=MAX_NUMBERS)?;
        within("steps", steps, 1..=MAX_NUMBERS)?;
        within("paths", paths, 1..=MAX_NUMBERS)?;
        let links = batch.checked_mul(steps);
        let rows = links.and_then(|n| n.checked_mul(paths)).filter(|n| *n <= MAX_NUMBERS / (2 * (receive_elements + transmit_elements)));
        let (Some(links), Some(rows)) = (links, rows) else {
            let found = format!("{batch} channels of {steps} steps and {paths} paths need more than {MAX_NUMBERS} numbers");
            return Err(Error::config("batch", found));
        };
        Ok(Self {
            batch,
            steps,
            paths,
            receive_elements,
            transmit_elements,
            gains: vec![0.; 2 * rows],
            receive: vec![0.; 2 * rows * receive_elements],
            transmit: vec![0.; 2 * rows * transmit_elements],
            power: vec![0.; links],
        })
    }

    /// Writes what `draw` gives for each channel, at every step.
    fn fill(&mut self, config: &ChannelConfig, draw: impl Fn(usize, &mut Vec<Path>) + Sync) {
        let (paths, rx, tx) = (self.paths, 2 * self.receive_elements, 2 * self.transmit_elements);
        let rows = self.steps * paths;
        let parts = self.gains.par_chunks_mut(2 * rows).zip(self.receive.par_chunks_mut(rows * rx));
        let parts = parts.zip(self.transmit.par_chunks_mut(rows * tx)).zip(self.power.par_chunks_mut(self.steps));
        parts.enumerate().with_min_len(TASK).for_each_init(Vec::new, |drawn, (i, (((gains, receive), transmit), power))| {
            drawn.clear();
            draw(i, drawn);
            for row in 0..rows {
                let path = drawn[row % paths].after(row / paths);
                gains[2 * row..2 * row + 2].copy_from_slice(&path.gain.map(|x| x as f32));
                let (u, v) = path.arrival();
                config.receive.response(u, v, &mut receive[row * rx..(row + 1) * rx]);
                let (u, v) = path.departure();
                config.transmit.response(u, v, &mut transmit[row * tx..(row + 1) * tx]);
            }
            let steps = gains.chunks_exact(2 * paths).zip(receive.chunks_exact(paths * rx)).zip(transmit.chunks_exact(paths * tx));
            for (power, ((gains, receive), transmit)) in power.iter_mut().zip(steps) {
                *power = power_by_path(gains, receive, transmit);
            }
        });
    }

    fn find_power(&mut self) {
        let (paths, rx, tx) = (self.paths, 2 * self.receive_elements, 2 * self.transmit_elements);
        let links = self.gains.par_chunks(2 * paths).zip(self.receive.par_chunks(paths * rx)).zip(self.transmit.par_chunks(paths * tx));
        self.power.par_iter_mut().zip(links).with_min_len(TASK).for_each(|(power, ((gains, receive), transmit))| {
            *power = power_by_path(gains, receive, transmit);
        });
    }
}

/// One channel at one step.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// Path gains alpha `[L, 2]`.
    pub gains: &'a [f32],
    /// Receive steering vectors `[L, N_RX, 2]`.
    pub receive: &'a [f32],
    /// Transmit steering vectors `[L, N_TX, 2]`.
    pub transmit: &'a [f32],
    /// `||H||_F^2`.
    pub power: f32,
}

impl<'a> Link<'a> {
    /// Number of paths, L.
    pub fn paths(&self) -> usize {
        self.gains.len() / 2
    }

    /// Numbers of a receive beam, `2 N_RX`.
    fn rx(&self) -> usize {
        self.receive.len() / self.paths()
    }

    /// Numbers of a transmit beam, `2 N_TX`.
    fn tx(&self) -> usize {
        self.transmit.len() / self.paths()
    }

    fn each_path(&self) -> impl Iterator<Item = ([f32; 2], &'a [f32], &'a [f32])> {
        let vectors = self.receive.chunks_exact(self.rx()).zip(self.transmit.chunks_exact(self.tx()));
        self.gains.chunks_exact(2).zip(vectors).map(|(gain, (receive, transmit))| ([gain[0], gain[1]], receive, transmit))
    }

    /// Writes `H f = sum of alpha a_rx (a_tx^H f)`; `f` is `[N_TX, 2]`, `out` is `[N_RX, 2]`.
    pub fn received(&self, f: &[f32], out: &mut [f32]) {
        out.fill(0.);
        for (gain, receive, transmit) in self.each_path() {
            add_scaled(product(gain, inner(transmit, f)), receive, out);
        }
    }

    /// Writes `H^H w = sum of alpha* a_tx (a_rx^H w)`; `w` is `[N_RX, 2]`, `out` is `[N_TX, 2]`.
    pub fn returned(&self, w: &[f32], out: &mut [f32]) {
        out.fill(0.);
        for ([re, im], receive, transmit) in self.each_path() {
            add_scaled(product([re, -im], inner(receive, w)), transmit, out);
        }
    }

    /// The measurement without noise, `w^H H f = sum of alpha (w^H a_rx) (a_tx^H f)`.
    pub fn measure(&self, w: &[f32], f: &[f32]) -> [f32; 2] {
        self.each_path().fold([0., 0.], |[re, im], (gain, receive, transmit)| {
            let [a, b] = product(gain, product(inner(w, receive), inner(transmit, f)));
            [re + a, im + b]
        })
    }

    /// The gain `G = |w^H H f|^2` of unit-norm beams.
    pub fn gain(&self, w: &[f32], f: &[f32]) -> f32 {
        let [re, im] = self.measure(w, f);
        re * re + im * im
    }

    /// The matrix H `[N_RX, N_TX, 2]`: for tests, files and channels of many paths.
    pub fn matrix(&self) -> Vec<f32> {
        let mut out = vec![0.; self.rx() * self.tx() / 2];
        // a_tx* and j a_tx*: a complex factor becomes two real ones, and the loop over them vectorises.
        let [mut conjugate, mut turned] = [(); 2].map(|()| vec![0.; self.tx()]);
        for (gain, receive, transmit) in self.each_path() {
            for (i, [re, im]) in transmit.chunks_exact(2).map(|x| [x[0], x[1]]).enumerate() {
                conjugate[2 * i..2 * i + 2].copy_from_slice(&[re, -im]);
                turned[2 * i..2 * i + 2].copy_from_slice(&[im, re]);
            }
            for (a, row) in receive.chunks_exact(2).zip(out.chunks_exact_mut(self.tx())) {
                let [re, im] = product(gain, [a[0], a[1]]);
                row.iter_mut().zip(conjugate.iter().zip(&turned)).for_each(|(h, (c, t))| *h += re * c + im * t);
            }
        }
        out
    }
}

/// `||H||_F^2`. Few paths go through the Gram matrices, with sums in f64: paths that nearly cancel leave a small difference of
/// large numbers. From L = 2 N_RX N_TX / (N_RX + N_TX) on the matrix is less work.
fn power_by_path(gains: &[f32], receive: &[f32], transmit: &[f32]) -> f32 {
    let paths = gains.len() / 2;
    let (rx, tx) = (receive.len() / paths, transmit.len() / paths);
    if paths * (rx + tx) > rx * tx {
        return squared_norm(&Link { gains, receive, transmit, power: 0. }.matrix()) as f32;
    }
    let (receive, transmit) = (|l: usize| &receive[l * rx..(l + 1) * rx], |l: usize| &transmit[l * tx..(l + 1) * tx]);
    let gain = |l: usize| [gains[2 * l], gains[2 * l + 1]].map(f64::from);
    let mut power = 0.;
    for l in 0..paths {
        let [a, b] = gain(l);
        power += (a * a + b * b) * squared_norm(receive(l)) * squared_norm(transmit(l));
        for m in 0..l {
            // The terms (l, m) and (m, l) are conjugates.
            let [c, d] = gain(m);
            let coupling = [a * c + b * d, b * c - a * d]; // alpha_l alpha_m*
            let [re, im] = inner_f64(receive(m), receive(l));
            let [x, y] = inner_f64(transmit(l), transmit(m));
            power += 2. * (coupling[0] * (re * x - im * y) - coupling[1] * (re * y + im * x));
        }
    }
    power.max(0.) as f32
}

fn check_values(name: &str, data: &[f32], shape: &[usize]) -> Result<()> {
    if data.len() != shape.iter().product::<usize>() {
        return Err(Error::tensor(name, format!("{shape:?}"), format!("{} numbers", data.len())));
    }
    match data.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(Error::tensor(name, "finite numbers", format!("{} at {i}", data[i]))),
        None => Ok(()),
    }
}

/// Standard deviation of each of the noise's two parts: `n ~ CN(0, 1 / SNR)`.
///
/// # Errors
/// An SNR that is not finite, or beyond 100 dB to either side.
pub fn noise_deviation(snr_db: f32) -> Result<f32> {
    within("snr_db", snr_db, -100. ..=100.)?;
    Ok((10f64.powf(-f64::from(snr_db) / 10.) / 2.).sqrt() as f32)
}

/// Power of the noise whose parts have that deviation.
///
/// # Errors
/// As [`noise_deviation`].
pub fn noise_power(snr_db: f32) -> Result<f64> {
    Ok(2.0 * f64::from(noise_deviation(snr_db)?).powi(2))
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
