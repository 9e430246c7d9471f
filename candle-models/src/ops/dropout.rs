//! Factors on values, and dropout as such factors from addressed random numbers.

use super::{contiguous, is_on_host, with_rows};
use crate::random::Random;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail};
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
    if is_on_host(x) {
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
    #[cfg(feature = "cuda")]
    if super::is_fused(x) && x.device().is_cuda() && super::cuda::philox::counts_from(random) {
        return x.contiguous()?.apply_op1(DropoutOp { probability, random });
    }
    mask(x, dropout_factors(x.elem_count(), probability, random))
}

#[cfg(feature = "cuda")]
struct DropoutOp {
    probability: f32,
    random: Random,
}

#[cfg(feature = "cuda")]
impl CustomOp1 for DropoutOp {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("on the CPU dropout is a mask")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::philox::dropout(self.probability, self.random, (x, layout))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        dropout(grad, self.probability, self.random).map(Some)
    }
}

/// Uniform numbers in [0, 1) from index 0 on, in f32: the same bits on any device.
pub fn uniform(random: Random, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device
        && super::cuda::philox::counts_from(random)
    {
        let out = crate::cuda::empty(shape, candle_core::DType::F32, cuda)?;
        super::cuda::philox::fill_uniform(random, &out)?;
        return Ok(out);
    }
    let mut values = vec![0.0; shape.elem_count()];
    random.fill_uniform(0, &mut values);
    Tensor::from_vec(values, shape, device)
}
