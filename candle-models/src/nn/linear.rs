//! `y = x W + b`: how a layer starts.

use super::{Init, Params};
use crate::Result;
pub use crate::ops::Linear;

impl Linear {
    /// Weight and bias, both uniform within `1 / sqrt(inputs)` as PyTorch starts them.
    pub fn new(inputs: usize, outputs: usize, params: &Params) -> Result<Self> {
        let bound = 1.0 / (inputs as f32).sqrt();
        Self::started(inputs, outputs, [Init::Uniform(bound), Init::Uniform(bound)], params)
    }

    /// A weight and a bias that start as told.
    pub fn started(inputs: usize, outputs: usize, [weight, bias]: [Init; 2], params: &Params) -> Result<Self> {
        let bias = Some(params.get("bias", &[outputs], bias)?);
        let (weight, format) = params.matrix("weight", [inputs, outputs], weight)?;
        Ok(Self { weight, bias, format })
    }

    /// A weight alone.
    pub fn without_bias(inputs: usize, outputs: usize, params: &Params) -> Result<Self> {
        let bound = 1.0 / (inputs as f32).sqrt();
        let (weight, format) = params.matrix("weight", [inputs, outputs], Init::Uniform(bound))?;
        Ok(Self { weight, bias: None, format })
    }
}
