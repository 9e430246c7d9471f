//! Burgers' equation on an NVIDIA GPU: launches of `burgers.cu` and the transforms between them.

use super::super::burgers::{Burgers, Solver};
use super::{threads, upload};
use crate::Result;
use crate::cuda::fft::Transform;
use crate::cuda::{self, Gpu, Kernel, Source};
use candle_core::{DType, Device, Tensor};
use rustfft::num_complex::Complex64;

static SOURCE: Source = Source { name: "burgers", text: include_str!("burgers.cu") };
const SQUARE: Kernel = Kernel { source: &SOURCE, name: "square" };
const STAGE: Kernel = Kernel { source: &SOURCE, name: "stage" };
const LOOK: Kernel = Kernel { source: &SOURCE, name: "look" };

/// As in `burgers.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Lines {
    waves: u64,
    sum: u64,
    slope: u64,
    half: u64,
    states: u64,
    values: u64,
    step: f64,
    side: u32,
    places: u32,
    times: u32,
    time: u32,
    stage: u32,
    unused: u32,
}

/// What becomes of beginnings, the waves of each behind those of the one before: `[runs, times, places]`.
pub(in super::super) fn run(solver: &Solver, beginnings: &[Complex64], device: &Device) -> Result<Tensor> {
    let (values, side, &Burgers { times, places, .. }) = (beginnings.len(), solver.side, &solver.config);
    let runs = values / side;
    let (waves, slope, half) = (upload(beginnings, device)?, upload(beginnings, device)?, Tensor::new(&*solver.half, device)?);
    let gpu = Gpu::of(cuda::device_of(&waves)?)?;
    let sum = cuda::empty((values, 2), DType::F64, gpu.device())?;
    let states = cuda::empty((runs, times, places), DType::F32, gpu.device())?;
    let lines = gpu.transform(Transform::Complex64, side, runs)?;
    let mut args = Lines {
        waves: cuda::address(&waves)?,
        sum: cuda::address(&sum)?,
        slope: cuda::address(&slope)?,
        half: cuda::address(&half)?,
        states: cuda::address(&states)?,
        values: values as u64,
        step: solver.dt(),
        side: side as u32,
        places: places as u32,
        times: times as u32,
        time: 0,
        stage: 0,
        unused: 0,
    };
    // SAFETY: every buffer has as many values as its kernels go through, and lives until the last of them is behind it in the stream.
    let launch = |kernel, count, args: &Lines| unsafe { gpu.launch(kernel, None, threads(count), args) };
    for time in 0..times {
        let steps = if time == 0 { 0 } else { solver.steps };
        for stage in (0..steps).flat_map(|_| 0..4) {
            args.stage = stage;
            lines.inverse(&slope, &slope)?;
            launch(SQUARE, values, &args)?;
            lines.forward(&slope, &slope)?;
            launch(STAGE, values, &args)?;
        }
        args.time = time as u32;
        // No stage is under way, so that the memory of their sum is free.
        lines.inverse(&waves, &sum)?;
        launch(LOOK, runs * places, &args)?;
    }
    Ok(states)
}
