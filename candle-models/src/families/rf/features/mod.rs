//! Eighteen numbers that say what a chunk of IQ is like: power, noise, spectrum, envelope, autocorrelation.
//!
//! Two forms ([`Form`]). The compatible one is that of the published feature extractor for radio localisation, defects included, so that models
//! which were trained on its numbers can be run on ours. The repaired one measures what the names say at any power: nothing is added to what
//! is divided by, the noise is the noise's power, the frequency is not bound to the grid of the transform.
//!
//! ```
//! use candle_models::rf::Complex32;
//! use candle_models::rf::features::{Extractor, FEATURES, Form, summarise};
//!
//! # fn main() -> candle_models::Result<()> {
//! // 200 ms of a tone at 1 kHz, sampled at 200 kHz.
//! let tone: Vec<Complex32> = (0..40_000).map(|n| Complex32::from_polar(1e-5, 0.031_415_926 * (n % 200) as f32)).collect();
//! let mut extractor = Extractor::new(200e3, 40_000, Form::Repaired)?;
//! let features = extractor.extract(&tone)?;
//! assert_eq!(FEATURES[3].name, "frequency_offset_hz");
//! assert!((features[3] - 1000.0).abs() < 1e-3 && (features[0] + 70.0).abs() < 1e-3);
//! assert_eq!(summarise(&[features; 5]).len(), 72);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;
mod measures;
mod rank;
#[cfg(test)]
mod tests;

use super::{narrow, wide};
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use measures::{Definition, LOWEST, Measures};
use rayon::prelude::*;
use realfft::{RealFftPlanner, RealToComplex};
use rustfft::num_complex::{Complex32, Complex64};
use rustfft::{Fft, FftPlanner};
use std::f64::consts::{PI, TAU};
use std::sync::Arc;

/// How many features a chunk has.
pub const COUNT: usize = 18;

/// Statistics of a feature over chunks, in their order.
pub const STATISTICS: [&str; 4] = ["mean", "std", "min", "max"];

/// A feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it is.
    pub meaning: &'static str,
}

/// The features in their order. Powers are in dBm where the square of a sample's magnitude is in watts.
pub const FEATURES: [Feature; COUNT] = {
    const fn feature(name: &'static str, meaning: &'static str) -> Feature {
        Feature { name, meaning }
    }
    [
        feature("rssi_dbm", "mean power"),
        feature("snr_db", "signal over noise; of the compatible form mean power over the noise floor"),
        feature("noise_floor_dbm", "power of the noise, from the lowest bins of the spectrum"),
        feature("frequency_offset_hz", "the strongest frequency; of the compatible form on the grid of the transform"),
        feature("bandwidth_hz", "bins that have more than half of the strongest one's power, times their width"),
        feature("psd_dbm_per_hz", "density of the strongest bin"),
        feature("spectral_centroid_hz", "mean frequency, weighted by power"),
        feature("spectral_rolloff_hz", "frequency below which 85% of the power lies"),
        feature("envelope_mean", "mean magnitude over its root mean square; of the compatible form over the largest one"),
        feature("envelope_std", "standard deviation of the magnitude over the same"),
        feature("envelope_max", "largest magnitude over the same, which is 1 in the compatible form"),
        feature("peak_to_avg_ratio_db", "largest power over the mean"),
        feature("zero_crossing_rate", "changes of the real part's sign, a sample"),
        feature("multipath_delay_spread_us", "root mean square width of the squared autocorrelation above a tenth of its peak"),
        feature("coherence_bandwidth_khz", "a fifth of the inverse of that width"),
        feature("delay_spread_confidence", "from 0 to 1 with the signal-to-noise ratio"),
        feature("signal_present", "1 where the signal-to-noise ratio is above 0 dB"),
        feature("confidence_score", "from 0 to 1 with the signal-to-noise ratio, 1 from 30 dB on"),
    ]
};

/// Which definitions count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As published: 1e-12 W is added wherever something is divided by or its logarithm is taken.
    Compatible,
    /// As their names say.
    Repaired,
}

/// The part of the greatest squared autocorrelation from which one counts.
const COUNTS: f64 = 0.1;
/// Samples whose sums are taken in f32 before they are added up in f64.
const BLOCK: usize = 256;

/// Extracts the features of chunks of one length. It holds what they are computed in: nothing is allocated for a chunk.
#[derive(Clone)]
pub struct Extractor {
    definition: Definition,
    fft: Arc<dyn Fft<f32>>,
    real: Arc<dyn RealToComplex<f32>>,
    /// `[N]`: half a bin down.
    shift: Vec<Complex32>,
    /// `[N]`: the transform at whole bins, and half a bin above each.
    whole: Vec<Complex32>,
    half: Vec<Complex32>,
    scratch: Vec<Complex32>,
    /// `[2 N]`: powers of both, in turn.
    powers: Vec<f32>,
    /// `[N + 1]`: the autocorrelation, times 2 N.
    correlation: Vec<Complex32>,
    real_scratch: Vec<Complex32>,
    /// `[N]`: magnitudes, then powers of bins from the lowest frequency up.
    work: Vec<f32>,
    /// `[N]`, of the repaired form alone: powers of bins of the chunk in a window.
    windowed: Vec<f32>,
    rank: rank::Rank,
}

impl Extractor {
    /// For chunks of so many samples.
    ///
    /// # Errors
    /// If the rate is no positive number, or a chunk has fewer than 2 samples or more than 2^24.
    pub fn new(rate: f64, samples: usize, form: Form) -> Result<Self> {
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::config("rate", format!("expected samples a second, above 0, found {rate}")));
        }
        if !(2..=1 << 24).contains(&samples) {
            return Err(Error::config("chunk", format!("expected from 2 to {} samples, found {samples}", 1 << 24)));
        }
        let (fft, real) = (FftPlanner::new().plan_fft_forward(samples), RealFftPlanner::new().plan_fft_forward(2 * samples));
        let zeros = |n| vec![Complex32::default(); n];
        let shift = (0..samples).map(|n| Complex64::cis(-PI * n as f64 / samples as f64));
        Ok(Self {
            definition: Definition { rate, samples, form },
            shift: shift.map(narrow).collect(),
            whole: zeros(samples),
            half: zeros(samples),
            scratch: zeros(fft.get_inplace_scratch_len()),
            powers: vec![0.0; 2 * samples],
            correlation: zeros(samples + 1),
            real_scratch: zeros(real.get_scratch_len()),
            work: vec![0.0; samples],
            windowed: vec![0.0; if form == Form::Repaired { samples } else { 0 }],
            rank: rank::Rank::default(),
            fft,
            real,
        })
    }

    /// Samples of a chunk, N.
    pub fn samples(&self) -> usize {
        self.whole.len()
    }

    /// The features of a chunk.
    ///
    /// # Errors
    /// If it has another length, or a sample is not finite; in the repaired form, if it has no power.
    pub fn extract(&mut self, chunk: &[Complex32]) -> Result<[f64; COUNT]> {
        if chunk.len() != self.samples() {
            return Err(Error::Input(format!("a chunk: expected {} samples, found {}", self.samples(), chunk.len())));
        }
        self.found(chunk).map_err(|what| Error::Input(format!("a chunk: {what}")))
    }

    /// The features of chunks, `[count, N, 2]` of f32. Those of a GPU are those of the CPU but for rounding; some chunks at a time are in its memory.
    ///
    /// # Errors
    /// If the shape is another one, a device has no memory or no cuFFT, or as [`extract`](Self::extract): the first such chunk is named.
    pub fn extract_all(&self, chunks: &Tensor) -> Result<Vec<[f64; COUNT]>> {
        let samples = self.samples();
        if !matches!(chunks.dims(), [_, n, 2] if *n == samples) || chunks.dtype() != DType::F32 {
            let found = format!("{:?} of {:?}", chunks.dims(), chunks.dtype());
            return Err(Error::tensor("chunks", format!("[count, {samples}, 2] of f32"), found));
        }
        let named = |(i, found): (usize, std::result::Result<_, String>)| found.map_err(|what| Error::Input(format!("chunk {i}: {what}")));
        #[cfg(feature = "cuda")]
        if chunks.device().is_cuda() {
            return cuda::extract(&self.definition, chunks)?.into_iter().enumerate().map(named).collect();
        }
        let iq = complex(chunks)?;
        let found: Vec<_> = iq.par_chunks(samples).map_init(|| self.clone(), |own, chunk| own.found(chunk)).collect();
        found.into_iter().enumerate().map(named).collect()
    }

    /// The features of a chunk of N samples, or why it has none.
    fn found(&mut self, chunk: &[Complex32]) -> std::result::Result<[f64; COUNT], String> {
        let mut measures = self.envelope(chunk);
        if let Some(what) = self.definition.refusal(measures.power, chunk) {
            return Err(what);
        }
        self.transform(chunk);
        self.spectrum(chunk, &mut measures);
        measures.lags = self.lags();
        Ok(self.definition.features(&measures))
    }

    /// What is measured of the samples themselves.
    fn envelope(&mut self, chunk: &[Complex32]) -> Measures {
        let (mut power, mut sum, mut most) = (0.0, 0.0, 0.0f32);
        for (part, magnitudes) in chunk.chunks(BLOCK).zip(self.work.chunks_mut(BLOCK)) {
            for (to, x) in magnitudes.iter_mut().zip(part) {
                *to = x.re * x.re + x.im * x.im;
            }
            power += f64::from(lanes(magnitudes, |x| x));
            most = magnitudes.iter().fold(most, |most, x| if *x > most { *x } else { most });
            magnitudes.iter_mut().for_each(|x| *x = x.sqrt());
            sum += f64::from(lanes(magnitudes, |x| x));
        }
        let n = chunk.len() as f64;
        let mean = sum / n;
        // From the mean, or the difference of two large numbers would be all rounding.
        let middle = mean as f32;
        let squares: f64 = self.work.chunks(BLOCK).map(|part| f64::from(lanes(part, |x| (x - middle) * (x - middle)))).sum();
        let variance = squares / n - (mean - f64::from(middle)).powi(2);
        let crossings = crossings(chunk) as f64;
        Measures { power: power / n, most: f64::from(most), mean, variance, crossings, ..Measures::default() }
    }

    /// The transform at whole bins and half a bin above each: that of the chunk with as many zeros behind it.
    fn transform(&mut self, chunk: &[Complex32]) {
        self.whole.copy_from_slice(chunk);
        for ((to, x), shift) in self.half.iter_mut().zip(chunk).zip(&self.shift) {
            *to = x * shift;
        }
        for bins in [&mut self.whole, &mut self.half] {
            self.fft.process_with_scratch(bins, &mut self.scratch);
        }
        for ((to, whole), half) in self.powers.chunks_exact_mut(2).zip(&self.whole).zip(&self.half) {
            (to[0], to[1]) = (whole.norm_sqr(), half.norm_sqr());
        }
    }

    /// What is measured of the bins.
    fn spectrum(&mut self, chunk: &[Complex32], to: &mut Measures) {
        let n = chunk.len();
        let (first, scale) = (n.div_ceil(2), 1.0 / n as f32);
        // Those of whole bins stand at even places.
        let (positive, negative) = self.powers.split_at(2 * first);
        for (to, pair) in self.work.iter_mut().zip(negative.chunks_exact(2).chain(positive.chunks_exact(2))) {
            *to = pair[0] * scale;
        }
        let powers = &self.work;
        let most = powers.iter().fold(0.0f32, |most, x| if *x > most { *x } else { most });
        let at = powers.iter().position(|x| *x == most).unwrap_or(0);
        let (total, moment) = moments(powers);
        let (mut below, mut rolloff) = (0.0, n - 1);
        for (i, part) in powers.chunks(BLOCK).enumerate() {
            let sum = f64::from(lanes(part, |x| x));
            if below + sum >= 0.85 * total {
                let mut reached = below;
                let place = part.iter().position(|x| {
                    reached += f64::from(*x);
                    reached >= 0.85 * total
                });
                rolloff = i * BLOCK + place.unwrap_or(part.len() - 1);
                break;
            }
            below += sum;
        }
        to.strong = powers.iter().filter(|x| **x > most / 2.0).count() as f64;
        to.lowest = match self.definition.form {
            Form::Compatible => self.rank.median_of_lowest(powers, LOWEST),
            Form::Repaired => {
                faded(&self.whole, &mut self.windowed);
                self.rank.median_of_lowest(&self.windowed, LOWEST)
            }
        };
        to.strongest = match self.definition.form {
            Form::Compatible => at as f64 - (n / 2) as f64,
            Form::Repaired => self.refine(chunk, (at + n - n / 2) % n),
        };
        (to.peak, to.total, to.moment, to.rolloff) = (f64::from(most), total, moment, rolloff as f64);
    }

    /// The frequency of the tone whose strongest bin this is, in bins from the centre (Aboutanios and Mulgrew 2005): the transform half a bin to either
    /// side, twice.
    fn refine(&self, chunk: &[Complex32], bin: usize) -> f64 {
        let n = chunk.len();
        let step = |below: Complex64, above: Complex64| {
            let step = 0.5 * ((above + below) / (above - below)).re;
            // Where there is no tone the steps lead anywhere.
            if step.is_finite() { step.clamp(-0.5, 0.5) } else { 0.0 }
        };
        let mut offset = step(wide(self.half[(bin + n - 1) % n]), wide(self.half[bin]));
        let [below, above] = [-0.5, 0.5].map(|side| at_bin(chunk, bin as f64 + offset + side));
        offset += step(below, above);
        let bins = bin as f64 + offset;
        if bins >= n as f64 / 2.0 { bins - n as f64 } else { bins }
    }

    /// The lags whose squared autocorrelation counts, as [`Measures`] has them.
    fn lags(&mut self) -> [f64; 4] {
        // The transform has its own length and all buffers theirs.
        let transformed = self.real.process_with_scratch(&mut self.powers, &mut self.correlation, &mut self.real_scratch);
        debug_assert!(transformed.is_ok());
        let n = self.samples();
        let lags = &self.correlation[..n];
        let squared = |x: &Complex32| wide(*x).norm_sqr();
        let scale = (0.5 / n as f64).powi(2);
        let most = lags.iter().map(squared).fold(0.0, f64::max) * scale;
        let scale = scale / (most + self.definition.eps());
        let [mut count, mut sum, mut first, mut second] = [0.0; 4];
        for (lag, x) in lags.iter().enumerate() {
            let q = squared(x) * scale;
            if q > COUNTS {
                let lag = lag as f64;
                (count, sum, first, second) = (count + 1.0, sum + q, first + q * lag, second + q * lag * lag);
            }
        }
        [count, sum, first, second]
    }
}

/// The samples of a tensor whose last axis has their two parts.
fn complex(tensor: &Tensor) -> Result<Vec<Complex32>> {
    Ok(tensor.flatten_all()?.to_vec1::<f32>()?.chunks_exact(2).map(|x| Complex32::new(x[0], x[1])).collect())
}

/// A sum in sixteen parts, which the compiler keeps in vector registers.
fn lanes(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; 16];
    let parts = values.chunks_exact(16);
    let rest: f32 = parts.remainder().iter().map(|x| of(*x)).sum();
    for part in parts {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += of(*x));
    }
    sums.iter().sum::<f32>() + rest
}

/// The sum of powers, and of powers times their places. Places cancel each other, so they are added up in f64.
fn moments(powers: &[f32]) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut sums, mut moments) = ([0.0f64; LANES], [0.0f64; LANES]);
    for (i, part) in powers.chunks(LANES).enumerate() {
        for (lane, x) in part.iter().enumerate() {
            sums[lane] += f64::from(*x);
            moments[lane] += (i * LANES + lane) as f64 * f64::from(*x);
        }
    }
    (sums.iter().sum(), moments.iter().sum())
}

/// Powers of the bins that a chunk would have in a window of Hann, as if its noise were the same: a strong tone between two bins does not reach
/// into all the others then. A window of cosines is a sum of neighbouring bins.
fn faded(bins: &[Complex32], powers: &mut [f32]) {
    let (n, scale) = (bins.len(), 1.0 / (0.375 * bins.len() as f32));
    let power = |below: Complex32, here: Complex32, above: Complex32| (here * 0.5 - (below + above) * 0.25).norm_sqr() * scale;
    for (to, near) in powers[1..].iter_mut().zip(bins.windows(3)) {
        *to = power(near[0], near[1], near[2]);
    }
    powers[0] = power(bins[n - 1], bins[0], bins[1 % n]);
    powers[n - 1] = power(bins[n - 2], bins[n - 1], bins[0]);
}

/// How often the real part's sign changes, that of 0 being another one than those of both sides.
fn crossings(chunk: &[Complex32]) -> usize {
    let sign = |x: f32| i32::from(x > 0.0) - i32::from(x < 0.0);
    chunk.windows(2).map(|pair| u32::from(sign(pair[0].re) != sign(pair[1].re))).sum::<u32>() as usize
}

/// The transform at a bin that need not be whole.
fn at_bin(chunk: &[Complex32], bin: f64) -> Complex64 {
    const TURNS: usize = 64;
    let step = -TAU * bin / chunk.len() as f64;
    let turns: [Complex32; TURNS] = std::array::from_fn(|i| narrow(Complex64::cis(step * i as f64)));
    let mut total = Complex64::default();
    for (i, part) in chunk.chunks(TURNS).enumerate() {
        let (mut re, mut im) = ([0.0f32; 8], [0.0f32; 8]);
        for (j, (x, turn)) in part.iter().zip(&turns).enumerate() {
            re[j % 8] += x.re * turn.re - x.im * turn.im;
            im[j % 8] += x.re * turn.im + x.im * turn.re;
        }
        let sum = Complex64::new(re.iter().map(|x| f64::from(*x)).sum(), im.iter().map(|x| f64::from(*x)).sum());
        total += sum * Complex64::cis(step * (i * TURNS) as f64);
    }
    total
}

/// How many numbers [`summarise`] makes.
pub const SUMMARY: usize = COUNT * STATISTICS.len();

/// Mean, population standard deviation, least and greatest of each feature over chunks, `[18, 4]`; whether there is a signal has no deviation.
/// Of no chunks all are 0.
pub fn summarise(chunks: &[[f64; COUNT]]) -> [f64; SUMMARY] {
    let mut all = [0.0; SUMMARY];
    if chunks.is_empty() {
        return all;
    }
    let n = chunks.len() as f64;
    for (feature, to) in all.chunks_exact_mut(STATISTICS.len()).enumerate() {
        let values = chunks.iter().map(|chunk| chunk[feature]);
        let mean = values.clone().sum::<f64>() / n;
        let variance = values.clone().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let deviation = if FEATURES[feature].name == "signal_present" { 0.0 } else { variance.sqrt() };
        let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
        to.copy_from_slice(&[mean, deviation, least, most]);
    }
    all
}
