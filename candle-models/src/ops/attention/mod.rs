//! Sliding-window attention: `q`, `k`, `v` `[rows, W]`, slopes `[heads]`; states: keys and values `[window - 1, W]`, and their count `[1]`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "flash-attn")]
mod flash;
mod tensors;

pub use tensors::{Attention, AttentionState, attention};
pub(crate) use tensors::{Timeline, attend_row};

use super::Rows;
use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Operation, Size, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// The operation: operands `q`, `k`, `v`, three states.
#[derive(Debug, Clone)]
pub struct Attend {
    /// Heads and window.
    pub shape: Attention,
    /// `[heads]`: how much a frame of distance takes from a score.
    pub slopes: Tensor,
}

/// Leaves the last rows of `cache` and `new` in `cache`, oldest first.
fn shift(cache: &mut [f32], new: Rows) {
    let keep = cache.len() / new.width;
    let fresh = new.rows.min(keep);
    cache.copy_within(fresh * new.width.., 0);
    for (row, r) in cache[(keep - fresh) * new.width..].chunks_mut(new.width).zip(new.rows - fresh..) {
        row.copy_from_slice(new.row(r));
    }
}

impl Operation for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    /// Scratch: the scores of a frame.
    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [q, k, v] = operands(self.name(), x)?;
        same_width("attention", q, k)?;
        same_width("attention", q, v)?;
        Ok(Widths::floats(q).with_scratch(&[self.shape.window]))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let before = (pass.state(0)?.clone(), pass.state(1)?.clone(), pass.state(2)?.clone());
        let (y, after) = attention(self.shape, operands(self.name(), x)?, &self.slopes, &before, pass.resets())?;
        [after.0, after.1, after.2].into_iter().enumerate().try_for_each(|(i, state)| pass.set_state(i, state))?;
        Ok(Values::floats(y))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let ([q, k, v], places) = (operands(self.name(), &wires.x)?, operands::<_, 3>(self.name(), &wires.states)?);
        let (shape, slopes, scores, out) = (self.shape, packer.values(&self.slopes)?, wires.scratch[0], wires.out[0]);
        Ok(Some(Box::new(move |frame, _| {
            let (steps, keep) = (frame.steps, shape.window - 1);
            for b in 0..frame.batch() {
                // SAFETY: this step has one part, and the three states lie apart.
                let [keys, values, count] = places.map(|place| unsafe { frame.state(b, place) });
                let mut available = count[0] as usize;
                let (new_keys, new_values) = (frame.sequence(k, b), frame.sequence(v, b));
                let memory = (
                    Timeline { cache: Rows { data: keys, rows: keep, width: q.width, stride: q.width }, new: new_keys },
                    Timeline { cache: Rows { data: values, rows: keep, width: q.width, stride: q.width }, new: new_values },
                );
                for (t, &reset) in frame.resets(b).iter().enumerate() {
                    available = if reset { 0 } else { available.min(keep) };
                    let r = b * steps + t;
                    // SAFETY: as above.
                    let (scores, out) = unsafe { (frame.row_mut(scores, 0), frame.row_mut(out, r)) };
                    attend_row(shape, t, available, frame.row(q, r), memory, &slopes, scores, out);
                    available += 1;
                }
                count[0] = available.min(keep) as f32;
                shift(keys, new_keys);
                shift(values, new_values);
            }
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (qkv, states) = (operands::<_, 3>(self.name(), &wires.x)?, operands::<_, 3>(self.name(), &wires.states)?);
        let (shape, slopes) = (self.shape, compiler.vector(&self.slopes)?);
        Ok(Some(compiler.with_narrow(qkv, wires.out[0], move |pass, qkv, out| {
            let (qkv, states) = (qkv.map(|s| pass.matrix(s)), states.map(|s| pass.state(s)));
            let args = cuda::Attend::new(shape, qkv, pass.matrix(out), states, (slopes, pass.resets()), pass.steps);
            // SAFETY: the plan gives every matrix of a pass its rows; every sequence has a slot.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        // A multiply-add a channel for the score, one for the sum of values.
        let flop = 4.0 * size.visible(self.shape.window) * wires.out[0].width as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}
