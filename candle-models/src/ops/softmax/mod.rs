//! `exp(x_i) / sum over j of exp(x_j)` over every group of a row: `x` `[rows, n G]` to the same shape, groups of `G` values.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::softmax::Softmax;
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let y = e.apply(Softmax { group: Some(2) }, &[&Tensor::new(&[[0f32, 0.0, 5.0, 5.0]], &Device::Cpu)?])?;
//! assert_eq!(y.to_vec2::<f32>()?, [[0.5; 4]]);
//! # Ok(())
//! # }
//! ```

use super::exponentials;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, EXPONENTIAL, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands};
use crate::{Error, Result};
use candle_core::{D, Tensor};

/// Floating-point operations of a value: the largest, an exponential, the sum and a division.
const OPERATIONS: f64 = 3.0 + EXPONENTIAL;
/// Microseconds of a value on one thread, roughly.
const MICROS: f32 = 1e-3;

/// The logarithm of the softmax over the last axis, of any shape, in plain operations with gradients: what losses are made of.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::ops::softmax::log_softmax;
/// # fn main() -> candle_models::Result<()> {
/// let logs = log_softmax(&Tensor::new(&[[1000f32, 1000.0]], &Device::Cpu)?)?.to_vec2::<f32>()?;
/// assert!(logs[0].iter().all(|log| (log + 2f32.ln()).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the device fails.
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let shifted = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?;
    let total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    Ok(shifted.broadcast_sub(&total)?)
}

/// The operation: one operand.
#[derive(Debug, Clone, Copy)]
pub struct Softmax {
    /// Values of a group; `None` for the whole row.
    pub group: Option<usize>,
}

impl Softmax {
    fn group_of(self, width: usize) -> usize {
        self.group.unwrap_or(width)
    }
}

fn group_forward(x: &[f32], y: &mut [f32]) {
    exponentials(x, y, &mut 0.0);
    let scale = 1.0 / y.iter().sum::<f32>();
    y.iter_mut().for_each(|y| *y *= scale);
}

impl RowGradients for Softmax {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        let group = self.group_of(y.len());
        x[0].chunks_exact(group).zip(y.chunks_exact_mut(group)).for_each(|(x, y)| group_forward(x, y));
    }

    /// `dx = y (dy - sum of y dy)`.
    fn backward(&self, _: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        let group = self.group_of(y.len());
        for ((y, dy), dx) in y.chunks_exact(group).zip(dy.chunks_exact(group)).zip(dx[0].chunks_exact_mut(group)) {
            let sum: f32 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
            dx.iter_mut().zip(y).zip(dy).for_each(|((dx, y), dy)| *dx = y * (dy - sum));
        }
    }
}

/// `Softmax` in `softmax.cu`.
#[cfg(feature = "cuda")]
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: crate::cuda::Matrix,
    out: crate::cuda::Matrix,
    rows: u32,
    group: u32,
}

/// `exp(x) / sum(exp(x))` along the last axis in plain tensor operations, for every shape, dtype and device.
///
/// # Errors
/// Those of the tensor operations.
pub fn reference(x: &Tensor) -> candle_core::Result<Tensor> {
    let exponentials = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        let group = self.group_of(x);
        if group == 0 || x % group != 0 {
            return Err(Error::Input(format!("softmax: {x} values a row in groups of {group}")));
        }
        Ok(Widths::floats(x))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let (rows, width) = x.dims2()?;
        let group = self.group_of(width);
        let groups = x.reshape((rows, width / group, group))?;
        Ok(Values::floats(reference(&groups)?.reshape((rows, width))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [x] = operands(self.name(), x)?;
        let group = self.group_of(graph.width(x)?);
        graph::floats(graph.by_group(x, group, |graph, x| Ok(graph.of(Operator::Softmax, x)))?)
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (*self, MICROS * wires.out[0].width as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use crate::cuda::{Kernel, Source};
        static SOURCE: Source = Source { name: "softmax", text: include_str!("softmax.cu") };
        const KERNEL: Kernel = Kernel { source: &SOURCE, name: "softmax" };
        /// A warp takes a group.
        const THREADS: usize = 128;
        let group = self.group_of(wires.x[0].width);
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = Arguments { x: pass.matrix(x), out: pass.matrix(out), rows: pass.rows() as u32, group: group as u32 };
            let warps = pass.rows() * (x.width / group);
            let grid = ((warps.div_ceil(THREADS / 32), 1, 1), THREADS, 0);
            // SAFETY: the plan gives both matrices the rows of the pass, and the argument is laid out as the kernel's.
            Ok(unsafe { pass.gpu.launch(KERNEL, Some(pass.dtype), grid, &args) }?)
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
    use crate::ops::check::{check, refuses};

    #[test]
    fn every_form_of_it_is_the_reference() {
        for (group, width) in [(None, 1), (None, 37), (Some(1), 3), (Some(5), 20), (Some(40), 80)] {
            check(Softmax { group }, &[width]);
        }
        refuses(&Softmax { group: Some(4) }, &[6]);
        refuses(&Softmax { group: Some(0) }, &[6]);
    }

    #[test]
    fn large_values_do_not_overflow() {
        let mut y = [0.0; 3];
        Softmax { group: None }.forward(&[&[1000.0, 1000.0, -1000.0]], &mut y);
        assert!(y[..2] == [0.5, 0.5] && y[2] < 1e-30, "{y:?}");
    }
}
