//! What arrays can form and what a feedback channel carries: constraints on what the networks say, and their gradients.

use super::codebook::nearest_phase;
use super::config::{Feedback, Weighting};
use crate::Result;
use crate::nn::{Linear, Norm};
use crate::ops::NormKind;
use candle_core::{D, DType, Device, Tensor};

impl Weighting {
    /// Beams `[rows, 2 N]` of unit norm that the array can form, from any numbers.
    pub fn form(self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        // Nothing is divided by zero: an antenna without a signal keeps none.
        let tiny = 1e-12;
        if self == Self::Free {
            let norm = (x.sqr()?.sum_keepdim(D::Minus1)? + tiny)?.sqrt()?;
            return Ok(x.broadcast_div(&norm)?);
        }
        let pairs = x.reshape((rows, width / 2, 2))?;
        let modulus = (pairs.sqr()?.sum_keepdim(D::Minus1)? + tiny)?.sqrt()?;
        let phases = (pairs.broadcast_div(&modulus)? / ((width / 2) as f64).sqrt())?.reshape((rows, width))?;
        self.rounded(&phases)
    }

    /// Beams of unit norm `[rows, 2 N]` with phases that the array has. Rounded ones pass their gradients on as if they had not been.
    pub(super) fn rounded(self, beams: &Tensor) -> Result<Tensor> {
        let Self::QuantisedPhases { .. } = self else { return Ok(beams.clone()) };
        let mut rounded = beams.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        self.round(&mut rounded);
        let rounded = Tensor::from_vec(rounded, beams.shape(), &Device::Cpu)?.to_device(beams.device())?.to_dtype(beams.dtype())?;
        Ok((beams + (rounded - beams.detach())?)?)
    }

    /// A normalisation that does the same to the beams of `width` numbers that a layer gives, but for the rounding.
    pub(super) fn norm(self, layer: &Linear, width: usize) -> Result<Norm> {
        let [_, like] = layer.pair()?;
        let group = if self == Self::Free { width } else { 2 };
        // A norm leaves `group` numbers with a mean square of one: together they are to have the share of a beam's.
        let gain = 1.0 / (width as f64).sqrt();
        let weight = (Tensor::ones(group, like.dtype(), like.device())? * gain)?;
        Ok(Norm { kind: NormKind::Rms, eps: 1e-12, weight, bias: None })
    }

    /// Rounds a beam of a network to what the array can form.
    pub fn round(self, beam: &mut [f32]) {
        if let Self::QuantisedPhases { bits } = self {
            beam.chunks_exact_mut(2).for_each(|pair| round_phase(pair, bits));
        }
    }
}

/// Turns a complex number to the nearest of `2^bits` phases.
fn round_phase(pair: &mut [f32], bits: u32) {
    let (modulus, step) = (pair[0].hypot(pair[1]), std::f32::consts::TAU / (1u32 << bits) as f32);
    let phase = nearest_phase(pair, bits) * step;
    (pair[0], pair[1]) = (modulus * phase.cos(), modulus * phase.sin());
}

impl Feedback {
    /// What arrives at the base station, from what the user's network says. Rounding passes gradients on.
    pub fn send(self, x: &Tensor) -> Result<Tensor> {
        let Self::Quantised { bits, .. } = self else { return Ok(x.clone()) };
        let steps = f64::from((1u32 << bits) - 1) / 2.0;
        let bounded = x.tanh()?;
        let rounded = (((bounded.detach() + 1.0)? * steps)?.round()? / steps)?;
        let rounded = (rounded - 1.0)?;
        Ok((&bounded + (rounded - bounded.detach())?)?)
    }
}
