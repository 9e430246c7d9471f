//! Darcy flow on an NVIDIA GPU: media by two products for all of them, and the launch of `darcy.cu`.

use super::super::darcy::{Darcy, TOLERANCE, amplitudes, cosines};
use crate::Result;
use crate::cuda::{self, Gpu, Kernel, Source};
use crate::random::Random;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use std::ops::Range;

static SOURCE: Source = Source { name: "darcy", text: include_str!("darcy.cu") };
const SOLVE: Kernel = Kernel { source: &SOURCE, name: "solve" };

/// Threads of a block, which has a medium for itself.
const THREADS: usize = 512;
/// Planes of a medium that the kernel works in.
const PLANES: usize = 6;

/// As in `darcy.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Media {
    field: u64,
    planes: u64,
    fields: u64,
    unsolved: u64,
    contrast: f64,
    scale: f64,
    tolerance: f64,
    n: u32,
    places: u32,
    finer: u32,
    unused: u32,
}

/// Media and their solutions `[runs, 2, places, places]`, and the first that has not been found.
pub(in super::super) fn run(config: &Darcy, random: Random, numbers: Range<u64>, device: &Device) -> Result<(Tensor, Option<u64>)> {
    let (n, places, runs) = (config.places * config.finer, config.places, numbers.clone().count());
    let side = n + 1;
    let all: Vec<Vec<f64>> = numbers.into_par_iter().map(|number| amplitudes(random.at(number), side)).collect();
    let waves = Tensor::from_vec(cosines(side), (side, side), device)?;
    let amplitudes = Tensor::from_vec(all.concat(), (runs * side, side), device)?;
    // Rows of amplitudes to rows of values, then columns.
    let rows = amplitudes.matmul(&waves)?.reshape((runs, side, side))?;
    let field = waves.t()?.broadcast_left(runs)?.contiguous()?.matmul(&rows)?;
    let gpu = Gpu::of(cuda::device_of(&field)?)?;
    let planes = cuda::empty(runs * PLANES * side * side, DType::F64, gpu.device())?;
    let fields = cuda::empty((runs, 2, places, places), DType::F32, gpu.device())?;
    let unsolved = cuda::empty(runs, DType::U32, gpu.device())?;
    let args = Media {
        field: cuda::address(&field)?,
        planes: cuda::address(&planes)?,
        fields: cuda::address(&fields)?,
        unsolved: cuda::address(&unsolved)?,
        contrast: config.contrast,
        scale: config.scale,
        tolerance: TOLERANCE,
        n: n as u32,
        places: places as u32,
        finer: config.finer as u32,
        unused: 0,
    };
    // SAFETY: the buffers have the planes of every block, and live until the kernel is behind them in the stream.
    unsafe { gpu.launch(SOLVE, None, ((runs, 1, 1), THREADS, 0), &args)? };
    let unsolved = unsolved.to_vec1::<u32>()?.iter().position(|unsolved| *unsolved > 0);
    Ok((fields, unsolved.map(|run| run as u64)))
}
