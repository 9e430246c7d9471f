//! Activations: GELU (erf form), SiLU, ReLU, and the gate `a * silu(z)`, each one pass over memory.

use crate::exec::EXPONENTIAL;
use crate::ops::simd::{self, kernel};
use crate::ops::{contiguous, is_fused, rows_of, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use pulp::Simd;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// A function applied to each element.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::ops::Activation;
/// # fn main() -> candle_models::Result<()> {
/// let x = Tensor::new(&[-1f32, 2.0], &Device::Cpu)?;
/// assert_eq!(Activation::Relu.reference(&x)?.to_vec1::<f32>()?, [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The identity.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x Phi(x)`, the exact form through erf.
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
}

impl Activation {
    /// The activation in plain tensor operations, with a gradient, for any dtype and device.
    pub fn reference(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(x.clone()),
            Self::Relu => x.relu(),
            // Not `gelu_erf`: its gradient in Candle has six digits of 1 / sqrt(2 pi).
            Self::Gelu => (x * ((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.0)?)? * 0.5,
            Self::Silu => x.silu(),
        }
    }

    /// Floating-point operations of a value; an error function counts as an exponential.
    pub(crate) fn operations(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Relu => 1.0,
            Self::Silu => 3.0 + EXPONENTIAL,
            Self::Gelu => 4.0 + EXPONENTIAL,
        }
    }

    /// Applies it in place. Inlined into the kernels that end with it.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, x: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Relu => x.iter_mut().for_each(|v| *v = if *v > 0.0 { *v } else { 0.0 }),
            Self::Gelu => x.iter_mut().for_each(|v| *v = simd::gelu::<S>(*v)),
            Self::Silu => x.iter_mut().for_each(|v| *v *= simd::sigmoid::<S>(*v)),
        }
    }
}

kernel! {
    /// Applies `act` to every element.
    pub(crate) fn activate<S>(act: Activation, x: &'a mut [f32]) {
        act.apply::<S>(x)
    }
}

kernel! {
    /// `y = act(x)`.
    pub(crate) fn activate_into<S>(act: Activation, x: &'a [f32], y: &'a mut [f32]) {
        for (x, y) in x.chunks(1024).zip(y.chunks_mut(1024)) {
            y.copy_from_slice(x);
            act.apply::<S>(y);
        }
    }
}

kernel! {
    /// `grad *= act'(x)`.
    pub(crate) fn activate_backward<S>(act: Activation, x: &'a [f32], grad: &'a mut [f32]) {
        match act {
            Activation::None => {}
            Activation::Relu => grad.iter_mut().zip(x).for_each(|(g, &x)| *g = if x > 0.0 { *g } else { 0.0 }),
            Activation::Gelu => grad.iter_mut().zip(x).for_each(|(g, &x)| {
                let exponential = simd::exp::<S>(-0.5 * x * x);
                let cdf = 0.5 + 0.5 * simd::erf_from::<S>(x * std::f32::consts::FRAC_1_SQRT_2, exponential);
                *g = simd::counted(*g * simd::fma::<S>(x, 0.398_942_3 * exponential, cdf));
            }),
            Activation::Silu => grad.iter_mut().zip(x).for_each(|(g, &x)| {
                let s = simd::sigmoid::<S>(x);
                *g = simd::counted(*g * s * (1.0 + x * (1.0 - s)));
            }),
        }
    }
}

kernel! {
    /// `out = a * silu(z)` for one row.
    pub(crate) fn gate_row<S>(a: &'a [f32], z: &'a [f32], out: &'a mut [f32]) {
        for ((o, &a), &z) in out.iter_mut().zip(a).zip(z) {
            *o = a * z * simd::sigmoid::<S>(z);
        }
    }
}

kernel! {
    /// Gradients of `a * silu(z)` for one row.
    pub(crate) fn gate_row_backward<S>(a: &'a [f32], z: &'a [f32], grad: &'a [f32], da: &'a mut [f32], dz: &'a mut [f32]) {
        for ((((&a, &z), &g), da), dz) in a.iter().zip(z).zip(grad).zip(da).zip(dz) {
            let s = simd::sigmoid::<S>(z);
            *da = simd::counted(g * z * s);
            *dz = simd::counted(g * a * s * (1.0 + z * (1.0 - s)));
        }
    }
}

kernel! {
    /// `out = exp(x - most)`, and `most`, the largest of `x`. What is no number counts as the least one.
    pub(crate) fn exponentials<S>(x: &'a [f32], out: &'a mut [f32], most: &'a mut f32) {
        let largest = |m: f32, x: f32| if x > m { x } else { m };
        let mut lanes = [f32::NEG_INFINITY; 8];
        let (chunks, tail) = x.as_chunks::<8>();
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(m, x)| *m = largest(*m, *x));
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let [a, b, c, d] = [largest(a, e), largest(b, f), largest(c, g), largest(d, h)];
        *most = tail.iter().fold(largest(largest(a, c), largest(b, d)), |m, x| largest(m, *x));
        for (o, &x) in out.iter_mut().zip(x) {
            *o = simd::exp::<S>(x - *most);
        }
    }
}

/// Elements that one task of a parallel elementwise pass takes: a quarter of a typical second-level cache.
const CHUNK: usize = 1 << 16;

struct ActivationOp(Activation);

impl CustomOp1 for ActivationOp {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut out = contiguous(storage, layout)?.to_vec();
        out.par_chunks_mut(CHUNK).for_each(|c| activate(self.0, c));
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::activation(storage, layout, self.0)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = grad.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return Ok(Some(super::cuda::activation_backward(x, &grad, self.0)?));
        }
        let x = x.flatten_all()?.unsqueeze(0)?;
        let mut dx = grad.flatten_all()?.to_vec1::<f32>()?;
        with_rows(&[&x], |rows| {
            dx.par_chunks_mut(CHUNK).zip(rows[0].row(0).par_chunks(CHUNK)).for_each(|(d, x)| activate_backward(self.0, x, d));
            Ok(())
        })?;
        Ok(Some(Tensor::from_vec(dx, grad.shape(), grad.device())?))
    }
}

/// `act(x)` with a gradient.
pub fn activation(x: &Tensor, act: Activation) -> Result<Tensor> {
    if act == Activation::None || !is_fused(x) { act.reference(x) } else { x.contiguous()?.apply_op1(ActivationOp(act)) }
}

struct GateOp;

impl CustomOp2 for GateOp {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(&self, a: &CpuStorage, al: &Layout, z: &CpuStorage, zl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (a, z) = (rows_of(a, al)?, rows_of(z, zl)?);
        let mut out = vec![0.0; a.rows * a.width];
        out.par_chunks_mut(a.width).enumerate().with_min_len(32).for_each(|(r, o)| gate_row(a.row(r), z.row(r), o));
        Ok((CpuStorage::F32(out), al.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, al: &Layout, z: &CudaStorage, zl: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::gate((a, al), (z, zl))
    }

    fn bwd(&self, a: &Tensor, z: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (rows, width) = a.dims2()?;
        let grad = grad.contiguous()?;
        #[cfg(feature = "cuda")]
        if a.device().is_cuda() {
            let [da, dz] = super::cuda::gate_backward(a, z, &grad)?;
            return Ok((Some(da), Some(dz)));
        }
        let (mut da, mut dz) = (vec![0.0; rows * width], vec![0.0; rows * width]);
        with_rows(&[a, z, &grad], |inputs| {
            da.par_chunks_mut(width)
                .zip(dz.par_chunks_mut(width))
                .enumerate()
                .with_min_len(32)
                .for_each(|(r, (da, dz))| gate_row_backward(inputs[0].row(r), inputs[1].row(r), inputs[2].row(r), da, dz));
            Ok(())
        })?;
        let shape = (rows, width);
        Ok((Some(Tensor::from_vec(da, shape, a.device())?), Some(Tensor::from_vec(dz, shape, a.device())?)))
    }
}

/// `a * silu(z)` for two matrices `[rows, width]`, with gradients.
pub fn gate(a: &Tensor, z: &Tensor) -> Result<Tensor> {
    if is_fused(a) { a.apply_op2(z, GateOp) } else { gate_reference(a, z) }
}

/// [`gate`] in plain tensor operations.
pub fn gate_reference(a: &Tensor, z: &Tensor) -> Result<Tensor> {
    a * z.silu()?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a function is saturated its slope is 0 or a number that products are fast with.
    #[test]
    fn no_slope_is_subnormal() {
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.03).collect();
        for size in [1.0f32, 1e-6, 1e-20] {
            let grad = vec![size; x.len()];
            let normal = |act, slopes: &[f32]| {
                for (x, slope) in x.iter().zip(slopes) {
                    assert!(*slope == 0.0 || slope.is_normal(), "{act}: {slope:e} at {x} of a gradient of {size:e}");
                }
                assert!(slopes.iter().filter(|slope| **slope != 0.0).count() > x.len() / 3, "{act}");
            };
            for act in [Activation::Gelu, Activation::Silu, Activation::Relu] {
                let mut slopes = grad.clone();
                activate_backward(act, &x, &mut slopes);
                normal(format!("{act:?}"), &slopes);
            }
            let (mut da, mut dz) = (grad.clone(), grad.clone());
            gate_row_backward(&vec![1.0; x.len()], &x, &grad, &mut da, &mut dz);
            normal("da".to_owned(), &da);
            normal("dz".to_owned(), &dz);
        }
        let mut slopes = vec![f32::NAN; 3];
        activate_backward(Activation::Gelu, &[-20.0, 0.0, 1.0], &mut slopes);
        assert!(slopes.iter().all(|slope| slope.is_nan()), "what is no number stays none");
    }
}
