//! NVIDIA GPUs: start-up, kernels compiled at run time, and how they are launched. Only with the feature `cuda`.
//!
//! Candle owns the device, its stream and its memory; this module sets them up for small networks ([`start`]) and adds kernels
//! of our own ([`Gpu`]), whose sources lie in `ops/cuda`. They are compiled by NVRTC for the GPU at hand when they are
//! first used, and kept on disk, so that building this crate needs no CUDA compiler for them.
//!
//! What other crates of the workspace need to bring kernels of their own is public.
//!
//! All work of a device goes through one stream, in order; whoever holds the device uses it from one thread at a time.

mod compiler;
mod gpu;
mod pinned;
mod start;
mod upload;

pub use gpu::{Gpu, Kernel, Source, address, empty};
pub(crate) use gpu::{Grid, Matrix, States, device_of, matrix, parameter, result, same, storage_matrix};
pub(crate) use pinned::Pinned;
pub(crate) use start::start;
pub use upload::{Staging, Upload, Uploader};
