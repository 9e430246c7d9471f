//! A model written down once: its operations in order, over buffers whose lives are known. Executors compile it.
//!
//! [`Recorder`] is an executor that computes nothing. It notes every operation with its parameters and the buffers that it reads
//! and writes; buffers share memory where their lives do not overlap, so a pass works in little memory and allocates none.

use super::Choice;
use crate::nn::{Autoregressive, Linear, Mamba, Norm};
use crate::ops::{Activation, Attention};
use crate::tensors::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{DType, Tensor};

/// Buffers start at multiples of this many values a row, so that every row of a usual width starts on a cache line.
const ALIGN: usize = 16;

/// A matrix of the pass: some columns of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub(super) buffer: usize,
    pub(super) start: usize,
    /// Columns.
    pub(super) width: usize,
}

impl Slot {
    /// Some of the columns.
    pub(super) fn columns(self, start: usize, width: usize) -> Self {
        Self { start: self.start + start, width, ..self }
    }
}

/// An index matrix of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSlot {
    /// Columns of index matrices that lie before it.
    pub(super) at: usize,
    /// Columns.
    pub(super) columns: usize,
}

/// An input or output of a model.
#[derive(Debug, Clone, Copy)]
pub enum Output {
    /// Floats.
    Floats(Slot),
    /// Indices.
    Indices(IndexSlot),
}

impl Output {
    /// Values of a row.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Floats(slot) => slot.width,
            Self::Indices(slot) => slot.columns,
        }
    }
}

/// A matrix of floats in the making.
#[derive(Debug)]
pub(super) struct Buffer {
    pub width: usize,
    /// First and last operation that touches it.
    life: (usize, usize),
    /// Place among the buffers, in values a row.
    pub at: usize,
}

/// Place of a state in a sequence's row of states, and its width.
pub(super) type StatePlace = (usize, usize);

/// An operation with its parameters, by the names of [`Executor`](super::Executor): where its operands lie, and in `out` its result.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Linear {
        x: Slot,
        layer: Linear,
        act: Activation,
        out: Slot,
    },
    LookupLinear {
        x: Slot,
        ids: IndexSlot,
        tables: Vec<Tensor>,
        layer: Linear,
        out: Slot,
    },
    Norm {
        x: Slot,
        norm: Norm,
        act: Activation,
        out: Slot,
    },
    AddRows {
        x: Slot,
        table: Tensor,
        ids: IndexSlot,
        columns: Vec<(usize, usize)>,
        act: Activation,
        out: Slot,
    },
    Add {
        a: Slot,
        b: Slot,
        out: Slot,
    },
    Gate {
        a: Slot,
        z: Slot,
        out: Slot,
    },
    Join {
        parts: Vec<Slot>,
        out: Slot,
    },
    JoinIndices {
        parts: Vec<IndexSlot>,
        out: IndexSlot,
    },
    CausalConv {
        x: Slot,
        weight: Tensor,
        bias: Tensor,
        state: StatePlace,
        out: Slot,
    },
    SelectiveScan {
        u: Slot,
        dt: Slot,
        bc: Slot,
        a_log: Tensor,
        skip: Tensor,
        state: StatePlace,
        out: Slot,
    },
    /// `h` and `products` are scratch: a state and its product with the recurrent weight, a row for every sequence.
    Gru {
        x: Slot,
        hidden: Linear,
        state: StatePlace,
        h: Slot,
        products: Slot,
        out: Slot,
    },
    /// `scores` is scratch.
    Attention {
        shape: Attention,
        qkv: [Slot; 3],
        slopes: Tensor,
        states: [StatePlace; 3],
        scores: Slot,
        out: Slot,
    },
    Choose {
        logits: Slot,
        wanted: IndexSlot,
        uniform: Slot,
        choice: Choice,
        out: IndexSlot,
    },
    /// A whole block, where [`Whole`] asks for it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the executor on CUDA asks for it"))]
    Mamba {
        x: Slot,
        block: Mamba,
        states: [StatePlace; 2],
        out: Slot,
    },
    /// All heads of an action, where [`Whole`] asks for them.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the executor on CUDA asks for it"))]
    Autoregressive {
        trunk: Slot,
        heads: Autoregressive,
        classes: [IndexSlot; 2],
        uniform: Slot,
        logits: Slot,
        out: IndexSlot,
    },
}

impl Op {
    /// What a profile calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::LookupLinear { .. } => "lookup-linear",
            Self::Norm { .. } => "norm",
            Self::AddRows { .. } => "add-rows",
            Self::Add { .. } => "add",
            Self::Gate { .. } => "gate",
            Self::Join { .. } => "join",
            Self::JoinIndices { .. } => "join-indices",
            Self::CausalConv { .. } => "causal-conv",
            Self::SelectiveScan { .. } => "selective-scan",
            Self::Gru { .. } => "gru",
            Self::Attention { .. } => "attention",
            Self::Choose { .. } => "choose",
            Self::Mamba { .. } => "mamba",
            Self::Autoregressive { .. } => "autoregressive",
        }
    }

    /// The matrices of floats that it reads.
    pub fn reads(&self) -> Vec<Slot> {
        match self {
            Self::Linear { x, .. } | Self::LookupLinear { x, .. } | Self::Norm { x, .. } | Self::AddRows { x, .. } => vec![*x],
            Self::CausalConv { x, .. } | Self::Gru { x, .. } | Self::Mamba { x, .. } => vec![*x],
            Self::Add { a, b, .. } => vec![*a, *b],
            Self::Gate { a, z, .. } => vec![*a, *z],
            Self::Join { parts, .. } => parts.clone(),
            Self::JoinIndices { .. } => Vec::new(),
            Self::SelectiveScan { u, dt, bc, .. } => vec![*u, *dt, *bc],
            Self::Attention { qkv, .. } => qkv.to_vec(),
            Self::Choose { logits, uniform, .. } => vec![*logits, *uniform],
            Self::Autoregressive { trunk, uniform, .. } => vec![*trunk, *uniform],
        }
    }
}

/// Blocks that an executor runs as one operation; the others are written in smaller ones.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Whole {
    /// A Mamba block of one frame.
    pub mamba: bool,
    /// All heads of an action.
    pub autoregressive: bool,
    /// A product and the sum right behind it.
    pub residual: bool,
}

/// A recorded model.
#[derive(Debug)]
pub(crate) struct Program {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the executor on CUDA asks for it"))]
    pub(super) signature: Signature,
    pub(super) ops: Vec<Op>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) inputs: Vec<Output>,
    pub(super) outputs: Vec<Output>,
    /// Floats and indices that a row of a pass takes.
    pub(super) width: usize,
    pub(super) columns: usize,
}

/// One sequence of a batch: where its inputs, outputs and states lie.
///
/// Inputs, states and outputs lie one behind the other in the signature's order; an input or output `[T, width]`.
/// Raw slices, so that a batch can be formed every frame without allocation.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    /// The number of its state, for an executor that keeps states elsewhere: below the number that the executor was made for.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the executor on CUDA asks for it"))]
    pub slot: u32,
    pub floats: *const [f32],
    pub indices: *const [u32],
    pub resets: *const [bool],
    pub state: *mut [f32],
    pub out_floats: *mut [f32],
    pub out_indices: *mut [u32],
}

// SAFETY: a sequence is a set of addresses; who runs it promises that they are valid and disjoint.
unsafe impl Send for Sequence {}
// SAFETY: as above.
unsafe impl Sync for Sequence {}

impl Program {
    /// Records a model: `record` runs it on the recorder and returns its outputs in the signature's order.
    pub fn new(signature: &Signature, whole: Whole, record: impl FnOnce(&mut Recorder) -> Result<Vec<Output>>) -> Result<Self> {
        let mut recorder = Recorder::new(signature, whole);
        let outputs = record(&mut recorder)?;
        recorder.finish(signature.clone(), outputs)
    }
}

/// Writes a model down. Its operations are those of [`Executor`](super::Executor).
pub struct Recorder {
    buffers: Vec<Buffer>,
    columns: usize,
    inputs: Vec<(TensorSpec, Output)>,
    states: Vec<StatePlace>,
    ops: Vec<Op>,
    pub(super) whole: Whole,
}

impl Recorder {
    fn new(signature: &Signature, whole: Whole) -> Self {
        let mut recorder = Self { buffers: Vec::new(), columns: 0, inputs: Vec::new(), states: Vec::new(), ops: Vec::new(), whole };
        for spec in &signature.inputs {
            let slot = match spec.dtype {
                DType::U32 => Output::Indices(recorder.index_slot(spec.width())),
                _ => Output::Floats(recorder.slot(spec.width())),
            };
            recorder.inputs.push((spec.clone(), slot));
        }
        let mut at = 0;
        for spec in &signature.state {
            recorder.states.push((at, spec.width()));
            at += spec.width();
        }
        recorder
    }

    /// An input by name and kind.
    pub(super) fn find(&self, name: &str, dtype: DType) -> Result<Output> {
        let found = self.inputs.iter().find(|(s, _)| s.name == name && s.dtype == dtype);
        found.map(|(_, slot)| *slot).ok_or_else(|| Error::tensor(name, format!("an input of {dtype:?}"), "none of that name"))
    }

    /// A new matrix, written by the operation that is recorded next.
    pub(super) fn slot(&mut self, width: usize) -> Slot {
        let now = self.ops.len();
        self.buffers.push(Buffer { width, life: (now, now), at: 0 });
        Slot { buffer: self.buffers.len() - 1, start: 0, width }
    }

    /// A new index matrix.
    pub(super) fn index_slot(&mut self, columns: usize) -> IndexSlot {
        let at = self.columns;
        self.columns += columns;
        IndexSlot { at, columns }
    }

    /// Place and width of a state in a sequence's row of states.
    pub(super) fn state(&self, state: usize) -> Result<StatePlace> {
        self.states.get(state).copied().ok_or_else(|| Error::Input(format!("state {state} of {}", self.states.len())))
    }

    /// Adds an operation. Its outputs and scratch are the slots made since the one before.
    pub(super) fn push(&mut self, op: Op) {
        let now = self.ops.len();
        op.reads().iter().for_each(|s| self.buffers[s.buffer].life.1 = now);
        if let (true, Op::Add { a, b, .. }, Some(Op::Linear { x, out, .. })) = (self.whole.residual, &op, self.ops.last())
            && (a == out || b == out)
        {
            // The sum may be written while the product still reads.
            self.buffers[x.buffer].life.1 = now;
        }
        self.ops.push(op);
    }

    fn finish(mut self, signature: Signature, outputs: Vec<Output>) -> Result<Program> {
        let kinds = |o: &Output| match o {
            Output::Floats(_) => (DType::F32, o.width()),
            Output::Indices(_) => (DType::U32, o.width()),
        };
        let (found, expected): (Vec<_>, Vec<_>) =
            (outputs.iter().map(kinds).collect(), signature.outputs.iter().map(|s| (s.dtype, s.width())).collect());
        if found != expected {
            return Err(Error::Input(format!("the outputs of a pass: expected {expected:?} as in the signature, found {found:?}")));
        }
        let end = self.ops.len();
        for output in &outputs {
            if let Output::Floats(slot) = output {
                self.buffers[slot.buffer].life.1 = end;
            }
        }
        let width = place(&mut self.buffers);
        let inputs = self.inputs.into_iter().map(|(_, slot)| slot).collect();
        Ok(Program { signature, ops: self.ops, buffers: self.buffers, inputs, outputs, width, columns: self.columns })
    }
}

/// Gives every buffer the lowest place that no buffer alive at the same time has; returns the width of all.
fn place(buffers: &mut [Buffer]) -> usize {
    for i in 0..buffers.len() {
        let (done, rest) = buffers.split_at_mut(i);
        let buffer = &mut rest[0];
        let mut taken: Vec<(usize, usize)> = done
            .iter()
            .filter(|b| b.life.0 <= buffer.life.1 && buffer.life.0 <= b.life.1)
            .map(|b| (b.at, b.at + b.width.next_multiple_of(ALIGN)))
            .collect();
        taken.sort_unstable();
        for (start, end) in taken {
            if buffer.at + buffer.width <= start {
                break;
            }
            buffer.at = buffer.at.max(end);
        }
    }
    buffers.iter().map(|b| b.at + b.width.next_multiple_of(ALIGN)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_alive_together_lie_apart_and_dead_ones_are_reused() {
        let random = crate::random::Random::new(1);
        for round in 0..50u64 {
            let number = |i: u64, below: u32| random.at(round).below(i, below) as usize;
            let mut buffers: Vec<Buffer> = (0..40)
                .map(|i| Buffer { width: 1 + number(3 * i, 100), life: (i as usize, i as usize + number(3 * i + 1, 6)), at: 0 })
                .collect();
            let width = place(&mut buffers);
            for (i, a) in buffers.iter().enumerate() {
                assert!(a.at % ALIGN == 0 && a.at + a.width <= width);
                for b in &buffers[..i] {
                    let together = a.life.0 <= b.life.1 && b.life.0 <= a.life.1;
                    assert!(!together || a.at + a.width <= b.at || b.at + b.width <= a.at, "round {round}: overlap");
                }
            }
            assert!(width < 1000, "round {round}: {width} for at most 7 buffers of at most 112 at a time");
        }
    }
}
