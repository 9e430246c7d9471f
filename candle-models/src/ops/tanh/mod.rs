//! `tanh(x)` of every value: `x` `[rows, W]` to the same shape.

use super::simd::{self, kernel};
use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands};
use candle_core::Tensor;

/// The operation: one operand.
#[derive(Debug, Clone, Copy)]
pub struct Tanh;

/// Floating-point operations of a value: an exponential, a division and what is around them.
const OPERATIONS: f64 = 6.0;
/// Microseconds of a value on one thread, roughly.
const MICROS: f32 = 5e-4;

kernel! {
    /// One row forward.
    fn row<S>(x: &'a [f32], y: &'a mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = simd::tanh::<S>(x));
    }
}

kernel! {
    /// One row backwards, from what the forward has made.
    fn row_backward<S>(y: &'a [f32], dy: &'a [f32], dx: &'a mut [f32]) {
        dx.iter_mut().zip(y).zip(dy).for_each(|((dx, &y), &dy)| *dx = dy * (1.0 - y * y));
    }
}

impl RowGradients for Tanh {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        row(x[0], y);
    }

    fn backward(&self, _: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        row_backward(y, dy, dx[0]);
    }
}

impl Operation for Tanh {
    fn name(&self) -> &'static str {
        "tanh"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        Ok(Widths::floats(x))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        Ok(Values::floats(x.tanh()?))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let micros = MICROS * wires.out[0].width as f32;
        Ok(Some(packer.for_rows(micros, |x, y| {
            row(x.x(0), y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use crate::cuda::{Kernel, Source};
        static SOURCE: Source = Source { name: "tanh", text: include_str!("tanh.cu") };
        const KERNEL: Kernel = Kernel { source: &SOURCE, name: "tanh_rows" };
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], |pass, [x], out| {
            let (x, out) = (pass.matrix(x), pass.matrix(out));
            // SAFETY: the plan gives both matrices the rows of the pass, and the kernel's argument is two matrices.
            Ok(unsafe { pass.gpu.launch(KERNEL, Some(pass.dtype), out.grid(pass.rows()), &[x, out]) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * OPERATIONS * wires.out[0].width as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::check;

    #[test]
    fn every_form_of_it_is_the_reference() {
        for width in [1, 17, 64] {
            check(Tanh, &[width]);
        }
    }
}
