//! The gated recurrent unit on a tape.

use super::{GatedUnit, gru_row_backward, gru_row_kept};
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::tape::{Product, Weight};
use crate::exec::{Derivative, TapeBuilder, TapeStep};
use crate::ops::{Rows, add_into};
use std::sync::Arc;

/// `kept` is what the gates leave for their backward, and its gradient's place takes that of the products.
pub(super) struct OnTape {
    x: Slot,
    out: Slot,
    kept: Slot,
    products: Slot,
    weight: Arc<Weight>,
}

impl OnTape {
    pub fn new(unit: &GatedUnit, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let (x, out, products) = (wires.x[0], wires.out[0], wires.scratch[1]);
        // The recorder's scratch for one row of a sequence serves here for all of them.
        tape.own(products);
        let (kept, weight) = (tape.matrix(4 * out.width), tape.weight(&unit.hidden)?);
        tape.keep_values(kept);
        tape.scratch(x.width + out.width);
        tape.carry(out.width);
        // The state that a step started from is the one that the step before it gave; before the first it was zero.
        tape.product(Product { weight: weight.clone(), x: out, dy: products, groups: 1, from_before: true });
        Ok(Self { x, out, kept, products, weight })
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        let Self { x, out, kept, products, weight } = self;
        step.with_values_before(*out, |step, before, now| {
            step.with_values(*products, |step, product| {
                match before {
                    None => {
                        product.chunks_exact_mut(products.width).for_each(|row| row.copy_from_slice(weight.bias()));
                        now.fill(0.0);
                    }
                    Some(before) => {
                        let before_rows = Rows { data: before, rows: step.rows(), width: out.width, stride: out.width };
                        weight.multiply(before_rows, product);
                        now.copy_from_slice(before);
                    }
                }
                step.with_values(*kept, |step, kept_rows| {
                    let x = step.value(*x);
                    let rows = now.chunks_exact_mut(out.width).zip(product.chunks_exact(products.width));
                    for (r, ((state, product), kept)) in rows.zip(kept_rows.chunks_exact_mut(kept.width)).enumerate() {
                        gru_row_kept(x.row(r), product, state, kept);
                    }
                });
            });
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let Self { x, out, kept, products, weight } = self;
        let zeros = vec![0.0; out.width];
        // What one operation alone reads has its gradient written in place.
        let in_place = step.grad_in_place(*x).is_some();
        step.with_grads(*out, |step, dy, scratch| {
            let (dx, through) = scratch.split_at_mut(step.rows() * x.width);
            step.with_carry(|step, carry| {
                add_into(carry, dy);
                let mut gates = |step: &mut TapeStep, dx: &mut [f32]| {
                    step.with_grads(*products, |step, dh, _| {
                        let (kept, before) = (step.value(*kept), (step.number() > 0).then(|| step.value_before(*out, 1)));
                        let gates = dx.chunks_exact_mut(x.width).zip(dh.chunks_exact_mut(products.width));
                        for (r, (carry, (dx, dh))) in carry.chunks_exact_mut(out.width).zip(gates).enumerate() {
                            let before = before.as_ref().map_or(zeros.as_slice(), |rows| rows.row(r));
                            gru_row_backward(kept.row(r), before, carry, dx, dh);
                        }
                        weight.add_bias_gradient(dh, step.sums());
                        if step.number() > 0 {
                            let through = &mut through[..step.rows() * out.width];
                            weight.multiply_transposed(dh, through);
                            add_into(carry, through);
                        }
                    });
                };
                if in_place {
                    step.with_grads(*x, |step, dx, _| gates(step, dx));
                } else {
                    gates(step, dx);
                }
            });
            if !in_place {
                step.deliver(*x, dx);
            }
        });
    }
}
