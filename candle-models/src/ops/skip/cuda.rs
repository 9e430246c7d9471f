//! Launches of `skip.cu`, for passes and for training.

use super::Skip;
use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use crate::ops::Activation;
use crate::ops::cuda::activation_code;
use crate::ops::cuda::sums::column_sums_of_products;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

static SOURCE: Source = Source { name: "skip", text: include_str!("skip.cu") };
const FORWARD: Kernel = Kernel { source: &SOURCE, name: "skip_rows" };
const BACKWARD: Kernel = Kernel { source: &SOURCE, name: "skip_backward" };

/// The gain, its number of values and the activation, as kernels read them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sum {
    gain: u64,
    each: u32,
    act: u32,
}

impl Sum {
    /// `gain` is the address of `each` values of f32, or 0.
    pub fn new(gain: u64, each: usize, act: Activation) -> Self {
        Self { gain, each: each as u32, act: activation_code(act) }
    }

    /// `out = act(a + g b)`.
    ///
    /// # Safety
    /// The matrices have these rows of one width and that dtype, the gain its values.
    pub unsafe fn launch(self, gpu: &Gpu, dtype: DType, rows: usize, matrices: [Matrix; 3]) -> Result<()> {
        /// `Skip` in `skip.cu`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Forward([Matrix; 3], Sum);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(FORWARD, Some(dtype), matrices[2].grid(rows), &Forward(matrices, self)) }
    }

    /// The gradients of `a` and, where there is a gain, of `b`, of the matrices `a`, `b`, the gradient, and the two results.
    ///
    /// # Safety
    /// As for [`Self::launch`]; the last matrix may be none.
    unsafe fn launch_backward(self, gpu: &Gpu, dtype: DType, rows: usize, matrices: [Matrix; 5]) -> Result<()> {
        /// `SkipBackward` in `skip.cu`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Backward([Matrix; 5], Sum);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(BACKWARD, Some(dtype), matrices[3].grid(rows), &Backward(matrices, self)) }
    }
}

/// On tensors of a GPU, with gradients; on the CPU training has a tape.
struct SkipOp(Activation);

type Operand<'a> = (&'a CudaStorage, &'a Layout);

impl SkipOp {
    fn forward(&self, (a, layout): Operand, b: Operand, gain: Option<Operand>) -> Result<(CudaStorage, Shape)> {
        let (gpu, dtype, rows) = (Gpu::of(&a.device)?, a.dtype(), layout.dims()[0]);
        cuda::same(layout.shape(), dtype, b)?;
        let each = gain.map_or(1, |(_, layout)| layout.shape().elem_count());
        let gain = gain.map_or(Ok(0), |(gain, layout)| cuda::parameter(gain, layout, each))?;
        let (storage, out) = cuda::result(layout.shape(), dtype, gpu.device())?;
        let matrices = [cuda::storage_matrix(a, layout)?, cuda::storage_matrix(b.0, b.1)?, out];
        // SAFETY: all three have the rows and the width of `a`.
        unsafe { Sum::new(gain, each, self.0).launch(&gpu, dtype, rows, matrices)? };
        Ok((storage, layout.shape().clone()))
    }

    /// The gradients of `a`, `b` and the gain.
    fn backward(&self, [a, b, grad]: [&Tensor; 3], gain: Option<&Tensor>) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        if gain.is_none() && self.0 == Activation::None {
            return Ok((grad.clone(), grad, None));
        }
        let gpu = Gpu::of(cuda::device_of(a)?)?;
        let new = || cuda::empty(a.shape(), a.dtype(), gpu.device());
        let (da, db) = (new()?, gain.map(|_| new()).transpose()?);
        let db_matrix = db.as_ref().map_or(Ok(Matrix::NONE), cuda::matrix)?;
        let matrices = [cuda::matrix(a)?, cuda::matrix(b)?, cuda::matrix(&grad)?, cuda::matrix(&da)?, db_matrix];
        let each = gain.map_or(1, Tensor::elem_count);
        let sum = Sum::new(gain.map_or(Ok(0), cuda::address)?, each, self.0);
        // SAFETY: all have the rows and the width of `a`.
        unsafe { sum.launch_backward(&gpu, a.dtype(), a.dim(0)?, matrices)? };
        let Some(db) = db else { return Ok((da.clone(), da, None)) };
        let at_places = |x: &Tensor| x.reshape(((), each));
        let dgain = column_sums_of_products(&at_places(&da)?, &at_places(b)?)?;
        Ok((da, db, Some(dgain)))
    }
}

impl CustomOp2 for SkipOp {
    fn name(&self) -> &'static str {
        "skip"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("on the CPU the sum is its reference or on a tape")
    }

    fn cuda_fwd(&self, a: &CudaStorage, al: &Layout, b: &CudaStorage, bl: &Layout) -> Result<(CudaStorage, Shape)> {
        self.forward((a, al), (b, bl), None)
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (da, db, _) = self.backward([a, b, grad], None)?;
        Ok((Some(da), Some(db)))
    }
}

impl CustomOp3 for SkipOp {
    fn name(&self) -> &'static str {
        "skip-gain"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("on the CPU the sum is its reference or on a tape")
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        al: &Layout,
        b: &CudaStorage,
        bl: &Layout,
        gain: &CudaStorage,
        gl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward((a, al), (b, bl), Some((gain, gl)))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        gain: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (da, db, dgain) = self.backward([a, b, grad], Some(gain))?;
        Ok((Some(da), Some(db), dgain))
    }
}

/// The sum of matrices on a GPU.
pub(super) fn add(skip: &Skip, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a, b, op) = (a.contiguous()?, b.contiguous()?, SkipOp(skip.act));
    match &skip.gain {
        Some(gain) => a.apply_op3(&b, &gain.to_dtype(DType::F32)?.contiguous()?, op),
        None => a.apply_op2(&b, op),
    }
}
