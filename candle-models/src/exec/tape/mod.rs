//! Backpropagation through time over a recorded program, for closed loops: what a step reads depends on what the steps before it
//! gave, so the steps can neither be taken at once nor be told apart by a graph of tensors at a bearable price.
//!
//! A [`Differentiable`] holds a program's operations with their weights packed for both directions, once for all steps and threads.
//! A [`Tape`] is the memory of a few dozen rows on their way through the steps: the caller fills the inputs of a step, runs it
//! [`forward`](Tape::forward), and in reverse order adds gradients to its outputs and runs it [`backward`](Tape::backward). Gradients of weights wait until
//! [`Tape::finish`]: one product over all steps instead of one for each.
//!
//! The oracle is the same model on the tensor executor whose states carry gradients
//! ([`through_time`](super::tensors::TensorExecutor::through_time)).

mod feed;
mod mamba;
mod node;
mod owed;
#[cfg(test)]
mod tests;

use super::program::{Output, Program, Slot};
use crate::ops::Rows;
use crate::{Error, Result};
use candle_core::Tensor;
pub(crate) use feed::feed;
use node::Node;
pub(crate) use owed::Gradients;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A matrix of every step: its width, and whether one operation reads it and reads all of it, so that its gradient is written
/// rather than added to.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    width: usize,
    read_once: bool,
}

/// A program that can be differentiated.
pub(crate) struct Differentiable {
    nodes: Vec<Node>,
    matrices: Vec<Matrix>,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    parameters: Parameters,
}

/// The parameters that the operations hold, in the order of first use, each with its place in one vector of gradients.
struct Parameters {
    products: Products,
    tensors: Vec<(Tensor, Range<usize>)>,
}

impl Parameters {
    /// The place of a parameter's gradient.
    fn place(&mut self, tensor: &Tensor) -> Range<usize> {
        if let Some((_, place)) = self.tensors.iter().find(|(known, _)| known.id() == tensor.id()) {
            return place.clone();
        }
        let start = self.len();
        self.tensors.push((tensor.clone(), start..start + tensor.elem_count()));
        start..start + tensor.elem_count()
    }

    fn len(&self) -> usize {
        self.tensors.last().map_or(0, |(_, place)| place.end)
    }
}

impl Differentiable {
    /// Packs the weights of a program for products of that precision.
    ///
    /// # Errors
    /// If an operation has no derivative here (choices and indices), or a weight is not on the host.
    pub fn new(program: &Program, products: Products) -> Result<Self> {
        let floats = |output: &Output| match output {
            Output::Floats(slot) => Ok(*slot),
            Output::Indices(_) => Err(Error::Input("a differentiable program has inputs and outputs of floats only".to_owned())),
        };
        let (inputs, outputs) = (
            program.inputs.iter().map(floats).collect::<Result<Vec<_>>>()?,
            program.outputs.iter().map(floats).collect::<Result<Vec<_>>>()?,
        );
        let mut matrices: Vec<Matrix> = program.buffers.iter().map(|b| Matrix { width: b.width, read_once: false }).collect();
        let mut readers = vec![0; matrices.len()];
        for slot in program.ops.iter().flat_map(|op| op.reads()) {
            readers[slot.buffer] += 1;
            matrices[slot.buffer].read_once = slot.width == matrices[slot.buffer].width;
        }
        // The caller is a reader of the outputs.
        outputs.iter().for_each(|slot| readers[slot.buffer] += 2);
        matrices.iter_mut().zip(readers).for_each(|(m, readers)| m.read_once &= readers == 1);
        let mut parameters = Parameters { products, tensors: Vec::new() };
        let nodes = program.ops.iter().map(|op| Node::new(op, &mut matrices, &mut parameters)).collect::<Result<_>>()?;
        Ok(Self { nodes, matrices, inputs, outputs, parameters })
    }

    /// The parameters, each with the place of its gradient.
    pub fn parameters(&self) -> &[(Tensor, Range<usize>)] {
        &self.parameters.tensors
    }

    /// Whether a tape made for another program of that shape serves this one.
    fn fits(&self, tape: &Tape) -> bool {
        tape.values.len() == self.matrices.len()
            && tape.values.iter().zip(&self.matrices).all(|(v, m)| v.len() == tape.steps * tape.rows * m.width)
            && tape.sums.len() == self.parameters.len()
    }
}

/// What the operands of products with weights are rounded to; sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// Not at all.
    #[default]
    F32,
    /// To bf16, where the processor multiplies those (Intel AMX) several times as fast; elsewhere not at all.
    Bf16,
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

/// The values and gradients of `rows` rows through `steps` steps.
pub(crate) struct Tape {
    rows: usize,
    steps: usize,
    /// `[steps, rows, width]` for every matrix.
    values: Vec<Vec<f32>>,
    grads: Vec<Vec<f32>>,
    /// The gradient of the state behind a step, for every operation with one.
    carries: Vec<Vec<f32>>,
    /// Gradients of the parameters.
    sums: Vec<f32>,
    scratch: Vec<f32>,
}

impl Tape {
    fn new(net: &Differentiable, rows: usize, steps: usize) -> Self {
        let matrices = || net.matrices.iter().map(|m| vec![0.0; steps * rows * m.width]).collect();
        let carries = net.nodes.iter().map(|node| vec![0.0; rows * node.carried()]).collect();
        let scratch = vec![0.0; rows * net.nodes.iter().map(Node::scratch).max().unwrap_or(0)];
        Self { rows, steps, values: matrices(), grads: matrices(), carries, sums: vec![0.0; net.parameters.len()], scratch }
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of a matrix in step `t`, `[rows, width]`.
    fn step(&self, width: usize, t: usize) -> Range<usize> {
        t * self.rows * width..(t + 1) * self.rows * width
    }

    /// Input `i` of step `t`, `[rows, width]`, to be written before the step runs.
    pub fn input_mut(&mut self, net: &Differentiable, i: usize, t: usize) -> &mut [f32] {
        let slot = net.inputs[i];
        let range = self.step(slot.width, t);
        &mut self.values[slot.buffer][range]
    }

    /// Output `i` of step `t`.
    pub fn output(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        self.read(&self.values, net, net.outputs[i], t)
    }

    /// The gradient of input `i` of step `t`, behind [`Self::backward`].
    pub fn input_grad(&self, net: &Differentiable, i: usize, t: usize) -> Rows<'_> {
        self.read(&self.grads, net, net.inputs[i], t)
    }

    /// Adds `grad(row, values)` to the gradients of output `i` of step `t`, behind [`Self::clear`].
    pub fn add_output_grad(&mut self, net: &Differentiable, i: usize, t: usize, grad: impl Fn(usize, &mut [f32])) {
        let slot = net.outputs[i];
        let width = net.matrices[slot.buffer].width;
        let range = self.step(width, t);
        for (r, row) in self.grads[slot.buffer][range].chunks_exact_mut(width).enumerate() {
            grad(r, &mut row[slot.start..slot.start + slot.width]);
        }
    }

    fn read<'a>(&self, of: &'a [Vec<f32>], net: &Differentiable, slot: Slot, t: usize) -> Rows<'a> {
        let stride = net.matrices[slot.buffer].width;
        let data = &of[slot.buffer][t * self.rows * stride + slot.start..];
        Rows { data, rows: self.rows, width: slot.width, stride }
    }

    /// A matrix in all steps at once, `[steps * rows, width]`.
    fn all<'a>(&self, of: &'a [Vec<f32>], net: &Differentiable, slot: Slot) -> Rows<'a> {
        Rows { rows: self.steps * self.rows, ..self.read(of, net, slot, 0) }
    }

    /// Runs step `t`; the state before step 0 is zero.
    pub fn forward(&mut self, net: &Differentiable, t: usize) {
        for node in &net.nodes {
            node.forward(net, self, t);
        }
    }

    /// Makes ready for the gradients of the outputs of step `t`. The last step comes first.
    pub fn clear(&mut self, net: &Differentiable, t: usize) {
        if t + 1 == self.steps {
            self.carries.iter_mut().for_each(|carry| carry.fill(0.0));
            self.sums.fill(0.0);
        }
        for (grads, matrix) in self.grads.iter_mut().zip(&net.matrices).filter(|(_, m)| !m.read_once) {
            grads[t * self.rows * matrix.width..(t + 1) * self.rows * matrix.width].fill(0.0);
        }
    }

    /// Runs step `t` backwards.
    pub fn backward(&mut self, net: &Differentiable, t: usize) {
        for (i, node) in net.nodes.iter().enumerate().rev() {
            node.backward(net, self, i, t);
        }
    }

    /// Gradients of all parameters, behind [`Self::finish`].
    pub fn gradients(&self) -> &[f32] {
        &self.sums
    }

    /// Completes the gradients of all parameters over all steps, behind the last backward.
    pub fn finish(&mut self, net: &Differentiable) {
        let mut sums = std::mem::take(&mut self.sums);
        for node in &net.nodes {
            node.finish(net, self, &mut sums);
        }
        self.sums = sums;
    }

    /// Hands `grad` `[rows, width]` to a matrix of step `t` that an operation has read.
    fn deliver(&mut self, net: &Differentiable, slot: Slot, t: usize, grad: &[f32]) {
        let Matrix { width, read_once } = net.matrices[slot.buffer];
        let range = self.step(width, t);
        let rows = self.grads[slot.buffer][range].chunks_exact_mut(width);
        for (to, from) in rows.zip(grad.chunks_exact(slot.width)) {
            let to = &mut to[slot.start..slot.start + slot.width];
            if read_once { to.copy_from_slice(from) } else { crate::ops::add_into(to, from) }
        }
    }
}
