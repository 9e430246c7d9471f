//! A task of one's own under the trainer: a small network learns y = sin(3 x) from noisy samples, with everything that the game
//! policy has: schedule, averaging, checkpoints, resume, metrics, several ranks.
//!
//! `cargo run --release --example train_regression -- [--steps N] [--out DIR]`; with the same DIR it continues.

use anyhow::{Context as _, Result, bail};
use candle_core::{Device, Tensor};
use candle_models::nn::{Init, Params};
use candle_models::random::Random;
use candle_models::{Error, device};
use candle_train::parallel::share;
use candle_train::run::{Outcome, Place, Run, Stop, TrainerConfig};
use candle_train::schedule::Schedule;
use candle_train::task::{Communicator, Context, Evaluation, Loss, Metric, Score, Task};

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

/// Sample i of batch b depends on (seed, b, i) only, so that there is nothing to keep in a checkpoint.
struct Regression;

impl Task for Regression {
    /// x and y.
    type Batch = [Tensor; 2];

    fn next_batch(&mut self, context: &Context) -> candle_models::Result<[Tensor; 2]> {
        let (random, rows) = (context.noise, share(BATCH, context.ranks.rank(), context.ranks.size()));
        let x = |i: usize| 2.0 * random.stream("x").uniform(i as u64) - 1.0;
        let y = |i: usize| (3.0 * x(i)).sin() + 0.1 * random.stream("noise").normal(i as u64);
        let column = |f: &dyn Fn(usize) -> f32| Tensor::from_iter(rows.clone().map(f), &Device::Cpu)?.unsqueeze(1);
        Ok([column(&x)?, column(&y)?])
    }

    fn loss(&mut self, parameters: &Params, [x, y]: &[Tensor; 2], _: &Context) -> candle_models::Result<Loss> {
        let error = (network(parameters, x)? - y)?;
        let metrics = vec![Metric::mean(&["absolute"], error.abs()?.mean_all()?.reshape(1)?)];
        let weight = x.dim(0)? as f64 / BATCH as f64;
        Ok(Loss { weight, metrics, ..Loss::new(error.sqr()?.mean_all()?, x.dim(0)?) })
    }

    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> candle_models::Result<Evaluation> {
        Ok(Evaluation::new(Score::minimise(error_without_noise(parameters)?), []))
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
    let (mut steps, mut place) = (2000u64, Place::memory());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--steps" => steps = value.parse().with_context(|| format!("--steps {value}"))?,
            "--out" => place = Place::resume(value),
            _ => bail!("{argument}: expected --steps N or --out DIR"),
        }
    }

    let schedule = Schedule { peak: 1e-2, ..Schedule::default() };
    let config = TrainerConfig { log_every: 200, evaluate_every: 500, schedule, ..TrainerConfig::default() };
    let params = Params::init(Random::new(SEED).stream("parameters"), &Device::Cpu);
    network(&params, &Tensor::zeros((1, 1), candle_core::DType::F32, &Device::Cpu)?)?;
    let stop = Stop::after(None).on_signals()?;
    let ended = Run::new(config, steps, SEED)?.train(params.vars(), &mut Regression, &place, &stop)?;
    if ended.outcome != Outcome::Finished {
        println!("stopped at step {}; the same command continues", ended.step);
        return Ok(());
    }
    let error = error_without_noise(&ended.params())?;
    println!("mean squared error {error:.5} after {} steps in {:.1} s", ended.step, ended.time.as_secs_f64());
    Ok(())
}
