//! Factors on values, and dropout as such factors from addressed random numbers.

use super::{contiguous, is_fused, with_rows};
use crate::random::Random;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

struct MaskOp(Vec<f32>);

impl MaskOp {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        x.par_iter().zip(&self.0).with_min_len(1 << 14).map(|(x, m)| x * m).collect()
    }
}

impl CustomOp1 for MaskOp {
    fn name(&self) -> &'static str {
        "mask"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.apply(contiguous(storage, layout)?)), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let flat = grad.flatten_all()?.unsqueeze(0)?;
        let dx = with_rows(&[&flat], |rows| Ok(self.apply(rows[0].row(0))))?;
        Ok(Some(Tensor::from_vec(dx, x.shape(), x.device())?))
    }
}

/// `x` times fixed factors, one per value: the mask has no gradient and none is computed for it.
pub fn mask(x: &Tensor, factors: Vec<f32>) -> Result<Tensor> {
    if factors.len() != x.elem_count() {
        bail!("{} factors for {} values", factors.len(), x.elem_count());
    }
    if is_fused(x) {
        return x.contiguous()?.apply_op1(MaskOp(factors));
    }
    x * Tensor::from_vec(factors, x.shape(), x.device())?.to_dtype(x.dtype())?
}

/// The factors of [`dropout`] on `n` values: value i is dropped where uniform number i lies below `probability`.
pub(crate) fn dropout_factors(n: usize, probability: f32, random: Random) -> Vec<f32> {
    const CHUNK: usize = 1 << 14;
    let (mut factors, scale) = (vec![0.0; n], 1.0 / (1.0 - probability));
    factors.par_chunks_mut(CHUNK).enumerate().for_each(|(i, part)| {
        random.fill_uniform((i * CHUNK) as u64, part);
        part.iter_mut().for_each(|v| *v = if *v < probability { 0.0 } else { scale });
    });
    factors
}

/// Dropout (Srivastava et al. 2014): every value is zero with `probability`, the others are divided by `1 - probability`. The
/// same numbers fall on any device, whatever the dtype.
pub fn dropout(x: &Tensor, probability: f32, random: Random) -> Result<Tensor> {
    mask(x, dropout_factors(x.elem_count(), probability, random))
}
