//! Backpropagation through time over a recorded program, for closed loops: what a step reads depends on what the steps before it
//! gave, so the steps can neither be taken at once nor be told apart by a graph of tensors at a bearable price.
//!
//! A [`Differentiable`] holds a program's operations with their weights packed for both directions, once for all steps and threads.
//! A [`Tape`] is the memory of a few dozen rows on their way through the steps: the caller fills the inputs of a step, runs it
//! [`forward`](Tape::forward), and in reverse order adds gradients to its outputs and runs it [`backward`](Tape::backward). Gradients
//! of weights wait until [`Differentiable::gradients`]: one product over all steps and tapes instead of one for each.
//!
//! The oracle is the same model on the tensor executor whose states carry gradients
//! ([`through_time`](super::tensors::TensorExecutor::through_time)).

mod build;
#[cfg(feature = "cuda")]
pub mod cuda;
mod feed;
mod owed;
mod rows;
#[cfg(test)]
mod tests;
mod weight;

use super::block_of;
use super::program::{IndexSlot, Output, Program, Slot};
use crate::ops::{self, OutPointer, Products, Rows};
use crate::{Error, Result};
pub(crate) use build::Product;
pub use build::TapeBuilder;
use candle_core::{Device, Tensor};
pub(crate) use feed::feed;
pub(crate) use owed::Gradients;
use rayon::prelude::*;
pub use rows::RowGradients;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use weight::Weight;

/// A matrix of every step.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    width: usize,
    /// Whether one operation reads it and reads all of it, so that its gradient is written rather than added to.
    read_once: bool,
    /// Whether the values of all steps are read again backwards, and whether the gradients of all steps make a weight's. The others
    /// share the memory of one step, which so stays in the cache.
    keeps_values: bool,
    keeps_grads: bool,
}

impl Matrix {
    fn new(width: usize, read_once: bool) -> Self {
        Self { width, read_once, keeps_values: false, keeps_grads: false }
    }
}

/// Forward and backward of an operation on a tape. What its weights multiply and the memory that it wants it has told the [`TapeBuilder`].
pub trait Derivative: Send + Sync {
    /// Runs a step forward.
    fn forward(&self, step: &mut TapeStep);

    /// Runs a step backwards: the gradients of its results are there, those of its operands are to be handed on.
    fn backward(&self, step: &mut TapeStep);
}

/// An operation of a tape.
struct Node {
    derivative: Box<dyn Derivative>,
    /// Values a row of the gradient that goes from a step to the step before.
    carried: usize,
}

/// A program that can be differentiated.
pub(crate) struct Differentiable {
    nodes: Vec<Node>,
    /// Gradients of weights: products over all steps, in the order of the operations.
    uses: Vec<Product>,
    /// Values a row that the operations work in.
    scratch: usize,
    matrices: Vec<Matrix>,
    /// Of floats.
    inputs: Vec<Slot>,
    /// Of indices.
    indices: Vec<IndexSlot>,
    /// Indices a row.
    columns: usize,
    outputs: Vec<Slot>,
    parameters: Parameters,
}

/// The parameters that the operations hold, in the order of first use, each with the place of its gradient.
struct Parameters {
    products: Products,
    /// Those whose gradients every tape sums on its way.
    summed: Places,
    /// The weights, whose gradients are products over all tapes.
    multiplied: Places,
}

/// Tensors, each with its place in one vector.
#[derive(Default)]
struct Places(Vec<(Tensor, Range<usize>)>);

impl Places {
    /// The place of a tensor.
    fn of(&mut self, tensor: &Tensor) -> Range<usize> {
        if let Some((_, place)) = self.0.iter().find(|(known, _)| known.id() == tensor.id()) {
            return place.clone();
        }
        let start = self.len();
        self.0.push((tensor.clone(), start..start + tensor.elem_count()));
        start..start + tensor.elem_count()
    }

    fn len(&self) -> usize {
        self.0.last().map_or(0, |(_, place)| place.end)
    }
}

/// Rows that go through a tape together. Fixed, so that sums over rows do not depend on the number of threads; enough for the
/// products, few enough for the second-level cache. (128 and 32 were no faster.)
pub(crate) const BLOCK: usize = 64;

/// The most inputs and outputs of a weight whose gradient is one task: what it adds to then stays in the second-level cache.
const PART: [usize; 2] = [384, 384];

/// A part of a weight's gradient.
struct Part {
    /// The place of the whole weight.
    place: Range<usize>,
    /// Columns of the whole weight.
    width: usize,
    inputs: Range<usize>,
    outputs: Range<usize>,
}

impl Differentiable {
    /// Packs the weights of a program for products of that precision.
    ///
    /// # Errors
    /// If an operation has no derivative here (one that chooses), or a weight is not on the host.
    pub fn new(program: &Program, products: Products) -> Result<Self> {
        let floats = |output: &Output| match output {
            Output::Floats(slot) => Some(*slot),
            Output::Indices(_) => None,
        };
        let indices = |input: &Output| match input {
            Output::Floats(_) => None,
            Output::Indices(slot) => Some(*slot),
        };
        let inputs = program.inputs.iter().filter_map(floats).collect();
        let only_floats = || Error::Input("a differentiable program has outputs of floats only".to_owned());
        let outputs = program.outputs.iter().map(|output| floats(output).ok_or_else(only_floats)).collect::<Result<Vec<_>>>()?;
        let mut matrices: Vec<Matrix> = program.buffers.iter().map(|b| Matrix::new(b.width, false)).collect();
        let mut readers = vec![0; matrices.len()];
        for slot in program.nodes.iter().flat_map(|node| &node.wires.x) {
            readers[slot.buffer] += 1;
            matrices[slot.buffer].read_once = slot.width == matrices[slot.buffer].width;
        }
        // The caller is a reader of the outputs.
        outputs.iter().for_each(|slot| readers[slot.buffer] += 2);
        matrices.iter_mut().zip(readers).for_each(|(m, readers)| m.read_once &= readers == 1);
        let parameters = Parameters { products, summed: Places::default(), multiplied: Places::default() };
        let mut builder = TapeBuilder::new(matrices, parameters);
        let nodes = program.nodes.iter().map(|node| builder.node(node)).collect::<Result<_>>()?;
        outputs.iter().for_each(|slot| builder.keep_values(*slot));
        let TapeBuilder { matrices, parameters, uses, scratch, .. } = builder;
        let (indices, columns) = (program.inputs.iter().filter_map(indices).collect(), program.columns);
        Ok(Self { nodes, uses, scratch, matrices, inputs, indices, columns, outputs, parameters })
    }

    /// Rows that go through a tape together: as many whatever the number of threads.
    pub fn block(&self) -> usize {
        block_of(self.matrices.iter().map(|m| m.width).sum(), BLOCK)
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<Tensor> {
        let Parameters { summed, multiplied, .. } = &self.parameters;
        summed.0.iter().chain(&multiplied.0).map(|(tensor, _)| tensor.clone()).collect()
    }

    /// Gradients of all parameters, in their order, over all steps and rows of tapes that have run backwards. Every sum goes in the order
    /// of the tapes, whatever the number of threads.
    pub fn gradients(&self, tapes: &[&Tape]) -> candle_core::Result<Vec<Tensor>> {
        let Parameters { summed, multiplied, .. } = &self.parameters;
        let mut all = vec![0.0; summed.len() + multiplied.len()];
        let (sums, products) = all.split_at_mut(summed.len());
        tapes.iter().for_each(|tape| ops::add_into(sums, &tape.sums));
        let start = OutPointer::rows(products, 1);
        self.parts().par_iter().with_max_len(1).for_each(|Part { place, width, inputs, outputs }| {
            let out = OutPointer { stride: *width, ..start.block(place.start, 0) }.block(inputs.start, outputs.start);
            let users = || self.uses.iter().filter(|product| product.weight.place == *place);
            for (weight, [x, dy]) in tapes.iter().flat_map(|tape| users().filter_map(|product| product.operands(tape))) {
                let (x, dy) = (x.columns(inputs.start, inputs.len()), dy.columns(outputs.start, outputs.len()));
                // SAFETY: the parts are disjoint, inside `products`, and each is one task.
                unsafe { weight.add_gradient(x, dy, out) };
            }
        });
        let (sums, products) = all.split_at(summed.len());
        let shaped =
            |values: &[f32], (like, place): &(Tensor, Range<usize>)| Tensor::from_slice(&values[place.clone()], like.shape(), &Device::Cpu);
        summed.0.iter().map(|of| shaped(sums, of)).chain(multiplied.0.iter().map(|of| shaped(products, of))).collect()
    }

    /// The gradients of all weights, in parts.
    fn parts(&self) -> Vec<Part> {
        let mut weights: Vec<&Weight> = self.uses.iter().map(|product| &*product.weight).collect();
        // What several operations multiply by has one gradient.
        weights.sort_by_key(|weight| weight.place.start);
        weights.dedup_by_key(|weight| weight.place.start);
        let ranges = |n: usize, most: usize| {
            let parts = n.div_ceil(most);
            (0..parts).map(move |i| n * i / parts..n * (i + 1) / parts)
        };
        let mut parts = Vec::new();
        for (place, width) in weights.into_iter().map(|weight| (&weight.place, weight.outputs())) {
            for inputs in ranges(place.len() / width, PART[0]) {
                let part = |outputs| Part { place: place.clone(), width, inputs: inputs.clone(), outputs };
                parts.extend(ranges(width, PART[1]).map(part));
            }
        }
        parts
    }

    /// Whether a tape made for another program of that shape serves this one.
    fn fits(&self, tape: &Tape) -> bool {
        let fits = |steps: &Steps, m: &Matrix, keeps: bool| steps.width == m.width && (steps.stride > 0) == keeps;
        let pairs = || tape.values.iter().zip(&tape.grads).zip(&self.matrices);
        tape.values.len() == self.matrices.len()
            && pairs().all(|((values, grads), m)| fits(values, m, m.keeps_values) && fits(grads, m, m.keeps_grads))
            && tape.sums.len() == self.parameters.summed.len()
            && tape.indices.len() == tape.steps * tape.rows * self.columns
    }
}

/// Tapes that are used again by the next passes of their size (fresh pages cost more than the arithmetic on them), and how precise
/// their products are.
#[derive(Default, Clone)]
pub struct Tapes {
    tapes: Arc<Mutex<Vec<Tape>>>,
    products: Products,
}

/// The most tapes that are kept.
const KEPT: usize = 256;

impl Tapes {
    /// No tapes yet.
    pub fn new(products: Products) -> Self {
        Self { tapes: Arc::default(), products }
    }

    pub(crate) fn products(&self) -> Products {
        self.products
    }

    pub(crate) fn take(&self, net: &Differentiable, rows: usize, steps: usize) -> Tape {
        let mut tapes = self.tapes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tapes.iter().position(|tape| tape.rows == rows && tape.steps == steps && net.fits(tape));
        known.map(|i| tapes.swap_remove(i)).unwrap_or_else(|| {
            drop(tapes);
            Tape::new(net, rows, steps)
        })
    }

    pub(crate) fn put(&self, tape: Tape) {
        let mut tapes = self.tapes.lock().unwrap_or_else(PoisonError::into_inner);
        if tapes.len() == KEPT {
            tapes.remove(0);
        }
        tapes.push(tape);
    }
}

/// A matrix `[rows, width]` through the steps.
#[derive(Default)]
struct Steps {
    data: Vec<f32>,
    rows: usize,
    width: usize,
    /// Values between the starts of two steps: 0 where all share one place.
    stride: usize,
}

impl Steps {
    fn new(rows: usize, width: usize, steps: usize, keeps: bool) -> Self {
        let steps = if keeps { steps } else { 1 };
        Self { data: vec![0.0; steps * rows * width], rows, width, stride: if keeps { rows * width } else { 0 } }
    }

    /// Where step `t` lies.
    fn range(&self, t: usize) -> Range<usize> {
        t * self.stride..t * self.stride + self.rows * self.width
    }

    fn at(&self, t: usize) -> &[f32] {
        &self.data[self.range(t)]
    }

    fn at_mut(&mut self, t: usize) -> &mut [f32] {
        let range = self.range(t);
        &mut self.data[range]
    }

    /// Some columns of step `t`.
    fn columns(&self, slot: Slot, t: usize) -> Rows<'_> {
        Rows { data: &self.data[t * self.stride + slot.start..], rows: self.rows, width: slot.width, stride: self.width }
    }
}

/// The values and gradients of `rows` rows through `steps` steps.
pub(crate) struct Tape {
    rows: usize,
    steps: usize,
    /// By matrix.
    values: Vec<Steps>,
    grads: Vec<Steps>,
    /// `[steps, rows, columns]`.
    indices: Vec<u32>,
    /// The gradient of the state behind a step, for every operation with one.
    carries: Vec<Vec<f32>>,
    /// Gradients of the parameters that are summed on the way.
    sums: Vec<f32>,
    scratch: Vec<f32>,
}

impl Tape {
    fn new(net: &Differentiable, rows: usize, steps: usize) -> Self {
        let values = net.matrices.iter().map(|m| Steps::new(rows, m.width, steps, m.keeps_values)).collect();
        let grads = net.matrices.iter().map(|m| Steps::new(rows, m.width, steps, m.keeps_grads)).collect();
        let carries = net.nodes.iter().map(|node| vec![0.0; rows * node.carried]).collect();
        let (scratch, indices) = (vec![0.0; rows * net.scratch], vec![0; steps * rows * net.columns]);
        Self { rows, steps, values, grads, indices, carries, sums: vec![0.0; net.parameters.summed.len()], scratch }
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input `i` of those of floats in step `t`, `[rows, width]`, to be written before the step runs.
    pub fn input_mut(&mut self, net: &Differentiable, i: usize, t: usize) -> &mut [f32] {
        self.values[net.inputs[i].buffer].at_mut(t)
    }

    /// Row `r` of input `i` of those of indices in step `t`.
    pub fn indices_mut(&mut self, net: &Differentiable, i: usize, (t, r): (usize, usize)) -> &mut [u32] {
        let place = self.index_place(net, net.indices[i], (t, r));
        &mut self.indices[place]
    }

    fn index_place(&self, net: &Differentiable, slot: IndexSlot, (t, r): (usize, usize)) -> Range<usize> {
        let start = (t * self.rows + r) * net.columns + slot.at;
        start..start + slot.columns
    }

    /// Output `i` of step `t`.
    pub fn output(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        self.value(net.outputs[i], t)
    }

    /// The gradient of input `i` of step `t`, behind [`Self::backward`] of that step and before that of another.
    pub fn input_grad(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        let slot = net.inputs[i];
        self.grads[slot.buffer].columns(slot, t)
    }

    /// Adds `grad(row, values)` to the gradients of output `i` of step `t`, behind [`Self::clear`].
    pub fn add_output_grad(&mut self, net: &Differentiable, i: usize, t: usize, grad: impl Fn(usize, &mut [f32])) {
        let slot = net.outputs[i];
        let grads = &mut self.grads[slot.buffer];
        let width = grads.width;
        for (r, row) in grads.at_mut(t).chunks_exact_mut(width).enumerate() {
            grad(r, &mut row[slot.start..slot.start + slot.width]);
        }
    }

    /// What an operation reads in step `t`.
    fn value(&self, slot: Slot, t: usize) -> Rows<'_> {
        self.values[slot.buffer].columns(slot, t)
    }

    /// A matrix whose steps are all kept, `[steps * rows, width]`.
    fn all<'a>(&self, of: &'a [Steps], slot: Slot) -> Rows<'a> {
        Rows { rows: self.steps * self.rows, ..of[slot.buffer].columns(slot, 0) }
    }

    /// Runs step `t`; the state before step 0 is zero.
    pub fn forward(&mut self, net: &Differentiable, t: usize) {
        for (i, node) in net.nodes.iter().enumerate() {
            node.derivative.forward(&mut TapeStep { net, tape: self, i, t });
        }
    }

    /// Makes ready for the gradients of the outputs of step `t`. The last step comes first.
    pub fn clear(&mut self, net: &Differentiable, t: usize) {
        if t + 1 == self.steps {
            self.carries.iter_mut().for_each(|carry| carry.fill(0.0));
            self.sums.fill(0.0);
        }
        let added_to = self.grads.iter_mut().zip(&net.matrices).filter(|(_, m)| !m.read_once);
        added_to.for_each(|(grads, _)| grads.at_mut(t).fill(0.0));
    }

    /// Runs step `t` backwards.
    pub fn backward(&mut self, net: &Differentiable, t: usize) {
        for (i, node) in net.nodes.iter().enumerate().rev() {
            node.derivative.backward(&mut TapeStep { net, tape: self, i, t });
        }
    }

    /// Hands `grad` `[rows, width]` to a matrix of step `t` that an operation has read.
    fn deliver(&mut self, net: &Differentiable, slot: Slot, t: usize, grad: &[f32]) {
        let Matrix { width, read_once, .. } = net.matrices[slot.buffer];
        let rows = self.grads[slot.buffer].at_mut(t).chunks_exact_mut(width);
        for (to, from) in rows.zip(grad.chunks_exact(slot.width)) {
            let to = &mut to[slot.start..slot.start + slot.width];
            if read_once { to.copy_from_slice(from) } else { ops::add_into(to, from) }
        }
    }
}

/// One operation in one step of a tape.
pub struct TapeStep<'a> {
    net: &'a Differentiable,
    tape: &'a mut Tape,
    /// The operation's number.
    i: usize,
    t: usize,
}

impl TapeStep<'_> {
    /// Rows of the step.
    pub(crate) fn rows(&self) -> usize {
        self.tape.rows
    }

    /// The number of the step.
    pub(crate) fn number(&self) -> usize {
        self.t
    }

    /// A matrix that the operation reads.
    pub(crate) fn value(&self, slot: Slot) -> Rows<'_> {
        self.tape.value(slot, self.t)
    }

    /// Row `r` of indices that the operation reads.
    pub(crate) fn ids(&self, slot: IndexSlot, r: usize) -> &[u32] {
        &self.tape.indices[self.tape.index_place(self.net, slot, (self.t, r))]
    }

    /// All of a matrix, rows one behind the other.
    pub(crate) fn all(&self, slot: Slot) -> &[f32] {
        self.tape.values[slot.buffer].at(self.t)
    }

    /// What the operation reads in a step before.
    pub(crate) fn value_before(&self, slot: Slot, back: usize) -> Rows<'_> {
        self.tape.value(slot, self.t - back)
    }

    /// Calls `f` with all of a matrix of this step, to be written.
    pub(crate) fn with_values<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, &mut [f32]) -> R) -> R {
        let mut matrix = std::mem::take(&mut self.tape.values[slot.buffer]);
        let done = f(self, matrix.at_mut(self.t));
        self.tape.values[slot.buffer] = matrix;
        done
    }

    /// The same with several matrices, each another buffer.
    pub(crate) fn with_all_values<R, const N: usize>(&mut self, slots: [Slot; N], f: impl FnOnce(&mut Self, [&mut [f32]; N]) -> R) -> R {
        let mut matrices = slots.map(|slot| std::mem::take(&mut self.tape.values[slot.buffer]));
        let t = self.t;
        let done = f(self, matrices.each_mut().map(|matrix| matrix.at_mut(t)));
        slots.iter().zip(matrices).for_each(|(slot, matrix)| self.tape.values[slot.buffer] = matrix);
        done
    }

    /// The same, and before it what the matrix was in the step before: `None` in the first. The values of all steps are kept.
    pub(crate) fn with_values_before<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, Option<&[f32]>, &mut [f32]) -> R) -> R {
        let mut matrix = std::mem::take(&mut self.tape.values[slot.buffer]);
        let range = matrix.range(self.t);
        let (before, now) = matrix.data.split_at_mut(range.start);
        let before = (self.t > 0).then(|| &before[range.start - range.len()..]);
        let done = f(self, before, &mut now[..range.len()]);
        self.tape.values[slot.buffer] = matrix;
        done
    }

    /// Calls `f` with the gradient of all of a matrix, which it may change, and with what the operation works in.
    pub(crate) fn with_grads<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, &mut [f32], &mut [f32]) -> R) -> R {
        let mut matrix = std::mem::take(&mut self.tape.grads[slot.buffer]);
        let mut scratch = std::mem::take(&mut self.tape.scratch);
        let done = f(self, matrix.at_mut(self.t), &mut scratch);
        self.tape.scratch = scratch;
        self.tape.grads[slot.buffer] = matrix;
        done
    }

    /// Calls `f` with the gradient that goes from a step to the step before.
    pub(crate) fn with_carry<R>(&mut self, f: impl FnOnce(&mut Self, &mut [f32]) -> R) -> R {
        let mut carry = std::mem::take(&mut self.tape.carries[self.i]);
        let done = f(self, &mut carry);
        self.tape.carries[self.i] = carry;
        done
    }

    /// Gradients of the parameters that are summed on the way.
    pub(crate) fn sums(&mut self) -> &mut [f32] {
        &mut self.tape.sums
    }

    /// The same, taken, so that values can be read meanwhile.
    pub(crate) fn with_sums<R>(&mut self, f: impl FnOnce(&mut Self, &mut [f32]) -> R) -> R {
        let mut sums = std::mem::take(&mut self.tape.sums);
        let done = f(self, &mut sums);
        self.tape.sums = sums;
        done
    }

    /// Where the gradient of an operand can be written in place: it is read by this operation alone.
    pub(crate) fn grad_in_place(&mut self, slot: Slot) -> Option<&mut [f32]> {
        self.net.matrices[slot.buffer].read_once.then(|| self.tape.grads[slot.buffer].at_mut(self.t))
    }

    /// Hands on the gradient `[rows, width]` of an operand.
    pub(crate) fn deliver(&mut self, slot: Slot, grad: &[f32]) {
        self.tape.deliver(self.net, slot, self.t, grad);
    }
}
