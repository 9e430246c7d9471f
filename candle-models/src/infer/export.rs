//! `candle-infer export`: a bundle in another dtype, checked against the original before it takes its place.

use super::compare::Difference;
use super::family::{InferFamily, Opened};
use super::options;
use super::output::line;
use crate::bundle::{self, Bundle, CARD, CONFIG, MODEL, Storage};
use crate::cli::{self, Usage};
use crate::files::write_directory;
use crate::registry::Registry;
use crate::{Error, device};
use anyhow::Result;
use candle_core::DType;
use clap::ArgMatches;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Directory to write: complete or not at all. A bundle that is there already is replaced.
    out: PathBuf,
    /// How the parameters are stored: f32, f16, bf16, or q8, which stores the weights of linear layers as 8-bit integers
    /// with one factor per output. On the CPU bf16 and q8 weights stay so in memory; sums are f32, and so are activations unless
    /// the bundle is run with --dtype bf16.
    #[arg(long, default_value = "f32")]
    dtype: String,
}

/// What rounding the parameters may move, as a share of an output's range; a few dozen layers and frames stand between
/// them and the output. The steps of f16 are 2^-11 of a number, those of bf16 2^-8, and those of 8 bits 2^-7 of a
/// column's largest: there what a family compares besides says more.
fn tolerance(storage: Storage, from: &[bundle::StoredParameter]) -> f32 {
    match storage {
        Storage::Float(DType::F16) => 0.01,
        Storage::Float(DType::BF16) => 0.08,
        Storage::Q8 => 0.08,
        // From 8 bits, whose products round activations to 16 bits on some machines.
        _ if from.iter().any(|p| p.dtype == "I8") => 0.01,
        // The same numbers in the same order.
        _ => 0.0,
    }
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: &Arguments, typed: &ArgMatches) -> Result<()> {
    let storage = Storage::parse(&arguments.dtype).map_err(|e| Usage(format!("--dtype: {e}")))?;
    let (from, out) = (&arguments.bundle, &arguments.out);
    // The comparison runs on this thread.
    // SAFETY: the caller of the command has promised that no other thread is running.
    unsafe { device::configure_threads(1) };
    let original = Opened::new(registry, from)?;
    if let (Ok(a), Ok(b)) = (from.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Usage::error(format!("{}: a bundle cannot be exported onto itself", out.display())));
    }
    let (bundle, family) = (&original.bundle, original.family);
    options::check(registry, family, options::EXPORT, typed)?;
    let mut comparison = family.comparison(&original, typed)?;
    let tolerance = tolerance(storage, &bundle.parameters()?);
    let mut differences: Vec<Difference> = Vec::new();
    let files: Vec<&str> = [CONFIG, MODEL, CARD].iter().chain(family.files()).copied().collect();
    write_directory(out, &files, |dir| {
        registry.export(bundle, storage, dir).map_err(|e| named(e, from, out))?;
        differences = comparison.differences(&Opened::load(registry, Bundle::open(dir)?)?)?;
        match differences.iter().find(|d| !d.within(tolerance)) {
            Some(d) => {
                let (dtype, measure) = (&arguments.dtype, d.measure);
                Err(Error::file(out, format!("not exported, {dtype} is off by more than {tolerance} of its {measure}: {d}")))
            }
            None => Ok(()),
        }
    })?;
    let exported = Opened::new(registry, out)?;
    let size = |bundle: &Bundle| -> Result<usize> { Ok(bundle.parameters()?.iter().map(|p| p.bytes).sum()) };
    let (is, was) = (cli::bytes(size(&exported.bundle)? as u64), cli::bytes(size(bundle)? as u64));
    line(format_args!("{}: {is}, was {was}", out.display()))?;
    let (over, measure) = (comparison.over(), comparison.measure());
    line(format_args!("worst differences from {} over {over} (tolerance {tolerance} of the {measure}):", from.display()))?;
    differences.iter().try_for_each(|d| line(format_args!("  {d}")))?;
    Ok(comparison.remarks(&exported)?.iter().try_for_each(line)?)
}

/// The user knows the target, not the temporary directory that could not be written.
fn named(error: Error, from: &Path, out: &Path) -> Error {
    match error {
        Error::Io { path, cause } if path.parent() != Some(from) => Error::io(out.join(path.file_name().unwrap_or_default()))(cause),
        other => other,
    }
}
