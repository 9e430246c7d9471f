//! Matching pursuit (Mallat and Zhang 1993) among pairs of directions: which paths of a channel `H` explain measurements `y_t = w_t^H H f_t`, before
//! anything is learned. It has no parameters, and stops gradients.
//!
//! A row is `y_t w_t` of every measurement, `[T, 2 N]`: the unit-norm beam `w_t` of N antennas that it was received with, times what was received; zeros
//! where nothing was measured. The beams `f_t` of M antennas that they were sent with are the same for all rows. Directions lie on a grid of `2 N` at the
//! receiver and `2 M` at the transmitter, equally far apart in the sine of their angle; `a_r` and `b_s` are their steering vectors. One path is taken after
//! the other, of what the paths before it leave, `e`, at first `y`:
//!
//! ```text
//! g_t(r, s) = (w_t^H a_r) (b_s^H f_t)                             what a path of gain 1 would give
//! rho       = |sum conj(g_t) e_t|^2 / (sum |g_t|^2 sum |e_t|^2)   the part of e that it explains with the best gain
//! p(r, s)  ~  1 / (1.1 - rho)^32                                  how likely it is that this is the path
//! u, v      = sum p a_r, sum p b_s                                where it arrives and leaves, in between the directions of the grid too
//! e_t      -= alpha (w_t^H u) (v^H f_t)                           with the gain of least squares
//! ```
//!
//! Of every path the result has `alpha u`, `v`, the part of the power of `y` that is left, and the probabilities of the `2 N` and the `2 M` directions as
//! `1 + 0.15 log(p + 1e-5)`: `4 N + 4 M + 1` values.

#[cfg(feature = "cuda")]
mod cuda;
mod formula;
mod search;
#[cfg(test)]
mod tests;

use super::array::Array;
use super::complex::inner_f64;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::{D, DType, Device, Tensor};
use std::sync::Arc;

/// Directions of the grid for each antenna.
const FINE: usize = 2;
/// A likelihood has 1 + this less what is explained, so that one that explains everything does not hide all others.
const MISFIT: f64 = 0.1;
/// The power of a likelihood, itself a power of 2. Gaussian noise of unknown strength would give the number of measurements, commonly 16; with 32 the means
/// below are those of few directions, and decisions learn better from them. `MISFIT` to that power, over all pairs, has to be within f32.
const SHARPNESS: u32 = 32;
/// As if a path of gain 1 gave so much more, as a part of the mean of all: a direction that no beam sees explains nothing.
const UNSEEN: f64 = 0.1;
/// What a path of gain 1 gives at least, so that one that no beam sees has no gain.
const WEAK: f64 = 1e-3;
/// What is added to powers that something is divided by, and to a probability before its logarithm.
const LEAST: f64 = 1e-9;
const LEAST_PROBABILITY: f64 = 1e-5;
/// The slope of a logarithm as it is said: one of the least probability is about -0.7.
const LOGARITHM: f64 = 0.15;

/// The operation: one operand.
#[derive(Debug, Clone)]
pub struct Pursuit {
    /// Paths that are looked for.
    paths: usize,
    tables: Arc<Tables>,
}

/// What measurements are compared with.
#[derive(Debug)]
struct Tables {
    /// Antennas of the receiver and of the transmitter.
    antennas: [usize; 2],
    /// Steering vectors of the grids, `[2 N, N, 2]` and `[2 M, M, 2]`.
    steering: [Vec<f32>; 2],
    /// The beams that measurements were sent with, `[T, M, 2]`.
    beams: Vec<f32>,
    /// `b_s^H f_t` `[T, 2, columns]`, real parts before imaginary ones, with zeros behind the `2 M` directions.
    sent: Vec<f32>,
    /// The sum of its squares over all directions, `[T]`.
    power: Vec<f32>,
    /// 1 for every direction of the transmitter, and 0 behind the last, `[columns]`.
    there: Vec<f32>,
}

impl Tables {
    fn measurements(&self) -> usize {
        self.power.len()
    }

    /// Directions at the receiver and at the transmitter.
    fn directions(&self) -> [usize; 2] {
        self.antennas.map(|antennas| FINE * antennas)
    }

    /// Numbers of a measurement in `sent`.
    fn columns(&self) -> usize {
        search::columns(self.directions()[1])
    }
}

/// Steering vectors of the grid of so many antennas, `[2 N, N, 2]`.
fn steering(antennas: usize) -> Vec<f32> {
    let (array, directions) = (Array::Ula { elements: antennas }, FINE * antennas);
    let mut all = vec![0.0; directions * 2 * antennas];
    for (direction, vector) in all.chunks_exact_mut(2 * antennas).enumerate() {
        array.response(2.0 * direction as f64 / directions as f64 - 1.0, 0.0, vector);
    }
    all
}

impl Pursuit {
    /// Of measurements at a linear array of `receive` antennas half a wavelength apart, sent by one of `transmit` with `beams` `[T, M, 2]`.
    ///
    /// # Errors
    /// If there are no paths to look for, no antennas, or no beams of so many numbers.
    pub fn new(paths: usize, [receive, transmit]: [usize; 2], beams: &[f32]) -> Result<Self> {
        if paths == 0 || receive == 0 || transmit == 0 || beams.is_empty() || !beams.len().is_multiple_of(2 * transmit) {
            let found = beams.len();
            return Err(Error::Input(format!(
                "pursuit: expected a path or more, antennas, and beams [T, {transmit}, 2], found {paths} paths, {receive} and {transmit} antennas, {found} numbers"
            )));
        }
        let grids = [receive, transmit].map(steering);
        let (directions, measurements) = (FINE * transmit, beams.len() / (2 * transmit));
        let columns = search::columns(directions);
        let (mut sent, mut power) = (vec![0.0; measurements * 2 * columns], vec![0.0; measurements]);
        for ((f, sent), power) in beams.chunks_exact(2 * transmit).zip(sent.chunks_exact_mut(2 * columns)).zip(&mut power) {
            let mut squares = 0.0;
            for (s, b) in grids[1].chunks_exact(2 * transmit).enumerate() {
                let [re, im] = inner_f64(b, f);
                (sent[s], sent[columns + s]) = (re as f32, im as f32);
                squares += re * re + im * im;
            }
            *power = squares as f32;
        }
        let there = (0..columns).map(|s| if s < directions { 1.0 } else { 0.0 }).collect();
        let tables = Tables { antennas: [receive, transmit], steering: grids, beams: beams.to_vec(), sent, power, there };
        Ok(Self { paths, tables: Arc::new(tables) })
    }

    /// Values of a row that it reads.
    pub fn inputs(&self) -> usize {
        self.tables.measurements() * 2 * self.tables.antennas[0]
    }

    /// Values of a row that it makes.
    pub fn outputs(&self) -> usize {
        self.paths * self.each()
    }

    /// Values of a path.
    fn each(&self) -> usize {
        2 * self.tables.antennas.iter().sum::<usize>() + self.tables.directions().iter().sum::<usize>() + 1
    }

    /// Multiply-adds of a row.
    fn products(&self) -> usize {
        let ([receive, transmit], t) = (self.tables.directions(), self.tables.measurements());
        t * receive * (2 * receive + self.paths * 5 * transmit)
    }
}

impl RowGradients for Pursuit {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        search::paths(&self.tables, x[0], y.chunks_exact_mut(self.each()));
    }

    fn backward(&self, _: &[&[f32]], _: &[f32], _: &[f32], dx: &mut [&mut [f32]]) {
        dx[0].fill(0.0);
    }
}

/// Real and imaginary parts, whatever they belong to.
#[derive(Clone)]
struct Complex([Tensor; 2]);

impl Complex {
    /// Of numbers side by side on the last axis.
    fn of(x: &Tensor) -> Result<Self> {
        let mut shape = x.dims().to_vec();
        let last = shape.len() - 1;
        shape[last] /= 2;
        shape.push(2);
        let x = x.reshape(shape)?;
        let part = |i| x.narrow(last + 1, i, 1).and_then(|x| x.squeeze(last + 1)?.contiguous());
        Ok(Self([part(0)?, part(1)?]))
    }

    /// Side by side on the last axis.
    fn joined(&self) -> Result<Tensor> {
        let Self([re, im]) = self;
        Ok(Tensor::stack(&[re, im], re.rank())?.flatten_from(re.rank() - 1)?)
    }

    fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        Ok(Self([f(&self.0[0])?, f(&self.0[1])?]))
    }

    /// `a b` by a product that is bilinear.
    fn times(&self, other: &Self, product: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        let (Self([a, b]), Self([c, d])) = (self, other);
        Ok(Self([(product(a, c)? - product(b, d)?)?, (product(a, d)? + product(b, c)?)?]))
    }

    fn conjugate(&self) -> Result<Self> {
        Ok(Self([self.0[0].clone(), self.0[1].neg()?]))
    }

    fn squares(&self) -> Result<Tensor> {
        Ok((self.0[0].sqr()? + self.0[1].sqr()?)?)
    }
}

impl Operation for Pursuit {
    fn name(&self) -> &'static str {
        "pursuit"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width(self.name(), x, self.inputs())?;
        Ok(Widths::floats(self.outputs()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [given] = operands(self.name(), x)?;
        // Sums of many squares: f32 at least.
        let dtype = if given.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let (x, tables) = (given.detach().to_dtype(dtype)?, &self.tables);
        let ([receive, transmit], t) = (tables.antennas, tables.measurements());
        let rows = x.dim(0)?;
        let complex = |values: &[f32], shape: [usize; 2]| {
            let all = Tensor::from_slice(values, (shape[0], 2 * shape[1]), &Device::Cpu)?;
            Complex::of(&all.to_dtype(dtype)?.to_device(x.device())?)
        };
        let [arrive, leave] = [0, 1].map(|end| complex(&tables.steering[end], [tables.directions()[end], tables.antennas[end]]));
        let (arrive, leave, beams) = (arrive?, leave?, complex(&tables.beams, [t, transmit])?);

        let x = x.reshape((rows, t, 2 * receive))?;
        let y = (x.sqr()?.sum(2)? + 1e-24)?.sqrt()?;
        // The beams, each turned by the phase of what was received: every measurement is real.
        let w = Complex::of(&x.broadcast_div(&y.unsqueeze(2)?)?)?;
        let by = |a: &Tensor, b: &Tensor| a.broadcast_matmul(b);
        let seen = arrive.times(&w.conjugate()?.map(|w| w.transpose(1, 2))?, by)?; // w_t^H a_r [rows, 2 N, T]
        let sent = leave.conjugate()?.times(&beams.map(Tensor::t)?, by)?.map(Tensor::t)?; // b_s^H f_t [T, 2 M]
        let power = seen.squares()?.broadcast_matmul(&sent.squares()?)?; // [rows, 2 N, 2 M]
        let floor = ((power.mean_keepdim((1, 2))? * UNSEEN)? + LEAST)?;
        let power = power.broadcast_add(&floor)?;
        let whole = (y.sqr()?.sum_keepdim(1)? + LEAST)?;
        let mut left = Complex([y.clone(), y.zeros_like()?]);
        let mut found = Vec::with_capacity(5 * self.paths);
        for _ in 0..self.paths {
            let energy = (left.squares()?.sum_keepdim(1)? + LEAST)?;
            let e = left.map(|e| e.unsqueeze(1))?;
            let matched = seen.conjugate()?.times(&e, Tensor::broadcast_mul)?.times(&sent.conjugate()?, by)?;
            let explained = (matched.squares()? / &power)?.broadcast_div(&energy.unsqueeze(2)?)?;
            let misfit = explained.affine(-1.0, 1.0 + MISFIT)?.maximum(MISFIT)?;
            let likelihood = misfit.recip()?.powf(f64::from(SHARPNESS))?;
            let p = likelihood.broadcast_div(&likelihood.sum_keepdim((1, 2))?)?;
            let [arrives, leaves] = [p.sum(2)?, p.sum(1)?];
            let (u, v) = (arrive.map(|a| arrives.matmul(a))?, leave.map(|b| leaves.matmul(b))?);
            let at = w.conjugate()?.times(&u.map(|u| u.unsqueeze(2))?, by)?.map(|x| x.squeeze(2))?;
            let from = v.conjugate()?.times(&beams.map(Tensor::t)?, by)?;
            let g = at.times(&from, |a, b| a * b)?;
            let size = (g.squares()?.sum_keepdim(1)? + WEAK)?;
            let gain = g.conjugate()?.times(&left, |a, b| a * b)?.map(|x| x.sum_keepdim(1)? / &size)?;
            let explained = g.times(&gain, Tensor::broadcast_mul)?;
            left = Complex([(&left.0[0] - &explained.0[0])?, (&left.0[1] - &explained.0[1])?]);
            found.extend([u.times(&gain, Tensor::broadcast_mul)?.joined()?, v.joined()?, (left.squares()?.sum_keepdim(1)? / &whole)?]);
            for p in [arrives, leaves] {
                found.push((p + LEAST_PROBABILITY)?.log()?.affine(LOGARITHM, 1.0)?);
            }
        }
        Ok(Values::floats(Tensor::cat(&found, D::Minus1)?.to_dtype(given.dtype())?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [x] = operands(self.name(), x)?;
        graph::floats(formula::of(self, graph, x)?)
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (self.clone(), 5e-5 * self.products() as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let Some(arguments) = cuda::Arguments::new(&self.tables, self.paths, compiler)? else { return Ok(None) };
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let arguments = arguments.of([pass.matrix(x), pass.matrix(out)]);
            // SAFETY: the plan gives both matrices the rows of the pass and the dtype of the launch.
            Ok(unsafe { arguments.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        tape.rows(wires, self.clone())
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = 2.0 * size.rows() * self.products() as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }
}
