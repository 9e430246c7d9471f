//! The convolution on a tape: patches of all steps are kept, and with the gradients of all places make the weight's as one product.

use super::{Conv2d, Conv2dShape};
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::tape::{Product, Weight};
use crate::exec::{Derivative, TapeBuilder, TapeStep};
use crate::ops::{Rows, add_into};
use std::sync::Arc;

pub(super) struct OnTape {
    shape: Conv2dShape,
    output: [usize; 2],
    x: Slot,
    patches: Slot,
    out: Slot,
    weight: Arc<Weight>,
}

impl OnTape {
    pub fn new(op: &Conv2d, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let (x, patches, out) = (wires.x[0], wires.scratch[0], wires.out[0]);
        let weight = tape.weight(&op.layer)?;
        tape.scratch(patches.width + x.width);
        tape.product(Product { weight: weight.clone(), x: patches, dy: out, groups: op.places(), from_before: false });
        Ok(Self { shape: op.shape, output: op.output, x, patches, out, weight })
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.patches, |step, patches| {
            let x = step.value(self.x);
            for (r, patches) in patches.chunks_exact_mut(self.patches.width).enumerate() {
                self.shape.gather(self.output, x.row(r), patches);
            }
            step.with_values(self.out, |_, out| {
                let width = self.shape.patch();
                self.weight.multiply(Rows { data: patches, rows: patches.len() / width, width, stride: width }, out);
            });
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        step.with_grads(self.out, |step, dy, scratch| {
            self.weight.add_bias_gradient(dy, step.sums());
            let (patches, rest) = scratch.split_at_mut(step.rows() * self.patches.width);
            let dx = &mut rest[..step.rows() * self.x.width];
            self.weight.multiply_transposed(dy, patches);
            dx.fill(0.0);
            for (dx, patches) in dx.chunks_exact_mut(self.x.width).zip(patches.chunks_exact(self.patches.width)) {
                self.shape.for_lines(self.output, |line, to| add_into(&mut dx[to..to + line.len()], &patches[line]));
            }
            step.deliver(self.x, dx);
        });
    }
}
