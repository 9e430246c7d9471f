//! A task of one's own under the trainer, from files to answers: noisy samples of y = sin(3 x) are written to a folder, a small network
//! learns from there with everything that the game policy has (schedule, averaging, checkpoints, resume, metrics, several ranks), and the
//! engine answers.
//!
//! `cargo run --release --example train_regression -- [--steps N] [--out DIR]`; with the same DIR it continues.

mod curve;

use anyhow::{Context as _, bail};
use candle_models::bundle::{self, Manifest};
use candle_models::prelude::*;
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use candle_models::{Result, device};
use candle_train::dataset::{Batch, Dataset, Loader, Order};
use candle_train::export::Skeleton;
use candle_train::parallel::Single;
use candle_train::run::{Place, Run, Stop, TrainerConfig};
use candle_train::schedule::Schedule;
use candle_train::task::{Communicator, Context, Evaluation, Loss, Score, Task};
use curve::{Curve, CurveFamily};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Batches of recorded rows, and the curve itself to measure on.
struct Regression(Loader, NamedTensors);

impl Task for Regression {
    type Batch = Batch;

    fn next_batch(&mut self, context: &Context) -> Result<Batch> {
        self.0.get(context.batch) // A function of the number: there is nothing to keep in a checkpoint.
    }
    fn loss(&mut self, parameters: &Params, batch: &Batch, _: &Context) -> Result<Loss> {
        let error = Curve::error(parameters, &batch.tensors)?;
        Ok(Loss { weight: batch.weight, ..Loss::new(error, batch.resets.len()) })
    }
    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        Ok(Evaluation::new(Score::minimise(Curve::error(parameters, &self.1)?.to_scalar::<f32>()?.into()), []))
    }
}

/// Rows of x from -1 to 1, and of y with so much noise.
fn rows(random: Random, n: usize, noise: f32) -> Result<NamedTensors> {
    let x: Vec<f32> = (0..n as u64).map(|i| 2.0 * random.stream("x").uniform(i) - 1.0).collect();
    let y = x.iter().zip(0..).map(|(x, i)| (3.0 * x).sin() + noise * random.stream("noise").normal(i)).collect();
    let tensor = |values| Tensor::from_vec(values, (n, 1), &Device::Cpu);
    Ok([("x".to_owned(), tensor(x)?), ("y".to_owned(), tensor(y)?)].into_iter().collect())
}

fn train(out: &Path, steps: u64) -> anyhow::Result<()> {
    let (data, bundle, random) = (out.join("data"), out.join("bundle"), Random::new(1));
    std::fs::create_dir_all(&data)?;
    for file in 0..8 {
        rows(random.at(file), 512, 0.1)?.save_safetensors(data.join(format!("{file}.safetensors")))?;
    }
    let data = Arc::new(Dataset::open(data, &[TensorSpec::f32("x", &[1]), TensorSpec::f32("y", &[1])])?);
    let hashes: Vec<String> = data.contents()?.into_iter().map(|contents| contents.hash).collect();
    let loader = Loader::new(data, Order::Rows(64), random.stream("data"), &Single, &Device::Cpu)?;

    let schedule = Schedule { peak: 1e-2, ..Schedule::default() };
    let config = TrainerConfig { log_every: 200, evaluate_every: 500, schedule, ..TrainerConfig::default() };
    let params = Params::init(random.stream("parameters"), &Device::Cpu);
    Curve::network(&params)?; // Asking for parameters makes them.
    let manifest = Manifest::new(CurveFamily.name(), &json!({}))?;
    let mut run = Run::new(config, steps, 1)?;
    run.identity["data"] = json!(hashes); // With other data the run is not continued.
    run.skeleton = Some(Skeleton { manifest: manifest.clone(), files: Vec::new() });
    let mut task = Regression(loader, rows(random.stream("evaluation"), 256, 0.0)?);
    let ended = run.train(params.vars(), &mut task, &Place::resume(out), &Stop::after(None).on_signals()?)?;
    let error = task.evaluate(&ended.params(), &Single)?.results()["score"];
    println!("mean squared error {error:.5} after {} steps in {:.1} s", ended.step, ended.time.as_secs_f64());

    bundle::save(&bundle, &manifest, &ended.parameters, json!({ "steps": ended.step }), &[])?;
    let families: Registry<dyn Family> = Registry::new([&CurveFamily]);
    let engine = Engine::start(families.load(&Bundle::open(&bundle)?)?, &Options::default())?;
    let mut session = engine.open()?;
    for x in [-0.5f32, 0.0, 0.5] {
        session.set_f32("x", &[x])?;
        session.step()?;
        println!("y({x}) = {:.3}, sin(3 x) = {:.3}", session.floats("y")?[0], (3.0 * x).sin());
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let threads = device::threads(Some(1))?;
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads) };
    let (mut steps, mut out, temporary) = (2000u64, None, tempfile::tempdir()?);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--steps" => steps = value.parse().with_context(|| format!("--steps {value}"))?,
            "--out" => out = Some(PathBuf::from(value)),
            _ => bail!("{argument}: expected --steps N or --out DIR"),
        }
    }
    train(out.as_deref().unwrap_or(temporary.path()), steps)
}
