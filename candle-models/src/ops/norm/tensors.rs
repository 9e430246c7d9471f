//! Layer normalisation and RMS normalisation over the last axis, with the gain, the offset and their gradients in one pass.

use crate::ops::activate_backward;
use crate::ops::simd::{kernel, products, sum};
use crate::ops::{Activation, Rows, rows_of, sum_in_order, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, D, DType, Layout, Result, Shape, Tensor};
use pulp::Simd;
use rayon::prelude::*;

/// What is taken out of a row before the gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean and standard deviation (Ba et al. 2016).
    Layer,
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Mean (0 for RMS) and reciprocal deviation of a row.
#[inline(always)]
fn moments<S: Simd>(simd: S, kind: NormKind, x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = if kind == NormKind::Layer { sum(simd, x) / n } else { 0.0 };
    (mean, 1.0 / (products(simd, x, mean, x, mean) / n + eps).sqrt())
}

kernel! {
    /// `out = act(normalised(x) * weight + bias)`; an empty `bias` is no offset.
    pub(crate) fn norm_row<S = simd>(kind: NormKind, eps: f32, act: Activation, x: &'a [f32], weight: &'a [f32], bias: &'a [f32], out: &'a mut [f32]) {
        let (mean, scale) = moments(simd, kind, x, eps);
        if bias.is_empty() {
            for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *o = (x - mean) * scale * w;
            }
        } else {
            for (((o, &x), &w), &b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *o = crate::ops::simd::fma::<S>((x - mean) * scale, w, b);
            }
        }
        act.apply::<S>(out);
    }
}

kernel! {
    /// Input gradient of a row; adds to the gradients of gain and offset.
    pub(crate) fn norm_row_backward<S = simd>(kind: NormKind, eps: f32, x: &'a [f32], weight: &'a [f32], grad: &'a [f32], dx: &'a mut [f32], dw: &'a mut [f32], db: &'a mut [f32]) {
        let (mean, scale) = moments(simd, kind, x, eps);
        for ((((&x, &g), &w), d), (dw, db)) in x.iter().zip(grad).zip(weight).zip(dx.iter_mut()).zip(dw.iter_mut().zip(db)) {
            *dw += g * (x - mean) * scale;
            *db += g;
            *d = g * w;
        }
        let n = x.len() as f32;
        let shift = if kind == NormKind::Layer { sum(simd, dx) / n } else { 0.0 };
        let slope = scale * products(simd, x, mean, dx, 0.0) / n;
        for (d, &x) in dx.iter_mut().zip(x) {
            *d = scale * (*d - shift - (x - mean) * scale * slope);
        }
    }
}

/// Rows per task. Fixed, so that the sums over rows do not depend on the number of threads.
const TASK_ROWS: usize = 64;

/// Normalises the rows of a matrix; an empty `bias` is no offset.
pub(crate) fn norm_rows(kind: NormKind, eps: f32, act: Activation, x: Rows, weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.rows * x.width];
    out.par_chunks_mut(TASK_ROWS * x.width).enumerate().for_each(|(task, out)| {
        for (i, out) in out.chunks_mut(x.width).enumerate() {
            norm_row(kind, eps, act, x.row(task * TASK_ROWS + i), weight, bias, out);
        }
    });
    out
}

/// Gradients of the input, of the gain and of the offset.
pub(crate) fn norm_rows_backward(
    kind: NormKind,
    eps: f32,
    act: Activation,
    x: Rows,
    (weight, bias): (&[f32], &[f32]),
    grad: Rows,
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let width = x.width;
    let mut dx = vec![0.0; x.rows * width];
    let task = |(task, dx): (usize, &mut [f32])| {
        let mut sums = vec![0.0; 2 * width];
        let (dw, db) = sums.split_at_mut(width);
        let (mut before, mut through) = (vec![0.0; width], vec![0.0; width]);
        for (i, dx) in dx.chunks_mut(width).enumerate() {
            let (x, grad) = (x.row(task * TASK_ROWS + i), grad.row(task * TASK_ROWS + i));
            if act == Activation::None {
                norm_row_backward(kind, eps, x, weight, grad, dx, dw, db);
            } else {
                norm_row(kind, eps, Activation::None, x, weight, bias, &mut before);
                through.copy_from_slice(grad);
                activate_backward(act, &before, &mut through);
                norm_row_backward(kind, eps, x, weight, &through, dx, dw, db);
            }
        }
        sums
    };
    let mut dw = sum_in_order(dx.par_chunks_mut(TASK_ROWS * width).enumerate().map(task).collect());
    let db = dw.split_off(width);
    (dx, dw, db)
}

struct NormOp {
    kind: NormKind,
    eps: f32,
    act: Activation,
}

impl CustomOp3 for NormOp {
    fn name(&self) -> &'static str {
        "norm"
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
        let (x, w) = (rows_of(x, xl)?, crate::ops::contiguous(w, wl)?);
        let b = if self.kind == NormKind::Layer { crate::ops::contiguous(b, bl)? } else { &[] };
        Ok((CpuStorage::F32(norm_rows(self.kind, self.eps, self.act, x, w, b)), xl.shape().clone()))
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
        let b = (self.kind == NormKind::Layer).then_some((b, bl));
        super::cuda::forward((self.kind, self.eps, self.act), (x, xl), (w, wl), b)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let bias = (self.kind == NormKind::Layer).then_some(b);
            let [dx, dw, db] = super::cuda::backward((self.kind, self.eps, self.act), [x, w, &grad], bias)?;
            return Ok((Some(dx), Some(dw), bias.map(|_| db)));
        }
        let (dx, dw, db) = with_rows(&[x, &grad, &w.unsqueeze(0)?, &b.unsqueeze(0)?], |inputs| {
            let b = if self.kind == NormKind::Layer { inputs[3].row(0) } else { &[] };
            Ok(norm_rows_backward(self.kind, self.eps, self.act, inputs[0], (inputs[2].row(0), b), inputs[1]))
        })?;
        let width = dw.len();
        let db = (self.kind == NormKind::Layer).then(|| Tensor::from_vec(db, width, x.device())).transpose()?;
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), Some(Tensor::from_vec(dw, width, x.device())?), db))
    }
}

/// Normalises the rows of `x` `[rows, width]`, then applies `act`; `weight` and `bias` `[width]`. RMS takes no bias.
pub fn norm(x: &Tensor, kind: NormKind, eps: f64, weight: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
    if !crate::ops::is_fused(x) {
        return act.reference(&norm_reference(x, kind, eps, weight, bias)?);
    }
    // A custom op takes exactly three tensors; RMS ignores the third and gives it no gradient.
    let [weight, bias] = [weight, bias.unwrap_or(weight)].map(|t| t.to_dtype(DType::F32));
    x.contiguous()?.apply_op3(&weight?, &bias?, NormOp { kind, eps: eps as f32, act })
}

/// [`norm`] without activation in plain tensor operations.
pub fn norm_reference(x: &Tensor, kind: NormKind, eps: f64, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let x = if kind == NormKind::Layer { x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)? } else { x.clone() };
    let deviation = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    let y = x.broadcast_div(&deviation)?.broadcast_mul(weight)?;
    match bias {
        Some(b) => y.broadcast_add(b),
        None => Ok(y),
    }
}
