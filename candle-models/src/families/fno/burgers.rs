//! Burgers' equation on a periodic line of length 1, `u_t + u u_x = nu u_xx`: random smooth beginnings, and what becomes of them.
//!
//! Solved in waves: diffusion exactly by an integrating factor, what is left by Runge and Kutta's method of fourth order, products without the upper third
//! of the waves, which they would fold back.

use super::on_threads;
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use rustfft::num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

/// A source of fields. As the published files have them: beginnings are waves with normal amplitudes of `625 / ((2 pi k)^2 + 25)^2`.
///
/// ```
/// use candle_models::fno::burgers::Burgers;
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let solver = Burgers::default().solver()?;
/// let mut states = vec![0.0; 17 * 16];
/// solver.generate(Random::new(7).at(0), &mut states)?; // field 0 of seed 7, whoever asks
/// let mean = |time: usize| states[16 * time..][..16].iter().sum::<f32>() / 16.0;
/// assert!((mean(0) - mean(16)).abs() < 1e-3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Burgers {
    /// Places, 2 to 1024.
    pub places: usize,
    /// Times from 0 to 1, 2 to 1024.
    pub times: usize,
    /// Viscosity.
    pub viscosity: f64,
}

impl Default for Burgers {
    fn default() -> Self {
        Self { places: 16, times: 17, viscosity: 0.01 }
    }
}

/// The least places that are solved on, and the least steps from 0 to 1.
const PLACES: usize = 128;
const STEPS: usize = 256;

/// The equation with its plans.
pub struct Solver {
    pub(super) config: Burgers,
    /// Places that are solved on, and steps from a time to the next.
    pub(super) side: usize,
    pub(super) steps: usize,
    forward: Arc<dyn Fft<f64>>,
    inverse: Arc<dyn Fft<f64>>,
    /// `2 pi k` of every wave, and how diffusion shrinks it in half a step.
    waves: Vec<f64>,
    pub(super) half: Vec<f64>,
}

impl Burgers {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        let within = crate::nn::within;
        within("places", self.places, 2..=1024)?;
        within("times", self.times, 2..=1024)?;
        if !(1e-3..=10.0).contains(&self.viscosity) {
            return Err(Error::config("viscosity", format!("expected from 0.001 to 10, found {}", self.viscosity)));
        }
        Ok(())
    }

    /// Plans for it. Thinner waves than the grid can hold need a viscosity that lets none of them grow.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn solver(&self) -> Result<Solver> {
        self.validate()?;
        // Layers are as thin as the viscosity.
        let side = self.places * PLACES.max((1.28 / self.viscosity) as usize).div_ceil(self.places);
        let steps = (STEPS * side / PLACES).div_ceil(self.times - 1);
        let (mut planner, dt) = (FftPlanner::new(), 1.0 / (steps * (self.times - 1)) as f64);
        let wave = |i: usize| TAU * if i <= side / 2 { i as f64 } else { i as f64 - side as f64 };
        let waves: Vec<f64> = (0..side).map(wave).collect();
        let half = waves.iter().map(|wave| (-self.viscosity * wave * wave * dt / 2.0).exp()).collect();
        let (forward, inverse) = (planner.plan_fft_forward(side), planner.plan_fft_inverse(side));
        Ok(Solver { config: self.clone(), side, steps, forward, inverse, waves, half })
    }
}

impl Solver {
    /// Places that a state is solved on.
    pub fn solved_on(&self) -> usize {
        self.side
    }

    /// Places of a state.
    pub fn places(&self) -> usize {
        self.config.places
    }

    /// A random beginning and what becomes of it, `[times, places]`. `random` is the field's address.
    ///
    /// # Errors
    /// If the length is another one, or the solution grows beyond all numbers.
    pub fn generate(&self, random: Random, states: &mut [f32]) -> Result<()> {
        self.solve(self.beginning(random), states)
    }

    /// Random beginnings and what becomes of them, f32 `[runs, times, places]` on the device: on the CPU by all threads, on a GPU all at once. Run `n` has the
    /// address `random.at(n)`. What a GPU makes differs by rounding.
    ///
    /// # Errors
    /// If the device has no memory, or a solution grows beyond all numbers.
    pub fn generate_on(&self, random: Random, numbers: Range<u64>, device: &Device) -> Result<Tensor> {
        let (runs, &Burgers { times, places, .. }) = (numbers.clone().count(), &self.config);
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let beginnings: Vec<Complex64> = numbers.clone().flat_map(|number| self.beginning(random.at(number))).collect();
            let states = super::cuda::burgers::run(self, &beginnings, device)?;
            return match super::not_finite(&states)? {
                None => Ok(states),
                Some(run) => Err(super::of_run(numbers.start + run, &self.beyond())),
            };
        }
        let states = on_threads(random, numbers, times * places, |random, states| self.generate(random, states))?;
        Ok(Tensor::from_vec(states, (runs, times, places), device)?)
    }

    /// The waves of a random beginning.
    fn beginning(&self, random: Random) -> Vec<Complex64> {
        let random = random.stream("beginning");
        let mut spectrum = vec![Complex64::default(); self.side];
        for k in 1..self.config.places / 2 {
            let amplitude = 625.0 / (self.waves[k].powi(2) + 25.0).powi(2) * self.side as f64 / std::f64::consts::SQRT_2;
            let normal = [0, 1].map(|part| f64::from(random.normal(2 * k as u64 + part)));
            spectrum[k] = Complex64::new(normal[0], -normal[1]) * amplitude;
            spectrum[self.side - k] = spectrum[k].conj();
        }
        spectrum
    }

    /// What becomes of a beginning `[places]`, `[times, places]`: between its places it has the waves that they hold.
    ///
    /// # Errors
    /// As for [`Self::generate`].
    pub fn continue_from(&self, beginning: &[f64], states: &mut [f32]) -> Result<()> {
        let places = self.config.places;
        if beginning.len() != places {
            return Err(Error::tensor("beginning", format!("{places} places"), beginning.len()));
        }
        let mut waves: Vec<Complex64> = beginning.iter().map(|u| Complex64::new(*u, 0.0)).collect();
        FftPlanner::new().plan_fft_forward(places).process(&mut waves);
        let mut spectrum = vec![Complex64::default(); self.side];
        let scale = self.side as f64 / places as f64;
        for (k, wave) in waves.iter().enumerate() {
            match k * 2 {
                twice if twice < places => spectrum[k] = wave * scale,
                twice if twice > places => spectrum[self.side + k - places] = wave * scale,
                // The wave that changes its sign from place to place is both of its counterparts.
                _ if places < self.side => {
                    spectrum[k] = wave * (scale / 2.0);
                    spectrum[self.side - k] = spectrum[k].conj();
                }
                _ => spectrum[k] = wave * scale,
            }
        }
        self.solve(spectrum, states)
    }

    fn solve(&self, mut u: Vec<Complex64>, states: &mut [f32]) -> Result<()> {
        let (&Burgers { places, times, .. }, side) = (&self.config, self.side);
        if states.len() != times * places {
            return Err(Error::tensor("states", format!("{times} times of {places} places"), states.len()));
        }
        for (time, state) in states.chunks_exact_mut(places).enumerate() {
            if time > 0 {
                (0..self.steps).for_each(|_| self.step(&mut u));
            }
            let mut values = u.clone();
            self.inverse.process(&mut values);
            for (to, value) in state.iter_mut().zip(values.iter().step_by(side / places)) {
                *to = (value.re / side as f64) as f32;
            }
        }
        if states.iter().all(|u| u.is_finite()) {
            return Ok(());
        }
        Err(self.beyond())
    }

    fn beyond(&self) -> Error {
        Error::Input(format!("burgers: the solution of viscosity {} grows beyond all numbers", self.config.viscosity))
    }

    /// Time of a step.
    pub(super) fn dt(&self) -> f64 {
        1.0 / (self.steps * (self.config.times - 1)) as f64
    }

    /// One step of the waves.
    fn step(&self, u: &mut [Complex64]) {
        let slope = |of: Vec<Complex64>| self.slope(of, self.dt());
        let mix = |f: &dyn Fn(usize) -> Complex64| (0..u.len()).map(f).collect::<Vec<_>>();
        let h = &self.half;
        let a = slope(u.to_vec());
        let b = slope(mix(&|i| (u[i] + a[i] * 0.5) * h[i]));
        let c = slope(mix(&|i| u[i] * h[i] + b[i] * 0.5));
        let d = slope(mix(&|i| (u[i] * h[i] + c[i]) * h[i]));
        for i in 0..u.len() {
            u[i] = (u[i] * h[i] + (b[i] + c[i]) / 3.0) * h[i] + (a[i] * h[i] * h[i] + d[i]) / 6.0;
        }
    }

    /// `-dt (u^2 / 2)_x` in waves.
    fn slope(&self, mut u: Vec<Complex64>, dt: f64) -> Vec<Complex64> {
        let side = self.side as f64;
        self.inverse.process(&mut u);
        u.iter_mut().for_each(|u| *u = Complex64::new((u.re / side).powi(2), 0.0));
        self.forward.process(&mut u);
        for (u, wave) in u.iter_mut().zip(&self.waves) {
            *u = if wave.abs() * 3.0 > TAU * side { Complex64::default() } else { *u * Complex64::new(0.0, -0.5 * dt * wave) };
        }
        u
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The transform of Cole and Hopf: `u = -2 nu (ln p)_x`, where `p` is heat that spreads.
    fn exact(beginning: &dyn Fn(f64) -> f64, viscosity: f64, places: usize) -> Vec<f64> {
        let side = 1024;
        let spectrum = |values: Vec<f64>| {
            let mut waves: Vec<Complex64> = values.into_iter().map(|x| Complex64::new(x / side as f64, 0.0)).collect();
            FftPlanner::new().plan_fft_forward(side).process(&mut waves);
            waves
        };
        let values = |mut waves: Vec<Complex64>| {
            FftPlanner::new().plan_fft_inverse(side).process(&mut waves);
            waves.into_iter().map(|x| x.re).collect::<Vec<f64>>()
        };
        let wave = |i: usize| TAU * if i <= side / 2 { i as f64 } else { i as f64 - side as f64 };
        let u = spectrum((0..side).map(|i| beginning(i as f64 / side as f64)).collect());
        let integral = values((0..side).map(|i| if i == 0 { Complex64::default() } else { u[i] / Complex64::new(0.0, wave(i)) }).collect());
        let p = spectrum(integral.into_iter().map(|x| (-x / (2.0 * viscosity)).exp()).collect());
        let p: Vec<Complex64> = p.into_iter().enumerate().map(|(i, p)| p * (-viscosity * wave(i).powi(2)).exp()).collect();
        let slope = values((0..side).map(|i| p[i] * Complex64::new(0.0, wave(i))).collect());
        values(p).into_iter().zip(slope).map(|(p, slope)| -2.0 * viscosity * slope / p).step_by(side / places).collect()
    }

    #[test]
    fn solutions_are_those_of_cole_and_hopf() {
        let beginning = |x: f64| 0.4 * (TAU * x).sin() - 0.2 * (2.0 * TAU * x).cos();
        for viscosity in [0.01, 0.05] {
            let solver = Burgers { viscosity, ..Burgers::default() }.solver().unwrap();
            let mut states = vec![0.0; 17 * 16];
            solver.continue_from(&(0..16).map(|i| beginning(f64::from(i) / 16.0)).collect::<Vec<_>>(), &mut states).unwrap();
            for (found, want) in states[16 * 16..].iter().zip(exact(&beginning, viscosity, 16)) {
                assert!((f64::from(*found) - want).abs() < 1e-5, "viscosity {viscosity}: {found} {want}");
            }
        }
    }

    #[test]
    fn fields_depend_on_their_address_alone_and_keep_their_mean() {
        let solver = Burgers::default().solver().unwrap();
        let draw = |at: u64| {
            let mut states = vec![0.0; 17 * 16];
            solver.generate(Random::new(3).at(at), &mut states).unwrap();
            states
        };
        let (first, other) = (draw(0), draw(1));
        assert!(first == draw(0) && first != other);
        assert!(first.chunks_exact(16).all(|state| state.iter().sum::<f32>().abs() / 16.0 < 2e-3));
        // Beginnings are as strong as the published ones: half of 0.153 and its counterpart in each wave, mostly the first.
        let squares: f32 = (0..200).map(|at| draw(at)[..16].iter().map(|u| u * u).sum::<f32>() / 16.0).sum::<f32>() / 200.0;
        assert!((squares.sqrt() - 0.2185).abs() < 0.03, "{}", squares.sqrt());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (config, field) in [
            (Burgers { places: 1, ..Burgers::default() }, "places"),
            (Burgers { times: 1, ..Burgers::default() }, "times"),
            (Burgers { viscosity: 0.0, ..Burgers::default() }, "viscosity"),
            (Burgers { viscosity: f64::NAN, ..Burgers::default() }, "viscosity"),
        ] {
            assert!(config.validate().unwrap_err().to_string().contains(field));
        }
        let solver = Burgers::default().solver().unwrap();
        assert!(solver.generate(Random::new(1), &mut [0.0; 3]).is_err());
        assert!(solver.continue_from(&[0.0; 3], &mut [0.0; 272]).is_err());
        assert!(solver.continue_from(&[f64::NAN; 16], &mut [0.0; 272]).unwrap_err().to_string().contains("beyond all numbers"));
    }
}
