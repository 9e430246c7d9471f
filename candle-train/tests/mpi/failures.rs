//! A rank that is missing ends the job and is named.

use crate::{done, end, mpirun};
use candle_train::parallel::Communicator;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// In every rank: rank 1 of three fails in the middle of the work.
pub fn fail(script: &str, ranks: Arc<dyn Communicator>) {
    let mut values = vec![1.0; 100_000];
    for _ in 0..10 {
        ranks.all_reduce(&mut values).unwrap();
    }
    let myself = std::process::id();
    // A signal to a process reaches one of its threads first, and until that has run the others go on: into the next call, if nothing held them.
    let signal = |name: &str| {
        Command::new("sh").args(["-c", &format!("kill -{name} {myself}")]).status().unwrap();
        std::thread::sleep(Duration::from_secs(3600));
    };
    if ranks.rank() == 1 {
        match script {
            "killed" => signal("KILL"),
            "stopped" => signal("STOP"),
            "late" => std::thread::sleep(Duration::from_secs(3)),
            "very late" => std::thread::sleep(Duration::from_secs(27)),
            "hanging" => std::thread::sleep(Duration::from_secs(3600)),
            "panicking" => panic!("a mistake"),
            "giving up" => ranks.abandon("the disk is full"),
            "failing" => {
                // An error that travels up to `main`.
                drop(ranks);
                eprintln!("error: no such file");
                std::process::exit(9);
            }
            "elsewhere" => drop(ranks.barrier().map_err(parted)),
            _ => panic!("{script}"),
        }
    }
    match ranks.all_reduce(&mut values) {
        Ok(()) => {
            done(ranks);
            println!("done");
        }
        Err(error) => {
            parted(error);
            drop(ranks);
            std::process::exit(5);
        }
    }
}

fn parted(error: candle_models::Error) {
    candle_train::parallel::tell(&error);
}

/// Runs three ranks, of which number 1 does what `script` says.
fn run(script: &str, limit: &str) -> (i32, String) {
    end(&mpirun(3, script).env("CANDLE_RANK_TIMEOUT", limit).output().unwrap())
}

/// Longer than any test may take, in seconds: who waits so long hangs.
const NEVER: &str = "100000";

#[test]
fn a_killed_rank_ends_the_job_and_is_named() {
    let (code, said) = run("killed", NEVER);
    assert!(code != 0 && said.contains("process rank 1 with PID") && said.contains("signal 9"), "{code}: {said}");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let named = |script| {
        let (code, said) = run(script, "8");
        assert!(code != 0 && said.contains("error: rank 1 did not come to the sum of 100000 values (call 11) within "), "{code}: {said}");
        assert_eq!(said.matches("error: rank").count(), 1, "{said}");
    };
    // Side by side, because both do nothing but wait.
    std::thread::scope(|scope| {
        for script in ["stopped", "hanging"] {
            scope.spawn(move || named(script));
        }
    });
}

#[test]
fn a_rank_that_is_late_is_waited_for() {
    let (code, said) = run("late", "300");
    assert!(code == 0 && said.matches("done").count() == 3, "{said}");
}

#[test]
#[ignore = "deep: half a minute; a rank that comes 3 s after the roll call has begun and 3 s before it ends"]
fn a_rank_that_comes_during_the_roll_call_is_waited_for() {
    let (code, said) = run("very late", "24");
    assert!(code == 0 && said.matches("done").count() == 3, "{said}");
}

#[test]
fn a_rank_that_fails_says_why_and_ends_the_others() {
    for (script, why) in [("panicking", "a mistake"), ("giving up", "error: rank 1: the disk is full"), ("failing", "error: no such file")]
    {
        let (code, said) = run(script, NEVER);
        assert!(code != 0 && said.contains(why), "{script}: {code}: {said}");
    }
}

#[test]
fn ranks_that_make_different_calls_are_told() {
    let (code, said) = run("elsewhere", NEVER);
    assert!(code != 0 && said.contains("rank 1 is at the barrier, rank 0 at the sum of 100000 values (call 11)"), "{code}: {said}");
}
