//! `silu(b + sum over k of w_k x_(t - K + 1 + k))` for every channel: `x` `[rows, W]`, `w` `[K, W]`, `b` `[W]`, state `[K - 1, W]`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tape;
mod tensors;

pub(crate) use tensors::{ConvBackward, ConvShape, conv_sequence};
pub use tensors::{causal_conv, causal_conv_reference};

use super::{Activation, OutPointer};
use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// The operation: operand `x`, one state.
#[derive(Debug, Clone)]
pub struct CausalConv {
    /// `[K, W]`.
    pub weight: Tensor,
    /// `[W]`.
    pub bias: Tensor,
}

type Form = fn(&Tensor, &Tensor, &Tensor, &Tensor, &[bool]) -> candle_core::Result<(Tensor, Tensor)>;

impl CausalConv {
    fn run(&self, form: Form, pass: &mut TensorPass, x: &[&Tensor]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let state = pass.state(0)?;
        let (y, after) = pass.remembering([x], |[x]| Ok(form(x, &self.weight, &self.bias, state, pass.resets())?))?;
        pass.set_state(0, after)?;
        Ok(Values::floats(y))
    }
}

impl Operation for CausalConv {
    fn name(&self) -> &'static str {
        "causal-conv"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width("causal-conv", x, self.weight.dim(1)?)?;
        Ok(Widths::floats(x))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(causal_conv_reference, pass, x)
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], [state], (taps, width)) = (operands(self.name(), x)?, operands(self.name(), states)?, self.weight.dims2()?);
        let (weight, bias, frame) = (graph.tensor(&self.weight)?, graph.tensor(&self.bias)?, graph.by_row(x, &[1, width]));
        let window = graph.node(Operator::Concat { axis: 1 }, &[state, frame]);
        states[0] = graph.of(Operator::Slice { axis: 1, start: 1, len: taps - 1 }, window);
        let products = graph.mul(window, weight);
        let sum = graph.of(Operator::ReduceSum { axis: 1 }, products);
        let y = graph.add(sum, bias);
        graph::floats(Activation::Silu.formula(graph, y))
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(if pass.is_through_time() { causal_conv_reference } else { causal_conv }, pass, x)
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, state, out) = (wires.x[0], wires.states[0], wires.out[0]);
        let (taps, width) = self.weight.dims2()?;
        let (weight, bias) = (packer.values(&self.weight)?, packer.values(&self.bias)?);
        Ok(Some(Box::new(move |frame, threads| {
            let shape = ConvShape { steps: frame.steps, width, taps };
            cpu::for_channels(threads, (width, (frame.rows * width) as f32 * 3e-4), |channels| {
                for b in 0..frame.batch() {
                    let (state, out) = (OutPointer { data: frame.state_at(b, state), stride: width }, frame.sequence_at(out, b));
                    // SAFETY: every channel of state and output belongs to one part.
                    unsafe { conv_sequence(shape, channels.clone(), frame.resets(b), frame.sequence(x, b), (&weight, &bias), state, out) };
                }
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (taps, state) = (self.weight.dim(0)?, wires.states[0]);
        let (weight, bias) = (compiler.vector(&self.weight)?, compiler.vector(&self.bias)?);
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let (x, out, state) = (pass.matrix(x), pass.matrix(out), pass.state(state));
            let args = cuda::Conv { x, out, weight, bias, state, resets: pass.resets(), steps: pass.steps as u32, taps: taps as u32 };
            // SAFETY: the plan gives every matrix of a pass its rows; every sequence has a slot.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::Conv::new(self, wires, tape)?)))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let taps = self.weight.dim(0)? as f64;
        let each = (2.0 * taps + Activation::Silu.operations()) * wires.out[0].width as f64;
        let bytes = size.parameter(&self.weight) + size.parameter(&self.bias) + size.values(wires);
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes, weights: None })
    }
}
