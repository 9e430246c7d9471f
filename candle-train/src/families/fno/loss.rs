//! What an operator minimises: relative errors of fields, with gradients.

use candle_core::Tensor;
use candle_models::Result;
use serde::{Deserialize, Serialize};

/// A norm by which the error of an answer is measured over that of the truth. The loss is the mean over answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Of the values.
    L2,
    /// Of the values and their slopes, central differences everywhere: around the edges as if the field were periodic, as neuraloperator has it.
    H1Periodic,
    /// The same with one-sided differences at the edges.
    H1,
}

/// A norm on a grid.
#[derive(Debug, Clone, Copy)]
pub struct RelativeLoss {
    norm: Norm,
    grid: [usize; 2],
}

impl RelativeLoss {
    /// On that grid. An axis with fewer than three places has no slopes.
    pub fn new(norm: Norm, grid: [usize; 2]) -> Self {
        Self { norm, grid }
    }

    /// The loss of each of `predicted` against `truth`, both `[N, n m C]`: `[N]`.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn of(&self, predicted: &Tensor, truth: &Tensor) -> Result<Tensor> {
        let error = self.squares(&(predicted - truth)?)?;
        // Where an answer is right to the bit its slope is 0 and not that of a root at 0.
        Ok(((error + 1e-20)? / self.squares(truth)?)?.sqrt()?)
    }

    /// The squares of the norm of each field.
    fn squares(&self, x: &Tensor) -> Result<Tensor> {
        let ([n, m], (rows, width)) = (self.grid, x.dims2()?);
        let mut total = x.sqr()?.sum(1)?;
        let shapes = [(rows, n, m * (width / (n * m))), (rows * n, m, width / (n * m))];
        for (places, shape) in self.grid.into_iter().zip(shapes) {
            if self.norm == Norm::L2 || places < 3 {
                continue;
            }
            let half = places as f64 / 2.0;
            for difference in self.differences(&x.reshape(shape)?)? {
                total = (total + (difference.sqr()?.reshape((rows, ()))?.sum(1)? * (half * half))?)?;
            }
        }
        Ok(total)
    }

    /// Differences over two steps along the second axis of `x` `[.., places, ..]`: twice the slopes, of all places between the edges and of either edge.
    fn differences(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let last = x.dim(1)? - 1;
        let at = |place: usize| x.narrow(1, place, 1);
        let inner = (x.narrow(1, 2, last - 1)? - x.narrow(1, 0, last - 1)?)?;
        let edges = match self.norm {
            Norm::H1Periodic => [(at(1)? - at(last)?)?, (at(0)? - at(last - 1)?)?],
            _ => {
                let one_sided = |[edge, next, third]: [usize; 3]| ((at(edge)? * 3.0)? - (at(next)? * 4.0)?)? + at(third)?;
                [one_sided([0, 1, 2])?, one_sided([last, last - 1, last - 2])?]
            }
        };
        let [first, end] = edges;
        Ok([inner, first, end])
    }
}

/// What is added to a variance, as a part of that of all answers: none is 0.
const LEAST: f64 = 1e-6;

/// The mean negative log-likelihood of `truth` where it is normal around `predicted`, which is taken as it is, with that `variance`: all `[N, n m C]`. `deviation`
/// is that of all answers, in units of which it is counted.
///
/// # Errors
/// If the shapes differ.
pub fn likelihood(predicted: &Tensor, variance: &Tensor, truth: &Tensor, deviation: f64) -> Result<Tensor> {
    let unit = deviation * deviation;
    let squares = ((predicted.detach() - truth)?.sqr()? / unit)?;
    let variance = ((variance / unit)? + LEAST)?;
    Ok(((variance.log()? + (squares / variance)?)? * 0.5)?.mean_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_models::fno::metrics::{relative_h1, relative_l2};
    use candle_models::random::Random;

    #[test]
    fn losses_are_the_metrics_of_the_library() {
        let grid = [5, 4];
        let mut values = [0.0; 80];
        Random::new(1).fill_normal(0, &mut values);
        let [p, y] = [&values[..40], &values[40..]];
        let tensor = |values: &[f32]| Tensor::from_slice(values, (2, 20), &Device::Cpu).unwrap();
        for norm in [Norm::L2, Norm::H1, Norm::H1Periodic] {
            let found = RelativeLoss::new(norm, grid).of(&tensor(p), &tensor(y)).unwrap().to_vec1::<f32>().unwrap();
            for (i, found) in found.iter().enumerate() {
                let (p, y) = (&p[20 * i..][..20], &y[20 * i..][..20]);
                let want = match norm {
                    Norm::L2 => relative_l2(p, y),
                    norm => relative_h1(p, y, grid, norm == Norm::H1Periodic),
                };
                assert!((f64::from(*found) - want).abs() < 1e-5, "{norm:?}: {found} {want}");
            }
        }
    }

    /// The likelihood is greatest where the variance is that of the errors, and no gradient reaches the answer.
    #[test]
    fn a_variance_is_likely_where_it_is_that_of_the_errors() {
        let truth = Tensor::new(&[[1f32, -1.0, 3.0, -3.0]], &Device::Cpu).unwrap();
        let answer = candle_core::Var::new(&[[0f32; 4]], &Device::Cpu).unwrap();
        let at = |variance: f64| {
            let variance = candle_core::Var::from_tensor(&(truth.ones_like().unwrap() * variance).unwrap()).unwrap();
            let value = likelihood(answer.as_tensor(), variance.as_tensor(), &truth, 2.0).unwrap();
            let gradients = value.backward().unwrap();
            assert!(gradients.get(&answer).is_none());
            (value.to_scalar::<f32>().unwrap(), gradients.get(&variance).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap())
        };
        let (best, flat) = at(5.0);
        assert!((best - 0.5 * (1.25f32.ln() + 1.0)).abs() < 1e-5 && flat.abs() < 1e-5, "{best} {flat}");
        assert!(at(4.0).0 > best && at(4.0).1 < 0.0 && at(6.0).0 > best && at(6.0).1 > 0.0);
    }

    #[test]
    fn an_exact_answer_has_a_finite_gradient() {
        let x = candle_core::Var::new(&[[1f32, 2.0, 3.0, 4.0]], &Device::Cpu).unwrap();
        let loss = RelativeLoss::new(Norm::H1, [1, 4]).of(x.as_tensor(), &x.as_detached_tensor()).unwrap();
        let grad = loss.sum_all().unwrap().backward().unwrap().get(&x).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(grad, [[0.0; 4]]);
    }
}
