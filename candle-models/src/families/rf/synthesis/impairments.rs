//! What amplifiers, mixers and converters do to a signal.

use crate::rf::Complex64;
use serde::{Deserialize, Serialize};

/// An amplifier without memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Amplifier {
    /// A solid-state one (Rapp 1991): `r / (1 + (r / A)^2p)^(1 / 2p)`, the phase as it was.
    Rapp {
        /// The smoothness p, 2 to 3.
        smoothness: f64,
        /// How far the signal's root mean square lies below the saturation A, dB.
        back_off_db: f64,
    },
    /// A travelling-wave tube (Saleh 1981): `2.1587 r / (1 + 1.1517 r^2)`, turned by `4.0033 r^2 / (1 + 9.1040 r^2)` radians.
    Saleh {
        /// How far the signal's root mean square lies below the input of 1, dB.
        back_off_db: f64,
    },
}

impl Amplifier {
    /// What it makes of a sample whose magnitude is in units of the saturation.
    pub fn amplify(&self, x: Complex64) -> Complex64 {
        let r = x.norm();
        match self {
            Self::Rapp { smoothness, .. } => x / (1.0 + r.powf(2.0 * smoothness)).powf(0.5 / smoothness),
            Self::Saleh { .. } => x * 2.1587 / (1.0 + 1.1517 * r * r) * Complex64::cis(4.0033 * r * r / (1.0 + 9.1040 * r * r)),
        }
    }

    /// By what a signal with a mean power of 1 is multiplied before it.
    pub(super) fn drive(&self) -> f64 {
        10f64.powf(-self.back_off_db() / 20.0)
    }

    /// The back-off, dB.
    pub fn back_off_db(&self) -> f64 {
        match self {
            Self::Rapp { back_off_db, .. } | Self::Saleh { back_off_db } => *back_off_db,
        }
    }
}

/// A mixer whose two branches differ: `y = alpha x + beta x*`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Imbalance {
    pub(super) alpha: Complex64,
    pub(super) beta: Complex64,
}

impl Imbalance {
    /// By how much one branch is stronger, dB, and by how many degrees they are not at right angles.
    pub fn new(gain_db: f64, phase_degrees: f64) -> Self {
        let (gain, phase) = (10f64.powf(gain_db / 20.0), phase_degrees.to_radians());
        Self { alpha: (1.0 + gain * Complex64::cis(-phase)) / 2.0, beta: (1.0 - gain * Complex64::cis(phase)) / 2.0 }
    }

    /// The power of a tone over that of its image, dB.
    pub fn image_rejection_db(&self) -> f64 {
        10.0 * (self.alpha.norm_sqr() / self.beta.norm_sqr()).log10()
    }

    /// What comes out.
    pub fn apply(&self, x: Complex64) -> Complex64 {
        self.alpha * x + self.beta * x.conj()
    }
}

/// A converter: `2^bits` steps from -full scale to full scale, the first above zero at half a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Converter {
    pub(super) full_scale: f64,
    pub(super) step: f64,
}

impl Converter {
    /// Of so many bits, from the negative to the positive full scale.
    pub fn new(bits: u32, full_scale: f64) -> Self {
        Self { full_scale, step: 2f64.powi(1 - bits as i32) * full_scale }
    }

    /// Whether a part of a sample is beyond the full scale.
    pub fn clips(&self, x: f64) -> bool {
        x.abs() > self.full_scale
    }

    /// The number that stands for a part of a sample.
    pub fn convert(&self, x: f64) -> f64 {
        let most = self.full_scale - self.step / 2.0;
        ((x / self.step).floor() * self.step + self.step / 2.0).clamp(-most, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplifiers_have_their_golden_values() {
        let rapp = Amplifier::Rapp { smoothness: 2.0, back_off_db: 0.0 };
        for (r, expected) in [(0.5, 0.492_479_1), (1.0, 0.840_896_4)] {
            assert!((rapp.amplify(Complex64::new(0.0, r)) - Complex64::new(0.0, expected)).norm() < 1e-7);
        }
        let found = Amplifier::Saleh { back_off_db: 0.0 }.amplify(Complex64::new(0.5, 0.0));
        assert!((found.norm() - 0.838_053_5).abs() < 1e-7 && (found.arg() - 0.305_502_1).abs() < 1e-7);
    }

    #[test]
    fn images_are_rejected_as_they_should() {
        for (gain, phase, expected) in [(1.0, 0.0, 24.806), (0.0, 2.0, 35.162), (1.0, 2.0, 24.424)] {
            assert!((Imbalance::new(gain, phase).image_rejection_db() - expected).abs() < 5e-4);
        }
        let x = Complex64::new(0.3, -0.7);
        assert!((Imbalance::new(0.0, 0.0).apply(x) - x).norm() < 1e-12);
    }

    /// A sine over the full scale has 6.02 b + 1.76 dB over the error of its steps.
    #[test]
    fn converters_have_the_noise_of_their_bits() {
        for bits in [6, 8, 12] {
            let converter = Converter::new(bits, 2.0);
            let error = |n: i32| {
                let x = 2.0 * (f64::from(n) * 0.377_77).sin();
                (converter.convert(x) - x).powi(2)
            };
            let noise = (0..100_000).map(error).sum::<f64>() / 100_000.0;
            let found = 10.0 * (2.0 / noise).log10();
            assert!((found - (6.02 * f64::from(bits) + 1.76)).abs() < 0.3, "{bits}: {found}");
        }
        let converter = Converter::new(2, 1.0);
        assert_eq!([-9.0, -0.6, -0.1, 0.1, 0.6, 9.0].map(|x| converter.convert(x)), [-0.75, -0.75, -0.25, 0.25, 0.75, 0.75]);
    }
}
