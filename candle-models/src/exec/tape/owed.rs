//! How gradients of parameters get from a tape to the graph of tensors.

use super::{Differentiable, Tape};
use crate::Result;
use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a backward leaves the gradients of a program's parameters.
#[derive(Default, Clone)]
pub(crate) struct Gradients(Arc<Mutex<Vec<f32>>>);

impl Gradients {
    /// A tensor that stands for the parameters of a program among the arguments of an operation: `[n]`, to be given a gradient of zeros
    /// when the gradients have been left here.
    pub fn owed_to(&self, net: &Differentiable) -> Result<Tensor> {
        let owed = net.parameters().chunks(3).map(|parameters| Owed::to(parameters, self)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&owed, 0)?)
    }

    /// Leaves those of tapes that have run backwards.
    pub fn leave(&self, net: &Differentiable, tapes: &[&Tape]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = net.gradients(tapes);
    }
}

/// Gradients of up to three parameters, which the backward of a tape leaves beside the graph. A custom operation knows three
/// tensors, a program has dozens of parameters, and joining them to one would copy all of them forward and backward: in their place
/// goes a number for every three that says nothing.
struct Owed {
    places: Vec<Range<usize>>,
    gradients: Gradients,
}

impl Owed {
    fn to(parameters: &[(Tensor, Range<usize>)], gradients: &Gradients) -> Result<Tensor> {
        let owed = Self { places: parameters.iter().map(|(_, place)| place.clone()).collect(), gradients: gradients.clone() };
        // Where there are fewer than three, one comes again; the others have no gradient then.
        let at = |i: usize| &parameters[i.min(parameters.len() - 1)].0;
        Ok(at(0).apply_op3(at(1), at(2), owed)?)
    }

    fn of(&self, i: usize, parameter: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let Some(place) = self.places.get(i) else { return Ok(None) };
        let gradients = self.gradients.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gradient = Tensor::from_slice(&gradients[place.clone()], parameter.shape(), parameter.device())?;
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

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Ok((self.of(0, a)?, self.of(1, b)?, self.of(2, c)?))
    }
}
