//! Rows of a table on a tape: their gradients are summed step by step.

use super::AddRows;
use crate::Result;
use crate::exec::program::{IndexSlot, Slot, Wires};
use crate::exec::{Derivative, TapeBuilder, TapeStep, host};
use crate::ops::{Activation, activate_backward, add_into, sum_of_rows};
use std::ops::Range;

/// The addition with its table on the host.
pub(super) struct OnTape {
    x: Slot,
    ids: IndexSlot,
    out: Slot,
    columns: Vec<(usize, usize)>,
    act: Activation,
    table: Vec<f32>,
    /// Of the table's gradient.
    place: Range<usize>,
}

impl OnTape {
    pub fn new(op: &AddRows, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let (x, ids, out) = (wires.x[0], wires.ids[0], wires.out[0]);
        if op.act != Activation::None {
            tape.keep_values(x);
        }
        Ok(Self { x, ids, out, columns: op.columns.clone(), act: op.act, table: host(&op.table)?, place: tape.sum(&op.table) })
    }

    /// The rows of the table that are added to row `r`.
    fn rows<'a>(&'a self, step: &'a TapeStep, r: usize) -> impl Iterator<Item = usize> + 'a {
        let ids = step.ids(self.ids, r);
        self.columns.iter().map(move |(column, base)| base + ids[*column] as usize)
    }

    /// The sum, and what follows it.
    fn sum(&self, step: &TapeStep, r: usize, act: Activation, out: &mut [f32]) {
        let starts = self.rows(step, r).map(|row| row * self.out.width);
        sum_of_rows(out, Some(step.value(self.x).row(r)), &self.table, starts, act);
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.out, |step, out| {
            out.chunks_exact_mut(self.out.width).enumerate().for_each(|(r, out)| self.sum(step, r, self.act, out));
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let width = self.out.width;
        step.with_grads(self.out, |step, dy, _| {
            if self.act != Activation::None {
                let mut before = vec![0.0; width];
                for (r, dy) in dy.chunks_exact_mut(width).enumerate() {
                    self.sum(step, r, Activation::None, &mut before);
                    activate_backward(self.act, &before, dy);
                }
            }
            step.with_sums(|step, sums| {
                let table = &mut sums[self.place.clone()];
                for (r, dy) in dy.chunks_exact(width).enumerate() {
                    self.rows(step, r).for_each(|row| add_into(&mut table[row * width..][..width], dy));
                }
            });
            step.deliver(self.x, dy);
        });
    }
}
