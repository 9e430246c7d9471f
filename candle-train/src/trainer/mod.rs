//! The training loop. A [`Task`] gives losses; the trainer turns them into parameters.
//!
//! One step: gradients of `accumulate` micro batches, their sum over the ranks, norm, clipping, update, moving average; then one
//! look at the device for the loss and the norm. A gradient that is not finite skips the step; `patience` such steps in a row end
//! the run with the tensor's name. Around it: metrics, evaluation with the averaged parameters, checkpoints, stopping on a signal
//! or a time limit. With several ranks all of them do the same; rank 0 alone writes.

mod config;
mod recovery;

pub use config::{Resources, TrainerConfig, Weights};

use crate::checkpoint::Writer;
use crate::early_stop::Plateau;
use crate::gradients::Gradients;
use crate::identity::{agree, check_replicas};
use crate::metrics::{Reporter, StepFigures};
use crate::optim::Optimiser;
use crate::overlap::Flight;
use crate::replica::{self, Shared};
use crate::scale::LossScale;
use crate::stop::{Reason, Stop};
use crate::task::{Loss, Task};
use candle_core::{Tensor, Var};
use candle_models::nn::Params;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// It stopped before the last step.
    Stopped(Reason),
}

impl Outcome {
    /// Whether the run has done what it was for: there is nothing to resume.
    pub fn done(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped(Reason::NoImprovement))
    }
}

/// Parameters in training.
#[derive(Debug)]
pub struct Trainer {
    config: TrainerConfig,
    vars: BTreeMap<String, Var>,
    with: Resources,
    optimiser: Optimiser,
    gradients: Gradients,
    total: u64,
    counters: Counters,
    step: u64,
    time: Duration,
    loss: f64,
    /// Whether the checkpoint that was resumed still lacks its evaluation.
    owes_evaluation: bool,
    saves: Option<Writer>,
    /// What the checkpoint must agree on to be resumed.
    identity: serde_json::Value,
}

/// What changes from step to step beside tensors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counters {
    skipped: u64,
    skipped_in_row: u64,
    scale: LossScale,
    plateau: Plateau,
}

impl Trainer {
    /// A trainer of `vars` for `total` steps. `identity` is the resolved configuration: a checkpoint with another one is
    /// refused. Nothing is written before [`Self::save_to`].
    ///
    /// # Errors
    /// If a field is out of range, or another rank has another identity: all ranks have to call this.
    pub fn new(
        config: TrainerConfig,
        vars: BTreeMap<String, Var>,
        total: u64,
        identity: serde_json::Value,
        with: Resources,
    ) -> Result<Self> {
        config.validate()?;
        agree(&*with.ranks, &identity)?;
        let optimiser = Optimiser::new(config.optimiser.clone(), &vars)?;
        let gradients = Gradients::in_buckets(&vars, (config.bucket_mb * 1e6 / 4.0) as usize)?;
        let counters = Counters { skipped: 0, skipped_in_row: 0, scale: LossScale::of(with.dtype), plateau: Plateau::default() };
        let (step, time, loss, owes_evaluation, saves) = (0, Duration::ZERO, f64::NAN, false, None);
        Ok(Self { config, vars, with, optimiser, gradients, total, counters, step, time, loss, owes_evaluation, saves, identity })
    }

    /// Whether this is the rank that writes.
    fn leads(&self) -> bool {
        self.with.ranks.rank() == 0
    }

    /// Time that the steps took since the trainer was made or resumed: a checkpoint holds nothing that two equal runs would differ in.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// How it trains.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// What it computes with.
    pub fn resources(&self) -> &Resources {
        &self.with
    }

    /// Steps of the run.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The loss of the last step; not a number before the first.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// The moving average of the parameters: what is evaluated and shipped.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        Ok(self.optimiser.average()?.into_iter().collect())
    }

    /// Parameters as losses see them.
    pub fn parameters(&self, tensors: BTreeMap<String, Tensor>) -> Params {
        let params = Params::given(tensors, &self.with.device);
        match self.config.weights {
            Weights::F32 => params,
            Weights::Q8 => params.rounded_to_8_bits(),
        }
    }

    /// Trains until the last step, or until `stop` of any rank says so. A checkpoint that cannot be saved is a warning while there are
    /// others to come, and an error at the end.
    pub fn run(&mut self, task: &mut impl Task, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        replica::broadcast_parameters(&*self.with.ranks, &self.vars)?;
        self.compare()?;
        let outcome = self.steps(task, reporter, stop)?;
        self.saves.as_mut().map_or(Ok(()), Writer::finish)?;
        Ok(outcome)
    }

    fn steps(&mut self, task: &mut impl Task, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        if std::mem::take(&mut self.owes_evaluation) {
            self.evaluate(task, reporter)?;
        }
        while self.step < self.total {
            if self.config.early_stop.gives_up(&self.counters.plateau) {
                return Ok(Outcome::Stopped(Reason::NoImprovement));
            }
            let (figures, stopped) = self.train_step(task, stop)?;
            let last = self.step == self.total;
            if self.leads() {
                reporter.step(&figures)?;
            }
            if self.due(self.config.compare_every) {
                self.compare()?;
            }
            let (evaluate, save) = (self.due(self.config.evaluate_every) && stopped.is_none(), self.due(self.config.save_every));
            if save || evaluate || stopped.is_some() {
                self.save(task, reporter)?;
            }
            if evaluate {
                self.evaluate(task, reporter)?;
            }
            if let Some(reason) = stopped.filter(|_| !last) {
                return Ok(Outcome::Stopped(reason));
            }
        }
        Ok(Outcome::Finished)
    }

    /// Whether something that happens every so many steps, and at the end, happens after this one.
    fn due(&self, every: u64) -> bool {
        self.step == self.total || (every > 0 && self.step.is_multiple_of(every))
    }

    fn train_step(&mut self, task: &mut impl Task, stop: &Stop) -> Result<(StepFigures, Option<Reason>)> {
        let start = Instant::now();
        let learning_rate = self.config.schedule.at(self.step, self.total);
        let mut figures = StepFigures { step: self.step + 1, learning_rate, ..StepFigures::default() };
        self.gradients.clear();
        let (mut told, mut names, mut weight) = (None::<Tensor>, [].as_slice(), 0.0);
        for micro in 1..=self.config.accumulate {
            let loss = self.micro_batch(task, micro, &mut figures)?;
            (names, weight) = (loss.names, weight + loss.weight);
            let tell = (Tensor::cat(&[&loss.value.detach().reshape(1)?, &loss.parts], 0)? * loss.weight)?;
            told = Some(told.map_or_else(|| Ok(tell.clone()), |sum| sum + &tell)?);
        }
        let Some(told) = told else { return Err(Error::config("trainer.accumulate", "expected at least 1, found 0")) };
        let waiting = Instant::now();
        let mine = Shared { told, weight, samples: figures.samples, stop: stop.now() };
        let Shared { told, weight, samples, stop } = replica::share_figures(&*self.with.ranks, &mut self.gradients, mine)?;
        figures.communicated += waiting.elapsed();
        // A batch in which nothing counts has gradients of zero, not of zero over zero.
        let weight = if weight > 0.0 { weight } else { 1.0 };
        self.gradients.divide_by(weight * self.counters.scale.factor());
        let step = self.optimiser.step(&self.gradients, &(told * (1.0 / weight))?, learning_rate)?;
        (figures.norm, figures.samples) = (step.norm, samples);
        let mut told = step.figures.into_iter().map(f64::from);
        figures.loss = told.next().unwrap_or(f64::NAN);
        figures.parts = names.iter().copied().zip(told).collect();
        figures.scale = Some(self.counters.scale.factor());
        let halved = self.counters.scale.after(step.updated);
        if step.updated {
            self.counters.skipped_in_row = 0;
        } else {
            self.skip(task, figures.loss, halved)?;
        }
        self.step += 1;
        self.loss = figures.loss;
        (figures.skipped, figures.ranks) = (self.counters.skipped, self.with.ranks.size());
        figures.time = start.elapsed();
        self.time += figures.time;
        Ok((figures, stop))
    }

    /// Forward and backward of one micro batch. After the last one the gradients are the sum over all ranks.
    fn micro_batch(&mut self, task: &mut impl Task, micro: usize, figures: &mut StepFigures) -> Result<Loss> {
        let (ranks, last) = (self.with.ranks.clone(), micro == self.config.accumulate && self.with.ranks.size() > 1);
        let flight = if last && self.config.overlap { Flight::start(&mut self.gradients, &self.vars, &ranks)? } else { None };
        let tensors = || self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
        let (flight, tensors) = flight.map_or_else(|| (None, tensors()), |(flight, hooked)| (Some(flight), hooked));
        let loss = task.loss(&self.parameters(tensors).computing_in(self.with.dtype))?;
        figures.samples += loss.samples;
        figures.waited += loss.waited;
        let gradients = (&loss.value * (loss.weight * self.counters.scale.factor()))?.backward()?;
        let waiting = Instant::now();
        match flight {
            Some(flight) => flight.land(&mut self.gradients)?,
            None => {
                self.gradients.add(&self.vars, &gradients)?;
                if last {
                    self.gradients.reduce(&*ranks)?;
                }
            }
        }
        if last {
            figures.communicated += waiting.elapsed();
        }
        Ok(loss)
    }

    /// Notes a step that was not finite. Where the loss scale was to blame for it, it is not one of those that end a run.
    fn skip(&mut self, task: &mut impl Task, loss: f64, scale_halved: bool) -> Result<()> {
        self.counters.skipped += 1;
        task.forget()?;
        if scale_halved {
            return Ok(());
        }
        self.counters.skipped_in_row += 1;
        let culprit =
            self.gradients.not_finite()?.map_or(format!("the loss is {loss}"), |name| format!("the gradient of {name} is not finite"));
        if self.counters.skipped_in_row >= self.config.patience {
            let (step, in_row) = (self.step + 1, self.counters.skipped_in_row);
            return Err(Error::Input(format!("training stopped at step {step}: {culprit}, {in_row} steps in a row")));
        }
        if self.leads() {
            eprintln!("warning: step {} skipped: {culprit}", self.step + 1);
        }
        Ok(())
    }

    /// Checks that all ranks have the same parameters.
    fn compare(&self) -> Result<()> {
        match self.with.ranks.size() {
            1 => Ok(()),
            _ => check_replicas(&*self.with.ranks, self.step, replica::checksum(&self.vars)?),
        }
    }

    /// After the step is saved: whatever happens here, no training is lost.
    fn evaluate(&mut self, task: &mut impl Task, reporter: &mut Reporter) -> Result<()> {
        let results = task.evaluate(&self.parameters(self.average()?), &*self.with.ranks)?;
        if results.is_empty() {
            return Ok(());
        }
        if self.leads() {
            reporter.evaluation(self.step, &results)?;
        }
        let Some(&score) = results.get("score") else { return Ok(()) };
        self.counters.plateau = self.counters.plateau.after(score, &self.config.early_stop);
        self.saves.as_mut().map_or(Ok(()), |saves| saves.set_score(self.step, score))
    }
}

/// Runs `f` on a thread with a stack for deep graphs: Candle walks and drops the graph of an unroll by recursion.
pub fn with_large_stack<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    const STACK_BYTES: usize = 1 << 30; // Reserved, not resident: pages are taken as the recursion reaches them.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("training".into()).stack_size(STACK_BYTES).spawn_scoped(scope, f);
        let thread = thread.map_err(|e| Error::Input(format!("cannot start the training thread: {e}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
