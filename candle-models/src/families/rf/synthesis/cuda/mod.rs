//! The generators on an NVIDIA GPU.

pub(super) mod compatible;
pub(super) mod physical;

use crate::Result;
use candle_core::{Device, Tensor};

/// Samples of a part, which a block makes, and its threads: `PART` and `THREADS` in the sources.
const PART: usize = 1024;
const THREADS: usize = 256;

/// Rows of a table in the device's memory, as bytes.
///
/// # Safety
/// `T` has no padding.
unsafe fn table<T: Copy>(rows: &[T], device: &Device) -> Result<Tensor> {
    // SAFETY: the rows are initialised, and have no padding by the caller's word.
    let bytes = unsafe { std::slice::from_raw_parts(rows.as_ptr().cast::<u8>(), std::mem::size_of_val(rows)) };
    Ok(Tensor::from_slice(bytes, bytes.len(), device)?)
}
