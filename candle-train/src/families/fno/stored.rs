//! Operators of bundles, and what they answer.

use super::fields::Fields;
use super::operator::CHUNK;
use crate::feed::feed;
use candle_core::{Device, Tensor};
use candle_models::bundle::{Bundle, Parameter};
use candle_models::fno::{FAMILY, Fno, FnoConfig, FnoFamily};
use candle_models::network::Tapes;
use candle_models::nn::Params;
use candle_models::registry::Family;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// An operator with its parameters.
pub struct Stored {
    pub config: FnoConfig,
    pub parameters: BTreeMap<String, Parameter>,
    /// How many pairs it learnt from, where the bundle says so.
    pub pairs: Option<u64>,
    /// What trained it, where the bundle says so.
    pub command: Option<String>,
}

impl Stored {
    /// The operator of a bundle, one field to one field.
    ///
    /// # Errors
    /// If it cannot be read, or is another network.
    pub fn read(path: &Path) -> Result<Self> {
        let bundle = Bundle::open(path)?;
        bundle.require_family(&[FAMILY])?;
        let config = bundle.config::<FnoConfig>()?;
        if config.channels != [1, 1] {
            let found = config.channels;
            return Err(Error::file(path, format!("expected an operator of one field to one field, found {found:?} channels")));
        }
        let parameters = bundle.read_parameters(&FnoFamily.parameters(&bundle)?)?;
        let metadata = bundle.metadata()?;
        Ok(Self { config, parameters, pairs: metadata["pairs"].as_u64(), command: metadata["command"].as_str().map(str::to_owned) })
    }

    /// All that it says of fields, on their grid: `[N, n m]` by name.
    ///
    /// # Errors
    /// If the network fails.
    pub fn answers(&self, pairs: &Fields) -> Result<NamedTensors> {
        let network = Fno::new(&self.config.on_grid(pairs.grid), &Params::stored(self.parameters.clone(), &Device::Cpu))?;
        let (tapes, width) = (Tapes::default(), pairs.widths()[0]);
        let mut chunks = Vec::new();
        for inputs in pairs.inputs.chunks(CHUNK * width) {
            let x = Tensor::from_slice(inputs, (inputs.len() / width, width), &Device::Cpu)?;
            chunks.push(feed(&network, &[x], &tapes)?);
        }
        let names: Vec<String> = chunks.first().map_or_else(Vec::new, |chunk| chunk.iter().map(|(name, _)| name.to_owned()).collect());
        let whole = |name: String| {
            let parts = chunks.iter().map(|chunk| Ok(chunk.get(&name)?.detach())).collect::<Result<Vec<_>>>()?;
            Ok((name, Tensor::cat(&parts, 0)?))
        };
        names.into_iter().map(whole).collect()
    }
}
