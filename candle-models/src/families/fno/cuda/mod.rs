//! The solvers on an NVIDIA GPU, many runs at once. What is random comes from the CPU, so that media and beginnings are its own.

pub(super) mod burgers;
pub(super) mod darcy;
pub(super) mod navier_stokes;

use crate::Result;
use crate::cuda::Grid;
use candle_core::{Device, Tensor};
use rustfft::num_complex::Complex64;

/// Threads of a block of kernels that have one for each value.
const THREADS: usize = 256;

/// One thread for each of so many values.
fn threads(values: usize) -> Grid {
    ((values.div_ceil(THREADS), 1, 1), THREADS, 0)
}

/// Complex numbers in the device's memory, `[count, 2]`.
fn upload(values: &[Complex64], device: &Device) -> Result<Tensor> {
    let numbers: Vec<f64> = values.iter().flat_map(|x| [x.re, x.im]).collect();
    Ok(Tensor::from_vec(numbers, (values.len(), 2), device)?)
}
