//! `candle-infer export`: a bundle in another dtype, checked against the original before it takes its place.

use crate::output::line;
use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use candle_models::bundle::{self, BASELINES, Bundle, CARD, CONFIG, MODEL, Manifest, ParameterSpec, TOKENIZER};
use candle_models::cli::{self, Usage};
use candle_models::engine::{self, Model, Runner};
use candle_models::files::write_directory;
use candle_models::random::Random;
use candle_models::{Error, device};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The frames that original and export are compared on.
const SEQUENCES: usize = 4;
const FRAMES: usize = 64;
const RESETS: f32 = 0.05;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Directory to write: complete or not at all. A bundle that is there already is replaced.
    out: PathBuf,
    /// The parameters' dtype in the file: f32, f16 or bf16. On the CPU it is computed in f32 all the same.
    #[arg(long, default_value = "f32")]
    dtype: String,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let dtype = device::float_dtype(&arguments.dtype).map_err(|e| Usage(format!("--dtype: {e}")))?;
    let (from, out) = (&arguments.bundle, &arguments.out);
    // The comparison runs on this thread.
    // SAFETY: the program has started no thread yet.
    unsafe { device::configure_threads(1) };
    let bundle = Bundle::open(from)?;
    if let (Ok(a), Ok(b)) = (from.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Usage::error(format!("{}: a bundle cannot be exported onto itself", out.display())));
    }
    let original = engine::load(&bundle).with_context(|| from.display().to_string())?;
    let (manifest, tensors, files) = content(&bundle, dtype)?;
    let mut differences = Vec::new();
    write_directory(out, &[CONFIG, MODEL, CARD, TOKENIZER, BASELINES], |dir| {
        bundle::save(dir, &manifest, &tensors, serde_json::Value::Null, &files).map_err(|e| named(e, out))?;
        let exported = engine::load(&Bundle::open(dir)?)?;
        differences = compare(&original, &exported)?;
        let tolerance = tolerance(dtype);
        match differences.iter().find(|d| !d.within(tolerance)) {
            Some(d) => {
                Err(Error::file(out, format!("not exported, {} is off by more than {tolerance} of its range: {d}", arguments.dtype)))
            }
            None => Ok(()),
        }
    })?;
    let size = |bundle: &Bundle| -> Result<usize> { Ok(bundle.parameters()?.iter().map(|p| p.bytes).sum()) };
    let (before, after) = (size(&bundle)?, size(&Bundle::open(out)?)?);
    line(format_args!("{}: {}, was {}", out.display(), cli::bytes(after as u64), cli::bytes(before as u64)))?;
    line(format_args!(
        "worst differences from {} over {SEQUENCES} random sequences of {FRAMES} frames (tolerance {} of the range):",
        from.display(),
        tolerance(dtype)
    ))?;
    differences.iter().try_for_each(|d| line(format_args!("  {d}")))?;
    Ok(())
}

/// What rounding the parameters may move, as a share of an output's range. The steps of f16 are 2^-11 of a number and those
/// of bf16 2^-8; a few dozen layers and frames stand between them and the output.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 0.01,
        DType::BF16 => 0.08,
        // The same numbers in the same order.
        _ => 0.0,
    }
}

/// A bundle's manifest, parameters and further files.
type Content = (Manifest, BTreeMap<String, Tensor>, Vec<(&'static str, Vec<u8>)>);

/// Parameters in `dtype` and the files that inference wants; what training has noted beside the weights stays behind.
fn content(bundle: &Bundle, dtype: DType) -> candle_models::Result<Content> {
    let specs: Vec<ParameterSpec> = bundle.parameters()?.into_iter().map(|p| ParameterSpec::new(p.name, &p.shape)).collect();
    let tensors = bundle.read_tensors(&specs)?.into_iter();
    let tensors = tensors.map(|(name, tensor)| Ok((name, tensor.to_dtype(dtype)?))).collect::<candle_models::Result<_>>()?;
    let mut files = Vec::new();
    for name in [CARD, TOKENIZER, BASELINES] {
        files.extend(bundle.read_file(name)?.map(|bytes| (name, bytes)));
    }
    let Manifest { family, model, .. } = bundle.manifest();
    Ok((Manifest::new(family.as_str(), model)?, tensors, files))
}

/// The user knows the target, not the temporary directory that could not be written.
fn named(error: Error, out: &Path) -> Error {
    match error {
        Error::Io { path, source } => Error::io(out.join(path.file_name().unwrap_or_default()))(source),
        other => other,
    }
}

/// How far an output is from the original's.
struct Difference {
    name: String,
    worst: f32,
    /// The largest absolute value.
    range: f32,
}

impl Difference {
    fn within(&self, tolerance: f32) -> bool {
        // Written so that a NaN is outside.
        self.worst <= tolerance * self.range.max(1.0)
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} differs by at most {:.3e} in a range of {:.3}", self.name, self.worst, self.range)
    }
}

/// Runs both models on the same random inputs of the signature with random resets. Where an input can force a choice, its
/// random indices do, so that one rounding cannot turn into another history.
fn compare(a: &Arc<dyn Model>, b: &Arc<dyn Model>) -> candle_models::Result<Vec<Difference>> {
    let random = Random::new(0).stream("export");
    let resets: Vec<bool> = (0..SEQUENCES * FRAMES).map(|i| random.stream("resets").uniform(i as u64) < RESETS).collect();
    let run = |model: &Arc<dyn Model>| {
        let mut runner = Runner::windowed(model.clone(), SEQUENCES, FRAMES, 1)?;
        for spec in &model.signature().inputs {
            let random = random.stream(&spec.name);
            if spec.dtype == DType::U32 {
                let limits = model.index_limits(&spec.name).below;
                let values = runner.indices_mut(&spec.name)?;
                let limit = |i: usize| limits.get(i % spec.width()).copied().unwrap_or(1);
                values.iter_mut().enumerate().for_each(|(i, value)| *value = random.below(i as u64, limit(i)));
            } else {
                random.fill_normal(0, runner.floats_mut(&spec.name)?);
            }
        }
        runner.step(&resets)?;
        Ok::<_, Error>(runner)
    };
    let (first, second) = (run(a)?, run(b)?);
    a.signature().outputs.iter().map(|spec| difference(&first, &second, &spec.name, spec.dtype)).collect()
}

fn difference(a: &Runner, b: &Runner, name: &str, dtype: DType) -> candle_models::Result<Difference> {
    let values = |runner: &Runner, row: usize| -> candle_models::Result<Vec<f32>> {
        match dtype {
            DType::U32 => Ok(runner.indices(name, row)?.iter().map(|x| *x as f32).collect()),
            _ => Ok(runner.floats(name, row)?.to_vec()),
        }
    };
    let mut found = Difference { name: name.to_owned(), worst: 0.0, range: 0.0 };
    for row in 0..SEQUENCES * FRAMES {
        for (x, y) in values(a, row)?.into_iter().zip(values(b, row)?) {
            let difference = (x - y).abs();
            found.worst = if difference.is_nan() { f32::INFINITY } else { found.worst.max(difference) };
            found.range = found.range.max(x.abs());
        }
    }
    Ok(found)
}
