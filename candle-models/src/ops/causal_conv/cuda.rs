//! Launches of `conv.cu`, and the convolution on tensors.

use crate::cuda::{self, Gpu, Grid, Kernel, Matrix, Source, States};
use crate::ops::ConvShape;
use crate::ops::cuda::{Resets, states_of, sums};
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor, bail};

static SOURCE: Source = Source { name: "conv", text: include_str!("conv.cu") };
const FOUR: [Kernel; 2] = [Kernel { source: &SOURCE, name: "conv4" }, Kernel { source: &SOURCE, name: "conv4_backward" }];
const SIXTEEN: [Kernel; 2] = [Kernel { source: &SOURCE, name: "conv16" }, Kernel { source: &SOURCE, name: "conv16_backward" }];

/// Frames of a thread: `PIECE` in `conv.cu`.
const PIECE: usize = 32;
/// The most taps that there is a kernel for.
const MOST_TAPS: u32 = 16;

/// Forward and backward for that many taps.
fn kernels(taps: u32) -> Result<[Kernel; 2]> {
    match taps {
        2..=4 => Ok(FOUR),
        5..=MOST_TAPS => Ok(SIXTEEN),
        _ => bail!("a convolution on CUDA has 2 to {MOST_TAPS} taps, found {taps}"),
    }
}

fn grid(batch: usize, steps: u32, width: u32) -> Grid {
    let threads = (width as usize).next_multiple_of(32).min(128);
    (((width as usize).div_ceil(threads), (steps as usize).div_ceil(PIECE), batch), threads, 0)
}

/// Causal depthwise convolution and SiLU over `batch` sequences of `steps` frames; the state holds the last `taps - 1` inputs.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Conv {
    /// `[batch * steps, width]`.
    pub x: Matrix,
    pub out: Matrix,
    /// f32 `[taps, width]`.
    pub weight: u64,
    /// f32 `[width]`.
    pub bias: u64,
    /// `[taps - 1, width]`.
    pub state: States,
    /// One u8 per row; 0 for none.
    pub resets: u64,
    pub steps: u32,
    pub taps: u32,
}

impl Conv {
    /// # Safety
    /// Everything has the stated sizes, the matrices that dtype, and every sequence a slot of its own.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        let [kernel, _] = kernels(self.taps)?;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(kernel, Some(dtype), grid(batch, self.steps, self.x.width), self) }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ConvBackward {
    x: Matrix,
    grad: Matrix,
    dx: Matrix,
    weight: u64,
    bias: u64,
    before: States,
    resets: u64,
    sums: u64,
    steps: u32,
    taps: u32,
}

/// The custom operation: the output, and the state behind the sequences.
pub(crate) fn forward(
    shape: ConvShape,
    resets: &[bool],
    before: &Tensor,
    (x, layout): (&CudaStorage, &Layout),
    weight: (&CudaStorage, &Layout),
    bias: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape, Tensor)> {
    let ConvShape { steps, width, taps } = shape;
    let (gpu, batch, dtype) = (Gpu::of(&x.device)?, before.dim(0)?, x.dtype());
    let (resets, state) = (Resets::new(resets, before.device())?, before.copy()?);
    let (storage, out) = cuda::result(layout.shape(), dtype, gpu.device())?;
    let args = Conv {
        x: cuda::storage_matrix(x, layout)?,
        out,
        weight: cuda::parameter(weight.0, weight.1, taps * width)?,
        bias: cuda::parameter(bias.0, bias.1, width)?,
        state: states_of(&state)?,
        resets: resets.address()?,
        steps: steps as u32,
        taps: taps as u32,
    };
    // SAFETY: the shape was checked against all operands.
    unsafe { args.launch(&gpu, dtype, batch)? };
    Ok((storage, layout.shape().clone(), state))
}

/// The gradients of `x`, weight and bias.
pub(crate) fn backward(shape: ConvShape, resets: &[bool], before: &Tensor, [x, weight, bias, grad]: [&Tensor; 4]) -> Result<[Tensor; 3]> {
    let ConvShape { steps, width, taps } = shape;
    let (gpu, batch, dtype) = (Gpu::of(cuda::device_of(x)?)?, before.dim(0)?, x.dtype());
    let resets = Resets::new(resets, before.device())?;
    let dx = cuda::empty(x.shape(), dtype, gpu.device())?;
    let sums = cuda::empty((batch * steps.div_ceil(PIECE), (taps + 1) * width), DType::F32, gpu.device())?;
    let args = ConvBackward {
        x: cuda::matrix(x)?,
        grad: cuda::matrix(grad)?,
        dx: cuda::matrix(&dx)?,
        weight: cuda::address(weight)?,
        bias: cuda::address(bias)?,
        before: states_of(before)?,
        resets: resets.address()?,
        sums: cuda::address(&sums)?,
        steps: steps as u32,
        taps: taps as u32,
    };
    let [_, kernel] = kernels(args.taps)?;
    // SAFETY: the tensors are those of the forward, the gradients have their sizes.
    unsafe { gpu.launch(kernel, Some(dtype), grid(batch, args.steps, width as u32), &args)? };
    let sums = sums::column_sums(&sums)?;
    Ok([dx, sums.narrow(0, 0, taps * width)?.reshape((taps, width))?, sums.narrow(0, taps * width, width)?])
}
