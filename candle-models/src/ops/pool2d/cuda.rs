//! Launches of `pool2d.cu`.

use super::{Pool2d, Pooling};
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use crate::ops::conv2d::Conv2dShape;
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "pool2d", text: include_str!("pool2d.cu") };
const POOL2D: Kernel = Kernel { source: &SOURCE, name: "pool2d" };

/// `Pool2d` in `pool2d.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    /// Width of the input; its height follows.
    across: u32,
    output: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    channels: u32,
    /// 1 for the mean, 0 for the largest value.
    average: u32,
}

impl Arguments {
    pub fn new([x, out]: [Matrix; 2], op: &Pool2d) -> Self {
        let words = |pair: [usize; 2]| pair.map(|n| n as u32);
        let Conv2dShape { input, channels, kernel, stride, .. } = op.shape;
        Self {
            x,
            out,
            across: input[1] as u32,
            output: words(op.output),
            kernel: words(kernel),
            stride: words(stride),
            channels: channels as u32,
            average: u32::from(op.pooling == Pooling::Average),
        }
    }

    /// # Safety
    /// Both matrices have these rows and are of that dtype, and the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        let channels = self.channels as usize;
        let threads = channels.next_multiple_of(32).min(128);
        let places = (self.output[0] * self.output[1]) as usize;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(POOL2D, Some(dtype), ((rows * places, channels.div_ceil(threads), 1), threads, 0), self) }
    }
}
