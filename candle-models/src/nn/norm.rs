//! Layer normalisation and RMS normalisation: how they start.

use super::{Init, Params};
use crate::Result;
pub use crate::ops::Norm;
use crate::ops::NormKind;

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
