//! The command as a user runs it.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod compare;
mod costs;
mod families;
#[path = "../../../candle-models/tests/shared/family_names.rs"]
mod family_names;
mod instructions;
mod interrupt;
mod pages;
mod peers;
mod truth;

use std::path::Path;
use std::process::{Command, Output};

/// The command with a quick measurement of a small case, its reports below `out`.
fn latency(out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    command.args(["latency", "--backbones", "mlp", "--threads", "1", "--batches", "1,2", "--window-batches", "1", "--window", "2"]);
    command.args(["--warm-up", "0", "--window-length", "0.001", "--host", "bench-1", "--out"]).arg(out);
    command
}

/// Exit code, standard output and standard error.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
