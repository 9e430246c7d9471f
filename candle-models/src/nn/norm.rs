//! Layer normalisation and RMS normalisation.

use super::{Init, Params};
use crate::Result;
use crate::ops::NormKind;
use candle_core::Tensor;

/// A normalisation with its gain and, for layer normalisation, its offset.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Layer or RMS.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f64,
    /// Gain `[width]`.
    pub weight: Tensor,
    /// Offset `[width]`.
    pub bias: Option<Tensor>,
}

impl Norm {
    /// Layer normalisation (Ba et al. 2016).
    pub fn layer(width: usize, params: &Params) -> Result<Self> {
        let bias = Some(params.get("bias", &[width], Init::Constant(0.0))?);
        Ok(Self { kind: NormKind::Layer, bias, ..Self::rms(width, params)? })
    }

    /// RMS normalisation (Zhang and Sennrich 2019).
    pub fn rms(width: usize, params: &Params) -> Result<Self> {
        Ok(Self { kind: NormKind::Rms, eps: 1e-5, weight: params.get("weight", &[width], Init::Constant(1.0))?, bias: None })
    }
}
