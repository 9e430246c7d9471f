//! The sum of a branch and what went around it, `y = act(a + g b)`: `a` and `b` `[rows, places W]`, the gain `g` `[W]` the same at every place, or none.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::{Activation, skip::Skip};
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let (branch, around) = (Tensor::new(&[[1f32, -9.0, 0.0, 0.0]], &Device::Cpu)?, Tensor::new(&[[1f32, 1.0, 2.0, 2.0]], &Device::Cpu)?);
//! let gain = Tensor::new(&[2f32, 3.0], &Device::Cpu)?; // two places of two values
//! let y = e.apply(Skip { gain: Some(gain), act: Activation::Relu }, &[&branch, &around])?;
//! assert_eq!(y.to_vec2::<f32>()?, [[3.0, 0.0, 4.0, 6.0]]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
use super::is_fused;
use super::{Activation, activate, activate_backward, activate_into, activation, add_rows_into, simd};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, TapeStep, Values, Widths, Work, host, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;
use std::ops::Range;

/// The operation: operands `a` and `b`.
#[derive(Debug, Clone)]
pub struct Skip {
    /// `[W]`, or none for 1.
    pub gain: Option<Tensor>,
    /// What the sum goes through.
    pub act: Activation,
}

impl Skip {
    /// `g`, with a place of `W` values from a row of that many.
    fn gain(&self, width: usize) -> Result<Option<(&Tensor, usize)>> {
        let Some(gain) = &self.gain else { return Ok(None) };
        match gain.elem_count() {
            each if each > 0 && width.is_multiple_of(each) => Ok(Some((gain, each))),
            each => Err(Error::Input(format!("skip: {width} values a row for a gain of {each}"))),
        }
    }
}

simd::kernel! {
    /// `y = a + b`.
    fn sum<S>(a: &'a [f32], b: &'a [f32], y: &'a mut [f32]) {
        y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a + b);
    }
}

simd::kernel! {
    /// `y = a + g b`, the gain again at every place.
    fn gained_sum<S>(a: &'a [f32], b: &'a [f32], gain: &'a [f32], y: &'a mut [f32]) {
        let lines = a.chunks(gain.len()).zip(b.chunks(gain.len()));
        for (y, (a, b)) in y.chunks_mut(gain.len()).zip(lines) {
            for (((y, a), b), g) in y.iter_mut().zip(a).zip(b).zip(gain) {
                *y = simd::fma::<S>(*g, *b, *a);
            }
        }
    }
}

simd::kernel! {
    /// The gradients of `b`, `g dy`, and of the gain, to which `b dy` of every place is added.
    fn gained_sum_backward<S>(b: &'a [f32], gain: &'a [f32], dy: &'a [f32], db: &'a mut [f32], dgain: &'a mut [f32]) {
        let lines = b.chunks(gain.len()).zip(dy.chunks(gain.len()));
        for (db, (b, dy)) in db.chunks_mut(gain.len()).zip(lines) {
            for ((((db, b), dy), g), dg) in db.iter_mut().zip(b).zip(dy).zip(gain).zip(&mut *dgain) {
                *db = g * dy;
                *dg = simd::fma::<S>(*b, *dy, *dg);
            }
        }
    }
}

/// A gain so many times that its kernels have long lines to work on, whatever its width.
fn repeated(gain: &[f32]) -> Vec<f32> {
    gain.repeat(LINE.div_ceil(gain.len().max(1)))
}

const LINE: usize = 256;

/// Values of a piece of a row: whole places, and few enough for the first-level cache.
fn piece(gain: &[f32]) -> usize {
    4096_usize.div_ceil(gain.len().max(1)) * gain.len().max(1)
}

/// `y = a + g b`; an empty gain is 1.
fn add(gain: &[f32], a: &[f32], b: &[f32], y: &mut [f32]) {
    if gain.is_empty() { sum(a, b, y) } else { gained_sum(a, b, gain, y) }
}

impl Operation for Skip {
    fn name(&self) -> &'static str {
        "skip"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [a, b] = operands(self.name(), x)?;
        same_width(self.name(), a, b)?;
        self.gain(a)?;
        Ok(Widths::floats(a))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, b] = operands(self.name(), x)?;
        let b = match self.gain(a.dim(1)?)? {
            Some((gain, each)) => b.contiguous()?.reshape(((), each))?.broadcast_mul(&gain.to_dtype(b.dtype())?)?.reshape(b.dims())?,
            None => b.clone(),
        };
        Ok(Values::floats(activation(&(a + b)?, self.act)?))
    }

    #[cfg(feature = "cuda")]
    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, b] = operands(self.name(), x)?;
        if !(is_fused(a) && a.device().is_cuda() && a.dtype() == b.dtype()) {
            return self.reference(pass, x, ids);
        }
        self.gain(a.dim(1)?)?;
        Ok(Values::floats(cuda::add(self, a, b)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [a, b] = operands(self.name(), x)?;
        let width = graph.width(a)?;
        let b = match self.gain(width)? {
            Some((gain, each)) => {
                let shaped = |graph: &mut Graph, x, width: usize| graph.of(Operator::Reshape(vec![-1, width as i64]), x);
                let (b, gain) = (shaped(graph, b, each), graph.tensor(gain)?);
                let b = graph.mul(b, gain);
                shaped(graph, b, width)
            }
            None => b,
        };
        let sum = graph.add(a, b);
        graph::floats(self.act.formula(graph, sum))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (a, b, out, act) = (wires.x[0], wires.x[1], wires.out[0], self.act);
        let gain = self.gain.as_ref().map(|gain| packer.values(gain)).transpose()?.unwrap_or_default();
        let gain = repeated(&gain);
        // A row is cut so that several threads have a part of it.
        let piece = piece(&gain).min(out.width);
        let pieces = out.width.div_ceil(piece);
        Ok(Some(Box::new(move |frame, threads| {
            cpu::share_rows(threads, frame.rows * pieces, piece, |i| {
                let (r, start) = (i / pieces, i % pieces * piece);
                let part = |slot: Slot| Slot { start: slot.start + start, width: piece.min(slot.width - start), ..slot };
                // SAFETY: every piece of a row belongs to one part.
                let y = unsafe { frame.row_mut(part(out), r) };
                add(&gain, frame.row(part(a), r), frame.row(part(b), r), y);
                activate(act, y);
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let gain = compiler.vector_or_none(self.gain.as_ref())?;
        let sum = cuda::Sum::new(gain, self.gain.as_ref().map_or(1, Tensor::elem_count), self.act);
        Ok(Some(compiler.with_narrow([wires.x[0], wires.x[1]], wires.out[0], move |pass, [a, b], out| {
            let matrices = [a, b, out].map(|slot| pass.matrix(slot));
            // SAFETY: the plan gives all matrices the rows of the pass, and the gain lives as long as the steps.
            Ok(unsafe { sum.launch(pass.gpu, pass.dtype, pass.rows(), matrices) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        let (a, b, out, act) = (wires.x[0], wires.x[1], wires.out[0], self.act);
        let before = matches!(act, Activation::Gelu | Activation::Silu).then(|| tape.matrix(out.width));
        if act != Activation::None {
            tape.keep_values(before.unwrap_or(out));
        }
        let place = self.gain.as_ref().map_or(0..0, |gain| tape.sum(gain));
        let gain = repeated(&self.gain.as_ref().map(host).transpose()?.unwrap_or_default());
        if !gain.is_empty() {
            tape.keep_values(b);
            tape.scratch(gain.len() + piece(&gain));
        }
        Ok(Some(Box::new(OnTape { a, b, out, act, before, gain, place })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * wires.out[0].width as f64 * (if self.gain.is_some() { 2.0 } else { 1.0 } + self.act.operations());
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}

/// The sum on a tape. `before` is the sum itself, where the activation's derivative does not follow from its result.
struct OnTape {
    a: Slot,
    b: Slot,
    out: Slot,
    act: Activation,
    before: Option<Slot>,
    gain: Vec<f32>,
    place: Range<usize>,
}

impl OnTape {
    /// The pieces of all rows, each with its row.
    fn pieces(&self, rows: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (piece, width) = (piece(&self.gain), self.out.width);
        (0..rows).flat_map(move |r| (0..width).step_by(piece).map(move |start| (r, start..width.min(start + piece))))
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        let (rows, width) = (step.rows(), self.out.width);
        step.with_values(self.out, |step, out| {
            let add = |step: &TapeStep, r: usize, at: &Range<usize>, y: &mut [f32]| {
                add(&self.gain, &step.value(self.a).row(r)[at.clone()], &step.value(self.b).row(r)[at.clone()], y);
            };
            let Some(before) = self.before else {
                return self.pieces(rows).for_each(|(r, at)| {
                    let y = &mut out[r * width..][at.clone()];
                    add(step, r, &at, y);
                    activate(self.act, y);
                });
            };
            step.with_values(before, |step, before| {
                for (r, at) in self.pieces(rows) {
                    let sum = &mut before[r * width..][at.clone()];
                    add(step, r, &at, sum);
                    activate_into(self.act, sum, &mut out[r * width..][at]);
                }
            });
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let (rows, width) = (step.rows(), self.out.width);
        step.with_grads(self.out, |step, dy, scratch| {
            let (dgain, db) = scratch.split_at_mut(self.gain.len());
            dgain.fill(0.0);
            for (r, at) in self.pieces(rows) {
                let dy = &mut dy[r * width..][at.clone()];
                if self.act != Activation::None {
                    activate_backward(self.act, &step.all(self.before.unwrap_or(self.out))[r * width..][at.clone()], dy);
                }
                step.deliver_part(self.a, (r, at.start), dy);
                if self.gain.is_empty() {
                    step.deliver_part(self.b, (r, at.start), dy);
                    continue;
                }
                let db = &mut db[..at.len()];
                gained_sum_backward(&step.value(self.b).row(r)[at.clone()], &self.gain, dy, db, dgain);
                step.deliver_part(self.b, (r, at.start), db);
            }
            if !self.gain.is_empty() {
                add_rows_into(&mut step.sums()[self.place.clone()], dgain);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::{check, check_with, normal, refuses};

    #[test]
    fn every_form_of_it_is_the_reference() {
        for act in [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu] {
            for width in [1, 17, 64] {
                check(Skip { gain: None, act }, &[width, width]);
                check_with(&[normal("gain", &[width])], |p| Skip { gain: Some(p[0].clone()), act }, &[3 * width, 3 * width]);
            }
        }
        // More than one piece of a row.
        check_with(&[normal("gain", &[24])], |p| Skip { gain: Some(p[0].clone()), act: Activation::Gelu }, &[24 * 100, 24 * 100]);
        refuses(&Skip { gain: None, act: Activation::None }, &[3, 4]);
        refuses(&Skip { gain: None, act: Activation::None }, &[3]);
        refuses(&Skip { gain: Some(normal("gain", &[2])), act: Activation::None }, &[3, 3]);
    }
}
