//! Launches of `heads.cu`.

use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "heads", text: include_str!("heads.cu") };
const CHOOSE: Kernel = Kernel { source: &SOURCE, name: "choose" };
const HEADS: Kernel = Kernel { source: &SOURCE, name: "heads" };
const THREADS: usize = 256;
/// Threads of a row's heads: four share the inputs of each of 128 columns.
const HEAD_THREADS: usize = 512;

/// The classes of a component, `Choose` in `heads.cu`: logits and uniform f32, classes u32.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Choose {
    pub logits: Matrix,
    /// The component's columns only.
    pub wanted: Matrix,
    pub uniform: Matrix,
    pub out: Matrix,
    pub rows: u32,
}

impl Choose {
    /// # Safety
    /// All matrices have these rows.
    pub unsafe fn launch(&self, gpu: &Gpu) -> Result<()> {
        let blocks = (self.rows as usize * self.out.width as usize).div_ceil(THREADS);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(CHOOSE, None, ((blocks, 1, 1), THREADS, 0), self) }
    }
}

/// A component of [`Heads`], `Group` in `heads.cu`: addresses of its parameters, biases in f32.
#[derive(Clone, Copy)]
pub(crate) struct HeadGroup {
    pub hidden: u64,
    pub hidden_bias: u64,
    pub previous: u64,
    pub out: u64,
    pub out_bias: u64,
    pub chosen: u64,
    pub column: u32,
    pub columns: u32,
    pub classes: u32,
    pub logits: u32,
}

impl HeadGroup {
    /// Its words in memory, as the device reads them.
    pub fn words(&self) -> impl Iterator<Item = u32> + use<> {
        let addresses = [self.hidden, self.hidden_bias, self.previous, self.out, self.out_bias, self.chosen];
        let numbers = [self.column, self.columns, self.classes, self.logits];
        addresses.into_iter().flat_map(|a| [a as u32, (a >> 32) as u32]).chain(numbers)
    }
}

/// All heads of an action, `Heads` in `heads.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub trunk: Matrix,
    /// f32.
    pub logits: Matrix,
    pub out: Matrix,
    pub previous: Matrix,
    pub wanted: Matrix,
    /// f32.
    pub uniform: Matrix,
    pub stream: u64,
    pub stream_bias: u64,
    /// Address of the [`HeadGroup`]s.
    pub groups: u64,
    pub width: u32,
    pub count: u32,
}

impl Heads {
    /// # Safety
    /// All matrices have these rows, trunk and weights are of that dtype, and the classes lie inside their tables.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        let values = HEAD_THREADS + (self.trunk.width + 2 * self.width + self.logits.width + self.out.width) as usize;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(HEADS, Some(dtype), ((rows, 1, 1), HEAD_THREADS, 4 * values), self) }
    }
}
