//! Spectra as SciPy defines them: power densities by Welch's method and periodograms, and short-time Fourier transforms.
//!
//! Everything is computed in f64. Transforms are not normalised in either direction. Bins stand in the order of the transform: from 0 up, and of
//! two-sided spectra then from the most negative frequency up to 0; [`Density::ascending`] sorts them.
//!
//! ```
//! use candle_models::rf::Complex64;
//! use candle_models::rf::spectrum::{Sides, Welch, welch};
//!
//! # fn main() -> candle_models::Result<()> {
//! let tone: Vec<Complex64> = (0..4096).map(|n| Complex64::cis(0.3 * f64::from(n))).collect();
//! let density = welch(&tone, 1000.0, &Welch { sides: Sides::Two, ..Welch::default() })?;
//! assert_eq!(density.strongest().0, 46.875); // 0.3 / 2 pi of 1000 Hz is 47.7 Hz, on a grid of 3.9 Hz
//! # Ok(())
//! # }
//! ```

use crate::{Error, Result};
use rustfft::num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::f64::consts::TAU;
use std::sync::Arc;

/// What a segment is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Half a cosine's wave, periodic: `0.5 - 0.5 cos(2 pi n / N)`.
    Hann,
    /// Nothing.
    Rectangular,
}

impl Window {
    /// Its values, `[n]`.
    pub fn values(self, n: usize) -> Vec<f64> {
        let at = |i: usize| match self {
            // As SciPy has it, one sample alone is itself.
            Self::Hann if n == 1 => 1.0,
            Self::Hann => 0.5 - 0.5 * (TAU * i as f64 / n as f64).cos(),
            Self::Rectangular => 1.0,
        };
        (0..n).map(at).collect()
    }
}

/// Which frequencies a spectrum has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sides {
    /// From 0 to half of the sample rate: all there is to know of a real signal. Powers of negative frequencies are added to the positive ones.
    One,
    /// Negative ones too.
    Two,
}

impl Sides {
    /// How many bins a transform of that length has.
    pub fn bins(self, n: usize) -> usize {
        match self {
            Self::One => n / 2 + 1,
            Self::Two => n,
        }
    }
}

/// How a density is estimated. The default is SciPy's: segments of 256 samples, half of them shared with the next one, less their mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Welch {
    /// What a segment is multiplied by.
    pub window: Window,
    /// Samples of a segment; all samples where there are fewer.
    pub segment: usize,
    /// Samples that a segment shares with the next one.
    pub overlap: usize,
    /// Whether a segment loses its mean.
    pub less_mean: bool,
    /// Which frequencies there are.
    pub sides: Sides,
}

impl Default for Welch {
    fn default() -> Self {
        Self { window: Window::Hann, segment: 256, overlap: 128, less_mean: true, sides: Sides::One }
    }
}

/// A density of power over frequency.
#[derive(Debug, Clone, PartialEq)]
pub struct Density {
    /// Power a hertz in each bin.
    pub power: Vec<f64>,
    /// Which frequencies they are.
    pub sides: Sides,
    /// Hertz from a bin to the next.
    pub step: f64,
}

impl Density {
    /// The frequency of a bin, Hz.
    pub fn frequency(&self, bin: usize) -> f64 {
        let (n, bin) = (self.power.len(), bin as i64);
        let negative = self.sides == Sides::Two && bin >= (n as i64 + 1) / 2;
        (if negative { bin - n as i64 } else { bin }) as f64 * self.step
    }

    /// Frequencies and densities, the lowest frequency first.
    pub fn ascending(&self) -> impl Iterator<Item = (f64, f64)> {
        let first = match self.sides {
            Sides::One => 0,
            Sides::Two => self.power.len().div_ceil(2),
        };
        let order = (first..self.power.len()).chain(0..first);
        order.map(|bin| (self.frequency(bin), self.power[bin]))
    }

    /// The frequency with the greatest density, and that density; the first of equal ones.
    pub fn strongest(&self) -> (f64, f64) {
        let most = self.power.iter().enumerate().fold((0, f64::NEG_INFINITY), |most, (bin, x)| if *x > most.1 { (bin, *x) } else { most });
        (self.frequency(most.0), most.1)
    }
}

/// The density of a signal by the method of Welch (1967).
///
/// # Errors
/// If there are no samples, one is not finite, or the options or the rate are out of range.
pub fn welch(signal: &[Complex64], rate: f64, options: &Welch) -> Result<Density> {
    let segment = options.segment.min(signal.len());
    // SciPy lets half of the segment overlap where nobody says how much; more than there is cannot.
    let overlap = if segment < options.segment { segment / 2 } else { options.overlap };
    let mut estimate = Estimate::new(rate, &Welch { segment, overlap, ..*options })?;
    estimate.push(signal)?;
    estimate.density()
}

/// The density of a signal from a single segment without a window, less its mean.
///
/// # Errors
/// As [`welch`].
pub fn periodogram(signal: &[Complex64], rate: f64, sides: Sides) -> Result<Density> {
    welch(signal, rate, &Welch { window: Window::Rectangular, segment: signal.len(), overlap: 0, less_mean: true, sides })
}

/// A density that is estimated as its signal arrives.
pub struct Estimate {
    options: Welch,
    rate: f64,
    transform: Transform,
    /// Samples that did not fill a segment yet.
    left: Vec<Complex64>,
    sums: Vec<f64>,
    segments: u64,
}

impl Estimate {
    /// Of no samples yet.
    ///
    /// # Errors
    /// If the options or the rate are out of range.
    pub fn new(rate: f64, options: &Welch) -> Result<Self> {
        let Welch { window, segment, overlap, .. } = *options;
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::config("rate", format!("expected samples a second, above 0, found {rate}")));
        }
        let transform = Transform::new(window, segment, overlap)?;
        Ok(Self { sums: vec![0.0; segment], options: *options, rate, transform, left: Vec::new(), segments: 0 })
    }

    /// Takes the next samples.
    ///
    /// # Errors
    /// If one is not finite.
    pub fn push(&mut self, signal: &[Complex64]) -> Result<()> {
        finite(signal)?;
        self.left.extend_from_slice(signal);
        let Welch { segment, overlap, less_mean, .. } = self.options;
        let mut first = 0;
        while first + segment <= self.left.len() {
            let found = self.transform.of(&self.left[first..first + segment], less_mean);
            self.sums.iter_mut().zip(found).for_each(|(sum, x)| *sum += x.norm_sqr());
            (self.segments, first) = (self.segments + 1, first + segment - overlap);
        }
        self.left.drain(..first);
        Ok(())
    }

    /// How many segments there were.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// The mean over all segments.
    ///
    /// # Errors
    /// If there was no whole segment.
    pub fn density(&self) -> Result<Density> {
        let Welch { segment, sides, .. } = self.options;
        if self.segments == 0 {
            return Err(Error::Input(format!("a spectrum of segments of {segment} samples: there are only {}", self.left.len())));
        }
        let scale = 1.0 / (self.segments as f64 * self.rate * self.transform.power());
        let doubled = |bin: usize| sides == Sides::One && bin > 0 && 2 * bin != segment;
        let power = (0..sides.bins(segment)).map(|bin| self.sums[bin] * scale * if doubled(bin) { 2.0 } else { 1.0 });
        Ok(Density { power: power.collect(), sides, step: self.rate / segment as f64 })
    }
}

/// A short-time Fourier transform: what a signal is made of, frame by frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Stft {
    /// `[frames, bins]`.
    pub values: Vec<Complex64>,
    /// Bins of a frame.
    pub bins: usize,
    /// Seconds from a frame to the next; the first one is about the first sample.
    pub seconds: f64,
    /// Hertz from a bin to the next.
    pub hertz: f64,
}

/// The transform of a signal with zeros of half a segment at both ends, and as many more as fill the last segment; divided by the sum of the
/// window, so that a complex tone of amplitude 1 has magnitude 1 (`scipy.signal.stft` with its defaults).
///
/// # Errors
/// As [`welch`]; the mean is left where it is.
pub fn stft(signal: &[Complex64], rate: f64, options: &Welch) -> Result<Stft> {
    let Welch { window, segment, overlap, sides, .. } = *options;
    finite(signal)?;
    let mut transform = Transform::new(window, segment, overlap)?;
    let (half, step) = (segment / 2, segment - overlap);
    let mut padded = vec![Complex64::default(); half];
    padded.extend_from_slice(signal);
    padded.resize(padded.len() + half, Complex64::default());
    let missing = (step - (padded.len().saturating_sub(segment)) % step) % step;
    padded.resize((padded.len() + missing).max(segment), Complex64::default());
    let (bins, scale) = (sides.bins(segment), 1.0 / transform.window.iter().sum::<f64>());
    let mut values = Vec::with_capacity(bins * (padded.len() / step));
    for first in (0..=padded.len() - segment).step_by(step) {
        values.extend(transform.of(&padded[first..first + segment], false)[..bins].iter().map(|x| x * scale));
    }
    Ok(Stft { values, bins, seconds: step as f64 / rate, hertz: rate / segment as f64 })
}

/// The transform of windowed segments, with what it works in.
pub(super) struct Transform {
    fft: Arc<dyn Fft<f64>>,
    window: Vec<f64>,
    work: Vec<Complex64>,
    scratch: Vec<Complex64>,
}

impl Transform {
    pub fn new(window: Window, segment: usize, overlap: usize) -> Result<Self> {
        if segment == 0 || segment > 1 << 26 {
            return Err(Error::config("segment", format!("expected from 1 to {} samples, found {segment}", 1 << 26)));
        }
        if overlap >= segment {
            return Err(Error::config("overlap", format!("expected less than the {segment} samples of a segment, found {overlap}")));
        }
        let fft = FftPlanner::new().plan_fft_forward(segment);
        let scratch = vec![Complex64::default(); fft.get_inplace_scratch_len()];
        Ok(Self { window: window.values(segment), work: vec![Complex64::default(); segment], scratch, fft })
    }

    /// The transform of a segment.
    pub fn of(&mut self, segment: &[Complex64], less_mean: bool) -> &[Complex64] {
        let mean = if less_mean { segment.iter().sum::<Complex64>() / segment.len() as f64 } else { Complex64::default() };
        for ((to, x), window) in self.work.iter_mut().zip(segment).zip(&self.window) {
            *to = (x - mean) * window;
        }
        self.fft.process_with_scratch(&mut self.work, &mut self.scratch);
        &self.work
    }

    /// The sum of the window's squares.
    pub fn power(&self) -> f64 {
        self.window.iter().map(|w| w * w).sum()
    }
}

fn finite(signal: &[Complex64]) -> Result<()> {
    match signal.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!("sample {at}: expected finite numbers, found {}", signal[at]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1e-3), "{found} {expected}");
    }

    fn two_tones() -> Vec<Complex64> {
        (0..1024).map(|n| Complex64::cis(0.2 * TAU / 2.0 * f64::from(n)) + 0.5 * Complex64::cis(-0.5 * TAU / 2.0 * f64::from(n))).collect()
    }

    fn cosine() -> Vec<Complex64> {
        (0..1024).map(|n| Complex64::from((0.2 * TAU / 2.0 * f64::from(n)).cos())).collect()
    }

    /// Golden values of SciPy 1.17.1: `scripts/golden/rf_spectra.py` prints them.
    #[test]
    fn densities_are_those_of_scipy() {
        let two = welch(&two_tones(), 1000.0, &Welch { sides: Sides::Two, ..Welch::default() }).unwrap();
        let (frequency, most) = two.strongest();
        assert_eq!(frequency, 101.5625);
        close(most, 0.138_542_511_8);
        close(two.power[192], 0.042_666_662_3);
        assert_eq!(two.frequency(192), -250.0);
        close(two.power.iter().sum::<f64>() * two.step, 1.250_144_530_8);
        let (frequency, most) = periodogram(&two_tones(), 1000.0, Sides::Two).unwrap().strongest();
        assert_eq!(frequency, 99.609_375);
        close(most, 0.586_533_872_4);
        let one = welch(&cosine(), 1000.0, &Welch::default()).unwrap();
        assert_eq!(one.power.len(), 129);
        close(one.strongest().1, 0.069_271_232_0);
        close(one.power.iter().sum::<f64>() * one.step, 0.500_070_294_0);
    }

    #[test]
    fn short_time_transforms_are_those_of_scipy() {
        let found = stft(&cosine(), 1000.0, &Welch::default()).unwrap();
        assert_eq!((found.bins, found.values.len() / found.bins), (129, 9));
        let at = found.values[2 * 129 + 26];
        close(at.re, -0.364_456_645_9);
        close(at.im, -0.264_791_973_0);
        assert_eq!((found.seconds, found.hertz), (0.128, 3.906_25));
    }

    #[test]
    fn frequencies_ascend() {
        for n in [4, 5] {
            let density = Density { power: vec![1.0; n], sides: Sides::Two, step: 1.0 };
            let found: Vec<f64> = density.ascending().map(|(frequency, _)| frequency).collect();
            assert_eq!(found, if n == 4 { vec![-2.0, -1.0, 0.0, 1.0] } else { vec![-2.0, -1.0, 0.0, 1.0, 2.0] });
        }
    }

    #[test]
    fn a_signal_in_pieces_has_the_density_of_the_whole() {
        let (signal, options) = (two_tones(), Welch { segment: 100, overlap: 30, sides: Sides::Two, ..Welch::default() });
        let mut estimate = Estimate::new(8.0, &options).unwrap();
        for piece in signal.chunks(77) {
            estimate.push(piece).unwrap();
        }
        assert_eq!((estimate.segments(), estimate.density().unwrap()), (14, welch(&signal, 8.0, &options).unwrap()));
    }

    /// The power of a signal is the integral of its density, whatever the window, if the mean stays.
    #[test]
    fn a_density_adds_up_to_the_power() {
        let signal = two_tones();
        let power = signal[..1000].iter().map(Complex64::norm_sqr).sum::<f64>() / 1000.0;
        for sides in [Sides::One, Sides::Two] {
            let signal: Vec<Complex64> = if sides == Sides::One { cosine() } else { signal.clone() };
            let power = if sides == Sides::One { 0.5 } else { power };
            let whole = Welch { window: Window::Rectangular, segment: 1000, overlap: 0, less_mean: false, sides };
            let density = welch(&signal[..1000], 50.0, &whole).unwrap();
            assert!((density.power.iter().sum::<f64>() * density.step - power).abs() < 1e-9);
        }
    }

    #[test]
    fn what_has_no_spectrum_is_refused() {
        let refused = |result: Result<Density>, why: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let (signal, default) = (two_tones(), Welch::default());
        refused(welch(&[], 1.0, &default), "segment: expected from 1 ");
        refused(welch(&signal, 0.0, &default), "rate: expected samples a second, above 0, found 0");
        refused(welch(&signal, f64::NAN, &default), "rate");
        refused(welch(&signal, 1.0, &Welch { overlap: 256, ..default }), "overlap: expected less than the 256 samples");
        refused(welch(&[Complex64::new(f64::INFINITY, 0.0); 4], 1.0, &default), "sample 0: expected finite numbers");
        refused(Estimate::new(1.0, &default).unwrap().density(), "segments of 256 samples: there are only 0");
        assert_eq!(welch(&signal[..1], 1.0, &default).unwrap().power, [0.0]);
    }
}
