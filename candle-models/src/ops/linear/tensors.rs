//! `act(x W + b)` with gradients, through `gemm` directly.
//!
//! Candle's own product leaves three things on the way: the bias and the activation are passes of their own over memory, every
//! call asks the environment for the number of threads, and each intermediate result gets a gradient that is first cleared
//! and then added to. Here one node of the graph holds all of it.

use crate::ops::activate_backward;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::ops::amx;
use crate::ops::{Activation, OutPointer, Products, Rows, activate, is_fused, rows_of, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor};
use gemm::Parallelism;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A matrix for a product: `rows` and `columns` steps may be exchanged, which transposes it without moving a value.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    pub row_step: usize,
    pub column_step: usize,
}

impl<'a> Operand<'a> {
    /// `[rows, columns]`, one row behind the other.
    pub fn new(data: &'a [f32], columns: usize) -> Self {
        Self { data, rows: data.len() / columns, columns, row_step: columns, column_step: 1 }
    }

    /// Some of the rows.
    pub fn part(self, rows: Range<usize>) -> Self {
        Self { data: self.data.get(rows.start * self.row_step..).unwrap_or_default(), rows: rows.len(), ..self }
    }

    /// Some of the columns.
    pub fn columns(self, columns: Range<usize>) -> Self {
        self.t().part(columns).t()
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { rows: self.columns, columns: self.rows, row_step: self.column_step, column_step: self.row_step, ..self }
    }
}

impl<'a> From<Rows<'a>> for Operand<'a> {
    fn from(x: Rows<'a>) -> Self {
        Self { data: x.data, rows: x.rows, columns: x.width, row_step: x.stride, column_step: 1 }
    }
}

/// What a product does with its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Replaces what is there.
    Fresh,
    /// Adds to it.
    Sum,
}

impl Products {
    /// `out = a b` or `out += a b`, shared by the threads: `out` has `stride` values between the starts of its rows. A value is
    /// one sum in one order, for any number of threads.
    pub(crate) fn product(self, a: Operand, b: Operand, out: &mut [f32], stride: usize, target: Target) {
        check_room(a, b, out.len(), stride);
        // SAFETY: `out` has room for the product (asserted above) and is borrowed alone.
        unsafe { share(self, a, b, OutPointer { data: out.as_mut_ptr(), stride }, target) };
    }

    /// [`product`](Self::product) on this thread alone: inside a task.
    pub(crate) fn product_alone(self, a: Operand, b: Operand, out: &mut [f32], stride: usize, target: Target) {
        check_room(a, b, out.len(), stride);
        // SAFETY: as in `product`.
        unsafe { multiply(self, a, b, OutPointer { data: out.as_mut_ptr(), stride }, target) };
    }

    /// `a b` in new memory, which is written once.
    pub(crate) fn product_new(self, a: Operand, b: Operand) -> Vec<f32> {
        let mut out = Vec::with_capacity(a.rows * b.columns);
        // SAFETY: the capacity is that of the product; a product that does not read its target writes every value.
        unsafe {
            share(self, a, b, OutPointer { data: out.as_mut_ptr(), stride: b.columns }, Target::Fresh);
            out.set_len(a.rows * b.columns);
        }
        out
    }
}

/// The least rows or columns of a part. Above 64 of them the order of a sum in `gemm` depends on its length alone, so that
/// every division gives the same bits.
const PART: usize = 128;

/// Divides a product among the threads along its longer side, each part a product of its own: `gemm`'s own division meets
/// after every block of the sum, and reached 273 instead of 347 GFLOP/s for 512 x 256 x 1920 on two threads.
///
/// # Safety
/// As [`multiply`].
unsafe fn share(products: Products, a: Operand, b: Operand, out: OutPointer, target: Target) {
    let (m, n) = (a.rows, b.columns);
    let length = m.max(n);
    let parts = rayon::current_num_threads().min(length / PART).max(1);
    if parts == 1 {
        // SAFETY: the caller's promise.
        return unsafe { multiply(products, a, b, out, target) };
    }
    (0..parts).into_par_iter().for_each(|part| {
        let limit = |part: usize| (length * part / parts).next_multiple_of(64).min(length);
        let range = limit(part)..limit(part + 1);
        // SAFETY: the parts are disjoint in rows or in columns of what the caller handed over.
        unsafe {
            if m >= n {
                let out = OutPointer { data: out.data.add(range.start * out.stride), ..out };
                multiply(products, a.part(range), b, out, target);
            } else {
                multiply(products, a, b.columns(range.clone()), out.columns(range.start), target);
            }
        }
    });
}

fn check_room(a: Operand, b: Operand, room: usize, stride: usize) {
    let (m, n) = (a.rows, b.columns);
    assert!(m * n == 0 || (stride >= n && room >= (m - 1) * stride + n), "no room for {m} x {n}");
}

/// `out = a b` or `out += a b` on this thread alone.
///
/// # Safety
/// `out` points at `a.rows` rows of `b.columns` values that nobody else touches; with [`Target::Sum`] they are initialised.
pub(crate) unsafe fn multiply(products: Products, a: Operand, b: Operand, out: OutPointer, target: Target) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "a product of {m} x {k} by {} x {n}", b.rows);
    let last = |x: &Operand| if x.rows * x.columns == 0 { 0 } else { (x.rows - 1) * x.row_step + (x.columns - 1) * x.column_step + 1 };
    assert!(a.data.len() >= last(&a) && b.data.len() >= last(&b), "an operand is shorter than its shape");
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if amx::gains(products, [m, k, n]) {
        // SAFETY: the caller's promise.
        return unsafe { amx::multiply_operands(products, a, b, out, target) };
    }
    let steps = |x: &Operand| (x.data.as_ptr(), x.column_step as isize, x.row_step as isize);
    let ((a, a_columns, a_rows), (b, b_columns, b_rows)) = (steps(&a), steps(&b));
    let _ = products;
    let read = target == Target::Sum;
    // SAFETY: every index that the shapes and steps reach lies inside the operands (asserted above); `out` is the caller's promise.
    unsafe {
        let stride = out.stride as isize;
        let out = out.data;
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            stride,
            read,
            a,
            a_columns,
            a_rows,
            b,
            b_columns,
            b_rows,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Rows per task. Fixed, so that the sums over rows do not depend on the number of threads.
pub(crate) const TASK_ROWS: usize = 64;

/// The sum over the rows of `x` `[rows, width]`, one behind the other.
pub(crate) fn column_sums(x: Rows) -> Vec<f32> {
    assert!(x.rows <= 1 || x.stride == x.width, "rows that lie apart");
    let partial = x.data[..x.rows * x.width].par_chunks(TASK_ROWS * x.width.max(1)).map(|rows| {
        let mut sum = vec![0.0; x.width];
        crate::ops::add_rows_into(&mut sum, rows);
        sum
    });
    crate::ops::sum_in_order(partial.collect())
}

/// A linear layer with its activation, at every one of some places of a row.
struct LinearOp {
    products: Products,
    act: Activation,
    places: usize,
    /// What the activation was applied to, where its gradient needs that: ReLU's is in the output.
    before: Arc<OnceLock<Vec<f32>>>,
    /// The same on a GPU, without the bias.
    #[cfg(feature = "cuda")]
    product: Arc<OnceLock<Tensor>>,
}

impl LinearOp {
    /// The shape of the result, and its values.
    fn forward_cpu(&self, x: (&CpuStorage, &Layout), w: Rows, bias: &[f32]) -> Result<(CpuStorage, Shape)> {
        let x = rows_of(x.0, x.1)?;
        let width = x.width / self.places;
        let at_places = Rows { rows: x.rows * self.places, width, stride: width, ..x };
        let values = self.forward(if self.places == 1 { x } else { at_places }, w, bias);
        Ok((CpuStorage::F32(values), (x.rows, self.places * w.width).into()))
    }

    fn forward(&self, x: Rows, w: Rows, bias: &[f32]) -> Vec<f32> {
        let mut out = self.products.product_new(x.into(), w.into());
        if !bias.is_empty() {
            out.par_chunks_mut(TASK_ROWS * w.width)
                .for_each(|block| block.chunks_mut(w.width).for_each(|row| crate::ops::add_into(row, bias)));
        }
        if matches!(self.act, Activation::Gelu | Activation::Silu) {
            self.before.get_or_init(|| out.clone());
        }
        if self.act != Activation::None {
            out.par_chunks_mut(TASK_ROWS * w.width).for_each(|block| activate(self.act, block));
        }
        out
    }

    #[cfg(feature = "cuda")]
    fn forward_cuda(
        &self,
        x: (&CudaStorage, &Layout),
        w: (&CudaStorage, &Layout),
        bias: Option<(&CudaStorage, &Layout)>,
    ) -> Result<(CudaStorage, Shape)> {
        let (rows, width) = x.1.shape().dims2()?;
        let at_places = Layout::contiguous_with_offset((rows * self.places, width / self.places), x.1.start_offset());
        let forward = super::cuda::forward(self.act, (x.0, &at_places), w, bias)?;
        if let Some(product) = forward.product {
            self.product.get_or_init(|| product);
        }
        Ok((forward.out, (rows, self.places * w.1.shape().dims2()?.1).into()))
    }

    /// Gradients of the input, if anything asks for it, of the weight and of the bias, if there is one.
    fn backward(&self, [x, w, out, grad]: [&Tensor; 4], bias: Option<&Tensor>) -> Result<(Option<Tensor>, Tensor, Option<Tensor>)> {
        let rows = |x: &Tensor| split_places(self.places, x);
        let (dx, dw, db) = self.backward_rows([&rows(x)?, w, &rows(out)?, &rows(&grad.contiguous()?)?], bias)?;
        Ok((dx.map(|dx| dx.reshape(x.shape())).transpose()?, dw, db))
    }

    /// The same, every place a row of its own.
    fn backward_rows(&self, [x, w, out, grad]: [&Tensor; 4], bias: Option<&Tensor>) -> Result<(Option<Tensor>, Tensor, Option<Tensor>)> {
        let (rows, (inputs, outputs)) = (x.dim(0)?, w.dims2()?);
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return super::cuda::backward(self.act, self.product.get(), [x, w, out, grad], bias);
        }
        let needs_dx = x.track_op();
        let (dx, dw, db) = with_rows(&[x, w, out, grad], |matrices| {
            let [x, w, out, grad]: [Rows; 4] = [matrices[0], matrices[1], matrices[2], matrices[3]];
            let through = self.through(out, grad);
            let grad = if self.act == Activation::None { grad } else { Rows { data: &through, ..grad } };
            let dx = needs_dx.then(|| self.products.product_new(grad.into(), Operand::from(w).t()));
            Ok((dx, self.products.product_new(Operand::from(x).t(), grad.into()), bias.map(|_| column_sums(grad))))
        })?;
        let device = x.device();
        let dx = dx.map(|dx| Tensor::from_vec(dx, (rows, inputs), device)).transpose()?;
        let db = db.map(|db| Tensor::from_vec(db, outputs, device)).transpose()?;
        Ok((dx, Tensor::from_vec(dw, (inputs, outputs), device)?, db))
    }

    /// The gradient before the activation; nothing where there is none.
    fn through(&self, out: Rows, grad: Rows) -> Vec<f32> {
        if self.act == Activation::None {
            return Vec::new();
        }
        let before = self.before.get().map_or(out.data, Vec::as_slice);
        let mut through = grad.data[..grad.rows * grad.width].to_vec();
        let chunk = TASK_ROWS * grad.width;
        through.par_chunks_mut(chunk).zip(before.par_chunks(chunk)).for_each(|(g, x)| activate_backward(self.act, x, g));
        through
    }
}

impl CustomOp2 for LinearOp {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward_cpu((x, xl), rows_of(w, wl)?, &[])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, xl: &Layout, w: &CudaStorage, wl: &Layout) -> Result<(CudaStorage, Shape)> {
        self.forward_cuda((x, xl), (w, wl), None)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, out: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, _) = self.backward([x, w, out, grad], None)?;
        Ok((dx, Some(dw)))
    }
}

impl CustomOp3 for LinearOp {
    fn name(&self) -> &'static str {
        "linear-bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward_cpu((x, xl), rows_of(w, wl)?, crate::ops::contiguous(b, bl)?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        xl: &Layout,
        w: &CudaStorage,
        wl: &Layout,
        b: &CudaStorage,
        bl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward_cuda((x, xl), (w, wl), Some((b, bl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, db) = self.backward([x, w, out, grad], Some(b))?;
        Ok((dx, Some(dw), db))
    }
}

/// The places of all rows as rows.
pub(super) fn split_places(places: usize, x: &Tensor) -> Result<Tensor> {
    if places == 1 { Ok(x.clone()) } else { x.contiguous()?.reshape((x.dim(0)? * places, x.dim(1)? / places)) }
}

/// Turned back.
pub(super) fn join_places(places: usize, y: Tensor) -> Result<Tensor> {
    if places == 1 { Ok(y) } else { y.reshape((y.dim(0)? / places, y.dim(1)? * places)) }
}

/// `act(x W + b)` for `x` `[rows, inputs]` (column slices of a wider matrix too), `weight` `[inputs, outputs]` and `bias`
/// `[outputs]`, with gradients.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
    linear_at_places(1, x, weight, bias, act)
}

/// [`linear`] at every one of some places of a row: `[rows, places inputs]` to `[rows, places outputs]`, one node of the graph.
pub(super) fn linear_at_places(places: usize, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
    if !is_fused(x) {
        return join_places(places, linear_reference(&split_places(places, x)?, weight, bias, act)?);
    }
    if x.dim(1)? != places * weight.dim(0)? {
        candle_core::bail!("linear: rows of {} values by a weight {:?} at {places} places", x.dim(1)?, weight.dims());
    }
    let op = LinearOp {
        products: Products::current(),
        act,
        places,
        before: Arc::default(),
        #[cfg(feature = "cuda")]
        product: Arc::default(),
    };
    let weight = weight.contiguous()?;
    // A transposed input has its rows' values apart; the op reads rows. cuBLAS gets rows one behind the other.
    let x = if x.stride()[1] == 1 && x.device().is_cpu() && places == 1 { x.clone() } else { x.contiguous()? };
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.to_dtype(DType::F32)?, op),
        None => x.apply_op2(&weight, op),
    }
}

/// [`linear`] in plain tensor operations.
pub fn linear_reference(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
    let y = x.contiguous()?.matmul(weight)?;
    act.reference(&match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    })
}
