//! Gains of paths over time.

use crate::random::Random;
use rustfft::num_complex::Complex64;
use std::f64::consts::{PI, TAU};

/// Waves that a gain is made of.
pub(super) const WAVES: usize = 16;

/// Rayleigh fading as a sum of waves from all directions (Xiao, Zheng and Beaulieu 2006): `E |h|^2 = 1`, the autocorrelation is `J0(2 pi fd tau)`.
#[derive(Debug, Clone)]
pub struct Rayleigh {
    /// Turns a sample and the phase of each wave, in turns.
    waves: [[f64; 2]; WAVES],
}

impl Rayleigh {
    /// With the greatest Doppler shift in turns a sample.
    pub fn new(random: Random, doppler: f64) -> Self {
        let wave = |n: usize| {
            let uniform = |index: u64| 2.0 * f64::from(random.uniform(2 * n as u64 + index)) - 1.0;
            [doppler * ((TAU * n as f64 + PI * uniform(0)) / WAVES as f64).cos(), 0.5 * uniform(1)]
        };
        Self { waves: std::array::from_fn(wave) }
    }

    /// The gain at a sample, which need not be whole.
    pub fn at(&self, sample: f64) -> Complex64 {
        let sum: Complex64 = self.waves.iter().map(|[turns, phase]| Complex64::cis(TAU * (turns * sample + phase))).sum();
        sum / (WAVES as f64).sqrt()
    }
}

/// The gain of a path.
#[derive(Debug, Clone)]
pub enum Gain {
    /// Nothing changes.
    Fixed(Complex64),
    /// Waves from all directions.
    Rayleigh(Rayleigh),
    /// The same beside one that is seen, whose power is so many times theirs.
    Rician {
        /// The ratio of powers K.
        ratio: f64,
        /// Turns a sample of what is seen, and its phase in turns.
        seen: [f64; 2],
        /// The others.
        scattered: Rayleigh,
    },
}

impl Gain {
    /// Rician fading: the wave that is seen comes from a direction of its own.
    pub fn rician(random: Random, doppler: f64, ratio: f64) -> Self {
        let seen = random.stream("seen");
        let turns = doppler * (TAU * f64::from(seen.uniform(0))).cos();
        Self::Rician { ratio, seen: [turns, f64::from(seen.uniform(1))], scattered: Rayleigh::new(random, doppler) }
    }

    /// The gain at a sample.
    pub fn at(&self, sample: f64) -> Complex64 {
        match self {
            Self::Fixed(gain) => *gain,
            Self::Rayleigh(fading) => fading.at(sample),
            Self::Rician { ratio, seen: [turns, phase], scattered } => {
                let seen = Complex64::cis(TAU * (turns * sample + phase));
                (ratio.sqrt() * seen + scattered.at(sample)) / (1.0 + ratio).sqrt()
            }
        }
    }
}

/// A gain as a sum of what does not change, of a wave that is seen and of waves from all directions.
#[cfg(feature = "cuda")]
pub(super) struct Parts {
    pub fixed: Complex64,
    /// What the wave that is seen is multiplied by, its turns a sample and its phase in turns.
    pub seen: (f64, [f64; 2]),
    /// The same of each of the others.
    pub scattered: (f64, [[f64; 2]; WAVES]),
}

#[cfg(feature = "cuda")]
impl Gain {
    /// The sum that it is; parts that it has not are 0.
    pub(super) fn parts(&self) -> Parts {
        let one = 1.0 / (WAVES as f64).sqrt();
        let none = Parts { fixed: Complex64::default(), seen: (0.0, [0.0; 2]), scattered: (0.0, [[0.0; 2]; WAVES]) };
        match self {
            Self::Fixed(gain) => Parts { fixed: *gain, ..none },
            Self::Rayleigh(fading) => Parts { scattered: (one, fading.waves), ..none },
            Self::Rician { ratio, seen, scattered } => {
                let whole = (1.0 + ratio).sqrt();
                Parts { seen: (ratio.sqrt() / whole, *seen), scattered: (one / whole, scattered.waves), ..none }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Bessel function of the first kind and order 0, by its integral.
    fn j0(x: f64) -> f64 {
        let n = 2000;
        (0..n).map(|i| (x * (PI * (f64::from(i) + 0.5) / f64::from(n)).sin()).cos()).sum::<f64>() / f64::from(n)
    }

    /// Mean and standard error over paths.
    fn over_paths(count: u64, of: impl Fn(&Rayleigh) -> f64) -> [f64; 2] {
        let values: Vec<f64> = (0..count).map(|i| of(&Rayleigh::new(Random::new(1).at(i), 50.0 / 10e3))).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        [mean, (variance / count as f64).sqrt()]
    }

    #[test]
    fn power_and_autocorrelation_are_those_of_waves_from_all_directions() {
        for lag in [0.0, 10.0, 40.0, 76.5, 150.0] {
            let [mean, error] = over_paths(4000, |path| (path.at(500.0 + lag) * path.at(500.0).conj()).re);
            let expected = j0(TAU * 50.0 / 10e3 * lag);
            assert!((mean - expected).abs() < 3.5 * error, "lag {lag}: {mean} +- {error}, expected {expected}");
        }
    }

    /// How often a second the magnitude rises through a level: `sqrt(2 pi) fd rho exp(-rho^2)`, 46.1 for 50 Hz and rho = 1. Sixteen waves are not infinitely
    /// many: they cross the root mean square 3.5% more often.
    #[test]
    fn levels_are_crossed_as_often_as_they_should() {
        for rho in [0.5, 1.0] {
            let crossings = |path: &Rayleigh| {
                let above: Vec<bool> = (0..10_000).map(|n| path.at(f64::from(n)).norm() > rho).collect();
                above.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64
            };
            let [mean, error] = over_paths(120, crossings);
            let expected = (TAU).sqrt() * 50.0 * rho * (-rho * rho).exp();
            assert!((mean - expected).abs() < 3.0 * error + 0.04 * expected, "{rho}: {mean} +- {error}, expected {expected}");
        }
    }

    #[test]
    fn a_seen_wave_has_its_share() {
        let values: Vec<f64> = (0..4000).map(|i| Gain::rician(Random::new(2).at(i), 0.005, 4.0).at(123.0).norm_sqr()).collect();
        let mean = values.iter().sum::<f64>() / 4000.0;
        // The variance of the power is (1 + 2 K) / (1 + K)^2.
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.03 && (variance - 0.36).abs() < 0.05, "{mean} {variance}");
    }
}
