//! The convolution on tensors of a GPU, with gradients, by the kernels of passes. On the CPU training has a tape.

use super::SpectralConv;
use candle_core::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

/// Of `x` `[rows, n m C]`, the weight and the bias.
struct Convolution(SpectralConv);

impl CustomOp3 for Convolution {
    fn name(&self) -> &'static str {
        "spectral_conv"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("on the CPU the convolution is its reference or on a tape")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        xl: &Layout,
        weight: &CudaStorage,
        wl: &Layout,
        bias: &CudaStorage,
        bl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        super::cuda::forward(&self.0, (x, xl), (weight, wl), (bias, bl))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, dbias] = super::cuda::backward(&self.0, [x, weight, &grad.contiguous()?])?;
        Ok((Some(dx), Some(dweight), Some(dbias)))
    }
}

/// `x` on a GPU to the result.
pub(super) fn convolve(op: &SpectralConv, x: &Tensor) -> Result<Tensor> {
    let bias = match &op.bias {
        Some(bias) => bias.to_dtype(DType::F32)?,
        None => Tensor::zeros(op.channels[1], DType::F32, x.device())?,
    };
    // The operation itself asks for sizes and tables alone.
    x.contiguous()?.apply_op3(&op.weight.to_dtype(DType::F32)?.contiguous()?, &bias, Convolution(op.clone()))
}
