//! Launches of `grid.cu`.

use super::{Coordinates, Window};
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "grid", text: include_str!("grid.cu") };
const KERNEL: Kernel = Kernel { source: &SOURCE, name: "grid_rows" };

/// `Grid` in `grid.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    from: [u32; 2],
    to: [u32; 2],
    /// Negative numbers as the kernel's unsigned ones.
    shift: [u32; 2],
    channels: u32,
    coordinates: u32,
    periodic: u32,
}

fn words(pair: [usize; 2]) -> [u32; 2] {
    pair.map(|n| n as u32)
}

impl Arguments {
    pub fn coordinates([x, out]: [Matrix; 2], op: &Coordinates) -> Self {
        let grid = words(op.grid);
        Self {
            x,
            out,
            from: grid,
            to: grid,
            shift: [0, 0],
            channels: op.channels as u32,
            coordinates: op.count() as u32,
            periodic: op.periodic.into(),
        }
    }

    pub fn window([x, out]: [Matrix; 2], op: &Window) -> Self {
        let margin = words(op.margin);
        let shift = if op.padded { margin.map(u32::wrapping_neg) } else { margin };
        Self { x, out, from: words(op.from), to: words(op.to), shift, channels: op.channels as u32, coordinates: 0, periodic: 0 }
    }

    /// # Safety
    /// Both matrices have these rows, are of that dtype, and have the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(KERNEL, Some(dtype), self.out.grid(rows), self) }
    }
}
