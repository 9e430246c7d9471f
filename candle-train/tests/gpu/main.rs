//! Training on CUDA against training on the CPU. Without a CUDA device every test says so and passes, unless
//! `CANDLE_REQUIRE_CUDA=1` makes that a failure.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

#[path = "../../../candle-models/tests/gpu/device.rs"]
mod device;
mod loader;
mod optimiser;
#[cfg(feature = "nccl")]
mod ranks;
mod run;

use device::cuda;
