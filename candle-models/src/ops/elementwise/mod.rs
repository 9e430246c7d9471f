//! `a + b` and the gate `a silu(z)` of matrices `[rows, W]`, and the activations.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tensors;

pub use tensors::{Activation, activation, gate, gate_reference};
pub(crate) use tensors::{activate, activate_backward, activate_into, exponentials, gate_row, gate_row_backward};

use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, TapeStep, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// The operation `a + b`.
#[derive(Debug, Clone, Copy)]
pub struct Add;

/// The operation `a silu(z)`: operands `a` and `z`.
#[derive(Debug, Clone, Copy)]
pub struct Gate;

impl Activation {
    /// The activation in standard operators.
    pub(crate) fn formula(self, graph: &mut Graph, x: Value) -> Value {
        match self {
            Self::None => x,
            Self::Relu => graph.of(Operator::Relu, x),
            Self::Silu => {
                let gate = graph.of(Operator::Sigmoid, x);
                graph.mul(x, gate)
            }
            Self::Gelu => {
                let (scale, one, half) = (graph.float(std::f32::consts::FRAC_1_SQRT_2), graph.float(1.0), graph.float(0.5));
                let scaled = graph.mul(x, scale);
                let error = graph.of(Operator::Erf, scaled);
                let sum = graph.add(error, one);
                let y = graph.mul(x, sum);
                graph.mul(y, half)
            }
        }
    }
}

fn two(operation: &str, x: &[usize]) -> Result<Widths> {
    let [a, b] = operands(operation, x)?;
    same_width(operation, a, b)?;
    Ok(Widths::floats(a))
}

impl Operation for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        two(self.name(), x)
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, b] = operands(self.name(), x)?;
        Ok(Values::floats((a + b)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [a, b] = operands(self.name(), x)?;
        graph::floats(graph.add(a, b))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (a, b, out) = (wires.x[0], wires.x[1], wires.out[0]);
        Ok(Some(Box::new(move |frame, threads| {
            cpu::share_rows(threads, frame.rows, out.width, |r| {
                // SAFETY: every row belongs to one part.
                let out = unsafe { frame.row_mut(out, r) };
                out.iter_mut().zip(frame.row(a, r)).zip(frame.row(b, r)).for_each(|((o, a), b)| *o = a + b);
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, _: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use super::cuda::product::{Behind, finish};
        let (a, b, out) = (wires.x[0], wires.x[1], wires.out[0]);
        Ok(Some(Box::new(move |pass| {
            let behind = Behind { residual: pass.operand(b), ..Behind::NOTHING };
            // SAFETY: the plan gives every matrix of a pass its rows.
            Ok(unsafe { finish(pass.gpu, pass.dtype, pass.operand(a), pass.operand(out), pass.rows(), &behind) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, _: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(AddOnTape { a: wires.x[0], b: wires.x[1], out: wires.out[0] })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: size.rows() * wires.out[0].width as f64, bytes: size.values(wires), weights: None })
    }
}

struct AddOnTape {
    a: Slot,
    b: Slot,
    out: Slot,
}

impl Derivative for AddOnTape {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.out, |step, out| {
            let (a, b) = (step.value(self.a), step.value(self.b));
            for (r, out) in out.chunks_exact_mut(a.width).enumerate() {
                out.iter_mut().zip(a.row(r)).zip(b.row(r)).for_each(|((o, a), b)| *o = a + b);
            }
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        step.with_grads(self.out, |step, dy, _| {
            step.deliver(self.a, dy);
            step.deliver(self.b, dy);
        });
    }
}

impl Operation for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        two(self.name(), x)
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, z] = operands(self.name(), x)?;
        Ok(Values::floats(gate_reference(a, z)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [a, z] = operands(self.name(), x)?;
        let gate = Activation::Silu.formula(graph, z);
        graph::floats(graph.mul(a, gate))
    }

    fn tensors(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, z] = operands(self.name(), x)?;
        Ok(Values::floats(emulated([a, z], |[a, z]| Ok(gate(a, z)?))?))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (a, z, out) = (wires.x[0], wires.x[1], wires.out[0]);
        Ok(Some(Box::new(move |frame, threads| {
            cpu::share_rows(threads, frame.rows, out.width, |r| {
                // SAFETY: every row belongs to one part.
                gate_row(frame.row(a, r), frame.row(z, r), unsafe { frame.row_mut(out, r) });
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        Ok(Some(compiler.with_narrow([wires.x[0], wires.x[1]], wires.out[0], |pass, [x, z], out| {
            let args = cuda::Gate { x: pass.matrix(x), z: pass.matrix(z), out: pass.matrix(out) };
            // SAFETY: the plan gives every matrix of a pass its rows.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        let (a, z) = (wires.x[0], wires.x[1]);
        tape.keep_values(a);
        tape.keep_values(z);
        tape.scratch(2 * a.width);
        Ok(Some(Box::new(GateOnTape { a, z, out: wires.out[0] })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let each = (1.0 + Activation::Silu.operations()) * wires.out[0].width as f64;
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes: size.values(wires), weights: None })
    }
}

struct GateOnTape {
    a: Slot,
    z: Slot,
    out: Slot,
}

impl Derivative for GateOnTape {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.out, |step, out| {
            let (a, z) = (step.value(self.a), step.value(self.z));
            out.chunks_exact_mut(a.width).enumerate().for_each(|(r, out)| gate_row(a.row(r), z.row(r), out));
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let width = self.a.width;
        step.with_grads(self.out, |step, dy, scratch| {
            let all = step.rows() * width;
            let (da, dz) = scratch[..2 * all].split_at_mut(all);
            let (from, gate) = (step.value(self.a), step.value(self.z));
            for (r, dy) in dy.chunks_exact(width).enumerate() {
                let row = r * width..(r + 1) * width;
                gate_row_backward(from.row(r), gate.row(r), dy, &mut da[row.clone()], &mut dz[row]);
            }
            step.deliver(self.a, da);
            step.deliver(self.z, dz);
        });
    }
}
