//! A model that a run begins with or learns from, as a bundle holds it.

use candle_core::Tensor;
use candle_models::bundle::{Bundle, ParameterSpec};
use candle_models::{Result, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A model whose parameters are known.
#[derive(Debug, Clone)]
pub(crate) struct Known<C> {
    /// Its configuration.
    pub model: C,
    /// By name, in f32.
    pub parameters: BTreeMap<String, Tensor>,
    /// Of the parameters: a run that is continued must have begun with the same.
    pub hash: String,
}

impl<C> Known<C> {
    /// Reads the parameters that such a model has.
    ///
    /// # Errors
    /// If the bundle holds others.
    pub fn read(bundle: &Bundle, model: C, parameters: &[ParameterSpec]) -> Result<Self> {
        let parameters = bundle.read_tensors(parameters)?;
        let mut hash = Sha256::new();
        for tensor in parameters.values() {
            tensor.flatten_all()?.to_vec1::<f32>()?.iter().for_each(|v| hash.update(v.to_le_bytes()));
        }
        Ok(Self { model, parameters, hash: hex(&hash.finalize()[..8]) })
    }
}
