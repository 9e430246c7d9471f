//! Flows on an NVIDIA GPU: launches of `navier_stokes.cu` and the transforms between them.

use super::super::navier_stokes::{Flow, NavierStokes, Views};
use super::{threads, upload};
use crate::Result;
use crate::cuda::fft::Transform;
use crate::cuda::{self, Gpu, Kernel, Source};
use candle_core::{DType, Device, Tensor};
use rustfft::num_complex::Complex64;

static SOURCE: Source = Source { name: "navier_stokes", text: include_str!("navier_stokes.cu") };
const BEGIN: Kernel = Kernel { source: &SOURCE, name: "begin" };
const MULTIPLY: Kernel = Kernel { source: &SOURCE, name: "multiply" };
const PREDICT: Kernel = Kernel { source: &SOURCE, name: "predict" };
const CORRECT: Kernel = Kernel { source: &SOURCE, name: "correct" };
const LOOK: Kernel = Kernel { source: &SOURCE, name: "look" };

/// As in `navier_stokes.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Flows {
    vorticity: u64,
    first: u64,
    product: u64,
    pairs: u64,
    force: u64,
    views: u64,
    values: u64,
    step: f64,
    viscosity: f64,
    n: u32,
    every: u32,
    count: u32,
    view: u32,
}

/// What becomes of flows, as they are looked at: `[runs, count, places, places]`.
pub(in super::super) fn run(
    config: &NavierStokes,
    force: &[Complex64],
    beginnings: &[Flow],
    views: &Views,
    device: &Device,
) -> Result<Tensor> {
    let (n, runs, places) = (config.places, beginnings.len(), config.places / views.every);
    let values = runs * n * n;
    let all: Vec<Complex64> = beginnings.iter().flat_map(|flow| flow.0.iter().copied()).collect();
    let (vorticity, force) = (upload(&all, device)?, upload(force, device)?);
    let gpu = Gpu::of(cuda::device_of(&vorticity)?)?;
    let waves = |planes: usize| cuda::empty((planes * values, 2), DType::F64, gpu.device());
    let (first, product, pairs) = (waves(1)?, waves(1)?, waves(2)?);
    let seen = cuda::empty((runs, views.count, places, places), DType::F32, gpu.device())?;
    let [single, double] = [runs, 2 * runs].map(|batch| gpu.transform(Transform::Square64, n, batch));
    let (single, double) = (single?, double?);
    let mut args = Flows {
        vorticity: cuda::address(&vorticity)?,
        first: cuda::address(&first)?,
        product: cuda::address(&product)?,
        pairs: cuda::address(&pairs)?,
        force: cuda::address(&force)?,
        views: cuda::address(&seen)?,
        values: values as u64,
        step: config.step,
        viscosity: config.viscosity,
        n: n as u32,
        every: views.every as u32,
        count: views.count as u32,
        view: 0,
    };
    // SAFETY: every buffer has as many values as its kernels go through, and lives until the last of them is behind it in the stream.
    let launch = |kernel, count, args: &Flows| unsafe { gpu.launch(kernel, None, threads(count), args) };
    launch(BEGIN, values, &args)?;
    for view in 0..views.count {
        let steps = if view == 0 { views.skipped } else { views.steps };
        for stage in (0..steps).flat_map(|_| [PREDICT, CORRECT]) {
            double.inverse(&pairs, &pairs)?;
            launch(MULTIPLY, values, &args)?;
            single.forward(&product, &product)?;
            launch(stage, values, &args)?;
        }
        args.view = view as u32;
        single.inverse(&vorticity, &product)?;
        launch(LOOK, runs * places * places, &args)?;
    }
    Ok(seen)
}
