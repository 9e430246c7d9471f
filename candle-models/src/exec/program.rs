//! A model recorded once as a list of steps over buffers whose places are known: what CPU inference runs.
//!
//! [`Recorder`] is an executor that computes nothing: it packs the weights and writes down, for every operation, a step that
//! reads and writes buffers of an arena. Buffers share memory where their lives do not overlap, so a pass works in little
//! memory and allocates none. A program needs neither the model nor its tensors, and any number of threads can run it.

use crate::exec::pool::Threads;
use crate::ops::{OutPointer, Rows};
use crate::tensors::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::DType;

/// Buffers start at multiples of this many floats a row, so that every row of a usual width starts on a cache line.
const ALIGN: usize = 16;

/// A matrix of the pass: some columns of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    buffer: usize,
    start: usize,
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
#[derive(Debug, Clone, Copy)]
pub struct IndexSlot {
    at: usize,
    /// Columns.
    pub(super) columns: usize,
}

/// An output of a model.
#[derive(Debug, Clone, Copy)]
pub enum Output {
    /// Floats.
    Floats(Slot),
    /// Indices.
    Indices(IndexSlot),
}

struct Buffer {
    width: usize,
    /// First and last step that touches it.
    life: (usize, usize),
    /// Place in the arena, in floats a row.
    at: usize,
}

type Run = Box<dyn Fn(&Frame, &mut Threads) -> Result<()> + Send + Sync>;

struct Step {
    name: &'static str,
    run: Run,
}

/// A recorded model.
pub struct Program {
    signature: Signature,
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    inputs: Vec<Output>,
    outputs: Vec<Output>,
    /// Floats and indices that a row of a pass takes in the arena.
    width: usize,
    columns: usize,
    bytes: usize,
}

/// One sequence of a batch: where its inputs, outputs and states lie.
///
/// Inputs, states and outputs lie one behind the other in the signature's order; an input or output `[T, width]`.
/// Raw slices, so that a batch can be formed every frame without allocation.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
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
    pub fn new(signature: &Signature, record: impl FnOnce(&mut Recorder) -> Result<Vec<Output>>) -> Result<Self> {
        let mut recorder = Recorder::new(signature);
        let outputs = record(&mut recorder)?;
        recorder.finish(signature.clone(), outputs)
    }

    /// What the model eats, gives and carries.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Names of the steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.steps.iter().map(|s| s.name)
    }

    /// Floats and indices of a pass over `rows` rows.
    pub(super) fn arena(&self, rows: usize) -> (usize, usize) {
        (self.width * rows, self.columns * rows)
    }

    /// One pass over sequences of equal length; `after` sees every step's number when it is done.
    ///
    /// # Safety
    /// The slices of the sequences are valid, as long as the signature and the length say, and nobody else uses them.
    pub(super) unsafe fn run(
        &self,
        sequences: &[Sequence],
        (arena, indices): (&mut [f32], &mut [u32]),
        threads: &mut Threads,
        mut after: impl FnMut(usize),
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let steps = sequences.first().map_or(0, |s| unsafe { &*s.resets }.len());
        let rows = sequences.len() * steps;
        let (floats, ints) = self.arena(rows);
        assert!(arena.len() >= floats && indices.len() >= ints, "the arena is too small for {rows} rows");
        let frame = Frame { buffers: &self.buffers, arena: arena.as_mut_ptr(), indices: indices.as_mut_ptr(), rows, steps, sequences };
        self.load(&frame);
        for (i, step) in self.steps.iter().enumerate() {
            (step.run)(&frame, threads)?;
            after(i);
        }
        self.store(&frame);
        Ok(())
    }

    /// Copies the inputs into the arena.
    fn load(&self, frame: &Frame) {
        for (b, sequence) in frame.sequences.iter().enumerate() {
            // SAFETY: the promise of `run`.
            let (mut floats, mut indices) = unsafe { (&*sequence.floats, &*sequence.indices) };
            for input in &self.inputs {
                match *input {
                    Output::Floats(slot) => {
                        let (values, rest) = floats.split_at(frame.steps * slot.width);
                        floats = rest;
                        for (t, row) in values.chunks_exact(slot.width).enumerate() {
                            // SAFETY: no step runs yet, and every row is written once.
                            unsafe { frame.row_mut(slot, b * frame.steps + t) }.copy_from_slice(row);
                        }
                    }
                    Output::Indices(slot) => {
                        let (values, rest) = indices.split_at(frame.steps * slot.columns);
                        indices = rest;
                        for (t, row) in values.chunks_exact(slot.columns).enumerate() {
                            // SAFETY: as above.
                            unsafe { frame.ids_mut(slot, b * frame.steps + t) }.copy_from_slice(row);
                        }
                    }
                }
            }
        }
    }

    /// Copies the outputs out of the arena.
    fn store(&self, frame: &Frame) {
        for (b, sequence) in frame.sequences.iter().enumerate() {
            // SAFETY: the promise of `run`.
            let (mut floats, mut indices) = unsafe { (&mut *sequence.out_floats, &mut *sequence.out_indices) };
            for output in &self.outputs {
                match *output {
                    Output::Floats(slot) => {
                        let (values, rest) = floats.split_at_mut(frame.steps * slot.width);
                        floats = rest;
                        for (t, row) in values.chunks_exact_mut(slot.width).enumerate() {
                            row.copy_from_slice(frame.row(slot, b * frame.steps + t));
                        }
                    }
                    Output::Indices(slot) => {
                        let (values, rest) = indices.split_at_mut(frame.steps * slot.columns);
                        indices = rest;
                        for (t, row) in values.chunks_exact_mut(slot.columns).enumerate() {
                            row.copy_from_slice(frame.ids(slot, b * frame.steps + t));
                        }
                    }
                }
            }
        }
    }
}

/// Writes a model down. Its operations are those of [`Executor`](super::Executor).
pub struct Recorder {
    buffers: Vec<Buffer>,
    columns: usize,
    inputs: Vec<(TensorSpec, Output)>,
    /// Place of every state in a sequence's row of states, and its width.
    states: Vec<(usize, usize)>,
    steps: Vec<Step>,
    bytes: usize,
}

impl Recorder {
    fn new(signature: &Signature) -> Self {
        let mut recorder = Self { buffers: Vec::new(), columns: 0, inputs: Vec::new(), states: Vec::new(), steps: Vec::new(), bytes: 0 };
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

    /// A new matrix, written by the step that is recorded next.
    pub(super) fn slot(&mut self, width: usize) -> Slot {
        let now = self.steps.len();
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
    pub(super) fn state(&self, state: usize) -> Result<(usize, usize)> {
        self.states.get(state).copied().ok_or_else(|| Error::Input(format!("state {state} of {}", self.states.len())))
    }

    /// Counts weights that a step holds.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Adds a step that reads `reads`. Its outputs are the slots made since the step before.
    pub(super) fn record(
        &mut self,
        name: &'static str,
        reads: &[Slot],
        run: impl Fn(&Frame, &mut Threads) -> Result<()> + Send + Sync + 'static,
    ) {
        let now = self.steps.len();
        reads.iter().for_each(|s| self.buffers[s.buffer].life.1 = now);
        self.steps.push(Step { name, run: Box::new(run) });
    }

    fn finish(mut self, signature: Signature, outputs: Vec<Output>) -> Result<Program> {
        let kinds = |o: &Output| match o {
            Output::Floats(s) => (DType::F32, s.width),
            Output::Indices(s) => (DType::U32, s.columns),
        };
        let (found, expected): (Vec<_>, Vec<_>) =
            (outputs.iter().map(kinds).collect(), signature.outputs.iter().map(|s| (s.dtype, s.width())).collect());
        if found != expected {
            return Err(Error::Input(format!("the outputs of a pass: expected {expected:?} as in the signature, found {found:?}")));
        }
        let end = self.steps.len();
        for output in &outputs {
            if let Output::Floats(slot) = output {
                self.buffers[slot.buffer].life.1 = end;
            }
        }
        let width = place(&mut self.buffers);
        let inputs = self.inputs.into_iter().map(|(_, slot)| slot).collect();
        Ok(Program {
            signature,
            steps: self.steps,
            buffers: self.buffers,
            inputs,
            outputs,
            width,
            columns: self.columns,
            bytes: self.bytes,
        })
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

/// A pass in progress: the arena with its buffers, and the sequences. Row `b * steps + t` is frame t of sequence b.
pub(super) struct Frame<'a> {
    buffers: &'a [Buffer],
    arena: *mut f32,
    indices: *mut u32,
    pub rows: usize,
    pub steps: usize,
    sequences: &'a [Sequence],
}

// SAFETY: threads of a step read what earlier steps have written and write rows or columns of their own.
unsafe impl Sync for Frame<'_> {}

// A pass has many threads on one arena: a frame hands out the rows that its callers have promised to own.
#[allow(clippy::mut_from_ref)]
impl Frame<'_> {
    /// A value. No part of the step that calls it may write to it: its outputs are other buffers, which `place` keeps apart.
    pub fn rows(&self, slot: Slot) -> Rows<'_> {
        let (at, stride) = self.place(slot);
        // SAFETY: the buffer lies inside the arena, and a value with rows has its last column inside its last row.
        let data = unsafe { std::slice::from_raw_parts(self.arena.add(at), (self.rows * stride).saturating_sub(slot.start)) };
        Rows { data, rows: self.rows, width: slot.width, stride }
    }

    /// One row of a value.
    pub fn row(&self, slot: Slot, r: usize) -> &[f32] {
        self.rows(slot).row(r)
    }

    /// The frames of sequence `b`.
    pub fn sequence(&self, slot: Slot, b: usize) -> Rows<'_> {
        let rows = self.rows(slot);
        Rows { data: &rows.data[b * self.steps * rows.stride..], rows: self.steps, ..rows }
    }

    /// Where the frames of sequence `b` of an output lie.
    pub fn sequence_at(&self, slot: Slot, b: usize) -> OutPointer {
        let (data, stride) = self.output(slot);
        // SAFETY: the sequence's rows lie inside the buffer.
        OutPointer { data: unsafe { data.add(b * self.steps * stride) }, stride }
    }

    /// Where an output lies and how far its rows are apart.
    pub fn output(&self, slot: Slot) -> (*mut f32, usize) {
        let (at, stride) = self.place(slot);
        // SAFETY: the buffer lies inside the arena.
        (unsafe { self.arena.add(at) }, stride)
    }

    /// One row of an output.
    ///
    /// # Safety
    /// The slot is an output of the step, and no other part of the step uses the row.
    pub unsafe fn row_mut(&self, slot: Slot, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        let (data, stride) = self.output(slot);
        // SAFETY: row r lies inside the buffer.
        unsafe { std::slice::from_raw_parts_mut(data.add(r * stride), slot.width) }
    }

    /// One row of an index matrix.
    pub fn ids(&self, slot: IndexSlot, r: usize) -> &[u32] {
        assert!(r < self.rows);
        // SAFETY: row r lies inside the matrix.
        unsafe { std::slice::from_raw_parts(self.indices.add(slot.at * self.rows + r * slot.columns), slot.columns) }
    }

    /// One row of an index matrix that the step writes.
    ///
    /// # Safety
    /// As for [`Self::row_mut`].
    pub unsafe fn ids_mut(&self, slot: IndexSlot, r: usize) -> &mut [u32] {
        assert!(r < self.rows);
        // SAFETY: row r lies inside the matrix.
        unsafe { std::slice::from_raw_parts_mut(self.indices.add(slot.at * self.rows + r * slot.columns), slot.columns) }
    }

    /// How many sequences there are.
    pub fn batch(&self) -> usize {
        self.sequences.len()
    }

    /// One reset per frame of sequence `b`.
    pub fn resets(&self, b: usize) -> &[bool] {
        // SAFETY: the promise of `Program::run`.
        unsafe { &*self.sequences[b].resets }
    }

    /// A state of sequence `b`.
    ///
    /// # Safety
    /// No other part of the step uses that state of that sequence.
    pub unsafe fn state(&self, b: usize, (at, width): (usize, usize)) -> &mut [f32] {
        // SAFETY: the promises of `Program::run` and of the caller.
        let all = unsafe { &mut *self.sequences[b].state };
        &mut all[at..at + width]
    }

    /// Where a state of sequence `b` begins.
    pub fn state_at(&self, b: usize, (at, width): (usize, usize)) -> *mut f32 {
        let all = self.sequences[b].state;
        assert!(at + width <= all.len());
        // SAFETY: the state lies inside the sequence's row of states.
        unsafe { all.cast::<f32>().add(at) }
    }

    /// First value of a slot, and the distance of its rows.
    fn place(&self, slot: Slot) -> (usize, usize) {
        let buffer = &self.buffers[slot.buffer];
        (buffer.at * self.rows + slot.start, buffer.width)
    }
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
