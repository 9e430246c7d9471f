//! The command as a user runs it, on simulated games; and the optimiser against PyTorch.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod beam;
mod beam_page;
mod command;
#[path = "../games/mod.rs"]
mod games;
mod golden;
#[cfg(unix)]
mod held;
#[cfg(target_os = "linux")]
mod killed;
mod learning;
mod parity;
mod ranks;
#[cfg(unix)]
mod recovery;
#[cfg(unix)]
mod resume;
mod tensorboard;

use games::{SETS, replays};
use std::path::Path;
use std::process::{Command, Output};

/// `candle-train policy` on two threads, on those replays, with a small Mamba and sixty steps.
fn small(replays: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.args(["policy", "--preset", "mamba", "--threads", "2", "--hold-out", "g0", "--replays"]).arg(replays).arg("--out").arg(out);
    // Every step is told: that is where tests stop a run.
    for set in SETS.into_iter().chain(["trainer.log_every=1"]) {
        command.args(["--set", set]);
    }
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
