//! Launches of `set_attention.cu`.

use super::SetAttention;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "set_attention", text: include_str!("set_attention.cu") };
const SET_ATTENTION: Kernel = Kernel { source: &SOURCE, name: "set_attention" };

/// `SetAttention` in `set_attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    reads: [Matrix; 3],
    out: Matrix,
    queries: u32,
    elements: u32,
    heads: u32,
    width: u32,
}

impl Arguments {
    pub fn new(reads: [Matrix; 3], out: Matrix, op: &SetAttention) -> Self {
        let [queries, elements, heads, width] = [op.queries, op.elements, op.heads, op.width].map(|n| n as u32);
        Self { reads, out, queries, elements, heads, width }
    }

    /// # Safety
    /// All matrices have these rows and are of that dtype, and the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        const THREADS: usize = 32;
        let grid = (rows * self.heads as usize, self.queries as usize, 1);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(SET_ATTENTION, Some(dtype), (grid, THREADS, 4 * self.elements as usize), self) }
    }
}
