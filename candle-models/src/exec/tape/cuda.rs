//! A tape on an NVIDIA GPU: all rows of a batch go through a step together, an operation being a launch or a product.
//!
//! A product adds to what is there, so biases are written ahead, for all steps by one launch each. Gradients of weights are one product
//! over all steps and rows. What lies between operations is of the dtype of the weights; states, their gates and sums are f32. A state of
//! zeros comes before the first step, so that all steps are alike.

use crate::Result;
use crate::cuda::{self, Gpu, Matrix, States};
use crate::exec::program::{Op, Output, Program, Slot};
use crate::nn::{Linear, Norm};
use crate::ops::cuda::gru::{GruBackward, GruGates};
use crate::ops::cuda::norm::{self, NormBackward};
use crate::ops::cuda::product::{Factor, Operand, copy, gemm};
use crate::ops::cuda::sums::column_sums;
use crate::ops::{Activation, Target};
use candle_core::{CudaDevice, DType, Result as CandleResult, Tensor};
use std::sync::Arc;

/// An operation, by the numbers of the matrices that it reads and writes.
enum Node {
    Linear {
        x: usize,
        out: usize,
        layer: Linear,
    },
    /// Its gain is no parameter.
    Norm {
        x: usize,
        out: usize,
        norm: Norm,
    },
    /// `number` counts these.
    Gru {
        x: usize,
        out: usize,
        hidden: Linear,
        number: usize,
    },
}

/// A program that can be differentiated on a GPU.
pub(crate) struct Net {
    gpu: Arc<Gpu>,
    nodes: Vec<Node>,
    /// Their buffers in the program and their widths. The input comes first.
    matrices: Vec<(usize, usize)>,
    outputs: Vec<usize>,
    /// Widths of the memories.
    memories: Vec<usize>,
    dtype: DType,
}

/// Whether one operation reads it and nobody else: norms and gates write its gradient, where products add to it.
fn is_read_once(program: &Program, slot: &Slot) -> bool {
    let outputs = program.outputs.iter().filter(|output| matches!(output, Output::Floats(output) if output.buffer == slot.buffer));
    program.ops.iter().flat_map(Op::reads).filter(|read| read.buffer == slot.buffer).count() + outputs.count() == 1
}

impl Net {
    /// `None` for a program that has no form here: one of other operations than linear layers, norms with a fixed gain and gated recurrent
    /// units, with several inputs, or with operations on parts of a matrix.
    pub fn new(program: &Program, device: &CudaDevice) -> Result<Option<Self>> {
        let weight = |op: &Op| match op {
            Op::Linear { layer, .. } => Some(layer.weight.dtype()),
            _ => None,
        };
        let (Some(dtype), [Output::Floats(input)]) = (program.ops.iter().find_map(weight), &program.inputs[..]) else { return Ok(None) };
        if ![DType::F32, DType::BF16, DType::F16].contains(&dtype) {
            return Ok(None);
        }
        let mut net = Self {
            gpu: Gpu::of(device)?,
            nodes: Vec::new(),
            matrices: vec![(input.buffer, input.width)],
            outputs: Vec::new(),
            memories: Vec::new(),
            dtype,
        };
        for op in &program.ops {
            let Some(node) = net.node(program, op) else { return Ok(None) };
            net.nodes.push(node);
        }
        for output in &program.outputs {
            let Output::Floats(slot) = output else { return Ok(None) };
            let Some(output) = net.matrix(program, slot) else { return Ok(None) };
            net.outputs.push(output);
        }
        Ok(Some(net))
    }

    /// The number of a matrix, if the slot is all of it.
    fn matrix(&mut self, program: &Program, slot: &Slot) -> Option<usize> {
        if slot.width != program.buffers[slot.buffer].width {
            return None;
        }
        let known = self.matrices.iter().position(|(buffer, _)| *buffer == slot.buffer);
        Some(known.unwrap_or_else(|| {
            self.matrices.push((slot.buffer, slot.width));
            self.matrices.len() - 1
        }))
    }

    fn node(&mut self, program: &Program, op: &Op) -> Option<Node> {
        let fits = |layer: &Linear| {
            let bias = layer.bias.as_ref().is_none_or(|bias| bias.dtype() == DType::F32);
            bias && layer.weight.dtype() == self.dtype && layer.weight.is_contiguous()
        };
        match op {
            Op::Linear { x, layer, act: Activation::None, out } if fits(layer) => {
                let (x, out) = (self.matrix(program, x)?, self.matrix(program, out)?);
                Some(Node::Linear { x, out, layer: layer.clone() })
            }
            Op::Norm { x, norm, act: Activation::None, out } if is_read_once(program, x) => {
                let fixed = !norm.weight.track_op() && norm.weight.dtype() == DType::F32 && norm.bias.is_none();
                let (x, out) = (self.matrix(program, x)?, self.matrix(program, out)?);
                (fixed && norm.weight.elem_count() <= norm::MOST).then(|| Node::Norm { x, out, norm: norm.clone() })
            }
            Op::Gru { x, hidden, out, .. } if is_read_once(program, x) && fits(hidden) && hidden.bias.is_some() => {
                self.memories.push(out.width);
                let (x, out) = (self.matrix(program, x)?, self.matrix(program, out)?);
                Some(Node::Gru { x, out, hidden: hidden.clone(), number: self.memories.len() - 1 })
            }
            _ => None,
        }
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<Tensor> {
        let layer = |node: &Node| match node {
            Node::Linear { layer, .. } | Node::Gru { hidden: layer, .. } => Some(layer.clone()),
            Node::Norm { .. } => None,
        };
        self.nodes.iter().filter_map(layer).flat_map(|layer| std::iter::once(layer.weight).chain(layer.bias)).collect()
    }

    /// What values and gradients between operations are of.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    fn empty(&self, shape: (usize, usize, usize), dtype: DType) -> CandleResult<Series> {
        Series::new(cuda::empty(shape, dtype, self.gpu.device())?)
    }

    fn zeros(&self, shape: (usize, usize, usize), dtype: DType) -> CandleResult<Series> {
        Series::new(Tensor::zeros(shape, dtype, &candle_core::Device::Cuda(self.gpu.device().clone()))?)
    }

    /// A product, or one with the transposed weight.
    fn product(&self, x: Matrix, (layer, transposed): (&Linear, bool), (out, target): (Matrix, Target), rows: usize) -> CandleResult<()> {
        let weight = Factor { data: cuda::address(&layer.weight)?, transposed };
        // SAFETY: the recorder has checked that widths fit, matrices of a tape have its rows.
        unsafe { gemm(&self.gpu, self.dtype, x, weight, (Operand { matrix: out, wide: false }, target), rows) }
    }

    /// Memory for `rows` rows through `steps` steps.
    pub fn tape(&self, rows: usize, steps: usize) -> CandleResult<Tape> {
        let value = |(matrix, (_, width)): (usize, &(usize, usize))| {
            if self.nodes.iter().any(|node| matches!(node, Node::Gru { out, .. } if *out == matrix)) {
                Ok(self.zeros((steps + 1, rows, *width), self.dtype)?.behind_the_first())
            } else {
                self.empty((steps, rows, *width), self.dtype)
            }
        };
        let values = self.matrices.iter().enumerate().map(value).collect::<CandleResult<_>>()?;
        let memory = |width: &usize| {
            Ok(Memory {
                state: self.zeros((1, rows, *width), DType::F32)?,
                products: self.empty((1, rows, 3 * width), self.dtype)?,
                gates: self.empty((steps, rows, 4 * width), DType::F32)?,
                before: self.empty((steps, rows, *width), DType::F32)?,
            })
        };
        let tape = Tape { rows, steps, values, memories: self.memories.iter().map(memory).collect::<CandleResult<_>>()? };
        for node in &self.nodes {
            if let Node::Linear { out, layer: Linear { bias: Some(bias), .. }, .. } = node {
                let bias = Operand { matrix: Matrix { stride: 0, ..cuda::matrix(bias)? }, wide: true };
                let to = Operand { matrix: tape.values[*out].at(0), wide: false };
                // SAFETY: the bias is a row as wide as the matrix; that row comes again and again.
                unsafe { copy(&self.gpu, self.dtype, bias, to, steps * rows)? };
            }
        }
        Ok(tape)
    }

    /// Where the input of step `t` is to be written.
    pub fn input(&self, tape: &Tape, t: usize) -> Matrix {
        tape.values[0].at(t)
    }

    /// Output `i` of step `t`.
    pub fn output(&self, tape: &Tape, i: usize, t: usize) -> Matrix {
        tape.values[self.outputs[i]].at(t)
    }

    /// Runs step `t`, behind the steps before it.
    pub fn forward(&self, tape: &Tape, t: usize) -> CandleResult<()> {
        let Tape { rows, values, memories, .. } = tape;
        for node in &self.nodes {
            match node {
                Node::Linear { x, out, layer } => {
                    // The bias is there.
                    let target = if layer.bias.is_some() { Target::Sum } else { Target::Fresh };
                    self.product(values[*x].at(t), (layer, false), (values[*out].at(t), target), *rows)?;
                }
                Node::Norm { x, out, norm } => {
                    let args = normaliser(norm, [values[*x].at(t), values[*out].at(t)], *rows)?;
                    // SAFETY: both matrices have the tape's rows.
                    unsafe { args.launch(&self.gpu, self.dtype)? };
                }
                Node::Gru { x, out, hidden, number } => {
                    let Memory { state, products, gates, before } = &memories[*number];
                    self.product(values[*out].before(t), (hidden, false), (products.at(0), Target::Fresh), *rows)?;
                    let width = u64::from(values[*out].matrix.width);
                    let args = GruGates {
                        x: values[*x].at(t),
                        product: products.at(0),
                        out: values[*out].at(t),
                        hidden: Matrix::NONE,
                        bias: hidden.bias.as_ref().map_or(Ok(0), cuda::address)?,
                        state: States { data: state.at(0).data, stride: width, slots: 0 },
                        resets: 0,
                        kept: gates.at(t).data,
                        before: before.at(t).data,
                        reset_stride: 0,
                    };
                    // SAFETY: as above; every row has a state.
                    unsafe { args.launch(&self.gpu, self.dtype, *rows)? };
                }
            }
        }
        Ok(())
    }

    /// Memory for the gradients of a tape. Those of outputs are zero.
    pub fn grads(&self, tape: &Tape) -> CandleResult<Grads> {
        let Tape { rows, steps, .. } = *tape;
        let value = |(matrix, (_, width)): (usize, &(usize, usize))| {
            if self.nodes.iter().any(|node| matches!(node, Node::Linear { out, .. } if *out == matrix)) {
                self.empty((steps, rows, *width), self.dtype)
            } else {
                self.zeros((1, rows, *width), self.dtype)
            }
        };
        let values = self.matrices.iter().enumerate().map(value).collect::<CandleResult<Vec<_>>>()?;
        let memory = |width: &usize| {
            Ok(MemoryGrads {
                products: self.empty((steps, rows, 3 * width), self.dtype)?,
                through: self.empty((1, rows, *width), self.dtype)?,
                carry: self.empty((1, rows, *width), DType::F32)?,
            })
        };
        let memories = self.memories.iter().map(memory).collect::<CandleResult<_>>()?;
        Ok(Grads { added: vec![false; values.len()], values, memories })
    }

    /// Where the gradient of output `i` of step `t`, which runs backwards next, is to be written. One that operations read as well needs
    /// none; another has the gradient of the step before, and at first zero, unless one is written.
    pub fn output_grad(&self, grads: &mut Grads, i: usize, t: usize) -> Matrix {
        grads.added[self.outputs[i]] = true;
        grads.values[self.outputs[i]].at(t)
    }

    /// The gradient of the input of the step that ran backwards last.
    pub fn input_grad(&self, grads: &Grads) -> Matrix {
        grads.values[0].at(0)
    }

    /// Runs step `t` backwards; the last comes first.
    pub fn backward(&self, tape: &Tape, grads: &mut Grads, t: usize) -> CandleResult<()> {
        let Tape { rows, steps, values, memories } = tape;
        for node in self.nodes.iter().rev() {
            match node {
                Node::Linear { x, out, layer } => {
                    let target = if std::mem::replace(&mut grads.added[*x], true) { Target::Sum } else { Target::Fresh };
                    let (dx, dy) = (grads.values[*x].at(t), grads.values[*out].at(t));
                    self.product(dy, (layer, true), (dx, target), *rows)?;
                }
                Node::Norm { x, out, norm } => {
                    let [x, dy, dx] = [&values[*x], &grads.values[*out], &grads.values[*x]].map(|series| series.at(t));
                    let group = norm.weight.elem_count() as u32;
                    let groups = *rows * (x.width / group) as usize;
                    let [x, dy, dx] = [x, dy, dx].map(|rows| Matrix { width: group, stride: group, ..rows });
                    let args = NormBackward::new(&normaliser(norm, [x, Matrix::NONE], groups)?, [dy, dx], 0);
                    // SAFETY: rows of the tape lie one behind the other, and so do their groups.
                    unsafe { args.launch(&self.gpu, self.dtype)? };
                }
                Node::Gru { x, out, hidden, number } => {
                    let MemoryGrads { products, through, carry } = &grads.memories[*number];
                    let args = GruBackward {
                        grad: grads.values[*out].at(t),
                        product: if t + 1 < *steps { through.at(0) } else { Matrix::NONE },
                        dx: grads.values[*x].at(t),
                        dh: products.at(t),
                        kept: memories[*number].gates.at(t).data,
                        before: memories[*number].before.at(t).data,
                        carry: carry.at(0).data,
                        resets: 0,
                        reset_stride: 0,
                    };
                    // SAFETY: all have the tape's rows; the last step does not read `carry`.
                    unsafe { args.launch(&self.gpu, self.dtype, *rows)? };
                    if t > 0 {
                        self.product(products.at(t), (hidden, true), (through.at(0), Target::Fresh), *rows)?;
                    }
                }
            }
        }
        grads.added.fill(false);
        Ok(())
    }

    /// Gradients of all parameters, in their order, behind the backward of all steps.
    pub fn gradients(&self, tape: &Tape, grads: &Grads) -> CandleResult<Vec<Tensor>> {
        let mut found = Vec::new();
        for node in &self.nodes {
            let (layer, x, dy) = match node {
                Node::Norm { .. } => continue,
                Node::Linear { x, out, layer } => (layer, tape.values[*x].rows(tape.steps)?, &grads.values[*out]),
                Node::Gru { out, hidden, number, .. } => {
                    (hidden, tape.values[*out].rows_before(tape.steps)?, &grads.memories[*number].products)
                }
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

/// Rows whose groups are normalised, from one matrix to the other.
fn normaliser(norm: &Norm, matrices: [Matrix; 2], rows: usize) -> CandleResult<norm::Norm> {
    let (weight, group) = (cuda::address(&norm.weight)?, norm.weight.elem_count());
    Ok(norm::Norm::new(matrices, [weight, 0], (rows, group), (norm.kind, norm.eps), Activation::None))
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

/// What a gated recurrent unit has beside its output. The states before every step are f32 `[steps, rows, width]`.
struct Memory {
    state: Series,
    products: Series,
    gates: Series,
    before: Series,
}

/// The values of `rows` rows through `steps` steps.
pub(crate) struct Tape {
    rows: usize,
    steps: usize,
    /// By matrix.
    values: Vec<Series>,
    memories: Vec<Memory>,
}

/// Of the state's products, of the state before through them, and the direct share of the state's own.
struct MemoryGrads {
    products: Series,
    through: Series,
    carry: Series,
}

/// The gradients of a tape.
pub(crate) struct Grads {
    /// By matrix.
    values: Vec<Series>,
    /// Which are to be added to in the step at hand.
    added: Vec<bool>,
    memories: Vec<MemoryGrads>,
}
