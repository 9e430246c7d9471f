//! Causal depthwise convolution over time with carried state, ended by SiLU.
//!
//! `y[t] = silu(bias + sum_j weight[j] * x[t - (K-1) + j])`, tap `K-1` on the newest frame. The state holds the last `K-1` frames;
//! a reset at frame t hides everything before t. Candle's conv1d is not used: its kernel gradient is wrong for strided
//! kernels and a grouped one is a launch per channel.

use crate::ops::simd::{self, kernel};
use crate::ops::{After, OutPointer, Rows, add_into, contiguous, is_fused, rows_of, sum_in_order, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, DType, IndexOp, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;
use std::ops::Range;

/// Sizes of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct ConvShape {
    pub steps: usize,
    pub width: usize,
    pub taps: usize,
}

/// The frame that tap `j` sees at time `t`: of the input, of the state, or nothing behind a reset.
enum Source {
    Input(usize),
    State(usize),
    Nothing,
}

/// `start`: the last reset at or before t, if any.
#[inline(always)]
fn source(shape: ConvShape, t: usize, j: usize, start: Option<usize>) -> Source {
    match ((t + j).checked_sub(shape.taps - 1), start) {
        (Some(i), None) => Source::Input(i),
        (Some(i), Some(s)) if i >= s => Source::Input(i),
        (None, None) => Source::State(t + j),
        _ => Source::Nothing,
    }
}

kernel! {
    fn set<S>(bias: &'a [f32], out: &'a mut [f32]) {
        out.copy_from_slice(bias);
    }
}

kernel! {
    fn tap<S>(weight: &'a [f32], x: &'a [f32], out: &'a mut [f32]) {
        for ((o, &w), &x) in out.iter_mut().zip(weight).zip(x) {
            *o = simd::fma::<S>(w, x, *o);
        }
    }
}

kernel! {
    /// All four taps of the usual width at once, one pass over the row.
    fn four_taps<S>(weight: [&'a [f32]; 4], bias: &'a [f32], x: [&'a [f32]; 4], out: &'a mut [f32]) {
        let n = out.len();
        let ([w0, w1, w2, w3], [x0, x1, x2, x3]) = (weight.map(|w| &w[..n]), x.map(|x| &x[..n]));
        for (i, o) in out.iter_mut().enumerate() {
            let y = simd::fma::<S>(w0[i], x0[i], bias[i]);
            let y = simd::fma::<S>(w1[i], x1[i], y);
            let y = simd::fma::<S>(w2[i], x2[i], y);
            let y = simd::fma::<S>(w3[i], x3[i], y);
            *o = y * simd::sigmoid::<S>(y);
        }
    }
}

/// Pre-activations of one frame; `seen(j)`: the frame that tap j sees, if any.
fn accumulate<'a>(
    taps: usize,
    weight: impl Fn(usize) -> &'a [f32],
    seen: impl Fn(usize) -> Option<&'a [f32]>,
    bias: &[f32],
    out: &mut [f32],
) {
    set(bias, out);
    for j in 0..taps {
        if let Some(x) = seen(j) {
            tap(weight(j), x, out);
        }
    }
}

/// One sequence through the channels `channels`: `x` `[steps, width]`, `weight` `[taps, width]`, `state` `[taps - 1, width]`
/// updated in place, `out` `[steps, width]`. `resets`: one per step. Channels do not mix, so threads may share a sequence by
/// channels.
///
/// # Safety
/// `state` points at `shape.taps - 1` rows and `out` at `shape.steps` rows, each at least `channels.end` values long and its
/// stride apart from the next; nobody else touches these channels of them meanwhile.
pub(crate) unsafe fn conv_sequence(
    shape: ConvShape,
    channels: Range<usize>,
    resets: &[bool],
    x: Rows,
    (weight, bias): (&[f32], &[f32]),
    state: OutPointer,
    out: OutPointer,
) {
    assert!(channels.end <= shape.width);
    let (n, bias) = (channels.len(), &bias[channels.clone()]);
    let weight = |j: usize| &weight[j * shape.width..][channels.clone()];
    // SAFETY: the caller's promise; the state is written only behind the last frame.
    let kept = |i: usize| unsafe { std::slice::from_raw_parts(state.data.add(i * state.stride + channels.start), n) };
    let mut start = None;
    for (t, &reset) in resets.iter().enumerate().take(shape.steps) {
        if reset {
            start = Some(t);
        }
        let seen = |j: usize| match source(shape, t, j, start) {
            Source::Input(i) => Some(&x.row(i)[channels.clone()]),
            Source::State(i) => Some(kept(i)),
            Source::Nothing => None,
        };
        // SAFETY: the caller's promise about the output's rows and channels.
        let out = unsafe { std::slice::from_raw_parts_mut(out.data.add(t * out.stride + channels.start), n) };
        match std::array::from_fn(|j| if shape.taps == 4 { seen(j) } else { None }) {
            [Some(x0), Some(x1), Some(x2), Some(x3)] => four_taps(std::array::from_fn(weight), bias, [x0, x1, x2, x3], out),
            _ => {
                accumulate(shape.taps, weight, seen, bias, out);
                crate::ops::activate(crate::ops::Activation::Silu, out);
            }
        }
    }
    // SAFETY: as above.
    unsafe { shift_state(shape, channels, start, x, state) };
}

/// Leaves the last `taps - 1` frames of the channels in `state`.
///
/// # Safety
/// As [`conv_sequence`].
unsafe fn shift_state(shape: ConvShape, channels: Range<usize>, start: Option<usize>, x: Rows, state: OutPointer) {
    // SAFETY: the rows and channels that the caller handed over.
    let row = |i: usize| unsafe { state.data.add(i * state.stride + channels.start) };
    for slot in 0..shape.taps - 1 {
        // State slot i is what tap i would see one step after the end; later slots are read before they are written.
        // SAFETY: as above; two slots of the state are different rows or the same one, which `copy` allows.
        unsafe {
            match source(shape, shape.steps, slot, start) {
                Source::Input(i) => row(slot).copy_from_nonoverlapping(x.row(i)[channels.clone()].as_ptr(), channels.len()),
                Source::State(i) => row(slot).copy_from(row(i), channels.len()),
                Source::Nothing => row(slot).write_bytes(0, channels.len()),
            }
        }
    }
}

struct ConvOp {
    shape: ConvShape,
    resets: Vec<bool>,
    /// `[B, taps - 1, width]` before the sequence.
    before: Tensor,
    after: After,
}

impl CustomOp3 for ConvOp {
    fn name(&self) -> &'static str {
        "causal-conv"
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
        let ConvShape { steps, width, taps } = self.shape;
        let (x, w, b) = (rows_of(x, xl)?, contiguous(w, wl)?, contiguous(b, bl)?);
        let mut state = self.before.flatten_all()?.to_vec1::<f32>()?;
        let mut out = vec![0.0; x.rows * width];
        out.par_chunks_mut(steps * width).zip(state.par_chunks_mut((taps - 1) * width)).enumerate().for_each(|(row, (out, state))| {
            let (resets, x) = (&self.resets[row * steps..][..steps], x.rows_from(row * steps));
            let (state, out) = (OutPointer::rows(state, width), OutPointer::rows(out, width));
            // SAFETY: state and output of this sequence belong to this task and have its shape.
            unsafe { conv_sequence(self.shape, 0..width, resets, x, (w, b), state, out) };
        });
        self.after.put(Tensor::from_vec(state, self.before.shape(), self.before.device())?);
        Ok((CpuStorage::F32(out), xl.shape().clone()))
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
        let (out, shape, after) = super::cuda::forward(self.shape, &self.resets, &self.before, (x, xl), (w, wl), (b, bl))?;
        self.after.put(after);
        Ok((out, shape))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let ConvShape { steps, width, taps } = self.shape;
        let grad = grad.contiguous()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let [dx, dw, db] = super::cuda::backward(self.shape, &self.resets, &self.before, [x, w, b, &grad])?;
            return Ok((Some(dx), Some(dw), Some(db)));
        }
        let state = self.before.flatten_all()?.to_vec1::<f32>()?;
        let mut dx = vec![0.0; x.elem_count()];
        let sums = with_rows(&[x, &grad, w, &b.unsqueeze(0)?], |inputs| {
            let [x, grad, w, b]: [Rows; 4] = [inputs[0], inputs[1], inputs[2], inputs[3]];
            let partial: Vec<Vec<f32>> = dx
                .par_chunks_mut(steps * width)
                .enumerate()
                .map(|(row, dx)| {
                    let backward = ConvBackward {
                        shape: self.shape,
                        resets: &self.resets[row * steps..][..steps],
                        x: x.rows_from(row * steps),
                        state: &state[row * (taps - 1) * width..][..(taps - 1) * width],
                        weight: &w.data[..taps * width],
                        bias: b.row(0),
                    };
                    let mut sums = vec![0.0; (taps + 1) * width];
                    // SAFETY: this task owns the rows of its sequence.
                    unsafe { backward.run(grad.rows_from(row * steps), OutPointer::rows(dx, width), &mut sums) };
                    sums
                })
                .collect();
            Ok(sum_in_order(partial))
        })?;
        let device = x.device();
        let dw = Tensor::from_slice(&sums[..taps * width], (taps, width), device)?;
        let db = Tensor::new(&sums[taps * width..], device)?;
        Ok((Some(Tensor::from_vec(dx, x.shape(), device)?), Some(dw), Some(db)))
    }
}

/// What the backward of one sequence reads.
pub(crate) struct ConvBackward<'a> {
    pub shape: ConvShape,
    /// One per step.
    pub resets: &'a [bool],
    pub x: Rows<'a>,
    /// Before the sequence.
    pub state: &'a [f32],
    pub weight: &'a [f32],
    pub bias: &'a [f32],
}

impl ConvBackward<'_> {
    /// Adds the gradient of the input to `dx` and those of weight and bias to `sums`, one behind the other.
    ///
    /// # Safety
    /// `dx` points at `steps` rows of `width` initialised values that nobody else touches meanwhile.
    pub unsafe fn run(self, grad: Rows, dx: OutPointer, sums: &mut [f32]) {
        let ConvShape { steps, width, taps } = self.shape;
        let (dw, db) = sums.split_at_mut(taps * width);
        let mut line = vec![0.0; width];
        let mut start = None;
        for (t, &reset) in self.resets.iter().enumerate().take(steps) {
            if reset {
                start = Some(t);
            }
            let seen = |j: usize| match source(self.shape, t, j, start) {
                Source::Input(i) => Some(self.x.row(i)),
                Source::State(i) => Some(&self.state[i * width..][..width]),
                Source::Nothing => None,
            };
            accumulate(taps, |j| &self.weight[j * width..][..width], seen, self.bias, &mut line);
            silu_gradient(grad.row(t), &mut line);
            add_into(db, &line);
            for (j, dw) in dw.chunks_mut(width).enumerate() {
                if let Some(x) = seen(j) {
                    tap(&line, x, dw);
                }
                if let Source::Input(i) = source(self.shape, t, j, start) {
                    // SAFETY: row i < steps is the caller's promise.
                    let dx = unsafe { std::slice::from_raw_parts_mut(dx.data.add(i * dx.stride), width) };
                    tap(&self.weight[j * width..][..width], &line, dx);
                }
            }
        }
    }
}

kernel! {
    /// `x = grad * silu'(x)`.
    fn silu_gradient<S>(grad: &'a [f32], x: &'a mut [f32]) {
        for (x, &g) in x.iter_mut().zip(grad) {
            let s = simd::sigmoid::<S>(*x);
            *x = simd::counted(g * s * (1.0 + *x * (1.0 - s)));
        }
    }
}

/// Convolves `x` `[B * T, width]` (rows of a sequence one behind the other) with `weight` `[taps, width]` and ends with SiLU.
/// `state` `[B, taps - 1, width]`; returns the output and the state behind the sequence, which carries no gradient.
pub fn causal_conv(x: &Tensor, weight: &Tensor, bias: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    crate::ops::check_sequence(x, state, resets)?;
    if !is_fused(x) {
        let (y, after) = causal_conv_reference(x, weight, bias, &state.detach(), resets)?;
        return Ok((y, after.detach()));
    }
    let ((taps, width), batch) = (weight.dims2()?, state.dim(0)?);
    if taps < 2 || x.dim(1)? != width || bias.dims() != [width] || state.dims() != [batch, taps - 1, width] {
        bail!("causal-conv: rows {:?}, weight {:?}, bias {:?}, state {:?}", x.dims(), weight.dims(), bias.dims(), state.dims());
    }
    let shape = ConvShape { steps: x.dim(0)? / batch, width, taps };
    let after = After::default();
    let op = ConvOp { shape, resets: resets.to_vec(), before: state.detach(), after: after.clone() };
    let y = x.apply_op3(&weight.to_dtype(DType::F32)?, &bias.to_dtype(DType::F32)?, op)?;
    Ok((y, after.take()?))
}

/// [`causal_conv`] in plain tensor operations. Here the states do carry gradients.
pub fn causal_conv_reference(x: &Tensor, weight: &Tensor, bias: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    let (taps, width) = weight.dims2()?;
    let batch = state.dim(0)?;
    let steps = x.dim(0)? / batch;
    let x = x.reshape((batch, steps, width))?;
    let keep = |row: usize, t: usize| if resets[row * steps + t] { 0.0f32 } else { 1.0 };
    let mut history = state.clone();
    let mut outputs = Vec::with_capacity(steps);
    for t in 0..steps {
        let mask: Vec<f32> = (0..batch).map(|row| keep(row, t)).collect();
        let mask = Tensor::from_vec(mask, (batch, 1, 1), x.device())?.to_dtype(x.dtype())?;
        let window = Tensor::cat(&[history.broadcast_mul(&mask)?, x.i((.., t..t + 1))?.contiguous()?], 1)?;
        outputs.push(window.broadcast_mul(weight)?.sum(1)?.broadcast_add(bias)?.silu()?);
        history = window.narrow(1, 1, taps - 1)?;
    }
    Ok((Tensor::stack(&outputs, 1)?.reshape((batch * steps, width))?, history.contiguous()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn values(name: &str, n: usize) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(6).stream(name).fill_normal(0, &mut values);
        values
    }

    /// Runs one sequence in parts; returns output and state.
    fn run(shape: ConvShape, parts: &[Range<usize>]) -> (Vec<f32>, Vec<f32>) {
        let ConvShape { steps, width, taps } = shape;
        let (x, weight, bias) = (values("x", steps * width), values("w", taps * width), values("b", width));
        let (mut state, mut out) = (values("state", (taps - 1) * width), vec![f32::NAN; steps * width]);
        let resets: Vec<bool> = (0..steps).map(|t| t % 4 == 2).collect();
        let x = Rows { data: &x, rows: steps, width, stride: width };
        for part in parts {
            let (state, out) = (OutPointer::rows(&mut state, width), OutPointer::rows(&mut out, width));
            // SAFETY: both vectors outlive the call and have the shape's sizes.
            unsafe { conv_sequence(shape, part.clone(), &resets, x, (&weight, &bias), state, out) };
        }
        (out, state)
    }

    #[test]
    fn channels_in_parts_equal_the_whole_bit_for_bit() {
        for (steps, width, taps) in [(1, 1, 4), (1, 7, 4), (5, 16, 4), (3, 33, 2), (9, 100, 5)] {
            let shape = ConvShape { steps, width, taps };
            let (at, after) = (width / 3, width * 3 / 4);
            assert_eq!(
                run(shape, &[after..width, 0..at, at..after]),
                run(shape, std::slice::from_ref(&(0..width))),
                "{steps} x {width} x {taps}"
            );
        }
    }
}
