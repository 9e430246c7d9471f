//! What a recorded pass computes and moves at least, counted from its operations: where a pass stands under the roofs of a machine
//! follows from this and from its time.
//!
//! A multiply-add is two operations, a division or a root one, an exponential [`EXPONENTIAL`]. A value of a row is read once and written once, a
//! weight is read once a pass, in the dtype that it is stored in or that is computed in, whichever is narrower; what a cache holds is not
//! subtracted.

use super::program::{IndexSlot, Program, Slot, StatePlace, Wires};
use crate::Result;
use crate::ops::{Format, Linear};
use candle_core::{DType, Tensor};

/// Bytes of a state, an index, and of a value that is f32 whatever the others are.
const VALUE: f64 = 4.0;
/// Floating-point operations of an exponential: the five multiply-adds of its polynomial, which any that is exact to f32 takes.
pub const EXPONENTIAL: f64 = 10.0;

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
    program.nodes.iter().map(|node| node.op.work(&node.wires, &size)).collect()
}

/// The size of a pass, and what values of it weigh.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    batch: usize,
    steps: usize,
    /// Bytes of a value between operations.
    value: f64,
}

impl Size {
    /// Rows of the pass: one for every frame of every sequence.
    pub fn rows(&self) -> f64 {
        (self.batch * self.steps) as f64
    }

    /// Bytes of a value between operations.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Bytes of a parameter that is read as f32.
    pub fn parameter(&self, tensor: &Tensor) -> f64 {
        VALUE * tensor.elem_count() as f64
    }

    /// Name and bytes of a layer's weight and bias.
    pub(crate) fn stored(&self, layer: &Linear, inputs: usize, outputs: usize) -> (&'static str, f64) {
        let (weights, bias) = ((inputs * outputs) as f64, layer.bias.as_ref().map_or(0.0, |bias| self.parameter(bias)));
        match layer.format {
            Format::F32 => ("f32", self.value.min(4.0) * weights + bias),
            Format::Bf16 => ("bf16", 2.0 * weights + bias),
            Format::Q8(_) => ("q8", weights + VALUE * outputs as f64 + bias),
        }
    }

    /// Bytes of matrices with a row for every frame.
    pub fn floats(&self, slots: &[Slot]) -> f64 {
        self.value * self.rows() * slots.iter().map(|slot| slot.width as f64).sum::<f64>()
    }

    /// Bytes of index matrices.
    pub fn indices(&self, slots: &[IndexSlot]) -> f64 {
        VALUE * self.rows() * slots.iter().map(|slot| slot.columns as f64).sum::<f64>()
    }

    /// Bytes of states that are read and written once a pass.
    pub fn states(&self, states: &[StatePlace]) -> f64 {
        2.0 * VALUE * (self.batch * states.iter().map(|state| state.width).sum::<usize>()) as f64
    }

    /// Bytes of all operands, results and states of an operation.
    pub fn values(&self, wires: &Wires) -> f64 {
        let ids = self.indices(&wires.ids) + self.indices(&wires.out_ids);
        self.floats(&wires.x) + self.floats(&wires.out) + ids + self.states(&wires.states)
    }

    /// Pairs of a frame and one that it sees, of all sequences.
    pub(crate) fn visible(&self, window: usize) -> f64 {
        let each: usize = if self.steps == 1 { window } else { (1..=self.steps).map(|t| t.min(window)).sum() };
        (self.batch * each) as f64
    }
}
