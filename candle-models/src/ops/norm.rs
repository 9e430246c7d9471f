//! Layer normalisation and RMS normalisation over the last axis, with the gain, the offset and their gradients in one pass.

use super::simd::kernel;
use super::{Activation, Rows, rows_of, sum_in_order, with_rows};
use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

/// What is taken out of a row before the gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean and standard deviation (Ba et al. 2016).
    Layer,
    /// Root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Lanes of the partial sums: the compiler may not reorder a float sum, so the order is written down.
const LANES: usize = 32;

#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for (a, &v) in acc.iter_mut().zip(c) {
            *a += v;
        }
    }
    acc.iter().sum::<f32>() + tail.iter().sum::<f32>()
}

#[inline(always)]
fn sum_of_squares(x: &[f32], mean: f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for (a, &v) in acc.iter_mut().zip(c) {
            *a += (v - mean) * (v - mean);
        }
    }
    acc.iter().sum::<f32>() + tail.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>()
}

/// Mean (0 for RMS) and reciprocal deviation of a row.
#[inline(always)]
fn moments(kind: NormKind, x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = if kind == NormKind::Layer { sum(x) / n } else { 0.0 };
    (mean, 1.0 / (sum_of_squares(x, mean) / n + eps).sqrt())
}

kernel! {
    /// `out = act(normalised(x) * weight + bias)`; an empty `bias` is no offset.
    pub(crate) fn norm_row<S>(kind: NormKind, eps: f32, act: Activation, x: &'a [f32], weight: &'a [f32], bias: &'a [f32], out: &'a mut [f32]) {
        let (mean, scale) = moments(kind, x, eps);
        if bias.is_empty() {
            for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *o = (x - mean) * scale * w;
            }
        } else {
            for (((o, &x), &w), &b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *o = super::simd::fma::<S>((x - mean) * scale, w, b);
            }
        }
        act.apply::<S>(out);
    }
}

kernel! {
    /// Input gradient of a row; adds to the gradients of gain and offset.
    fn norm_row_backward<S>(kind: NormKind, eps: f32, x: &'a [f32], weight: &'a [f32], grad: &'a [f32], dx: &'a mut [f32], dw: &'a mut [f32], db: &'a mut [f32]) {
        let (mean, scale) = moments(kind, x, eps);
        for ((((&x, &g), &w), d), (dw, db)) in x.iter().zip(grad).zip(weight).zip(dx.iter_mut()).zip(dw.iter_mut().zip(db)) {
            *dw += g * (x - mean) * scale;
            *db += g;
            *d = g * w;
        }
        let n = x.len() as f32;
        let shift = if kind == NormKind::Layer { sum(dx) / n } else { 0.0 };
        let mut acc = [0.0f32; LANES];
        let split = x.len() / LANES * LANES;
        for (x, d) in x[..split].as_chunks::<LANES>().0.iter().zip(dx[..split].as_chunks::<LANES>().0) {
            for ((a, &x), &d) in acc.iter_mut().zip(x).zip(d) {
                *a += d * (x - mean) * scale;
            }
        }
        let tail: f32 = x[split..].iter().zip(&dx[split..]).map(|(x, d)| d * (x - mean) * scale).sum();
        let slope = (acc.iter().sum::<f32>() + tail) / n;
        for (d, &x) in dx.iter_mut().zip(x) {
            *d = scale * (*d - shift - (x - mean) * scale * slope);
        }
    }
}

/// Rows per task. Fixed, so that the sums over rows do not depend on the number of threads.
const TASK_ROWS: usize = 128;

struct NormOp {
    kind: NormKind,
    eps: f32,
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
        let (x, w) = (rows_of(x, xl)?, super::contiguous(w, wl)?);
        let b = if self.kind == NormKind::Layer { super::contiguous(b, bl)? } else { &[] };
        let mut out = vec![0.0; x.rows * x.width];
        out.par_chunks_mut(x.width)
            .enumerate()
            .with_min_len(32)
            .for_each(|(r, o)| norm_row(self.kind, self.eps, Activation::None, x.row(r), w, b, o));
        Ok((CpuStorage::F32(out), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (rows, width) = x.dims2()?;
        let grad = grad.contiguous()?;
        let mut dx = vec![0.0; rows * width];
        let sums = with_rows(&[x, &grad, &w.unsqueeze(0)?], |inputs| {
            let [x, grad, w]: [Rows; 3] = [inputs[0], inputs[1], inputs[2]];
            let partial: Vec<Vec<f32>> = dx
                .par_chunks_mut(TASK_ROWS * width)
                .enumerate()
                .map(|(task, dx)| {
                    let mut sums = vec![0.0; 2 * width];
                    let (dw, db) = sums.split_at_mut(width);
                    for (i, dx) in dx.chunks_mut(width).enumerate() {
                        let r = task * TASK_ROWS + i;
                        norm_row_backward(self.kind, self.eps, x.row(r), w.row(0), grad.row(r), dx, dw, db);
                    }
                    sums
                })
                .collect();
            Ok(sum_in_order(partial))
        })?;
        let dx = Tensor::from_vec(dx, (rows, width), x.device())?;
        let dw = Tensor::new(&sums[..width], x.device())?;
        let db = (self.kind == NormKind::Layer).then(|| Tensor::new(&sums[width..], x.device())).transpose()?;
        Ok((Some(dx), Some(dw), db))
    }
}

/// Normalises the rows of `x` `[rows, width]`; `weight` and `bias` `[width]`. RMS takes no bias.
pub fn norm(x: &Tensor, kind: NormKind, eps: f64, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if !super::is_fused(x) {
        return norm_reference(x, kind, eps, weight, bias);
    }
    // A custom op takes exactly three tensors; RMS ignores the third and gives it no gradient.
    x.contiguous()?.apply_op3(weight, bias.unwrap_or(weight), NormOp { kind, eps: eps as f32 })
}

/// [`norm`] in plain tensor operations.
pub fn norm_reference(x: &Tensor, kind: NormKind, eps: f64, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let x = if kind == NormKind::Layer { x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)? } else { x.clone() };
    let deviation = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    let y = x.broadcast_div(&deviation)?.broadcast_mul(weight)?;
    match bias {
        Some(b) => y.broadcast_add(b),
        None => Ok(y),
    }
}
