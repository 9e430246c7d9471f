//! Causal depthwise convolution over time with carried state, ended by SiLU.
//!
//! `y[t] = silu(bias + sum_j weight[j] * x[t - (K-1) + j])`, tap `K-1` on the newest frame. The state holds the last `K-1` frames;
//! a reset at frame t hides everything before t. Candle's conv1d is not used: its kernel gradient is wrong for strided
//! kernels and a grouped one is a launch per channel.

use super::simd::{self, kernel};
use super::{Rows, contiguous, is_fused, rows_of, sum_in_order, with_rows};
use candle_core::{CpuStorage, CustomOp3, IndexOp, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::sync::{Arc, Mutex};

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
    fn four_taps<S>(weight: &'a [f32], bias: &'a [f32], x: [&'a [f32]; 4], out: &'a mut [f32]) {
        let n = out.len();
        let (w0, rest) = weight.split_at(n);
        let (w1, rest) = rest.split_at(n);
        let (w2, w3) = rest.split_at(n);
        let [x0, x1, x2, x3] = x.map(|x| &x[..n]);
        for (i, o) in out.iter_mut().enumerate() {
            let y = simd::fma::<S>(w0[i], x0[i], bias[i]);
            let y = simd::fma::<S>(w1[i], x1[i], y);
            let y = simd::fma::<S>(w2[i], x2[i], y);
            let y = simd::fma::<S>(w3[i], x3[i], y);
            *o = y * simd::sigmoid::<S>(y);
        }
    }
}

/// Pre-activations of one frame.
fn accumulate(shape: ConvShape, t: usize, start: Option<usize>, x: Rows, state: &[f32], (weight, bias): (&[f32], &[f32]), out: &mut [f32]) {
    set(bias, out);
    for (j, w) in weight.chunks(shape.width).enumerate() {
        match source(shape, t, j, start) {
            Source::Input(i) => tap(w, x.row(i), out),
            Source::State(i) => tap(w, &state[i * shape.width..][..shape.width], out),
            Source::Nothing => {}
        }
    }
}

/// One sequence: `x` `[steps, width]`, `weight` `[taps, width]`, `state` `[taps - 1, width]` updated in place, output rows
/// `width` apart. `resets`: one per step.
pub(crate) fn conv_sequence(
    shape: ConvShape,
    resets: &[bool],
    x: Rows,
    (weight, bias): (&[f32], &[f32]),
    state: &mut [f32],
    out: &mut [f32],
) {
    let mut start = None;
    for (t, out) in out.chunks_mut(shape.width).enumerate() {
        if resets[t] {
            start = Some(t);
        }
        let four = shape.taps == 4 && !(0..4).any(|j| matches!(source(shape, t, j, start), Source::Nothing));
        if four {
            let taps = std::array::from_fn(|j| match source(shape, t, j, start) {
                Source::Input(i) => x.row(i),
                Source::State(i) => &state[i * shape.width..][..shape.width],
                Source::Nothing => &[],
            });
            four_taps(weight, bias, taps, out);
        } else {
            accumulate(shape, t, start, x, state, (weight, bias), out);
            super::activate(super::Activation::Silu, out);
        }
    }
    shift_state(shape, start, x, state);
}

/// Leaves the last `taps - 1` frames in `state`.
fn shift_state(shape: ConvShape, start: Option<usize>, x: Rows, state: &mut [f32]) {
    let (keep, width) = (shape.taps - 1, shape.width);
    for slot in 0..keep {
        // State slot i is what tap i would see one step after the end; later slots are read before they are written.
        match source(shape, shape.steps, slot, start) {
            Source::Input(i) => state[slot * width..][..width].copy_from_slice(x.row(i)),
            Source::State(i) => state.copy_within(i * width..(i + 1) * width, slot * width),
            Source::Nothing => state[slot * width..][..width].fill(0.0),
        }
    }
}

struct ConvOp {
    shape: ConvShape,
    resets: Vec<bool>,
    /// `[B, taps - 1, width]` before the sequence.
    before: Tensor,
    /// The state behind the sequence; it carries no gradient.
    after: Arc<Mutex<Vec<f32>>>,
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
            conv_sequence(self.shape, &self.resets[row * steps..], sequence(x, row, steps), (w, b), state, out);
        });
        if let Ok(mut after) = self.after.lock() {
            *after = state;
        }
        Ok((CpuStorage::F32(out), xl.shape().clone()))
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
        let state = self.before.flatten_all()?.to_vec1::<f32>()?;
        let grad = grad.contiguous()?;
        let mut dx = vec![0.0; x.elem_count()];
        let sums = with_rows(&[x, &grad, w, &b.unsqueeze(0)?], |inputs| {
            let [x, grad, w, b]: [Rows; 4] = [inputs[0], inputs[1], inputs[2], inputs[3]];
            let partial: Vec<Vec<f32>> = dx
                .par_chunks_mut(steps * width)
                .enumerate()
                .map(|(row, dx)| {
                    let back = Backward {
                        shape: self.shape,
                        resets: &self.resets[row * steps..][..steps],
                        x: sequence(x, row, steps),
                        state: &state[row * (taps - 1) * width..][..(taps - 1) * width],
                        weight: &w.data[..taps * width],
                        bias: b.row(0),
                    };
                    back.run(sequence(grad, row, steps), dx)
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

fn sequence(x: Rows, row: usize, steps: usize) -> Rows {
    Rows { data: &x.data[row * steps * x.stride..], rows: steps, ..x }
}

struct Backward<'a> {
    shape: ConvShape,
    resets: &'a [bool],
    x: Rows<'a>,
    state: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
}

impl Backward<'_> {
    /// Writes the input gradient and returns those of weight and bias, one behind the other.
    fn run(&self, grad: Rows, dx: &mut [f32]) -> Vec<f32> {
        let ConvShape { width, taps, .. } = self.shape;
        let mut sums = vec![0.0; (taps + 1) * width];
        let (dw, db) = sums.split_at_mut(taps * width);
        let mut line = vec![0.0; width];
        let mut start = None;
        for (t, &reset) in self.resets.iter().enumerate() {
            if reset {
                start = Some(t);
            }
            accumulate(self.shape, t, start, self.x, self.state, (self.weight, self.bias), &mut line);
            silu_gradient(grad.row(t), &mut line);
            tap_add(&line, db);
            for (j, dw) in dw.chunks_mut(width).enumerate() {
                match source(self.shape, t, j, start) {
                    Source::Input(i) => {
                        tap(&line, self.x.row(i), dw);
                        tap(&self.weight[j * width..][..width], &line, &mut dx[i * width..][..width]);
                    }
                    Source::State(i) => tap(&line, &self.state[i * width..][..width], dw),
                    Source::Nothing => {}
                }
            }
        }
        sums
    }
}

kernel! {
    /// `x = grad * silu'(x)`.
    fn silu_gradient<S>(grad: &'a [f32], x: &'a mut [f32]) {
        for (x, &g) in x.iter_mut().zip(grad) {
            let s = simd::sigmoid::<S>(*x);
            *x = g * s * (1.0 + *x * (1.0 - s));
        }
    }
}

kernel! {
    fn tap_add<S>(x: &'a [f32], out: &'a mut [f32]) {
        for (o, &x) in out.iter_mut().zip(x) {
            *o += x;
        }
    }
}

/// Convolves `x` `[B * T, width]` (rows of a sequence one behind the other) with `weight` `[taps, width]` and ends with SiLU.
/// `state` `[B, taps - 1, width]`; returns the output and the state behind the sequence, which carries no gradient.
pub fn causal_conv(x: &Tensor, weight: &Tensor, bias: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    super::check_sequence(x, state, resets)?;
    if !is_fused(x) {
        return causal_conv_reference(x, weight, bias, state, resets);
    }
    let (taps, width) = weight.dims2()?;
    let shape = ConvShape { steps: x.dim(0)? / state.dim(0)?, width, taps };
    let after = Arc::new(Mutex::new(Vec::new()));
    let op = ConvOp { shape, resets: resets.to_vec(), before: state.detach(), after: after.clone() };
    let y = x.apply_op3(weight, bias, op)?;
    let after = std::mem::take(&mut *after.lock().map_err(|e| candle_core::Error::Msg(e.to_string()))?);
    Ok((y, Tensor::from_vec(after, state.shape(), x.device())?))
}

/// [`causal_conv`] in plain tensor operations.
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
    Ok((Tensor::stack(&outputs, 1)?.reshape((batch * steps, width))?, history.contiguous()?.detach()))
}
