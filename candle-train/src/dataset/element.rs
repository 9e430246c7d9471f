//! The two kinds of values: floats and indices.

use candle_models::Result;
use candle_models::signature::TensorSpec;
use candle_models::tensors::StoredTensor;

/// A value of a data set: `f32` in tensors of floats, `u32` in tensors of indices.
pub trait Element: sealed::Number {}

impl Element for f32 {}
impl Element for u32 {}

pub(super) mod sealed {
    use super::{Result, StoredTensor, TensorSpec};

    pub trait Number: candle_core::WithDType + bytemuck::Pod + Default {
        /// Reads values of a file; tells the place of one that does not fit, and what it is.
        fn decode(tensor: &StoredTensor, bytes: &[u8], values: &mut [Self]) -> Result<(), (usize, i64)>;
        /// Checks rows that `first` others come before.
        fn check(spec: &TensorSpec, first: usize, values: &[Self]) -> Result<()>;
    }

    impl Number for f32 {
        fn decode(tensor: &StoredTensor, bytes: &[u8], values: &mut [Self]) -> Result<(), (usize, i64)> {
            tensor.decode_f32(bytes, values);
            Ok(())
        }
        fn check(spec: &TensorSpec, first: usize, values: &[Self]) -> Result<()> {
            spec.check_f32_from(first, values)
        }
    }

    impl Number for u32 {
        fn decode(tensor: &StoredTensor, bytes: &[u8], values: &mut [Self]) -> Result<(), (usize, i64)> {
            tensor.decode_u32(bytes, values)
        }
        fn check(spec: &TensorSpec, first: usize, values: &[Self]) -> Result<()> {
            spec.check_u32_from(first, values)
        }
    }
}
