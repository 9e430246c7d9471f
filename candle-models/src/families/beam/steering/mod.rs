//! The beam of a linear array that a few paths make: `sum g_k b(d_k)` of steering vectors, their elements half a wavelength apart,
//! `b(d)[m] = exp(j pi m d)`.
//!
//! A row is `[K, 3]`: of every path the sine `d` of its angle and the real and imaginary part of its gain `g`. The result is `[M, 2]`.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use std::f32::consts::PI;

/// The operation: one operand.
#[derive(Debug, Clone)]
pub struct SteeredBeam {
    paths: usize,
    antennas: usize,
}

impl SteeredBeam {
    /// Of so many paths at an array of so many antennas.
    ///
    /// # Errors
    /// If there are none.
    pub fn new(paths: usize, antennas: usize) -> Result<Self> {
        if paths == 0 || antennas == 0 {
            return Err(Error::Input(format!("steered beam: expected paths and antennas, found {paths} and {antennas}")));
        }
        Ok(Self { paths, antennas })
    }

    /// Values of a row that it reads.
    pub fn inputs(&self) -> usize {
        3 * self.paths
    }

    /// Values of a row that it makes.
    pub fn outputs(&self) -> usize {
        2 * self.antennas
    }
}

/// `b(d)[m]`. Half turns that are whole are taken off, so that angles stay small.
pub(super) fn element(m: usize, d: f32) -> [f32; 2] {
    let half_turns = m as f32 * d;
    let (sin, cos) = (PI * (half_turns - 2.0 * (half_turns / 2.0).trunc())).sin_cos();
    [cos, sin]
}

impl RowGradients for SteeredBeam {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        y.fill(0.0);
        for path in x[0].chunks_exact(3) {
            for (m, y) in y.chunks_exact_mut(2).enumerate() {
                let [cos, sin] = element(m, path[0]);
                y[0] += path[1] * cos - path[2] * sin;
                y[1] += path[1] * sin + path[2] * cos;
            }
        }
    }

    fn backward(&self, x: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        for (path, dx) in x[0].chunks_exact(3).zip(dx[0].chunks_exact_mut(3)) {
            dx.fill(0.0);
            for (m, dy) in dy.chunks_exact(2).enumerate() {
                let [cos, sin] = element(m, path[0]);
                dx[1] += dy[0] * cos + dy[1] * sin;
                dx[2] += dy[1] * cos - dy[0] * sin;
                let (re, im) = (path[1] * cos - path[2] * sin, path[1] * sin + path[2] * cos);
                dx[0] += PI * m as f32 * (dy[1] * re - dy[0] * im);
            }
        }
    }
}

impl Operation for SteeredBeam {
    fn name(&self) -> &'static str {
        "steered_beam"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width(self.name(), x, self.inputs())?;
        Ok(Widths::floats(self.outputs()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let paths = x.reshape(((), self.paths, 3))?;
        let part = |i| paths.narrow(2, i, 1);
        let (d, re, im) = (part(0)?, part(1)?, part(2)?);
        let angles = Tensor::from_iter((0..self.antennas).map(|m| std::f64::consts::PI * m as f64), &Device::Cpu)?;
        let angles = d.broadcast_mul(&angles.to_dtype(x.dtype())?.to_device(x.device())?.reshape((1, 1, ()))?)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let real = (re.broadcast_mul(&cos)? - im.broadcast_mul(&sin)?)?.sum(1)?;
        let imaginary = (re.broadcast_mul(&sin)? + im.broadcast_mul(&cos)?)?.sum(1)?;
        Ok(Values::floats(Tensor::stack(&[real, imaginary], 2)?.flatten_from(1)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [x] = operands(self.name(), x)?;
        let paths = graph.by_row(x, &[self.paths, 3]);
        let [d, re, im] = [0, 1, 2].map(|start| graph.of(Operator::Slice { axis: 2, start, len: 1 }, paths));
        let numbers = graph.constant(Tensor::from_iter((0..self.antennas).map(|m| m as f32), &Device::Cpu)?.reshape((1, ()))?);
        let half_turns = graph.mul(d, numbers);
        let pi = graph.float(PI);
        let angles = graph.mul(half_turns, pi);
        let [cos, sin] = [Operator::Cos, Operator::Sin].map(|of| graph.of(of, angles));
        let mut times = |a, b| graph.mul(a, b);
        let [a, b, c, d] = [times(re, cos), times(im, sin), times(re, sin), times(im, cos)];
        let parts = [graph.sub(a, b), graph.add(c, d)].map(|part| {
            let sum = graph.of(Operator::ReduceSum { axis: 1 }, part);
            graph.by_row(sum, &[self.antennas, 1])
        });
        let joined = graph.node(Operator::Concat { axis: 2 }, &parts);
        graph::floats(graph.by_row(joined, &[2 * self.antennas]))
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (self.clone(), 1e-2 * (self.paths * self.antennas) as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let op = self.clone();
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let arguments = cuda::Arguments::new(&op, [pass.matrix(x), pass.matrix(out)]);
            // SAFETY: the plan gives both matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { arguments.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, self.clone())
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = 20.0 * size.rows() * (self.paths * self.antennas) as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}
