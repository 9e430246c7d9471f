//! Neural operators: networks that read a field on a grid and answer with another one, on any grid.
//!
//! [`Fno`] is the Fourier neural operator. Fields are channels last, `[n, m, C]`; a field over one axis is a grid of height 1.

pub mod burgers;
#[cfg(feature = "cuda")]
mod cuda;
pub mod darcy;
mod family;
#[cfg(feature = "cli")]
mod infer;
pub mod metrics;
mod model;
pub mod navier_stokes;
pub mod physics;
#[cfg(test)]
mod tests;

pub use family::FnoFamily;
pub use model::{Ensemble, Fno, FnoConfig, FnoLayers, Normaliser};

use crate::random::Random;
use crate::{Error, Result};
#[cfg(feature = "cuda")]
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "fno";

/// Runs of a solver on the CPU's threads, of `width` numbers each, one behind the other. Run `n` has the address `random.at(n)`.
fn on_threads(
    random: Random,
    numbers: Range<u64>,
    width: usize,
    generate: impl Fn(Random, &mut [f32]) -> Result<()> + Sync,
) -> Result<Vec<f32>> {
    let mut runs = vec![0.0; (numbers.end - numbers.start) as usize * width];
    let each = runs.par_chunks_exact_mut(width).enumerate();
    each.map(|(i, run)| (numbers.start + i as u64, run))
        .try_for_each(|(number, run)| generate(random.at(number), run).map_err(|error| of_run(number, &error)))?;
    Ok(runs)
}

/// An error with the number of its run.
fn of_run(number: u64, error: &Error) -> Error {
    Error::Input(format!("run {number}: {error}"))
}

/// The first of runs `[runs, ...]` that has a number which is none.
#[cfg(feature = "cuda")]
fn not_finite(runs: &Tensor) -> Result<Option<u64>> {
    let sums = runs.flatten_from(1)?.sum(1)?.to_vec1::<f32>()?;
    Ok(sums.iter().position(|sum| !sum.is_finite()).map(|run| run as u64))
}
