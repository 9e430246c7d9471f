//! Launches of `choose.cu`.

use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use crate::exec::Choice;
use candle_core::{DType, Result, Tensor};

static SOURCE: Source = Source { name: "choose", text: include_str!("choose.cu") };
const CHOOSE: Kernel = Kernel { source: &SOURCE, name: "choose" };

/// The classes of a component's columns: those wanted, and where they say [`SAMPLE`](crate::exec::SAMPLE) what `uniform` picks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Choose {
    /// The component's, side by side.
    pub logits: Matrix,
    /// f32, the component's columns.
    pub uniform: Matrix,
    /// u32, the component's columns.
    pub wanted: Matrix,
    /// u32; may be `wanted`.
    pub out: Matrix,
    pub rows: u32,
    pub columns: u32,
    pub classes: u32,
}

impl Choose {
    /// # Safety
    /// The matrices have these rows and columns, the logits that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        const THREADS: usize = 128;
        let blocks = (self.rows as usize * self.columns as usize).div_ceil(THREADS);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(CHOOSE, Some(dtype), ((blocks, 1, 1), THREADS, 0), self) }
    }
}

/// The classes `[rows, columns]` of a component, back on the host: `wanted` come from there.
pub(crate) fn choose(logits: &Tensor, wanted: &[u32], uniform: &Tensor, choice: Choice) -> Result<Vec<u32>> {
    let (gpu, logits) = (Gpu::of(cuda::device_of(logits)?)?, logits.contiguous()?);
    let (rows, columns) = (logits.dim(0)?, choice.columns);
    let uniform = uniform.narrow(1, choice.column, columns)?.to_dtype(DType::F32)?.contiguous()?;
    let classes = Tensor::from_slice(wanted, (rows, columns), logits.device())?;
    if logits.dim(1)? != choice.logits() || uniform.dim(0)? != rows {
        candle_core::bail!("logits {:?} and random numbers {:?} for {choice:?}", logits.dims(), uniform.dims());
    }
    let (wanted, classes_of_column) = (cuda::matrix(&classes)?, choice.classes as u32);
    let args = Choose {
        logits: cuda::matrix(&logits)?,
        uniform: cuda::matrix(&uniform)?,
        wanted,
        out: wanted,
        rows: rows as u32,
        columns: columns as u32,
        classes: classes_of_column,
    };
    // SAFETY: the matrices have the rows and columns checked above.
    unsafe { args.launch(&gpu, logits.dtype())? };
    classes.flatten_all()?.to_vec1()
}
