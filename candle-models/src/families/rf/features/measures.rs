//! From what is measured of a chunk to its features: the same formulas for every device.

use super::{COUNT, Form};
use rustfft::num_complex::Complex32;

/// What is measured of a chunk. Its bins are those of its transform, their powers divided by N; places count them from the lowest frequency up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Measures {
    /// Mean power of a sample.
    pub power: f64,
    /// Largest power of a sample.
    pub most: f64,
    /// Mean magnitude of a sample.
    pub mean: f64,
    /// Variance of the magnitude.
    pub variance: f64,
    /// Changes of the real part's sign.
    pub crossings: f64,
    /// Power of the strongest bin.
    pub peak: f64,
    /// The strongest frequency, in bins from the centre.
    pub strongest: f64,
    /// Bins with more than half of the strongest one's power.
    pub strong: f64,
    /// The power of all bins.
    pub total: f64,
    /// The sum of powers times places.
    pub moment: f64,
    /// The place below which 85% of the power lies.
    pub rolloff: f64,
    /// The median of the lowest bins.
    pub lowest: f64,
    /// Of the lags whose squared autocorrelation counts: how many there are, and the sums of these squares, of squares times lags, and of squares times
    /// squared lags.
    pub lags: [f64; 4],
}

/// The share of the bins, the lowest ones, whose median is the noise floor.
pub(super) const LOWEST: f64 = 0.3;
/// The median of the lowest 30% of exponentially distributed numbers is their quantile of 15%: that much of their mean.
const MEDIAN_OF_LOWEST: f64 = 0.162_518_929_497_774_9;
/// The least signal-to-noise ratio that the repaired form knows: a thousandth, -30 dB.
const LEAST_SNR: f64 = 1e-3;
/// The signal-to-noise ratio of a chunk in which every bin of the lowest is empty, in dB.
const MOST_SNR: f64 = 200.0;

/// What the features of a chunk depend on beside its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Definition {
    /// Samples a second.
    pub rate: f64,
    /// Samples of a chunk, N.
    pub samples: usize,
    /// Which definitions count.
    pub form: Form,
}

impl Definition {
    /// What is added wherever something is divided by.
    pub fn eps(&self) -> f64 {
        match self.form {
            Form::Compatible => 1e-12,
            Form::Repaired => 0.0,
        }
    }

    /// Why a chunk of that mean power has no features, if it has none.
    pub fn refusal(&self, power: f64, chunk: &[Complex32]) -> Option<String> {
        if !power.is_finite() {
            let at = chunk.iter().position(|x| !x.is_finite());
            let what = at.map_or_else(|| "its power is beyond f32".to_owned(), |at| format!("sample {at} is {}", chunk[at]));
            return Some(format!("expected finite numbers, {what}"));
        }
        let empty = self.form == Form::Repaired && power == 0.0;
        empty.then(|| "all of its samples are 0, and it has no features".to_owned())
    }

    /// The features of a chunk of which that was measured.
    pub fn features(&self, of: &Measures) -> [f64; COUNT] {
        let (eps, n) = (self.eps(), self.samples as f64);
        // A distance in bins as one in hertz.
        let hertz = |bins: f64| bins * self.rate / n;
        let centre = (self.samples / 2) as f64;
        let spread = self.spread(of.lags);
        let (signal, noise) = match self.form {
            Form::Compatible => (of.power, of.lowest),
            Form::Repaired => {
                let noise = of.lowest / MEDIAN_OF_LOWEST;
                ((of.power - noise).max(LEAST_SNR * noise), noise)
            }
        };
        let snr = if noise + eps > 0.0 { 10.0 * (signal / (noise + eps)).log10() } else { MOST_SNR };
        let dbm = |watts: f64| 10.0 * (watts + eps).log10() + 30.0;
        let full = match self.form {
            Form::Compatible => of.most.sqrt() + eps,
            Form::Repaired => of.power.sqrt(),
        };
        let confidence = match (self.form, spread) {
            (_, 0.0) => 0.0,
            (Form::Compatible, _) => published_confidence(snr),
            (Form::Repaired, _) => (snr / 15.0).clamp(0.0, 1.0),
        };
        [
            dbm(of.power),
            snr,
            if noise + eps > 0.0 { dbm(noise) } else { dbm(of.power) - MOST_SNR },
            hertz(of.strongest),
            hertz(of.strong),
            dbm(of.peak / self.rate),
            hertz(of.moment - centre * of.total) / (of.total + eps),
            hertz(of.rolloff - centre),
            of.mean / full,
            of.variance.max(0.0).sqrt() / full,
            of.most.sqrt() / full,
            10.0 * (of.most / (of.power + eps)).log10(),
            of.crossings / n,
            1e6 * spread,
            if spread > 0.0 { 1e-3 / (5.0 * spread + eps) } else { 0.0 },
            confidence,
            f64::from(u8::from(snr > 0.0)),
            (snr / 30.0).clamp(0.0, 1.0),
        ]
    }

    /// The root mean square width of the squared autocorrelation, in seconds: 0 where no second lag counts.
    fn spread(&self, [count, sum, first, second]: [f64; 4]) -> f64 {
        if count < 2.0 { 0.0 } else { (second / sum - (first / sum).powi(2)).max(0.0).sqrt() / self.rate }
    }
}

/// As published: it jumps down at 10 dB.
fn published_confidence(snr: f64) -> f64 {
    match snr {
        snr if snr > 15.0 => 1.0,
        snr if snr > 10.0 => 0.5 + (snr - 10.0) / 10.0,
        snr if snr > 5.0 => 0.3 + (snr - 5.0) / 10.0,
        snr => (snr / 15.0).max(0.0),
    }
}
