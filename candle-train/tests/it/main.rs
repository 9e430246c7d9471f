//! The command as a user runs it, on simulated games; and the optimiser against PyTorch.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod beam;
mod beam_page;
mod command;
mod golden;
#[cfg(target_os = "linux")]
mod killed;
mod learning;
mod parity;
mod ranks;
#[cfg(unix)]
mod recovery;
mod resume;
mod tensorboard;

use candle_models::policy::{replay, simulation};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Simulated replays in `directory/replays`.
fn replays(directory: &Path, games: u64, frames: usize) -> PathBuf {
    let replays = directory.join("replays");
    std::fs::create_dir_all(&replays).unwrap();
    for seed in 0..games {
        replay::write(&simulation::simulate(seed, frames), replays.join(format!("g{seed}.slp"))).unwrap();
    }
    replays
}

/// `candle-train policy` on two threads, on those replays, with a small Mamba and sixty steps.
fn small(replays: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.args(["policy", "--preset", "mamba", "--threads", "2", "--hold-out", "g0", "--replays"]).arg(replays).arg("--out").arg(out);
    for set in [
        "epochs=2",
        "data.batch=4",
        "data.unroll=20",
        "data.burn_in=5",
        "model.hidden=16",
        "model.embedding=4",
        "model.backbone.layers=1",
        "model.backbone.block.state=4",
        "trainer.save_every=2",
        "trainer.evaluate_every=20",
        "trainer.accumulate=2",
    ] {
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
