//! The example with actors and a replay buffer: killed in the middle and resumed it is the same run.

#[allow(dead_code, missing_docs)]
#[path = "../../../examples/examples/train_actors.rs"]
mod train_actors;

use crate::last_checkpoint;
use candle_core::Tensor;
use candle_models::Result;
use candle_models::nn::Params;
use candle_train::checkpoint::{SavedFiles, StateFiles};
use candle_train::parallel::Communicator;
use candle_train::run::{Ended, Place};
use candle_train::stop::Stop;
use candle_train::task::{Context, Evaluation, Loss, StepDone, Task, TaskState};
use std::path::Path;
use std::process::{Command, Stdio};
use train_actors::{Walk, walk};

/// Tells the process that is killed where to train, and the step after which it dies.
const DIRECTORY: &str = "CANDLE_TRAIN_ACTORS_DIRECTORY";
const STEP: &str = "CANDLE_TRAIN_ACTORS_STEP";
/// 300 steps of 64.
const TRANSITIONS: u64 = 300 * 64;

/// The task, which kills its process after a step.
struct Mortal(Walk, u64);

impl Task for Mortal {
    type Batch = Tensor;
    fn unit(&self) -> &'static str {
        self.0.unit()
    }
    fn next_batch(&mut self, context: &Context) -> Result<Tensor> {
        self.0.next_batch(context)
    }
    fn loss(&mut self, parameters: &Params, batch: &Tensor, context: &Context) -> Result<Loss> {
        self.0.loss(parameters, batch, context)
    }
    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        self.0.after_step(step)?;
        if step.step == self.1 {
            // SAFETY: calls without memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        Ok(())
    }
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        self.0.evaluate(parameters, ranks)
    }
    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        self.0.save(files)
    }
    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        self.0.restore(state, files)
    }
}

fn train(directory: &Path, dies_after: u64) -> Ended {
    let (run, vars, task) = walk(TRANSITIONS).unwrap();
    run.train(vars, &mut Mortal(task, dies_after), &Place::resume(directory), &Stop::after(None)).unwrap()
}

#[test]
fn a_configuration_that_is_no_toml_is_refused_before_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let (mut run, vars, mut task) = walk(TRANSITIONS).unwrap();
    run.about.configuration = "{ \"json\": 1 }".to_owned();
    let error = run.train(vars, &mut task, &Place::create(dir.path()), &Stop::after(None)).unwrap_err().to_string();
    assert!(error.starts_with("config: about.configuration: expected TOML: "), "{error}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "a refused run writes nothing");
}

/// Run by the test below in a process of its own.
#[test]
#[ignore = "deep: nothing of its own; it is the process that the other test of this module kills"]
fn the_process_that_is_killed() {
    let (Some(directory), Ok(step)) = (std::env::var_os(DIRECTORY), std::env::var(STEP)) else { return };
    train(directory.as_ref(), step.parse().unwrap());
}

#[test]
fn killed_and_resumed_it_learns_what_it_would_have() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    std::fs::create_dir_all(&whole).unwrap();
    std::fs::create_dir_all(&killed).unwrap();
    let expected = train(&whole, u64::MAX);
    assert_eq!(expected.step, 300);
    // Between two checkpoints and two rounds of the actors; then from before the first checkpoint of the second process on.
    for step in [113, 114, 207] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "actors::the_process_that_is_killed", "--ignored", "--test-threads=1"]);
        let status =
            child.env(DIRECTORY, &killed).env(STEP, step.to_string()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "step {step}: {status}");
    }
    let found = train(&killed, u64::MAX);
    let values = |ended: &Ended| -> Vec<Vec<f32>> {
        ended.parameters.values().map(|tensor| tensor.flatten_all().unwrap().to_vec1().unwrap()).collect()
    };
    assert_eq!(values(&found), values(&expected));
    let files = last_checkpoint(&whole);
    assert!(["task/rank-0/replay", "replicated.safetensors"].iter().all(|file| files.contains_key(Path::new(file))), "{:?}", files.keys());
    assert!(last_checkpoint(&killed) == files, "parameters, moments, target, replay buffer and cursor");
    let score = |ended: &Ended| walk(1).unwrap().2.evaluate(&ended.params(), &candle_train::parallel::Single).unwrap().results()["score"];
    assert!(score(&expected) > 0.9, "it walks towards the goal from {} of all places", score(&expected));
}
