//! The causal convolution on a tape, one step of a few dozen rows at a time.

use super::CausalConv;
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::{Derivative, TapeBuilder, TapeStep, host};
use crate::ops::simd::{self, kernel};
use crate::ops::{Activation, activate, activate_backward, add_into};
use std::ops::Range;

/// Causal depthwise convolution and SiLU: `out_t = silu(b + sum over k of w_k x_(t - K + 1 + k))`.
pub(super) struct Conv {
    x: Slot,
    out: Slot,
    /// What SiLU is applied to.
    before: Slot,
    /// `[K, width]`, the oldest step first.
    weight: Vec<f32>,
    bias: Vec<f32>,
    place: Range<usize>,
    bias_place: Range<usize>,
}

impl Conv {
    pub fn new(op: &CausalConv, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let (x, out) = (wires.x[0], wires.out[0]);
        let (place, bias_place) = (tape.sum(&op.weight), tape.sum(&op.bias));
        let before = tape.matrix(out.width);
        let weight = host(&op.weight)?;
        tape.keep_values(x);
        tape.keep_values(before);
        // Gradients of the last K steps' inputs, which arrive from later steps.
        tape.carry(weight.len());
        Ok(Self { x, out, before, weight, bias: host(&op.bias)?, place, bias_place })
    }

    fn taps(&self) -> usize {
        self.weight.len() / self.out.width
    }
}

impl Derivative for Conv {
    fn forward(&self, step: &mut TapeStep) {
        let (width, taps) = (self.out.width, self.taps());
        step.with_values(self.out, |step, out| {
            out.chunks_exact_mut(width).for_each(|row| row.copy_from_slice(&self.bias));
            for back in 0..taps.min(step.number() + 1) {
                let (x, weight) = (step.value_before(self.x, back), &self.weight[(taps - 1 - back) * width..][..width]);
                out.chunks_exact_mut(width).enumerate().for_each(|(r, out)| add_product(x.row(r), weight, out));
            }
            step.with_values(self.before, |_, before| before.copy_from_slice(out));
            activate(Activation::Silu, out);
        });
    }

    /// What is carried are gradients of inputs in a ring, step `t` in place `t mod K`.
    fn backward(&self, step: &mut TapeStep) {
        let (width, taps, rows, t) = (self.out.width, self.taps(), step.rows(), step.number());
        step.with_grads(self.out, |step, dy, _| {
            activate_backward(Activation::Silu, step.all(self.before), dy);
            step.with_carry(|step, carry| {
                step.with_sums(|step, sums| {
                    dy.chunks_exact(width).for_each(|row| add_into(&mut sums[self.bias_place.clone()], row));
                    for back in 0..taps.min(t + 1) {
                        let (x, k) = (step.value_before(self.x, back), taps - 1 - back);
                        let (weight, dw) = (&self.weight[k * width..][..width], &mut sums[self.place.clone()][k * width..][..width]);
                        let dx = &mut carry[(t - back) % taps * rows * width..][..rows * width];
                        for (r, (dy, dx)) in dy.chunks_exact(width).zip(dx.chunks_exact_mut(width)).enumerate() {
                            add_product(x.row(r), dy, dw);
                            add_product(weight, dy, dx);
                        }
                    }
                });
                let dx = &mut carry[t % taps * rows * width..][..rows * width];
                step.deliver(self.x, dx);
                dx.fill(0.0);
            });
        });
    }
}

kernel! {
    /// `out += a b`.
    fn add_product<S>(a: &'a [f32], b: &'a [f32], out: &'a mut [f32]) {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = simd::fma::<S>(a, b, *o);
        }
    }
}
