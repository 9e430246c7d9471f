//! Launches of `norm.cu`.

use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use crate::exec::tape::cuda::{Derivative, Grads, Net, Tape};
use crate::ops::cuda::activation_code;
use crate::ops::cuda::sums;
use crate::ops::{Activation, NormKind};
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor, bail};

static SOURCE: Source = Source { name: "norm", text: include_str!("norm.cu") };
const NORM: Kernel = Kernel { source: &SOURCE, name: "norm" };
const BACKWARD: Kernel = Kernel { source: &SOURCE, name: "norm_backward" };

/// Values of the widest row that a backward takes: two sums of each in shared memory.
pub(crate) const MOST: usize = 12_000;

/// Threads of a block for that many values.
fn threads(values: usize) -> usize {
    values.next_multiple_of(32).min(256)
}

/// `Norm` in `norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub x: Matrix,
    pub out: Matrix,
    /// Gain and offset in f32; the offset is 0 for none.
    pub weight: u64,
    pub bias: u64,
    pub rows: u32,
    /// Values that are normalised together.
    pub group: u32,
    kind: u32,
    act: u32,
    eps: f32,
}

impl Norm {
    /// `rows` rows of `x` to `out`, normalised in groups of `group` values.
    pub fn new(
        [x, out]: [Matrix; 2],
        [weight, bias]: [u64; 2],
        (rows, group): (usize, usize),
        (kind, eps): (NormKind, f64),
        act: Activation,
    ) -> Self {
        let (kind, act) = (u32::from(kind == NormKind::Rms), activation_code(act));
        Self { x, out, weight, bias, rows: rows as u32, group: group as u32, kind, act, eps: eps as f32 }
    }

    /// # Safety
    /// The matrices have these rows and are of that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        let blocks = self.rows as usize * (self.x.width / self.group) as usize;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(NORM, Some(dtype), ((blocks, 1, 1), threads(self.group as usize), 0), self) }
    }
}

/// The gradient of what a [`Norm`] reads, and those of gain and offset by block.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NormBackward {
    x: Matrix,
    grad: Matrix,
    dx: Matrix,
    weight: u64,
    bias: u64,
    sums: u64,
    rows: u32,
    kind: u32,
    act: u32,
    eps: f32,
}

impl NormBackward {
    /// Of a norm whose groups are its rows. `sums` is f32 `[blocks, 2 width]`, 0 for none.
    pub fn new(norm: &Norm, [grad, dx]: [Matrix; 2], sums: u64) -> Self {
        let Norm { x, weight, bias, rows, kind, act, eps, .. } = *norm;
        Self { x, grad, dx, weight, bias, sums, rows, kind, act, eps }
    }

    /// Blocks, each with a share of the rows and sums of its own. A fixed number at most, so that the sums do not depend on the GPU.
    pub fn blocks(rows: usize) -> usize {
        rows.min(512)
    }

    /// # Safety
    /// The matrices have these rows and are of that dtype, and rows have at most [`MOST`] values.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        let width = self.x.width as usize;
        let grid = ((Self::blocks(self.rows as usize), 1, 1), threads(width), 8 * width);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(BACKWARD, Some(dtype), grid, self) }
    }
}

type Operand<'a> = (&'a CudaStorage, &'a Layout);

/// The custom operation over whole rows.
pub(crate) fn forward(
    (kind, eps, act): (NormKind, f32, Activation),
    (x, layout): Operand,
    weight: Operand,
    bias: Option<Operand>,
) -> Result<(CudaStorage, Shape)> {
    let (gpu, shape, dtype) = (Gpu::of(&x.device)?, layout.shape(), x.dtype());
    let (storage, out) = cuda::result(shape, dtype, gpu.device())?;
    let (x, width) = (cuda::storage_matrix(x, layout)?, out.width as usize);
    let parameter = |(storage, layout): Operand| cuda::parameter(storage, layout, width);
    let parameters = [parameter(weight)?, bias.map_or(Ok(0), parameter)?];
    let rows = shape.elem_count() / width.max(1);
    // SAFETY: both matrices have the shape's rows, the parameters its width.
    unsafe { Norm::new([x, out], parameters, (rows, width), (kind, eps.into()), act).launch(&gpu, dtype)? };
    Ok((storage, shape.clone()))
}

/// The gradients of `x`, of the gain and of the offset.
pub(crate) fn backward(
    (kind, eps, act): (NormKind, f32, Activation),
    [x, weight, grad]: [&Tensor; 3],
    bias: Option<&Tensor>,
) -> Result<[Tensor; 3]> {
    let (gpu, dtype, width) = (Gpu::of(cuda::device_of(x)?)?, x.dtype(), weight.elem_count());
    if width > MOST {
        bail!("the gradient of a norm on CUDA takes rows of at most {MOST} values, found {width}");
    }
    let rows = x.elem_count() / width;
    let dx = cuda::empty(x.shape(), dtype, gpu.device())?;
    let sums = cuda::empty((NormBackward::blocks(rows), 2 * width), DType::F32, gpu.device())?;
    let parameters = [cuda::address(weight)?, bias.map_or(Ok(0), cuda::address)?];
    let norm = Norm::new([cuda::matrix(x)?, Matrix::NONE], parameters, (rows, width), (kind, eps.into()), act);
    let args = NormBackward::new(&norm, [cuda::matrix(grad)?, cuda::matrix(&dx)?], cuda::address(&sums)?);
    // SAFETY: the tensors are those of the forward.
    unsafe { args.launch(&gpu, dtype)? };
    let sums = sums::column_sums(&sums)?;
    Ok([dx, sums.narrow(0, 0, width)?, sums.narrow(0, width, width)?])
}

/// The normalisation on a tape. Its gain is no parameter.
pub(super) struct OnTape {
    pub x: usize,
    pub out: usize,
    pub norm: super::Norm,
}

impl OnTape {
    /// Rows whose groups are normalised, from one matrix to the other.
    fn args(&self, matrices: [Matrix; 2], rows: usize) -> Result<Norm> {
        let (weight, group) = (cuda::address(&self.norm.weight)?, self.norm.weight.elem_count());
        Ok(Norm::new(matrices, [weight, 0], (rows, group), (self.norm.kind, self.norm.eps), Activation::None))
    }
}

impl Derivative for OnTape {
    fn forward(&self, net: &Net, tape: &Tape, t: usize) -> Result<()> {
        let args = self.args([tape.value(self.x, t), tape.value(self.out, t)], tape.rows())?;
        // SAFETY: both matrices have the tape's rows.
        unsafe { args.launch(net.gpu(), net.dtype()) }
    }

    fn backward(&self, net: &Net, tape: &Tape, grads: &mut Grads, t: usize) -> Result<()> {
        let [x, dy, dx] = [tape.value(self.x, t), grads.value(self.out, t), grads.value(self.x, t)];
        let group = self.norm.weight.elem_count() as u32;
        let groups = tape.rows() * (x.width / group) as usize;
        let [x, dy, dx] = [x, dy, dx].map(|rows| Matrix { width: group, stride: group, ..rows });
        let args = NormBackward::new(&self.args([x, Matrix::NONE], groups)?, [dy, dx], 0);
        // SAFETY: rows of the tape lie one behind the other, and so do their groups.
        unsafe { args.launch(net.gpu(), net.dtype()) }
    }
}
