use super::*;
use crate::early_stop::EarlyStop;
use crate::optim::OptimiserConfig;
use crate::schedule::Schedule;
use crate::task::{Communicator, Evaluation, Metric, SavedFiles, StateFiles, TaskState};
use candle_core::{DType, Device};
use candle_models::nn::Init;
use std::path::Path;

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
    type Batch = ();
    fn next_batch(&mut self, _: &Context) -> Result<()> {
        Ok(())
    }
    fn loss(&mut self, parameters: &Params, (): &(), _: &Context) -> Result<Loss> {
        let w = parameters.get("w", &[1], Init::Constant(0.0))?;
        let x = 1.0 + (self.place as f64 * 0.7).sin() + self.carried.sum_all()?.to_scalar::<f32>()? as f64 * 0.1;
        self.carried = ((&self.carried * 0.5)? + x)?;
        let poison = if self.poison.is_some_and(|p| self.place >= p) { f64::NAN } else { 1.0 };
        self.place += 1;
        let value = ((w.affine(x, -2.0 * x)?).sqr()?.sum_all()? * poison)?;
        let metrics = vec![Metric::mean(&["x"], Tensor::new(&[x as f32], &Device::Cpu)?)];
        Ok(Loss { metrics, ..Loss::new(value, 1) })
    }
    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        self.forgotten += usize::from(!step.updated);
        Ok(())
    }
    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        let w = parameters.get("w", &[1], Init::Constant(0.0))?.to_vec1::<f32>()?[0];
        Ok(Evaluation::new(Score::minimise(f64::from((w - 2.0).abs())), []))
    }
    fn save(&mut self, _: &mut StateFiles) -> Result<TaskState> {
        let rows = [("sum".to_owned(), self.carried.clone())].into_iter().collect();
        Ok(TaskState { rows, cursor: self.place.into(), ..TaskState::default() })
    }
    fn restore(&mut self, state: &TaskState, _: &SavedFiles) -> Result<()> {
        self.carried = state.rows.get("sum")?.clone();
        self.place = state.cursor()?;
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
fn no_improvement_ends_the_run_and_a_resumed_one_at_the_same_step() {
    let stalled = |directory: &Path, steps: usize| {
        let w = var();
        let config = TrainerConfig { evaluate_every: 2, early_stop: EarlyStop { patience: 3, min_delta: 10.0 }, ..config() };
        let mut t = Trainer::new(config, [("w".to_owned(), w.clone())].into(), 60, serde_json::Value::Null, Resources::default()).unwrap();
        t.save_to(directory).unwrap();
        let mut task = Line::new();
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

/// Like [`Line`], with scores of which the second is the best, whatever was learnt.
struct Peak {
    line: Line,
    /// The parameter at each evaluation.
    evaluated: Vec<f32>,
}

impl Task for Peak {
    type Batch = ();
    fn next_batch(&mut self, _: &Context) -> Result<()> {
        Ok(())
    }
    fn loss(&mut self, parameters: &Params, batch: &(), context: &Context) -> Result<Loss> {
        self.line.loss(parameters, batch, context)
    }
    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        self.evaluated.push(parameters.get("w", &[1], Init::Constant(0.0))?.to_vec1::<f32>()?[0]);
        Ok(Evaluation::new(Score::maximise(if self.evaluated.len() == 2 { 1.0 } else { 0.5 }), [("accuracy", 0.5)]))
    }
    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        self.line.save(files)
    }
    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        self.line.restore(state, files)
    }
}

#[test]
fn a_run_that_stops_early_ships_the_parameters_with_the_best_score() {
    let config = TrainerConfig { evaluate_every: 2, early_stop: EarlyStop { patience: 3, min_delta: 0.0 }, ..config() };
    let trainer =
        || Trainer::new(config.clone(), [("w".to_owned(), var())].into(), 60, serde_json::Value::Null, Resources::default()).unwrap();
    let run = |trainer: &mut Trainer, task: &mut Peak| {
        let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
        let outcome = trainer.run(task, &mut reporter, &Stop::after(None)).unwrap();
        assert_eq!((outcome, trainer.step()), (Outcome::Stopped(Reason::NoImprovement), 10));
        trainer.shipped(outcome).unwrap()
    };
    let shipped = |(step, parameters): (u64, BTreeMap<String, Tensor>)| (step, parameters["w"].to_vec1::<f32>().unwrap()[0]);
    let new = || Peak { line: Line::new(), evaluated: Vec::new() };
    let (mut trainer_, mut task) = (trainer(), new());
    let found = shipped(run(&mut trainer_, &mut task));
    assert!(found == (4, task.evaluated[1]) && found.1 != task.evaluated[4], "{found:?} of {:?}", task.evaluated);
    assert_eq!(shipped(trainer_.shipped(Outcome::Finished).unwrap()), (10, task.evaluated[4]));
    // With checkpoints, and from them once more.
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (mut trainer, mut task) = (trainer(), new());
        trainer.save_to(dir.path()).unwrap();
        trainer.resume(&mut task).unwrap();
        assert_eq!(shipped(run(&mut trainer, &mut task)), found);
    }
    let error =
        TrainerConfig { keep: crate::checkpoint::Retention { best: 0, ..config.keep }, ..config }.validate().unwrap_err().to_string();
    assert!(error.starts_with("config: trainer.keep.best: "), "{error}");
}

#[test]
fn a_budget_of_samples_ends_with_the_step_that_reaches_it() {
    let vars = || BTreeMap::from([("w".to_owned(), var())]);
    let trainer = |budget| Trainer::new(config(), vars(), budget, serde_json::Value::Null, Resources::default()).unwrap();
    let run = |trainer: &mut Trainer, limit: Option<Duration>| {
        let mut reporter = Reporter::new(None, 0, trainer.total(), 10, "samples").unwrap();
        let mut task = Line::new();
        trainer.resume(&mut task).unwrap();
        let outcome = trainer.run(&mut task, &mut reporter, &Stop::after(limit)).unwrap();
        (outcome, trainer.step(), trainer.average().unwrap()["w"].to_vec1::<f32>().unwrap())
    };
    // Two micro batches of a sample each.
    let whole = run(&mut trainer(Budget::Samples(13)), None);
    assert_eq!((whole.0, whole.1), (Outcome::Finished, 7));
    let dir = tempfile::tempdir().unwrap();
    for step in 1..=7 {
        let mut trainer = trainer(Budget::Samples(13));
        trainer.save_to(dir.path()).unwrap();
        let part = run(&mut trainer, Some(Duration::ZERO));
        assert!(if step < 7 { part.1 == step } else { part == whole }, "{part:?}");
    }
    // One of time stops by itself, after the step in which it runs out.
    let timed = run(&mut trainer(Budget::Time(Duration::from_nanos(1))), None);
    assert_eq!((timed.0, timed.1), (Outcome::Finished, 1));
}

/// A save that fails for a reason of its own costs a checkpoint, and at the end the run.
#[test]
fn a_task_that_cannot_save_is_heard_and_does_not_end_the_run() {
    struct Full(Line);
    impl Task for Full {
        type Batch = ();
        fn next_batch(&mut self, _: &Context) -> Result<()> {
            Ok(())
        }
        fn loss(&mut self, parameters: &Params, batch: &(), context: &Context) -> Result<Loss> {
            self.0.loss(parameters, batch, context)
        }
        fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
            files.write("replay", |file| file.write_all(b"some").and(Err(std::io::Error::other("the disk is full"))))?;
            Ok(TaskState::default())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let w = var();
    let mut t = trainer(&w);
    t.save_to(dir.path()).unwrap();
    let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
    let error = t.run(&mut Full(Line::new()), &mut reporter, &Stop::after(None)).unwrap_err().to_string();
    assert!(error.starts_with("checkpoint of step 60 not saved: ") && error.contains("replay: the disk is full"), "{error}");
    assert!(t.step() == 60 && (w.to_vec1::<f32>().unwrap()[0] - 2.0).abs() < 0.1);
    assert_eq!(std::fs::read_dir(dir.path().join("checkpoints")).unwrap().count(), 0, "nothing half written is left");
}

#[test]
fn another_configuration_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let w = var();
    let mut first = trainer(&w);
    first.save_to(dir.path()).unwrap();
    run(&mut first, &mut Line::new()).unwrap();
    drop(first);
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

/// Like [`Line`] with its parameter in f16, whose gradient of up to 4 times the loss scale overflows above 65504.
struct Narrow(Line);

impl Task for Narrow {
    type Batch = ();
    fn next_batch(&mut self, _: &Context) -> Result<()> {
        Ok(())
    }
    fn loss(&mut self, parameters: &Params, (): &(), _: &Context) -> Result<Loss> {
        let w = parameters.get("w", &[1], Init::Constant(0.0))?.to_dtype(DType::F16)?;
        let x = 1.0 + (self.0.place as f64 * 0.7).sin();
        self.0.place += 1;
        let value = w.affine(x, -2.0 * x)?.sqr()?.sum_all()?.to_dtype(DType::F32)?;
        Ok(Loss::new(value, 1))
    }
    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        self.0.save(files)
    }
    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        self.0.restore(state, files)
    }
}

#[test]
fn f16_finds_its_loss_scale_and_keeps_it_over_a_resume() {
    let with = Resources { dtype: DType::F16, ..Resources::default() };
    let config = TrainerConfig { accumulate: 1, ..config() };
    let run = |directory: &Path, limit: Option<Duration>| {
        let w = var();
        let vars = [("w".to_owned(), w.clone())].into();
        let mut t = Trainer::new(config.clone(), vars, 60, serde_json::Value::Null, with.clone()).unwrap();
        let mut task = Narrow(Line::new());
        t.save_to(directory).unwrap();
        t.resume(&mut task).unwrap();
        let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
        let outcome = t.run(&mut task, &mut reporter, &Stop::after(limit)).unwrap();
        (outcome, w.to_vec1::<f32>().unwrap()[0], t.counters)
    };
    let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (_, found, counters) = run(whole.path(), None);
    assert!((found - 2.0).abs() < 0.1, "expected 2, found {found}");
    // The first gradients are -8 at most: 65536 overflows, a few halvings help, and none of that ends a run.
    assert!((1..=6).contains(&counters.skipped) && counters.skipped_in_row == 0, "{counters:?}");
    assert_eq!(counters.scale.factor(), 65536.0 / f64::powi(2.0, counters.skipped as i32));
    let resumed = loop {
        let (outcome, found, counters) = run(parts.path(), Some(Duration::ZERO));
        if outcome == Outcome::Finished {
            break (found, counters);
        }
    };
    assert_eq!(resumed, (found, counters));
}

#[test]
fn a_batch_without_weight_changes_nothing_but_the_decay() {
    struct Nothing(Line);
    impl Task for Nothing {
        type Batch = ();
        fn next_batch(&mut self, _: &Context) -> Result<()> {
            Ok(())
        }
        fn loss(&mut self, parameters: &Params, batch: &(), context: &Context) -> Result<Loss> {
            Ok(Loss { weight: 0.0, ..self.0.loss(parameters, batch, context)? })
        }
    }
    let w = var();
    let mut t = trainer(&w);
    let mut reporter = Reporter::new(None, 0, 60, 10, "samples").unwrap();
    t.run(&mut Nothing(Line::new()), &mut reporter, &Stop::after(None)).unwrap();
    assert_eq!((t.counters.skipped, t.loss(), w.to_vec1::<f32>().unwrap()), (0, 0.0, vec![0.0]));
}

#[test]
fn zero_where_it_makes_no_sense_is_named() {
    let error = TrainerConfig { accumulate: 0, ..TrainerConfig::default() }.validate().unwrap_err().to_string();
    assert_eq!(error, "config: trainer.accumulate: expected at least 1, found 0");
}
