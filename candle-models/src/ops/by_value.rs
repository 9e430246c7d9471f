//! Operations that replace every value by a function of it: `x` `[rows, W]` to the same shape.

/// Defines such an operation: its name, the floating-point operations of a value beside its one exponential, the function, its slope in terms of its result, the same
/// on tensors, and the CUDA source with its kernel.
macro_rules! by_value {
    (
        $(#[$attr:meta])* $Operation:ident, $name:literal, $flop:literal,
        value: |$x:ident| <$simd:ident> $value:expr,
        slope: |$y:ident| $slope:expr,
        reference: $reference:expr,
        formula: $operator:expr,
        cuda: $source:literal, $kernel:literal $(,)?
    ) => {
        use $crate::exec::{self, Operation, cpu};

        $(#[$attr])*
        #[derive(Debug, Clone, Copy)]
        pub struct $Operation;

        $crate::ops::simd::kernel! {
            /// One row forward.
            fn row<$simd>(x: &'a [f32], y: &'a mut [f32]) {
                y.iter_mut().zip(x).for_each(|(y, &$x)| *y = $value);
            }
        }

        $crate::ops::simd::kernel! {
            /// One row backwards, from what the forward has made.
            fn row_backward<S>(y: &'a [f32], dy: &'a [f32], dx: &'a mut [f32]) {
                dx.iter_mut().zip(y).zip(dy).for_each(|((dx, &$y), &dy)| *dx = $crate::ops::simd::counted(dy * $slope));
            }
        }

        impl exec::RowGradients for $Operation {
            fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
                row(x[0], y);
            }

            fn backward(&self, _: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
                row_backward(y, dy, dx[0]);
            }
        }

        impl Operation for $Operation {
            fn name(&self) -> &'static str {
                $name
            }

            fn widths(&self, x: &[usize], _: &[usize]) -> $crate::Result<exec::Widths> {
                let [x] = exec::operands(self.name(), x)?;
                Ok(exec::Widths::floats(x))
            }

            fn reference(
                &self,
                _: &mut exec::tensors::TensorPass,
                x: &[&candle_core::Tensor],
                _: &[&exec::tensors::Indices],
            ) -> $crate::Result<exec::Values<candle_core::Tensor, exec::tensors::Indices>> {
                let [x] = exec::operands(self.name(), x)?;
                let reference: fn(&candle_core::Tensor) -> candle_core::Result<candle_core::Tensor> = $reference;
                Ok(exec::Values::floats(reference(x)?))
            }

            fn formula(
                &self,
                graph: &mut exec::graph::Graph,
                x: &[exec::graph::Value],
                _: &[exec::graph::Value],
                _: &mut [exec::graph::Value],
            ) -> $crate::Result<Option<exec::Values<exec::graph::Value, exec::graph::Value>>> {
                let [x] = exec::operands(self.name(), x)?;
                exec::graph::floats(graph.of($operator, x))
            }

            fn compile(&self, wires: &exec::program::Wires, packer: &mut cpu::Packer) -> $crate::Result<Option<cpu::Run>> {
                let micros = $crate::ops::by_value::MICROS * wires.out[0].width as f32;
                Ok(Some(packer.for_rows(micros, |x, y| {
                    row(x.x(0), y.floats(0));
                    Ok(())
                })))
            }

            #[cfg(feature = "cuda")]
            fn launch(
                &self,
                wires: &exec::program::Wires,
                compiler: &mut exec::cuda::Compiler,
            ) -> $crate::Result<Option<exec::cuda::Run>> {
                use $crate::cuda::{Kernel, Source};
                static SOURCE: Source = Source { name: $name, text: include_str!($source) };
                const KERNEL: Kernel = Kernel { source: &SOURCE, name: $kernel };
                Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], |pass, [x], out| {
                    let (x, out) = (pass.matrix(x), pass.matrix(out));
                    // SAFETY: the plan gives both matrices the rows of the pass, and the kernel's argument is two matrices.
                    Ok(unsafe { pass.gpu.launch(KERNEL, Some(pass.dtype), out.grid(pass.rows()), &[x, out]) }?)
                })))
            }

            fn differentiate(
                &self,
                wires: &exec::program::Wires,
                tape: &mut exec::TapeBuilder,
            ) -> $crate::Result<Option<Box<dyn exec::Derivative>>> {
                tape.rows(wires, *self)
            }

            fn work(&self, wires: &exec::program::Wires, size: &exec::Size) -> $crate::Result<exec::Work> {
                let flop = size.rows() * ($flop + exec::EXPONENTIAL) * wires.out[0].width as f64;
                Ok(exec::Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
            }
        }

        #[cfg(test)]
        mod tests {
            #[test]
            fn every_form_of_it_is_the_reference() {
                for width in [1, 17, 64] {
                    $crate::ops::check::check(super::$Operation, &[width]);
                }
            }
        }
    };
}
pub(super) use by_value;

/// Microseconds of a value on one thread, roughly: an exponential, a division and what is around them.
pub(super) const MICROS: f32 = 5e-4;
