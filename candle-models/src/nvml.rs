//! What NVIDIA's management library says about the GPUs of this machine. The library comes with the driver and is opened at
//! run time, in every build; where it is missing, nothing is known and nothing fails.

use candle_core::Device;
use nvml_wrapper::Nvml;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// What is written where the library, the driver or the GPU is missing.
pub const UNKNOWN: &str = "n/a";

/// As the driver installs it: a name without version is there for developers only.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

fn library() -> Option<&'static Nvml> {
    static FOUND: OnceLock<Option<Nvml>> = OnceLock::new();
    FOUND.get_or_init(|| Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().ok()).as_ref()
}

/// The version of the driver, `580.65.06`.
pub fn driver_version() -> Option<String> {
    library()?.sys_driver_version().ok()
}

/// The names of the GPUs, `NVIDIA H200`, in the order of the library; none where there is no driver.
pub fn gpus() -> Vec<String> {
    let Some(library) = library() else { return Vec::new() };
    let count = library.device_count().unwrap_or(0);
    (0..count).filter_map(|index| library.device_by_index(index).ok()?.name().ok()).collect()
}

/// Memory in use on the GPU with that UUID in bytes, that of other programs counted in.
fn memory_in_use(uuid: &[u8; 16]) -> Option<u64> {
    let gpu = library()?.device_by_uuid(uuid_text(uuid)).ok()?;
    Some(gpu.memory_info().ok()?.used)
}

/// Memory in use on the GPU behind a device in bytes, that of other programs counted in; `None` for the CPU.
pub fn device_memory_in_use(device: &Device) -> Option<u64> {
    memory_in_use(&uuid(device)?)
}

#[cfg(feature = "cuda")]
fn uuid(device: &Device) -> Option<[u8; 16]> {
    let uuid = device.as_cuda_device().ok()?.cuda_stream().context().uuid().ok()?;
    Some(uuid.bytes.map(|byte| byte as u8))
}

#[cfg(not(feature = "cuda"))]
fn uuid(_: &Device) -> Option<[u8; 16]> {
    None
}

/// `GPU-3d4a8b1c-...`, as the library wants it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (i, byte) in uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&i) { "-" } else { "" };
        text += &format!("{dash}{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_the_library_writes_it() {
        let uuid = std::array::from_fn(|i| 0x10 + i as u8);
        assert_eq!(uuid_text(&uuid), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    }

    #[test]
    fn the_cpu_has_no_gpu_memory() {
        assert_eq!(device_memory_in_use(&Device::Cpu), None);
        assert_eq!(memory_in_use(&[0; 16]), None, "no GPU has this UUID");
    }
}
