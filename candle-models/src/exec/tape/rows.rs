//! Derivatives of operations without parameters or memory that make every row from the same row: all that such an operation of another
//! crate needs.

use super::{Derivative, TapeBuilder, TapeStep};
use crate::exec::program::{Slot, Wires};
use crate::{Error, Result};

/// An operation on rows with its derivative.
pub trait RowGradients: Send + Sync + 'static {
    /// The row `y` that it makes of the rows `x`.
    fn forward(&self, x: &[&[f32]], y: &mut [f32]);

    /// The gradients of the rows `x` from that of `y`, all of which it writes.
    fn backward(&self, x: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]);
}

/// The most operands of such an operation.
const MOST: usize = 4;

struct OnRows<F> {
    function: F,
    x: Vec<Slot>,
    out: Slot,
}

impl TapeBuilder {
    /// The derivative of an operation on rows with one result and at most four operands.
    ///
    /// # Errors
    /// If it has others.
    pub fn rows(&mut self, wires: &Wires, function: impl RowGradients) -> Result<Option<Box<dyn Derivative>>> {
        let ([out], true) = (&wires.out[..], wires.x.len() <= MOST && wires.out_ids.is_empty() && wires.states.is_empty()) else {
            return Err(Error::Input(format!("a derivative by rows has one result and at most {MOST} operands, found {wires:?}")));
        };
        wires.x.iter().chain([out]).for_each(|slot| self.keep_values(*slot));
        self.scratch(wires.x.iter().map(|slot| slot.width).sum());
        Ok(Some(Box::new(OnRows { function, x: wires.x.clone(), out: *out })))
    }
}

impl<F: RowGradients> Derivative for OnRows<F> {
    fn forward(&self, step: &mut TapeStep) {
        let n = self.x.len();
        step.with_values(self.out, |step, out| {
            for (r, y) in out.chunks_exact_mut(self.out.width).enumerate() {
                let mut x: [&[f32]; MOST] = [&[]; MOST];
                self.x.iter().zip(&mut x).for_each(|(slot, x)| *x = step.value(*slot).row(r));
                self.function.forward(&x[..n], y);
            }
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let (n, rows) = (self.x.len(), step.rows());
        step.with_grads(self.out, |step, dy, scratch| {
            for (r, dy) in dy.chunks_exact(self.out.width).enumerate() {
                let mut x: [&[f32]; MOST] = [&[]; MOST];
                let mut dx: [&mut [f32]; MOST] = [(); MOST].map(|()| &mut [][..]);
                let mut rest = &mut scratch[..];
                for (i, slot) in self.x.iter().enumerate() {
                    x[i] = step.value(*slot).row(r);
                    let (all, behind) = rest.split_at_mut(rows * slot.width);
                    dx[i] = &mut all[r * slot.width..][..slot.width];
                    rest = behind;
                }
                self.function.backward(&x[..n], step.value(self.out).row(r), dy, &mut dx[..n]);
            }
            let mut rest = &scratch[..];
            for slot in &self.x {
                let (dx, behind) = rest.split_at(rows * slot.width);
                step.deliver(*slot, dx);
                rest = behind;
            }
        });
    }
}
