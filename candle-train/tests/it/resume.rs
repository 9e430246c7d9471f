//! A run that is killed and resumed ends with the parameters of one that was not, bit for bit.

use crate::held::{Held, latest};
use crate::{assert_equal_runs, replays, run, small, text, weights};
use candle_models::random::Random;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Games of 700 frames, two of them trained on.
const FRAMES: usize = 700;

/// After so many steps one was saved: every second one is.
const SAVED: usize = 3;

/// That `latest` names a checkpoint whose every file is what its manifest says. There may be none before the first one is saved.
fn assert_latest_is_whole(out: &Path) {
    let name = latest(out);
    if name.is_empty() {
        return;
    }
    let directory = out.join("checkpoints").join(&name);
    let read = |file: &str| fs::read(directory.join(file)).unwrap_or_else(|e| panic!("latest is {name}: {file}: {e}"));
    let manifest: serde_json::Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    for (file, hash) in manifest["files"].as_object().unwrap() {
        let found: String = Sha256::digest(read(file)).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(found, hash.as_str().unwrap(), "latest is {name}: {file}");
    }
}

/// Kills a run of that many epochs again and again: at any moment from its start on, and, so that it gets anywhere, every second time
/// not before it has saved a checkpoint. What comes of it must be the run that nobody killed. It makes no more than ten steps between two kills.
fn soak(kills: u64, epochs: u64) {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, FRAMES);
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let command = |out: &Path| {
        let mut command = small(&replays, out);
        command.args(["--set", &format!("epochs={epochs}")]);
        command
    };
    let done = run(&mut command(&whole));
    assert!(done.status.success(), "{}", text(&done.stderr));

    let random = Random::new(1);
    for i in 0..kills {
        let micros = |limit: u32| Duration::from_micros(u64::from(random.below(i, limit)));
        let mut command = command(&killed);
        command.arg("--resume");
        let child = if i % 2 == 0 {
            let mut child = Held::saved(&mut command, &killed, SAVED);
            child.steps(random.stream("steps").below(i, 5) as usize);
            sleep(micros(10_000));
            child
        } else {
            let child = Held::start(&mut command);
            sleep(micros(400_000));
            child
        };
        child.kill();
        assert_latest_is_whole(&killed);
    }
    let done = run(command(&killed).arg("--resume"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("continued from step"), "{}", text(&done.stderr));
    assert!(!text(&done.stderr).contains("passed over"), "no checkpoint was damaged: {}", text(&done.stderr));
    assert_equal_runs(&killed, &whole);
    assert_eq!(weights(&killed), weights(&whole));
    // Every logged step once; an evaluation may come twice, when the kill fell between its line and its score.
    let steps = |out: &Path| -> (Vec<u64>, BTreeSet<u64>) {
        let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |key: &str| lines.iter().filter(|l| !l[key].is_null()).map(|l| l["step"].as_u64().unwrap()).collect::<Vec<_>>();
        (of("loss"), of("evaluation").into_iter().collect())
    };
    assert_eq!(steps(&killed), steps(&whole));
}

#[test]
fn killed_at_random_moments_and_resumed_it_is_the_same_run() {
    soak(6, 4);
}

#[test]
#[ignore = "deep: the test above with 200 kills"]
fn a_soak_of_two_hundred_kills() {
    soak(200, 80);
}

#[test]
fn a_signal_saves_and_ends_with_success() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, FRAMES);
    let (whole, stopped) = (dir.path().join("whole"), dir.path().join("stopped"));
    assert!(run(&mut small(&replays, &whole)).status.success());
    for signal in ["-TERM", "-INT"] {
        let mut command = small(&replays, &stopped);
        let child = Held::saved(command.arg("--resume"), &stopped, SAVED);
        assert!(Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap().success());
        let ended = child.finish();
        assert_eq!(ended.status.code(), Some(0), "{signal}: {}", text(&ended.stderr));
        let said = text(&ended.stdout);
        assert!(
            said.contains("stopped by a signal at step") && said.contains("--resume continues"),
            "{signal} came before the end: {said}"
        );
    }
    let done = run(small(&replays, &stopped).arg("--resume"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_equal_runs(&stopped, &whole);
}

#[test]
fn a_run_that_has_ended_can_be_extended() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, FRAMES);
    let out = dir.path().join("out");
    assert!(run(&mut small(&replays, &out)).status.success());
    let resume = |more: &[&str]| {
        let ended = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).arg("resume").arg(&out).args(more));
        (ended.status.success(), text(&ended.stdout), text(&ended.stderr))
    };
    let steps = || latest(&out);
    let ended = steps();
    let (done, said, warned) = resume(&[]);
    assert!(done && steps() == ended, "there is nothing more to do: {said}{warned}");
    let (done, said, warned) = resume(&["--set", "epochs=5"]);
    assert!(done && warned.contains("warning: the run has ") && warned.contains(" steps where it had "), "{said}{warned}");
    assert!(steps() > ended, "{:?}", (ended, steps()));
    // It is longer from now on, whoever continues it.
    let extended = steps();
    let (done, _, warned) = resume(&[]);
    assert!(done && !warned.contains("where it had") && steps() == extended, "{warned}");
    let (done, _, refused) = resume(&["--set", "seed=77"]);
    assert!(!done && refused.contains("config.seed"), "{refused}");
    let nowhere = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).args(["resume", "nowhere"]));
    assert!(!nowhere.status.success() && text(&nowhere.stderr).contains("nowhere/command.json: no run that can be resumed"));
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, FRAMES);
    let (two, one) = (dir.path().join("two"), dir.path().join("one"));
    assert!(run(&mut small(&replays, &two)).status.success());
    let mut single = small(&replays, &one);
    let arguments: Vec<_> = single.get_args().map(|a| if a == "2" { "1".into() } else { a.to_owned() }).collect();
    single = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    assert!(run(single.args(arguments)).status.success());
    assert_equal_runs(&one, &two);
}
