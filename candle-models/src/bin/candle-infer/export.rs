//! `candle-infer export`: a bundle in another dtype, checked against the original before it takes its place.

use crate::agreement::{Agreement, Choices};
use crate::demo;
use crate::links::Links;
use crate::options::Options;
use crate::output::line;
use anyhow::{Context, Result};
use candle_core::DType;
use candle_models::beam;
use candle_models::bundle::{self, BASELINES, Bundle, CARD, CONFIG, MODEL, Manifest, Parameter, Storage, TOKENIZER};
use candle_models::cli::{self, Usage};
use candle_models::engine::{self, Model, Placement, Runner};
use candle_models::files::write_directory;
use candle_models::random::Random;
use candle_models::{Error, device, policy};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The frames that original and export are compared on.
const SEQUENCES: usize = 4;
const FRAMES: usize = 64;
const RESETS: f32 = 0.05;
/// The links that beam controllers are compared on.
const LINKS: usize = 256;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Directory to write: complete or not at all. A bundle that is there already is replaced.
    out: PathBuf,
    /// How the parameters are stored: f32, f16, bf16, or q8, which stores the weights of linear layers as 8-bit integers
    /// with one factor per output. On the CPU bf16 and q8 weights stay so in memory; activations and sums are f32.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Replay (.slp) on which to compare the actions and likelihoods of a policy with the original's; may be repeated
    /// [default: the shipped simulated game].
    #[arg(long, value_name = "FILE")]
    replay: Vec<PathBuf>,
}

/// What rounding the parameters may move, as a share of an output's range; a few dozen layers and frames stand between
/// them and the output. The steps of f16 are 2^-11 of a number, those of bf16 2^-8, and those of 8 bits 2^-7 of a
/// column's largest: there the agreement on replays says more.
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

pub fn run(arguments: &Arguments) -> Result<()> {
    let storage = Storage::parse(&arguments.dtype).map_err(|e| Usage(format!("--dtype: {e}")))?;
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
    let links = original.family() == beam::FAMILY;
    let replays = replays(&original, &arguments.replay)?;
    let choices = Choices::new(&bundle, &original, &replays)?;
    let (manifest, parameters, files) = content(&bundle, storage)?;
    let tolerance = tolerance(storage, &bundle.parameters()?);
    let mut differences = Vec::new();
    write_directory(out, &[CONFIG, MODEL, CARD, TOKENIZER, BASELINES], |dir| {
        bundle::save_parameters(dir, &manifest, &parameters, serde_json::Value::Null, &files).map_err(|e| named(e, out))?;
        let stored = Bundle::open(dir)?;
        let exported = engine::load(&stored)?;
        differences = if links { compare_links([(&bundle, &original), (&stored, &exported)])? } else { compare(&original, &exported)? };
        match differences.iter().find(|d| !d.within(tolerance)) {
            Some(d) => {
                Err(Error::file(out, format!("not exported, {} is off by more than {tolerance} of its range: {d}", arguments.dtype)))
            }
            None => Ok(()),
        }
    })?;
    let exported = Bundle::open(out)?;
    let size = |bundle: &Bundle| -> Result<usize> { Ok(bundle.parameters()?.iter().map(|p| p.bytes).sum()) };
    line(format_args!("{}: {}, was {}", out.display(), cli::bytes(size(&exported)? as u64), cli::bytes(size(&bundle)? as u64)))?;
    line(format_args!(
        "worst differences from {} over {} (tolerance {tolerance} of the range):",
        from.display(),
        if links { format!("{LINKS} simulated links") } else { format!("{SEQUENCES} random sequences of {FRAMES} frames") },
    ))?;
    differences.iter().try_for_each(|d| line(format_args!("  {d}")))?;
    if !replays.is_empty() {
        let agreement = Agreement::between(&choices, &Choices::new(&exported, &engine::load(&exported)?, &replays)?);
        let names: Vec<String> = replays.iter().map(|path| path.display().to_string()).collect();
        line(format_args!("on {}, with the recorded past in every frame:\n{agreement}", names.join(", ")))?;
    }
    Ok(())
}

/// The replays to compare on: those named, or the shipped game if it is there. None for a model that watches none.
fn replays(model: &Arc<dyn Model>, named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    match (model.family() == policy::FAMILY, named) {
        (true, []) => Ok(demo::game().into_iter().collect()),
        (true, _) => Ok(named.to_vec()),
        (false, []) => Ok(Vec::new()),
        (false, _) => Err(Usage::error(format!("--replay: a {} does not watch replays", model.family()))),
    }
}

/// A bundle's manifest, parameters and further files.
type Content = (Manifest, BTreeMap<String, Parameter>, Vec<(&'static str, Vec<u8>)>);

/// The parameters as wanted and the files that inference wants; what training has noted beside the weights stays behind.
fn content(bundle: &Bundle, storage: Storage) -> candle_models::Result<Content> {
    let specs = engine::parameters(bundle)?;
    let mut stored = bundle.read_parameters(&specs)?;
    let mut parameters = BTreeMap::new();
    for spec in specs {
        if let Some(parameter) = stored.remove(&spec.name) {
            parameters.insert(spec.name, storage.parameter(spec.role, parameter)?);
        }
    }
    let mut files = Vec::new();
    for name in [CARD, TOKENIZER, BASELINES] {
        files.extend(bundle.read_file(name)?.map(|bytes| (name, bytes)));
    }
    let Manifest { family, model, .. } = bundle.manifest();
    Ok((Manifest::new(family.as_str(), model)?, parameters, files))
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

/// Runs both controllers on the same simulated links. Random features would be unlike any measurement: there are many times more
/// of them, and a memory that they saturate multiplies every rounding.
fn compare_links(models: [(&Bundle, &Arc<dyn Model>); 2]) -> candle_models::Result<Vec<Difference>> {
    let gains = |(bundle, model)| Links::new(bundle, model, &Options::default(), &Placement::cpu(1), None)?.gains(LINKS);
    let [original, exported] = models.map(gains);
    let ([was, share], [is, other]) = (original?, exported?);
    let name = format!("the mean gain ({is:.2} dB, was {was:.2}) as a share of the channel's power");
    Ok(vec![Difference { name, worst: (share - other).abs() as f32, range: share as f32 }])
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
                let limit = |i: usize| limits.get(i % spec.width()).copied().unwrap_or(1);
                let values: Vec<u32> = (0..SEQUENCES * FRAMES * spec.width()).map(|i| random.below(i as u64, limit(i))).collect();
                runner.set_u32(&spec.name, &values)?;
            } else {
                let mut values = vec![0.0; SEQUENCES * FRAMES * spec.width()];
                random.fill_normal(0, &mut values);
                runner.set_f32(&spec.name, &values)?;
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
