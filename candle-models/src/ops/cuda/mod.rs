//! The fused operations on CUDA: for each a file of kernels and one that launches them.
//!
//! A launch takes addresses ([`Matrix`](crate::cuda::Matrix)), so that custom operations on tensors and recorded programs share
//! it. Activations have the dtype of the launch; gains, offsets, convolution taps, A, D and recurrent state are f32.

pub(crate) mod choose;
pub(crate) mod cross_entropy;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod philox;

use super::Activation;

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
