//! A tape on an NVIDIA GPU: all rows of a batch go through a step together, an operation being a launch or a product.
//!
//! A product adds to what is there, so biases are written ahead, for all steps by one launch each. Gradients of weights are one product
//! over all steps and rows. What lies between operations is of the dtype of the weights; states, their gates and sums are f32. A state of
//! zeros comes before the first step, so that all steps are alike.

use crate::Result;
use crate::cuda::{self, Gpu, Matrix};
use crate::exec::program::{Output, Program, Slot};
use crate::ops::cuda::product::{Factor, Operand, copy, gemm};
use crate::ops::cuda::sums::column_sums;
use crate::ops::{Linear, Target};
use candle_core::{CudaDevice, DType, Result as CandleResult, Tensor};
use std::sync::Arc;

/// Forward and backward of an operation of a tape on a GPU.
pub trait Derivative: Send + Sync {
    /// Puts a step forward on the stream.
    fn forward(&self, net: &Net, tape: &Tape, t: usize) -> CandleResult<()>;

    /// Puts a step backwards on the stream.
    fn backward(&self, net: &Net, tape: &Tape, grads: &mut Grads, t: usize) -> CandleResult<()>;
}

/// Memory of an operation: rows of `width` values, of one step that all share or of every step.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub width: usize,
    pub every_step: bool,
    /// f32, or the dtype of the tape.
    pub wide: bool,
    pub zeros: bool,
}

/// Where the gradients lie that make a weight's.
#[derive(Clone, Copy)]
pub(crate) enum GradOf {
    /// Those of a matrix.
    Matrix(usize),
    /// The operation's own memory among the gradients.
    Memory(usize),
}

/// A layer whose gradient is a product over all steps, and its bias's the sum of its rows.
struct Product {
    layer: Linear,
    /// The operand, and whether it is what the step before made.
    x: (usize, bool),
    dy: GradOf,
}

/// A matrix of every step.
struct Kind {
    buffer: usize,
    width: usize,
    /// Whether zeros come before the first step.
    from_zeros: bool,
    keeps_grads: bool,
    /// Written ahead to every row.
    prefill: Option<Tensor>,
}

/// A program that can be differentiated on a GPU.
pub struct Net {
    gpu: Arc<Gpu>,
    nodes: Vec<Box<dyn Derivative>>,
    products: Vec<Product>,
    /// The input comes first.
    matrices: Vec<Kind>,
    outputs: Vec<usize>,
    memories: Vec<Memory>,
    grad_memories: Vec<Memory>,
    dtype: DType,
}

/// A tape on a GPU in the making.
pub struct Builder<'a> {
    program: &'a Program,
    net: Net,
    /// That of the first weight.
    dtype: Option<DType>,
}

impl Builder<'_> {
    /// The number of a matrix, if the slot is all of it.
    pub(crate) fn matrix(&mut self, slot: &Slot) -> Option<usize> {
        if slot.width != self.program.buffers[slot.buffer].width {
            return None;
        }
        let known = self.net.matrices.iter().position(|matrix| matrix.buffer == slot.buffer);
        Some(known.unwrap_or_else(|| self.net.add(*slot)))
    }

    /// Whether one operation reads it and nobody else: norms and gates write its gradient, where products add to it.
    pub(crate) fn is_read_once(&self, slot: &Slot) -> bool {
        let Program { nodes, outputs, .. } = self.program;
        let outputs = outputs.iter().filter(|output| matches!(output, Output::Floats(output) if output.buffer == slot.buffer));
        nodes.iter().flat_map(|node| &node.wires.x).filter(|read| read.buffer == slot.buffer).count() + outputs.count() == 1
    }

    /// Whether a layer has the dtype of the tape, which the first one decides, and a bias, if it has one, of f32.
    pub(crate) fn fits(&mut self, layer: &Linear) -> bool {
        let dtype = *self.dtype.get_or_insert(layer.weight.dtype());
        let bias = layer.bias.as_ref().is_none_or(|bias| bias.dtype() == DType::F32);
        let known = [DType::F32, DType::BF16, DType::F16].contains(&dtype);
        known && bias && layer.weight.dtype() == dtype && layer.weight.is_contiguous()
    }

    /// A layer's gradients are made of an operand and gradients of all steps, which are kept.
    pub(crate) fn product(&mut self, layer: &Linear, x: (usize, bool), dy: GradOf) {
        if let GradOf::Matrix(out) = dy {
            self.net.matrices[out].keeps_grads = true;
        }
        self.net.matrices[x.0].from_zeros |= x.1;
        self.net.products.push(Product { layer: layer.clone(), x, dy });
    }

    /// A matrix holds a bias in every row before its operation runs.
    pub(crate) fn prefill(&mut self, out: usize, bias: &Tensor) {
        self.net.matrices[out].prefill = Some(bias.clone());
    }

    /// Memory beside the values; its number.
    pub(crate) fn memory(&mut self, memory: Memory) -> usize {
        self.net.memories.push(memory);
        self.net.memories.len() - 1
    }

    /// Memory beside the gradients; its number.
    pub(crate) fn grad_memory(&mut self, memory: Memory) -> usize {
        self.net.grad_memories.push(memory);
        self.net.grad_memories.len() - 1
    }
}

impl Net {
    /// `None` for a program that has no form here: one of other operations than linear layers, norms with a fixed gain and gated recurrent
    /// units, with several inputs, or with operations on parts of a matrix.
    pub(crate) fn new(program: &Program, device: &CudaDevice) -> Result<Option<Self>> {
        let [Output::Floats(input)] = &program.inputs[..] else { return Ok(None) };
        let mut net = Self {
            gpu: Gpu::of(device)?,
            nodes: Vec::new(),
            products: Vec::new(),
            matrices: Vec::new(),
            outputs: Vec::new(),
            memories: Vec::new(),
            grad_memories: Vec::new(),
            dtype: DType::F32,
        };
        net.add(*input);
        let mut builder = Builder { program, net, dtype: None };
        for node in &program.nodes {
            let Some(node) = node.op.differentiate_on_gpu(&node.wires, &mut builder) else { return Ok(None) };
            builder.net.nodes.push(node);
        }
        for output in &program.outputs {
            let Output::Floats(slot) = output else { return Ok(None) };
            let Some(output) = builder.matrix(slot) else { return Ok(None) };
            builder.net.outputs.push(output);
        }
        let Builder { net, dtype, .. } = builder;
        Ok(dtype.map(|dtype| Self { dtype, ..net }))
    }

    fn add(&mut self, slot: Slot) -> usize {
        self.matrices.push(Kind { buffer: slot.buffer, width: slot.width, from_zeros: false, keeps_grads: false, prefill: None });
        self.matrices.len() - 1
    }

    /// The parameters.
    pub(crate) fn parameters(&self) -> Vec<Tensor> {
        self.products.iter().flat_map(|p| std::iter::once(p.layer.weight.clone()).chain(p.layer.bias.clone())).collect()
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What values and gradients between operations are of.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    fn empty(&self, shape: (usize, usize, usize), dtype: DType) -> CandleResult<Series> {
        Series::new(cuda::empty(shape, dtype, self.gpu.device())?)
    }

    fn zeros(&self, shape: (usize, usize, usize), dtype: DType) -> CandleResult<Series> {
        Series::new(Tensor::zeros(shape, dtype, &candle_core::Device::Cuda(self.gpu.device().clone()))?)
    }

    /// A product, or one with the transposed weight.
    pub(crate) fn product(
        &self,
        x: Matrix,
        (layer, transposed): (&Linear, bool),
        (out, target): (Matrix, Target),
        rows: usize,
    ) -> CandleResult<()> {
        let weight = Factor { data: cuda::address(&layer.weight)?, transposed };
        // SAFETY: the recorder has checked that widths fit, matrices of a tape have its rows.
        unsafe { gemm(&self.gpu, self.dtype, x, weight, (Operand { matrix: out, wide: false }, target), rows) }
    }

    fn memory(&self, memory: &Memory, rows: usize, steps: usize) -> CandleResult<Series> {
        let shape = (if memory.every_step { steps } else { 1 }, rows, memory.width);
        let dtype = if memory.wide { DType::F32 } else { self.dtype };
        if memory.zeros { self.zeros(shape, dtype) } else { self.empty(shape, dtype) }
    }

    /// Memory for `rows` rows through `steps` steps.
    pub(crate) fn tape(&self, rows: usize, steps: usize) -> CandleResult<Tape> {
        let value = |kind: &Kind| {
            if kind.from_zeros {
                Ok(self.zeros((steps + 1, rows, kind.width), self.dtype)?.behind_the_first())
            } else {
                self.empty((steps, rows, kind.width), self.dtype)
            }
        };
        let values = self.matrices.iter().map(value).collect::<CandleResult<_>>()?;
        let memories = self.memories.iter().map(|memory| self.memory(memory, rows, steps)).collect::<CandleResult<_>>()?;
        let tape = Tape { rows, steps, values, memories };
        for (kind, values) in self.matrices.iter().zip(&tape.values) {
            if let Some(bias) = &kind.prefill {
                let bias = Operand { matrix: Matrix { stride: 0, ..cuda::matrix(bias)? }, wide: true };
                let to = Operand { matrix: values.at(0), wide: false };
                // SAFETY: the bias is a row as wide as the matrix; that row comes again and again.
                unsafe { copy(&self.gpu, self.dtype, bias, to, steps * rows)? };
            }
        }
        Ok(tape)
    }

    /// Where the input of step `t` is to be written.
    pub(crate) fn input(&self, tape: &Tape, t: usize) -> Matrix {
        tape.values[0].at(t)
    }

    /// Output `i` of step `t`.
    pub(crate) fn output(&self, tape: &Tape, i: usize, t: usize) -> Matrix {
        tape.values[self.outputs[i]].at(t)
    }

    /// Runs step `t`, behind the steps before it.
    pub(crate) fn forward(&self, tape: &Tape, t: usize) -> CandleResult<()> {
        self.nodes.iter().try_for_each(|node| node.forward(self, tape, t))
    }

    /// Memory for the gradients of a tape. Those of outputs are zero.
    pub(crate) fn grads(&self, tape: &Tape) -> CandleResult<Grads> {
        let Tape { rows, steps, .. } = *tape;
        let value = |kind: &Kind| {
            if kind.keeps_grads { self.empty((steps, rows, kind.width), self.dtype) } else { self.zeros((1, rows, kind.width), self.dtype) }
        };
        let values = self.matrices.iter().map(value).collect::<CandleResult<Vec<_>>>()?;
        let memories = self.grad_memories.iter().map(|memory| self.memory(memory, rows, steps)).collect::<CandleResult<_>>()?;
        Ok(Grads { added: vec![false; values.len()], values, memories })
    }

    /// Where the gradient of output `i` of step `t`, which runs backwards next, is to be written. One that operations read as well needs
    /// none; another has the gradient of the step before, and at first zero, unless one is written.
    pub(crate) fn output_grad(&self, grads: &mut Grads, i: usize, t: usize) -> Matrix {
        grads.added[self.outputs[i]] = true;
        grads.values[self.outputs[i]].at(t)
    }

    /// The gradient of the input of the step that ran backwards last.
    pub(crate) fn input_grad(&self, grads: &Grads) -> Matrix {
        grads.values[0].at(0)
    }

    /// Runs step `t` backwards; the last comes first.
    pub(crate) fn backward(&self, tape: &Tape, grads: &mut Grads, t: usize) -> CandleResult<()> {
        self.nodes.iter().rev().try_for_each(|node| node.backward(self, tape, grads, t))?;
        grads.added.fill(false);
        Ok(())
    }

    /// Gradients of all parameters, in their order, behind the backward of all steps.
    pub(crate) fn gradients(&self, tape: &Tape, grads: &Grads) -> CandleResult<Vec<Tensor>> {
        let mut found = Vec::new();
        for Product { layer, x: (x, from_before), dy } in &self.products {
            let x = if *from_before { tape.values[*x].rows_before(tape.steps)? } else { tape.values[*x].rows(tape.steps)? };
            let dy = match dy {
                GradOf::Matrix(out) => &grads.values[*out],
                GradOf::Memory(memory) => &grads.memories[*memory],
            };
            let dy = dy.rows(tape.steps)?;
            found.push(x.t()?.matmul(&dy)?);
            if layer.bias.is_some() {
                found.push(column_sums(&dy)?);
            }
        }
        Ok(found)
    }
}

/// A matrix `[rows, width]` through the steps.
struct Series {
    /// `[steps, rows, width]`; one step that all share; or one more than there are, in front.
    tensor: Tensor,
    /// That of step 0, and bytes from one to the next.
    matrix: Matrix,
    stride: u64,
    first: usize,
}

impl Series {
    fn new(tensor: Tensor) -> CandleResult<Self> {
        let (steps, rows, width) = tensor.dims3()?;
        let bytes = (rows * width * tensor.dtype().size_in_bytes()) as u64;
        Ok(Self { matrix: cuda::matrix(&tensor)?, stride: if steps == 1 { 0 } else { bytes }, first: 0, tensor })
    }

    /// What was step 1 is step 0.
    fn behind_the_first(self) -> Self {
        let matrix = Matrix { data: self.matrix.data + self.stride, ..self.matrix };
        Self { matrix, first: self.first + 1, ..self }
    }

    fn at(&self, t: usize) -> Matrix {
        Matrix { data: self.matrix.data + t as u64 * self.stride, ..self.matrix }
    }

    /// What lies before step `t`.
    fn before(&self, t: usize) -> Matrix {
        Matrix { data: self.at(t).data - self.stride, ..self.matrix }
    }

    /// All steps, `[steps rows, width]`.
    fn rows(&self, steps: usize) -> CandleResult<Tensor> {
        self.tensor.narrow(0, self.first, steps)?.flatten(0, 1)
    }

    /// What lies before each, `[steps rows, width]`.
    fn rows_before(&self, steps: usize) -> CandleResult<Tensor> {
        self.tensor.narrow(0, self.first - 1, steps)?.flatten(0, 1)
    }
}

/// The values of `rows` rows through `steps` steps.
pub struct Tape {
    rows: usize,
    steps: usize,
    /// By matrix.
    values: Vec<Series>,
    memories: Vec<Series>,
}

impl Tape {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// A matrix in step `t`.
    pub(crate) fn value(&self, matrix: usize, t: usize) -> Matrix {
        self.values[matrix].at(t)
    }

    /// The same in the step before, or the zeros before the first.
    pub(crate) fn value_before(&self, matrix: usize, t: usize) -> Matrix {
        self.values[matrix].before(t)
    }

    /// An operation's memory in step `t`.
    pub(crate) fn memory(&self, memory: usize, t: usize) -> Matrix {
        self.memories[memory].at(t)
    }
}

/// The gradients of a tape.
pub struct Grads {
    /// By matrix.
    values: Vec<Series>,
    /// Which are to be added to in the step at hand.
    added: Vec<bool>,
    memories: Vec<Series>,
}

impl Grads {
    /// That of a matrix in step `t`.
    pub(crate) fn value(&self, matrix: usize, t: usize) -> Matrix {
        self.values[matrix].at(t)
    }

    /// The same to be written by a product: the first one of a step replaces what is there, the others add.
    pub(crate) fn target(&mut self, matrix: usize) -> Target {
        if std::mem::replace(&mut self.added[matrix], true) { Target::Sum } else { Target::Fresh }
    }

    /// An operation's memory in step `t`.
    pub(crate) fn memory(&self, memory: usize, t: usize) -> Matrix {
        self.memories[memory].at(t)
    }
}
