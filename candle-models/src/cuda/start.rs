//! Opening a CUDA device for small networks.

use crate::device::TF32_VARIABLE;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
use candle_core::cuda_backend::set_gemm_reduced_precision_f32;
use candle_core::{CudaDevice, Device};
use std::ffi::c_void;

/// Oldest GPU: bf16 tensor cores begin with Ampere.
const OLDEST: (i32, i32) = (8, 0);
/// The driver that understands what CUDA 13 compiles.
const DRIVER: i32 = 13_000;

/// Opens device `ordinal` on a stream of its own.
///
/// What has to be set before the first tensor is set here: no event tracking (two events per allocation otherwise, and no graph
/// can be captured), and freed memory stays in the pool (it goes back to the system at every synchronisation otherwise).
///
/// # Errors
/// One line that says what is missing and what helps.
pub(crate) fn start(ordinal: usize) -> Result<Device, String> {
    check_driver()?;
    let count = CudaContext::device_count().map_err(|e| plain("the CUDA driver cannot count devices", &e))?;
    if ordinal >= count as usize {
        let devices = if count == 1 { "device" } else { "devices" };
        return Err(format!("there is no CUDA device {ordinal}: the driver sees {count} {devices} (CUDA_VISIBLE_DEVICES limits them)"));
    }
    let context = CudaContext::new(ordinal).map_err(|e| plain("the device cannot be opened", &e))?;
    let name = context.name().unwrap_or_default();
    let capability = context.compute_capability().map_err(|e| plain("the device does not tell its compute capability", &e))?;
    if capability < OLDEST {
        let (major, minor) = capability;
        return Err(format!("{name} has compute capability {major}.{minor}: 8.0 (Ampere) or newer is needed; use --device cpu"));
    }
    keep_memory(&context).map_err(|e| plain("the memory pool cannot be set up", &e))?;
    let device = CudaDevice::new_with_stream(ordinal).map_err(|e| first_line(&e))?;
    // SAFETY: everything of this device goes through its one stream.
    unsafe { device.disable_event_tracking() };
    set_gemm_reduced_precision_f32(tf32()?);
    Ok(Device::Cuda(device))
}

/// Whether factors in f32 may be rounded for the tensor cores: not unless [`TF32_VARIABLE`] says so.
fn tf32() -> Result<bool, String> {
    match std::env::var_os(TF32_VARIABLE).as_ref().map(|value| value.to_string_lossy()).as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("{TF32_VARIABLE}: expected 0 or 1, found {other:?}")),
    }
}

/// The driver's presence and age.
fn check_driver() -> Result<(), String> {
    result::init().map_err(|e| match e.0 {
        sys::cudaError_enum::CUDA_ERROR_NO_DEVICE => "no CUDA device was found: nvidia-smi should list one".to_owned(),
        sys::cudaError_enum::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | sys::cudaError_enum::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the CUDA library does not match the driver: restart after a driver update, or update the driver to 580 or newer".to_owned()
        }
        _ => plain("the CUDA driver cannot be started", &e),
    })?;
    let mut version = 0;
    // SAFETY: it points at an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| plain("the CUDA driver does not tell its version", &e))?;
    if version < DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!("the driver supports CUDA {major}.{minor}, this program needs 13.0: update the NVIDIA driver to 580 or newer"));
    }
    Ok(())
}

/// Freed memory stays with the process: handing it back at every synchronisation cost one project 7 of 8.5 ms a call.
fn keep_memory(context: &CudaContext) -> Result<(), result::DriverError> {
    let mut all = u64::MAX;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, and the attribute is a number of 64 bits.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        result::mem_pool::set_attribute(pool, threshold, std::ptr::from_mut(&mut all).cast::<c_void>())
    }
}

fn plain(what: &str, error: &result::DriverError) -> String {
    let name = error.error_name().ok().and_then(|name| name.to_str().ok()).unwrap_or("an unknown error");
    format!("{what} ({name})")
}

/// Below the first line there may be a backtrace.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
