//! The device that GPU tests share.

use candle_core::Device;
use candle_models::device::DeviceChoice;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The device, one test at a time; `None` where there is none.
pub fn cuda() -> Option<MutexGuard<'static, Device>> {
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
