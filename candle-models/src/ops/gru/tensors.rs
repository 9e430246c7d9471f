//! The gates of a gated recurrent unit (Cho et al. 2014, with the reset inside the candidate as PyTorch has it).
//!
//! `r, z = sigmoid(x + h)`, `n = tanh(x_n + r h_n)`, `h' = (1 - z) n + z h`; the products with the weights come in as arguments.

use crate::ops::linear::{Operand, Target, column_sums};
use crate::ops::simd::{self, kernel};
use crate::ops::{After, Products, Rows, contiguous, is_fused, rows_of, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, D, DType, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;

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

kernel! {
    /// [`gru_row`] that also leaves in `kept` `[4 width]` what the backward reads: r, z, the candidate and the candidate's share of `h`.
    pub(crate) fn gru_row_kept<S>(x: &'a [f32], h: &'a [f32], state: &'a mut [f32], kept: &'a mut [f32]) {
        let n = state.len();
        let (xr, xz, xn) = (&x[..n], &x[n..2 * n], &x[2 * n..3 * n]);
        let (hr, hz, hn) = (&h[..n], &h[n..2 * n], &h[2 * n..3 * n]);
        let (kr, rest) = kept.split_at_mut(n);
        let (kz, rest) = rest.split_at_mut(n);
        let (kc, kn) = rest.split_at_mut(n);
        for (i, s) in state.iter_mut().enumerate() {
            let r = simd::sigmoid::<S>(xr[i] + hr[i]);
            let z = simd::sigmoid::<S>(xz[i] + hz[i]);
            let candidate = simd::tanh::<S>(simd::fma::<S>(r, hn[i], xn[i]));
            *s = simd::fma::<S>(z, *s - candidate, candidate);
            (kr[i], kz[i], kc[i], kn[i]) = (r, z, candidate, hn[i]);
        }
    }
}

kernel! {
    /// One row backwards: `carry` `[width]` holds the gradient of the new state and becomes the direct share of that of the old one;
    /// `dx` and `dh` `[3 width]` become the gradients of the two products.
    pub(crate) fn gru_row_backward<S>(kept: &'a [f32], before: &'a [f32], carry: &'a mut [f32], dx: &'a mut [f32], dh: &'a mut [f32]) {
        let n = carry.len();
        let (kr, kz, kc, kn) = (&kept[..n], &kept[n..2 * n], &kept[2 * n..3 * n], &kept[3 * n..4 * n]);
        let (xr, rest) = dx.split_at_mut(n);
        let (xz, xn) = rest.split_at_mut(n);
        let (hr, rest) = dh.split_at_mut(n);
        let (hz, hn) = rest.split_at_mut(n);
        for (i, g) in carry.iter_mut().enumerate() {
            let (r, z, c) = (kr[i], kz[i], kc[i]);
            let candidate = *g * (1.0 - z) * (1.0 - c * c);
            let reset = simd::counted(candidate * kn[i] * r * (1.0 - r));
            let update = simd::counted(*g * (before[i] - c) * z * (1.0 - z));
            (xr[i], hr[i]) = (reset, reset);
            (xz[i], hz[i]) = (update, update);
            (xn[i], hn[i]) = (simd::counted(candidate), simd::counted(candidate * r));
            *g = simd::counted(*g * z);
        }
    }
}

struct GruOp {
    products: Products,
    batch: usize,
    steps: usize,
    resets: Vec<bool>,
    /// `[B, width]`.
    state: Tensor,
    after: After,
    /// What the backward reads again: r, z, the candidate and its share of `h`, `[rows, 4 width]`, and the state that each frame
    /// started from, `[rows, width]`. On CUDA `[T, B, 4 width]` and `[T, B, width]`.
    kept: OnceLock<[Tensor; 2]>,
}

impl GruOp {
    /// The frames of one step as a matrix with one row per sequence.
    fn frame<'a>(&self, x: &'a [f32], t: usize, width: usize) -> Rows<'a> {
        Rows { data: &x[t * width..], rows: self.batch, width, stride: self.steps * width }
    }

    fn forward(&self, x: Rows, weight: &[f32], bias: &[f32]) -> Result<Vec<f32>> {
        let (steps, width) = (self.steps, bias.len() / 3);
        let rows = self.batch * steps;
        let mut h = self.state.flatten_all()?.to_vec1::<f32>()?;
        let mut products = vec![0.0; self.batch * 3 * width];
        let (mut gates, mut before, mut out) = (vec![0.0; rows * 4 * width], vec![0.0; rows * width], vec![0.0; rows * width]);
        for t in 0..steps {
            for (b, h) in h.chunks_mut(width).enumerate() {
                // A selection, not a product with zero: a reset also clears what is not finite.
                if self.resets[b * steps + t] {
                    h.fill(0.0);
                }
                before[(b * steps + t) * width..][..width].copy_from_slice(h);
                products[b * 3 * width..][..3 * width].copy_from_slice(bias);
            }
            self.products.product(Operand::new(&h, width), Operand::new(weight, 3 * width), &mut products, 3 * width, Target::Sum);
            for (b, (h, product)) in h.chunks_mut(width).zip(products.chunks(3 * width)).enumerate() {
                let frame = b * steps + t;
                gru_row_kept(x.row(frame), product, h, &mut gates[frame * 4 * width..][..4 * width]);
                out[frame * width..][..width].copy_from_slice(h);
            }
        }
        let device = self.state.device();
        self.after.put(Tensor::from_vec(h, self.state.shape(), device)?);
        let kept = [Tensor::from_vec(gates, (rows, 4 * width), device)?, Tensor::from_vec(before, (rows, width), device)?];
        self.kept.get_or_init(|| kept);
        Ok(out)
    }

    /// Gradients of the input products and of the hidden ones, `[rows, 3 width]` each.
    fn backward(&self, weight: &[f32], [gates, before]: [Rows; 2], grad: Rows) -> (Vec<f32>, Vec<f32>) {
        let (steps, width) = (self.steps, grad.width);
        let (mut dx, mut dh) = (vec![0.0; grad.rows * 3 * width], vec![0.0; grad.rows * 3 * width]);
        let mut carry = vec![0.0; self.batch * width];
        for t in (0..steps).rev() {
            for (b, carry) in carry.chunks_mut(width).enumerate() {
                let frame = b * steps + t;
                crate::ops::add_into(carry, grad.row(frame));
                let three = frame * 3 * width..(frame + 1) * 3 * width;
                gru_row_backward(gates.row(frame), before.row(frame), carry, &mut dx[three.clone()], &mut dh[three]);
            }
            let step = self.frame(&dh, t, 3 * width);
            self.products.product(step.into(), Operand::new(weight, 3 * width).t(), &mut carry, width, Target::Sum);
            for (b, carry) in carry.chunks_mut(width).enumerate() {
                if self.resets[b * steps + t] {
                    carry.fill(0.0);
                }
            }
        }
        (dx, dh)
    }
}

impl CustomOp3 for GruOp {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w, b) = (rows_of(x, xl)?, contiguous(w, wl)?, contiguous(b, bl)?);
        Ok((CpuStorage::F32(self.forward(x, w, b)?), (x.rows, b.len() / 3).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        xl: &Layout,
        w: &CudaStorage,
        wl: &Layout,
        b: &CudaStorage,
        bl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let forward = super::cuda::forward(&self.resets, &self.state, (x, xl), (w, wl), (b, bl))?;
        self.after.put(forward.after);
        self.kept.get_or_init(|| forward.kept);
        Ok((forward.out, forward.shape))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(kept) = self.kept.get() else { candle_core::bail!("gru: a backward before the forward") };
        let (width, grad) = (w.dim(0)?, grad.contiguous()?);
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let [dx, dw, db] = super::cuda::backward(&self.resets, kept, [x, w, &grad])?;
            return Ok((Some(dx), Some(dw), Some(db)));
        }
        let (dx, dw, db) = with_rows(&[w, &grad, &kept[0], &kept[1]], |inputs| {
            let (dx, dh) = self.backward(&inputs[0].data[..width * 3 * width], [inputs[2], inputs[3]], inputs[1]);
            let dw = self.products.product_new(Operand::from(inputs[3]).t(), Operand::new(&dh, 3 * width));
            let dh = Rows { data: &dh, rows: inputs[1].rows, width: 3 * width, stride: 3 * width };
            Ok((dx, dw, column_sums(dh)))
        })?;
        let device = x.device();
        Ok((
            Some(Tensor::from_vec(dx, x.shape(), device)?),
            Some(Tensor::from_vec(dw, w.shape(), device)?),
            Some(Tensor::from_vec(db, b.shape(), device)?),
        ))
    }
}

/// A gated recurrent unit over `B` sequences of `T` frames: `x` `[B * T, 3 width]` products of the inputs, `weight` `[width, 3 width]`
/// and `bias` `[3 width]` of the hidden state, `state` `[B, width]`. Returns `[B * T, width]` and the state behind the sequences, which
/// carries no gradient.
pub fn gru(x: &Tensor, weight: &Tensor, bias: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    crate::ops::check_sequence(x, state, resets)?;
    if !is_fused(x) {
        let (y, after) = gru_reference(x, weight, bias, &state.detach(), resets)?;
        return Ok((y, after.detach()));
    }
    let (batch, width) = state.dims2()?;
    if x.dim(1)? != 3 * width || weight.dims() != [width, 3 * width] || bias.dims() != [3 * width] {
        candle_core::bail!("gru: products {:?}, weight {:?}, bias {:?}, width {width}", x.dims(), weight.dims(), bias.dims());
    }
    let after = After::default();
    let (steps, resets) = (x.dim(0)? / batch, resets.to_vec());
    let op =
        GruOp { products: Products::current(), batch, steps, resets, state: state.detach(), after: after.clone(), kept: OnceLock::new() };
    let y = x.contiguous()?.apply_op3(&weight.contiguous()?.to_dtype(x.dtype())?, &bias.to_dtype(DType::F32)?, op)?;
    Ok((y, after.take()?))
}

/// [`gru`] in plain tensor operations, one frame after the other. Here the states do carry gradients.
pub fn gru_reference(x: &Tensor, weight: &Tensor, bias: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    let batch = state.dim(0)?;
    let steps = x.dim(0)? / batch;
    let x = x.reshape((batch, steps, ()))?;
    let mut h = state.clone();
    let mut outputs = Vec::with_capacity(steps);
    for t in 0..steps {
        if (0..batch).any(|row| resets[row * steps + t]) {
            let reset: Vec<u8> = (0..batch).map(|row| u8::from(resets[row * steps + t])).collect();
            let reset = Tensor::from_vec(reset, (batch, 1), x.device())?.broadcast_as(h.shape())?;
            h = reset.where_cond(&h.zeros_like()?, &h)?;
        }
        let product = h.matmul(weight)?.broadcast_add(bias)?;
        h = gru_gates(&x.narrow(1, t, 1)?.squeeze(1)?, &product, &h)?;
        outputs.push(h.clone());
    }
    Ok((Tensor::stack(&outputs, 1)?.reshape((batch * steps, ()))?, h))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gates that are shut leave gradients of 0, or such that products are fast with them.
    #[test]
    fn no_gradient_of_a_saturated_gate_is_subnormal() {
        let sides: Vec<f32> = (-30..=30).map(|i| i as f32 * 3.0).collect();
        let n = sides.len().pow(2);
        let (reset, update): (Vec<f32>, Vec<f32>) = sides.iter().flat_map(|r| sides.iter().map(move |z| (*r, *z))).unzip();
        let x = [reset, update, vec![0.3; n]].concat();
        let (mut state, mut kept, before) = (vec![0.5; n], vec![0.0; 4 * n], vec![0.5; n]);
        gru_row_kept(&x, &[vec![0.0; 2 * n], vec![0.7; n]].concat(), &mut state, &mut kept);
        for size in [1.0f32, 1e-6, 1e-20] {
            let (mut carry, mut dx, mut dh) = (vec![size; n], vec![0.0; 3 * n], vec![0.0; 3 * n]);
            gru_row_backward(&kept, &before, &mut carry, &mut dx, &mut dh);
            for (name, found) in [("carry", &carry), ("dx", &dx), ("dh", &dh)] {
                assert!(found.iter().all(|g| *g == 0.0 || g.is_normal()), "{name} of a gradient of {size:e}");
                assert!(found.iter().any(|g| *g != 0.0), "{name}");
            }
        }
    }
}
