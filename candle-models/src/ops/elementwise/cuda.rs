//! Launches of `elementwise.cu`.

use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use crate::ops::Activation;
use crate::ops::cuda::activation_code;
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Tensor};

static SOURCE: Source = Source { name: "elementwise", text: include_str!("elementwise.cu") };
const EPILOGUE: Kernel = Kernel { source: &SOURCE, name: "epilogue" };
const EPILOGUE_BACKWARD: Kernel = Kernel { source: &SOURCE, name: "epilogue_backward" };
const GATE: Kernel = Kernel { source: &SOURCE, name: "gate" };
const GATE_BACKWARD: Kernel = Kernel { source: &SOURCE, name: "gate_backward" };

/// `out = act(x + bias) + residual`: what ends a product, an activation alone, a sum alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Epilogue {
    pub x: Matrix,
    /// [`Matrix::NONE`] for none.
    pub residual: Matrix,
    /// May be `x` or `residual` itself.
    pub out: Matrix,
    /// f32; 0 for none.
    pub bias: u64,
    act: u32,
}

impl Epilogue {
    /// `out = act(x + bias)`.
    pub fn new(x: Matrix, out: Matrix, bias: u64, act: Activation) -> Self {
        Self { x, residual: Matrix::NONE, out, bias, act: activation_code(act) }
    }

    /// The same plus a matrix of the output's shape.
    #[allow(dead_code, reason = "for recorded programs: tensors add with Candle's own kernel")]
    pub fn with_residual(self, residual: Matrix) -> Self {
        Self { residual, ..self }
    }

    /// `out = a + b`.
    #[allow(dead_code, reason = "as above")]
    pub fn add(a: Matrix, b: Matrix, out: Matrix) -> Self {
        Self::new(a, out, 0, Activation::None).with_residual(b)
    }

    /// # Safety
    /// The matrices have `rows` rows of the same width and that dtype, the bias as many values.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(EPILOGUE, Some(dtype), self.x.grid(rows), self) }
    }
}

/// `dx = grad act'(x + bias)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EpilogueBackward {
    pub x: Matrix,
    pub grad: Matrix,
    /// May be `grad` itself.
    pub dx: Matrix,
    /// f32; 0 for none.
    pub bias: u64,
    act: u32,
}

impl EpilogueBackward {
    /// All of it.
    pub fn new(x: Matrix, grad: Matrix, dx: Matrix, bias: u64, act: Activation) -> Self {
        Self { x, grad, dx, bias, act: activation_code(act) }
    }

    /// # Safety
    /// As for [`Epilogue::launch`].
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(EPILOGUE_BACKWARD, Some(dtype), self.x.grid(rows), self) }
    }
}

/// `out = x silu(z)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    pub x: Matrix,
    pub z: Matrix,
    pub out: Matrix,
}

impl Gate {
    /// # Safety
    /// As for [`Epilogue::launch`].
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(GATE, Some(dtype), self.x.grid(rows), self) }
    }
}

/// The gradients of `x` and `z`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GateBackward {
    pub x: Matrix,
    pub z: Matrix,
    pub grad: Matrix,
    pub dx: Matrix,
    pub dz: Matrix,
}

impl GateBackward {
    /// # Safety
    /// As for [`Epilogue::launch`].
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(GATE_BACKWARD, Some(dtype), self.x.grid(rows), self) }
    }
}

fn rows_of(shape: &Shape, x: Matrix) -> usize {
    shape.elem_count() / (x.width as usize).max(1)
}

/// The custom operation `act(x)`.
pub(crate) fn activation(x: &CudaStorage, layout: &Layout, act: Activation) -> Result<(CudaStorage, Shape)> {
    let (shape, dtype, gpu) = (layout.shape(), x.dtype(), Gpu::of(&x.device)?);
    let (x, (storage, out)) = (cuda::storage_matrix(x, layout)?, cuda::result(shape, dtype, gpu.device())?);
    // SAFETY: both have the rows of the shape.
    unsafe { Epilogue::new(x, out, 0, act).launch(&gpu, dtype, rows_of(shape, x))? };
    Ok((storage, shape.clone()))
}

/// Its gradient.
pub(crate) fn activation_backward(x: &Tensor, grad: &Tensor, act: Activation) -> Result<Tensor> {
    let gpu = Gpu::of(cuda::device_of(x)?)?;
    let dx = cuda::empty(x.shape(), x.dtype(), gpu.device())?;
    let (x, rows) = (cuda::matrix(x)?, x.elem_count() / x.dims().last().copied().unwrap_or(1).max(1));
    // SAFETY: all three have the rows of one shape.
    unsafe { EpilogueBackward::new(x, cuda::matrix(grad)?, cuda::matrix(&dx)?, 0, act).launch(&gpu, grad.dtype(), rows)? };
    Ok(dx)
}

/// The custom operation `x silu(z)`.
pub(crate) fn gate((x, layout): (&CudaStorage, &Layout), (z, z_layout): (&CudaStorage, &Layout)) -> Result<(CudaStorage, Shape)> {
    let (shape, dtype, gpu) = (layout.shape(), x.dtype(), Gpu::of(&x.device)?);
    cuda::same(shape, dtype, (z, z_layout))?;
    let (storage, out) = cuda::result(shape, dtype, gpu.device())?;
    let (x, z) = (cuda::storage_matrix(x, layout)?, cuda::storage_matrix(z, z_layout)?);
    // SAFETY: all three have the rows of one shape.
    unsafe { Gate { x, z, out }.launch(&gpu, dtype, rows_of(shape, x))? };
    Ok((storage, shape.clone()))
}

/// Its gradients.
pub(crate) fn gate_backward(x: &Tensor, z: &Tensor, grad: &Tensor) -> Result<[Tensor; 2]> {
    let gpu = Gpu::of(cuda::device_of(x)?)?;
    let new = || cuda::empty(x.shape(), x.dtype(), gpu.device());
    let (out, matrix) = ([new()?, new()?], cuda::matrix);
    let args = GateBackward { x: matrix(x)?, z: matrix(z)?, grad: matrix(grad)?, dx: matrix(&out[0])?, dz: matrix(&out[1])? };
    // SAFETY: all five have the rows of one shape.
    unsafe { args.launch(&gpu, x.dtype(), x.dim(0)?)? };
    Ok(out)
}
