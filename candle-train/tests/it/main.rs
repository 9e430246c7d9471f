//! The command as a user runs it, on simulated games; and the optimiser against PyTorch.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

#[cfg(unix)]
mod actors;
mod agent;
mod beam;
mod beam_page;
mod callbacks;
mod command;
#[cfg(unix)]
mod encode;
mod families;
#[path = "../../../candle-models/tests/shared/family_names.rs"]
mod family_names;
#[path = "../games/mod.rs"]
mod games;
mod golden;
#[cfg(unix)]
mod gym;
#[cfg(unix)]
mod held;
#[cfg(target_os = "linux")]
mod killed;
mod learning;
mod muzero;
mod parity;
mod pde;
mod ppo;
mod ranks;
#[cfg(unix)]
mod recovery;
#[cfg(unix)]
mod resume;
mod rf;
mod teachers;
mod tensorboard;
mod watch;

use candle_core::{Device, Tensor};
use games::{SETS, replays};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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

/// The last checkpoint's files by their paths in it, without the manifest: parameters, moments, average, carried state, cursor, what the task owns.
fn last_checkpoint(out: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let checkpoints = out.join("checkpoints");
    let latest = checkpoints.join(fs::read_to_string(checkpoints.join("latest")).unwrap());
    let (mut folders, mut files) = (vec![latest.clone()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => drop(files.insert(path.strip_prefix(&latest).unwrap().to_owned(), fs::read(&path).unwrap())),
            }
        }
    }
    files
}

/// That two runs ended with the same parameters, moments, average and state of their tasks, bit for bit.
fn assert_equal_runs(found: &Path, expected: &Path) {
    let (found, expected) = (last_checkpoint(found), last_checkpoint(expected));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &expected {
        assert!(found[name] == *bytes, "{} differs from the uninterrupted run's", name.display());
    }
}

/// The bits of every parameter of a run's bundle.
fn weights(out: &Path) -> BTreeMap<String, Vec<u32>> {
    let bits = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    let model = candle_core::safetensors::load(out.join("bundle/model.safetensors"), &Device::Cpu).unwrap();
    model.into_iter().map(|(name, x)| (name, bits(x))).collect()
}
