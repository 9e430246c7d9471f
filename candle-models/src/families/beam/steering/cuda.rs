//! Launches of `steering.cu`.

use super::SteeredBeam;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result as CandleResult};

static SOURCE: Source = Source { name: "steered_beam", text: include_str!("steering.cu") };
const STEERED: Kernel = Kernel { source: &SOURCE, name: "steered_beam" };

/// `SteeredBeam` in `steering.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    paths: u32,
    antennas: u32,
}

impl Arguments {
    pub fn new(op: &SteeredBeam, [x, out]: [Matrix; 2]) -> Self {
        Self { x, out, paths: op.paths as u32, antennas: op.antennas as u32 }
    }

    /// # Safety
    /// Both matrices have these rows, are of that dtype, and have the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> CandleResult<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(STEERED, Some(dtype), ((rows, 1, 1), 64, 0), self) }
    }
}
