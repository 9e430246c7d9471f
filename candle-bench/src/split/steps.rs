//! The trainer's own steps, and the same steps with a clock between their parts.

use crate::case::Case;
use crate::harness::{Round, Rounds};
use crate::stats;
use crate::trainee::{Trainee, Work};
use anyhow::{Context, Result};
#[cfg(test)]
use candle_core::Tensor;
use candle_core::{DType, Device, Var};
use candle_models::device;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::random::Random;
use candle_train::gradients::Gradients;
use candle_train::metrics::Reporter;
use candle_train::optim::Optimiser;
use candle_train::parallel::Single;
use candle_train::scale::LossScale;
use candle_train::schedule::Schedule;
use candle_train::stop::Stop;
use candle_train::task::{self, Task};
use candle_train::trainer::{Resources, Trainer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No measurement is as long; the trainer's schedule wants a last step.
const LAST_STEP: u64 = 1 << 40;

/// Where the time of a step goes, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Waiting for a batch from the loader, or making it.
    pub data: f64,
    /// From the batch to the loss.
    pub forward: f64,
    /// Gradients of all parameters, and taking the graph down.
    pub backward: f64,
    /// Norm, clipping, update and moving average.
    pub optimiser: f64,
    /// Summing gradients over ranks, the wait for the others counted in; nothing for one rank.
    pub communication: f64,
}

impl Split {
    /// The parts by name, in the order in which they are stacked.
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        let Self { data, forward, backward, optimiser, communication } = *self;
        [("data", data), ("forward", forward), ("backward", backward), ("optimiser", optimiser), ("communication", communication)]
    }

    /// All parts together.
    pub fn sum(&self) -> f64 {
        self.parts().iter().map(|(_, us)| us).sum()
    }

    /// The mean of every part over steps; not a number without any.
    pub fn mean(steps: &[Self]) -> Self {
        Self::each(|part| stats::mean(&steps.iter().map(part).collect::<Vec<_>>()))
    }

    /// The median of every part over rounds; not a number without any.
    pub fn median(rounds: &[Self]) -> Self {
        Self::each(|part| stats::median(&stats::sorted(&rounds.iter().map(part).collect::<Vec<_>>())))
    }

    fn each(of: impl Fn(fn(&Self) -> f64) -> f64) -> Self {
        Self {
            data: of(|s| s.data),
            forward: of(|s| s.forward),
            backward: of(|s| s.backward),
            optimiser: of(|s| s.optimiser),
            communication: of(|s| s.communication),
        }
    }
}

/// What a case is trained with, in its dtype.
fn resources(trainee: &dyn Trainee, case: &Case, device: &Device) -> Result<Resources> {
    let dtype = device::compute_dtype(Some(device::float_dtype(&case.dtype)?), device, trainee.purpose())?;
    Ok(Resources::new(device.clone(), dtype, Arc::new(Single)))
}

/// Whether a case can be trained in its dtype on a device, and why not.
pub(crate) fn check(trainee: &dyn Trainee, case: &Case, device: &Device) -> Result<()> {
    resources(trainee, case, device).map(drop)
}

/// The trainer's own steps, by its own clock: from asking for the batch to the update.
pub(crate) struct Whole {
    trainer: Trainer,
    task: Work,
    reporter: Reporter,
    /// Mean time of a step in microseconds, and steps, of every round so far.
    rounds: Vec<(f64, usize)>,
}

impl Whole {
    /// A trainer before its first step.
    pub fn new(trainee: &dyn Trainee, case: &Case, device: &Device) -> Result<Self> {
        let with = resources(trainee, case, device)?;
        let products = with.products;
        let trainer = Trainer::new(trainee.trainer()?, trainee.vars(device)?, LAST_STEP, serde_json::Value::Null, with)?;
        Ok(Self { trainer, task: trainee.work(case, device, products)?, reporter: Reporter::silent()?, rounds: Vec::new() })
    }

    /// The mean times of a step in the last rounds, as many as were counted, and steps in all of them.
    pub fn last(&self, rounds: usize) -> (Vec<f64>, usize) {
        let last = &self.rounds[self.rounds.len().saturating_sub(rounds)..];
        (last.iter().map(|(us, _)| *us).collect(), last.iter().map(|(_, steps)| steps).sum())
    }

    /// One step, and how long it took.
    pub fn step(&mut self) -> Result<Duration> {
        let before = self.trainer.time();
        // A time limit of nothing ends a run after its next step.
        self.trainer.run(&mut self.task, &mut self.reporter, &Stop::after(Some(Duration::ZERO)))?;
        Ok(self.trainer.time() - before)
    }
}

#[cfg(test)]
impl Whole {
    /// The moving average of the parameters.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        Ok(self.trainer.average()?)
    }
}

#[cfg(test)]
impl Phased {
    /// The moving average of the parameters.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        Ok(self.optimiser.average()?.into_iter().collect())
    }
}

impl Rounds for Whole {
    fn round(&mut self, calls: usize) -> Result<Round> {
        let latencies_us = (0..calls).map(|_| Ok(self.step()?.as_secs_f64() * 1e6)).collect::<Result<Vec<_>>>()?;
        self.rounds.push((stats::mean(&latencies_us), calls));
        Ok(Round { seconds: latencies_us.iter().sum::<f64>() / 1e6, latencies_us })
    }
}

/// The same step with a clock between its parts. On a GPU the device is waited for at each of them.
pub(crate) struct Phased {
    task: Work,
    vars: BTreeMap<String, Var>,
    gradients: Gradients,
    optimiser: Optimiser,
    scale: LossScale,
    schedule: Schedule,
    device: Device,
    dtype: DType,
    products: Products,
    /// Steps so far.
    steps: u64,
    /// The mean of every round so far.
    rounds: Vec<Split>,
}

impl Phased {
    /// Before the first step.
    pub fn new(trainee: &dyn Trainee, case: &Case, device: &Device) -> Result<Self> {
        let Resources { dtype, products, .. } = resources(trainee, case, device)?;
        let (config, vars, task) = (trainee.trainer()?, trainee.vars(device)?, trainee.work(case, device, products)?);
        let mut optimiser = Optimiser::new(config.optimiser, &vars)?;
        optimiser.set_groups(|name, shape| task.group(name, shape))?;
        Ok(Self {
            task,
            gradients: Gradients::zeros(&vars)?,
            optimiser,
            scale: LossScale::of(dtype),
            schedule: config.schedule,
            device: device.clone(),
            dtype,
            products,
            vars,
            steps: 0,
            rounds: Vec::new(),
        })
    }

    /// The median of the last rounds, as many as were counted.
    pub fn last(&self, rounds: usize) -> Split {
        Split::median(&self.rounds[self.rounds.len().saturating_sub(rounds)..])
    }

    fn step(&mut self) -> Result<Split> {
        let mut lap = Lap::start(&self.device)?;
        let learning_rate = self.schedule.at(self.steps, LAST_STEP);
        self.gradients.clear();
        let tensors = self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
        let context = task::Context::of(self.steps, [0, 1], Random::new(0), &Single, self.dtype);
        let batch = self.task.next_batch(&context)?;
        let data = lap.us()?;
        let parameters = Params::given(tensors, &self.device).computing_in(self.dtype);
        let loss = self.products.within(|| self.task.loss(&parameters, &batch, &context))?;
        drop(batch);
        let forward = lap.us()?;
        let told = loss.value.detach().reshape(1)?;
        // Of one rank alone the weight is that of the samples that count.
        let weight = if loss.weight > 0.0 { loss.weight } else { 1.0 };
        let factor = self.scale.factor();
        self.gradients.add(&self.vars, &(&loss.value * (loss.weight * factor))?.backward()?)?;
        drop(loss);
        let backward = lap.us()?;
        self.gradients.divide_by(weight * factor);
        let step = self.optimiser.step(&self.gradients, &told, learning_rate)?;
        self.scale.after(step.updated);
        let optimiser = lap.us()?;
        self.steps += 1;
        Ok(Split { data, forward, backward, optimiser, communication: 0.0 })
    }
}

impl Rounds for Phased {
    fn round(&mut self, calls: usize) -> Result<Round> {
        let splits = (0..calls).map(|_| self.step()).collect::<Result<Vec<_>>>()?;
        self.rounds.push(Split::mean(&splits));
        let latencies_us: Vec<f64> = splits.iter().map(Split::sum).collect();
        Ok(Round { seconds: latencies_us.iter().sum::<f64>() / 1e6, latencies_us })
    }
}

/// Time since the last look, behind all that the device was given.
struct Lap<'a> {
    device: &'a Device,
    last: Instant,
}

impl<'a> Lap<'a> {
    fn start(device: &'a Device) -> Result<Self> {
        device.synchronize().context("the device cannot be waited for")?;
        Ok(Self { device, last: Instant::now() })
    }

    fn us(&mut self) -> Result<f64> {
        self.device.synchronize()?;
        let now = Instant::now();
        let us = (now - self.last).as_secs_f64() * 1e6;
        self.last = now;
        Ok(us)
    }
}
