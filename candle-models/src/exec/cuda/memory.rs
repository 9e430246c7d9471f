//! Memory of an executor on CUDA: device blocks that never move.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, sys};
use std::sync::Arc;

/// Why memory was not to be had.
pub(super) enum Failure {
    /// It is too much: bytes asked for.
    TooMuch(usize),
    Other(DriverError),
}

impl Failure {
    /// Of an allocation of so many bytes.
    pub fn of(bytes: usize) -> impl FnOnce(DriverError) -> Self {
        move |error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => Self::TooMuch(bytes),
            _ => Self::Other(error),
        }
    }
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
        let slice = stream.alloc_zeros::<u8>(bytes).map_err(Failure::of(bytes))?;
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
