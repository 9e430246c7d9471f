//! The negative log-likelihood of several choices at once, with label smoothing, one pass over the logits each way.
//!
//! Stable forms: a Bernoulli logit z gives ln(1 + e^z) of its sign-flipped value; a softmax subtracts its maximum first. The
//! gradient is probability minus target.

use super::simd::{self, kernel};
use super::{Rows, is_fused, rows_of, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

/// Choices whose losses are added into one figure.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::ops::{LossGroup, cross_entropy};
/// # fn main() -> candle_models::Result<()> {
/// let buttons = LossGroup { logit: 0, column: 0, columns: 2, classes: 2 }; // one logit each
/// let stick = LossGroup { logit: 2, column: 2, columns: 1, classes: 4 };
/// let logits = Tensor::new(&[[0f32; 6]], &Device::Cpu)?; // nothing is more likely than anything else
/// let classes = Tensor::new(&[[0u32, 1, 3]], &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &classes, &[buttons, stick], 0.0)?.flatten_all()?.to_vec1::<f32>()?;
/// assert!((loss[0] - 2.0 * 2f32.ln()).abs() < 1e-6 && (loss[1] - 4f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossGroup {
    /// First logit.
    pub logit: usize,
    /// First column of the classes.
    pub column: usize,
    /// Columns, one choice each, their logits one behind the other.
    pub columns: usize,
    /// Classes of a column; 2 means one Bernoulli logit, that of class 1.
    pub classes: usize,
}

impl LossGroup {
    /// Logits of one column.
    fn width(&self) -> usize {
        if self.classes == 2 { 1 } else { self.classes }
    }
}

kernel! {
    /// Loss of a Bernoulli choice by its logit, the sign flipped where class 1 is wanted.
    fn bernoulli<S>(z: &'a [f32], flip: &'a [u32], loss: &'a mut f32) {
        *loss = z.iter().zip(flip).map(|(&z, &f)| simd::softplus::<S>(if f == 1 { -z } else { z })).sum();
    }
}

kernel! {
    /// Gradients of a row's Bernoulli choices, times `grad`.
    fn bernoulli_backward<S>(z: &'a [f32], class: &'a [u32], grad: f32, dz: &'a mut [f32]) {
        for ((d, &z), &c) in dz.iter_mut().zip(z).zip(class) {
            *d = grad * (simd::sigmoid::<S>(z) - c as f32);
        }
    }
}

/// `p = e^(z - max z)`, the maximum and the sum.
fn exponentials(z: &[f32], p: &mut [f32]) -> (f32, f32) {
    let mut most = 0.0;
    super::exponentials(z, p, &mut most);
    (most, p.iter().sum())
}

struct LossOp {
    groups: Vec<LossGroup>,
    /// `[rows, columns]`.
    classes: Vec<u32>,
    columns: usize,
    smoothing: f32,
}

impl LossOp {
    fn row_losses(&self, logits: &[f32], classes: &[u32], losses: &mut [f32], p: &mut [f32]) {
        for (group, loss) in self.groups.iter().zip(losses) {
            let (width, classes) = (group.width(), &classes[group.column..][..group.columns]);
            let logits = &logits[group.logit..][..group.columns * width];
            if group.classes == 2 {
                bernoulli(logits, classes, loss);
                continue;
            }
            for (z, &class) in logits.chunks(width).zip(classes) {
                let (most, sum) = exponentials(z, &mut p[..width]);
                let mean = z.iter().map(|z| z - most).sum::<f32>() / width as f32;
                let target = (1.0 - self.smoothing) * (z[class as usize] - most) + self.smoothing * mean;
                *loss += sum.ln() - target;
            }
        }
    }

    fn row_gradient(&self, logits: &[f32], classes: &[u32], grad: &[f32], dz: &mut [f32]) {
        for (group, &grad) in self.groups.iter().zip(grad) {
            let (width, classes) = (group.width(), &classes[group.column..][..group.columns]);
            let all = group.logit..group.logit + group.columns * width;
            let (logits, dz) = (&logits[all.clone()], &mut dz[all]);
            if group.classes == 2 {
                bernoulli_backward(logits, classes, grad, dz);
                continue;
            }
            for ((z, dz), &class) in logits.chunks(width).zip(dz.chunks_mut(width)).zip(classes) {
                let (_, sum) = exponentials(z, dz);
                let (scale, floor) = (grad / sum, grad * self.smoothing / width as f32);
                dz.iter_mut().for_each(|p| *p = *p * scale - floor);
                dz[class as usize] -= grad * (1.0 - self.smoothing);
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn choices(&self) -> super::cuda::cross_entropy::Choices<'_> {
        let Self { groups, classes, columns, smoothing } = self;
        super::cuda::cross_entropy::Choices { groups, classes, columns: *columns, smoothing: *smoothing }
    }

    fn classes(&self, r: usize) -> &[u32] {
        &self.classes[r * self.columns..][..self.columns]
    }
}

impl CustomOp1 for LossOp {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (logits, groups) = (rows_of(storage, layout)?, self.groups.len());
        let mut losses = vec![0.0; logits.rows * groups];
        losses
            .par_chunks_mut(groups)
            .enumerate()
            .with_min_len(32)
            .for_each_init(|| vec![0.0; logits.width], |p, (r, losses)| self.row_losses(logits.row(r), self.classes(r), losses, p));
        Ok((CpuStorage::F32(losses), (logits.rows, groups).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::cross_entropy::forward(&self.choices(), (storage, layout))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (rows, width) = x.dims2()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return super::cuda::cross_entropy::backward(&self.choices(), x, &grad.contiguous()?).map(Some);
        }
        let mut dx = vec![0.0; rows * width];
        with_rows(&[x, &grad.contiguous()?], |inputs| {
            let [logits, grad]: [Rows; 2] = [inputs[0], inputs[1]];
            dx.par_chunks_mut(width)
                .enumerate()
                .with_min_len(32)
                .for_each(|(r, dz)| self.row_gradient(logits.row(r), self.classes(r), grad.row(r), dz));
            Ok(())
        })?;
        Ok(Some(Tensor::from_vec(dx, (rows, width), x.device())?))
    }
}

fn check(logits: &Tensor, classes: &Tensor, groups: &[LossGroup]) -> Result<Vec<u32>> {
    let ((rows, width), (n, columns)) = (logits.dims2()?, classes.dims2()?);
    let fits = |g: &LossGroup| g.classes >= 2 && g.logit + g.columns * g.width() <= width && g.column + g.columns <= columns;
    if n != rows || !groups.iter().all(fits) {
        bail!("{n} rows of {columns} classes for logits [{rows}, {width}] in {groups:?}");
    }
    let classes = classes.flatten_all()?.to_vec1::<u32>()?;
    for row in classes.chunks(columns.max(1)) {
        for g in groups {
            if let Some(bad) = row[g.column..][..g.columns].iter().find(|c| **c as usize >= g.classes) {
                bail!("class {bad} in a column of {}", g.classes);
            }
        }
    }
    Ok(classes)
}

/// The CPU takes any number of groups.
#[cfg(not(feature = "cuda"))]
fn fits_a_kernel(_: &[LossGroup]) -> bool {
    true
}

#[cfg(feature = "cuda")]
fn fits_a_kernel(groups: &[LossGroup]) -> bool {
    groups.len() <= super::cuda::cross_entropy::GROUPS
}

/// Negative log-likelihood in nats, `[rows, groups]`, of the classes `[rows, columns]` under the logits `[rows, width]`, with a
/// gradient; classes may lie on the host. `smoothing` moves that much probability from the wanted class to all classes alike; it acts on choices of more
/// than two classes only, because on a Bernoulli it would move the optimum.
pub fn cross_entropy(logits: &Tensor, classes: &Tensor, groups: &[LossGroup], smoothing: f64) -> Result<Tensor> {
    let values = check(logits, classes, groups)?;
    if !(is_fused(logits) && logits.dtype() == DType::F32 && fits_a_kernel(groups)) {
        return cross_entropy_reference(logits, classes, groups, smoothing);
    }
    let op = LossOp { groups: groups.to_vec(), classes: values, columns: classes.dim(1)?, smoothing: smoothing as f32 };
    let logits = if logits.stride()[1] == 1 { logits.clone() } else { logits.contiguous()? };
    logits.apply_op1(op)
}

/// [`cross_entropy`] in plain tensor operations.
pub fn cross_entropy_reference(logits: &Tensor, classes: &Tensor, groups: &[LossGroup], smoothing: f64) -> Result<Tensor> {
    let (n, classes) = (logits.dim(0)?, &classes.to_device(logits.device())?);
    let one = |group: &LossGroup| -> Result<Tensor> {
        let LossGroup { logit, column, columns, .. } = *group;
        let z = logits.narrow(1, logit, columns * group.width())?;
        let classes = classes.narrow(1, column, columns)?.contiguous()?;
        if group.classes == 2 {
            // -ln p = ln(1 + e^z) with z = logit where class 0 is wanted and -logit where class 1 is.
            let z = (z * classes.to_dtype(logits.dtype())?.affine(-2.0, 1.0)?)?;
            return (z.relu()? + (z.abs()?.neg()?.exp()? + 1.0)?.log()?)?.sum_keepdim(1);
        }
        let z = z.contiguous()?.reshape((n, columns, group.classes))?;
        // The maximum only shifts: without its gradient the result is the same and the graph smaller.
        let shifted = z.broadcast_sub(&z.detach().max_keepdim(D::Minus1)?)?;
        let log_sum = shifted.exp()?.sum(D::Minus1)?.log()?;
        let chosen = shifted.gather(&classes.unsqueeze(D::Minus1)?.to_dtype(DType::U32)?, D::Minus1)?.squeeze(D::Minus1)?;
        let mean = shifted.mean(D::Minus1)?;
        (log_sum - ((chosen * (1.0 - smoothing))? + (mean * smoothing)?)?)?.sum_keepdim(1)
    };
    Tensor::cat(&groups.iter().map(one).collect::<Result<Vec<_>>>()?, 1)
}
