//! Launches of `conv2d.cu`.

use super::Conv2dShape;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "conv2d", text: include_str!("conv2d.cu") };
const CONV2D: Kernel = Kernel { source: &SOURCE, name: "conv2d" };

/// `Conv2d` in `conv2d.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    /// `[K L C, O]` in the dtype of the launch.
    weight: u64,
    /// f32; 0 for none.
    bias: u64,
    input: [u32; 2],
    output: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    padding: [u32; 2],
    channels: u32,
    outputs: u32,
}

impl Arguments {
    pub fn new([x, out]: [Matrix; 2], [weight, bias]: [u64; 2], shape: &Conv2dShape, (output, outputs): ([usize; 2], usize)) -> Self {
        let words = |pair: [usize; 2]| pair.map(|n| n as u32);
        Self {
            x,
            out,
            weight,
            bias,
            input: words(shape.input),
            output: words(output),
            kernel: words(shape.kernel),
            stride: words(shape.stride),
            padding: words(shape.padding),
            channels: shape.channels as u32,
            outputs: outputs as u32,
        }
    }

    /// # Safety
    /// Both matrices have these rows and are of that dtype, the parameters the sizes of the shape.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        let outputs = self.outputs as usize;
        let threads = outputs.next_multiple_of(32).min(128);
        let places = (self.output[0] * self.output[1]) as usize;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(CONV2D, Some(dtype), ((rows * places, outputs.div_ceil(threads), 1), threads, 0), self) }
    }
}
