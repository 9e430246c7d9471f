//! What happens to the places of a grid, channels last: [`Coordinates`] appends where each place is, [`Window`] pads a grid with zeros and crops it again.
//! A grid is `[rows, n m C]`.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::grid::{Coordinates, Window};
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let line = Tensor::new(&[[5f32, 7.0]], &Device::Cpu)?; // two places across with one channel
//! let y = e.apply(Coordinates { grid: [1, 2], channels: 1, periodic: false }, &[&line])?;
//! assert_eq!(y.to_vec2::<f32>()?, [[5.0, 0.0, 7.0, 0.5]]);
//! let y = e.apply(Window::pad([1, 2], [0, 1], 1), &[&line])?;
//! assert_eq!(y.to_vec2::<f32>()?, [[0.0, 5.0, 7.0, 0.0]]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::{DType, Device, Tensor};
use std::f64::consts::TAU;

/// Microseconds of a value on one thread, roughly.
const MICROS: f32 = 2e-4;

/// The operation: every place with its coordinates behind its channels, `x = i / n` down where there is more than one place down, and `y = j / m` across.
/// A periodic grid has no edge where coordinates could begin: there they are the longest waves, cosine and sine of `2 pi` times `x`, `y`, `x + y` and
/// `x - y`, or of `2 pi y` alone on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates {
    /// Places down and across.
    pub grid: [usize; 2],
    /// Channels of the input.
    pub channels: usize,
    /// Whether what leaves the grid on one side comes back on the other.
    pub periodic: bool,
}

impl Coordinates {
    /// How many coordinates a place has.
    pub fn count(&self) -> usize {
        match (self.periodic, self.grid[0] > 1) {
            (true, true) => 8,
            (false, false) => 1,
            _ => 2,
        }
    }

    /// Channels of the result.
    pub fn outputs(&self) -> usize {
        self.channels + self.count()
    }

    fn places(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// `[places, count]`.
    fn all(&self) -> Vec<f32> {
        let [n, m] = self.grid;
        let of = |place: usize| {
            let (x, y) = ((place / m) as f64 / n as f64, (place % m) as f64 / m as f64);
            let plane = [x, y, x + y, x - y];
            let parts = match (self.periodic, n > 1) {
                (true, true) => &plane[..],
                (false, true) => &plane[..2],
                (_, false) => &plane[1..2],
            };
            if self.periodic { parts.iter().flat_map(|part| [(TAU * part).cos(), (TAU * part).sin()]).collect() } else { parts.to_vec() }
        };
        (0..self.places()).flat_map(of).map(|value: f64| value as f32).collect()
    }

    fn table(&self) -> Table {
        Table { channels: self.channels, count: self.count(), all: self.all() }
    }
}

/// The coordinates of all places, to be copied into every row.
struct Table {
    channels: usize,
    count: usize,
    all: Vec<f32>,
}

impl RowGradients for Table {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        let places =
            x[0].chunks_exact(self.channels).zip(self.all.chunks_exact(self.count)).zip(y.chunks_exact_mut(self.channels + self.count));
        for ((x, all), y) in places {
            let (channels, coordinates) = y.split_at_mut(self.channels);
            channels.copy_from_slice(x);
            coordinates.copy_from_slice(all);
        }
    }

    fn backward(&self, _: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        let places = dx[0].chunks_exact_mut(self.channels).zip(dy.chunks_exact(self.channels + self.count));
        places.for_each(|(dx, dy)| dx.copy_from_slice(&dy[..self.channels]));
    }
}

impl Operation for Coordinates {
    fn name(&self) -> &'static str {
        "coordinates"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width(self.name(), x, self.places() * self.channels)?;
        Ok(Widths::floats(self.places() * self.outputs()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x] = operands(self.name(), x)?;
        let rows = x.dim(0)?;
        let all =
            Tensor::from_vec(self.all(), (1, self.places(), self.count()), &Device::Cpu)?.to_dtype(x.dtype())?.to_device(x.device())?;
        let x = x.reshape((rows, self.places(), self.channels))?;
        let y = Tensor::cat(&[x, all.broadcast_as((rows, self.places(), self.count()))?.contiguous()?], 2)?;
        Ok(Values::floats(y.reshape((rows, self.places() * self.outputs()))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [x] = operands(self.name(), x)?;
        let x = graph.by_row(x, &[self.places(), self.channels]);
        // As many rows of zeros as there are.
        let first = graph.of(Operator::Slice { axis: 2, start: 0, len: 1 }, x);
        let zeros = graph.sub(first, first);
        let all = graph.constant(Tensor::from_vec(self.all(), (1, self.places(), self.count()), &Device::Cpu)?);
        let all = graph.add(zeros, all);
        let y = graph.node(Operator::Concat { axis: 2 }, &[x, all]);
        graph::floats(graph.by_row(y, &[self.places() * self.outputs()]))
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let table = self.table();
        Ok(Some(packer.for_rows(MICROS * (self.places() * self.outputs()) as f32, move |x, y| {
            table.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let op = *self;
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = cuda::Arguments::coordinates([pass.matrix(x), pass.matrix(out)], &op);
            // SAFETY: the plan gives both matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, self.table())
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: 0.0, bytes: size.values(wires), weights: None })
    }
}

/// The operation: a grid seen through a window, with zeros where the window reaches beyond the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Places down and across of the input and of the result.
    from: [usize; 2],
    to: [usize; 2],
    /// Where the first place of the input is in the result, or of the result in the input.
    margin: [usize; 2],
    padded: bool,
    channels: usize,
}

impl Window {
    /// A grid with so many zeros on both sides down and across.
    pub fn pad(grid: [usize; 2], margin: [usize; 2], channels: usize) -> Self {
        let to = [0, 1].map(|axis| grid[axis] + 2 * margin[axis]);
        Self { from: grid, to, margin, padded: true, channels }
    }

    /// That turned back: `grid` is the one without the margin.
    pub fn crop(grid: [usize; 2], margin: [usize; 2], channels: usize) -> Self {
        let Self { from, to, .. } = Self::pad(grid, margin, channels);
        Self { from: to, to: from, margin, padded: false, channels }
    }

    /// Calls `f(x, y, values)` for every line that the two have in common: where it begins in each, and how long it is.
    fn for_lines(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [small, large] = if self.padded { [self.from, self.to] } else { [self.to, self.from] };
        for h in 0..small[0] {
            let inside = h * small[1] * self.channels;
            let outside = ((h + self.margin[0]) * large[1] + self.margin[1]) * self.channels;
            let [x, y] = if self.padded { [inside, outside] } else { [outside, inside] };
            f(x, y, small[1] * self.channels);
        }
    }

    /// `[from, to]` of an axis: 1 where a place of the input is that of the result.
    fn selection(&self, axis: usize) -> Vec<f32> {
        let same = |x: usize, y: usize| if self.padded { x + self.margin[axis] == y } else { y + self.margin[axis] == x };
        (0..self.from[axis]).flat_map(|x| (0..self.to[axis]).map(move |y| f32::from(u8::from(same(x, y))))).collect()
    }

    fn width(&self, grid: [usize; 2]) -> usize {
        grid[0] * grid[1] * self.channels
    }
}

impl RowGradients for Window {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        y.fill(0.0);
        self.for_lines(|from, to, len| y[to..to + len].copy_from_slice(&x[0][from..from + len]));
    }

    fn backward(&self, _: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        dx[0].fill(0.0);
        self.for_lines(|to, from, len| dx[0][to..to + len].copy_from_slice(&dy[from..from + len]));
    }
}

impl Operation for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width(self.name(), x, self.width(self.from))?;
        Ok(Widths::floats(self.width(self.to)))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], [n, m], c) = (operands(self.name(), x)?, self.from, self.channels);
        let rows = x.dim(0)?;
        let x = x.reshape((rows, n, m, c))?;
        let y = if self.padded {
            x.pad_with_zeros(1, self.margin[0], self.margin[0])?.pad_with_zeros(2, self.margin[1], self.margin[1])?
        } else {
            x.narrow(1, self.margin[0], self.to[0])?.narrow(2, self.margin[1], self.to[1])?
        };
        Ok(Values::floats(y.contiguous()?.reshape((rows, self.width(self.to)))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], [n, m], c) = (operands(self.name(), x)?, self.from, self.channels);
        let product = |graph: &mut Graph, x: Value, axis: usize| -> Result<Value> {
            let table = Tensor::from_vec(self.selection(axis), (self.from[axis], self.to[axis]), &Device::Cpu)?.to_dtype(DType::F32)?;
            let x = graph.of(Operator::Reshape(vec![-1, self.from[axis] as i64]), x);
            let table = graph.constant(table);
            Ok(graph.node(Operator::MatMul, &[x, table]))
        };
        let x = graph.by_row(x, &[n, m, c]);
        let x = graph.of(Operator::Transpose(vec![0, 2, 3, 1]), x);
        let y = product(graph, x, 0)?;
        let y = graph.of(Operator::Reshape([-1, m as i64, c as i64, self.to[0] as i64].to_vec()), y);
        let y = graph.of(Operator::Transpose(vec![0, 3, 2, 1]), y);
        let y = product(graph, y, 1)?;
        let y = graph.of(Operator::Reshape([-1, self.to[0] as i64, c as i64, self.to[1] as i64].to_vec()), y);
        let y = graph.of(Operator::Transpose(vec![0, 1, 3, 2]), y);
        graph::floats(graph.by_row(y, &[self.width(self.to)]))
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let op = *self;
        Ok(Some(packer.for_rows(MICROS * op.width(op.to) as f32, move |x, y| {
            op.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let op = *self;
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = cuda::Arguments::window([pass.matrix(x), pass.matrix(out)], &op);
            // SAFETY: the plan gives both matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, *self)
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: 0.0, bytes: size.values(wires), weights: None })
    }
}
