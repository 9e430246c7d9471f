//! The gates of a gated recurrent unit (Cho et al. 2014, with the reset inside the candidate as PyTorch has it).
//!
//! `r, z = sigmoid(x + h)`, `n = tanh(x_n + r h_n)`, `h' = (1 - z) n + z h`; the products with the weights come in as arguments.

use super::simd::{self, kernel};
use candle_core::{D, Result, Tensor};

kernel! {
    /// One row: `x` and `h` are the products `[3 width]` of input and hidden state, `state` `[width]` is updated in place.
    pub(crate) fn gru_row<S>(x: &'a [f32], h: &'a [f32], state: &'a mut [f32]) {
        let n = state.len();
        let (xr, xz, xn) = (&x[..n], &x[n..2 * n], &x[2 * n..3 * n]);
        let (hr, hz, hn) = (&h[..n], &h[n..2 * n], &h[2 * n..3 * n]);
        for (i, s) in state.iter_mut().enumerate() {
            let r = simd::sigmoid::<S>(xr[i] + hr[i]);
            let z = simd::sigmoid::<S>(xz[i] + hz[i]);
            let candidate = simd::tanh::<S>(simd::fma::<S>(r, hn[i], xn[i]));
            *s = simd::fma::<S>(z, *s - candidate, candidate);
        }
    }
}

/// The same on tensors with gradients: `x`, `h` `[B, 3 width]`, `state` `[B, width]`; returns the new state.
pub fn gru_gates(x: &Tensor, h: &Tensor, state: &Tensor) -> Result<Tensor> {
    let (x, h) = (x.chunk(3, D::Minus1)?, h.chunk(3, D::Minus1)?);
    // tanh(y / 2) / 2 + 1/2 is the logistic function, with a gradient on every backend.
    let sigmoid = |y: Tensor| (y * 0.5)?.tanh()?.affine(0.5, 0.5);
    let r = sigmoid((&x[0] + &h[0])?)?;
    let z = sigmoid((&x[1] + &h[1])?)?;
    let candidate = (&x[2] + (r * &h[2])?)?.tanh()?;
    &candidate + (z * (state - &candidate)?)?
}
