//! Backpropagation through time over a recorded program, for closed loops: what a step reads depends on what the steps before it
//! gave, so the steps can neither be taken at once nor be told apart by a graph of tensors at a bearable price.
//!
//! A [`Differentiable`] holds a program's operations with their weights packed for both directions, once for all steps and threads.
//! A [`Tape`] is the memory of a few dozen rows on their way through the steps: the caller fills the inputs of a step, runs it
//! [`forward`](Tape::forward), and in reverse order adds gradients to its outputs and runs it [`backward`](Tape::backward). Gradients
//! of weights wait until [`Differentiable::gradients`]: one product over all steps and tapes instead of one for each. Only where a weight
//! meets many places of a row is its gradient added on the way. What no later pass reads lies in a workspace, which a tape that waits
//! for its backward lends to the next.
//!
//! The oracle is the same model on the tensor executor whose states carry gradients
//! ([`through_time`](super::tensors::TensorExecutor::through_time)).

mod build;
#[cfg(feature = "cuda")]
pub mod cuda;
mod feed;
mod memory;
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
use memory::{Layout, Matrix, Memory, Of, Place, Workspace};
pub(crate) use owed::Gradients;
use rayon::prelude::*;
pub use rows::RowGradients;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub(crate) use weight::Weight;

/// Forward and backward of an operation on a tape. What its weights multiply and the memory that it wants it has told the [`TapeBuilder`].
pub trait Derivative: Send + Sync {
    /// Runs a step forward.
    fn forward(&self, step: &mut TapeStep);

    /// Runs a step backwards: the gradients of its results are there, those of its operands are to be handed on.
    fn backward(&self, step: &mut TapeStep);
}

/// A program that can be differentiated.
pub(crate) struct Differentiable {
    nodes: Vec<Box<dyn Derivative>>,
    /// Those whose gradients are for the inputs alone.
    of_inputs: Vec<bool>,
    /// Gradients of weights: products over all steps, in the order of the operations.
    uses: Vec<Product>,
    matrices: Vec<Matrix>,
    layout: Arc<Layout>,
    /// The matrices whose gradients begin as zeros, by the moment of their last use ([`Matrix::last_use`]).
    births: Vec<Vec<usize>>,
    /// Of floats.
    inputs: Vec<Slot>,
    /// Of indices.
    indices: Vec<IndexSlot>,
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
struct Places {
    known: Vec<(Tensor, Range<usize>)>,
    /// How often a place was asked for, also that of a tensor which had one.
    asked: usize,
}

impl Places {
    /// The place of a tensor.
    fn of(&mut self, tensor: &Tensor) -> Range<usize> {
        self.asked += 1;
        if let Some((_, place)) = self.known.iter().find(|(known, _)| known.id() == tensor.id()) {
            return place.clone();
        }
        let start = self.len();
        self.known.push((tensor.clone(), start..start + tensor.elem_count()));
        start..start + tensor.elem_count()
    }

    /// Whether a tensor is one of them.
    fn has(&self, tensor: &Tensor) -> bool {
        self.known.iter().any(|(known, _)| known.id() == tensor.id())
    }

    fn len(&self) -> usize {
        self.known.last().map_or(0, |(_, place)| place.end)
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
        let inputs: Vec<Slot> = program.inputs.iter().filter_map(floats).collect();
        let only_floats = || Error::Input("a differentiable program has outputs of floats only".to_owned());
        let outputs = program.outputs.iter().map(|output| floats(output).ok_or_else(only_floats)).collect::<Result<Vec<_>>>()?;
        let parameters = Parameters { products, summed: Places::default(), multiplied: Places::default() };
        let mut builder = TapeBuilder::new(Matrix::all(program), parameters, &inputs);
        let nodes = program.nodes.iter().map(|node| builder.node(node)).collect::<Result<Vec<_>>>()?;
        outputs.iter().for_each(|slot| builder.keep_values(*slot));
        let TapeBuilder { matrices, parameters, uses, scratch, carried, of_inputs, .. } = builder;
        let mut births = vec![Vec::new(); nodes.len() + 2];
        let added_to = matrices.iter().enumerate().filter(|(_, matrix)| !matrix.read_once);
        added_to.for_each(|(i, matrix)| births[matrix.last_use()].push(i));
        let layout = Arc::new(Layout::new(&matrices, scratch, carried, parameters.summed.len(), program.columns));
        let indices = program.inputs.iter().filter_map(indices).collect();
        Ok(Self { nodes, of_inputs, uses, matrices, layout, births, inputs, indices, outputs, parameters })
    }

    /// Rows that go through a tape together: as many whatever the number of threads.
    pub fn block(&self) -> usize {
        block_of(self.matrices.iter().map(|m| m.width).sum(), BLOCK)
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<Tensor> {
        let Parameters { summed, multiplied, .. } = &self.parameters;
        summed.known.iter().chain(&multiplied.known).map(|(tensor, _)| tensor.clone()).collect()
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
            let users: Vec<&Product> = self.uses.iter().filter(|product| product.weight.place == *place).collect();
            for (weight, [x, dy]) in tapes.iter().flat_map(|tape| users.iter().filter_map(|product| product.operands(self, tape))) {
                let (x, dy) = (x.columns(inputs.start, inputs.len()), dy.columns(outputs.start, outputs.len()));
                // SAFETY: the parts are disjoint, inside `products`, and each is one task.
                unsafe { weight.add_gradient(x, dy, out) };
            }
        });
        let (sums, products) = all.split_at(summed.len());
        let shaped =
            |values: &[f32], (like, place): &(Tensor, Range<usize>)| Tensor::from_slice(&values[place.clone()], like.shape(), &Device::Cpu);
        summed.known.iter().map(|of| shaped(sums, of)).chain(multiplied.known.iter().map(|of| shaped(products, of))).collect()
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
}

/// Tapes that are used again by the next passes of their size (fresh pages cost more than the arithmetic on them), and how precise
/// their products are.
#[derive(Default, Clone)]
pub struct Tapes {
    pool: Arc<Mutex<Pool>>,
    products: Products,
}

#[derive(Default)]
struct Pool {
    tapes: Vec<Tape>,
    workspaces: Vec<Workspace>,
}

/// The most tapes, and the most workspaces, that are kept.
const KEPT: usize = 256;

/// What is in a pool that serves, or nothing.
fn found<T>(pool: &mut Vec<T>, serves: impl Fn(&T) -> bool) -> Option<T> {
    pool.iter().position(serves).map(|i| pool.swap_remove(i))
}

/// Puts something into a pool, in place of what has been there longest where it is full.
fn put<T>(pool: &mut Vec<T>, what: T) {
    if pool.len() == KEPT {
        pool.remove(0);
    }
    pool.push(what);
}

impl Tapes {
    /// No tapes yet.
    pub fn new(products: Products) -> Self {
        Self { pool: Arc::default(), products }
    }

    pub(crate) fn products(&self) -> Products {
        self.products
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tape that can run.
    pub(crate) fn take(&self, net: &Differentiable, rows: usize, steps: usize) -> Tape {
        let known = found(&mut self.pool().tapes, |tape| tape.rows == rows && tape.steps == steps && tape.layout == net.layout);
        let mut tape = known.unwrap_or_else(|| Tape::new(&net.layout, rows, steps));
        self.wake(&mut tape);
        tape
    }

    /// Takes from a tape what it does not need before it runs again.
    pub(crate) fn rest(&self, tape: &mut Tape) {
        if let Some(workspace) = tape.workspace.take() {
            put(&mut self.pool().workspaces, workspace);
        }
    }

    /// Gives it back to a tape that is to run again.
    pub(crate) fn wake(&self, tape: &mut Tape) {
        if tape.workspace.is_none() {
            let known = found(&mut self.pool().workspaces, |workspace| workspace.fits(&tape.layout, tape.rows));
            tape.workspace = Some(known.unwrap_or_else(|| Workspace::new(&tape.layout, tape.rows)));
        }
    }

    pub(crate) fn put(&self, mut tape: Tape) {
        self.rest(&mut tape);
        put(&mut self.pool().tapes, tape);
    }
}

/// The values and gradients of `rows` rows through `steps` steps.
pub(crate) struct Tape {
    rows: usize,
    steps: usize,
    layout: Arc<Layout>,
    /// The matrices whose values or gradients of all steps are kept.
    kept: Memory,
    /// The others; none while the tape waits.
    workspace: Option<Workspace>,
    /// `[steps, rows, columns]`.
    indices: Vec<u32>,
    /// The gradient of the state behind a step, for every operation with one.
    carries: Vec<Vec<f32>>,
    /// Gradients of the parameters that are summed on the way.
    sums: Vec<f32>,
}

/// Why there is always a workspace.
const AWAKE: &str = "a tape runs after it was taken or woken";

impl Tape {
    fn new(layout: &Arc<Layout>, rows: usize, steps: usize) -> Self {
        Self {
            rows,
            steps,
            layout: layout.clone(),
            kept: Memory::kept(layout, rows, steps),
            workspace: None,
            indices: vec![0; steps * rows * layout.columns],
            carries: layout.carried.iter().map(|width| vec![0.0; rows * width]).collect(),
            sums: vec![0.0; layout.summed],
        }
    }

    /// The part of the memory in which the values or gradients of a matrix lie, and where step `t` of them does.
    fn part(&self, net: &Differentiable, of: Of, buffer: usize, t: usize) -> (&Vec<f32>, Range<usize>) {
        let place = net.layout[of].places[buffer];
        let part = match place {
            Place::Kept(i) => &self.kept[of][i],
            Place::Shared(i) => &self.workspace.as_ref().expect(AWAKE).memory[of][i],
        };
        (part, place.range(t, self.rows * net.matrices[buffer].width))
    }

    fn part_mut(&mut self, net: &Differentiable, of: Of, buffer: usize, t: usize) -> (&mut Vec<f32>, Range<usize>) {
        let place = net.layout[of].places[buffer];
        let part = match place {
            Place::Kept(i) => &mut self.kept[of][i],
            Place::Shared(i) => &mut self.workspace.as_mut().expect(AWAKE).memory[of][i],
        };
        (part, place.range(t, self.rows * net.matrices[buffer].width))
    }

    /// Step `t` of the values or gradients of a matrix.
    fn at(&self, net: &Differentiable, of: Of, buffer: usize, t: usize) -> &[f32] {
        let (part, range) = self.part(net, of, buffer, t);
        &part[range]
    }

    fn at_mut(&mut self, net: &Differentiable, of: Of, buffer: usize, t: usize) -> &mut [f32] {
        let (part, range) = self.part_mut(net, of, buffer, t);
        &mut part[range]
    }

    /// Some columns of them.
    fn columns(&self, net: &Differentiable, of: Of, slot: Slot, t: usize) -> Rows<'_> {
        let data = &self.at(net, of, slot.buffer, t)[slot.start..];
        Rows { data, rows: self.rows, width: slot.width, stride: net.matrices[slot.buffer].width }
    }

    /// Those of all steps, `[steps * rows, width]`, of a matrix that keeps them.
    fn all(&self, net: &Differentiable, of: Of, slot: Slot) -> Rows<'_> {
        let (part, _) = self.part(net, of, slot.buffer, 0);
        Rows { data: &part[slot.start..], rows: self.steps * self.rows, width: slot.width, stride: net.matrices[slot.buffer].width }
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input `i` of those of floats in step `t`, `[rows, width]`, to be written before the step runs.
    pub fn input_mut(&mut self, net: &Differentiable, i: usize, t: usize) -> &mut [f32] {
        self.at_mut(net, Of::Values, net.inputs[i].buffer, t)
    }

    /// Row `r` of input `i` of those of indices in step `t`.
    pub fn indices_mut(&mut self, net: &Differentiable, i: usize, (t, r): (usize, usize)) -> &mut [u32] {
        let place = self.index_place(net, net.indices[i], (t, r));
        &mut self.indices[place]
    }

    fn index_place(&self, net: &Differentiable, slot: IndexSlot, (t, r): (usize, usize)) -> Range<usize> {
        let start = (t * self.rows + r) * net.layout.columns + slot.at;
        start..start + slot.columns
    }

    /// Output `i` of step `t`.
    pub fn output(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        self.columns(net, Of::Values, net.outputs[i], t)
    }

    /// The gradient of input `i` of step `t`, behind [`Self::backward`] of that step and before that of another.
    pub fn input_grad(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        self.columns(net, Of::Grads, net.inputs[i], t)
    }

    /// Adds `grad(row, values)` to the gradients of output `i` of step `t`, behind [`Self::clear`].
    pub fn add_output_grad(&mut self, net: &Differentiable, i: usize, t: usize, grad: impl Fn(usize, &mut [f32])) {
        let slot = net.outputs[i];
        let width = net.matrices[slot.buffer].width;
        for (r, row) in self.at_mut(net, Of::Grads, slot.buffer, t).chunks_exact_mut(width).enumerate() {
            grad(r, &mut row[slot.start..slot.start + slot.width]);
        }
    }

    /// Runs step `t`; the state before step 0 is zero.
    pub fn forward(&mut self, net: &Differentiable, t: usize) {
        for (i, node) in net.nodes.iter().enumerate() {
            node.forward(&mut TapeStep { net, tape: self, i, t });
        }
    }

    /// Makes ready for the gradients of the outputs of step `t`. The last step comes first.
    pub fn clear(&mut self, net: &Differentiable, t: usize) {
        if t + 1 == self.steps {
            self.carries.iter_mut().for_each(|carry| carry.fill(0.0));
            self.sums.fill(0.0);
        }
        self.begin(net, net.nodes.len() + 1, t);
    }

    /// Zeros for the gradients of those matrices whose last use this moment is.
    fn begin(&mut self, net: &Differentiable, moment: usize, t: usize) {
        net.births[moment].iter().for_each(|buffer| self.at_mut(net, Of::Grads, *buffer, t).fill(0.0));
    }

    /// Runs step `t` backwards.
    pub fn backward(&mut self, net: &Differentiable, t: usize) {
        self.backward_through(net, t, |_| true);
        // An input that nothing reads has gradients as well.
        self.begin(net, 0, t);
    }

    /// The same where nobody asks for the gradients of the inputs: what is for them alone is left out.
    pub fn backward_to_parameters(&mut self, net: &Differentiable, t: usize) {
        self.backward_through(net, t, |i| !net.of_inputs[i]);
    }

    fn backward_through(&mut self, net: &Differentiable, t: usize, wanted: impl Fn(usize) -> bool) {
        for (i, node) in net.nodes.iter().enumerate().rev() {
            self.begin(net, i + 1, t);
            if wanted(i) {
                node.backward(&mut TapeStep { net, tape: self, i, t });
            }
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
        self.value_before(slot, 0)
    }

    /// Row `r` of indices that the operation reads.
    pub(crate) fn ids(&self, slot: IndexSlot, r: usize) -> &[u32] {
        &self.tape.indices[self.tape.index_place(self.net, slot, (self.t, r))]
    }

    /// All of a matrix, rows one behind the other.
    pub(crate) fn all(&self, slot: Slot) -> &[f32] {
        self.tape.at(self.net, Of::Values, slot.buffer, self.t)
    }

    /// What the operation reads in a step before.
    pub(crate) fn value_before(&self, slot: Slot, back: usize) -> Rows<'_> {
        self.tape.columns(self.net, Of::Values, slot, self.t - back)
    }

    /// Takes the part of the memory in which a matrix lies, so that others can be read meanwhile, and says where this step of it does.
    fn taken(&mut self, of: Of, slot: Slot) -> (Vec<f32>, Range<usize>) {
        let (part, range) = self.tape.part_mut(self.net, of, slot.buffer, self.t);
        (std::mem::take(part), range)
    }

    fn give_back(&mut self, of: Of, slot: Slot, part: Vec<f32>) {
        *self.tape.part_mut(self.net, of, slot.buffer, self.t).0 = part;
    }

    /// Calls `f` with all of a matrix of this step, to be written.
    pub(crate) fn with_values<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, &mut [f32]) -> R) -> R {
        self.with_all_values([slot], |step, [values]| f(step, values))
    }

    /// The same with several matrices, each another buffer.
    pub(crate) fn with_all_values<R, const N: usize>(&mut self, slots: [Slot; N], f: impl FnOnce(&mut Self, [&mut [f32]; N]) -> R) -> R {
        let mut parts = slots.map(|slot| self.taken(Of::Values, slot));
        let done = f(self, parts.each_mut().map(|(part, range)| &mut part[range.clone()]));
        slots.iter().zip(parts).for_each(|(slot, (part, _))| self.give_back(Of::Values, *slot, part));
        done
    }

    /// The same, and before it what the matrix was in the step before: `None` in the first. The values of all steps are kept.
    pub(crate) fn with_values_before<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, Option<&[f32]>, &mut [f32]) -> R) -> R {
        let (mut part, range) = self.taken(Of::Values, slot);
        let (before, now) = part.split_at_mut(range.start);
        let before = (self.t > 0).then(|| &before[range.start - range.len()..]);
        let done = f(self, before, &mut now[..range.len()]);
        self.give_back(Of::Values, slot, part);
        done
    }

    /// Calls `f` with the gradient of all of a matrix, which it may change, and with what the operation works in.
    pub(crate) fn with_grads<R>(&mut self, slot: Slot, f: impl FnOnce(&mut Self, &mut [f32], &mut [f32]) -> R) -> R {
        let (mut part, range) = self.taken(Of::Grads, slot);
        let workspace = self.tape.workspace.as_mut().expect(AWAKE);
        let mut scratch = std::mem::take(&mut workspace.scratch);
        let done = f(self, &mut part[range], &mut scratch);
        self.tape.workspace.as_mut().expect(AWAKE).scratch = scratch;
        self.give_back(Of::Grads, slot, part);
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
        self.net.matrices[slot.buffer].read_once.then(|| self.tape.at_mut(self.net, Of::Grads, slot.buffer, self.t))
    }

    /// Hands on the gradient `[rows, width]` of an operand.
    pub(crate) fn deliver(&mut self, slot: Slot, grad: &[f32]) {
        grad.chunks_exact(slot.width).enumerate().for_each(|(r, grad)| self.deliver_part(slot, (r, 0), grad));
    }

    /// Hands on a part of it: from a row and a column on, as far as it goes.
    pub(crate) fn deliver_part(&mut self, slot: Slot, (row, column): (usize, usize), grad: &[f32]) {
        let Matrix { width, read_once, .. } = self.net.matrices[slot.buffer];
        let start = row * width + slot.start + column;
        let to = &mut self.tape.at_mut(self.net, Of::Grads, slot.buffer, self.t)[start..start + grad.len()];
        if read_once { to.copy_from_slice(grad) } else { ops::add_into(to, grad) }
    }
}
