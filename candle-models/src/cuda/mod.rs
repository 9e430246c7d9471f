//! NVIDIA GPUs: start-up, kernels compiled at run time, and how they are launched. Only with the feature `cuda`.
//!
//! Candle owns the device, its stream and its memory; this module sets them up for small networks ([`start`]) and adds kernels
//! of our own ([`Gpu`]), whose sources lie beside the operations. They are compiled by NVRTC for the GPU at hand when they are
//! first used, and kept on disk, so that building this crate needs no CUDA compiler for them.
//!
//! What other crates of the workspace need to bring kernels of their own is public.
//!
//! All work of a device goes through one stream, in order; whoever holds the device uses it from one thread at a time.

mod compiler;
pub mod fft;
mod gpu;
mod pinned;
mod start;
mod upload;

pub(crate) use gpu::{AT_ONCE, device_of, matrix, parameter, result, same, storage_matrix};
pub use gpu::{Gpu, Grid, Kernel, Matrix, Source, States, address, empty};
pub(crate) use pinned::Pinned;
pub(crate) use start::start;
pub use upload::{Staging, Upload, Uploader};

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long this process has been busy with what a GPU wants before a first pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Our kernels: compiled or read from their cache, and loaded by the driver.
    pub kernels: Duration,
    /// Passes captured as graphs.
    pub captures: Duration,
}

static KERNELS: AtomicU64 = AtomicU64::new(0);
pub(crate) static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// What has been prepared so far, by all threads together.
pub fn prepared() -> Prepared {
    let of = |total: &AtomicU64| Duration::from_nanos(total.load(Ordering::Relaxed));
    Prepared { kernels: of(&KERNELS), captures: of(&CAPTURES) }
}

/// Adds the time of a piece of work to a total.
pub(crate) fn counted<T>(total: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    total.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}
