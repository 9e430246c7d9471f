//! What a recorded pass computes and moves at least, counted from its operations: where a pass stands under the roofs of a machine
//! follows from this and from its time.
//!
//! A multiply-add is two operations, an exponential, a division or a root one. A value of a row is read once and written once, a
//! weight is read once a pass, in the dtype that it is stored in or that is computed in, whichever is narrower; what a cache holds is not
//! subtracted.

use super::program::{IndexSlot, Op, Program, Slot};
use crate::Result;
use crate::nn::{Linear, Norm};
use crate::ops::{Activation, Format, NormKind};
use candle_core::{DType, Tensor};

/// Bytes of a state, an index, and of a value that is f32 whatever the others are.
const VALUE: f64 = 4.0;
/// Of a state and channel of a selective scan: decay (multiply, exponential), what comes in, the new state and its share of the
/// output (a multiply-add each).
const SCAN: f64 = 7.0;
/// Of a unit of a GRU behind its products: three gates and the mix of old and new.
const GRU_UNIT: f64 = 13.0;
/// Of a logit from which a class is drawn: the largest, an exponential, two sums.
const CHOICE: f64 = 4.0;

/// An operation of a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// The operation's name, as a profile has it.
    pub name: &'static str,
    /// Floating-point operations.
    pub flop: f64,
    /// Bytes of weights, states and values that are read or written.
    pub bytes: f64,
    /// How the weights of its product are stored, where it is one: `f32`, `bf16` or `q8`.
    pub weights: Option<&'static str>,
}

/// The operations of a pass over `batch` sequences of `steps` frames, in their order. A stream of single frames has filled the window of
/// its attention; longer sequences start anew. Values between operations are of `dtype`.
pub(crate) fn work(program: &Program, batch: usize, steps: usize, dtype: DType) -> Result<Vec<Work>> {
    let size = Size { batch, steps, value: dtype.size_in_bytes() as f64 };
    program.ops.iter().map(|op| size.of(op)).collect()
}

fn activation(act: Activation) -> f64 {
    match act {
        Activation::None => 0.0,
        Activation::Relu => 1.0,
        Activation::Silu => 4.0,
        Activation::Gelu => 5.0,
    }
}

fn normalisation(norm: &Norm) -> f64 {
    let scaled = if norm.kind == NormKind::Layer { 6.0 } else { 3.0 };
    scaled + 1.0 + if norm.bias.is_some() { 1.0 } else { 0.0 }
}

fn values(tensor: &Tensor) -> f64 {
    VALUE * tensor.elem_count() as f64
}

struct Size {
    batch: usize,
    steps: usize,
    /// Bytes of a value between operations.
    value: f64,
}

impl Size {
    fn rows(&self) -> f64 {
        (self.batch * self.steps) as f64
    }

    /// Name and bytes of a layer's weight and bias.
    fn stored(&self, layer: &Linear, inputs: usize, outputs: usize) -> (&'static str, f64) {
        let (weights, bias) = ((inputs * outputs) as f64, layer.bias.as_ref().map_or(0.0, values));
        match layer.format {
            Format::F32 => ("f32", self.value.min(4.0) * weights + bias),
            Format::Bf16 => ("bf16", 2.0 * weights + bias),
            Format::Q8(_) => ("q8", weights + VALUE * outputs as f64 + bias),
        }
    }

    /// Bytes of matrices with a row for every frame.
    fn floats(&self, slots: &[Slot]) -> f64 {
        self.value * self.rows() * slots.iter().map(|slot| slot.width as f64).sum::<f64>()
    }

    fn indices(&self, slots: &[IndexSlot]) -> f64 {
        VALUE * self.rows() * slots.iter().map(|slot| slot.columns as f64).sum::<f64>()
    }

    /// Bytes of states that are read and written once a pass.
    fn states(&self, widths: &[usize]) -> f64 {
        2.0 * VALUE * (self.batch * widths.iter().sum::<usize>()) as f64
    }

    /// Pairs of a frame and one that it sees, of all sequences.
    fn visible(&self, window: usize) -> f64 {
        let each: usize = if self.steps == 1 { window } else { (1..=self.steps).map(|t| t.min(window)).sum() };
        (self.batch * each) as f64
    }

    fn of(&self, op: &Op) -> Result<Work> {
        let rows = self.rows();
        let (flop, bytes, weights) = match op {
            Op::Linear { x, layer, act, out } => {
                let (name, weights) = self.stored(layer, x.width, out.width);
                let each = 2.0 * (x.width * out.width) as f64 + activation(*act) * out.width as f64;
                (rows * each, weights + self.floats(&[*x, *out]), Some(name))
            }
            Op::LookupLinear { x, ids, tables, layer, out } => {
                // A table's product with its columns is a table of rows to add, made when the model is prepared.
                let (name, weights) = self.stored(layer, x.width, out.width);
                let looked_up = (tables.len() * out.width) as f64;
                let each = 2.0 * (x.width * out.width) as f64 + looked_up;
                (rows * each, weights + rows * self.value * looked_up + self.floats(&[*x, *out]) + self.indices(&[*ids]), Some(name))
            }
            Op::Norm { x, norm, act, out } => {
                let each = (normalisation(norm) + activation(*act)) * out.width as f64;
                (rows * each, values(&norm.weight) + self.floats(&[*x, *out]), None)
            }
            Op::AddRows { x, columns, act, out, .. } => {
                let looked_up = (columns.len() * out.width) as f64;
                (rows * (looked_up + activation(*act) * out.width as f64), rows * self.value * looked_up + self.floats(&[*x, *out]), None)
            }
            Op::Add { a, b, out } => (rows * out.width as f64, self.floats(&[*a, *b, *out]), None),
            Op::Gate { a, z, out } => (rows * (1.0 + activation(Activation::Silu)) * out.width as f64, self.floats(&[*a, *z, *out]), None),
            Op::Join { out, .. } => (0.0, 2.0 * self.floats(&[*out]), None),
            Op::JoinIndices { out, .. } => (0.0, 2.0 * self.indices(&[*out]), None),
            Op::CausalConv { x, weight, bias, state, out } => {
                let taps = weight.dim(0)? as f64;
                let each = (2.0 * taps + activation(Activation::Silu)) * out.width as f64;
                (rows * each, values(weight) + values(bias) + self.states(&[state.1]) + self.floats(&[*x, *out]), None)
            }
            Op::SelectiveScan { u, dt, bc, a_log, state, out, .. } => {
                let each = SCAN * a_log.elem_count() as f64;
                (rows * each, values(a_log) + self.states(&[state.1]) + self.floats(&[*u, *dt, *bc, *out]), None)
            }
            Op::Gru { x, hidden, state, out, .. } => {
                let (name, weights) = self.stored(hidden, out.width, x.width);
                let each = 2.0 * (out.width * x.width) as f64 + GRU_UNIT * out.width as f64;
                (rows * each, weights + self.states(&[state.1]) + self.floats(&[*x, *out]), Some(name))
            }
            Op::Attention { shape, qkv, states, out, .. } => {
                // A multiply-add a channel for the score, one for the sum of values.
                let scores = 4.0 * self.visible(shape.window) * out.width as f64;
                let widths = states.map(|(_, width)| width);
                (scores, self.states(&widths) + self.floats(qkv) + self.floats(&[*out]), None)
            }
            Op::Choose { logits, wanted, uniform, out, .. } => {
                let bytes = self.floats(&[*logits, *uniform]) + self.indices(&[*wanted, *out]);
                (rows * CHOICE * logits.width as f64, bytes, None)
            }
            Op::Mamba { .. } | Op::Autoregressive { .. } => unreachable!("counted in the operations that they are written in"),
        };
        Ok(Work { name: op.name(), flop, bytes, weights })
    }
}
