//! A task of one's own under the trainer: a small network learns y = sin(3 x) from noisy samples, with everything that the game
//! policy has: schedule, averaging, checkpoints, resume, metrics, several ranks.
//!
//! `cargo run --release -p examples --example train_regression -- [--steps N] [--out DIR]`; with the same DIR it continues.

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use candle_models::nn::{Init, Params};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, device};
use candle_train::parallel::{Communicator, share};
use candle_train::report::About;
use candle_train::run::{Place, begin, train};
use candle_train::schedule::Schedule;
use candle_train::stop::Stop;
use candle_train::task::{Loss, Task};
use candle_train::trainer::{Outcome, Resources, Trainer, TrainerConfig};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

const BATCH: usize = 64;
const HIDDEN: usize = 32;
const SEED: u64 = 1;

/// y `[n, 1]` from x `[n, 1]`. Asking for a parameter makes it, the first time.
fn network(parameters: &Params, x: &Tensor) -> candle_models::Result<Tensor> {
    let layer = |name: &str, x: &Tensor, [inputs, outputs]: [usize; 2], spread: f32| {
        let (weight, _) = parameters.pp(name).matrix("weight", [inputs, outputs], Init::Normal(spread))?;
        let bias = parameters.pp(name).get("bias", &[outputs], Init::Uniform(spread))?;
        Ok::<_, Error>(x.to_dtype(weight.dtype())?.matmul(&weight)?.broadcast_add(&bias)?)
    };
    let hidden = layer("hidden", x, [1, HIDDEN], 2.0)?.tanh()?;
    layer("output", &hidden, [HIDDEN, 1], 0.2)
}

/// Sample i of batch b depends on (seed, b, i) only: the cursor is the number of the next batch.
struct Regression {
    next: u64,
    rows: Range<usize>,
}

impl Regression {
    fn batch(&self) -> candle_models::Result<[Tensor; 2]> {
        let random = Random::new(SEED).stream("samples").at(self.next);
        let x = |i: usize| 2.0 * random.stream("x").uniform(i as u64) - 1.0;
        let y = |i: usize| (3.0 * x(i)).sin() + 0.1 * random.stream("noise").normal(i as u64);
        let column = |f: &dyn Fn(usize) -> f32| Tensor::from_iter(self.rows.clone().map(f), &Device::Cpu)?.unsqueeze(1);
        Ok([column(&x)?, column(&y)?])
    }
}

impl Task for Regression {
    fn unit(&self) -> &'static str {
        "samples"
    }

    fn loss(&mut self, parameters: &Params) -> candle_models::Result<Loss> {
        let [x, y] = self.batch()?;
        self.next += 1;
        let error = (network(parameters, &x)? - y)?;
        let (value, samples) = (error.sqr()?.mean_all()?, self.rows.len());
        let parts = error.abs()?.mean_all()?.reshape(1)?.detach();
        let weight = samples as f64 / BATCH as f64;
        Ok(Loss { value, parts, names: &["absolute"], weight, samples, waited: Duration::ZERO })
    }

    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> candle_models::Result<BTreeMap<String, f64>> {
        Ok([("score".to_owned(), error_without_noise(parameters)?)].into())
    }

    fn save(&self) -> candle_models::Result<(NamedTensors, serde_json::Value)> {
        Ok((NamedTensors::new(), self.next.into()))
    }

    fn restore(&mut self, _: &NamedTensors, cursor: &serde_json::Value) -> candle_models::Result<()> {
        self.next = cursor.as_u64().ok_or_else(|| Error::Input(format!("cursor: expected a number, found {cursor}")))?;
        Ok(())
    }
}

/// The mean squared error against sin(3 x) itself.
fn error_without_noise(parameters: &Params) -> candle_models::Result<f64> {
    let x = Tensor::arange_step(-1f32, 1.0, 1.0 / 128.0, &Device::Cpu)?.unsqueeze(1)?;
    let error = (network(parameters, &x)? - (&x * 3.0)?.sin()?)?;
    Ok(error.sqr()?.mean_all()?.to_scalar::<f32>()?.into())
}

fn main() -> Result<()> {
    let threads = device::threads(Some(1))?;
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads) };
    let (mut steps, mut place) = (2000, Place::Memory);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--steps" => steps = value.parse().with_context(|| format!("--steps {value}"))?,
            "--out" => place = Place::Resume(value.into()),
            _ => bail!("{argument}: expected --steps N or --out DIR"),
        }
    }

    let schedule = Schedule { peak: 1e-2, ..Schedule::default() };
    let config = TrainerConfig { log_every: 200, evaluate_every: 500, schedule, ..TrainerConfig::default() };
    let about = About { configuration: serde_json::to_string_pretty(&config)?, ..About::default() };
    let identity = serde_json::json!({ "trainer": config, "steps": steps, "batch": BATCH, "hidden": HIDDEN, "seed": SEED });
    let params = Params::init(Random::new(SEED).stream("parameters"), &Device::Cpu);
    network(&params, &Tensor::zeros((1, 1), candle_core::DType::F32, &Device::Cpu)?)?;

    let resources = Resources::default();
    let mut task = Regression { next: 0, rows: share(BATCH, resources.ranks.rank(), resources.ranks.size()) };
    let mut trainer = Trainer::new(config, params.vars(), steps, identity, resources)?;
    begin(&mut trainer, &mut task, &place)?;
    let outcome = train(&mut trainer, &mut task, &place, about, &Stop::after(None).on_signals()?)?;
    if outcome != Outcome::Finished {
        println!("stopped at step {}; the same command continues", trainer.step());
        return Ok(());
    }
    let error = error_without_noise(&trainer.parameters(trainer.average()?))?;
    println!("mean squared error {error:.5} after {} steps in {:.1} s", trainer.step(), trainer.time().as_secs_f64());
    Ok(())
}
