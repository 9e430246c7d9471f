//! What is random at the roots: addressed, so that no root's numbers depend on the others of a batch.

use super::method::{Method, Puct};
use crate::random::{Random, categorical};
use crate::{Error, Result};
use std::ops::Range;

/// Where the random numbers of a search come from.
#[derive(Debug, Clone, Copy)]
pub enum Noise<'a> {
    /// Nowhere, as in evaluation: the root's prior is as it is, ties go to the lower action, and PUCT takes the most visited action.
    None,
    /// An address for each root, of which every one should be used once: that of a game and a move.
    Rows(&'a [Random]),
    /// These numbers at the roots, `[n, A]`: Gumbel's, or a draw from the Dirichlet distribution. Otherwise as [`None`](Self::None).
    Given(&'a [f32]),
}

impl Noise<'_> {
    /// Refuses numbers or addresses for another number of roots.
    pub(super) fn check(&self, rows: usize, actions: usize) -> Result<()> {
        let (name, found, expected) = match self {
            Self::None => return Ok(()),
            Self::Rows(addresses) => ("random addresses", addresses.len(), rows),
            Self::Given(numbers) => ("noise", numbers.len(), rows * actions),
        };
        if found == expected { Ok(()) } else { Err(Error::tensor(name, format!("{expected} of {rows} roots"), found)) }
    }

    /// That of some of `of` roots.
    pub(super) fn part(&self, rows: Range<usize>, of: usize) -> Self {
        match *self {
            Self::None => Self::None,
            Self::Rows(addresses) => Self::Rows(&addresses[rows]),
            Self::Given(numbers) => {
                let each = numbers.len() / of;
                Self::Given(&numbers[rows.start * each..rows.end * each])
            }
        }
    }

    fn row(&self, row: usize) -> Option<Random> {
        if let Self::Rows(addresses) = self { Some(addresses[row]) } else { None }
    }

    /// Writes the numbers of a root, one for each action.
    pub(super) fn draw(&self, method: &Method, row: usize, to: &mut [f32]) {
        match (self, method) {
            (Self::None, _) => to.fill(0.0),
            (Self::Given(values), _) => to.copy_from_slice(&values[row * to.len()..(row + 1) * to.len()]),
            (Self::Rows(addresses), Method::Gumbel(_)) => {
                addresses[row].stream("gumbel").fill_uniform(0, to);
                to.iter_mut().for_each(|u| *u = gumbel(*u));
            }
            (Self::Rows(addresses), Method::Puct(puct)) => dirichlet(addresses[row].stream("dirichlet"), puct.dirichlet_alpha.into(), to),
        }
    }

    /// What breaks ties at the nodes of a row: 0 where the lower action wins.
    pub(super) fn ties(&self, row: usize) -> u32 {
        self.row(row).map_or(0, |address| address.stream("ties").bits(0) | 1)
    }

    /// The part of the Dirichlet noise in the root's prior.
    pub(super) fn fraction(&self, puct: &Puct) -> f32 {
        if matches!(self, Self::None) { 0.0 } else { puct.dirichlet_fraction }
    }

    /// An action in proportion to `visits^(1 / temperature)`.
    pub(super) fn act(&self, puct: &Puct, row: usize, mut visits: impl Iterator<Item = u32> + Clone) -> usize {
        let most = visits.clone().max().unwrap_or(0);
        match self.row(row) {
            Some(address) if puct.temperature > 0.0 => {
                let weight = |n: u32| (n as f32 / most as f32).powf(1.0 / puct.temperature);
                categorical(address.stream("action").uniform(0), visits.map(weight))
            }
            _ => visits.position(|n| n == most).unwrap_or(0),
        }
    }
}

/// A number from Gumbel's distribution, of one in [0, 1) with 24 bits: in f64, which has room on both sides of them.
fn gumbel(uniform: f32) -> f32 {
    const HALF: f64 = 1.0 / 33_554_432.0;
    -(-(f64::from(uniform) + HALF).ln()).ln() as f32
}

/// A draw from a symmetric Dirichlet distribution: gamma numbers, divided by their sum.
fn dirichlet(random: Random, alpha: f64, to: &mut [f32]) {
    let mut sum = 0.0;
    for (action, to) in to.iter_mut().enumerate() {
        let drawn = gamma(random.at(action as u64), alpha);
        // A small alpha gives numbers below those that f32 has: they are nothing beside the largest.
        *to = drawn as f32;
        sum += f64::from(*to);
    }
    let even = 1.0 / to.len() as f32;
    to.iter_mut().for_each(|x| *x = if sum > 0.0 { (f64::from(*x) / sum) as f32 } else { even });
}

/// A number from the gamma distribution (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000), by
/// `gamma(a) = gamma(a + 1) u^(1 / a)` for an `alpha` below 1.
fn gamma(random: Random, alpha: f64) -> f64 {
    const HALF: f64 = 1.0 / 33_554_432.0;
    let [normals, uniforms] = ["normal", "uniform"].map(|name| random.stream(name));
    let uniform = |index| f64::from(uniforms.uniform(index)) + HALF;
    let (shape, boost) = if alpha < 1.0 { (alpha + 1.0, uniform(0).powf(1.0 / alpha)) } else { (alpha, 1.0) };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let mut tries = 0..;
    let accepted = tries.find_map(|i| {
        let x = f64::from(normals.normal(i));
        let v = (1.0 + c * x).powi(3);
        (v > 0.0 && uniform(i + 1).ln() < 0.5 * x * x + d - d * v + d * v.ln()).then_some(d * v)
    });
    // At least 19 of 20 tries are accepted.
    accepted.unwrap_or(d) * boost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn gamma_numbers_have_their_mean_and_variance() {
        for alpha in [0.03, 0.3, 1.0, 4.5] {
            let values: Vec<f64> = (0..40_000).map(|i| gamma(Random::new(1).at(i), alpha)).collect();
            let (mean, variance) = moments(&values);
            // Both are alpha; the mean of so many is within 5 of its standard errors.
            assert!((mean - alpha).abs() < 5.0 * (alpha / 40_000.0).sqrt(), "alpha {alpha}: mean {mean}");
            let fourth = 3.0 * alpha * alpha + 6.0 * alpha;
            assert!((variance - alpha).abs() < 5.0 * (fourth / 40_000.0).sqrt(), "alpha {alpha}: variance {variance}");
        }
    }

    #[test]
    fn gumbel_numbers_have_their_mean_and_variance_and_are_finite() {
        let mut values = vec![0.0; 40_000];
        let rows = [Random::new(1)];
        Noise::Rows(&rows).draw(&Method::Gumbel(Default::default()), 0, &mut values);
        let (mean, variance) = moments(&values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        assert!((mean - 0.577_216).abs() < 0.03 && (variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.06, "{mean} {variance}");
        assert!(gumbel(0.0).is_finite() && gumbel(1.0 - 1.0 / 16_777_216.0).is_finite());
    }

    #[test]
    fn a_dirichlet_draw_adds_up_to_one_even_where_alpha_is_tiny() {
        for alpha in [1e-4, 0.03, 0.3, 10.0] {
            for i in 0..200 {
                let mut x = [0.0; 7];
                dirichlet(Random::new(2).at(i), alpha, &mut x);
                let sum: f32 = x.iter().sum();
                assert!((sum - 1.0).abs() < 1e-5 && x.iter().all(|x| (0.0..=1.0).contains(x)), "{x:?}");
            }
        }
    }

    #[test]
    fn temperature_turns_visits_into_chances() {
        let visits = [30, 10, 0, 20];
        let rows: Vec<Random> = (0..20_000).map(|i| Random::new(3).at(i)).collect();
        let counts = |temperature| {
            let puct = Puct { temperature, ..Puct::default() };
            let mut counts = [0; 4];
            (0..rows.len()).for_each(|row| counts[Noise::Rows(&rows).act(&puct, row, visits.into_iter())] += 1);
            counts.map(|n| f64::from(n) / rows.len() as f64)
        };
        for (temperature, expected) in [(1.0, [0.5, 1.0 / 6.0, 0.0, 1.0 / 3.0]), (0.5, [9.0 / 14.0, 1.0 / 14.0, 0.0, 4.0 / 14.0])] {
            let found = counts(temperature);
            assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 0.02), "{temperature}: {found:?}");
        }
        assert_eq!(counts(0.0), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(Noise::None.act(&Puct::default(), 0, visits.into_iter()), 0);
    }
}
