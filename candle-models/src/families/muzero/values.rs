//! Values as distributions over fixed numbers, the atoms.
//!
//! Large values are put where a transform makes them dense near zero (Pohlen et al. 2018): atom i lies at `h^-1(i)`, where
//! `h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x`. A number between two atoms is a mixture of both whose mean it is, so that the mean of a distribution is
//! the value itself, without a transform behind it (as Hafner et al. 2023 have it).
//!
//! ```
//! use candle_models::muzero::{Support, values::two_hot};
//!
//! let atoms = Support::Plain { size: 2 }.atoms(); // -2, -1, 0, 1, 2
//! let mut weights = [0.0; 5];
//! two_hot(&atoms, 0.25, &mut weights);
//! assert_eq!(weights, [0.0, 0.0, 0.75, 0.25, 0.0]);
//! ```

/// What keeps the transform invertible.
const SLOPE: f64 = 0.001;

/// `h(x)`.
pub fn transformed(x: f64) -> f64 {
    x.signum() * ((x.abs() + 1.0).sqrt() - 1.0) + SLOPE * x
}

/// `x` of `h(x)`.
pub fn original(y: f64) -> f64 {
    let root = (1.0 + 4.0 * SLOPE * (y.abs() + 1.0 + SLOPE)).sqrt();
    y.signum() * (((root - 1.0) / (2.0 * SLOPE)).powi(2) - 1.0)
}

/// The mixture of the two neighbouring atoms whose mean is `x`; beyond the last atom that one alone. Writes a weight for each atom, which ascend.
pub fn two_hot(atoms: &[f32], x: f32, weights: &mut [f32]) {
    weights.fill(0.0);
    let above = atoms.partition_point(|atom| *atom <= x);
    match (above.checked_sub(1), above < atoms.len()) {
        (Some(below), true) => {
            let share = (x - atoms[below]) / (atoms[above] - atoms[below]);
            (weights[below], weights[above]) = (1.0 - share, share);
        }
        (Some(last), false) => weights[last] = 1.0,
        (None, _) => weights[0] = 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values of the transform by its definition, in f64.
    #[test]
    fn the_transform_is_that_of_the_paper() {
        for (x, y) in [(1.0, 0.4152136), (10.0, 2.3266248), (-100.0, -9.1498756), (300.0, 16.6493516), (0.0, 0.0)] {
            assert!((transformed(x) - y).abs() < 5e-8, "h({x}) = {}", transformed(x));
            assert!((original(transformed(x)) - x).abs() < 1e-9 * (1.0 + x.abs()), "{x}");
        }
    }

    #[test]
    fn a_mixture_has_the_mean_that_it_was_made_for() {
        let atoms: Vec<f32> = (-20..=20).map(|i| original(f64::from(i)) as f32).collect();
        let mut weights = vec![0.0; atoms.len()];
        for x in [-400.0, -17.3, -0.01, 0.0, 0.2, 1.0, 259.12, 420.0] {
            two_hot(&atoms, x, &mut weights);
            let mean: f32 = weights.iter().zip(&atoms).map(|(w, atom)| w * atom).sum();
            assert!((mean - x).abs() < 1e-4 * (1.0 + x.abs()), "{x}: {mean}");
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6 && weights.iter().filter(|w| **w > 0.0).count() <= 2);
        }
        for (beyond, at) in [(1e6, 40), (-1e6, 0)] {
            two_hot(&atoms, beyond, &mut weights);
            assert_eq!(weights[at], 1.0);
        }
    }
}
