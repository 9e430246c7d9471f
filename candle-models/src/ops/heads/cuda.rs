//! Launches of `heads.cu`.

use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use crate::exec::Choice;
use candle_core::{DType, Result, Tensor, bail};

static SOURCE: Source = Source { name: "heads", text: include_str!("heads.cu") };
const CHOOSE: Kernel = Kernel { source: &SOURCE, name: "choose" };
/// By the rows of a block, and the most rows of a launch that they are taken for: with more rows in a block the weights are read less often.
const HEADS: [(usize, usize, Kernel); 3] = [
    (1, 132, Kernel { source: &SOURCE, name: "heads1" }),
    (2, 264, Kernel { source: &SOURCE, name: "heads2" }),
    (4, usize::MAX, Kernel { source: &SOURCE, name: "heads4" }),
];
/// Threads of a block, chunks of weights, and outputs of a thread, as in `heads.cu`.
const HEAD_THREADS: usize = 512;
const STAGES: usize = 4;
const OUTPUTS: usize = 2;
/// Bytes of a chunk of weights, if eight rows of them are not more.
const CHUNK: usize = 12 << 10;

/// Columns of its frame that a prior can know: `GIVEN` in `heads.cu`.
pub(crate) const GIVEN: usize = 2;

/// A component of [`Heads`], `Group` in `heads.cu`: addresses of its parameters, biases in f32.
#[derive(Clone, Copy)]
pub(crate) struct HeadGroup {
    pub previous: u64,
    pub out: u64,
    pub out_bias: u64,
    /// What a class adds to the inner layers of the components behind this one, f32 `[columns * classes, components width]`; 0 for none.
    pub chosen: u64,
    /// 0 for none.
    pub prior: u64,
    pub column: u32,
    pub columns: u32,
    pub classes: u32,
    pub logits: u32,
    /// Of a column of the prior.
    pub contexts: u32,
    pub given_count: u32,
    /// Column and number of classes.
    pub given: [[u32; 2]; GIVEN],
}

impl HeadGroup {
    /// Its words in memory, as the device reads them.
    pub fn words(&self) -> impl Iterator<Item = u32> + use<> {
        let addresses = [self.previous, self.out, self.out_bias, self.chosen, self.prior];
        let numbers = [self.column, self.columns, self.classes, self.logits, self.contexts, self.given_count];
        let numbers = numbers.into_iter().chain(self.given.into_iter().flatten());
        addresses.into_iter().flat_map(|a| [a as u32, (a >> 32) as u32]).chain(numbers)
    }
}

/// All heads of an action, `Heads` in `heads.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    /// What the stream gives the inner layers before anything is chosen, f32 `[rows, count width]`.
    pub inner: Matrix,
    /// f32.
    pub logits: Matrix,
    pub out: Matrix,
    pub previous: Matrix,
    pub wanted: Matrix,
    /// The classes of the frame before that of `previous`; [`Matrix::NONE`] without priors.
    pub before: Matrix,
    /// f32.
    pub uniform: Matrix,
    /// Address of the [`HeadGroup`]s.
    pub groups: u64,
    pub width: u32,
    pub count: u32,
    /// Set by the launch.
    pub rows: u32,
    /// Set by the launch.
    pub chunk: u32,
}

impl Heads {
    /// # Safety
    /// All matrices have these rows, the weights are of that dtype, `outputs` is the largest number of logits of a component, and the classes lie inside
    /// their tables.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize, outputs: usize) -> Result<()> {
        if outputs > OUTPUTS * HEAD_THREADS {
            bail!("heads on CUDA have layers of at most {} outputs, found {outputs}", OUTPUTS * HEAD_THREADS);
        }
        // Copies are of 16 bytes, which a number of rows always fills.
        let chunk = CHUNK.max(16 * outputs);
        let (each, _, kernel) = *HEADS.iter().find(|(_, most, _)| rows <= *most).unwrap_or(&HEADS[2]);
        let ids =
            [self.out, self.previous, self.wanted, self.before, self.uniform].map(|matrix| matrix.width as usize).iter().sum::<usize>();
        let [inner, logits, count] = [self.inner.width, self.logits.width, self.count].map(|n| n as usize);
        let values = each * (OUTPUTS * HEAD_THREADS + inner + logits + ids);
        let shared = STAGES * chunk + count * size_of::<HeadGroup>() + size_of::<f32>() * values;
        let args = Self { rows: rows as u32, chunk: chunk as u32, ..*self };
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(kernel, Some(dtype), ((rows.div_ceil(each), 1, 1), HEAD_THREADS, shared), &args) }
    }
}

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
        bail!("logits {:?} and random numbers {:?} for {choice:?}", logits.dims(), uniform.dims());
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
