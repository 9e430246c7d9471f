//! What an equation asks of an answer, whoever gave it: residuals by the schemes of the classical solvers, values on the edge, what is conserved, and energy
//! by wavelength.

use super::burgers::Burgers;
use super::darcy::{Darcy, solve};
use crate::{Error, Result};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex64;
use std::f64::consts::TAU;

/// Darcy flow through a medium `[places, places]` that is known at these places alone, by finite volumes on them: `[places, places]`. It is what knowing the
/// equation is worth; it differs from the flow through the medium that the places were taken from.
///
/// ```
/// use candle_models::fno::darcy::Darcy;
/// use candle_models::fno::physics::{darcy_residual, darcy_solution};
/// # fn main() -> candle_models::Result<()> {
/// let darcy = Darcy { places: 8, ..Darcy::default() };
/// let medium: Vec<f32> = (0..64).map(|place| (place / 3 % 2) as f32).collect();
/// let flow = darcy_solution(&darcy, &medium)?;
/// assert!(darcy_residual(&darcy, &medium, &flow)? < 1e-3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If a value of `darcy` is out of range, or the medium is of another size or not finite.
pub fn darcy_solution(darcy: &Darcy, medium: &[f32]) -> Result<Vec<f32>> {
    let (n, a) = (darcy.places, conductivity(darcy, medium)?);
    let u = solve(&a, n)?;
    Ok((0..n * n).map(|p| (darcy.scale * u[p / n * (n + 1) + p % n]) as f32).collect())
}

/// By how much `-div(a grad u)` misses 1 in the finite volumes of [`darcy_solution`] (five points, faces with the harmonic mean of the nodes beside them): the
/// root of the mean square over inner nodes. `medium` and `flow` are `[places, places]`. The flow counts as it is at the edges at 0, and as 0 at those at 1,
/// which lie outside of the grid.
///
/// # Errors
/// If a value of `darcy` is out of range, or a field is of another size.
pub fn darcy_residual(darcy: &Darcy, medium: &[f32], flow: &[f32]) -> Result<f64> {
    let (n, side, a) = (darcy.places, darcy.places + 1, conductivity(darcy, medium)?);
    sized("flow", flow, n * n)?;
    let u = |i: usize, j: usize| if i == n || j == n { 0.0 } else { f64::from(flow[i * n + j]) / darcy.scale };
    let mut squares = 0.0;
    for (i, j) in (1..n).flat_map(|i| (1..n).map(move |j| (i, j))) {
        let p = i * side + j;
        let through = |(k, l): (usize, usize)| {
            let q = k * side + l;
            2.0 * a[p] * a[q] / (a[p] + a[q]) * (u(i, j) - u(k, l))
        };
        let out: f64 = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)].into_iter().map(through).sum();
        squares += (out * (n * n) as f64 - 1.0).powi(2);
    }
    Ok((squares / ((n - 1) * (n - 1)) as f64).sqrt())
}

/// `a` at the nodes from 0 to 1 both ways: the last ones have the medium of those before them.
fn conductivity(darcy: &Darcy, medium: &[f32]) -> Result<Vec<f64>> {
    darcy.validate()?;
    let (n, side) = (darcy.places, darcy.places + 1);
    sized("medium", medium, n * n)?;
    let at = |p: usize| f64::from(medium[(p / side).min(n - 1) * n + (p % side).min(n - 1)]);
    Ok((0..side * side).map(|p| 1.0 + (darcy.contrast - 1.0) * at(p)).collect())
}

/// The greatest size of a flow `[places, places]` on the edges that lie on the grid, its first row and column, over that anywhere; 0 where all is 0. A
/// solution has 0.
pub fn darcy_edge(flow: &[f32], places: usize) -> f64 {
    let greatest = |of: &mut dyn Iterator<Item = &f32>| of.fold(0.0f32, |most, u| most.max(u.abs()));
    let edge = greatest(&mut flow.iter().enumerate().filter(|(p, _)| p / places == 0 || p % places == 0).map(|(_, u)| u));
    if edge == 0.0 { 0.0 } else { f64::from(edge / greatest(&mut flow.iter())) }
}

/// By how much `u_t + u u_x - nu u_xx` misses 0: the root of the mean square over places and between one time and the next of `[times, places]`, where slopes are
/// those of the waves through the places, and what is not `u_t` is the mean of both times. Coarse times and places alone make one: compare it with the truth's.
///
/// # Errors
/// If a value of `burgers` is out of range, or the states are of another size.
pub fn burgers_residual(burgers: &Burgers, states: &[f32]) -> Result<f64> {
    burgers.validate()?;
    let &Burgers { places, times, viscosity } = burgers;
    sized("states", states, times * places)?;
    let mut planner = FftPlanner::new();
    let (forward, inverse) = (planner.plan_fft_forward(places), planner.plan_fft_inverse(places));
    let flux = |state: &[f32]| {
        let mut spectrum: Vec<Complex64> = state.iter().map(|u| Complex64::new(f64::from(*u) / places as f64, 0.0)).collect();
        forward.process(&mut spectrum);
        let slope = |order: i32| {
            let mut values: Vec<Complex64> = spectrum
                .iter()
                .enumerate()
                // The wave that changes its sign from place to place has no slope, but it is curved.
                .map(|(i, u)| {
                    if order == 1 && 2 * i == places {
                        Complex64::default()
                    } else {
                        u * Complex64::new(0.0, TAU * wave(i, places)).powi(order)
                    }
                })
                .collect();
            inverse.process(&mut values);
            values
        };
        let of = |(u, (first, second)): (&f32, (Complex64, Complex64))| f64::from(*u) * first.re - viscosity * second.re;
        state.iter().zip(slope(1).into_iter().zip(slope(2))).map(of).collect::<Vec<f64>>()
    };
    let fluxes: Vec<f64> = states.chunks_exact(places).flat_map(flux).collect();
    let pairs = states.iter().zip(&states[places..]).zip(fluxes.iter().zip(&fluxes[places..]));
    let squares: f64 = pairs
        .map(|((before, after), (first, second))| {
            ((f64::from(*after) - f64::from(*before)) * (times - 1) as f64 + (first + second) / 2.0).powi(2)
        })
        .sum();
    Ok((squares / ((times - 1) * places) as f64).sqrt())
}

/// The greatest difference between the mean of a state of `[times, places]` and that of the beginning `[places]`. Where nothing flows in or out, as in Burgers'
/// equation or the vorticity of a flow, it is 0.
pub fn mean_drift(beginning: &[f32], states: &[f32]) -> f64 {
    let mean = |state: &[f32]| state.iter().map(|u| f64::from(*u)).sum::<f64>() / state.len() as f64;
    states.chunks_exact(beginning.len()).map(|state| (mean(state) - mean(beginning)).abs()).fold(0.0, f64::max)
}

/// Energy by wave number: `E(k) = 1/2 sum |u_k|^2` over the waves of a field `[n, m]` whose number is `k` when rounded, waves as parts of the grid (divided by
/// `n m`). From 0 to the greatest there is; all together they are half of the mean square.
///
/// # Errors
/// If the field is of another size, or empty.
pub fn spectrum(field: &[f32], [n, m]: [usize; 2]) -> Result<Vec<f64>> {
    sized("field", field, n * m)?;
    if field.is_empty() {
        return Err(Error::tensor("field", "places", "none"));
    }
    let (mut planner, count) = (FftPlanner::new(), (n * m) as f64);
    let mut rows: Vec<Complex64> = field.iter().map(|u| Complex64::new(f64::from(*u) / count, 0.0)).collect();
    planner.plan_fft_forward(m).process(&mut rows);
    let mut columns: Vec<Complex64> = (0..n * m).map(|p| rows[p % n * m + p / n]).collect();
    planner.plan_fft_forward(n).process(&mut columns);
    let shell = |i: usize, j: usize| wave(i, n).hypot(wave(j, m)).round() as usize;
    let mut energy = vec![0.0; shell(n / 2, m / 2) + 1];
    columns.iter().enumerate().for_each(|(p, u)| energy[shell(p % n, p / n)] += u.norm_sqr() / 2.0);
    Ok(energy)
}

/// The greatest relative difference of a spectrum from the truth's, over wave numbers from 1 to `most` (or the last that both have).
pub fn spectrum_error(found: &[f64], truth: &[f64], most: usize) -> f64 {
    let apart = |(found, truth): (&f64, &f64)| if found == truth { 0.0 } else { (found / truth - 1.0).abs() };
    found.iter().zip(truth).take(most + 1).skip(1).map(apart).fold(0.0, f64::max)
}

/// The signed number of wave `i` of `count`.
fn wave(i: usize, count: usize) -> f64 {
    if 2 * i <= count { i as f64 } else { i as f64 - count as f64 }
}

fn sized(name: &str, field: &[f32], places: usize) -> Result<()> {
    if field.len() == places { Ok(()) } else { Err(Error::tensor(name, format!("{places} places"), field.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_residual_of_a_solution_is_that_of_its_solver_and_grows_when_it_is_disturbed() {
        let darcy = Darcy { places: 12, ..Darcy::default() };
        let (mut medium, mut coarse) = (vec![0.0; 144], vec![0.0; 144]);
        darcy.generate(Random::new(1).at(0), &mut medium, &mut coarse).unwrap();
        let flow = darcy_solution(&darcy, &medium).unwrap();
        let residual = |flow: &[f32]| darcy_residual(&darcy, &medium, flow).unwrap();
        // Values of 32 bits, times 19 x 4 x 144 / 49.
        assert!(residual(&flow) < 1e-4, "{}", residual(&flow));
        // No flow at all misses all of it.
        assert!((residual(&[0.0; 144]) - 1.0).abs() < 1e-12);
        for place in [13, 70, 143] {
            let found = [0.01, 0.1].map(|by| {
                let mut disturbed = flow.clone();
                disturbed[place] += by;
                residual(&disturbed)
            });
            assert!(found[0] > 10.0 * residual(&flow) && found[1] > 5.0 * found[0], "{place}: {found:?}");
        }
        // Through the medium between the places it is another flow.
        assert!(residual(&coarse) > 0.1);
        assert_eq!((darcy_edge(&flow, 12), darcy_edge(&[0.0; 144], 12)), (0.0, 0.0));
        assert_eq!(darcy_edge(&[0.0, -1.0, 0.5, 4.0], 2), 0.25);
        for (medium, flow, name) in [(&medium[1..], &flow[..], "medium"), (&medium[..], &flow[1..], "flow")] {
            let error = darcy_residual(&darcy, medium, flow).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: expected 144 places, found 143")), "{error}");
        }
        assert!(darcy_solution(&Darcy { contrast: 0.0, ..darcy }, &medium).unwrap_err().to_string().contains("contrast"));
    }

    /// Of a smooth solution it is that of the coarse times, a quarter of which makes a sixteenth.
    #[test]
    fn the_residual_of_burgers_solutions_vanishes_with_the_step() {
        let beginning: Vec<f64> = (0..32).map(|i| 0.2 * (TAU * f64::from(i) / 32.0).sin()).collect();
        let states = |times: usize| {
            let burgers = Burgers { places: 32, times, viscosity: 0.05 };
            let mut states = vec![0.0; times * 32];
            burgers.solver().unwrap().continue_from(&beginning, &mut states).unwrap();
            (burgers, states)
        };
        let ([coarse, fine], (burgers, mut disturbed)) =
            ([9, 33].map(states).map(|(burgers, states)| burgers_residual(&burgers, &states).unwrap()), states(33));
        assert!(coarse < 0.05 && (10.0..20.0).contains(&(coarse / fine)), "{coarse} {fine}");
        disturbed[500] += 0.01;
        assert!(burgers_residual(&burgers, &disturbed).unwrap() > 5.0 * fine);
        let error = burgers_residual(&burgers, &disturbed[1..]).unwrap_err().to_string();
        assert!(error.contains("states: expected 1056 places, found 1055"), "{error}");
        let first: Vec<f32> = disturbed[..32].to_vec();
        assert!((mean_drift(&first, &disturbed) - 0.01 / 32.0).abs() < 1e-5);
        disturbed[500] -= 0.01;
        assert!(mean_drift(&first, &disturbed) < 1e-6);
    }

    #[test]
    fn a_wave_lies_in_its_shell_and_all_energy_is_half_of_the_mean_square() {
        let field = |[n, m]: [usize; 2], [k, l]: [f64; 2]| {
            let at = |p: usize| 3.0 + 0.5 * (TAU * (k * (p / m) as f64 / n as f64 + l * (p % m) as f64 / m as f64)).cos();
            (0..n * m).map(|p| at(p) as f32).collect::<Vec<f32>>()
        };
        // Half of the mean square of half a cosine: 1/16; of one that changes its sign from place to place twice as much.
        for (grid, waves, shell, energy) in [
            ([16, 12], [3.0, -4.0], 5, 0.0625),
            ([16, 12], [0.0, 2.0], 2, 0.0625),
            ([9, 15], [2.0, 2.0], 3, 0.0625),
            ([1, 16], [0.0, 8.0], 8, 0.125),
        ] {
            let found = spectrum(&field(grid, waves), grid).unwrap();
            for (k, found) in found.iter().enumerate() {
                let expected = if k == shell {
                    energy
                } else if k == 0 {
                    4.5
                } else {
                    0.0
                };
                assert!((found - expected).abs() < 1e-6, "{grid:?} {waves:?}, {k}: {found}");
            }
        }
        let mut noise = vec![0.0; 9 * 14];
        Random::new(1).fill_normal(0, &mut noise);
        let half = noise.iter().map(|u| f64::from(*u).powi(2)).sum::<f64>() / (2 * noise.len()) as f64;
        let found = spectrum(&noise, [9, 14]).unwrap();
        assert!((found.iter().sum::<f64>() - half).abs() < 1e-9);
        // Twice the field, four times the energy; the mean does not count, nor do shorter waves than asked for.
        let mut other: Vec<f64> = found.iter().map(|e| 4.0 * e).collect();
        assert!((spectrum_error(&other, &found, 3) - 3.0).abs() < 1e-12);
        other[1..=3].copy_from_slice(&found[1..=3]);
        assert_eq!(spectrum_error(&other, &found, 3), 0.0);
        assert!(spectrum(&noise, [3, 3]).unwrap_err().to_string().contains("field: expected 9 places, found 126"));
        assert!(spectrum(&[], [0, 3]).is_err());
    }
}
