//! Training on CUDA against training on the CPU. Without a CUDA device every test says so and passes, unless
//! `CANDLE_REQUIRE_CUDA=1` makes that a failure.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

mod optimiser;
mod run;

use candle_core::Device;
use candle_models::device::DeviceChoice;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The device, one test at a time; `None` where there is none.
fn cuda() -> Option<MutexGuard<'static, Device>> {
    static DEVICE: OnceLock<Option<Mutex<Device>>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| match DeviceChoice::Cuda(0).open() {
        Ok(chosen) => Some(Mutex::new(chosen.device)),
        Err(error) => {
            eprintln!("no CUDA device: skipped ({error})");
            None
        }
    });
    let required = std::env::var("CANDLE_REQUIRE_CUDA").is_ok_and(|v| v == "1");
    assert!(device.is_some() || !required, "CANDLE_REQUIRE_CUDA=1 and there is no CUDA device");
    device.as_ref().map(|device| device.lock().unwrap_or_else(PoisonError::into_inner))
}
