//! A mixture of normal distributions over a plane: what a localiser answers with.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// Where a logarithm of a factor's diagonal ends: deviations from a tenth of a thousandth to 22000 units.
const MOST_LOG: f64 = 10.0;

/// A normal distribution over a plane.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gaussian {
    /// Its share of the mixture.
    pub weight: f64,
    /// Its mean.
    pub mean: [f64; 2],
    /// `[a, b, c]` of the factor `[[a, 0], [b, c]]` of its precision: `L^T (x - mean)` is standard normal.
    pub factor: [f64; 3],
}

impl Gaussian {
    /// The logarithm of its density at a point.
    pub fn log_density(&self, x: [f64; 2]) -> f64 {
        let [dx, dy] = [x[0] - self.mean[0], x[1] - self.mean[1]];
        let [a, b, c] = self.factor;
        let (u, v) = (a * dx + b * dy, c * dy);
        (a * c / TAU).ln() - 0.5 * (u * u + v * v)
    }

    /// The covariance `[xx, xy, yy]`.
    pub fn covariance(&self) -> [f64; 3] {
        let [a, b, c] = self.factor;
        // x = L^-T z.
        [(1.0 + (b / c).powi(2)) / (a * a), -b / (a * c * c), 1.0 / (c * c)]
    }
}

/// A mixture, its shares adding up to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mixture(pub Vec<Gaussian>);

impl Mixture {
    /// That of a network's outputs: logits `[K]`, means `[K, 2]`, factors `[K, 3]` (two logarithms and what is between them).
    ///
    /// # Errors
    /// If a number is not finite or the lengths do not fit.
    pub fn of(logits: &[f32], means: &[f32], factors: &[f32]) -> Result<Self> {
        let k = logits.len();
        if k == 0 || means.len() != 2 * k || factors.len() != 3 * k {
            return Err(Error::Input(format!("a mixture of {k}: found {} means and {} factors", means.len(), factors.len())));
        }
        let all = [logits, means, factors];
        if let Some(x) = all.iter().flat_map(|all| all.iter()).find(|x| !x.is_finite()) {
            return Err(Error::Input(format!("a mixture: expected finite numbers, found {x}")));
        }
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
        let part = |i: usize| {
            let [a, b, c] = [0, 1, 2].map(|j| f64::from(factors[3 * i + j]));
            let log = |x: f64| x.clamp(-MOST_LOG, MOST_LOG).exp();
            Gaussian {
                weight: f64::from(logits[i] - most).exp() / total,
                mean: [f64::from(means[2 * i]), f64::from(means[2 * i + 1])],
                factor: [log(a), b, log(c)],
            }
        };
        Ok(Self((0..k).map(part).collect()))
    }

    /// The logarithm of the density at a point.
    pub fn log_density(&self, x: [f64; 2]) -> f64 {
        let logs = self.0.iter().map(|part| part.weight.ln() + part.log_density(x));
        let most = logs.clone().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY { most } else { most + logs.map(|log| (log - most).exp()).sum::<f64>().ln() }
    }

    /// The point with the least mean square error.
    pub fn mean(&self) -> [f64; 2] {
        [0, 1].map(|i| self.0.iter().map(|part| part.weight * part.mean[i]).sum())
    }

    /// The least share of the mixture that lies where the density is greater than at a point: the point is in every region of highest density that
    /// holds more than that. From `draws` of the mixture, whose `uniform` and `normals` are given for each.
    pub fn level(&self, x: [f64; 2], draws: impl Iterator<Item = (f64, [f64; 2])>) -> f64 {
        let at = self.log_density(x);
        let (mut above, mut count) = (0u32, 0u32);
        for (uniform, normal) in draws {
            above += u32::from(self.log_density(self.draw(uniform, normal)) > at);
            count += 1;
        }
        f64::from(above) / f64::from(count.max(1))
    }

    /// The point that a uniform and two normal numbers stand for.
    pub fn draw(&self, uniform: f64, [u, v]: [f64; 2]) -> [f64; 2] {
        let mut left = uniform;
        let chosen = self.0.iter().find(|part| {
            left -= part.weight;
            left < 0.0
        });
        let Some(part) = chosen.or(self.0.last()) else { return [0.0; 2] };
        let [a, b, c] = part.factor;
        let y = v / c;
        [part.mean[0] + (u - b * y) / a, part.mean[1] + y]
    }
}
