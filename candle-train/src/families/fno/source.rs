//! Pairs of fields that solvers make, as plain data: each run depends on the seed and its number alone.

use super::config::within;
use super::fields::Fields;
use crate::overlay;
use candle_core::{Device, Tensor};
use candle_models::fno::burgers::{self, Burgers};
use candle_models::fno::darcy::Darcy;
use candle_models::fno::navier_stokes::{self, NavierStokes, Views};
use candle_models::random::Random;
use candle_models::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Runs of a solver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Address of everything random.
    pub seed: u64,
    /// Media, or beginnings.
    pub count: u64,
    /// What is solved.
    pub equation: Equation,
}

/// An equation and how finely it is seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Equation {
    /// Darcy flow through random media: a pair each.
    Darcy {
        /// Places down and across.
        #[serde(default = "sixteen")]
        places: usize,
    },
    /// Burgers' equation from random beginnings: a pair each, the beginning at all of 17 times and the states at these.
    Burgers {
        /// Places.
        #[serde(default = "sixteen")]
        places: usize,
    },
    /// The vorticity of a flow on a periodic square, at one time and a while later: pairs of consecutive states.
    NavierStokes {
        /// Places down and across.
        #[serde(default = "thirty_two")]
        places: usize,
        /// Viscosity.
        #[serde(default = "thousandth")]
        viscosity: f64,
        /// Time from a state to the next, a whole number of hundredths.
        #[serde(default = "one")]
        interval: f64,
        /// Pairs of a run.
        #[serde(default = "twenty")]
        states: usize,
        /// Time before the first of them, in intervals.
        #[serde(default)]
        skipped: usize,
    },
}

fn sixteen() -> usize {
    16
}

fn thirty_two() -> usize {
    32
}

fn thousandth() -> f64 {
    1e-3
}

fn one() -> f64 {
    1.0
}

fn twenty() -> usize {
    20
}

/// The least places of a side on which flows are solved: with fewer their eddies would be wrong.
const SOLVED_ON: usize = 64;

/// Places of all runs that are solved at once on a GPU, which has some 120 bytes for each.
const ON_DEVICE: usize = 1 << 22;

impl Source {
    /// Names the field that is out of range.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        overlay::check_counts(&[("count", self.count, 1 << 24)])?;
        self.equation.solver().map(drop).map_err(within("equation"))
    }

    /// Pairs of all runs, and their places.
    pub fn shape(&self) -> (usize, [usize; 2]) {
        (self.count as usize * self.equation.states(), self.equation.grid())
    }

    /// The pairs of these runs, made by all threads of the CPU or, many at a time, on a GPU, where they differ by rounding; `done` is called after each run.
    ///
    /// # Errors
    /// If a value is out of range, a solution is not found, or the device has no memory.
    pub fn fields(&self, runs: Range<u64>, device: &Device, done: &(dyn Fn() + Sync)) -> Result<Fields> {
        let (solver, random) = (self.equation.solver()?, Random::new(self.seed).stream("fields"));
        let (grid, states, count) = (self.equation.grid(), self.equation.states(), (runs.end - runs.start) as usize);
        let width = grid[0] * grid[1] * states;
        let (mut inputs, mut answers) = (vec![0.0; count * width], vec![0.0; count * width]);
        let each = if device.is_cuda() { (ON_DEVICE / solver.places()).max(1) } else { 1 };
        let part = |(i, (inputs, answers)): (usize, (&mut [f32], &mut [f32]))| {
            let first = runs.start + (i * each) as u64;
            let made = solver.generate_on(random, first..first + (inputs.len() / width) as u64, device)?.to_device(&Device::Cpu)?;
            let made = made.flatten_from(1)?.to_vec2::<f32>()?;
            for ((run, inputs), answers) in made.iter().zip(inputs.chunks_exact_mut(width)).zip(answers.chunks_exact_mut(width)) {
                solver.pairs(run, inputs, answers);
                done();
            }
            Ok::<_, Error>(())
        };
        let parts: Vec<_> = inputs.chunks_mut(each * width).zip(answers.chunks_mut(each * width)).enumerate().collect();
        if device.is_cuda() {
            parts.into_iter().try_for_each(part)?;
        } else {
            parts.into_par_iter().try_for_each(part)?;
        }
        Ok(Fields { grid, channels: [1, 1], states, inputs, answers })
    }

    /// The pairs of all runs, made on the CPU.
    ///
    /// # Errors
    /// As [`Self::fields`].
    pub fn all(&self) -> Result<Fields> {
        self.fields(0..self.count, &Device::Cpu, &|| ())
    }
}

impl Equation {
    /// By the name of a preset, with usual sizes.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        match name {
            "darcy" => Ok(Self::Darcy { places: sixteen() }),
            "burgers" => Ok(Self::Burgers { places: sixteen() }),
            "ns" => Ok(Self::NavierStokes { places: thirty_two(), viscosity: thousandth(), interval: one(), states: twenty(), skipped: 0 }),
            _ => Err(Error::config("preset", format!("expected darcy, burgers or ns, found '{name}'"))),
        }
    }

    /// A flow as the preset `ns` has it, on other places.
    pub fn flow(places: usize) -> Self {
        Self::NavierStokes { places, viscosity: thousandth(), interval: one(), states: twenty(), skipped: 0 }
    }

    /// Places down and across.
    pub fn grid(&self) -> [usize; 2] {
        match *self {
            Self::Darcy { places } | Self::NavierStokes { places, .. } => [places; 2],
            Self::Burgers { places } => [Burgers::default().times, places],
        }
    }

    /// Pairs of a run.
    pub fn states(&self) -> usize {
        match *self {
            Self::Darcy { .. } | Self::Burgers { .. } => 1,
            Self::NavierStokes { states, .. } => states,
        }
    }

    fn solver(&self) -> Result<Solver> {
        match *self {
            Self::Darcy { places } => {
                let darcy = Darcy { places, ..Darcy::default() };
                darcy.validate()?;
                Ok(Solver::Darcy(darcy))
            }
            Self::Burgers { places } => Ok(Solver::Burgers(Burgers { places, ..Burgers::default() }.solver()?)),
            Self::NavierStokes { places, viscosity, interval, states, skipped } => {
                overlay::check_counts(&[("places", places as u64, 1024), ("states", states as u64, 10_000)])?;
                if skipped > 10_000 {
                    return Err(Error::config("skipped", format!("expected 0 to 10000, found {skipped}")));
                }
                let flow = NavierStokes { viscosity, ..NavierStokes::default() };
                let steps = (interval / flow.step).round();
                if !((1.0..=1e5).contains(&steps) && (steps * flow.step - interval).abs() < 1e-9) {
                    let reason = format!("expected a whole number of steps of {} up to {}, found {interval}", flow.step, 1e5 * flow.step);
                    return Err(Error::config("interval", reason));
                }
                // Solvers want an even number of places.
                let finer = SOLVED_ON.div_ceil(places).next_multiple_of(1 + places % 2);
                let solver = NavierStokes { places: places * finer, ..flow }.solver()?;
                let steps = steps as usize;
                let views = Views { skipped: skipped * steps, steps, count: states + 1, every: finer };
                Ok(Solver::NavierStokes(solver, views, places * finer))
            }
        }
    }
}

/// An equation with what its solutions need.
enum Solver {
    Darcy(Darcy),
    Burgers(burgers::Solver),
    /// When flows are looked at, and the places down and across that they are solved on.
    NavierStokes(navier_stokes::Solver, Views, usize),
}

impl Solver {
    /// Places that a run is solved on.
    fn places(&self) -> usize {
        match self {
            Self::Darcy(darcy) => (darcy.places * darcy.finer).pow(2),
            Self::Burgers(solver) => solver.solved_on(),
            Self::NavierStokes(_, _, places) => places.pow(2),
        }
    }

    /// What is seen of these runs, `[runs, ...]`.
    fn generate_on(&self, random: Random, numbers: Range<u64>, device: &Device) -> Result<Tensor> {
        match self {
            Self::Darcy(darcy) => darcy.generate_on(random, numbers, device),
            Self::Burgers(solver) => solver.generate_on(random, numbers, device),
            Self::NavierStokes(solver, views, _) => solver.generate_on(random, numbers, views, device),
        }
    }

    /// What is read in the pairs of a run and what is answered, one behind the other.
    fn pairs(&self, run: &[f32], inputs: &mut [f32], answers: &mut [f32]) {
        match self {
            // A state and the next one; the medium and its solution are as these.
            Self::Darcy(_) | Self::NavierStokes(..) => {
                inputs.copy_from_slice(&run[..inputs.len()]);
                answers.copy_from_slice(&run[run.len() - answers.len()..]);
            }
            Self::Burgers(solver) => {
                let places = solver.places();
                inputs.chunks_exact_mut(places).for_each(|state| state.copy_from_slice(&run[..places]));
                answers.copy_from_slice(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(equation: Equation, count: u64) -> Source {
        Source { seed: 3, count, equation }
    }

    #[test]
    fn runs_depend_on_their_number_alone_and_states_follow_each_other() {
        let flow = Equation::NavierStokes { places: 8, viscosity: 1e-2, interval: 0.05, states: 3, skipped: 1 };
        for equation in [Equation::Darcy { places: 6 }, Equation::Burgers { places: 8 }, flow] {
            let source = source(equation, 4);
            source.validate().unwrap();
            let all = source.all().unwrap();
            assert_eq!((all.len(), all.grid), source.shape());
            let some = source.fields(2..4, &Device::Cpu, &|| ()).unwrap();
            let first = 2 * all.states;
            for i in 0..some.len() {
                assert_eq!(some.pair(i), all.pair(first + i));
            }
            assert_ne!(all.pair(0), all.pair(all.states));
            for i in (1..all.len()).filter(|i| i % all.states != 0) {
                assert_eq!(all.pair(i)[0], all.pair(i - 1)[1]);
            }
        }
    }

    #[test]
    fn flows_on_few_places_are_those_on_many() {
        let on = |places: usize| {
            let equation = Equation::NavierStokes { places, viscosity: 1e-3, interval: 0.1, states: 1, skipped: 0 };
            source(equation, 1).all().unwrap()
        };
        let (coarse, fine) = (on(32), on(64));
        for (at, y) in coarse.answers.iter().enumerate() {
            assert!((y - fine.answers[2 * (at / 32) * 64 + 2 * (at % 32)]).abs() < 1e-6);
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let flow = |interval: f64, states: usize| Equation::NavierStokes { places: 8, viscosity: 1e-3, interval, states, skipped: 0 };
        for (equation, field) in
            [(flow(0.005, 1), "equation.interval"), (flow(f64::NAN, 1), "equation.interval"), (flow(1.0, 0), "equation.states")]
        {
            let error = source(equation, 1).validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("config: {field}: ")), "{error}");
        }
        assert!(Equation::preset("heat").unwrap_err().to_string().contains("expected darcy, burgers or ns"));
    }
}
