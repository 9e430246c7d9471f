//! Flow of an incompressible fluid on a periodic square of length 1, as its vorticity: `w_t + u . grad w = nu (w_xx + w_yy) + f` with `u = psi_y`, `v = -psi_x` and
//! `-(psi_xx + psi_yy) = w`.
//!
//! Solved in waves: diffusion by Crank and Nicolson's method, the rest by Heun's, products without the upper third of the waves, which they would fold back.
//! (The published program takes the rest by Euler's method, which makes energy; this one keeps it to a part in ten million.) The first axis is x.

use super::on_threads;
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
#[cfg(feature = "cuda")]
use rayon::prelude::*;
use rustfft::num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

/// A source of flows. Beginnings and forces are those of the published program.
///
/// ```
/// use candle_models::fno::navier_stokes::NavierStokes;
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let solver = NavierStokes { places: 32, ..NavierStokes::default() }.solver()?;
/// let mut flow = solver.beginning(Random::new(7).at(0)); // flow 0 of seed 7, whoever asks
/// solver.advance(&mut flow, 10)?;
/// let vorticity = solver.vorticity(&flow);
/// assert!(vorticity.len() == 32 * 32 && vorticity.iter().sum::<f64>().abs() < 1e-9);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NavierStokes {
    /// Places on a side, even, 8 to 1024.
    pub places: usize,
    /// Viscosity, 0 to 1.
    pub viscosity: f64,
    /// Time of a step, above 0 to 0.1.
    pub step: f64,
    /// What the force is: this much of `sin 2 pi (x + y) + cos 2 pi (x + y)`.
    pub force: f64,
}

impl Default for NavierStokes {
    fn default() -> Self {
        Self { places: 64, viscosity: 1e-3, step: 0.01, force: 0.1 }
    }
}

/// The waves of a flow's vorticity, `[places, places]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow(pub(super) Vec<Complex64>);

/// When and where a run is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Views {
    /// Steps before the first view.
    pub skipped: usize,
    /// Steps from a view to the next.
    pub steps: usize,
    /// Views of a run, at least 1.
    pub count: usize,
    /// Of the places of an axis every one that is a multiple of this is seen; it divides their number.
    pub every: usize,
}

/// The equation with its plans.
pub struct Solver {
    config: NavierStokes,
    forward: Arc<dyn Fft<f64>>,
    inverse: Arc<dyn Fft<f64>>,
    /// `2 pi k` of every wave of an axis.
    waves: Vec<f64>,
    force: Vec<Complex64>,
}

impl NavierStokes {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        crate::nn::within("places", self.places, 8..=1024)?;
        if !self.places.is_multiple_of(2) {
            return Err(Error::config("places", format!("expected an even number, found {}", self.places)));
        }
        for (field, value, least, most) in
            [("viscosity", self.viscosity, 0.0, 1.0), ("step", self.step, 1e-6, 0.1), ("force", self.force, -100.0, 100.0)]
        {
            if !(least..=most).contains(&value) {
                return Err(Error::config(field, format!("expected from {least} to {most}, found {value}")));
            }
        }
        Ok(())
    }

    /// Plans for it.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn solver(&self) -> Result<Solver> {
        self.validate()?;
        let (n, mut planner) = (self.places, FftPlanner::new());
        let waves = (0..n).map(|i| TAU * if i < n / 2 { i as f64 } else { i as f64 - n as f64 }).collect();
        let (forward, inverse) = (planner.plan_fft_forward(n), planner.plan_fft_inverse(n));
        let mut solver = Solver { config: self.clone(), forward, inverse, waves, force: Vec::new() };
        let force = |at: usize| {
            let angle = TAU * (at / n + at % n) as f64 / n as f64;
            self.force * (angle.sin() + angle.cos())
        };
        solver.force = solver.flow(&(0..n * n).map(force).collect::<Vec<_>>()).0;
        Ok(solver)
    }
}

impl Solver {
    /// A random beginning: waves with normal amplitudes of `7^1.5 (4 pi^2 |k|^2 + 49)^-1.25`. `random` is the flow's address.
    pub fn beginning(&self, random: Random) -> Flow {
        let n = self.config.places;
        let mut normal = vec![0.0f32; 2 * n * n];
        random.stream("beginning").fill_normal(0, &mut normal);
        let wave = |at: usize| {
            let squares = self.waves[at / n].powi(2) + self.waves[at % n].powi(2);
            let amplitude = if at == 0 { 0.0 } else { (n * n) as f64 * 7f64.powf(1.5) * (squares + 49.0).powf(-1.25) };
            Complex64::new(f64::from(normal[2 * at]), f64::from(normal[2 * at + 1])) * amplitude
        };
        // Of a field of complex numbers the real part is taken: its waves are those of a real field.
        self.flow(&self.vorticity(&Flow((0..n * n).map(wave).collect())))
    }

    /// The flow with that vorticity `[places, places]`.
    pub fn flow(&self, vorticity: &[f64]) -> Flow {
        let mut waves = vorticity.iter().map(|w| Complex64::new(*w, 0.0)).collect::<Vec<_>>();
        self.transform(&*self.forward, &mut waves);
        Flow(waves)
    }

    /// Its vorticity `[places, places]`.
    pub fn vorticity(&self, flow: &Flow) -> Vec<f64> {
        let mut values = flow.0.clone();
        self.transform(&*self.inverse, &mut values);
        let scale = 1.0 / values.len() as f64;
        values.into_iter().map(|w| w.re * scale).collect()
    }

    /// So many steps on.
    ///
    /// # Errors
    /// If the flow grows beyond all numbers: the step is too long for it.
    pub fn advance(&self, flow: &mut Flow, steps: usize) -> Result<()> {
        let (dt, n) = (self.config.step, self.config.places);
        let half = |at: usize| 0.5 * dt * self.config.viscosity * (self.waves[at / n].powi(2) + self.waves[at % n].powi(2));
        for _ in 0..steps {
            let first = self.carried(&flow.0);
            let next = |carried: &dyn Fn(usize) -> Complex64| -> Vec<Complex64> {
                let at = |i: usize| ((self.force[i] - carried(i)) * dt + flow.0[i] * (1.0 - half(i))) / (1.0 + half(i));
                (0..n * n).map(at).collect()
            };
            let second = self.carried(&next(&|i| first[i]));
            flow.0 = next(&|i| (first[i] + second[i]) * 0.5);
        }
        if flow.0.iter().all(|w| w.is_finite()) {
            return Ok(());
        }
        Err(self.too_long())
    }

    /// The vorticity of random runs at some times, f32 `[runs, count, places / every, places / every]` on the device: on the CPU by all threads, on a GPU all at
    /// once, in 120 bytes of its memory for each place of each run. Run `n` has the address `random.at(n)`. What a GPU makes differs by rounding.
    ///
    /// # Errors
    /// If the views make no sense, the device has no memory, or a flow grows beyond all numbers.
    pub fn generate_on(&self, random: Random, numbers: Range<u64>, views: &Views, device: &Device) -> Result<Tensor> {
        let n = self.config.places;
        crate::nn::within("count", views.count, 1..=1 << 20)?;
        if views.every == 0 || !n.is_multiple_of(views.every) {
            return Err(Error::config("every", format!("expected a divisor of {n} places, found {}", views.every)));
        }
        let (runs, places) = (numbers.clone().count(), n / views.every);
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let beginnings: Vec<Flow> = numbers.clone().into_par_iter().map(|number| self.beginning(random.at(number))).collect();
            let seen = super::cuda::navier_stokes::run(&self.config, &self.force, &beginnings, views, device)?;
            return match super::not_finite(&seen)? {
                None => Ok(seen),
                Some(run) => Err(super::of_run(numbers.start + run, &self.too_long())),
            };
        }
        let seen = on_threads(random, numbers, views.count * places * places, |random, seen| {
            let mut flow = self.beginning(random);
            for (view, seen) in seen.chunks_exact_mut(places * places).enumerate() {
                self.advance(&mut flow, if view == 0 { views.skipped } else { views.steps })?;
                let w = self.vorticity(&flow);
                for (at, seen) in seen.iter_mut().enumerate() {
                    *seen = w[at / places * views.every * n + at % places * views.every] as f32;
                }
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(seen, (runs, views.count, places, places), device)?)
    }

    fn too_long(&self) -> Error {
        Error::config("step", format!("{} is too long for this flow: it grows beyond all numbers", self.config.step))
    }

    /// Half the mean square of the velocity, and of the vorticity.
    pub fn energy(&self, flow: &Flow) -> [f64; 2] {
        let n = self.config.places;
        let scale = 0.5 / (n * n) as f64 / (n * n) as f64;
        let mut sums = [0.0; 2];
        for (at, w) in flow.0.iter().enumerate().skip(1) {
            let squares = self.waves[at / n].powi(2) + self.waves[at % n].powi(2);
            sums = [sums[0] + scale * w.norm_sqr() / squares, sums[1] + scale * w.norm_sqr()];
        }
        sums
    }

    /// `u . grad w` in waves.
    fn carried(&self, w: &[Complex64]) -> Vec<Complex64> {
        let n = self.config.places;
        // Two real fields are transformed as one complex one: velocities, and slopes of the vorticity.
        let (mut velocity, mut slope) = (vec![Complex64::default(); n * n], vec![Complex64::default(); n * n]);
        let i = Complex64::new(0.0, 1.0);
        for (at, w) in w.iter().enumerate().skip(1) {
            let [x, y] = [self.waves[at / n], self.waves[at % n]];
            // The wave that changes its sign from place to place has no slope.
            let own = |wave: f64| if wave.abs() >= TAU * (n / 2) as f64 { 0.0 } else { wave };
            let psi = w / (x * x + y * y);
            let (x, y) = (own(x), own(y));
            velocity[at] = i * y * psi + i * (-i * x * psi);
            slope[at] = i * x * w + i * (i * y * w);
        }
        self.transform(&*self.inverse, &mut velocity);
        self.transform(&*self.inverse, &mut slope);
        let scale = 1.0 / (n * n) as f64 / (n * n) as f64;
        let mut product: Vec<Complex64> =
            velocity.iter().zip(&slope).map(|(u, w)| Complex64::new((u.re * w.re + u.im * w.im) * scale, 0.0)).collect();
        self.transform(&*self.forward, &mut product);
        let kept = TAU * n as f64 / 3.0;
        for (at, wave) in product.iter_mut().enumerate() {
            if self.waves[at / n].abs() > kept || self.waves[at % n].abs() > kept {
                *wave = Complex64::default();
            }
        }
        product
    }

    /// Both axes.
    fn transform(&self, fft: &dyn Fft<f64>, values: &mut [Complex64]) {
        for _ in 0..2 {
            fft.process(values);
            transpose(values, self.config.places);
        }
    }
}

fn transpose(values: &mut [Complex64], n: usize) {
    for i in 0..n {
        for j in 0..i {
            values.swap(i * n + j, j * n + i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vortices_of_taylor_and_green_fade_as_they_should() {
        let solver = NavierStokes { places: 16, force: 0.0, ..NavierStokes::default() }.solver().unwrap();
        let vortex = |at: usize| (TAU * (at / 16) as f64 / 16.0).cos() * (TAU * (at % 16) as f64 / 16.0).cos();
        let mut flow = solver.flow(&(0..256).map(vortex).collect::<Vec<_>>());
        solver.advance(&mut flow, 100).unwrap();
        for (at, w) in solver.vorticity(&flow).iter().enumerate() {
            assert!((w - 0.924_079_811_3 * vortex(at)).abs() < 1e-6, "{w}");
        }
    }

    #[test]
    fn a_flow_without_friction_keeps_its_energy() {
        let solver = NavierStokes { viscosity: 0.0, force: 0.0, ..NavierStokes::default() }.solver().unwrap();
        let mut flow = solver.beginning(Random::new(1).at(0));
        // Waves that products leave out would take part in what they make of others, and not the other way round.
        let kept = |at: usize| solver.waves[at].abs() * 3.0 <= TAU * 64.0;
        let all = flow.0.iter_mut().enumerate();
        all.filter(|(at, _)| !(kept(at / 64) && kept(at % 64))).for_each(|(_, w)| *w = Complex64::default());
        let before = solver.energy(&flow);
        solver.advance(&mut flow, 100).unwrap();
        let after = solver.energy(&flow);
        let drift = [0, 1].map(|i| (after[i] / before[i] - 1.0).abs());
        assert!(drift[0] < 1e-6 && drift[1] < 3e-6, "{drift:?}");
    }

    /// A step twice as long is four times as wrong.
    #[test]
    fn it_converges_with_the_second_order() {
        let after = |step: f64| {
            let solver = NavierStokes { places: 32, step, ..NavierStokes::default() }.solver().unwrap();
            let mut flow = solver.beginning(Random::new(2).at(0));
            solver.advance(&mut flow, (0.8 / step).round() as usize).unwrap();
            solver.vorticity(&flow)
        };
        let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let (long, short, exact) = (after(0.04), after(0.02), after(0.0025));
        let ratio = apart(&long, &exact) / apart(&short, &exact);
        assert!((3.3..5.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn flows_depend_on_their_address_alone_and_what_makes_no_sense_is_named() {
        let config = NavierStokes { places: 16, ..NavierStokes::default() };
        let solver = config.solver().unwrap();
        let flow = |at: u64| solver.beginning(Random::new(3).at(at));
        assert!(flow(0) == flow(0) && flow(0) != flow(1));
        for (config, field) in [
            (NavierStokes { places: 9, ..config.clone() }, "places"),
            (NavierStokes { places: 6, ..config.clone() }, "places"),
            (NavierStokes { viscosity: -1.0, ..config.clone() }, "viscosity"),
            (NavierStokes { step: 0.0, ..config.clone() }, "step"),
            (NavierStokes { force: f64::NAN, ..config.clone() }, "force"),
        ] {
            assert!(config.validate().unwrap_err().to_string().contains(field));
        }
        // Far beyond what a step may be.
        let mut strong = solver.flow(&solver.vorticity(&flow(0)).iter().map(|w| 1e6 * w).collect::<Vec<_>>());
        let error = solver.advance(&mut strong, 200).unwrap_err().to_string();
        assert!(error.contains("step: 0.01 is too long"), "{error}");
    }
}
