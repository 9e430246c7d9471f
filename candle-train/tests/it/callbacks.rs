//! What is called in a run, when, and what that changes.

use candle_core::{Device, Tensor};
use candle_models::nn::{Init, Params};
use candle_models::random::Random;
use candle_models::{Error, Result};
use candle_train::callback::{Callback, Figures, Flow};
use candle_train::parallel::threads;
use candle_train::run::{Ended, Outcome, Place, Run, Stop, TrainerConfig};
use candle_train::stop::Reason;
use candle_train::task::{Communicator, Context, Evaluation, Loss, Metric, Score, StepDone, Task};
use candle_train::trainer::Resources;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fits w to 2; no two steps have the same loss.
struct Line;

impl Task for Line {
    type Batch = f64;
    fn next_batch(&mut self, context: &Context) -> Result<f64> {
        Ok(1.0 + f64::from(context.noise.uniform(0)))
    }
    fn loss(&mut self, parameters: &Params, x: &f64, context: &Context) -> Result<Loss> {
        let value = parameters.get("w", &[1], Init::Constant(0.0))?.affine(*x, -2.0 * x)?.sqr()?.sum_all()?;
        let metrics = vec![Metric::mean(&["x"], Tensor::new(&[*x as f32], &Device::Cpu)?)];
        Ok(Loss { metrics, weight: 1.0 / context.ranks.size() as f64, ..Loss::new(value, 1) })
    }
    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        let w = parameters.get("w", &[1], Init::Constant(0.0))?.to_vec1::<f32>()?[0];
        Ok(Evaluation::new(Score::minimise(f64::from((w - 2.0).abs())), [("w", w.into())]))
    }
}

type Calls = Arc<Mutex<Vec<String>>>;

/// Writes down its calls under its name, and stops, or fails, at one of them.
struct Noting {
    name: &'static str,
    calls: Calls,
    stops: Option<&'static str>,
    fails: Option<&'static str>,
}

impl Noting {
    fn new(name: &'static str, calls: &Calls) -> Self {
        Self { name, calls: calls.clone(), stops: None, fails: None }
    }

    fn note(&self, call: String) -> Result<Flow> {
        self.calls.lock().unwrap().push(format!("{} {call}", self.name));
        if self.fails == Some(&call) {
            return Err(Error::Input(format!("nobody listens at {call}")));
        }
        Ok(if self.stops == Some(&call) { Flow::Stop } else { Flow::Continue })
    }
}

impl Callback for Noting {
    fn on_step(&mut self, step: &StepDone, figures: &mut Figures) -> Result<Flow> {
        figures.insert("double", 2.0 * step.loss);
        figures.insert("x", -1.0);
        self.note(format!("step {}", step.step))
    }
    fn on_checkpoint(&mut self, step: u64, directory: &Path) -> Result<()> {
        assert!(directory.ends_with(format!("checkpoints/step-{step:012}")) && directory.join("manifest.json").exists());
        self.note(format!("checkpoint {step}")).map(drop)
    }
    fn on_evaluation(&mut self, step: u64, evaluation: &Evaluation, figures: &mut Figures) -> Result<Flow> {
        figures.insert("half", evaluation.figures["w"] / 2.0);
        figures.insert("w", -1.0);
        self.note(format!("evaluation {step}"))
    }
    fn on_end(&mut self, step: u64, outcome: Outcome) -> Result<()> {
        self.note(format!("end {step} {outcome:?}")).map(drop)
    }
}

/// Five steps, a checkpoint after the second and fourth, an evaluation after the third, and both at the end.
fn train(callbacks: Vec<Noting>, place: &Place, resources: Resources) -> Result<Ended> {
    let config = TrainerConfig { save_every: 2, evaluate_every: 3, log_every: 1, ..TrainerConfig::default() };
    let params = Params::init(Random::new(1), &Device::Cpu);
    params.get("w", &[1], Init::Constant(0.0))?;
    let run = Run { resources, ..Run::new(config, 5, 1)? };
    callbacks.into_iter().fold(run, Run::with).train(params.vars(), &mut Line, place, &Stop::after(None))
}

fn weight(ended: &Ended) -> f32 {
    ended.parameters["w"].to_vec1().unwrap()[0]
}

#[test]
fn calls_come_in_order_and_change_nothing_but_the_log() {
    let (dir, calls) = (tempfile::tempdir().unwrap(), Calls::default());
    let whole = train(vec![], &Place::memory(), Resources::default()).unwrap();
    let ended = train(vec![Noting::new("a", &calls), Noting::new("b", &calls)], &Place::create(dir.path()), Resources::default()).unwrap();
    assert_eq!((ended.outcome, weight(&ended)), (Outcome::Finished, weight(&whole)));
    let once = "step 1, step 2, checkpoint 2, step 3, checkpoint 3, evaluation 3, step 4, checkpoint 4, step 5, checkpoint 5, evaluation 5, end 5 Finished";
    let expected: Vec<String> = once.split(", ").flat_map(|call| [format!("a {call}"), format!("b {call}")]).collect();
    assert_eq!(*calls.lock().unwrap(), expected);
    // Figures are beside those of the task, which nothing replaces.
    let lines = fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        if let Some(loss) = line["loss"].as_f64() {
            assert_eq!(line["parts"]["double"], 2.0 * loss);
            assert!(line["parts"]["x"].as_f64().unwrap() >= 1.0, "{line}");
        } else {
            assert_eq!(line["evaluation"]["half"].as_f64().unwrap() * 2.0, line["evaluation"]["w"].as_f64().unwrap());
        }
    }
    assert_eq!(lines.len(), 5 + 2);
}

#[test]
fn a_run_that_a_callback_stops_goes_on_where_it_was() {
    let whole = train(vec![], &Place::memory(), Resources::default()).unwrap();
    for (stops, at) in [("step 1", 1), ("step 3", 3), ("evaluation 3", 3), ("step 4", 4)] {
        let (dir, calls) = (tempfile::tempdir().unwrap(), Calls::default());
        let stopping = Noting { stops: Some(stops), ..Noting::new("a", &calls) };
        let stopped = train(vec![stopping], &Place::create(dir.path()), Resources::default()).unwrap();
        assert_eq!((stopped.outcome, stopped.step, stopped.outcome.done()), (Outcome::Stopped(Reason::Callback), at, false));
        assert!(dir.path().join("report.html").exists());
        let ended = train(vec![Noting::new("a", &calls)], &Place::resume(dir.path()), Resources::default()).unwrap();
        assert_eq!((ended.outcome, weight(&ended)), (Outcome::Finished, weight(&whole)));
        let calls = calls.lock().unwrap();
        let steps: Vec<&str> = calls.iter().filter_map(|call| call.strip_prefix("a step ")).collect();
        assert_eq!(steps, ["1", "2", "3", "4", "5"], "each step once: {calls:?}");
        assert_eq!(calls.iter().filter(|call| call.starts_with("a evaluation 3")).count(), 1, "{calls:?}");
    }
    // At the last step there is nothing left to stop.
    let last = Noting { stops: Some("step 5"), ..Noting::new("a", &Calls::default()) };
    assert_eq!(train(vec![last], &Place::memory(), Resources::default()).unwrap().outcome, Outcome::Finished);
}

#[test]
fn an_error_of_a_callback_ends_the_run_with_its_text() {
    for fails in ["step 2", "checkpoint 2", "evaluation 3", "end 5 Finished"] {
        let (dir, calls) = (tempfile::tempdir().unwrap(), Calls::default());
        let failing = Noting { fails: Some(fails), ..Noting::new("a", &calls) };
        let error = train(vec![failing], &Place::create(dir.path()), Resources::default()).unwrap_err().to_string();
        assert_eq!(error, format!("nobody listens at {fails}"));
        assert_eq!(calls.lock().unwrap().last().unwrap(), &format!("a {fails}"));
    }
}

#[test]
fn rank_0_is_called_and_all_ranks_stop() {
    let calls = [(); 2].map(|()| Calls::default());
    let ended: Vec<_> = std::thread::scope(|scope| {
        let rank = |rank: threads::ThreadRank| {
            let calls = &calls[rank.rank()];
            scope.spawn(move || {
                let stopping = Noting { stops: Some("step 2"), ..Noting::new("a", calls) };
                train(vec![stopping], &Place::memory(), Resources { ranks: Arc::new(rank), ..Resources::default() }).unwrap()
            })
        };
        let threads: Vec<_> = threads::group(2, Duration::from_secs(60)).into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for ended in &ended {
        assert_eq!((ended.outcome, ended.step), (Outcome::Stopped(Reason::Callback), 2));
    }
    assert_eq!(weight(&ended[0]), weight(&ended[1]));
    assert_eq!(*calls[0].lock().unwrap(), ["a step 1", "a step 2", "a end 2 Stopped(Callback)"]);
    assert!(calls[1].lock().unwrap().is_empty());
}
