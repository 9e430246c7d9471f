//! `a b`, value by value: both `[rows, W]` to the same shape.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::multiply::Multiply;
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let x = Tensor::new(&[[2f32, -3.0]], &Device::Cpu)?;
//! assert_eq!(e.apply(Multiply, &[&x, &x])?.to_vec2::<f32>()?, [[4.0, 9.0]]);
//! # Ok(())
//! # }
//! ```

use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// The operation: two operands.
#[derive(Debug, Clone, Copy)]
pub struct Multiply;

/// Microseconds of a value on one thread, roughly.
const MICROS: f32 = 2e-4;

fn row(a: &[f32], b: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a * b);
}

impl RowGradients for Multiply {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        row(x[0], x[1], y);
    }

    fn backward(&self, x: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        row(x[1], dy, dx[0]);
        row(x[0], dy, dx[1]);
    }
}

impl Operation for Multiply {
    fn name(&self) -> &'static str {
        "multiply"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [a, b] = operands(self.name(), x)?;
        same_width(self.name(), a, b)?;
        Ok(Widths::floats(a))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [a, b] = operands(self.name(), x)?;
        Ok(Values::floats((a * b)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [a, b] = operands(self.name(), x)?;
        graph::floats(graph.mul(a, b))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let micros = MICROS * wires.out[0].width as f32;
        Ok(Some(packer.for_rows(micros, |x, y| {
            row(x.x(0), x.x(1), y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use crate::cuda::{Kernel, Source};
        static SOURCE: Source = Source { name: "multiply", text: include_str!("multiply.cu") };
        const KERNEL: Kernel = Kernel { source: &SOURCE, name: "multiply_rows" };
        Ok(Some(compiler.with_narrow([wires.x[0], wires.x[1]], wires.out[0], |pass, [a, b], out| {
            let (a, b, out) = (pass.matrix(a), pass.matrix(b), pass.matrix(out));
            // SAFETY: the plan gives all matrices the rows of the pass, and the kernel's argument is three matrices.
            Ok(unsafe { pass.gpu.launch(KERNEL, Some(pass.dtype), out.grid(pass.rows()), &[a, b, out]) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * wires.out[0].width as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::{check, refuses};

    #[test]
    fn every_form_of_it_is_the_reference() {
        for width in [1, 17, 64] {
            check(Multiply, &[width, width]);
        }
        refuses(&Multiply, &[3, 4]);
        refuses(&Multiply, &[3]);
    }
}
