//! Training on CUDA against training on the CPU. Without a CUDA device every test says so and passes, unless
//! `CANDLE_REQUIRE_CUDA=1` makes that a failure.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

mod beam;
#[path = "../../../candle-models/tests/gpu/device.rs"]
mod device;
mod fno;
mod loader;
mod optimiser;
#[cfg(feature = "nccl")]
mod ranks;
mod rf;
mod run;

use candle_train::run::Place;
use candle_train::stop::Stop;
use device::cuda;
use std::time::Duration;

/// A run in stretches of one step, each resumed from the checkpoint that the one before it left.
fn in_stretches<T>(train: impl Fn(&Place, &Stop) -> T, is_finished: impl Fn(&T) -> bool) -> T {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::resume(dir.path());
    loop {
        let trained = train(&place, &Stop::after(Some(Duration::ZERO)));
        if is_finished(&trained) {
            return trained;
        }
    }
}
