//! Gated recurrent unit (Cho et al. 2014) over the input product: `x` `[rows, 3 W]`, recurrent weight `[W, 3 W]` and bias `[3 W]`, state
//! `[W]`; gates in PyTorch's order: reset, update, candidate.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tape;
mod tensors;

pub use tensors::{gru, gru_gates, gru_reference};
pub(crate) use tensors::{gru_row, gru_row_backward, gru_row_kept};

use super::{Activation, Linear, Rows};
use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, EXPONENTIAL, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// Floating-point operations of a unit behind its products: three gates and the mix of old and new.
const OPERATIONS: f64 = 10.0 + 3.0 * EXPONENTIAL;

/// The operation: operand `x`, one state.
#[derive(Debug, Clone)]
pub struct GatedUnit {
    /// The recurrent product.
    pub hidden: Linear,
}

type Form = fn(&Tensor, &Tensor, &Tensor, &Tensor, &[bool]) -> candle_core::Result<(Tensor, Tensor)>;

impl GatedUnit {
    fn run(&self, form: Form, pass: &mut TensorPass, x: &[&Tensor]) -> Result<Values<Tensor, Indices>> {
        let ([x], Linear { weight, bias, .. }) = (operands(self.name(), x)?, &self.hidden);
        let state = pass.state(0)?;
        let bias = match bias {
            Some(bias) => bias.clone(),
            None => Tensor::zeros(weight.dim(1)?, state.dtype(), pass.device())?,
        };
        let (y, after) = pass.remembering([x, weight], |[x, weight]| Ok(form(x, weight, &bias, state, pass.resets())?))?;
        pass.set_state(0, after)?;
        Ok(Values::floats(y))
    }
}

impl Operation for GatedUnit {
    fn name(&self) -> &'static str {
        "gru"
    }

    /// Scratch: the states of all sequences side by side, and their product with the recurrent weight.
    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([x], width) = (operands(self.name(), x)?, self.hidden.weight.dim(0)?);
        same_width("gru", x, 3 * width)?;
        Ok(Widths::floats(width).with_scratch(&[width, 3 * width]))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(gru_reference, pass, x)
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], [state], width) = (operands(self.name(), x)?, operands(self.name(), states)?, self.hidden.weight.dim(0)?);
        let product = graph.linear(state, &self.hidden)?;
        let gate = |graph: &mut Graph, i: usize| [x, product].map(|from| graph.columns(from, i * width, width));
        let [[xr, hr], [xz, hz], [xn, hn]] = [0, 1, 2].map(|i| gate(graph, i));
        let [r, z] = [(xr, hr), (xz, hz)].map(|(x, h)| {
            let sum = graph.add(x, h);
            graph.of(Operator::Sigmoid, sum)
        });
        let kept = graph.mul(r, hn);
        let sum = graph.add(xn, kept);
        let candidate = graph.of(Operator::Tanh, sum);
        let apart = graph.sub(state, candidate);
        let old = graph.mul(z, apart);
        states[0] = graph.add(candidate, old);
        graph::floats(states[0])
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(if pass.is_through_time() { gru_reference } else { gru }, pass, x)
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, state, out, [h, products]) = (wires.x[0], wires.states[0], wires.out[0], operands(self.name(), &wires.scratch)?);
        let matrix = packer.pack(&self.hidden, self.hidden.weight.dim(0)?)?;
        Ok(Some(Box::new(move |frame, threads| {
            let (batch, steps) = (frame.batch(), frame.steps);
            // The states of all sequences side by side in the first rows of `h`, so that a frame is one product.
            // SAFETY: outside the product this step has one part; the product reads `h` and writes `products`.
            let state = |b: usize| unsafe { frame.state(b, state) };
            for t in 0..steps {
                for b in 0..batch {
                    if frame.resets(b)[t] {
                        state(b).fill(0.0);
                    }
                    // SAFETY: as above.
                    unsafe { frame.row_mut(h, b) }.copy_from_slice(state(b));
                }
                cpu::product(threads, &matrix, Activation::None, Rows { rows: batch, ..frame.rows(h) }, frame.output(products));
                for b in 0..batch {
                    gru_row(frame.row(x, b * steps + t), frame.row(products, b), state(b));
                    // SAFETY: as above.
                    unsafe { frame.row_mut(out, b * steps + t) }.copy_from_slice(state(b));
                }
            }
            Ok(())
        })))
    }

    /// Frame by frame: the states' product for all sequences at once, then the gates.
    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use super::cuda::product::{Behind, product};
        use crate::cuda::Matrix;
        use crate::exec::program::Slot;
        let (state, [h, products]) = (wires.states[0], operands(self.name(), &wires.scratch)?);
        let (weight, bias) = (compiler.matrix(&self.hidden.weight)?, compiler.vector_or_zeros(&self.hidden)?);
        compiler.reserve(h, products.width);
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let (steps, dtype) = (pass.steps, pass.dtype);
            let frame = |slot: Slot, t: usize| {
                let m = pass.matrix(slot);
                Matrix { data: m.data + (t * m.stride as usize * dtype.size_in_bytes()) as u64, stride: m.stride * steps as u32, ..m }
            };
            let (state, hidden) = (pass.state(state), pass.matrix(h));
            let first = cuda::GruHidden { state, hidden, resets: pass.resets(), reset_stride: steps as u32 };
            // SAFETY: the plan gives every matrix of a pass its rows and every sequence has a slot; the scratch of all rows holds that of
            // all sequences.
            unsafe { first.launch(pass.gpu, dtype, pass.batch)? };
            for t in 0..steps {
                let gates = cuda::GruGates {
                    x: frame(x, t),
                    product: pass.matrix(products),
                    out: frame(out, t),
                    hidden: if t + 1 < steps { hidden } else { Matrix::NONE },
                    bias,
                    state,
                    resets: pass.resets() + t as u64,
                    kept: 0,
                    before: 0,
                    reset_stride: steps as u32,
                };
                let operands = (pass.operand(h), weight, pass.operand(products));
                // SAFETY: as above.
                unsafe {
                    product(pass.gpu, dtype, operands, pass.batch, &Behind::NOTHING, pass.product)?;
                    gates.launch(pass.gpu, dtype, pass.batch)?;
                }
            }
            Ok(())
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::OnTape::new(self, wires, tape)?)))
    }

    #[cfg(feature = "cuda")]
    fn differentiate_on_gpu(
        &self,
        wires: &Wires,
        tape: &mut crate::exec::tape::cuda::Builder,
    ) -> Option<Box<dyn crate::exec::tape::cuda::Derivative>> {
        if !tape.is_read_once(&wires.x[0]) || !tape.fits(&self.hidden) || self.hidden.bias.is_none() {
            return None;
        }
        Some(Box::new(cuda::OnTape::new(self, wires, tape)?))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let (inputs, outputs) = (wires.x[0].width, wires.out[0].width);
        let (name, weights) = size.stored(&self.hidden, outputs, inputs);
        let each = 2.0 * (outputs * inputs) as f64 + OPERATIONS * outputs as f64;
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes: weights + size.values(wires), weights: Some(name) })
    }
}
