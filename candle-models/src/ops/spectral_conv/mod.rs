//! Spectral convolution (Li et al. 2020, arXiv 2010.08895), channels last: `y = F^-1(W F(x)) + b` over the waves of lowest frequency. `x`
//! `[rows, n m C]` on a periodic grid of `n` by `m` places to `[rows, n m O]`.
//!
//! `F(x)` is divided by the number of places, the inverse is not, so that weights mean the same on every grid. Of `K` by `L` modes those with
//! frequencies `-K/2 .. K - K/2` down and `0 .. L` across are kept; the others are 0. The weight `[K, L, C, 2 O]` has the real parts of all outputs
//! before the imaginary ones. A grid that has fewer waves takes the weights of those that it has. For the few waves that operators keep, the
//! transforms are products with tables of cosines and sines; the CPU takes an FFT where many are kept of a long axis. Not included: an FFT on CUDA.
//!
//! ```
//! use candle_models::candle_core::{DType, Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::spectral_conv::{SpectralConv, WaveWeight};
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let weight = Tensor::ones((4, 3, 2, 2 * 5), DType::F32, &Device::Cpu)?; // 4 x 3 modes, 2 channels to 5
//! let op = SpectralConv::new([8, 8], &WaveWeight::Dense(weight), None)?;
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let y = e.apply(op, &[&Tensor::ones((1, 8 * 8 * 2), DType::F32, &Device::Cpu)?])?;
//! assert_eq!(y.dims(), [1, 8 * 8 * 5]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;
mod fast;
mod left_product;
mod tape;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(test)]
mod tests;
mod waves;
mod weight;

use super::{Activation, Format, Linear, OutPointer, PackedMatrix, linear_block};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use std::sync::Arc;
use waves::{Scale, Waves};
pub use weight::WaveWeight;

/// The operation: one operand.
#[derive(Debug, Clone)]
pub struct SpectralConv {
    waves: Arc<Waves>,
    stored: WaveWeight,
    /// `[K, L, C, 2 O]`, of the waves that the grid has.
    weight: Tensor,
    /// The first of them down among those that are stored.
    first: usize,
    bias: Option<Tensor>,
    /// Of the input and of the result.
    channels: [usize; 2],
}

impl SpectralConv {
    /// A convolution over a grid of so many places down and across; a line is a grid of height 1 with one mode down.
    ///
    /// # Errors
    /// If the weight is not `[K, L, C, 2 O]`, the bias not `[O]`, or there are no places.
    pub fn new(grid: [usize; 2], stored: &WaveWeight, bias: Option<&Tensor>) -> Result<Self> {
        let weight = stored.numbers()?;
        let (down, across, inputs, outputs) = weight.dims4()?;
        let channels = [inputs, outputs / 2];
        if grid.contains(&0) || weight.elem_count() == 0 || !outputs.is_multiple_of(2) {
            return Err(Error::Input(format!("spectral_conv: weight {:?} over a grid of {grid:?}", weight.dims())));
        }
        if let Some(bias) = bias {
            same_width("the bias of spectral_conv", bias.elem_count(), channels[1])?;
        }
        let modes = [down.min(grid[0]), across.min(grid[1] / 2 + 1)];
        let first = down / 2 - modes[0] / 2;
        let weight = weight.narrow(0, first, modes[0])?.narrow(1, 0, modes[1])?.contiguous()?;
        Ok(Self { waves: Arc::new(Waves::new(grid, modes)), stored: stored.clone(), weight, first, bias: bias.cloned(), channels })
    }

    /// Columns of what the CPU and CUDA work in: lines of places by waves across, folded ones, coefficients of the input, and of the result twice.
    fn scratch(&self) -> [usize; 4] {
        let ([inputs, outputs], waves) = (self.channels, &self.waves);
        let widest = inputs.max(outputs);
        [waves.lines() * widest, waves.folded() * widest, 2 * waves.modes() * inputs, 4 * waves.modes() * outputs]
    }

    /// The weight of every mode as a layer `[C, 2 O]`.
    fn layers(&self) -> Result<Vec<Linear>> {
        let all = self.weight.reshape((self.waves.modes(), self.channels[0], 2 * self.channels[1]))?;
        (0..self.waves.modes()).map(|mode| Ok(Linear { weight: all.get(mode)?, bias: None, format: Format::F32 })).collect()
    }
}

/// `Y = X W` of one mode, for the real and the imaginary row of `x` `[2, C]`: in `q` `[2, 2 O]` `[Yr | Yi]` takes the place of the first row.
fn finish_mode(q: &mut [f32]) {
    let outputs = q.len() / 4;
    let (re, im) = q.split_at_mut(2 * outputs);
    for o in 0..outputs {
        re[o] -= im[outputs + o];
        re[outputs + o] += im[o];
    }
}

/// Cosines and sines of `place frequency / places` turns, `[places, frequencies]`.
fn angles(graph: &mut Graph, places: &[f32], frequencies: &[f32], count: usize) -> Result<[Value; 2]> {
    let [down, across] = [(places, (places.len(), 1)), (frequencies, (1, frequencies.len()))]
        .map(|(values, shape)| Tensor::from_slice(values, shape, &Device::Cpu).map(|x| graph.constant(x)));
    let (down, across) = (down?, across?);
    let turns = graph.mul(down, across);
    let turn = graph.float(std::f32::consts::TAU / count as f32);
    let angle = graph.mul(turns, turn);
    Ok([Operator::Cos, Operator::Sin].map(|of| graph.of(of, angle)))
}

impl Operation for SpectralConv {
    fn name(&self) -> &'static str {
        "spectral_conv"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([x], [inputs, outputs]) = (operands(self.name(), x)?, self.channels);
        same_width(self.name(), x, self.waves.places() * inputs)?;
        Ok(Widths::floats(self.waves.places() * outputs).with_scratch(&self.scratch()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], [c, o]) = (operands(self.name(), x)?, self.channels);
        let (rows, [n, m], [k, l]) = (x.dim(0)?, self.waves.grid, self.waves.kept);
        let weight = self.weight.to_dtype(x.dtype())?;
        let table = |values: Vec<f64>, shape: (usize, usize)| -> Result<Tensor> {
            Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(x.dtype())?.to_device(x.device())?)
        };
        // The places before the last axis of `x` times a table.
        let product = |x: &Tensor, table: &Tensor| -> Result<Tensor> { Ok(x.contiguous()?.reshape(((), table.dim(0)?))?.matmul(table)?) };
        let [analyse, synthesise] = [Scale::Mean, Scale::Twice].map(|scale| self.waves.across_f64(scale));
        let down = table(self.waves.turns(), (2 * n, 2 * k))?;
        let u = product(&x.reshape((rows, n, m, c))?.permute((0, 1, 3, 2))?, &table(analyse, (2 * l, m))?.t()?.contiguous()?)?;
        let s = product(&u.reshape((rows, n, c, l, 2))?.permute((0, 3, 2, 1, 4))?, &down)?;
        let s = s.reshape((rows, l, c, k, 2))?.permute((3, 1, 0, 4, 2))?.contiguous()?.reshape((k * l, rows * 2, c))?;
        let q = s.matmul(&weight.reshape((k * l, c, 2 * o))?)?.reshape((k * l, rows, 2, 2, o))?;
        let part = |row: usize, column: usize| -> candle_core::Result<Tensor> { q.narrow(2, row, 1)?.narrow(3, column, 1) };
        let y = Tensor::cat(&[(part(0, 0)? - part(1, 1)?)?, (part(0, 1)? + part(1, 0)?)?], 2)?;
        let y = y.reshape((k, l, rows, 2, o))?.permute((2, 1, 4, 0, 3))?;
        let t = product(&y, &down.t()?.contiguous()?)?;
        let y = product(&t.reshape((rows, l, o, n, 2))?.permute((0, 3, 2, 1, 4))?, &table(synthesise, (2 * l, m))?)?;
        let y = y.reshape((rows, n, o, m))?.permute((0, 1, 3, 2))?;
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(&bias.to_dtype(x.dtype())?)?,
            None => y,
        };
        Ok(Values::floats(y.contiguous()?.reshape((rows, n * m * o))?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], [c, o]) = (operands(self.name(), x)?, self.channels);
        let ([n, m], [k, l]) = (self.waves.grid, self.waves.kept);
        let turned = |graph: &mut Graph, x: Value, axes: &[usize]| graph.of(Operator::Transpose(axes.to_vec()), x);
        let product = |graph: &mut Graph, x: Value, (table, rows): (Value, usize)| {
            let x = graph.of(Operator::Reshape(vec![-1, rows as i64]), x);
            graph.node(Operator::MatMul, &[x, table])
        };
        let shaped = |graph: &mut Graph, x: Value, shape: &[usize]| {
            let shape = std::iter::once(-1).chain(shape.iter().map(|n| *n as i64)).collect();
            graph.of(Operator::Reshape(shape), x)
        };
        // Tables are computed where they are used: cosines and sines of places times frequencies.
        let places = |count: usize| (0..count).map(|place| place as f32).collect::<Vec<_>>();
        let [cos, sin] = angles(graph, &places(n), &(0..k).map(|row| row as f32 - (k / 2) as f32).collect::<Vec<_>>(), n)?;
        let minus_sin = graph.of(Operator::Neg, sin);
        let pair = |graph: &mut Graph, of: [Value; 2], shape: [usize; 4]| {
            let of = of.map(|x| graph.of(Operator::Reshape(shape.map(|n| n as i64).to_vec()), x));
            graph.node(Operator::Concat { axis: 3 }, &of)
        };
        let turns = [pair(graph, [cos, minus_sin], [n, 1, k, 1]), pair(graph, [sin, cos], [n, 1, k, 1])];
        let turns = graph.node(Operator::Concat { axis: 1 }, &turns);
        let down = graph.of(Operator::Reshape([2 * n, 2 * k].map(|n| n as i64).to_vec()), turns);
        let up = turned(graph, down, &[1, 0]);
        let [cos, sin] = angles(graph, &places(m), &places(l), m)?;
        let minus_sin = graph.of(Operator::Neg, sin);
        let analyse = pair(graph, [cos, minus_sin], [1, m, l, 1]);
        let counts = (0..l).map(|l| if l == 0 || 2 * l == m { 1.0f32 } else { 2.0 }).collect::<Vec<_>>();
        let counts = graph.constant(Tensor::from_vec(counts, (l, 1), &Device::Cpu)?);
        let synthesise = graph.mul(analyse, counts);
        let mean = graph.float(1.0 / (n * m) as f32);
        let analyse = graph.mul(analyse, mean);
        let [analyse, synthesise] = [analyse, synthesise].map(|x| graph.of(Operator::Reshape([m, 2 * l].map(|n| n as i64).to_vec()), x));
        let synthesise = turned(graph, synthesise, &[1, 0]);
        let x = shaped(graph, x, &[n, m, c]);
        let x = turned(graph, x, &[0, 1, 3, 2]);
        let u = product(graph, x, (analyse, m));
        let u = shaped(graph, u, &[n, c, l, 2]);
        let u = turned(graph, u, &[0, 3, 2, 1, 4]);
        let s = product(graph, u, (down, 2 * n));
        let s = shaped(graph, s, &[l, c, k, 2]);
        let s = turned(graph, s, &[3, 1, 0, 4, 2]);
        let s = graph.of(Operator::Reshape(vec![(k * l) as i64, -1, c as i64]), s);
        let weight = self.stored.formula(graph)?;
        let weight = graph.of(Operator::Slice { axis: 0, start: self.first, len: k }, weight);
        let weight = graph.of(Operator::Slice { axis: 1, start: 0, len: l }, weight);
        let weight = graph.of(Operator::Reshape([k * l, c, 2 * o].map(|n| n as i64).to_vec()), weight);
        let q = graph.node(Operator::MatMul, &[s, weight]);
        let q = graph.of(Operator::Reshape(vec![(k * l) as i64, -1, 2, 2 * o as i64]), q);
        let mut part = |row: usize, column: usize| {
            let row = graph.of(Operator::Slice { axis: 2, start: row, len: 1 }, q);
            graph.of(Operator::Slice { axis: 3, start: column * o, len: o }, row)
        };
        let [rr, ri, ir, ii] = [part(0, 0), part(0, 1), part(1, 0), part(1, 1)];
        let (re, im) = (graph.sub(rr, ii), graph.add(ri, ir));
        let y = graph.node(Operator::Concat { axis: 2 }, &[re, im]);
        let y = graph.of(Operator::Reshape(vec![k as i64, l as i64, -1, 2, o as i64]), y);
        let y = turned(graph, y, &[2, 1, 4, 0, 3]);
        let t = product(graph, y, (up, 2 * k));
        let t = shaped(graph, t, &[l, o, n, 2]);
        let t = turned(graph, t, &[0, 3, 2, 1, 4]);
        let y = product(graph, t, (synthesise, 2 * l));
        let y = shaped(graph, y, &[n, o, m]);
        let mut y = turned(graph, y, &[0, 1, 3, 2]);
        if let Some(bias) = &self.bias {
            let bias = graph.tensor(bias)?;
            y = graph.add(y, bias);
        }
        graph::floats(shaped(graph, y, &[n * m * o]))
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        #[cfg(feature = "cuda")]
        if x.iter().all(|x| x.device().is_cuda() && super::is_fused(x)) {
            let [x] = operands(self.name(), x)?;
            return Ok(Values::floats(tensors::convolve(self, x)?));
        }
        self.reference(pass, x, ids)
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, out, [lines, folded, s, q]) = (wires.x[0], wires.out[0], operands(self.name(), &wires.scratch)?);
        let layers = self.layers()?;
        let weights = layers.iter().map(|layer| packer.pack(layer, self.channels[0])).collect::<Result<Vec<PackedMatrix>>>()?;
        let bias = self.bias.as_ref().map(|bias| packer.values(bias)).transpose()?.unwrap_or_default();
        let (waves, [c, o], mean) = (self.waves.clone(), self.channels, self.waves.mean_mode());
        let ([n, _], [_, across]) = (waves.grid, waves.kept);
        let costs = waves.costs();
        Ok(Some(Box::new(move |frame, threads| {
            let rows = frame.rows;
            let at = |slot, r: usize| {
                let (data, stride) = frame.output(slot);
                OutPointer { data: data.wrapping_add(r * stride), stride: 0 }
            };
            let read = |slot, r| frame.row(slot, r);
            cpu::share_rows(threads, rows * n, costs[0] * c, |i| {
                let (r, h) = (i / n, i % n);
                // SAFETY: every line of a row is written by one part, into the row's own scratch.
                unsafe { waves.across(Scale::Mean, read(x, r), c, h, at(lines, r)) };
            });
            cpu::share_rows(threads, rows * across, costs[1] * c, |i| {
                let (r, l) = (i / across, i % across);
                // SAFETY: a part writes the columns of its own waves across.
                unsafe { waves.down(read(lines, r), c, l..l + 1, at(folded, r), (at(s, r), 2 * c)) };
            });
            cpu::share_rows(threads, weights.len(), rows * 8 * c * o / 10, |mode| {
                for r in 0..rows {
                    let q = at(q, r).data.wrapping_add(mode * 4 * o);
                    // SAFETY: a part writes the coefficients of its own modes: two rows of two times as many values as there are outputs.
                    unsafe {
                        let out = OutPointer { data: q, stride: 2 * o };
                        let panels = 0..weights[mode].panel_count();
                        linear_block(&weights[mode], Activation::None, (&read(s, r)[mode * 2 * c..], c), 0..2, panels, out);
                        let q = std::slice::from_raw_parts_mut(q, 4 * o);
                        finish_mode(q);
                        if mode == mean {
                            q.iter_mut().zip(&bias).for_each(|(q, bias)| *q += bias);
                        }
                    }
                }
            });
            cpu::share_rows(threads, rows * across, costs[1] * o, |i| {
                let (r, l) = (i / across, i % across);
                // SAFETY: as above.
                unsafe { waves.up((read(q, r), 4 * o), o, l..l + 1, at(folded, r), at(lines, r)) };
            });
            cpu::share_rows(threads, rows * n, costs[0] * o, |i| {
                let (r, h) = (i / n, i % n);
                // SAFETY: every line of a row is written by one part.
                unsafe { waves.along(Scale::Twice, read(lines, r), o, h, at(out, r)) };
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (scratch, channels): ([_; 4], _) = (operands(self.name(), &wires.scratch)?, self.channels);
        let transforms = cuda::Transforms::new(&self.waves, compiler.device())?;
        let parameters = [compiler.vector(&self.weight)?, compiler.vector_or_none(self.bias.as_ref())?];
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let (size, fields) = ((pass.dtype, pass.rows(), channels), [x, out].map(|slot| pass.matrix(slot)));
            // SAFETY: the plan gives all matrices the rows of the pass, and the parameters live as long as the steps.
            Ok(unsafe { transforms.pass(pass.gpu, size, fields, scratch.map(|slot| pass.matrix(slot)), parameters) }?)
        })))
    }

    /// Coefficients are f32: they are sums over all places.
    fn wide(&self, wires: &Wires) -> Vec<crate::exec::program::Slot> {
        wires.scratch.clone()
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::OnTape::new(self, wires, tape)?)))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let ([c, o], modes) = (self.channels, self.waves.modes());
        let flop = size.rows() * (self.waves.flop() * (c + o) as f64 + (8 * modes * c * o) as f64);
        let weights = (4 * self.weight.elem_count()) as f64;
        Ok(Work { name: self.name(), flop, bytes: weights + size.values(wires), weights: None })
    }
}
