//! Learning in an environment of Gymnasium, in a process of its own.

use crate::{run, text};
use std::path::Path;
use std::process::Command;

/// A Python with Gymnasium: CANDLE_PYTHON, or python3.
fn has_gymnasium() -> bool {
    let python = std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import gymnasium"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_GYMNASIUM").is_none(), "{} cannot import gymnasium", python.display());
        eprintln!("skipped: {} cannot import gymnasium", python.display());
    }
    found
}

fn train(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).current_dir(directory).args(arguments));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// By both ways of learning; a run that was stopped goes on, and says that the episodes are others.
#[test]
fn a_run_is_stopped_goes_on_and_ends() {
    if !has_gymnasium() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ppo = ["ppo", "--set=frames=512", "--set=rollout.steps=16", "--set=evaluation.episodes=4"];
    let muzero = ["muzero", "--set=frames=192", "--set=play.lanes=4", "--set=play.steps=8", "--set=play.simulations=4"];
    let sizes = ["--set=learn.updates=4", "--set=learn.batch=16", "--set=network.width=16", "--set=evaluation.episodes=3"];
    for (name, arguments) in [("ppo", &ppo[..]), ("muzero", &[&muzero[..], &sizes].concat())] {
        let arguments = [arguments, &["--env=gym:CartPole-v1", "--threads=2", "--out", name]].concat();
        let (code, stdout, stderr) = train(dir.path(), &[&arguments[..], &["--max-time=0"]].concat());
        assert!(code == 0 && stdout.contains("stopped by the time limit at step 1; --resume continues"), "{stdout}{stderr}");
        let (code, stdout, stderr) = train(dir.path(), &[&arguments[..], &["--resume"]].concat());
        assert!(code == 0 && stdout.contains("reward ") && stdout.contains("model in "), "{stdout}{stderr}");
        let warned = "warning: the environments of gym:CartPole-v1 are not in the checkpoint: their episodes begin anew\n";
        assert!(stderr.matches(warned).count() == 1 && stderr.contains("continued from step 1"), "{stderr}");
    }
}

#[test]
fn what_python_says_is_the_error() {
    if !has_gymnasium() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, _, stderr) = train(dir.path(), &["ppo", "--env=gym:CartPoll-v1", "--out=run"]);
    assert!(code == 2 && stderr.starts_with("error: config: env: gym:CartPoll-v1, environment 0: NameNotFound: "), "{stderr}");
    // A module beside where the command is run.
    let module = "import gymnasium\n\nclass Bad(gymnasium.Env):\n    observation_space = action_space = gymnasium.spaces.Discrete(2)\n\n    \
                  def reset(self, *, seed=None, options=None):\n        return 0, {}\n\n    \
                  def step(self, action):\n        return 1 / 0\n\ngymnasium.register('Bad-v0', Bad)\n";
    std::fs::write(dir.path().join("bad.py"), module).unwrap();
    let (code, _, stderr) = train(dir.path(), &["ppo", "--env=gym:bad:Bad-v0", "--out=run"]);
    assert!(code == 1 && stderr.contains("error: gym:bad:Bad-v0, environment 0: an exception in its step:\nTraceback"), "{stderr}");
    assert!(stderr.trim_end().ends_with("ZeroDivisionError: division by zero"), "{stderr}");
}
