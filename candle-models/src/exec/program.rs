//! A model written down once: its operations in order, over buffers whose lives are known. Executors compile it.
//!
//! [`Recorder`] is an executor that computes nothing. It notes every operation with its parameters and the buffers that it reads
//! and writes. Then operations absorb the ones behind them where the target has them as one; only now are the lives of buffers known.
//! Buffers share memory where their lives do not overlap, so a pass works in little memory and allocates none.
//!
//! ```
//! use candle_models::Result;
//! use candle_models::candle_core::{DType, Device};
//! use candle_models::engine;
//! use candle_models::exec::{Executor, program::Output};
//! use candle_models::network::{Layers, Network};
//! use candle_models::signature::{Signature, TensorSpec};
//!
//! struct Twice;
//!
//! impl Layers for Twice {
//!     fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
//!         let x = e.input("x")?;
//!         Ok(vec![Output::Floats(e.add(&x, &x)?)])
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let [inputs, outputs] = ["x", "y"].map(|name| vec![TensorSpec::f32(name, &[2])]);
//! let signature = Signature { inputs, outputs, state: Vec::new() };
//! let model = Network::of(("twice", &()), signature, &Device::Cpu, Twice)?;
//! let work = engine::work(&model, 8, 1, DType::F32)?; // what was written down, counted
//! assert_eq!(work.iter().map(|operation| operation.name).collect::<Vec<_>>(), ["add"]);
//! # Ok(())
//! # }
//! ```

use super::operation::{Operation, Target};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::DType;
use std::sync::Arc;

/// Buffers start at multiples of this many values a row, so that every row of a usual width starts on a cache line.
const ALIGN: usize = 16;

/// A matrix of the pass: some columns of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    /// Columns.
    pub(crate) width: usize,
}

impl Slot {
    /// How many columns it has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Some of the columns.
    pub(crate) fn columns(self, start: usize, width: usize) -> Self {
        Self { start: self.start + start, width, ..self }
    }
}

/// An index matrix of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSlot {
    /// Columns of index matrices that lie before it.
    pub(crate) at: usize,
    /// Columns.
    pub(crate) columns: usize,
}

impl IndexSlot {
    /// How many columns it has.
    pub fn columns(&self) -> usize {
        self.columns
    }
}

/// An input or output of a model, as an executor holds it; by default as the recorder does.
#[derive(Debug, Clone, Copy)]
pub enum Output<V = Slot, I = IndexSlot> {
    /// Floats.
    Floats(V),
    /// Indices.
    Indices(I),
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
    /// First and last operation that touches it; [`UNUSED`] where none does.
    life: (usize, usize),
    /// Place among the buffers, in values a row.
    pub at: usize,
}

/// The life of a buffer that nobody touches: what an operation made that has been absorbed.
const UNUSED: (usize, usize) = (usize::MAX, 0);

/// A state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePlace {
    /// Its number in the signature.
    pub(crate) number: usize,
    /// Where it begins in a sequence's row of states.
    pub(crate) at: usize,
    pub(crate) width: usize,
}

/// What an operation reads and writes in a pass. Matrices of different names never share memory: results lie apart from operands.
#[derive(Debug, Clone, Default)]
pub struct Wires {
    pub(crate) x: Vec<Slot>,
    pub(crate) ids: Vec<IndexSlot>,
    pub(crate) states: Vec<StatePlace>,
    pub(crate) out: Vec<Slot>,
    pub(crate) out_ids: Vec<IndexSlot>,
    pub(crate) scratch: Vec<Slot>,
}

impl Wires {
    /// Its operands of floats.
    pub fn x(&self) -> &[Slot] {
        &self.x
    }

    /// Its operands of indices.
    pub fn ids(&self) -> &[IndexSlot] {
        &self.ids
    }

    /// Its states.
    pub fn states(&self) -> &[StatePlace] {
        &self.states
    }

    /// Its results of floats.
    pub fn out(&self) -> &[Slot] {
        &self.out
    }

    /// Its results of indices.
    pub fn out_ids(&self) -> &[IndexSlot] {
        &self.out_ids
    }

    /// What it works in.
    pub fn scratch(&self) -> &[Slot] {
        &self.scratch
    }
}

/// An operation of a program.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub op: Arc<dyn Operation>,
    pub wires: Wires,
}

/// A recorded model.
#[derive(Debug)]
pub(crate) struct Program {
    pub(super) signature: Signature,
    pub(super) nodes: Vec<Node>,
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
    pub fn new(signature: &Signature, target: Target, record: impl FnOnce(&mut Recorder) -> Result<Vec<Output>>) -> Result<Self> {
        let mut recorder = Recorder::new(signature, target);
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
    nodes: Vec<Node>,
    pub(super) target: Target,
}

impl Recorder {
    fn new(signature: &Signature, target: Target) -> Self {
        let mut recorder = Self { buffers: Vec::new(), columns: 0, inputs: Vec::new(), states: Vec::new(), nodes: Vec::new(), target };
        for spec in &signature.inputs {
            let slot = match spec.dtype() {
                DType::U32 => Output::Indices(recorder.index_slot(spec.width())),
                _ => Output::Floats(recorder.slot(spec.width())),
            };
            recorder.inputs.push((spec.clone(), slot));
        }
        let mut at = 0;
        for (number, spec) in signature.state.iter().enumerate() {
            recorder.states.push(StatePlace { number, at, width: spec.width() });
            at += spec.width();
        }
        recorder
    }

    /// An input by name and kind.
    pub(super) fn find(&self, name: &str, dtype: DType) -> Result<Output> {
        let found = self.inputs.iter().find(|(s, _)| s.name == name && s.dtype() == dtype);
        found.map(|(_, slot)| *slot).ok_or_else(|| Error::tensor(name, format!("an input of {dtype:?}"), "none of that name"))
    }

    /// A new matrix, written by the operation that is recorded next.
    pub(super) fn slot(&mut self, width: usize) -> Slot {
        self.buffers.push(Buffer { width, life: UNUSED, at: 0 });
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

    /// Adds an operation.
    pub(super) fn push(&mut self, op: Arc<dyn Operation>, wires: Wires) {
        self.nodes.push(Node { op, wires });
    }

    fn finish(mut self, signature: Signature, outputs: Vec<Output>) -> Result<Program> {
        let kinds = |o: &Output| match o {
            Output::Floats(_) => (DType::F32, o.width()),
            Output::Indices(_) => (DType::U32, o.width()),
        };
        let (found, expected): (Vec<_>, Vec<_>) =
            (outputs.iter().map(kinds).collect(), signature.outputs.iter().map(|s| (s.dtype(), s.width())).collect());
        if found != expected {
            return Err(Error::Input(format!("the outputs of a pass: expected {expected:?} as in the signature, found {found:?}")));
        }
        let inputs: Vec<Output> = self.inputs.into_iter().map(|(_, slot)| slot).collect();
        let nodes = fuse(self.nodes, &outputs, self.target);
        set_lives(&mut self.buffers, (&inputs, &outputs), &nodes);
        let width = place(&mut self.buffers);
        Ok(Program { signature, nodes, buffers: self.buffers, inputs, outputs, width, columns: self.columns })
    }
}

/// Lets operations absorb the ones behind them that alone read what they make.
fn fuse(nodes: Vec<Node>, outputs: &[Output], target: Target) -> Vec<Node> {
    let all: Vec<Wires> = nodes.iter().map(|node| node.wires.clone()).collect();
    let reads = |wires: &Wires, slot: &Slot| wires.x.iter().filter(|x| x.buffer == slot.buffer).count();
    let reads_ids = |wires: &Wires, slot: &IndexSlot| wires.ids.iter().filter(|x| x.at == slot.at).count();
    let alone = |own: &Wires, next: &Wires| {
        let is_output = outputs.iter().any(|output| match output {
            Output::Floats(slot) => own.out.iter().any(|own| own.buffer == slot.buffer),
            Output::Indices(slot) => own.out_ids.iter().any(|own| own.at == slot.at),
        });
        let floats = own.out.iter().all(|slot| all.iter().map(|w| reads(w, slot)).sum::<usize>() == reads(next, slot));
        let ids = own.out_ids.iter().all(|slot| all.iter().map(|w| reads_ids(w, slot)).sum::<usize>() == reads_ids(next, slot));
        !is_output && floats && ids
    };
    let mut fused: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let one = fused.last().filter(|last| alone(&last.wires, &node.wires));
        match one.and_then(|last| last.op.absorb(&last.wires, (&*node.op, &node.wires), target)) {
            Some((op, wires)) => {
                fused.pop();
                fused.push(Node { op, wires });
            }
            None => fused.push(node),
        }
    }
    fused
}

/// From the first to the last operation that touches a buffer. Inputs come before the first, outputs are read behind the last.
fn set_lives(buffers: &mut [Buffer], (inputs, outputs): (&[Output], &[Output]), nodes: &[Node]) {
    let mut touch = |slot: &Slot, now: usize| {
        let (first, last) = buffers[slot.buffer].life;
        buffers[slot.buffer].life = (first.min(now), last.max(now));
    };
    for (slots, now) in [(inputs, 0), (outputs, nodes.len())] {
        for output in slots {
            if let Output::Floats(slot) = output {
                touch(slot, now);
            }
        }
    }
    for (now, Node { wires, .. }) in nodes.iter().enumerate() {
        [&wires.x, &wires.out, &wires.scratch].into_iter().flatten().for_each(|slot| touch(slot, now));
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
