//! Numbers from normal distributions: `y = mean + exp(s) z`, within bounds. `parameters` `[rows, 2 N]` holds N means and behind them what the
//! logarithms of N standard deviations are made of, `s = -1.5 + 3.5 tanh(raw)`, which lies from -5 to 2: so the actors of Yarats' pytorch_sac
//! and CleanRL keep a predicted deviation from vanishing and from running away. `uniform` `[rows, N]` is in [0, 1), negative for the mean:
//! `z` is the quantile of the normal distribution there. Results, `[rows, 3 N]`: the numbers, the means, the logarithms of the standard
//! deviations.
//!
//! The number is given by the caller's `uniform`, so it is the same on CPU and CUDA up to the rounding of `exp`, `ln` and `tanh`.
//! [`gaussian_nats`] is what training minimises.

mod quantile;
#[cfg(test)]
mod tests;

use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::{DType, Tensor};
use quantile::quantile;

/// Where the logarithm of a standard deviation lies.
pub const LOG_DEVIATION: [f32; 2] = [-5.0, 2.0];
/// Its middle, and how far it goes to either side.
const MIDDLE: f32 = 0.5 * (LOG_DEVIATION[0] + LOG_DEVIATION[1]);
const HALF: f32 = 0.5 * (LOG_DEVIATION[1] - LOG_DEVIATION[0]);
/// Microseconds and floating-point operations of a number, roughly.
const MICROS: f32 = 2e-2;
const OPERATIONS: f64 = 40.0;

/// The operation: operands parameters and uniform numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian {
    /// The smallest number that it gives; minus infinity for no bound.
    pub low: f32,
    /// The largest.
    pub high: f32,
}

impl Gaussian {
    fn row(self, parameters: &[f32], uniform: &[f32], y: &mut [f32]) {
        let n = uniform.len();
        for (i, &u) in uniform.iter().enumerate() {
            let (mean, log) = (parameters[i], MIDDLE + HALF * parameters[n + i].tanh());
            let number = if u < 0.0 { mean } else { mean + log.exp() * quantile(u).0 };
            (y[i], y[n + i], y[2 * n + i]) = (number.max(self.low).min(self.high), mean, log);
        }
    }
}

impl RowGradients for Gaussian {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        self.row(x[0], x[1], y);
    }

    fn backward(&self, x: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        let n = x[1].len();
        for (i, &u) in x[1].iter().enumerate() {
            let (z, slope) = if u < 0.0 { (0.0, 0.0) } else { quantile(u) };
            let (deviation, tanh) = (y[2 * n + i].exp(), x[0][n + i].tanh());
            let number = y[n + i] + deviation * z;
            let dnumber = if (self.low..=self.high).contains(&number) { dy[i] } else { 0.0 };
            dx[0][i] = dnumber + dy[n + i];
            dx[0][n + i] = (dnumber * deviation * z + dy[2 * n + i]) * HALF * (1.0 - tanh * tanh);
            dx[1][i] = dnumber * deviation * slope;
        }
    }
}

impl Operation for Gaussian {
    fn name(&self) -> &'static str {
        "gaussian"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [parameters, uniform] = operands(self.name(), x)?;
        same_width("the parameters of gaussian", parameters, 2 * uniform)?;
        Ok(Widths::floats(3 * uniform))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [parameters, uniform] = operands(self.name(), x)?;
        // Narrow numbers would say little of a deviation.
        let dtype = if parameters.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let (parameters, uniform) = (parameters.to_dtype(dtype)?, uniform.to_dtype(dtype)?);
        let n = uniform.dim(1)?;
        let (mean, raw) = (parameters.narrow(1, 0, n)?.contiguous()?, parameters.narrow(1, n, n)?.contiguous()?);
        let log = raw.tanh()?.affine(f64::from(HALF), f64::from(MIDDLE))?;
        let z = uniform.lt(0.0)?.where_cond(&uniform.zeros_like()?, &quantile::on_tensors(&uniform)?)?;
        let mut number = (&mean + (log.exp()? * z)?)?;
        if self.low.is_finite() {
            number = number.maximum(f64::from(self.low))?;
        }
        if self.high.is_finite() {
            number = number.minimum(f64::from(self.high))?;
        }
        Ok(Values::floats(Tensor::cat(&[number, mean, log], 1)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [parameters, uniform] = operands(self.name(), x)?;
        let n = graph.width(uniform)?;
        let (mean, raw) = (graph.columns(parameters, 0, n), graph.columns(parameters, n, n));
        let (half, middle, zero) = (graph.float(HALF), graph.float(MIDDLE), graph.float(0.0));
        let tanh = graph.of(Operator::Tanh, raw);
        let scaled = graph.mul(half, tanh);
        let log = graph.add(scaled, middle);
        let (deviation, z) = (graph.of(Operator::Exp, log), quantile::formula(graph, uniform));
        let greedy = graph.node(Operator::Less, &[uniform, zero]);
        let z = graph.node(Operator::Where, &[greedy, zero, z]);
        let apart = graph.mul(deviation, z);
        let mut number = graph.add(mean, apart);
        if self.low.is_finite() {
            let low = graph.float(self.low);
            let below = graph.node(Operator::Less, &[number, low]);
            number = graph.node(Operator::Where, &[below, low, number]);
        }
        if self.high.is_finite() {
            let high = graph.float(self.high);
            number = graph.node(Operator::Min, &[number, high]);
        }
        graph::floats(graph.node(Operator::Concat { axis: 1 }, &[number, mean, log]))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (*self, MICROS * wires.x[1].width as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.row(x.x(0), x.x(1), y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, _: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use crate::cuda::{Kernel, Matrix, Source};
        static SOURCE: Source = Source { name: "gaussian", text: include_str!("gaussian.cu") };
        const KERNEL: Kernel = Kernel { source: &SOURCE, name: "gaussian" };

        /// `Gaussian` in `gaussian.cu`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Arguments {
            parameters: Matrix,
            uniform: Matrix,
            out: Matrix,
            low: f32,
            high: f32,
        }
        let ([parameters, uniform], out, Self { low, high }) = (operands(self.name(), &wires.x)?, wires.out[0], *self);
        Ok(Some(Box::new(move |pass| {
            let [parameters, uniform, out] = [parameters, uniform, out].map(|slot| pass.matrix(slot));
            let args = Arguments { parameters, uniform, out, low, high };
            // SAFETY: the plan gives all matrices the rows of the pass, and all of them are f32 as `wide` asks.
            Ok(unsafe { pass.gpu.launch(KERNEL, None, uniform.grid(pass.rows()), &args) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * OPERATIONS * wires.x[1].width as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }

    fn wide(&self, wires: &Wires) -> Vec<Slot> {
        [&wires.x[..], &wires.out[..]].concat()
    }
}

/// Negative log-likelihood in nats, `[rows, 1]`, of `numbers` `[rows, N]` under the means and behind them the logarithms of the standard
/// deviations in `distribution` `[rows, 2 N]`, with gradients: that of the density, without bounds, so it may be below zero.
pub fn gaussian_nats(distribution: &Tensor, numbers: &Tensor) -> candle_core::Result<Tensor> {
    let n = numbers.dim(1)?;
    let (mean, log) = (distribution.narrow(1, 0, n)?, distribution.narrow(1, n, n)?);
    let apart = ((numbers - mean)? * log.neg()?.exp()?)?;
    let constant = 0.5 * (2.0 * std::f64::consts::PI).ln();
    (apart.sqr()?.affine(0.5, constant)? + log)?.sum_keepdim(1)
}
