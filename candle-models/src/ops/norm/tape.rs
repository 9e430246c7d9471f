//! The normalisation on a tape.

use super::{ActivatedNorm, NormKind, norm_row, norm_row_backward};
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::{Derivative, TapeBuilder, TapeStep, host};
use crate::ops::{Activation, activate_backward, add_into};
use std::ops::Range;

/// A normalisation with its parameters on the host.
pub(super) struct OnTape {
    x: Slot,
    out: Slot,
    kind: NormKind,
    eps: f32,
    act: Activation,
    weight: Vec<f32>,
    bias: Vec<f32>,
    place: Range<usize>,
    bias_place: Range<usize>,
}

impl OnTape {
    pub fn new(ActivatedNorm { norm, act }: &ActivatedNorm, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let (x, out, place) = (wires.x[0], wires.out[0], tape.sum(&norm.weight));
        let (bias, bias_place) = match &norm.bias {
            Some(bias) => (host(bias)?, tape.sum(bias)),
            None => (Vec::new(), 0..0),
        };
        tape.keep_values(x);
        tape.scratch(x.width);
        Ok(Self { x, out, kind: norm.kind, eps: norm.eps as f32, act: *act, weight: host(&norm.weight)?, bias, place, bias_place })
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        let group = self.weight.len();
        step.with_values(self.out, |step, out| {
            let x = step.value(self.x);
            for (r, out) in out.chunks_exact_mut(x.width).enumerate() {
                for (x, out) in x.row(r).chunks_exact(group).zip(out.chunks_exact_mut(group)) {
                    norm_row(self.kind, self.eps, self.act, x, &self.weight, &self.bias, out);
                }
            }
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let (group, width) = (self.weight.len(), self.x.width);
        let (mut gain, mut offset, mut before) = (vec![0.0; group], vec![0.0; group], vec![0.0; group]);
        step.with_grads(self.out, |step, dy, scratch| {
            let (dx_all, x) = (&mut scratch[..step.rows() * width], step.value(self.x));
            for (r, (dy, dx)) in dy.chunks_exact_mut(width).zip(dx_all.chunks_exact_mut(width)).enumerate() {
                let groups = dy.chunks_exact_mut(group).zip(dx.chunks_exact_mut(group));
                for (x, (dy, dx)) in x.row(r).chunks_exact(group).zip(groups) {
                    if self.act != Activation::None {
                        norm_row(self.kind, self.eps, Activation::None, x, &self.weight, &self.bias, &mut before);
                        activate_backward(self.act, &before, dy);
                    }
                    norm_row_backward(self.kind, self.eps, x, &self.weight, dy, dx, &mut gain, &mut offset);
                }
            }
            add_into(&mut step.sums()[self.place.clone()], &gain);
            if !self.bias.is_empty() {
                add_into(&mut step.sums()[self.bias_place.clone()], &offset);
            }
            step.deliver(self.x, dx_all);
        });
    }
}
