//! Two-dimensional convolution, channels last: `y[i, j] = b + sum over (k, l) of x[i s - p + k, j s - p + l] W[k, l]`. `x` `[rows, H W C]`
//! to `[rows, H' W' O]` with `H' = (H + 2 p - K) / s + 1` and `W'` likewise; the weight lies as `[K L C, O]`, the bias `[O]`.
//!
//! Every place of the result is a product of a patch of `K L C` values, so the patches of a row make one product with packed weights. Not
//! included: dilation and groups.
//!
//! ```
//! use candle_models::candle_core::{DType, Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::nn::{Linear, Params};
//! use candle_models::ops::conv2d::{Conv2d, Conv2dShape};
//! use candle_models::random::Random;
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let shape = Conv2dShape { input: [8, 6], channels: 3, kernel: [3, 3], stride: [2, 2], padding: [1, 1] };
//! let layer = Linear::new(3 * 3 * 3, 16, &Params::init(Random::new(1), &Device::Cpu))?; // a patch to 16 channels
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false; 2], Vec::new(), &Device::Cpu);
//! let y = e.apply(Conv2d::new(shape, layer)?, &[&Tensor::ones((2, 8 * 6 * 3), DType::F32, &Device::Cpu)?])?;
//! assert_eq!(y.dims(), [2, 4 * 3 * 16]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;
mod tape;
#[cfg(test)]
mod tests;

use super::{Activation, Linear, Rows, linear, linear_reference};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// Sizes of a convolution, or of another function of patches; pairs are down and across.
///
/// ```
/// use candle_models::ops::conv2d::Conv2dShape;
/// # fn main() -> candle_models::Result<()> {
/// let shape = Conv2dShape { input: [8, 6], channels: 3, kernel: [3, 3], stride: [2, 2], padding: [1, 1] };
/// assert_eq!(shape.output()?, [4, 3]);
/// assert!(Conv2dShape { kernel: [11, 3], ..shape }.output().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Of the input: height and width.
    pub input: [usize; 2],
    /// Channels of the input.
    pub channels: usize,
    /// Of a patch: height and width.
    pub kernel: [usize; 2],
    /// From a patch to the next.
    pub stride: [usize; 2],
    /// Zeros around the input, on every side.
    pub padding: [usize; 2],
}

impl Conv2dShape {
    /// Those of a convolution over one axis, `[rows, L C]` to `[rows, L' O]` (Conv1d): over a grid of height 1. A patch is one piece of the input,
    /// so that an operation of its own would copy and multiply the same.
    pub fn line([length, channels]: [usize; 2], kernel: usize, stride: usize, padding: usize) -> Self {
        Self { input: [1, length], channels, kernel: [1, kernel], stride: [1, stride], padding: [0, padding] }
    }

    /// Height and width of the result.
    ///
    /// # Errors
    /// If a size is zero, or a patch is larger than the padded input.
    pub fn output(&self) -> Result<[usize; 2]> {
        let side = |axis: usize| {
            let room = (self.input[axis] + 2 * self.padding[axis]).checked_sub(self.kernel[axis])?;
            (self.kernel[axis] > 0 && self.channels > 0).then(|| room.checked_div(self.stride[axis]))?.map(|n| n + 1)
        };
        match (side(0), side(1)) {
            (Some(height), Some(width)) => Ok([height, width]),
            _ => Err(Error::Input(format!("{self:?} has no place for a patch"))),
        }
    }

    /// Values of a patch.
    fn patch(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.channels
    }

    /// Calls `f(patches, input)` for every line of every patch: where its values lie among those of all patches and among those of the
    /// input. What lies in the padding is left out.
    fn for_lines(&self, [height, width]: [usize; 2], mut f: impl FnMut(std::ops::Range<usize>, usize)) {
        let ([kernel_height, kernel_width], c) = (self.kernel, self.channels);
        for i in 0..height {
            for j in 0..width {
                let left = (j * self.stride[1]) as isize - self.padding[1] as isize;
                let first = (-left).clamp(0, kernel_width as isize) as usize;
                let last = (self.input[1] as isize - left).clamp(first as isize, kernel_width as isize) as usize;
                for k in 0..kernel_height {
                    let Some(y) = (i * self.stride[0] + k).checked_sub(self.padding[0]).filter(|y| *y < self.input[0]) else { continue };
                    if first < last {
                        let at = (i * width + j) * self.patch() + (k * kernel_width + first) * c;
                        f(at..at + (last - first) * c, (y * self.input[1] + (left + first as isize) as usize) * c);
                    }
                }
            }
        }
    }

    /// The patches of `x` `[rows, H W C]`, `[rows places, K L C]`, with gradients: each value chosen from its row, behind which a zero stands for the
    /// padding.
    pub(super) fn patches(&self, output: [usize; 2], x: &Tensor) -> Result<Tensor> {
        let ((rows, width), places) = (x.dims2()?, output[0] * output[1]);
        let mut index = vec![width as u32; places * self.patch()];
        self.for_lines(output, |line, from| index[line].iter_mut().zip(from as u32..).for_each(|(to, from)| *to = from));
        let index = Tensor::from_vec(index, places * self.patch(), &Device::Cpu)?.to_device(x.device())?;
        let padded = x.pad_with_zeros(1, 0, 1)?.contiguous()?;
        Ok(padded.index_select(&index, 1)?.reshape((rows * places, self.patch()))?)
    }

    /// Copies the patches of a row.
    fn gather(&self, output: [usize; 2], x: &[f32], patches: &mut [f32]) {
        patches.fill(0.0);
        self.for_lines(output, |line, from| {
            let len = line.len();
            patches[line].copy_from_slice(&x[from..from + len]);
        });
    }
}

/// The operation: one operand.
#[derive(Debug, Clone)]
pub struct Conv2d {
    shape: Conv2dShape,
    output: [usize; 2],
    layer: Linear,
}

impl Conv2d {
    /// A convolution by a layer from patches to channels.
    ///
    /// # Errors
    /// If the layer does not read as many values as a patch has, or no patch fits.
    pub fn new(shape: Conv2dShape, layer: Linear) -> Result<Self> {
        same_width("a patch of conv2d", shape.patch(), layer.weight.dim(0)?)?;
        Ok(Self { output: shape.output()?, shape, layer })
    }

    /// Places of the result.
    fn places(&self) -> usize {
        self.output[0] * self.output[1]
    }

    fn outputs(&self) -> Result<usize> {
        Ok(self.layer.weight.dim(1)?)
    }

    fn run(&self, x: &[&Tensor], product: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let y = product(&self.shape.patches(self.output, &x.to_dtype(self.layer.weight.dtype())?)?)?;
        Ok(Values::floats(y.reshape((x.dim(0)?, ()))?))
    }
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    /// Scratch: the patches.
    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([x], [height, width]) = (operands(self.name(), x)?, self.shape.input);
        same_width(self.name(), x, height * width * self.shape.channels)?;
        Ok(Widths::floats(self.places() * self.outputs()?).with_scratch(&[self.places() * self.shape.patch()]))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(x, |patches| Ok(linear_reference(patches, &self.layer.weight, self.layer.bias.as_ref(), Activation::None)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], Conv2dShape { input, channels, kernel, stride, padding }) = (operands(self.name(), x)?, self.shape);
        let outputs = self.outputs()?;
        let image = graph.by_row(x, &[input[0], input[1], channels]);
        let image = graph.of(Operator::Transpose(vec![0, 3, 1, 2]), image);
        let weight = graph.tensor(&self.layer.weight)?;
        let patches = [kernel[0], kernel[1], channels, outputs].map(|n| n as i64);
        let patches = graph.of(Operator::Reshape(patches.to_vec()), weight);
        let weight = graph.of(Operator::Transpose(vec![3, 2, 0, 1]), patches);
        let bias = self.layer.bias.as_ref().map(|bias| graph.tensor(bias)).transpose()?;
        let operands: Vec<Value> = [image, weight].into_iter().chain(bias).collect();
        let y = graph.node(Operator::Conv { strides: stride, pads: padding }, &operands);
        let y = graph.of(Operator::Transpose(vec![0, 2, 3, 1]), y);
        graph::floats(graph.by_row(y, &[self.places() * outputs]))
    }

    fn tensors(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(x, |patches| {
            emulated([patches, &self.layer.weight], |[x, weight]| Ok(linear(x, weight, self.layer.bias.as_ref(), Activation::None)?))
        })
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, patches, out) = (wires.x[0], wires.scratch[0], wires.out[0]);
        let (shape, output, places, patch) = (self.shape, self.output, self.places(), self.shape.patch());
        let (matrix, outputs) = (packer.pack(&self.layer, patch)?, self.outputs()?);
        Ok(Some(Box::new(move |frame, threads| {
            cpu::share_rows(threads, frame.rows, patches.width, |r| {
                // SAFETY: every row belongs to one part.
                shape.gather(output, frame.row(x, r), unsafe { frame.row_mut(patches, r) });
            });
            // Scratch and result are whole buffers: their rows lie one behind the other, and so do the patches in them.
            let all = Rows { rows: frame.rows * places, width: patch, stride: patch, ..frame.rows(patches) };
            cpu::product(threads, &matrix, Activation::None, all, (frame.output(out).0, outputs));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (shape, output, outputs) = (self.shape, self.output, self.outputs()?);
        let parameters = [compiler.matrix(&self.layer.weight)?, compiler.vector_or_none(self.layer.bias.as_ref())?];
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = cuda::Arguments::new([pass.matrix(x), pass.matrix(out)], parameters, &shape, (output, outputs));
            // SAFETY: the plan gives both matrices the rows of the pass, and the weights live as long as the steps.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::OnTape::new(self, wires, tape)?)))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let (patch, outputs) = (self.shape.patch(), self.outputs()?);
        let (name, weights) = size.stored(&self.layer, patch, outputs);
        let flop = size.rows() * (self.places() * 2 * patch * outputs) as f64;
        Ok(Work { name: self.name(), flop, bytes: weights + size.values(wires), weights: Some(name) })
    }
}
