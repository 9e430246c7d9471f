//! Host memory that the device reads and writes by itself.

use candle_core::cuda_backend::cudarc::driver::{CudaStream, DriverError, result};
use std::ffi::c_void;
use std::sync::Arc;

/// Zeroed host memory that the device can read and write while the host goes on; 32-bit words.
pub(crate) struct Pinned {
    words: *mut u32,
    len: usize,
    stream: Arc<CudaStream>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Memory for `len` words, for the device of a stream.
    pub fn new(stream: &Arc<CudaStream>, len: usize) -> Result<Self, DriverError> {
        let bytes = Self::bytes(len);
        stream.context().bind_to_thread()?;
        // SAFETY: the memory is freed in `drop`; zeros are valid words.
        let words = unsafe {
            let words = result::malloc_host(bytes, 0)?;
            words.cast::<u8>().write_bytes(0, bytes);
            words.cast::<u32>()
        };
        Ok(Self { words, len, stream: stream.clone() })
    }

    /// Bytes that memory for `len` words takes.
    pub fn bytes(len: usize) -> usize {
        // None at all is not to be had.
        4 * len.max(1)
    }

    /// The words. Who writes to them has waited for the copies from here, who reads for those to here.
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
