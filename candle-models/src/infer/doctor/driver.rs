//! The NVIDIA driver and its devices, asked through the driver's own library: in every build, linked or not.

use libloading::Library;
use serde::Serialize;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// What the driver's installation is called.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// A status of the driver's library that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Status(pub c_int);

/// The statuses that a start can end with, and what to do about each.
const STATUSES: [(c_int, &str, &str); 8] = [
    (34, "the driver's library is a stub that programs are linked against", "take the toolkit's lib/stubs folder out of LD_LIBRARY_PATH"),
    (35, "the driver is older than the libraries", "install driver 580 or newer"),
    (46, "the device is in use or unavailable", "see `nvidia-smi` for who holds it and for its compute mode"),
    (100, "no CUDA device", "check that `nvidia-smi` lists the GPU and that CUDA_VISIBLE_DEVICES does not hide it"),
    (802, "the system is not ready", "start the NVIDIA fabric manager, which machines with NVSwitch need"),
    (803, "driver library and kernel module differ in version", "restart the machine, or load the kernel module of the installed driver"),
    (804, "this GPU does not support the compatibility package", "take the cuda-compat folder out of LD_LIBRARY_PATH"),
    (999, "unknown error of the driver", "see `dmesg` for messages of the kernel module, then restart the machine"),
];

impl Status {
    fn known(self) -> Option<&'static (c_int, &'static str, &'static str)> {
        STATUSES.iter().find(|(status, ..)| *status == self.0)
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        self.known().map_or("look the number up among the CUresult values of the CUDA driver API", |(_, _, remedy)| remedy)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.known() {
            Some((status, what, _)) => write!(f, "{what} (status {status})"),
            None => write!(f, "status {}", self.0),
        }
    }
}

/// A device as the driver describes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// The number behind `cuda:`.
    pub ordinal: usize,
    /// `NVIDIA H200`.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// Bytes.
    pub memory: u64,
    /// Bytes that a program could take at this moment, or why the device could not be opened.
    pub free: Result<u64, Status>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Driver {
    /// The newest CUDA that the driver runs, 1000 times the major and 10 times the minor version.
    pub cuda: Option<u32>,
    /// The devices, or why there are none.
    pub devices: Result<Vec<Gpu>, Status>,
}

/// Asks the driver; `None` where it is not installed.
pub fn detect() -> Option<Driver> {
    let api = Api::open()?;
    let mut version = 0;
    let cuda = api.call("cuDriverGetVersion", &mut version).ok().and_then(|()| u32::try_from(version).ok()).filter(|v| *v > 0);
    Some(Driver { cuda, devices: api.devices() })
}

/// The library with the calls that are made of it.
struct Api(Library);

/// `cuDeviceGetAttribute`'s numbers.
const MULTIPROCESSORS: c_int = 16;
const CAPABILITY: [c_int; 2] = [75, 76];
/// What is said of a library that lacks one of its functions.
const NOT_FOUND: Status = Status(500);

impl Api {
    fn open() -> Option<Self> {
        // SAFETY: loading the driver's library runs its initialisers, which any CUDA program runs.
        unsafe { Library::new(LIBRARY) }.ok().map(Self)
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` is its type.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, Status> {
        // SAFETY: the caller's promise.
        unsafe { self.0.get::<F>(name) }.map(|f| *f).map_err(|_| NOT_FOUND)
    }

    /// A function of one pointer to an integer.
    fn call(&self, name: &str, out: &mut c_int) -> Result<(), Status> {
        // SAFETY: only `cuDriverGetVersion` and `cuDeviceGetCount` are called so, and both take a pointer to an int.
        unsafe { check(self.function::<unsafe extern "C" fn(*mut c_int) -> c_int>(name)?(out)) }
    }

    fn devices(&self) -> Result<Vec<Gpu>, Status> {
        let mut count = 0;
        // SAFETY: as cuda.h declares it.
        unsafe { check(self.function::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit")?(0))? };
        self.call("cuDeviceGetCount", &mut count)?;
        (0..count).map(|ordinal| self.device(ordinal)).collect()
    }

    fn device(&self, ordinal: c_int) -> Result<Gpu, Status> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
        type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
        type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
        let (mut device, mut name, mut memory) = (0, [0 as c_char; 256], 0);
        // SAFETY: as cuda.h declares them; the name is cut to 255 characters and a zero.
        unsafe {
            check(self.function::<Get>("cuDeviceGet")?(&mut device, ordinal))?;
            check(self.function::<Name>("cuDeviceGetName")?(name.as_mut_ptr(), 255, device))?;
            check(self.function::<Memory>("cuDeviceTotalMem_v2")?(&mut memory, device))?;
        }
        // SAFETY: the last character is still the zero that it was.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let [major, minor] = CAPABILITY.map(|number| self.attribute(number, device));
        Ok(Gpu {
            ordinal: ordinal as usize,
            name,
            capability: (major?, minor?),
            multiprocessors: self.attribute(MULTIPROCESSORS, device)?,
            memory: memory as u64,
            free: self.free(device),
        })
    }

    fn attribute(&self, number: c_int, device: c_int) -> Result<u32, Status> {
        type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        let mut value = 0;
        // SAFETY: as cuda.h declares it.
        unsafe { check(self.function::<Attribute>("cuDeviceGetAttribute")?(&mut value, number, device))? };
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Opens the device as a program would, asks for its free memory and closes it.
    fn free(&self, device: c_int) -> Result<u64, Status> {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
        type Release = unsafe extern "C" fn(c_int) -> c_int;
        let (mut context, mut free, mut total) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: as cuda.h declares them; the context is current while it is asked and let go once.
        unsafe {
            check(self.function::<Retain>("cuDevicePrimaryCtxRetain")?(&mut context, device))?;
            let asked = check(self.function::<SetCurrent>("cuCtxSetCurrent")?(context))
                .and_then(|()| check(self.function::<Info>("cuMemGetInfo_v2")?(&mut free, &mut total)));
            let closed = check(self.function::<Release>("cuDevicePrimaryCtxRelease_v2")?(device));
            asked.and(closed)?;
        }
        Ok(free as u64)
    }
}

fn check(status: c_int) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_it_means_and_what_to_do() {
        assert_eq!(Status(100).to_string(), "no CUDA device (status 100)");
        assert!(Status(100).remedy().contains("nvidia-smi"));
        assert_eq!(Status(123).to_string(), "status 123");
        assert!(STATUSES.is_sorted_by_key(|(status, ..)| *status));
    }

    #[test]
    fn whatever_driver_there_is_answers() {
        // None on most machines, no device with a stub, devices with a driver: never a crash.
        if let Some(Driver { devices: Ok(devices), .. }) = detect() {
            assert!(devices.iter().all(|gpu| gpu.memory > 0 && gpu.capability.0 > 0 && !gpu.name.is_empty()));
        }
    }
}
