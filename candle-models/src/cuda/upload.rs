//! Copies to the device beside its computing.

use super::pinned::Pinned;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, DevicePtr, result, sys};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Storage, Tensor};
use std::sync::Arc;

/// Pinned memory for values on their way to a device: written by any thread, copied again and again.
pub struct Staging {
    pinned: Pinned,
    len: usize,
    /// The last copy from here.
    copied: Option<Arc<CudaEvent>>,
}

impl Staging {
    /// Memory for `len` values.
    ///
    /// # Errors
    /// If the system has no more memory to pin.
    pub fn new(device: &CudaDevice, len: usize) -> Result<Self> {
        Ok(Self { pinned: Pinned::new(&device.cuda_stream(), len).w()?, len, copied: None })
    }

    /// The values, to be written. Waits until the last copy from here is done.
    pub fn values(&mut self) -> Result<&mut [f32]> {
        if let Some(copied) = self.copied.take() {
            copied.synchronize().w()?;
        }
        let words = self.pinned.words();
        // SAFETY: the same memory with values of the same size and alignment; any bits are a valid number.
        Ok(unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(copied) = self.copied.take() {
            copied.context().record_err(copied.synchronize());
        }
    }
}

/// Copies to a device on a stream of their own.
pub struct Uploader {
    device: CudaDevice,
    computing: Arc<CudaStream>,
    copies: Arc<CudaStream>,
}

impl Uploader {
    /// A stream for copies to a device.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let computing = device.cuda_stream();
        Ok(Self { copies: computing.context().new_stream().w()?, computing, device: device.clone() })
    }

    /// Starts a copy of all values. To be called by the thread that computes on the device: the tensor's memory comes from the
    /// device's own stream, so that it is freed behind all that reads it. The copy waits for what that stream was given before,
    /// and for nothing after.
    pub fn start(&self, staging: &mut Staging) -> Result<Upload> {
        // SAFETY: the copy writes all of it before the computing stream goes on behind `Upload::finish`.
        let slice = unsafe { self.device.alloc::<f32>(staging.len)? };
        // Without event tracking the guard does nothing.
        let address = slice.device_ptr(&self.computing).0;
        let copied = self.computing.context().new_event(Some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC)).w()?;
        let copied = Arc::new(copied);
        // The memory may have been another tensor's until the computing stream comes to its allocation.
        self.copies.join(&self.computing).w()?;
        // A copy before this one is done when this one is: `copied` is for both.
        // SAFETY: as many bytes here as there; here they stay until `copied`, there behind the wait of `Upload`.
        unsafe {
            let from = std::slice::from_raw_parts(staging.pinned.pointer().cast::<f32>(), staging.len);
            result::memcpy_htod_async(address, from, self.copies.cu_stream()).w()?;
        }
        if let Err(error) = copied.record(&self.copies) {
            // Nobody could wait for the copy any more.
            self.copies.synchronize().w()?;
            return Err(error).w();
        }
        staging.copied = Some(copied.clone());
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, self.device.clone()));
        let tensor = Tensor::from_storage(storage, staging.len, BackpropOp::none(), false);
        Ok(Upload { tensor, copied, computing: self.computing.clone() })
    }
}

/// A copy under way.
pub struct Upload {
    tensor: Tensor,
    copied: Arc<CudaEvent>,
    computing: Arc<CudaStream>,
}

impl Upload {
    /// The values on the device, `[len]`. The host does not wait: what the computing stream is given from now on does.
    pub fn finish(self) -> Result<Tensor> {
        self.computing.wait(&self.copied).w()?;
        Ok(self.tensor.clone())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Given up or not: the memory is freed behind the copy.
        self.copied.context().record_err(self.computing.wait(&self.copied));
    }
}
