//! Where and how to compute: device, dtype and threads, chosen in one place.
//!
//! A choice is made from what was typed, then from the environment, then from the machine, and says why it fell out as
//! it did, so that a program can print the reason instead of silently being slow.
//!
//! ```
//! use candle_models::device::{self, DeviceChoice};
//! # fn main() -> candle_models::Result<()> {
//! let chosen = DeviceChoice::or_environment(Some(DeviceChoice::Cpu))?.open()?;
//! assert!(chosen.device.is_cpu() && chosen.fallback.is_none());
//! println!("kernels for {}", device::simd());
//! # Ok(())
//! # }
//! ```

use crate::{Error, Result};
use candle_core::{DType, Device};
use std::fmt;
use std::str::FromStr;

/// The variable that chooses the device where the command line does not: `auto`, `cpu`, `cuda`, `cuda:1`.
pub const DEVICE_VARIABLE: &str = "CANDLE_DEVICE";
/// The variable that chooses the dtype to compute in where the command line does not: `f32`, `bf16`, `f16`.
pub const DTYPE_VARIABLE: &str = "CANDLE_DTYPE";
/// The variable that lets products of f32 numbers on CUDA round their factors to TF32 (10 bits behind the point instead of 23)
/// on the tensor cores: `1`. Otherwise they are exact.
pub const TF32_VARIABLE: &str = "CANDLE_TF32";
/// The variable that chooses the number of threads where the command line does not.
pub const THREADS_VARIABLE: &str = "CANDLE_THREADS";

/// The variable that lowers the instruction set of the CPU kernels, for tests and diagnosis: `avx512`, `avx2`, `neon` or
/// `portable`. A name that this machine does not have is reported once on standard error and changes nothing.
pub const SIMD_VARIABLE: &str = crate::ops::simd::SIMD_VARIABLE;

/// More threads than this are a slip of the pen: the pool would start them all.
const MAX_THREADS: usize = 1024;

/// The device that was asked for.
///
/// ```
/// use candle_models::device::DeviceChoice;
/// # fn main() -> candle_models::Result<()> {
/// assert_eq!("cuda:1".parse::<DeviceChoice>()?, DeviceChoice::Cuda(1));
/// assert!(DeviceChoice::Cpu.open()?.device.is_cpu());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first CUDA device if this build and this machine have one, or else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of that number; an error where there is none.
    Cuda(usize),
}

/// The device that is used.
#[derive(Debug, Clone)]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// Why it is not the one that was hoped for: to be shown as a warning. `None` if it is.
    pub fallback: Option<String>,
}

impl DeviceChoice {
    /// What was typed, or else what [`DEVICE_VARIABLE`] says, or else [`DeviceChoice::Auto`].
    ///
    /// # Errors
    /// If the variable holds something else than a device.
    pub fn or_environment(typed: Option<Self>) -> Result<Self> {
        match (typed, std::env::var_os(DEVICE_VARIABLE)) {
            (Some(choice), _) => Ok(choice),
            (None, Some(value)) => value.to_string_lossy().parse().map_err(|e: Error| Error::Input(format!("{DEVICE_VARIABLE}: {e}"))),
            (None, None) => Ok(Self::Auto),
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// If a CUDA device was asked for by name and cannot be used: never the CPU instead.
    pub fn open(self) -> Result<ChosenDevice> {
        match self {
            Self::Cpu => Ok(ChosenDevice { device: Device::Cpu, fallback: None }),
            Self::Cuda(ordinal) => {
                let device = open_cuda(ordinal).map_err(|reason| Error::Input(format!("device {self}: {reason}")))?;
                Ok(ChosenDevice { device, fallback: None })
            }
            // A build without CUDA means the CPU: nothing to warn about.
            Self::Auto if !candle_core::utils::cuda_is_available() => Ok(ChosenDevice { device: Device::Cpu, fallback: None }),
            Self::Auto => Ok(match open_cuda(0) {
                Ok(device) => ChosenDevice { device, fallback: None },
                Err(reason) => ChosenDevice { device: Device::Cpu, fallback: Some(format!("computing on the CPU: {reason}")) },
            }),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let cuda = |number: &str| number.parse().ok().map(Self::Cuda);
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            other => other.strip_prefix("cuda:").and_then(cuda),
        }
        .ok_or_else(|| Error::Input(format!("expected auto, cpu, cuda or cuda:NUMBER, found {text:?}")))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(ordinal: usize) -> std::result::Result<Device, String> {
    crate::cuda::start(ordinal)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize) -> std::result::Result<Device, String> {
    Err("this program was built without CUDA".to_owned())
}

/// A float dtype by its name: `f32`, `f16` or `bf16`.
pub fn float_dtype(name: &str) -> Result<DType> {
    match name {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err(Error::Input(format!("expected f32, f16 or bf16, found {name:?}"))),
    }
}

/// Whether a float dtype is narrower than f32.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// What is computed.
///
/// ```
/// use candle_models::candle_core::{DType, Device};
/// use candle_models::device::{Purpose, compute_dtype};
/// # fn main() -> candle_models::Result<()> {
/// assert_eq!(compute_dtype(Some(DType::F32), &Device::Cpu, Purpose::Inference)?, DType::F32);
/// assert!(compute_dtype(Some(DType::F16), &Device::Cpu, Purpose::Inference).is_err()); // it would be widened for every product
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Answers of a trained model.
    Inference,
    /// Parameters, which stay in f32 whatever is computed in.
    Training,
    /// Training whose passes are tapes ([`Tapes`](crate::network::Tapes)): the CPU takes their products in bf16 where it has instructions for that.
    Tapes,
}

/// The dtype to compute in: what was typed, or else what [`DTYPE_VARIABLE`] says, or else the fastest that is exact enough on this
/// device: bf16 for inference on CUDA, where all supported GPUs have tensor cores for it, and f32 for anything else.
///
/// # Errors
/// If the variable holds something else than a dtype; if a narrow one is asked for on a CPU that would widen it for every product. bf16 is what the CPU
/// takes products in where it multiplies it faster than f32 (Intel's AMX, and on tapes and in the engine AMD's AVX-512); values between them are f32.
pub fn compute_dtype(typed: Option<DType>, device: &Device, purpose: Purpose) -> Result<DType> {
    let asked = match (typed, std::env::var_os(DTYPE_VARIABLE)) {
        (Some(dtype), _) => Some(dtype),
        (None, Some(value)) => {
            Some(float_dtype(&value.to_string_lossy()).map_err(|e| Error::config("dtype", format!("{DTYPE_VARIABLE}: {e}")))?)
        }
        (None, None) => None,
    };
    let allowed = match (device, purpose) {
        (Device::Cuda(_), Purpose::Inference) => [DType::BF16, DType::F16, DType::F32].as_slice(),
        (Device::Cuda(_), Purpose::Training | Purpose::Tapes) => &[DType::F32, DType::BF16, DType::F16],
        // bf16 is then what products are taken in, between f32 values.
        (_, Purpose::Inference | Purpose::Tapes) if crate::ops::has_bf16_products() => &[DType::F32, DType::BF16],
        (_, Purpose::Training) if crate::ops::simd::has_tiles() => &[DType::F32, DType::BF16],
        _ => &[DType::F32],
    };
    let dtype = asked.unwrap_or(allowed[0]);
    if allowed.contains(&dtype) {
        return Ok(dtype);
    }
    let names: Vec<&str> = allowed.iter().map(|dtype| dtype.as_str()).collect();
    let place = if device.is_cuda() { "in training" } else { "on this device" };
    Err(Error::config("dtype", format!("expected {} {place}, found {}", names.join(" or "), dtype.as_str())))
}

/// The instruction set that the CPU kernels use: `amx`, `avx512vnni`, `avx512`, `avx2`, `neon` or `portable`; the best that the
/// machine has, unless [`SIMD_VARIABLE`] lowers it. It stays the same for the life of the process.
pub fn simd() -> &'static str {
    crate::ops::simd::path().name
}

/// The instruction sets that this machine has, best first: what [`SIMD_VARIABLE`] may say.
pub fn simd_available() -> Vec<&'static str> {
    crate::ops::simd::available()
}

/// How many threads to compute with: `requested`, or [`THREADS_VARIABLE`], or the processors that this process may use
/// (its affinity mask and its control group's quota counted in).
///
/// # Errors
/// If the number is not from 1 to 1024.
pub fn threads(requested: Option<usize>) -> Result<usize> {
    let check = |n: Option<usize>, found: &dyn fmt::Display, from: &str| {
        n.filter(|n| (1..=MAX_THREADS).contains(n))
            .ok_or_else(|| Error::Input(format!("{from}: expected a number from 1 to {MAX_THREADS}, found {found}")))
    };
    if let Some(n) = requested {
        return check(Some(n), &n, "threads");
    }
    match std::env::var_os(THREADS_VARIABLE) {
        Some(value) => {
            let value = value.to_string_lossy();
            check(value.parse().ok(), &format!("{value:?}"), THREADS_VARIABLE)
        }
        None => Ok(std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS))),
    }
}

/// Makes Candle, `gemm` and Rayon use `threads` threads. The first thing a program does after reading its arguments:
///
/// ```
/// # fn main() -> candle_models::Result<()> {
/// use candle_models::device;
///
/// let threads = device::threads(None)?;
/// // SAFETY: no other thread has been started yet.
/// unsafe { device::configure_threads(threads) };
/// # Ok(())
/// # }
/// ```
///
/// Candle asks the environment for the number of threads at every matrix product, and without an answer counts the
/// physical cores in `/proc/cpuinfo`, 61 us a time; it also ignores the control group's quota. Rayon's global pool takes
/// the number when it is first used, so a later call changes nothing.
///
/// Candle's second pool, for elementwise operations, gets one thread: its barriers spin, and on a machine that other
/// work shares a training step took 2 to 4 times as long with two.
///
/// # Safety
/// It changes the process's environment: no other thread may be running.
pub unsafe fn configure_threads(threads: usize) {
    let threads = threads.clamp(1, MAX_THREADS).to_string();
    // SAFETY: the caller promises that there is no other thread.
    unsafe {
        std::env::set_var("RAYON_NUM_THREADS", &threads);
        std::env::set_var("CANDLE_NUM_THREADS", "1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_as_they_are_written() {
        for (text, choice) in [("auto", DeviceChoice::Auto), ("cpu", DeviceChoice::Cpu), ("cuda:3", DeviceChoice::Cuda(3))] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Cuda(0));
        for text in ["", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999999999999"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert_eq!(error, format!("expected auto, cpu, cuda or cuda:NUMBER, found {text:?}"));
        }
    }

    #[test]
    fn a_missing_device_is_an_error_and_never_the_cpu() {
        assert!(DeviceChoice::Cpu.open().unwrap().device.is_cpu());
        if !candle_core::utils::cuda_is_available() {
            let error = DeviceChoice::Cuda(0).open().unwrap_err().to_string();
            assert_eq!(error, "device cuda:0: this program was built without CUDA");
        }
        DeviceChoice::Auto.open().unwrap();
        assert!(DeviceChoice::Cuda(10_000).open().unwrap_err().to_string().starts_with("device cuda:10000: "));
    }

    #[test]
    fn narrow_dtypes_stay_off_a_cpu_that_would_widen_them() {
        let asked = |dtype, purpose| compute_dtype(Some(float_dtype(dtype).unwrap()), &Device::Cpu, purpose);
        for purpose in [Purpose::Inference, Purpose::Training, Purpose::Tapes] {
            assert_eq!(compute_dtype(None, &Device::Cpu, purpose).unwrap(), DType::F32);
            assert!(asked("f16", purpose).is_err());
        }
        match asked("bf16", Purpose::Training) {
            Ok(dtype) => assert!(dtype == DType::BF16 && crate::ops::simd::has_tiles()),
            Err(error) => assert_eq!(error.to_string(), "config: dtype: expected f32 on this device, found bf16"),
        }
        assert!(float_dtype("f8").is_err());
        for purpose in [Purpose::Inference, Purpose::Tapes] {
            assert_eq!(asked("bf16", purpose).is_ok(), crate::ops::has_bf16_products());
        }
    }

    #[test]
    fn thread_numbers_are_bounded() {
        assert_eq!(threads(Some(3)).unwrap(), 3);
        for n in [0, 1025, usize::MAX] {
            assert_eq!(threads(Some(n)).unwrap_err().to_string(), format!("threads: expected a number from 1 to 1024, found {n}"));
        }
    }
}
