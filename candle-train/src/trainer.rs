//! The training loop. A [`Task`] gives losses; the trainer turns them into parameters.
//!
//! One step: gradients of `accumulate` micro batches, their sum over the ranks, norm, clipping, update, moving average; then one
//! look at the device for the loss and the norm. A gradient that is not finite skips the step; `patience` such steps in a row end
//! the run with the tensor's name. Around it: metrics, evaluation with the averaged parameters, checkpoints, stopping on a signal
//! or a time limit. With several ranks all of them do the same; rank 0 alone writes.

use crate::checkpoint::{Checkpoint, Retention, Store};
use crate::gradients::Gradients;
use crate::identity::{Difference, agree, check_replicas, difference};
use crate::metrics::{Reporter, StepFigures};
use crate::optim::{Optimiser, OptimiserConfig};
use crate::overlap::Flight;
use crate::parallel::{Communicator, Single};
use crate::replica::{self, Shared};
use crate::scale::LossScale;
use crate::schedule::Schedule;
use crate::stop::{Reason, Stop};
use crate::task::{Loss, Task};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::nn::Params;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What matrices are rounded to while they are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// Not at all.
    #[default]
    F32,
    /// To the 8-bit grid that they will be stored in: quantisation-aware training.
    Q8,
}

/// How to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// Micro batches per step.
    pub accumulate: usize,
    /// Steps between lines of metrics.
    pub log_every: u64,
    /// Steps between evaluations; 0 evaluates at the end only.
    pub evaluate_every: u64,
    /// Steps between checkpoints; 0 saves at the end only.
    pub save_every: u64,
    /// Steps between comparisons of the ranks' parameters.
    pub compare_every: u64,
    /// Megabytes of gradients that travel between ranks at a time.
    pub bucket_mb: f64,
    /// Whether they travel while the backward pass goes on. Pays where the network is slow and processors are free.
    pub overlap: bool,
    /// Steps in a row that may be skipped because a gradient is not finite.
    pub patience: u64,
    /// What matrices are rounded to while they are trained.
    pub weights: Weights,
    /// Which checkpoints are kept.
    pub keep: Retention,
    /// The learning rate.
    pub schedule: Schedule,
    /// The optimiser.
    pub optimiser: OptimiserConfig,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            accumulate: 1,
            log_every: 10,
            evaluate_every: 0,
            save_every: 200,
            compare_every: 200,
            bucket_mb: 25.0,
            overlap: false,
            patience: 10,
            weights: Weights::default(),
            keep: Retention::default(),
            schedule: Schedule::default(),
            optimiser: OptimiserConfig::default(),
        }
    }
}

impl TrainerConfig {
    /// Without what changes no parameter: what a checkpoint must agree on.
    #[must_use]
    pub fn identity(&self) -> Self {
        let Self { log_every, evaluate_every, save_every, compare_every, bucket_mb, overlap, keep, .. } = Self::default();
        Self { log_every, evaluate_every, save_every, compare_every, bucket_mb, overlap, keep, ..self.clone() }
    }

    /// Names the field at fault.
    pub fn validate(&self) -> Result<()> {
        let least_one = [
            ("accumulate", self.accumulate as u64),
            ("log_every", self.log_every),
            ("compare_every", self.compare_every),
            ("patience", self.patience),
        ];
        if let Some((field, _)) = least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::config(format!("trainer.{field}"), "expected at least 1, found 0"));
        }
        if !(1e-6..=1024.0).contains(&self.bucket_mb) {
            return Err(Error::config("trainer.bucket_mb", format!("expected 0.000001 to 1024, found {}", self.bucket_mb)));
        }
        self.schedule.validate()?;
        self.optimiser.validate()
    }
}

/// What a run computes with. None of it belongs to what a checkpoint must agree on.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Where the parameters lie.
    pub device: Device,
    /// What losses are computed in: f32, or bf16 or f16 with the parameters in f32 (on the CPU, which is not fast in those, that is
    /// emulated).
    pub dtype: DType,
    /// Who trains together.
    pub ranks: Arc<dyn Communicator>,
}

impl Default for Resources {
    /// The CPU, f32, one rank.
    fn default() -> Self {
        Self { device: Device::Cpu, dtype: DType::F32, ranks: Arc::new(Single) }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// It stopped early and can be resumed.
    Stopped(Reason),
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
    store: Option<Store>,
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
}

/// A checkpoint beside its tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    updates: u64,
    counters: Counters,
    /// Ranks of the run that saved: another number may resume.
    ranks: usize,
    cursor: serde_json::Value,
    identity: serde_json::Value,
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
        let counters = Counters { skipped: 0, skipped_in_row: 0, scale: LossScale::of(with.dtype) };
        let (step, time, loss, owes_evaluation, store) = (0, Duration::ZERO, f64::NAN, false, None);
        Ok(Self { config, vars, with, optimiser, gradients, total, counters, step, time, loss, owes_evaluation, store, identity })
    }

    /// Saves checkpoints below `directory`, on rank 0.
    pub fn save_to(&mut self, directory: &Path) -> Result<()> {
        if self.leads() {
            self.store = Some(Store::open(directory.join("checkpoints"), self.config.keep)?);
        }
        Ok(())
    }

    /// Whether this is the rank that writes.
    fn leads(&self) -> bool {
        self.with.ranks.rank() == 0
    }

    /// Whether there is a checkpoint to continue from.
    pub fn has_checkpoint(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.latest_name().is_some())
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

    /// Continues from the newest complete checkpoint that rank 0 finds. Returns the warnings about damaged ones, or `None` when
    /// there is nothing to continue from.
    pub fn resume(&mut self, task: &mut impl Task) -> Result<Option<Vec<String>>> {
        let ranks = self.with.ranks.clone();
        let (found, damaged) = match &self.store {
            Some(store) => store.latest()?,
            None => (None, Vec::new()),
        };
        let Some(checkpoint) = replica::broadcast_checkpoint(&*ranks, found)? else { return Ok(None) };
        let saved: Saved = serde_json::from_value(checkpoint.state.clone())
            .map_err(|e| Error::Input(format!("checkpoint of step {}: {e}", checkpoint.step)))?;
        if let Some(Difference { path, values: [then, now] }) = difference(&saved.identity, &self.identity) {
            let what = format!("{path}: {then} in the checkpoint, {now} now");
            return Err(Error::Input(format!("this run cannot continue the checkpoint of step {}: {what}", checkpoint.step)));
        }
        let parameters = checkpoint.group("parameters")?;
        for (name, var) in &self.vars {
            var.set(&parameters.get(name)?.to_device(var.device())?)?;
        }
        self.optimiser.restore(saved.updates, checkpoint.group("moments")?, checkpoint.group("average")?)?;
        task.restore(&replica::own_rows(&*ranks, checkpoint.group("carried")?)?, &saved.cursor)?;
        (self.step, self.counters) = (checkpoint.step, saved.counters);
        self.owes_evaluation = checkpoint.score.is_none() && self.due(self.config.evaluate_every);
        Ok(Some(damaged.iter().map(|e| format!("passed over a checkpoint: {e}")).collect()))
    }

    /// Trains until the last step, or until `stop` of any rank says so.
    pub fn run(&mut self, task: &mut impl Task, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        replica::broadcast_parameters(&*self.with.ranks, &self.vars)?;
        self.compare()?;
        if std::mem::take(&mut self.owes_evaluation) {
            self.evaluate(task, reporter)?;
        }
        while self.step < self.total {
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
                self.save(task)?;
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
        figures.communicating += waiting.elapsed();
        self.gradients.divide_by(weight * self.counters.scale.factor());
        let step = self.optimiser.step(&self.gradients, &(told * (1.0 / weight))?, learning_rate)?;
        (figures.norm, figures.samples) = (step.norm, samples);
        let mut told = step.figures.into_iter().map(f64::from);
        figures.loss = told.next().unwrap_or(f64::NAN);
        figures.parts = names.iter().copied().zip(told).collect();
        figures.scale = self.counters.scale.factor();
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
            figures.communicating += waiting.elapsed();
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
    fn evaluate(&self, task: &mut impl Task, reporter: &mut Reporter) -> Result<()> {
        let results = task.evaluate(&self.parameters(self.average()?), &*self.with.ranks)?;
        if results.is_empty() || !self.leads() {
            return Ok(());
        }
        reporter.evaluation(self.step, &results)?;
        match (&self.store, results.get("score")) {
            (Some(store), Some(score)) => store.set_score(self.step, *score),
            _ => Ok(()),
        }
    }

    fn save(&self, task: &impl Task) -> Result<()> {
        let (carried, cursor) = task.save()?;
        let carried = replica::all_rows(&*self.with.ranks, carried)?;
        let Some(store) = &self.store else { return Ok(()) };
        let parameter = |(name, var): (&String, &Var)| Ok((name.clone(), var.as_detached_tensor().to_device(&Device::Cpu)?));
        let parameters = self.vars.iter().map(parameter).collect::<Result<_>>()?;
        let (moments, average) = (self.optimiser.moments()?, self.optimiser.average()?);
        let groups = [("parameters", parameters), ("moments", moments), ("average", average), ("carried", carried)];
        let (updates, counters, ranks) = (self.optimiser.updates(), self.counters, self.with.ranks.size());
        let state = serde_json::to_value(Saved { updates, counters, ranks, cursor, identity: self.identity.clone() })
            .map_err(|e| Error::Input(format!("checkpoint: {e}")))?;
        let tensors = groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect();
        store.save(&Checkpoint { step: self.step, tensors, state, score: None })?;
        Ok(())
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
mod tests {
    use super::*;
    use candle_models::nn::Init;
    use candle_models::tensors::NamedTensors;

    /// Fits y = 2 x: one parameter, the place in the data is a counter, the carried tensor an exponential sum.
    struct Line {
        place: u64,
        carried: Tensor,
        poison: Option<u64>,
        forgotten: usize,
    }

    impl Line {
        fn new() -> Self {
            let carried = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
            Self { place: 0, carried, poison: None, forgotten: 0 }
        }
    }

    impl Task for Line {
        fn unit(&self) -> &'static str {
            "samples"
        }
        fn loss(&mut self, parameters: &Params) -> Result<Loss> {
            let w = parameters.get("w", &[1], Init::Constant(0.0))?;
            let x = 1.0 + (self.place as f64 * 0.7).sin() + self.carried.sum_all()?.to_scalar::<f32>()? as f64 * 0.1;
            self.carried = ((&self.carried * 0.5)? + x)?;
            let poison = if self.poison.is_some_and(|p| self.place >= p) { f64::NAN } else { 1.0 };
            self.place += 1;
            let value = ((w.affine(x, -2.0 * x)?).sqr()?.sum_all()? * poison)?;
            let parts = Tensor::new(&[x as f32], &Device::Cpu)?;
            Ok(Loss { value, parts, names: &["x"], weight: 1.0, samples: 1, waited: Duration::ZERO })
        }
        fn forget(&mut self) -> Result<()> {
            self.forgotten += 1;
            Ok(())
        }
        fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<BTreeMap<String, f64>> {
            let w = parameters.get("w", &[1], Init::Constant(0.0))?.to_vec1::<f32>()?[0];
            Ok([("score".to_owned(), f64::from((w - 2.0).abs()))].into())
        }
        fn save(&self) -> Result<(NamedTensors, serde_json::Value)> {
            Ok(([("sum".to_owned(), self.carried.clone())].into_iter().collect(), self.place.into()))
        }
        fn restore(&mut self, carried: &NamedTensors, cursor: &serde_json::Value) -> Result<()> {
            self.carried = carried.get("sum")?.clone();
            self.place = cursor.as_u64().unwrap();
            Ok(())
        }
    }

    fn config() -> TrainerConfig {
        let optimiser = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::default() };
        let schedule = Schedule { peak: 0.1, warmup: 5, ..Schedule::default() };
        TrainerConfig { save_every: 7, evaluate_every: 50, accumulate: 2, patience: 3, optimiser, schedule, ..TrainerConfig::default() }
    }

    fn trainer(w: &Var) -> Trainer {
        Trainer::new(config(), [("w".to_owned(), w.clone())].into(), 60, serde_json::json!({"seed": 1}), Resources::default()).unwrap()
    }

    fn var() -> Var {
        Var::new(&[0f32], &Device::Cpu).unwrap()
    }

    fn run(trainer: &mut Trainer, task: &mut Line) -> Result<Outcome> {
        let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
        trainer.run(task, &mut reporter, &Stop::after(None))
    }

    #[test]
    fn learns_a_line() {
        let w = var();
        assert_eq!(run(&mut trainer(&w), &mut Line::new()).unwrap(), Outcome::Finished);
        let found = w.to_vec1::<f32>().unwrap()[0];
        assert!((found - 2.0).abs() < 5e-2, "expected 2, found {found}");
    }

    #[test]
    fn a_stopped_run_continues_bit_for_bit() {
        let whole = var();
        run(&mut trainer(&whole), &mut Line::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut steps = 0;
        let parts = loop {
            let w = var();
            let (mut t, mut task) = (trainer(&w), Line::new());
            t.save_to(dir.path()).unwrap();
            t.resume(&mut task).unwrap();
            assert_eq!(t.step(), steps, "one more step than the run before");
            let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
            let outcome = t.run(&mut task, &mut reporter, &Stop::after(Some(Duration::ZERO))).unwrap();
            steps += 1;
            if outcome == Outcome::Finished {
                break w;
            }
        };
        assert_eq!(steps, 60);
        assert_eq!(whole.to_vec1::<f32>().unwrap(), parts.to_vec1::<f32>().unwrap());
    }

    #[test]
    fn another_configuration_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let w = var();
        let mut first = trainer(&w);
        first.save_to(dir.path()).unwrap();
        run(&mut first, &mut Line::new()).unwrap();
        let mut other =
            Trainer::new(config(), [("w".to_owned(), w.clone())].into(), 60, serde_json::json!({"seed": 2}), Resources::default()).unwrap();
        other.save_to(dir.path()).unwrap();
        let error = other.resume(&mut Line::new()).unwrap_err().to_string();
        assert!(error.ends_with("seed: 1 in the checkpoint, 2 now"), "{error}");
    }

    #[test]
    fn gradients_that_are_not_finite_skip_and_then_stop() {
        let w = var();
        let mut task = Line { poison: Some(20), ..Line::new() };
        let error = run(&mut trainer(&w), &mut task).unwrap_err().to_string();
        assert_eq!(error, "training stopped at step 13: the gradient of w is not finite, 3 steps in a row");
        assert_eq!(task.forgotten, 3);
        assert!(w.to_vec1::<f32>().unwrap()[0].is_finite());
    }

    #[test]
    fn zero_where_it_makes_no_sense_is_named() {
        let error = TrainerConfig { accumulate: 0, ..TrainerConfig::default() }.validate().unwrap_err().to_string();
        assert_eq!(error, "config: trainer.accumulate: expected at least 1, found 0");
    }
}
