//! Memory of an executor on CUDA: device blocks that never move, and pinned host memory that copies go through.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Why memory was not to be had.
pub(super) enum Failure {
    /// It is too much: bytes asked for.
    TooMuch(usize),
    Other(result::DriverError),
}

/// Zeroed device memory.
pub(super) struct Block {
    slice: CudaSlice<u8>,
    address: u64,
}

impl Block {
    pub fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, Failure> {
        // A kernel that gets no memory still wants an address.
        let bytes = bytes.max(256);
        let slice = stream.alloc_zeros::<u8>(bytes).map_err(|e| match e.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => Failure::TooMuch(bytes),
            _ => Failure::Other(e),
        })?;
        // Without event tracking the guard does nothing.
        let address = slice.device_ptr(stream).0;
        Ok(Self { slice, address })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.slice.len()
    }
}

/// Zeroed host memory that the device can read and write while the host goes on; 32-bit words.
pub(super) struct Pinned {
    words: *mut u32,
    len: usize,
    stream: Arc<CudaStream>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(stream: &Arc<CudaStream>, len: usize) -> Result<Self, Failure> {
        let bytes = 4 * len.max(1);
        stream.context().bind_to_thread().map_err(Failure::Other)?;
        // SAFETY: the memory is freed in `drop`; zeros are valid words.
        let words = unsafe {
            let words = result::malloc_host(bytes, 0).map_err(|e| match e.0 {
                sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => Failure::TooMuch(bytes),
                _ => Failure::Other(e),
            })?;
            words.cast::<u8>().write_bytes(0, bytes);
            words.cast::<u32>()
        };
        Ok(Self { words, len, stream: stream.clone() })
    }

    pub fn words(&mut self) -> &mut [u32] {
        // SAFETY: allocated with this length, and borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.words, self.len) }
    }

    /// The memory, for copies that the device makes later.
    pub fn pointer(&self) -> *mut c_void {
        self.words.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: allocated by `malloc_host`; who owns this has waited for the copies.
        context.record_err(unsafe { result::free_host(self.words.cast()) });
    }
}
