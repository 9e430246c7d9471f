//! The launch of `before.cu`.

use crate::cuda::{Gpu, Kernel, Matrix, Source, States};
use candle_core::Result;

static SOURCE: Source = Source { name: "before", text: include_str!("before.cu") };
const BEFORE: Kernel = Kernel { source: &SOURCE, name: "before" };

/// The indices of the frame before, over `batch` sequences of `steps` frames.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Before {
    /// u32 `[batch * steps, columns]`.
    pub ids: Matrix,
    /// As `ids`, in another place.
    pub out: Matrix,
    /// `[columns]`.
    pub state: States,
    /// One u8 per row; 0 for none.
    pub resets: u64,
    pub steps: u32,
}

impl Before {
    /// # Safety
    /// Everything has the stated sizes, and every sequence a slot of its own.
    pub unsafe fn launch(&self, gpu: &Gpu, batch: usize) -> Result<()> {
        let threads = (self.ids.width as usize).next_multiple_of(32).min(128);
        let grid = ((batch, (self.ids.width as usize).div_ceil(threads), 1), threads, 0);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(BEFORE, None, grid, self) }
    }
}
