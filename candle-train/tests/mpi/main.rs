//! Ranks over MPI, as mpirun starts them: this test program starts itself.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod calls;
mod failures;
#[path = "../games/mod.rs"]
mod games;
mod training;

use candle_train::launch;
use candle_train::parallel::Communicator;
use candle_train::parallel::connect::connect;
use candle_train::parallel::environment::from_environment;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a rank does.
const SCRIPT: &str = "CANDLE_TEST_RANK";

/// A rank, where mpirun started this program; else there is nothing to test.
#[test]
fn as_a_rank() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let ranks = connect(from_environment().unwrap().as_ref(), &candle_core::Device::Cpu, "").unwrap();
    match script.as_str() {
        "calls" => calls::all(&*ranks, &calls::SHORT),
        "long calls" => calls::all(&*ranks, &calls::LONG),
        "measure" => calls::measure(&*ranks),
        failure => failures::fail(failure, ranks),
    }
}

/// `mpirun` with a directory of its own for what Open MPI keeps of a run: in a shared one a run that ends takes it away from another
/// that begins, and that one fails.
fn alone(size: usize) -> Command {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = format!("ranks-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(run);
    std::fs::create_dir_all(&directory).unwrap();
    let mut command = launch::mpirun(size).unwrap();
    command.env("OMPI_MCA_orte_tmpdir_base", directory);
    command
}

fn mpirun(size: usize, script: &str) -> Command {
    let mut command = alone(size);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "as_a_rank", "--nocapture", "--test-threads", "1"]);
    command.env(SCRIPT, script).env("CANDLE_RANK_TIMEOUT", "300");
    command
}

/// All that it said, and its exit code.
fn end(output: &Output) -> (i32, String) {
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

/// Waits for `ranks` and drops them, as a program does at its end.
fn done(ranks: Arc<dyn Communicator>) {
    ranks.barrier().unwrap();
    drop(ranks);
}
