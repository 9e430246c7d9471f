//! Launches of `philox.cu`, and dropout on tensors.

use crate::cuda::{self, Gpu, Grid, Kernel, Source};
use crate::random::Random;
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor};

static SOURCE: Source = Source { name: "philox", text: include_str!("philox.cu") };
const UNIFORM: Kernel = Kernel { source: &SOURCE, name: "uniform" };
const DROPOUT: Kernel = Kernel { source: &SOURCE, name: "dropout" };

/// `Address` in `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Address {
    seed: u64,
    stream: u64,
    /// Blocks of four before the first value.
    first: u64,
}

/// Whether the kernels can count from where this stream does: they make blocks of four.
pub(crate) fn counts_from(random: Random) -> bool {
    random.first_index().is_multiple_of(4)
}

impl From<Random> for Address {
    fn from(random: Random) -> Self {
        Self { seed: random.seed(), stream: random.stream_id(), first: random.first_index() / 4 }
    }
}

/// A thread for every four values.
fn grid(n: usize) -> Grid {
    ((n.div_ceil(4 * 256), 1, 1), 256, 0)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Uniform {
    out: u64,
    n: u64,
    address: Address,
}

/// Writes the uniform numbers from index 0 on into all of a contiguous f32 tensor.
pub(crate) fn fill_uniform(random: Random, out: &Tensor) -> Result<()> {
    let (gpu, n) = (Gpu::of(cuda::device_of(out)?)?, out.elem_count());
    if out.dtype() != DType::F32 {
        candle_core::bail!("uniform numbers are f32, asked for {:?}", out.dtype());
    }
    let args = Uniform { out: cuda::address(out)?, n: n as u64, address: random.into() };
    // SAFETY: the tensor has `n` values of f32.
    unsafe { gpu.launch(UNIFORM, None, grid(n), &args) }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dropout {
    x: u64,
    out: u64,
    n: u64,
    address: Address,
    drop: f32,
    scale: f32,
}

/// The custom operation, on something contiguous. The mask is made again where it is needed: the backward is the same operation.
pub(crate) fn dropout(probability: f32, random: Random, (x, layout): (&CudaStorage, &Layout)) -> Result<(CudaStorage, Shape)> {
    let (gpu, shape, dtype) = (Gpu::of(&x.device)?, layout.shape(), x.dtype());
    let (storage, out) = cuda::result(shape, dtype, gpu.device())?;
    let (n, x) = (shape.elem_count(), cuda::storage_matrix(x, layout)?.data);
    let (drop, scale) = (probability, 1.0 / (1.0 - probability));
    let args = Dropout { x, out: out.data, n: n as u64, address: random.into(), drop, scale };
    // SAFETY: both have `n` values of that dtype, one behind the other.
    unsafe { gpu.launch(DROPOUT, Some(dtype), grid(n), &args)? };
    Ok((storage, shape.clone()))
}
