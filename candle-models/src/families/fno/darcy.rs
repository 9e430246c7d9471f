//! Darcy flow on the unit square, `-div(a grad u) = 1` with `u = 0` on the edge: random media, and their solutions.
//!
//! Nodes are `i / n`, those of the edge at 0 among them and those at 1 not. The medium is the sign of a random smooth field: `a` is 1 or [`Darcy::contrast`].
//! Solutions are found on a finer grid by finite volumes, whose faces have the harmonic mean of the nodes beside them (second order where `a` is
//! smooth), with conjugate gradients, and read at the nodes of the coarse one.

use super::on_threads;
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use std::f64::consts::PI;
use std::ops::Range;

/// A source of fields. As the published files have them: a contrast of about 19, and solutions times about 49.
///
/// ```
/// use candle_models::fno::darcy::Darcy;
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let darcy = Darcy { places: 8, ..Darcy::default() };
/// let (mut medium, mut solution) = (vec![0.0; 64], vec![0.0; 64]);
/// darcy.generate(Random::new(7).at(0), &mut medium, &mut solution)?; // field 0 of seed 7, whoever asks
/// assert!(medium.iter().all(|x| *x == 0.0 || *x == 1.0) && solution[0] == 0.0 && solution[36] > 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Darcy {
    /// Nodes down and across, 2 to 512.
    pub places: usize,
    /// Nodes of the grid that is solved on for each of these, 1 to 16.
    pub finer: usize,
    /// What `a` is where the field is positive, and 1 elsewhere.
    pub contrast: f64,
    /// What solutions are multiplied by.
    pub scale: f64,
}

impl Default for Darcy {
    fn default() -> Self {
        Self { places: 16, finer: 4, contrast: 19.0, scale: 49.0 }
    }
}

/// The residual over the right-hand side at which a solution is one.
pub(super) const TOLERANCE: f64 = 1e-8;

impl Darcy {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        let within = crate::nn::within;
        within("places", self.places, 2..=512)?;
        within("finer", self.finer, 1..=16)?;
        for (field, value) in [("contrast", self.contrast), ("scale", self.scale)] {
            if !(1e-6..=1e6).contains(&value) {
                return Err(Error::config(field, format!("expected from 1e-6 to 1e6, found {value}")));
            }
        }
        Ok(())
    }

    /// A medium, 1 where `a` is [`Self::contrast`] and 0 where it is 1, and its solution: `[places, places]` both. `random` is the field's address.
    ///
    /// # Errors
    /// If a value is out of range, a length another one, or conjugate gradients do not converge.
    pub fn generate(&self, random: Random, medium: &mut [f32], solution: &mut [f32]) -> Result<()> {
        self.validate()?;
        let (n, count) = (self.places * self.finer, self.places * self.places);
        if medium.len() != count || solution.len() != count {
            return Err(Error::tensor("darcy", format!("{count} places"), format!("{} and {}", medium.len(), solution.len())));
        }
        let field = smooth(random, n + 1);
        let a: Vec<f64> = field.iter().map(|x| if *x > 0.0 { self.contrast } else { 1.0 }).collect();
        let u = solve(&a, n)?;
        for (at, (medium, solution)) in medium.iter_mut().zip(solution).enumerate() {
            let place = at / self.places * self.finer * (n + 1) + at % self.places * self.finer;
            *medium = f32::from(u8::from(field[place] > 0.0));
            *solution = (self.scale * u[place]) as f32;
        }
        Ok(())
    }

    /// Media and their solutions, f32 `[runs, 2, places, places]` on the device: on the CPU by all threads, on a GPU all at once. Run `n` has the address
    /// `random.at(n)`. What a GPU makes differs by rounding.
    ///
    /// # Errors
    /// If a value is out of range, the device has no memory, or conjugate gradients do not converge.
    pub fn generate_on(&self, random: Random, numbers: Range<u64>, device: &Device) -> Result<Tensor> {
        self.validate()?;
        let (runs, places) = (numbers.clone().count(), self.places);
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let (fields, unsolved) = super::cuda::darcy::run(self, random, numbers.clone(), device)?;
            return match unsolved {
                None => Ok(fields),
                Some(run) => Err(super::of_run(numbers.start + run, &diverged(places * self.finer))),
            };
        }
        let fields = on_threads(random, numbers, 2 * places * places, |random, fields| {
            let (medium, solution) = fields.split_at_mut(places * places);
            self.generate(random, medium, solution)
        })?;
        Ok(Tensor::from_vec(fields, (runs, 2, places, places), device)?)
    }
}

/// Amplitudes of waves `cos(pi k x) cos(pi l y)` of a random field, `[side, side]`: normal ones over `pi^2 (k^2 + l^2) + 9`, without their mean.
pub(super) fn amplitudes(random: Random, side: usize) -> Vec<f64> {
    let mut normal = vec![0.0f32; side * side];
    random.stream("field").fill_normal(0, &mut normal);
    let squares = |at: usize| (at / side).pow(2) + (at % side).pow(2);
    let of = |(at, normal): (usize, f32)| if at == 0 { 0.0 } else { f64::from(normal) / (PI * PI * squares(at) as f64 + 9.0) };
    normal.into_iter().enumerate().map(of).collect()
}

/// `cos(pi k x)` of the waves down and the nodes across, `[side, side]`.
pub(super) fn cosines(side: usize) -> Vec<f64> {
    (0..side * side).map(|at| (PI * (at / side * (at % side)) as f64 / (side - 1) as f64).cos()).collect()
}

/// A random field on `side` nodes from 0 to 1 both ways.
fn smooth(random: Random, side: usize) -> Vec<f64> {
    let (amplitudes, waves) = (amplitudes(random, side), cosines(side));
    // Rows of amplitudes to rows of values, then columns.
    let mut rows = vec![0.0; side * side];
    for k in 0..side {
        let row = &mut rows[k * side..][..side];
        for l in 0..side {
            let amplitude = amplitudes[k * side + l];
            row.iter_mut().zip(&waves[l * side..]).for_each(|(value, wave)| *value += amplitude * wave);
        }
    }
    let mut field = vec![0.0; side * side];
    for (i, line) in field.chunks_exact_mut(side).enumerate() {
        for k in 0..side {
            let wave = waves[k * side + i];
            line.iter_mut().zip(&rows[k * side..]).for_each(|(value, row)| *value += wave * row);
        }
    }
    field
}

/// The solution of `-div(a grad u) = 1` on `n + 1` nodes from 0 to 1 both ways, those of the edge included, `u = 0` there. `a` stands at the nodes.
///
/// # Errors
/// If conjugate gradients do not converge: `a` is not positive and finite.
pub fn solve(a: &[f64], n: usize) -> Result<Vec<f64>> {
    let side = n + 1;
    if n < 2 || a.len() != side * side {
        return Err(Error::Input(format!("darcy: expected a at {side} x {side} nodes, found {} values", a.len())));
    }
    let face = |p: usize, q: usize| 2.0 * a[p] * a[q] / (a[p] + a[q]);
    // Conductances to the node below and to the one on the right, times (1 / h)^2 over what the equation has on its right.
    let (mut down, mut right) = (vec![0.0; a.len()], vec![0.0; a.len()]);
    for i in 0..n {
        for j in 0..n {
            let p = i * side + j;
            (down[p], right[p]) = (face(p, p + side), face(p, p + 1));
        }
    }
    let inner = || (1..n).flat_map(move |i| i * side + 1..i * side + n);
    let diagonal: Vec<f64> =
        (0..a.len()).map(|p| if p > side { down[p] + down[p - side] + right[p] + right[p - 1] } else { 0.0 }).collect();
    let apply = |x: &[f64], y: &mut [f64]| {
        for p in inner() {
            y[p] =
                diagonal[p] * x[p] - down[p] * x[p + side] - down[p - side] * x[p - side] - right[p] * x[p + 1] - right[p - 1] * x[p - 1];
        }
    };
    let right_side = 1.0 / (n * n) as f64;
    let (mut u, mut r, mut q) = (vec![0.0; a.len()], vec![0.0; a.len()], vec![0.0; a.len()]);
    inner().for_each(|p| r[p] = right_side);
    let mut direction: Vec<f64> = r.iter().zip(&diagonal).map(|(r, d)| if *r == 0.0 { 0.0 } else { r / d }).collect();
    let mut along: f64 = r.iter().zip(&direction).map(|(r, z)| r * z).sum();
    let limit = (TOLERANCE * right_side).powi(2) * ((n - 1) * (n - 1)) as f64;
    for _ in 0..100 * n {
        apply(&direction, &mut q);
        let step = along / direction.iter().zip(&q).map(|(d, q)| d * q).sum::<f64>();
        for p in inner() {
            u[p] += step * direction[p];
            r[p] -= step * q[p];
        }
        let size: f64 = r.iter().map(|r| r * r).sum();
        if size <= limit {
            return Ok(u);
        }
        let next: f64 = inner().map(|p| r[p] * r[p] / diagonal[p]).sum();
        if !next.is_finite() {
            break;
        }
        let share = next / along;
        inner().for_each(|p| direction[p] = r[p] / diagonal[p] + share * direction[p]);
        along = next;
    }
    Err(diverged(n))
}

fn diverged(n: usize) -> Error {
    Error::Input(format!("darcy: conjugate gradients do not converge on {n} x {n} places: a must be positive and finite"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact value is that of the series of the square's torsion function.
    #[test]
    fn the_solution_converges_with_the_second_order() {
        let error = |n: usize| (solve(&vec![1.0; (n + 1) * (n + 1)], n).unwrap()[n / 2 * (n + 1) + n / 2] - 0.073_671_353_2).abs();
        let (coarse, fine) = (error(16), error(32));
        assert!(fine < 1e-4 && (3.5..4.5).contains(&(coarse / fine)), "{coarse} {fine}");
        // Twice as conductive, half as much.
        let twice = solve(&vec![2.0; 17 * 17], 16).unwrap()[8 * 17 + 8];
        assert!((twice - solve(&vec![1.0; 17 * 17], 16).unwrap()[8 * 17 + 8] / 2.0).abs() < 1e-8);
    }

    #[test]
    fn a_medium_turned_over_has_its_solution_turned_over() {
        let (mut x, mut y) = (vec![0.0; 144], vec![0.0; 144]);
        Darcy { places: 12, finer: 1, ..Darcy::default() }.generate(Random::new(1).at(3), &mut x, &mut y).unwrap();
        let a: Vec<f64> = smooth(Random::new(1).at(3), 13).iter().map(|x| if *x > 0.0 { 19.0 } else { 1.0 }).collect();
        let over: Vec<f64> = (0..169).map(|p| a[p % 13 * 13 + p / 13]).collect();
        let u = solve(&over, 12).unwrap();
        for (p, y) in y.iter().enumerate() {
            let (i, j) = (p / 12, p % 12);
            assert!((f64::from(*y) / 49.0 - u[j * 13 + i]).abs() < 1e-7, "{i} {j}");
        }
        assert!(x.contains(&0.0) && x.contains(&1.0));
    }

    #[test]
    fn fields_depend_on_their_address_alone_and_what_makes_no_sense_is_named() {
        let darcy = Darcy { places: 6, ..Darcy::default() };
        let draw = |seed: u64, at: u64| {
            let (mut x, mut y) = (vec![0.0; 36], vec![0.0; 36]);
            darcy.generate(Random::new(seed).at(at), &mut x, &mut y).unwrap();
            (x, y)
        };
        assert_eq!(draw(1, 5), draw(1, 5));
        assert!(draw(1, 5) != draw(1, 6) && draw(1, 5) != draw(2, 5));
        for (darcy, field) in [
            (Darcy { places: 1, ..darcy.clone() }, "places"),
            (Darcy { finer: 0, ..darcy.clone() }, "finer"),
            (Darcy { contrast: -1.0, ..darcy.clone() }, "contrast"),
            (Darcy { scale: f64::NAN, ..darcy.clone() }, "scale"),
        ] {
            assert!(darcy.validate().unwrap_err().to_string().contains(field));
        }
        for a in [f64::NAN, f64::INFINITY, 0.0] {
            let error = solve(&[a; 81], 8).unwrap_err().to_string();
            assert!(error.contains("do not converge"), "{error}");
        }
    }
}
