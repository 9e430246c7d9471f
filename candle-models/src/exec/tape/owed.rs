//! How gradients of parameters get from a tape to the graph of tensors.

use crate::{Error, Result};
use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendDevice};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a backward leaves the gradients of a program's parameters.
#[derive(Default, Clone)]
pub(crate) struct Gradients(Arc<Mutex<Vec<Tensor>>>);

impl Gradients {
    /// A tensor that stands for parameters among the arguments of an operation: `[1]`, to be given a gradient of zero when the
    /// gradients have been left here.
    ///
    /// # Errors
    /// If there are no parameters.
    pub fn owed_to(&self, parameters: &[Tensor]) -> Result<Tensor> {
        let mut owed: Option<Tensor> = None;
        for (i, pair) in parameters.chunks(2).enumerate() {
            let (a, b) = (&pair[0], &pair[pair.len() - 1]);
            let link = Owed { first: 2 * i, count: pair.len(), gradients: self.clone() };
            owed = Some(owed.as_ref().unwrap_or(a).apply_op3(a, b, link)?);
        }
        owed.ok_or_else(|| Error::Input("a differentiable program has parameters".to_owned()))
    }

    /// Leaves those of all parameters, in their order.
    pub fn leave(&self, gradients: Vec<Tensor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gradients;
    }
}

/// Gradients of two parameters, which the backward of a tape leaves beside the graph. A custom operation knows three tensors, a program
/// has dozens of parameters, and joining them to one would copy all of them forward and backward: in their place goes a number that says
/// nothing, through a chain of these. (The first has a parameter before it in place of a link; an odd last parameter comes twice.)
struct Owed {
    first: usize,
    count: usize,
    gradients: Gradients,
}

impl Owed {
    fn of(&self, i: usize, parameter: &Tensor) -> candle_core::Result<Option<Tensor>> {
        if i >= self.count {
            return Ok(None);
        }
        let gradients = self.gradients.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(gradient) = gradients.get(self.first + i) else { candle_core::bail!("owed: no gradient was left") };
        Ok(Some(gradient.to_dtype(parameter.dtype())?))
    }
}

impl CustomOp3 for Owed {
    fn name(&self) -> &'static str {
        "owed"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), 1.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        before: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        Ok((before.device.zeros_impl(&1.into(), DType::F32)?, 1.into()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let before = (self.first > 0).then(|| grad.clone());
        Ok((before, self.of(0, a)?, self.of(1, b)?))
    }
}
