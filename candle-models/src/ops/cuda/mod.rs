//! What operations on CUDA share: products, sums, random numbers, and what comes before the text of every kernel. An operation's own
//! kernels lie in its folder, beside a file that launches them.
//!
//! A launch takes addresses ([`Matrix`](crate::cuda::Matrix)), so that custom operations on tensors and recorded programs share
//! it. Activations have the dtype of the launch; gains, offsets, convolution taps, A, D and recurrent state are f32.

pub(crate) mod cross_entropy;
pub(crate) mod episode;
pub(crate) mod philox;
pub(crate) mod product;
pub(crate) mod sums;
#[cfg(test)]
mod tests;

use super::Activation;
use crate::cuda::{self, States};
use candle_core::{DType, Device, Result, Tensor, bail};

/// What comes before the text of every source.
pub(crate) const COMMON: &str = include_str!("common.cuh");

/// An activation's number in `common.cuh`.
pub(crate) fn activation_code(act: Activation) -> u32 {
    match act {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::Silu => 3,
    }
}

/// One reset a row on the device; nothing to upload where there is none.
pub(crate) struct Resets(Option<Tensor>);

impl Resets {
    /// In the order of the rows.
    pub fn new(resets: &[bool], device: &Device) -> Result<Self> {
        let any = resets.contains(&true);
        let bytes = || resets.iter().map(|r| u8::from(*r)).collect::<Vec<_>>();
        Ok(Self(any.then(|| Tensor::from_vec(bytes(), resets.len(), device)).transpose()?))
    }

    /// Its address, 0 for none.
    pub fn address(&self) -> Result<u64> {
        self.0.as_ref().map_or(Ok(0), cuda::address)
    }
}

/// The states of a batch as a tensor `[B, ...]` in f32, one slot behind the other.
pub(crate) fn states_of(tensor: &Tensor) -> Result<States> {
    let batch = tensor.dim(0)?;
    if tensor.dtype() != DType::F32 {
        bail!("a recurrent state is f32 on CUDA, found {:?}", tensor.dtype());
    }
    Ok(States { data: cuda::address(tensor)?, stride: (tensor.elem_count() / batch) as u64, slots: 0 })
}
