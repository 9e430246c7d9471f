//! The training loop. A [`Task`] gives losses; the trainer turns them into parameters.
//!
//! One step: gradients of `accumulate` micro batches, norm, clipping, AdamW, moving average; then one look at the device for
//! the loss and the norm. A gradient that is not finite skips the step; `patience` such steps in a row end the run with the tensor's name. Around it: metrics, evaluation
//! with the averaged parameters, checkpoints, stopping on a signal or a time limit.

use crate::checkpoint::{Checkpoint, Retention, Store};
use crate::early_stop::{EarlyStop, Plateau};
use crate::gradients::Gradients;
use crate::metrics::{Reporter, StepFigures};
use crate::optim::{AdamW, Optimiser};
use crate::schedule::Schedule;
use crate::stop::{Reason, Stop};
use candle_core::{Device, Tensor, Var};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// One micro batch's result.
#[derive(Debug)]
pub struct Loss {
    /// The scalar to differentiate: a mean over the samples.
    pub value: Tensor,
    /// Its shares `[k]`, for the metrics: read after the step, together with the loss.
    pub parts: Tensor,
    /// Their names.
    pub names: &'static [&'static str],
    /// Samples in it.
    pub samples: usize,
    /// How long the task waited for its data.
    pub waited: Duration,
}

/// What is trained: a source of losses over parameters that the trainer updates.
pub trait Task {
    /// What a sample is called: `frames`.
    fn unit(&self) -> &'static str;

    /// The loss of the next micro batch, with gradients.
    fn loss(&mut self) -> Result<Loss>;

    /// Drops what it carries between batches, after a step that was not finite.
    fn forget(&mut self) -> Result<()>;

    /// Results of these parameters (the moving average) on held-out data, none without such data; `score` among them decides
    /// which checkpoint is best.
    fn evaluate(&mut self, parameters: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, f64>>;

    /// Carried tensors, and the place in the data.
    fn save(&self) -> Result<(NamedTensors, serde_json::Value)>;

    /// Continues from what [`Self::save`] gave.
    fn restore(&mut self, carried: &NamedTensors, cursor: &serde_json::Value) -> Result<()>;
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
    /// Steps in a row that may be skipped because a gradient is not finite.
    pub patience: u64,
    /// Which checkpoints are kept.
    pub keep: Retention,
    /// When to give up because held-out scores no longer improve.
    pub early_stop: EarlyStop,
    /// The learning rate.
    pub schedule: Schedule,
    /// The optimiser.
    pub optimiser: AdamW,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            accumulate: 1,
            log_every: 10,
            evaluate_every: 0,
            save_every: 200,
            patience: 10,
            keep: Retention::default(),
            early_stop: EarlyStop::default(),
            schedule: Schedule::default(),
            optimiser: AdamW::default(),
        }
    }
}

impl TrainerConfig {
    /// Names the field at fault.
    pub fn validate(&self) -> Result<()> {
        for (field, value) in [("accumulate", self.accumulate as u64), ("log_every", self.log_every), ("patience", self.patience)] {
            if value == 0 {
                return Err(Error::config(format!("trainer.{field}"), "expected at least 1, found 0"));
            }
        }
        self.early_stop.validate()?;
        self.schedule.validate()?;
        self.optimiser.validate()
    }
}

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
    optimiser: Optimiser,
    gradients: Gradients,
    total: u64,
    step: u64,
    skipped: u64,
    skipped_in_row: u64,
    time: Duration,
    loss: f64,
    /// Whether the checkpoint that was resumed still lacks its evaluation.
    owes_evaluation: bool,
    plateau: Plateau,
    store: Option<Store>,
    /// What the checkpoint must agree on to be resumed.
    identity: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counters {
    updates: u64,
    skipped: u64,
    skipped_in_row: u64,
    /// Before this step's evaluation, whose score the manifest holds.
    plateau: Plateau,
    cursor: serde_json::Value,
    identity: serde_json::Value,
}

impl Trainer {
    /// A trainer of `vars` for `total` steps. `identity` is the resolved configuration: a checkpoint with another one is
    /// refused. Nothing is written before [`Self::save_to`].
    pub fn new(config: TrainerConfig, vars: BTreeMap<String, Var>, total: u64, identity: serde_json::Value) -> Result<Self> {
        config.validate()?;
        let optimiser = Optimiser::new(config.optimiser.clone(), &vars)?;
        let gradients = Gradients::zeros(&vars)?;
        let (step, skipped, skipped_in_row, time, loss, store) = (0, 0, 0, Duration::ZERO, f64::NAN, None);
        let (owes_evaluation, plateau) = (false, Plateau::default());
        Ok(Self {
            config,
            vars,
            optimiser,
            gradients,
            total,
            step,
            skipped,
            skipped_in_row,
            time,
            loss,
            owes_evaluation,
            plateau,
            store,
            identity,
        })
    }

    /// Saves checkpoints below `directory`.
    pub fn save_to(&mut self, directory: &Path) -> Result<()> {
        self.store = Some(Store::open(directory.join("checkpoints"), self.config.keep)?);
        Ok(())
    }

    /// Whether there is a checkpoint to continue from.
    pub fn has_checkpoint(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.latest_name().is_some())
    }

    /// Time that the steps took since the trainer was made or resumed: a checkpoint holds nothing that two equal runs would differ in.
    pub fn time(&self) -> Duration {
        self.time
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

    /// Continues from the newest complete checkpoint. Returns the warnings about damaged ones, or `None` when there is
    /// nothing to continue from.
    pub fn resume(&mut self, task: &mut impl Task) -> Result<Option<Vec<String>>> {
        let Some(store) = &self.store else { return Ok(None) };
        let (found, damaged) = store.latest()?;
        let warnings: Vec<String> = damaged.iter().map(|e| format!("passed over a checkpoint: {e}")).collect();
        let Some(checkpoint) = found else { return Ok(None) };
        let counters: Counters = serde_json::from_value(checkpoint.state.clone())
            .map_err(|e| Error::Input(format!("checkpoint of step {}: {e}", checkpoint.step)))?;
        if let Some(difference) = difference("", &counters.identity, &self.identity) {
            return Err(Error::Input(format!("this run cannot continue the checkpoint of step {}: {difference}", checkpoint.step)));
        }
        let parameters = checkpoint.group("parameters")?;
        for (name, var) in &self.vars {
            var.set(&parameters.get(name)?.to_device(var.device())?)?;
        }
        self.optimiser.restore(counters.updates, checkpoint.group("moments")?, checkpoint.group("average")?)?;
        task.restore(checkpoint.group("carried")?, &counters.cursor)?;
        (self.step, self.skipped, self.skipped_in_row) = (checkpoint.step, counters.skipped, counters.skipped_in_row);
        self.plateau = checkpoint.score.map_or(counters.plateau, |score| counters.plateau.after(score, &self.config.early_stop));
        self.owes_evaluation = checkpoint.score.is_none() && self.due(self.config.evaluate_every);
        Ok(Some(warnings))
    }

    /// Trains until the last step, or until `stop` says so.
    pub fn run(&mut self, task: &mut impl Task, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        if std::mem::take(&mut self.owes_evaluation) {
            self.evaluate(task, reporter)?;
        }
        while self.step < self.total {
            if self.config.early_stop.gives_up(&self.plateau) {
                return Ok(Outcome::Stopped(Reason::NoImprovement));
            }
            let figures = self.train_step(task)?;
            let last = self.step == self.total;
            reporter.step(&figures)?;
            let stopped = stop.now();
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

    fn train_step(&mut self, task: &mut impl Task) -> Result<StepFigures> {
        let start = Instant::now();
        let learning_rate = self.config.schedule.at(self.step, self.total);
        let mut figures = StepFigures { step: self.step + 1, learning_rate, ..StepFigures::default() };
        let share = 1.0 / self.config.accumulate as f64;
        self.gradients.clear();
        let (mut told, mut names) = (None::<Tensor>, [].as_slice());
        for _ in 0..self.config.accumulate {
            let loss = task.loss()?;
            figures.samples += loss.samples;
            figures.waited += loss.waited;
            names = loss.names;
            let tell = Tensor::cat(&[&loss.value.detach().reshape(1)?, &loss.parts], 0)?;
            told = Some(told.map_or_else(|| Ok(tell.clone()), |sum| sum + &tell)?);
            self.gradients.add(&self.vars, &(loss.value * share)?.backward()?)?;
        }
        let Some(told) = told else { return Err(Error::config("trainer.accumulate", "expected at least 1, found 0")) };
        let step = self.optimiser.step(&self.gradients, &(told * share)?, learning_rate)?;
        figures.norm = step.norm;
        let mut told = step.figures.into_iter().map(f64::from);
        figures.loss = told.next().unwrap_or(f64::NAN);
        figures.parts = names.iter().copied().zip(told).collect();
        if step.updated {
            self.skipped_in_row = 0;
        } else {
            self.skip(task, figures.loss)?;
        }
        self.step += 1;
        self.loss = figures.loss;
        figures.skipped = self.skipped;
        figures.time = start.elapsed();
        self.time += figures.time;
        Ok(figures)
    }

    fn skip(&mut self, task: &mut impl Task, loss: f64) -> Result<()> {
        self.skipped += 1;
        self.skipped_in_row += 1;
        task.forget()?;
        let culprit =
            self.gradients.not_finite()?.map_or(format!("the loss is {loss}"), |name| format!("the gradient of {name} is not finite"));
        if self.skipped_in_row >= self.config.patience {
            let (step, n) = (self.step + 1, self.skipped_in_row);
            return Err(Error::Input(format!("training stopped at step {step}: {culprit}, {n} steps in a row")));
        }
        eprintln!("warning: step {} skipped: {culprit}", self.step + 1);
        Ok(())
    }

    /// After the step is saved: whatever happens here, no training is lost.
    fn evaluate(&mut self, task: &mut impl Task, reporter: &mut Reporter) -> Result<()> {
        let results = task.evaluate(self.average()?)?;
        if results.is_empty() {
            return Ok(());
        }
        reporter.evaluation(self.step, &results)?;
        let Some(&score) = results.get("score") else { return Ok(()) };
        self.plateau = self.plateau.after(score, &self.config.early_stop);
        self.store.as_ref().map_or(Ok(()), |store| store.set_score(self.step, score))
    }

    fn save(&self, task: &impl Task) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let (carried, cursor) = task.save()?;
        let parameter = |(name, var): (&String, &Var)| Ok((name.clone(), var.as_detached_tensor().to_device(&Device::Cpu)?));
        let parameters = self.vars.iter().map(parameter).collect::<Result<_>>()?;
        let (moments, average) = (self.optimiser.moments()?, self.optimiser.average()?);
        let groups = [("parameters", parameters), ("moments", moments), ("average", average), ("carried", carried)];
        let counters = Counters {
            updates: self.optimiser.updates(),
            skipped: self.skipped,
            skipped_in_row: self.skipped_in_row,
            plateau: self.plateau,
            cursor,
            identity: self.identity.clone(),
        };
        let state = serde_json::to_value(counters).map_err(|e| Error::Input(format!("checkpoint: {e}")))?;
        let tensors = groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect();
        store.save(&Checkpoint { step: self.step, tensors, state, score: None })?;
        Ok(())
    }
}

/// The first place where two JSON values differ, as `a.b: 1 in the checkpoint, 2 now`.
fn difference(path: &str, saved: &serde_json::Value, now: &serde_json::Value) -> Option<String> {
    if let (Some(a), Some(b)) = (saved.as_object(), now.as_object()) {
        let null = serde_json::Value::Null;
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        return keys.into_iter().find_map(|key| {
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            difference(&inner, a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null))
        });
    }
    (saved != now).then(|| format!("{path}: {saved} in the checkpoint, {now} now"))
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

    /// Fits y = 2 x: one parameter, the place in the data is a counter, the carried tensor an exponential sum.
    struct Line {
        w: Var,
        place: u64,
        carried: Tensor,
        poison: Option<u64>,
        forgotten: usize,
    }

    impl Line {
        fn new(w: &Var) -> Self {
            Self {
                w: w.clone(),
                place: 0,
                carried: Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap(),
                poison: None,
                forgotten: 0,
            }
        }
    }

    impl Task for Line {
        fn unit(&self) -> &'static str {
            "samples"
        }
        fn loss(&mut self) -> Result<Loss> {
            let x = 1.0 + (self.place as f64 * 0.7).sin() + self.carried.sum_all()?.to_scalar::<f32>()? as f64 * 0.1;
            self.carried = ((&self.carried * 0.5)? + x)?;
            let poison = if self.poison.is_some_and(|p| self.place >= p) { f64::NAN } else { 1.0 };
            self.place += 1;
            let value = ((self.w.affine(x, -2.0 * x)?).sqr()?.sum_all()? * poison)?;
            let parts = Tensor::new(&[x as f32], &Device::Cpu)?;
            Ok(Loss { value, parts, names: &["x"], samples: 1, waited: Duration::ZERO })
        }
        fn forget(&mut self) -> Result<()> {
            self.forgotten += 1;
            Ok(())
        }
        fn evaluate(&mut self, parameters: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, f64>> {
            let w = parameters["w"].to_vec1::<f32>()?[0];
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
        let optimiser = AdamW { weight_decay: 0.0, ..AdamW::default() };
        let schedule = Schedule { peak: 0.1, warmup: 5, ..Schedule::default() };
        TrainerConfig { save_every: 7, evaluate_every: 50, accumulate: 2, patience: 3, optimiser, schedule, ..TrainerConfig::default() }
    }

    fn trainer(w: &Var) -> Trainer {
        Trainer::new(config(), [("w".to_owned(), w.clone())].into(), 60, serde_json::json!({"seed": 1})).unwrap()
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
        assert_eq!(run(&mut trainer(&w), &mut Line::new(&w)).unwrap(), Outcome::Finished);
        let found = w.to_vec1::<f32>().unwrap()[0];
        assert!((found - 2.0).abs() < 5e-2, "expected 2, found {found}");
    }

    #[test]
    fn a_stopped_run_continues_bit_for_bit() {
        let whole = var();
        run(&mut trainer(&whole), &mut Line::new(&whole)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut steps = 0;
        let parts = loop {
            let w = var();
            let (mut t, mut task) = (trainer(&w), Line::new(&w));
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
    fn no_improvement_ends_the_run_and_a_resumed_one_at_the_same_step() {
        let stalled = |directory: &Path, steps: usize| {
            let w = var();
            let config = TrainerConfig { evaluate_every: 2, early_stop: EarlyStop { patience: 3, min_delta: 10.0 }, ..config() };
            let mut t = Trainer::new(config, [("w".to_owned(), w.clone())].into(), 60, serde_json::Value::Null).unwrap();
            t.save_to(directory).unwrap();
            let mut task = Line::new(&w);
            let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
            for _ in 0..steps {
                t.resume(&mut task).unwrap();
                let outcome = t.run(&mut task, &mut reporter, &Stop::after((steps > 1).then_some(Duration::ZERO))).unwrap();
                if outcome == Outcome::Stopped(Reason::NoImprovement) {
                    break;
                }
            }
            t.step()
        };
        let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        // Evaluations after steps 2, 4, 6 and 8: the first score is the best, none after it is better by 10.
        assert_eq!(stalled(whole.path(), 1), 8);
        assert_eq!(stalled(whole.path(), 1), 8, "resumed, it does not train on");
        assert_eq!(stalled(parts.path(), 60), 8);
    }

    #[test]
    fn another_configuration_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let w = var();
        let mut first = trainer(&w);
        first.save_to(dir.path()).unwrap();
        run(&mut first, &mut Line::new(&w)).unwrap();
        let mut other = Trainer::new(config(), [("w".to_owned(), w.clone())].into(), 60, serde_json::json!({"seed": 2})).unwrap();
        other.save_to(dir.path()).unwrap();
        let error = other.resume(&mut Line::new(&w)).unwrap_err().to_string();
        assert!(error.ends_with("seed: 1 in the checkpoint, 2 now"), "{error}");
    }

    #[test]
    fn gradients_that_are_not_finite_skip_and_then_stop() {
        let w = var();
        let mut task = Line { poison: Some(20), ..Line::new(&w) };
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
