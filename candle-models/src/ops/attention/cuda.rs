//! Launches of `attention.cu`.

use crate::cuda::{Gpu, Kernel, Matrix, Source, States};
use crate::ops::Attention;
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "attention", text: include_str!("attention.cu") };
const ATTEND: Kernel = Kernel { source: &SOURCE, name: "attend" };
const SHIFT: Kernel = Kernel { source: &SOURCE, name: "attend_shift" };
const THREADS: usize = 128;

/// `Attend` in `attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attend {
    qkv: [Matrix; 3],
    out: Matrix,
    states: [States; 3],
    slopes: u64,
    resets: u64,
    heads: u32,
    window: u32,
    steps: u32,
}

impl Attend {
    /// `out` from `qkv`, all in the dtype of the launch; keys, values and their count in `states`, the slopes f32, a reset
    /// (u8) for every row.
    pub fn new(shape: Attention, qkv: [Matrix; 3], out: Matrix, states: [States; 3], (slopes, resets): (u64, u64), steps: usize) -> Self {
        Self { qkv, out, states, slopes, resets, heads: shape.heads as u32, window: shape.window as u32, steps: steps as u32 }
    }

    /// Attends, then moves the cache on.
    ///
    /// # Safety
    /// The matrices have `batch * steps` rows, the states a slot for every sequence.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        let width = self.out.width as usize;
        let shared = 4 * (self.window as usize + width / self.heads as usize);
        let grid = (batch * self.heads as usize, self.steps as usize, 1);
        // SAFETY: the caller's promise.
        unsafe {
            gpu.launch(ATTEND, Some(dtype), (grid, THREADS, shared), self)?;
            gpu.launch(SHIFT, Some(dtype), ((width.div_ceil(THREADS), batch, 1), THREADS, 0), self)
        }
    }
}
