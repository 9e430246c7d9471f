//! Simulated games, and what a small run on them is: for several test programs.

use candle_models::policy::{replay, simulation};
use std::path::{Path, PathBuf};

/// A small Mamba, and sixty steps on three games of 400 frames of which one is held out.
pub const SETS: [&str; 11] = [
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
];

/// Simulated replays in `directory/replays`.
pub fn replays(directory: &Path, games: u64, frames: usize) -> PathBuf {
    let replays = directory.join("replays");
    std::fs::create_dir_all(&replays).unwrap();
    for seed in 0..games {
        replay::write(&simulation::simulate(seed, frames), replays.join(format!("g{seed}.slp"))).unwrap();
    }
    replays
}
