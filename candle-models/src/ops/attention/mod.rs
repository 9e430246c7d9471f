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
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Operation, Size, Values, Widths, Work, operands, same_width};
use candle_core::{Device, Tensor};

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

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let (qkv, [keys, values, count]) = (operands::<_, 3>(self.name(), x)?, operands(self.name(), states)?);
        let (Attention { heads, window }, keep, width) = (self.shape, self.shape.window - 1, graph.width(x[0])?);
        let each = width / heads;
        // Keys and values of the window, oldest first, `[B, window, W]`.
        let [keys, values] = [(keys, qkv[1]), (values, qkv[2])].map(|(cache, new)| {
            let new = graph.by_row(new, &[1, width]);
            graph.node(Operator::Concat { axis: 1 }, &[cache, new])
        });
        let [by_key, by_value] = [(keys, vec![0, 2, 3, 1]), (values, vec![0, 2, 1, 3])].map(|(all, axes)| {
            let split = graph.by_row(all, &[window, heads, each]);
            graph.of(Operator::Transpose(axes), split)
        });
        let (query, scale) = (graph.by_row(qkv[0], &[heads, 1, each]), graph.float(1.0 / (each as f32).sqrt()));
        let products = graph.node(Operator::MatMul, &[query, by_key]);
        let scores = graph.mul(products, scale);
        let distance: Vec<f32> = (0..window).rev().map(|j| j as f32).collect();
        let distance = graph.constant(Tensor::from_vec(distance, window, &Device::Cpu)?);
        let slopes = graph.tensor(&self.slopes)?;
        let slopes = graph.of(Operator::Reshape(vec![heads as i64, 1, 1]), slopes);
        let penalty = graph.mul(slopes, distance);
        let scores = graph.sub(scores, penalty);
        let (there, nothing) = (graph.by_row(count, &[1, 1, 1]), graph.float(f32::MIN));
        let visible = graph.node(Operator::LessOrEqual, &[distance, there]);
        let scores = graph.node(Operator::Where, &[visible, scores, nothing]);
        let weights = graph.of(Operator::Softmax, scores);
        let mixed = graph.node(Operator::MatMul, &[weights, by_value]);
        let (one, most) = (graph.float(1.0), graph.float(keep as f32));
        let more = graph.add(count, one);
        let last = Operator::Slice { axis: 1, start: 1, len: keep };
        (states[0], states[1], states[2]) =
            (graph.of(last.clone(), keys), graph.of(last, values), graph.node(Operator::Min, &[more, most]));
        graph::floats(graph.by_row(mixed, &[width]))
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
