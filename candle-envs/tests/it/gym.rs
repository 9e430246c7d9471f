//! Environments of Gymnasium, in processes of their own.

use candle_envs::classic::CartPole;
use candle_envs::gym::{Gym, GymError, Options};
use candle_envs::{Action, Actions, Autoreset, Env, EnvError, Frame, Spec, Vector, VectorEnv, shipped};
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::random::Random;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A Python with Gymnasium: CANDLE_PYTHON, or python3.
fn gymnasium() -> Option<Options> {
    let options = Options::default();
    let found = Command::new(&options.python).args(["-c", "import gymnasium"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_GYMNASIUM").is_none(), "{} cannot import gymnasium", options.python.display());
        eprintln!("skipped: {} cannot import gymnasium", options.python.display());
    }
    found.then_some(options)
}

/// The same frame, but for what was seen at the end of earlier episodes.
#[track_caller]
fn same(found: &Frame, expected: &Frame, t: u64) {
    assert_eq!(found.floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), expected.floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    assert_eq!(found, expected, "step {t}");
}

/// Every bit of what is seen, earned and ended, whichever way episodes begin again; however many processes share the environments.
#[test]
fn gymnasiums_cartpole_is_ours() {
    let Some(options) = gymnasium() else { return };
    for (autoreset, processes, steps) in [(Autoreset::NextStep, 2, 1000), (Autoreset::SameStep, 1, 300), (Autoreset::Disabled, 5, 300)] {
        let mut theirs = Gym::new("CartPole-v1", 5, autoreset, &Options { processes, ..options.clone() }).unwrap();
        let mut ours = Vector::<CartPole>::new(5, autoreset).unwrap();
        same(theirs.reset(1 << 40).unwrap(), ours.reset(1 << 40).unwrap(), 0);
        for t in 0..steps {
            let actions = Actions::random(ours.spec(), ours.frame(), Random::new(3).at(t));
            same(theirs.step(&actions).unwrap(), ours.step(&actions).unwrap(), t);
            let ended: Vec<bool> = ours.frame().terminated.clone();
            if autoreset == Autoreset::Disabled && ended.contains(&true) {
                assert_eq!(theirs.step(&actions).unwrap_err().to_string(), ours.step(&actions).unwrap_err().to_string().replace("cartpole", "gym:CartPole-v1"));
                same(theirs.reset_lanes(&ended).unwrap(), ours.reset_lanes(&ended).unwrap(), t);
            }
        }
        same(theirs.reset(8).unwrap(), ours.reset(8).unwrap(), steps);
    }
}
