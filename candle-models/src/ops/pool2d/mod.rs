//! Two-dimensional pooling, channels last: of every patch the largest or the mean value of each channel. `x` `[rows, H W C]` to
//! `[rows, H' W' C]` with `H' = (H - K) / s + 1` and `W'` likewise. Not included: padding and dilation.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use super::conv2d::Conv2dShape;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// Microseconds of a value of a patch on one thread, roughly.
const MICROS: f32 = 2e-4;

/// What is left of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The largest value.
    Max,
    /// The mean.
    Average,
}

/// The operation: one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2d {
    pooling: Pooling,
    shape: Conv2dShape,
    output: [usize; 2],
}

impl Pool2d {
    /// Pooling over patches.
    ///
    /// # Errors
    /// If no patch fits, or there is padding.
    pub fn new(pooling: Pooling, shape: Conv2dShape) -> Result<Self> {
        if shape.padding != [0, 0] {
            return Err(Error::Input(format!("pool2d: expected no padding, found {:?}", shape.padding)));
        }
        Ok(Self { pooling, output: shape.output()?, shape })
    }

    /// Height and width of the result.
    pub fn output(&self) -> [usize; 2] {
        self.output
    }

    /// Values of a patch in a channel.
    fn area(&self) -> usize {
        self.shape.kernel.iter().product()
    }

    fn outputs(&self) -> usize {
        self.output[0] * self.output[1] * self.shape.channels
    }

    /// Calls `f(result, input)` for every place of every patch: where its channels begin among those of the result and of the input.
    fn for_places(&self, mut f: impl FnMut(usize, usize)) {
        let Self { shape: Conv2dShape { input, channels, kernel, stride, .. }, output: [height, width], .. } = *self;
        for i in 0..height {
            for j in 0..width {
                for y in i * stride[0]..i * stride[0] + kernel[0] {
                    for x in j * stride[1]..j * stride[1] + kernel[1] {
                        f((i * width + j) * channels, (y * input[1] + x) * channels);
                    }
                }
            }
        }
    }
}

impl RowGradients for Pool2d {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        let channels = self.shape.channels;
        let of = |to: usize, from: usize| (to..to + channels, &x[0][from..from + channels]);
        match self.pooling {
            Pooling::Max => {
                y.fill(f32::NEG_INFINITY);
                self.for_places(|to, from| {
                    let (to, from) = of(to, from);
                    y[to].iter_mut().zip(from).for_each(|(y, x)| *y = if x > y { *x } else { *y });
                });
            }
            Pooling::Average => {
                y.fill(0.0);
                self.for_places(|to, from| {
                    let (to, from) = of(to, from);
                    y[to].iter_mut().zip(from).for_each(|(y, x)| *y += x);
                });
                let scale = 1.0 / self.area() as f32;
                y.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }

    /// The first of several largest values has the whole gradient.
    fn backward(&self, x: &[&[f32]], y: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        let (channels, scale, dx) = (self.shape.channels, 1.0 / self.area() as f32, &mut *dx[0]);
        dx.fill(0.0);
        if self.pooling == Pooling::Average {
            self.for_places(|to, from| dx[from..from + channels].iter_mut().zip(&dy[to..]).for_each(|(dx, dy)| *dx += scale * dy));
            return;
        }
        // Channels of the patch whose largest value has been found.
        let (mut patch, mut found) = (usize::MAX, vec![false; channels]);
        self.for_places(|to, from| {
            if patch != to {
                patch = to;
                found.fill(false);
            }
            for c in (0..channels).filter(|c| x[0][from + c] == y[to + c]) {
                if !std::mem::replace(&mut found[c], true) {
                    dx[from + c] += dy[to + c];
                }
            }
        });
    }
}

impl Operation for Pool2d {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([x], [height, width]) = (operands(self.name(), x)?, self.shape.input);
        same_width(self.name(), x, height * width * self.shape.channels)?;
        Ok(Widths::floats(self.outputs()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let patches = self.shape.patches(self.output, x)?.reshape(((), self.area(), self.shape.channels))?;
        let y = match self.pooling {
            // Chosen by its place, so that one of several largest values has the gradient.
            Pooling::Max => patches.gather(&patches.detach().argmax_keepdim(1)?, 1)?.squeeze(1)?,
            Pooling::Average => patches.mean(1)?,
        };
        Ok(Values::floats(y.reshape((x.dim(0)?, ()))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], Conv2dShape { input, channels, kernel, stride: strides, .. }) = (operands(self.name(), x)?, self.shape);
        let image = graph.by_row(x, &[input[0], input[1], channels]);
        let image = graph.of(Operator::Transpose(vec![0, 3, 1, 2]), image);
        let pool = match self.pooling {
            Pooling::Max => Operator::MaxPool { kernel, strides },
            Pooling::Average => Operator::AveragePool { kernel, strides },
        };
        let y = graph.of(pool, image);
        let y = graph.of(Operator::Transpose(vec![0, 2, 3, 1]), y);
        graph::floats(graph.by_row(y, &[self.outputs()]))
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (*self, MICROS * (self.outputs() * self.area()) as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let op = *self;
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = cuda::Arguments::new([pass.matrix(x), pass.matrix(out)], &op);
            // SAFETY: the plan gives both matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * (self.outputs() * self.area()) as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}
