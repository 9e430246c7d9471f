//! Attention over a set (Vaswani et al. 2017), some of whose elements may be absent: queries `q` `[rows, Q W]`, keys and values of the elements `kv`
//! `[rows, E 2 W]`, each element's key before its value, and how far each is there, `presence` `[rows, E]`; to `[rows, Q W]`.
//!
//! Each of the heads has `W / heads` columns of its own: `y_i = sum_j p_j e^(q_i k_j / sqrt(W / heads)) v_j / sum_j p_j e^(...)`. A presence of 0 or
//! less is absence, and where all are absent y is 0. Not included: dropout, positions, a memory over frames.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::{D, Tensor};

/// Microseconds of a product on one thread, roughly.
const MICROS: f32 = 2e-4;

/// The operation: operands `q`, `kv` and `presence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAttention {
    queries: usize,
    elements: usize,
    heads: usize,
    width: usize,
}

/// Where a head of a query reads and writes.
struct Head<'a> {
    q: &'a [f32],
    kv: &'a [f32],
    presence: &'a [f32],
    /// The first of its columns among those of a query.
    first: usize,
}

impl SetAttention {
    /// So many queries to so many elements, all `width` wide.
    ///
    /// # Errors
    /// If a number is 0, or the heads do not divide the width.
    pub fn new([queries, elements]: [usize; 2], heads: usize, width: usize) -> Result<Self> {
        if queries == 0 || elements == 0 || heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            return Err(Error::Input(format!(
                "set_attention: {queries} queries to {elements} elements of {width} values cannot be shared by {heads} heads"
            )));
        }
        Ok(Self { queries, elements, heads, width })
    }

    /// Columns of a head.
    fn each(&self) -> usize {
        self.width / self.heads
    }

    fn head<'a>(&self, x: &[&'a [f32]], query: usize, head: usize) -> Head<'a> {
        let first = head * self.each();
        Head { q: &x[0][query * self.width + first..][..self.each()], kv: x[1], presence: x[2], first }
    }

    fn key<'a>(&self, head: &Head<'a>, element: usize) -> &'a [f32] {
        &head.kv[element * 2 * self.width + head.first..][..self.each()]
    }

    fn value<'a>(&self, head: &Head<'a>, element: usize) -> &'a [f32] {
        &head.kv[(2 * element + 1) * self.width + head.first..][..self.each()]
    }

    fn score(&self, head: &Head, element: usize) -> f32 {
        dot(head.q, self.key(head, element)) / (self.each() as f32).sqrt()
    }

    /// The largest score of those that are there, and the sum of all weights.
    fn weights(&self, head: &Head) -> (f32, f32) {
        let there = || (0..self.elements).filter(|element| head.presence[*element] > 0.0);
        let most = there().map(|element| self.score(head, element)).fold(f32::NEG_INFINITY, f32::max);
        (most, there().map(|element| head.presence[element] * (self.score(head, element) - most).exp()).sum())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f32], scale: f32, x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += scale * x);
}

impl RowGradients for SetAttention {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        y.fill(0.0);
        for (query, y) in y.chunks_exact_mut(self.width).enumerate() {
            for (number, y) in y.chunks_exact_mut(self.each()).enumerate() {
                let head = self.head(x, query, number);
                let (most, total) = self.weights(&head);
                for element in (0..self.elements).filter(|element| head.presence[*element] > 0.0) {
                    let weight = head.presence[element] * (self.score(&head, element) - most).exp() / total;
                    add(y, weight, self.value(&head, element));
                }
            }
        }
    }

    fn backward(&self, x: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        dx.iter_mut().for_each(|dx| dx.fill(0.0));
        let ([dq, dkv, dp], scale) = (dx, 1.0 / (self.each() as f32).sqrt()) else { return };
        for query in 0..self.queries {
            for number in 0..self.heads {
                let head = self.head(x, query, number);
                let own = query * self.width + head.first..query * self.width + head.first + self.each();
                let (y, dy, dq) = (&y[own.clone()], &dy[own.clone()], &mut dq[own]);
                let (most, total) = self.weights(&head);
                let along = dot(y, dy);
                for element in (0..self.elements).filter(|element| head.presence[*element] > 0.0) {
                    let part = (self.score(&head, element) - most).exp() / total;
                    let weight = head.presence[element] * part;
                    // What the value's share of y would change.
                    let change = dot(self.value(&head, element), dy) - along;
                    dp[element] += part * change;
                    add(dq, weight * change * scale, self.key(&head, element));
                    let at = element * 2 * self.width + head.first;
                    add(&mut dkv[at..at + self.each()], weight * change * scale, head.q);
                    add(&mut dkv[at + self.width..at + self.width + self.each()], weight, dy);
                }
            }
        }
    }
}

impl Operation for SetAttention {
    fn name(&self) -> &'static str {
        "set_attention"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [q, kv, presence] = operands(self.name(), x)?;
        same_width(self.name(), q, self.queries * self.width)?;
        same_width(self.name(), kv, self.elements * 2 * self.width)?;
        same_width(self.name(), presence, self.elements)?;
        Ok(Widths::floats(q))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([q, kv, presence], each) = (operands(self.name(), x)?, self.each());
        let rows = q.dim(0)?;
        let kv = kv.reshape((rows, self.elements, 2, self.heads, each))?;
        let [k, v] = [0, 1].map(|i| kv.narrow(2, i, 1).and_then(|x| x.squeeze(2)?.transpose(1, 2)?.contiguous()));
        let q = q.reshape((rows, self.queries, self.heads, each))?.transpose(1, 2)?.contiguous()?;
        let scores = (q.matmul(&k?.t()?.contiguous()?)? / (each as f64).sqrt())?;
        let there = presence.relu()?.reshape((rows, 1, 1, self.elements))?;
        let absent = there.eq(0.0)?.to_dtype(scores.dtype())?.broadcast_as(scores.shape())?;
        // An absent one has the score of the rest's floor: it neither is the largest nor overflows.
        let floor = scores.detach().min_all()?;
        let masked = (scores.broadcast_mul(&there.ne(0.0)?.to_dtype(scores.dtype())?)? + absent.broadcast_mul(&floor)?)?;
        let most = masked.max_keepdim(D::Minus1)?.detach();
        let weights = masked.broadcast_sub(&most)?.exp()?.broadcast_mul(&there)?;
        let total = weights.sum_keepdim(D::Minus1)?;
        let total = (&total + total.eq(0.0)?.to_dtype(total.dtype())?)?;
        let y = weights.broadcast_div(&total)?.matmul(&v?)?;
        Ok(Values::floats(y.transpose(1, 2)?.reshape((rows, self.queries * self.width))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([q, kv, presence], each) = (operands(self.name(), x)?, self.each());
        let q = graph.by_row(q, &[self.queries, self.heads, each]);
        let q = graph.of(Operator::Transpose(vec![0, 2, 1, 3]), q);
        let kv = graph.by_row(kv, &[self.elements, 2, self.heads, each]);
        let part = |graph: &mut Graph, start, axes| {
            let part = graph.of(Operator::Slice { axis: 2, start, len: 1 }, kv);
            let part = graph.by_row(part, &[self.elements, self.heads, each]);
            graph.of(Operator::Transpose(axes), part)
        };
        let (k, v) = (part(graph, 0, vec![0, 2, 3, 1]), part(graph, 1, vec![0, 2, 1, 3]));
        let scale = graph.float(1.0 / (each as f32).sqrt());
        let products = graph.node(Operator::MatMul, &[q, k]);
        let scores = graph.mul(products, scale);
        let there = graph.by_row(presence, &[1, 1, self.elements]);
        let (zero, one, nothing) = (graph.float(0.0), graph.float(1.0), graph.float(f32::MIN));
        let is_there = graph.node(Operator::Less, &[zero, there]);
        let share = graph.node(Operator::Where, &[is_there, there, one]);
        let share = graph.of(Operator::Log, share);
        let scores = graph.add(scores, share);
        let scores = graph.node(Operator::Where, &[is_there, scores, nothing]);
        let weights = graph.of(Operator::Softmax, scores);
        let y = graph.node(Operator::MatMul, &[weights, v]);
        // Where nobody is there, all are alike in a softmax.
        let sum = graph.of(Operator::Relu, there);
        let sum = graph.of(Operator::ReduceSum { axis: 3 }, sum);
        let sum = graph.by_row(sum, &[1, 1, 1]);
        let any = graph.node(Operator::Less, &[zero, sum]);
        let y = graph.node(Operator::Where, &[any, y, zero]);
        let y = graph.of(Operator::Transpose(vec![0, 2, 1, 3]), y);
        graph::floats(graph.by_row(y, &[self.queries * self.width]))
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (*self, MICROS * (self.queries * self.elements * self.width) as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0), x.x(1), x.x(2)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (op, reads) = (*self, operands::<_, 3>(self.name(), &wires.x)?);
        Ok(Some(compiler.with_narrow(reads, wires.out[0], move |pass, reads, out| {
            let args = cuda::Arguments::new(reads.map(|slot| pass.matrix(slot)), pass.matrix(out), &op);
            // SAFETY: the plan gives all matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = 4.0 * size.rows() * (self.queries * self.elements * self.width) as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}
