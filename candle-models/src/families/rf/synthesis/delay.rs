//! What a signal was between its samples.

use rustfft::num_complex::Complex32;
use std::f64::consts::PI;
use std::sync::LazyLock;

/// Samples around a place that count.
const TAPS: usize = 16;
/// Places between two samples for which weights are kept; those between two of these are mixed.
const PHASES: usize = 256;
/// The shape of the window: side lobes are some 80 dB down.
const BETA: f64 = 8.0;

/// Interpolates by a sinc of 16 samples in a window of Kaiser.
#[derive(Debug, Clone)]
pub struct Interpolator {
    /// `[PHASES + 1, TAPS]`.
    weights: Vec<[f32; TAPS]>,
}

impl Default for Interpolator {
    fn default() -> Self {
        let half = TAPS as f64 / 2.0;
        let weight = |distance: f64| {
            let sinc = if distance == 0.0 { 1.0 } else { (PI * distance).sin() / (PI * distance) };
            let inside = 1.0 - (distance / half).powi(2);
            if inside > 0.0 { sinc * bessel(BETA * inside.sqrt()) / bessel(BETA) } else { 0.0 }
        };
        let row = |phase: usize| {
            let part = phase as f64 / PHASES as f64;
            let raw: [f64; TAPS] = std::array::from_fn(|tap| weight(part + half - 1.0 - tap as f64));
            // A signal that does not change is left as it is.
            let sum: f64 = raw.iter().sum();
            raw.map(|x| (x / sum) as f32)
        };
        Self { weights: (0..=PHASES).map(row).collect() }
    }
}

/// The modified Bessel function of the first kind and order 0, by its series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..40 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
    }
    sum
}

/// The one that everybody uses.
static SHARED: LazyLock<Interpolator> = LazyLock::new(Interpolator::default);

impl Interpolator {
    /// One whose table is made once in a process.
    pub fn shared() -> &'static Self {
        &SHARED
    }

    /// The weights of all taps for each of the places between two samples and the one behind them, `[257, 16]`.
    #[cfg(feature = "cuda")]
    pub(super) fn weights(&self) -> &[f32] {
        self.weights.as_flattened()
    }

    /// Samples that must lie before and behind a place.
    pub const REACH: usize = TAPS / 2;

    /// The signal at a place among its samples; what lies outside of it is zero.
    pub fn at(&self, signal: &[Complex32], place: f64) -> Complex32 {
        let whole = place.floor();
        let scaled = (place - whole) * PHASES as f64;
        let phase = (scaled as usize).min(PHASES - 1);
        let mix = (scaled - phase as f64) as f32;
        let first = whole as i64 - (TAPS as i64 / 2 - 1);
        let weight = |tap: usize| self.weights[phase][tap] + mix * (self.weights[phase + 1][tap] - self.weights[phase][tap]);
        let inside = first >= 0 && first as usize + TAPS <= signal.len();
        if inside {
            let near = &signal[first as usize..][..TAPS];
            return near.iter().enumerate().map(|(tap, x)| x * weight(tap)).sum();
        }
        let value = |tap: usize| usize::try_from(first + tap as i64).ok().and_then(|i| signal.get(i)).copied().unwrap_or_default();
        (0..TAPS).map(|tap| value(tap) * weight(tap)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rf::{narrow, wide};
    use rustfft::num_complex::Complex64;
    use std::f64::consts::TAU;

    /// A tone of up to 0.3 of the sample rate is what it was, to -70 dB; on a sample everything is.
    #[test]
    fn a_tone_is_what_it_was_between_its_samples() {
        let interpolator = Interpolator::default();
        for turns in [0.0, 0.03, -0.2, 0.3] {
            let tone = |place: f64| Complex64::cis(TAU * turns * place);
            let signal: Vec<Complex32> = (0..200).map(|n| tone(f64::from(n))).map(narrow).collect();
            for i in 0..500 {
                let place = 50.0 + 0.173 * f64::from(i);
                let (found, expected) = (interpolator.at(&signal, place), tone(place));
                let apart = wide(found) - expected;
                assert!(apart.norm() < 3e-4, "{turns} at {place}: {}", apart.norm());
            }
            assert!((interpolator.at(&signal, 100.0) - signal[100]).norm() < 1e-5);
        }
        assert_eq!(interpolator.at(&[Complex32::new(1.0, 0.0)], 40.0), Complex32::default());
    }
}
