//! `candle-infer export`: a bundle in another dtype, checked against the original before it takes its place.

use crate::agreement::{Agreement, Choices};
use crate::demo;
use crate::links::Links;
use crate::options::Options;
use crate::output::line;
use anyhow::{Context, Result};
use candle_core::DType;
use candle_models::beam;
use candle_models::bundle::{self, BASELINES, Bundle, CARD, CONFIG, MODEL, Storage, TOKENIZER};
use candle_models::cli::{self, Usage};
use candle_models::engine::{self, Model, Placement, Runner};
use candle_models::files::write_directory;
use candle_models::random::Random;
use candle_models::{Error, device, policy};
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
    let tolerance = tolerance(storage, &bundle.parameters()?);
    let mut differences = Vec::new();
    write_directory(out, &[CONFIG, MODEL, CARD, TOKENIZER, BASELINES], |dir| {
        engine::export(&bundle, storage, dir).map_err(|e| named(e, from, out))?;
        let stored = Bundle::open(dir)?;
        let exported = engine::load(&stored)?;
        differences = if links { compare_links([(&bundle, &original), (&stored, &exported)])? } else { compare(&original, &exported)? };
        match differences.iter().find(|d| !d.within(tolerance)) {
            Some(d) => {
                let (dtype, measure) = (&arguments.dtype, d.measure);
                Err(Error::file(out, format!("not exported, {dtype} is off by more than {tolerance} of its {measure}: {d}")))
            }
            None => Ok(()),
        }
    })?;
    let exported = Bundle::open(out)?;
    let size = |bundle: &Bundle| -> Result<usize> { Ok(bundle.parameters()?.iter().map(|p| p.bytes).sum()) };
    line(format_args!("{}: {}, was {}", out.display(), cli::bytes(size(&exported)? as u64), cli::bytes(size(&bundle)? as u64)))?;
    line(format_args!(
        "worst differences from {} over {} (tolerance {tolerance} of the {}):",
        from.display(),
        if links { format!("{LINKS} simulated links") } else { format!("{SEQUENCES} random sequences of {FRAMES} frames") },
        if links { Measure::RootMeanSquare } else { Measure::Largest },
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

/// The user knows the target, not the temporary directory that could not be written.
fn named(error: Error, from: &Path, out: &Path) -> Error {
    match error {
        Error::Io { path, source } if path.parent() != Some(from) => Error::io(out.join(path.file_name().unwrap_or_default()))(source),
        other => other,
    }
}

/// How far an output is from the original's.
struct Difference {
    name: String,
    measure: Measure,
    worst: f32,
    /// The largest absolute value.
    range: f32,
    /// Sums of squares of the differences and of the original's values.
    squares: [f64; 2],
}

/// What is held against the tolerance.
#[derive(Clone, Copy)]
enum Measure {
    /// The largest difference, by the range or by one.
    Largest,
    /// The root mean square of the differences, by that of the values. A memory makes much of a rounding now and then, and so does the
    /// norm of an antenna with next to no signal: with the shipped controller in 8 bits one number of the state is off by 0.66 of its
    /// range, and the root mean square by 0.01.
    RootMeanSquare,
}

impl std::fmt::Display for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Largest => "range",
            Self::RootMeanSquare => "root mean square",
        })
    }
}

impl Difference {
    fn new(name: String, measure: Measure) -> Self {
        Self { name, measure, worst: 0.0, range: 0.0, squares: [0.0; 2] }
    }

    fn add(&mut self, was: &[f32], is: &[f32]) {
        for (x, y) in was.iter().zip(is) {
            let difference = (x - y).abs();
            self.worst = if difference.is_nan() { f32::INFINITY } else { self.worst.max(difference) };
            self.range = self.range.max(x.abs());
            self.squares[0] += f64::from(difference) * f64::from(difference);
            self.squares[1] += f64::from(*x) * f64::from(*x);
        }
    }

    /// The root mean square of the differences as a share of that of the values.
    fn share(&self) -> f64 {
        (self.squares[0] / self.squares[1].max(f64::MIN_POSITIVE)).sqrt()
    }

    fn within(&self, tolerance: f32) -> bool {
        // Written so that a NaN is outside.
        match self.measure {
            Measure::Largest => self.worst <= tolerance * self.range.max(1.0),
            Measure::RootMeanSquare => self.share() <= f64::from(tolerance),
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} differs by at most {:.3e} in a range of {:.3}", self.name, self.worst, self.range)?;
        match self.measure {
            Measure::Largest => Ok(()),
            Measure::RootMeanSquare => write!(f, ", {:.3e} of the root mean square", self.share()),
        }
    }
}

/// Runs both controllers on the same simulated links, and the exported networks on what the original's read there, for the gain says
/// little about a controller that has learned little. Random features would be unlike any measurement: there are many times more of
/// them, and a memory that they saturate multiplies every rounding.
fn compare_links(models: [(&Bundle, &Arc<dyn Model>); 2]) -> candle_models::Result<Vec<Difference>> {
    let links = |(bundle, model)| Links::new(bundle, model, &Options::default(), &Placement::cpu(1), None);
    let [original, exported] = models.map(links);
    let (mut original, mut exported) = (original?, exported?);
    let ([was, share], passes) = original.rehearse(LINKS)?;
    let ([is, other], _) = exported.rehearse(LINKS)?;
    let mut differences = Vec::new();
    for ((whose, passes), (_, again)) in passes.iter().zip(exported.repeat(LINKS, &passes)?) {
        let names = passes.iter().take(1).flat_map(|pass| &pass.outputs).map(|(name, _)| format!("{whose} {name}"));
        let mut found: Vec<_> = names.map(|name| Difference::new(name, Measure::RootMeanSquare)).collect();
        for (a, b) in passes.iter().zip(&again) {
            for (found, ((_, a), (_, b))) in found.iter_mut().zip(a.outputs.iter().zip(&b.outputs)) {
                found.add(a, b);
            }
        }
        differences.append(&mut found);
    }
    let name = format!("the mean gain ({is:.2} dB, was {was:.2}) as a share of the channel's power");
    let mut gain = Difference::new(name, Measure::Largest);
    gain.add(&[share as f32], &[other as f32]);
    differences.push(gain);
    Ok(differences)
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
    let mut found = Difference::new(name.to_owned(), Measure::Largest);
    for row in 0..SEQUENCES * FRAMES {
        found.add(&values(a, row)?, &values(b, row)?);
    }
    Ok(found)
}
