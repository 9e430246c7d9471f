//! Fourier transforms: cuFFT, opened when the first one is asked for, so that programs without them need no such library.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::{CudaDevice, DType, Error, Result, Tensor, bail};
use libloading::Library;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// cuFFT of CUDA 13.
const LIBRARY: &str = "libcufft.so.12";

/// What is transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Complex numbers of f32, `[batch, length, 2]`, into as many bins.
    Complex,
    /// The same in f64.
    Complex64,
    /// Complex numbers of f64 on a square, `[batch, length, length, 2]`, over both axes.
    Square64,
    /// Real numbers of f32, `[batch, length]`, into the bins of frequencies that are not negative, `[batch, length / 2 + 1, 2]`.
    Real,
}

impl Transform {
    /// `cufftType`.
    fn code(self) -> c_uint {
        match self {
            Self::Complex => 0x29,
            Self::Complex64 | Self::Square64 => 0x69,
            Self::Real => 0x2a,
        }
    }

    /// Numbers of a row that goes in, and of one that comes out.
    fn row(self, length: usize) -> [usize; 2] {
        match self {
            Self::Complex | Self::Complex64 => [2 * length; 2],
            Self::Square64 => [2 * length * length; 2],
            Self::Real => [length, 2 * (length / 2 + 1)],
        }
    }

    fn axes(self) -> usize {
        if self == Self::Square64 { 2 } else { 1 }
    }

    fn dtype(self) -> DType {
        match self {
            Self::Complex | Self::Real => DType::F32,
            Self::Complex64 | Self::Square64 => DType::F64,
        }
    }
}

/// Plans by what they transform, their length and their batch.
pub(super) type Plans = Mutex<HashMap<(Transform, usize, usize), Arc<Plan>>>;

/// The plan of a batch of transforms of one length, with the memory that it works in. What it computes repeats bit for bit.
pub struct Plan {
    handle: Handle,
    of: Transform,
    length: usize,
    batch: usize,
    stream: Arc<CudaStream>,
    /// Given up behind the last transform in the stream's order.
    _work: CudaSlice<u8>,
}

/// The plan of a batch, made when it is first asked for and kept.
pub(super) fn plan(plans: &Plans, device: &CudaDevice, of: Transform, length: usize, batch: usize) -> Result<Arc<Plan>> {
    let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(plan) = plans.get(&(of, length, batch)) {
        return Ok(plan.clone());
    }
    let plan = Arc::new(Plan::new(device, of, length, batch)?);
    plans.insert((of, length, batch), plan.clone());
    Ok(plan)
}

impl Plan {
    fn new(device: &CudaDevice, of: Transform, length: usize, batch: usize) -> Result<Self> {
        let (api, stream) = (Api::get()?, device.cuda_stream());
        let (Ok(n), Ok(rows)) = (c_int::try_from(length), c_int::try_from(batch)) else {
            bail!("{batch} Fourier transforms of {length} numbers are too many for one plan");
        };
        let (mut lengths, axes) = ([n; 2], of.axes() as c_int);
        let handle = Handle::new(api, &stream)?;
        let mut bytes = 0;
        // SAFETY: the handle is new; the lengths of the axes, rows one behind the other, and a place for the size.
        let made = unsafe {
            check("set up", (api.set_auto_allocation)(handle.number, 0))?;
            (api.make)(handle.number, axes, lengths.as_mut_ptr(), null_mut(), 1, 0, null_mut(), 1, 0, of.code(), rows, &mut bytes)
        };
        check("make", made)?;
        // SAFETY: the library writes what it reads there.
        let work = unsafe { device.alloc::<u8>(bytes.max(1))? };
        // Without event tracking the guard beside the address does nothing.
        let area = work.device_ptr(&stream).0;
        // SAFETY: the memory lives as long as the plan, and its allocation lies before all transforms in the same stream.
        unsafe {
            check("set up", (api.set_work_area)(handle.number, area as *mut c_void))?;
            check("set up", (api.set_stream)(handle.number, stream.cu_stream().cast()))?;
        }
        Ok(Self { handle, of, length, batch, stream, _work: work })
    }

    /// Puts the transforms of all rows on the device's stream: not normalised, `exp(-2 pi i k n / length)`. Complex ones may be made in place.
    ///
    /// # Errors
    /// If a tensor is no contiguous one of the plan's size and dtype on its device.
    pub fn forward(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        self.execute(from, to, -1)
    }

    /// The same with `exp(2 pi i k n / length)`, of complex numbers alone: forwards and back, every number is as many times itself as a row has places.
    ///
    /// # Errors
    /// As for [`Self::forward`], or if the transform is one of real numbers.
    pub fn inverse(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        if self.of == Transform::Real {
            bail!("Fourier transforms: those of real numbers have no inverse here");
        }
        self.execute(from, to, 1)
    }

    fn execute(&self, from: &Tensor, to: &Tensor, direction: c_int) -> Result<()> {
        let ([rows, bins], dtype) = (self.of.row(self.length), self.of.dtype());
        let [from, to] = [(from, rows), (to, bins)].map(|(tensor, row)| {
            if tensor.dtype() != dtype || tensor.elem_count() != self.batch * row {
                let (batch, dtype, found) = (self.batch, dtype.as_str(), tensor.dtype());
                bail!("Fourier transforms: expected {batch} x {row} numbers of {dtype}, found {found:?} {:?}", tensor.shape());
            }
            let device = super::device_of(tensor)?;
            if device.cuda_stream().cu_stream() != self.stream.cu_stream() {
                bail!("Fourier transforms: a tensor lies on another device than their plan");
            }
            super::address(tensor)
        });
        let (from, to) = (from? as *mut c_void, to? as *mut c_void);
        self.stream.context().bind_to_thread().w()?;
        let (api, number) = (self.handle.api, self.handle.number);
        // SAFETY: both have been found to have the plan's size, and are freed behind the transforms in the same stream.
        let status = unsafe {
            match self.of {
                Transform::Complex => (api.complex)(number, from, to, direction),
                Transform::Complex64 | Transform::Square64 => (api.complex64)(number, from, to, direction),
                Transform::Real => (api.real)(number, from, to),
            }
        };
        check("start", status)
    }
}

/// A plan of the library's.
struct Handle {
    api: &'static Api,
    number: c_int,
    stream: Arc<CudaStream>,
}

impl Handle {
    fn new(api: &'static Api, stream: &Arc<CudaStream>) -> Result<Self> {
        // The library works in the context of the thread.
        stream.context().bind_to_thread().w()?;
        let mut number = 0;
        // SAFETY: a place for the handle.
        check("create", unsafe { (api.create)(&mut number) })?;
        Ok(Self { api, number, stream: stream.clone() })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: made by `new`, and nobody uses it any more.
        let _ = unsafe { (self.api.destroy)(self.number) };
    }
}

type Make =
    unsafe extern "C" fn(c_int, c_int, *mut c_int, *mut c_int, c_int, c_int, *mut c_int, c_int, c_int, c_uint, c_int, *mut usize) -> c_int;

type Complex = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_int) -> c_int;

/// The functions of cuFFT that are used, as its header declares them.
struct Api {
    create: unsafe extern "C" fn(*mut c_int) -> c_int,
    set_auto_allocation: unsafe extern "C" fn(c_int, c_int) -> c_int,
    make: Make,
    set_work_area: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    set_stream: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    complex: Complex,
    complex64: Complex,
    real: unsafe extern "C" fn(c_int, *mut c_void, *mut c_void) -> c_int,
    destroy: unsafe extern "C" fn(c_int) -> c_int,
    _library: Library,
}

impl Api {
    /// The library, opened once.
    fn get() -> Result<&'static Self> {
        static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
        API.get_or_init(|| Self::open(LIBRARY)).as_ref().map_err(|error| Error::Msg(error.clone()))
    }

    fn open(name: &str) -> std::result::Result<Self, String> {
        let missing = |error: libloading::Error| {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            format!(
                "Fourier transforms on a GPU need cuFFT ({name}), which cannot be opened: {cause}; install the CUDA 13 runtime libraries, or name their \
                 folder in LD_LIBRARY_PATH"
            )
        };
        // SAFETY: loading such a library runs its initialisers, which any CUDA program runs; the functions have the types of its header.
        unsafe {
            let library = Library::new(name).map_err(missing)?;
            Ok(Self {
                create: *library.get("cufftCreate").map_err(missing)?,
                set_auto_allocation: *library.get("cufftSetAutoAllocation").map_err(missing)?,
                make: *library.get("cufftMakePlanMany").map_err(missing)?,
                set_work_area: *library.get("cufftSetWorkArea").map_err(missing)?,
                set_stream: *library.get("cufftSetStream").map_err(missing)?,
                complex: *library.get("cufftExecC2C").map_err(missing)?,
                complex64: *library.get("cufftExecZ2Z").map_err(missing)?,
                real: *library.get("cufftExecR2C").map_err(missing)?,
                destroy: *library.get("cufftDestroy").map_err(missing)?,
                _library: library,
            })
        }
    }
}

fn check(what: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        2 => bail!("cuFFT cannot {what} transforms: out of memory"),
        status => bail!("cuFFT cannot {what} transforms: status {status} (cufftResult)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_helps() {
        let error = Api::open("libcufft-that-is-not-there.so").err().unwrap();
        assert!(
            error.contains("need cuFFT") && error.contains("libcufft-that-is-not-there.so") && error.contains("LD_LIBRARY_PATH"),
            "{error}"
        );
    }
}
