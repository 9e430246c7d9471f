//! `candle-infer encode`: an input of a family's own kind as the named tensors that its network reads.

use super::family::InferFamily;
use super::options;
use super::output::line;
use crate::Error;
use crate::bundle::Bundle;
use crate::cli::Usage;
use crate::registry::Registry;
use crate::signature::TensorSpec;
use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use clap::ArgMatches;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory: its configuration says how the input is read.
    bundle: PathBuf,
    /// The input, a replay say.
    input: PathBuf,
    /// FILE.safetensors to write, `[sequences, frames, ...]` each: `run` takes it.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: &Arguments, typed: &ArgMatches) -> Result<()> {
    let Arguments { bundle: dir, input, out } = arguments;
    if out.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(Usage::error(format!("--out {}: expected a name in .safetensors", out.display())));
    }
    let bundle = Bundle::open(dir)?;
    let family = registry.family(&bundle).with_context(|| dir.display().to_string())?;
    options::check(registry, family, options::ENCODE, typed)?;
    let tensors = family.encode(&bundle, input, typed)?;
    let networks = registry.networks(&bundle).with_context(|| dir.display().to_string())?;
    let specs = networks.first().map(|(_, model)| &model.signature().inputs[..]).unwrap_or_default();
    for (name, tensor) in tensors.iter() {
        check(specs, name, tensor).map_err(|e| Error::file(input, e))?;
        line(format_args!("{name} {:?} {:?}", tensor.dtype(), tensor.dims()))?;
    }
    tensors.save_safetensors(out)?;
    Ok(line(format_args!("{}: written", out.display()))?)
}

/// What is written is what the network takes.
fn check(specs: &[TensorSpec], name: &str, tensor: &Tensor) -> crate::Result<()> {
    let spec = specs.iter().find(|spec| spec.name == name);
    let spec = spec.ok_or_else(|| Error::tensor(name, "an input of the model", "none of that name"))?;
    let flat = tensor.flatten_all()?;
    match tensor.dtype() {
        DType::U32 => spec.check_u32(&flat.to_vec1()?),
        _ => spec.check_f32(&flat.to_vec1()?),
    }
}
