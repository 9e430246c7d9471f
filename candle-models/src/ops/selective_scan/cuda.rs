//! Launches of `scan.cu` and `scan_backward.cu`, and the scan on tensors.

use crate::cuda::{self, Gpu, Grid, Kernel, Matrix, Source, States};
use crate::ops::ScanShape;
use crate::ops::cuda::{Resets, states_of, sums};
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor, bail};

static SOURCE: Source = Source { name: "scan", text: include_str!("scan.cu") };
static BACKWARD_SOURCE: Source = Source { name: "scan_backward", text: include_str!("scan_backward.cu") };
const BACKWARD: Kernel = Kernel { source: &BACKWARD_SOURCE, name: "scan_backward" };

/// Frames between two states that are kept for the backward: `KEPT` in both sources.
const KEPT: usize = 16;
/// The most states of a channel.
const MOST_STATES: usize = 256;
/// Sequences times channels from which on fewer threads with more to do are enough for a large GPU: 16 of their warps for each of 132 multiprocessors.
const MANY: usize = 132 * 16 * WARP;
/// Lanes of a warp.
const WARP: usize = 32;

/// Selective scan over `batch` sequences of `steps` frames; the state is updated in place.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Scan {
    /// `[batch * steps, width]`.
    pub u: Matrix,
    /// Step size before softplus, `[batch * steps, width]`.
    pub dt: Matrix,
    /// `[batch * steps, states]`.
    pub b: Matrix,
    /// `[batch * steps, states]`.
    pub c: Matrix,
    pub out: Matrix,
    /// f32 `[states, width]`, negative.
    pub a: u64,
    /// f32 `[width]`.
    pub skip: u64,
    /// `[states, width]`.
    pub state: States,
    /// One u8 per row; 0 for none.
    pub resets: u64,
    kept: u64,
    pub steps: u32,
}

/// What [`Scan::new`] asks for beside the inputs.
pub(crate) struct ScanOut {
    pub out: Matrix,
    pub state: States,
}

impl Scan {
    /// `[u, dt, b, c]`, `[a, skip]` and the resets.
    pub fn new([u, dt, b, c]: [Matrix; 4], [a, skip]: [u64; 2], resets: u64, steps: usize, ScanOut { out, state }: ScanOut) -> Self {
        Self { u, dt, b, c, out, a, skip, state, resets, kept: 0, steps: steps as u32 }
    }

    /// # Safety
    /// Everything has the stated sizes, the matrices that dtype, and every sequence a slot of its own.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        let (kernel, grid) = self.plan(batch)?;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(kernel, Some(dtype), grid, self) }
    }

    /// The kernel and its grid.
    fn plan(&self, batch: usize) -> Result<(Kernel, Grid)> {
        let (width, states) = (self.u.width as usize, self.b.width as usize);
        if states == 0 || states > MOST_STATES {
            bail!("a scan on CUDA has 1 to {MOST_STATES} states, found {states}");
        }
        // As the source says: states of a thread, channels of a block, frames of a tile.
        let (name, each, channels, tile) = match states {
            17.. => ("scan_deep", 8, WARP, KEPT / 2),
            9.. if self.steps > 1 && batch * width >= MANY => ("scan_window", 8, 2 * WARP, KEPT),
            9.. if self.steps > 1 && self.kept == 0 => ("scan_wide", 4, WARP, 2 * KEPT),
            _ => ("scan_narrow", 4, WARP, KEPT),
        };
        let warps = states.div_ceil(each);
        let shared = 4 * tile * (2 * (channels + warps * each) + warps * channels);
        Ok((Kernel { source: &SOURCE, name }, ((width.div_ceil(channels), batch, 1), warps * WARP, shared)))
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ScanBackward {
    u: Matrix,
    dt: Matrix,
    b: Matrix,
    c: Matrix,
    grad: Matrix,
    du: Matrix,
    ddt: Matrix,
    a: u64,
    skip: u64,
    kept: u64,
    resets: u64,
    dbc: u64,
    dparams: u64,
    sums: u64,
    steps: u32,
}

impl ScanBackward {
    /// Threads of a block.
    const THREADS: usize = 128;
    /// States that a block does at a time.
    const GROUP: usize = 16;
    /// `Tile` in `scan_backward.cu`.
    const SHARED: usize = 4 * KEPT * (4 * WARP + 4 * Self::GROUP + Self::GROUP * WARP + 2 * 4 * WARP);
}

/// A and the skip in the packed parameters `[states + 1, width]`.
fn packed_params(params: u64, ScanShape { width, states, .. }: ScanShape) -> [u64; 2] {
    [params, params + (states * width * size_of::<f32>()) as u64]
}

/// Columns of the packed inputs: the step size, B and C.
fn columns(packed: Matrix, ScanShape { width, states, .. }: ScanShape, dtype: DType) -> [Matrix; 3] {
    let size = dtype.size_in_bytes();
    [packed.columns(0, width, size), packed.columns(width, states, size), packed.columns(width + states, states, size)]
}

/// The custom operation: the output, and the state behind the sequences.
pub(crate) fn forward(
    shape: ScanShape,
    resets: &[bool],
    before: &Tensor,
    (u, layout): (&CudaStorage, &Layout),
    (packed, packed_layout): (&CudaStorage, &Layout),
    (params, params_layout): (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape, Tensor)> {
    let (gpu, batch, dtype) = (Gpu::of(&u.device)?, before.dim(0)?, u.dtype());
    cuda::same(&Shape::from((batch * shape.steps, shape.width + 2 * shape.states)), dtype, (packed, packed_layout))?;
    let (resets, state) = (Resets::new(resets, before.device())?, before.copy()?);
    let params = cuda::parameter(params, params_layout, (shape.states + 1) * shape.width)?;
    let (storage, out) = cuda::result(layout.shape(), dtype, gpu.device())?;
    let [dt, b, c] = columns(cuda::storage_matrix(packed, packed_layout)?, shape, dtype);
    let inputs = [cuda::storage_matrix(u, layout)?, dt, b, c];
    let outputs = ScanOut { out, state: states_of(&state)? };
    let scan = Scan::new(inputs, packed_params(params, shape), resets.address()?, shape.steps, outputs);
    // SAFETY: the shape was checked against all operands.
    unsafe { scan.launch(&gpu, dtype, batch)? };
    Ok((storage, layout.shape().clone(), state))
}

/// The gradients of `u`, of the packed inputs and of the parameters.
pub(crate) fn backward(shape: ScanShape, resets: &[bool], before: &Tensor, [u, packed, params, grad]: [&Tensor; 4]) -> Result<[Tensor; 3]> {
    let ScanShape { steps, width, states } = shape;
    let (gpu, batch, dtype) = (Gpu::of(cuda::device_of(u)?)?, before.dim(0)?, u.dtype());
    let (rows, blocks) = (batch * steps, width.div_ceil(WARP));
    let new = |shape: &[usize]| cuda::empty(shape, DType::F32, gpu.device());
    let resets = Resets::new(resets, before.device())?;
    let (du, dpacked) = (cuda::empty(u.shape(), dtype, gpu.device())?, cuda::empty(packed.shape(), dtype, gpu.device())?);
    let (kept, dbc) = (new(&[batch, steps.div_ceil(KEPT), states, width])?, new(&[blocks, rows, 2 * states])?);
    let dparams = new(&[batch, (states + 1) * width])?;
    let sums = (states > ScanBackward::GROUP).then(|| new(&[2, rows, width])).transpose()?;

    let [dt, b, c] = columns(cuda::matrix(packed)?, shape, dtype);
    let (u, resets) = (cuda::matrix(u)?, resets.address()?);
    let [a, skip] = packed_params(cuda::address(params)?, shape);
    let outputs = ScanOut { out: Matrix::NONE, state: states_of(before)? };
    let mut forward = Scan::new([u, dt, b, c], [a, skip], resets, steps, outputs);
    forward.kept = cuda::address(&kept)?;
    let into = cuda::matrix(&dpacked)?;
    let args = ScanBackward {
        u,
        dt,
        b,
        c,
        grad: cuda::matrix(grad)?,
        du: cuda::matrix(&du)?,
        ddt: into.columns(0, width, dtype.size_in_bytes()),
        a,
        skip,
        kept: forward.kept,
        resets,
        dbc: cuda::address(&dbc)?,
        dparams: cuda::address(&dparams)?,
        sums: sums.as_ref().map_or(Ok(0), cuda::address)?,
        steps: steps as u32,
    };
    let bc = into.columns(width, 2 * states, dtype.size_in_bytes());
    let sum = sums::SumParts { parts: args.dbc, out: bc, count: blocks as u32, rows: rows as u32 };
    // SAFETY: the tensors are those of the forward, the gradients and what lies between have their sizes; with `kept` the state is
    // only read.
    unsafe {
        forward.launch(&gpu, dtype, batch)?;
        gpu.launch(BACKWARD, Some(dtype), ((blocks, batch, 1), ScanBackward::THREADS, ScanBackward::SHARED), &args)?;
        sum.launch(&gpu, dtype)?;
    }
    Ok([du, dpacked, sums::column_sums(&dparams)?.reshape(params.shape())?])
}
