//! A sparse estimate of a channel `H`: a few paths, each a direction of arrival and one of departure, that explain measurements `y_t = w_t^H H f_t` at a
//! known signal-to-noise ratio, before anything is learned. It has no parameters. Gradients go back to the measurements from what beams are made of: the first pair of vectors and the paths
//! that are told, or the beams to receive with and their logits; what layers read besides hands none back, and the SNR has none.
//!
//! A row is `2.4 y_t w_t` of every measurement, `[T, 2 N]`: the unit-norm beam `w_t` of N antennas that it was received with, times what was received; zeros
//! where nothing was measured. Beside it is the SNR, in dB over 30. The beams `f_t` of M antennas that they were sent with are the same for all rows.
//! Directions lie on a grid of `A` at the receiver and `D` at the transmitter, so many for each antenna, equally far apart in the sine of their angle; `a_r` and
//! `b_s` are their steering vectors. It is a matching pursuit (Mallat and Zhang 1993) that does not choose: every step finds how likely a path is to lie at each pair of
//! directions, the other paths and the noise explaining the rest, and goes on with all of them, each as strong as it is likely. After the `K` paths the first
//! few may be looked for again, now that those behind them are known. What is found depends on where it began; it may begin at several places, each a pair of directions
//! near which the first path is kept until it is looked for again, and the estimate is then the mean of what is found from all of them. The places are the pairs that
//! alone explain most (`|m|^2 / (2 + q)` below), none of them within a beam's width of one before it. The step of a path, `U` others being still to come, has
//!
//! ```text
//! x_rs[t] = (w_t^H a_r) (b_s^H f_t)                                what a path of gain 1 would give
//! R       = (s + 1.5 U) I + sum gamma_rs x_rs x_rs^H               the covariance of all but this path; s is 1 / SNR, or more (below)
//! m, q    = x_rs^H R^-1 y, x_rs^H R^-1 x_rs
//! p_rs   ~= exp(c |m|^2 / (2 + q)) / sqrt(1 + q / 2)               the posterior, the gain having variance 1 / 2
//! h_rs    = m / (2 + q)                                             the gain in the mean, and
//! gamma_rs = p_rs (|h_rs|^2 + 1 / (2 + q))                          its second moment, in the other steps' sum over all paths but theirs
//! ```
//!
//! `s` is no less than a given share of the mean of `|y|^2`: paths between the directions of a grid leave more of what was received where that is strong, and a covariance
//! that is far enough from singular keeps 32 bits from deciding between likelihoods.
//!
//! `c` is 1 for the likelihood itself; `0.7 / (1 + 1 / (5 SNR))` is less sure, as it should be: directions lie between those of the grid, beams that were
//! chosen by what had been measured are alike, and the other paths are no white noise. Of the last step the means `p h` are kept, and
//! `H = sum (p_rs h_rs + gamma_rs x_rs^H R^-1 (y - sum x p h)) a_r b_s^H`
//! with what the other paths make of the rest. The result has, one behind the other:
//!
//! - for a transmitter that forms a beam of its own:
//!   - of five paths that together make the first `v` below, what a [`SteeredBeam`](super::SteeredBeam) reads, by matching pursuit: 15 values;
//!   - `sqrt(N) u` and `sqrt(M) v` of the strongest pair of singular vectors of `H`, by steps of the power method; the same of the second, times its share
//!     of the singular values: `4 N + 4 M`;
//! - for one that has C beams `f_c` to choose among:
//!   - `sqrt(N) H f_c / |H f_c|` of each, the beam to receive it with: `2 N C`;
//!   - the logarithms of their shares of `sum |H f_c|^2`, `3 log(share + 1e-5)`: C;
//! - the part of the power of `y` that is left: 1;
//! - the shares of the `A` and the `D` directions in `gamma`, as `1 + 0.15 log(p + 1e-5)`.

mod beams;
#[cfg(feature = "cuda")]
mod cuda;
mod formula;
mod gradient;
mod hermitian;
mod passes;
mod reference;
#[cfg(test)]
mod tests;

use super::array::Array;
use super::complex::inner_f64;
use super::user::SNR_SCALE;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, RowGradients, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::ops::contiguous;
use crate::{Error, Result};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor};
use passes::{Estimate, Kept};
use std::sync::Arc;

/// The variance of a path's gain.
const GAIN: f64 = 0.5;
/// The power that every path which has not been looked for yet is taken to add to the noise.
const UNFOUND: f64 = 1.5;
/// The exponent of the likelihood of a pair of directions that is excluded.
const NEVER: f64 = -1e9;
/// The exponent of likelihoods where there is no noise, and the noise at which it is half of that.
const CERTAIN: f64 = 0.7;
const DOUBT: f64 = 5.0;
/// The least power of the noise that is assumed, which also covers paths between the directions of a grid, and the largest.
const NOISE: [f64; 2] = [0.01, 1e3];
/// The share of a beam's power at which the direction of a path is halved: one of rounding errors alone would be arbitrary, and goes to 0.
const NOTHING: f64 = 1e-8;
/// Steps of the power method.
const STEPS: usize = 4;
/// What is added to powers that something is divided by, and to a share before its logarithm.
const LEAST: f64 = 1e-9;
const LEAST_PROBABILITY: f64 = 1e-5;
/// The factor of logarithms of shares in the result: the least share is about -0.7 there.
const LOGARITHM: f64 = 0.15;
/// The factor of those that are the logits of choices.
const LOGIT: f64 = 3.0;

/// The operation: two operands.
#[derive(Debug, Clone)]
pub struct SparseChannel {
    pursuit: Pursuit,
    tables: Arc<Tables>,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pursuit {
    /// Paths (K).
    pub paths: usize,
    /// How many of them are looked for again in the end, from the first on.
    pub again: usize,
    /// Directions of the grids for each antenna.
    pub directions: usize,
    /// Places that the first path is kept near, one after the other, for the mean of what is found from all of them: at most 8. With none it is looked for
    /// everywhere, once.
    pub places: usize,
    /// The least share of the mean power of the measurements that is taken for noise, less than 1.
    pub unexplained: f64,
}

impl Pursuit {
    fn steps(self) -> usize {
        self.paths + self.again
    }

    /// Passes: how often all steps are made.
    fn starts(self) -> usize {
        self.places.max(1)
    }

    /// The path that a step is of.
    fn path(self, step: usize) -> usize {
        step % self.paths
    }

    /// The power that is taken for noise, of noise of that power and measurements of this one in the mean.
    fn assumed(self, noise: f64, received: f64) -> f64 {
        noise.max(self.unexplained * received)
    }

    /// The power that a step takes for noise: that of the noise, and of the paths that have not been looked for yet.
    fn noise(self, noise: f64, step: usize) -> f64 {
        noise + UNFOUND * self.paths.saturating_sub(step + 1) as f64
    }
}

/// What measurements are compared with. Complex numbers of the first two are side by side; of the others all real parts stand before the imaginary ones.
#[derive(Debug)]
struct Tables {
    /// Antennas of the receiver and of the transmitter.
    antennas: [usize; 2],
    /// Steering vectors of the grids, `[A, N, 2]` and `[D, M, 2]`.
    steering: [Vec<f32>; 2],
    /// The beams that measurements were sent with, `[T, M, 2]`.
    beams: Vec<f32>,
    /// The number of each among the B that differ: a sweep comes back to its beams.
    numbers: Vec<usize>,
    /// Of every entry of a packed matrix of measurements, the entry for their beams in a packed one of beams, and by how much it is multiplied, `[T^2]`.
    places: Vec<(usize, f32)>,
    /// Beams that the transmitter chooses among, `[C, M, 2]`; none where it forms one of its own.
    choices: Vec<f32>,
    /// `s s^H` of every direction of the transmitter, `s_t = b^H f_t` of the beams that differ, packed as in `hermitian`: `[D, B^2]`.
    pairs: Vec<f32>,
    /// What makes `sum_t c_t conj(s_t)` of `c` `[2, B]`: `[2, B, 2, D]`.
    sent: Vec<f32>,
    /// What makes `sum_s c_s conj(b_s)` of `c` `[2, D]`: `[2, D, 2, M]`.
    leaving: Vec<f32>,
}

impl Tables {
    fn measurements(&self) -> usize {
        self.numbers.len()
    }

    /// Beams that differ (B).
    fn differing(&self) -> usize {
        self.sent.len() / (4 * self.directions()[1])
    }

    fn choices(&self) -> usize {
        self.choices.len() / (2 * self.antennas[1])
    }

    /// Pairs of directions (A D).
    fn grid(&self) -> usize {
        self.directions().iter().product()
    }

    /// Directions at the receiver and at the transmitter.
    fn directions(&self) -> [usize; 2] {
        [0, 1].map(|end| self.steering[end].len() / (2 * self.antennas[end]))
    }
}

/// The power of the noise at so many dB over [`SNR_SCALE`].
fn noise(level: f64) -> f64 {
    10f64.powf(-0.1 * level * f64::from(SNR_SCALE)).clamp(NOISE[0], NOISE[1])
}

/// The exponent of likelihoods at this power of the noise.
fn certainty(noise: f64) -> f64 {
    CERTAIN / (1.0 + noise / DOUBT)
}

/// Whether two of so many directions, in a circle, are at most so many steps apart.
fn near(a: usize, b: usize, count: usize, steps: usize) -> bool {
    let apart = a.abs_diff(b);
    apart.min(count - apart) <= steps
}

/// Steering vectors of a grid of so many antennas, `[A, N, 2]`.
fn steering(antennas: usize, directions: usize) -> Vec<f32> {
    let array = Array::Ula { elements: antennas };
    let mut all = vec![0.0; directions * 2 * antennas];
    for (direction, vector) in all.chunks_exact_mut(2 * antennas).enumerate() {
        array.response(2.0 * direction as f64 / directions as f64 - 1.0, 0.0, vector);
    }
    all
}

/// What makes `sum_k c_k conj(x_k)` of `c` `[2, K]` for `x` `[K, n, 2]`, by one product: `[2, K, 2, n]`.
fn conjugated(x: &[f32], n: usize) -> Vec<f32> {
    let rows = |f: fn([f32; 2]) -> [f32; 2]| {
        x.chunks_exact(2 * n)
            .flat_map(move |x| [0, 1].into_iter().flat_map(move |part| x.chunks_exact(2).map(move |x| f([x[0], x[1]])[part])))
    };
    rows(|[re, im]| [re, -im]).chain(rows(|[re, im]| [im, re])).collect()
}

impl SparseChannel {
    /// Paths that the transmitter is told: more than a channel has, so that a beam which is spread over likely directions is told as well.
    pub const TOLD: usize = 5;
    /// The most places that an estimate may begin at.
    pub const PLACES: usize = 8;

    /// Of paths between a linear array of `receive` antennas half a wavelength apart and one of `transmit`, which sends `beams` `[T, M, 2]`
    /// and in the end one of `choices` `[C, M, 2]`, or where there are none a beam of its own.
    ///
    /// # Errors
    /// If no path is looked for, more of them again than there are, from more places than there are apart or than 8, all that is received is taken for noise, there are no antennas, or no beams of so many
    /// numbers.
    pub fn new(pursuit: Pursuit, [receive, transmit]: [usize; 2], beams: &[f32], choices: &[f32]) -> Result<Self> {
        let whole = |beams: &[f32]| beams.len().is_multiple_of(2 * transmit);
        let Pursuit { paths, again, directions, places, unexplained } = pursuit;
        // What lies near a place, of all directions of an array.
        let around = |antennas: usize| (2 * directions + 1).min(directions * antennas);
        if paths == 0
            || again > paths
            || places > Self::PLACES
            || places.saturating_sub(1) * around(receive) * around(transmit) >= (directions * receive * directions * transmit).max(1)
            || !(0.0..1.0).contains(&unexplained)
            || directions == 0
            || receive == 0
            || transmit == 0
            || beams.is_empty()
            || !whole(beams)
            || !whole(choices)
        {
            let found = [beams, choices].map(<[f32]>::len);
            return Err(Error::Input(format!(
                "sparse channel: expected a path or more, no more of them again, directions, at most {} places that lie apart, a share of what is received below 1, antennas, and beams [T, {transmit}, 2], found {pursuit:?}, {receive} and {transmit} antennas, {found:?} numbers",
                Self::PLACES
            )));
        }
        let steering = [receive, transmit].map(|antennas| steering(antennas, directions * antennas));
        let mut differing: Vec<&[f32]> = Vec::new();
        let mut numbers = Vec::new();
        for beam in beams.chunks_exact(2 * transmit) {
            numbers.push(differing.iter().position(|other| *other == beam).unwrap_or(differing.len()));
            if numbers.last() == Some(&differing.len()) {
                differing.push(beam);
            }
        }
        let count = differing.len();
        let seen = |b: &[f32]| differing.iter().map(|f| inner_f64(b, f).map(|x| x as f32)).collect::<Vec<_>>();
        let seen: Vec<Vec<[f32; 2]>> = steering[1].chunks_exact(2 * transmit).map(seen).collect();
        let mut pairs = vec![0.0; seen.len() * count * count];
        for (s, pairs) in seen.iter().zip(pairs.chunks_exact_mut(count * count)) {
            let s: Vec<f32> = [0, 1].into_iter().flat_map(|part| s.iter().map(move |s| s[part])).collect();
            hermitian::outer(&s, pairs);
        }
        let by_beam: Vec<f32> = (0..count).flat_map(|t| seen.iter().flat_map(move |s| s[t])).collect();
        let sent = conjugated(&by_beam, seen.len());
        let leaving = conjugated(&steering[1], transmit);
        let places = hermitian::places(&numbers, count);
        let (antennas, beams, choices) = ([receive, transmit], beams.to_vec(), choices.to_vec());
        let tables = Tables { antennas, steering, beams, numbers, places, choices, pairs, sent, leaving };
        Ok(Self { pursuit, tables: Arc::new(tables) })
    }

    /// Values of a row of measurements.
    pub fn inputs(&self) -> usize {
        self.tables.measurements() * 2 * self.tables.antennas[0]
    }

    /// Values that the transmitter is told, which the result begins with.
    pub fn told(&self) -> usize {
        if self.tables.choices.is_empty() { 3 * Self::TOLD } else { 0 }
    }

    /// Beams to choose among (C).
    pub fn choices(&self) -> usize {
        self.tables.choices()
    }

    /// Values of a row that it makes.
    pub fn outputs(&self) -> usize {
        let ([n, m], c) = (self.tables.antennas, self.choices());
        self.told() + if c > 0 { c * (2 * n + 1) } else { 4 * (n + m) } + 1 + self.tables.directions().iter().sum::<usize>()
    }

    /// Multiply-adds of a row, as the engine computes them.
    fn products(&self) -> usize {
        let ([n, m], [arrivals, departures], t) = (self.tables.antennas, self.tables.directions(), self.tables.measurements());
        let differing = self.tables.differing();
        let match_all = 4 * differing * arrivals * departures;
        let moments = differing * differing * arrivals * departures + 4 * t * t * arrivals;
        let step = 2 * moments + match_all + 4 * t * t * t;
        // There are no other paths in the first step, and all passes have it in common.
        let pass = (self.pursuit.steps() - 1) * step + 2 * match_all;
        step - moments + self.pursuit.starts() * pass + arrivals * (4 * departures * m + 4 * n * m)
    }
}

impl RowGradients for SparseChannel {
    fn forward(&self, x: &[&[f32]], y: &mut [f32]) {
        let (tables, pursuit) = (&*self.tables, self.pursuit);
        passes::with_scratch(Estimate::size(tables, pursuit, Kept::NONE) + beams::size(tables), |mut memory| {
            let mut estimate = Estimate::new(tables, pursuit, Kept::NONE, (x[0], x[1][0]), &mut memory);
            beams::say(tables, &mut estimate, memory, y);
        });
    }

    fn backward(&self, x: &[&[f32]], _: &[f32], dy: &[f32], dx: &mut [&mut [f32]]) {
        gradient::of(&self.tables, self.pursuit, (x[0], x[1][0]), dy, dx[0]);
        dx[1].fill(0.0);
    }
}

impl Operation for SparseChannel {
    fn name(&self) -> &'static str {
        "sparse_channel"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x, snr] = operands(self.name(), x)?;
        same_width(self.name(), x, self.inputs())?;
        same_width(self.name(), snr, 1)?;
        Ok(Widths::floats(self.outputs()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [x, snr] = operands(self.name(), x)?;
        let snr = snr.detach().to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let rows = x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
        let found = rows.apply_op1(OnTensors { op: self.clone(), snr })?;
        Ok(Values::floats(found.to_dtype(x.dtype())?.to_device(x.device())?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        graph::floats(formula::of(self, graph, operands(self.name(), x)?)?)
    }

    fn compile(&self, _: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (op, micros) = (self.clone(), 2e-5 * self.products() as f32);
        Ok(Some(packer.for_rows(micros, move |x, y| {
            op.forward(&[x.x(0), x.x(1)], y.floats(0));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let Some(arguments) = cuda::Arguments::new(&self.tables, self.pursuit, compiler)? else { return Ok(None) };
        Ok(Some(compiler.with_narrow([wires.x[0], wires.x[1]], wires.out[0], move |pass, [x, snr], out| {
            let arguments = arguments.of([x, snr, out].map(|slot| pass.matrix(slot)));
            // SAFETY: the plan gives the matrices the rows of the pass and the dtype of the launch.
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

/// The estimate by its definition, of rows of measurements on the host with an SNR each.
struct OnTensors {
    op: SparseChannel,
    snr: Vec<f32>,
}

impl CustomOp1 for OnTensors {
    fn name(&self) -> &'static str {
        "sparse_channel"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let of_row = |(x, snr): (&[f32], &f32)| {
            let row: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            reference::estimate(&self.op.tables, self.op.pursuit, &row, noise(f64::from(*snr)))
        };
        let found = contiguous(x, layout)?.chunks_exact(self.op.inputs()).zip(&self.snr).flat_map(of_row).map(|x| x as f32).collect();
        Ok((CpuStorage::F32(found), (self.snr.len(), self.op.outputs()).into()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let [rows, grad] = [x, grad].map(|x| x.flatten_all()?.to_vec1::<f32>());
        let (rows, grad) = (rows?, grad?);
        let mut found = vec![0.0; rows.len()];
        let (inputs, outputs) = (self.op.inputs(), self.op.outputs());
        let each = rows.chunks_exact(inputs).zip(&self.snr).zip(grad.chunks_exact(outputs)).zip(found.chunks_exact_mut(inputs));
        each.for_each(|(((x, snr), dy), dx)| gradient::of(&self.op.tables, self.op.pursuit, (x, *snr), dy, dx));
        Ok(Some(Tensor::from_vec(found, x.shape(), x.device())?))
    }
}
