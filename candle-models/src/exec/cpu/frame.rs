//! A pass in progress on the CPU: an arena with the buffers of a program, and the sequences.

use super::super::program::{Buffer, IndexSlot, Output, Program, Sequence, Slot, StatePlace};
use crate::ops::{OutPointer, Rows};

/// Row `b * steps + t` is frame t of sequence b.
pub struct Frame<'a> {
    buffers: &'a [Buffer],
    arena: *mut f32,
    indices: *mut u32,
    pub(crate) rows: usize,
    pub(crate) steps: usize,
    sequences: &'a [Sequence],
}

// SAFETY: threads of a step read what earlier steps have written and write rows or columns of their own.
unsafe impl Sync for Frame<'_> {}

// A pass has many threads on one arena: a frame hands out the rows that its callers have promised to own.
#[allow(clippy::mut_from_ref)]
impl<'a> Frame<'a> {
    /// The frame of a pass over sequences of equal length.
    ///
    /// # Safety
    /// The slices of the sequences are valid, as long as the signature and the length say, and nobody else uses them.
    pub(crate) unsafe fn new(program: &'a Program, sequences: &'a [Sequence], (arena, indices): (&'a mut [f32], &'a mut [u32])) -> Self {
        // SAFETY: the caller's promise.
        let steps = sequences.first().map_or(0, |s| unsafe { &*s.resets }.len());
        let rows = sequences.len() * steps;
        assert!(arena.len() >= program.width * rows && indices.len() >= program.columns * rows, "the arena is too small for {rows} rows");
        Self { buffers: &program.buffers, arena: arena.as_mut_ptr(), indices: indices.as_mut_ptr(), rows, steps, sequences }
    }

    /// Copies the inputs into the arena.
    pub(crate) fn load(&self, program: &Program) {
        for (b, sequence) in self.sequences.iter().enumerate() {
            // SAFETY: the promise of `new`.
            let (mut floats, mut indices) = unsafe { (&*sequence.floats, &*sequence.indices) };
            for input in &program.inputs {
                match *input {
                    Output::Floats(slot) => {
                        let (values, rest) = floats.split_at(self.steps * slot.width);
                        floats = rest;
                        for (t, row) in values.chunks_exact(slot.width).enumerate() {
                            // SAFETY: no step runs yet, and every row is written once.
                            unsafe { self.row_mut(slot, b * self.steps + t) }.copy_from_slice(row);
                        }
                    }
                    Output::Indices(slot) => {
                        let (values, rest) = indices.split_at(self.steps * slot.columns);
                        indices = rest;
                        for (t, row) in values.chunks_exact(slot.columns).enumerate() {
                            // SAFETY: as above.
                            unsafe { self.ids_mut(slot, b * self.steps + t) }.copy_from_slice(row);
                        }
                    }
                }
            }
        }
    }

    /// Copies the outputs out of the arena.
    pub(crate) fn store(&self, program: &Program) {
        for (b, sequence) in self.sequences.iter().enumerate() {
            // SAFETY: the promise of `new`.
            let (mut floats, mut indices) = unsafe { (&mut *sequence.out_floats, &mut *sequence.out_indices) };
            for output in &program.outputs {
                match *output {
                    Output::Floats(slot) => {
                        let (values, rest) = floats.split_at_mut(self.steps * slot.width);
                        floats = rest;
                        for (t, row) in values.chunks_exact_mut(slot.width).enumerate() {
                            row.copy_from_slice(self.row(slot, b * self.steps + t));
                        }
                    }
                    Output::Indices(slot) => {
                        let (values, rest) = indices.split_at_mut(self.steps * slot.columns);
                        indices = rest;
                        for (t, row) in values.chunks_exact_mut(slot.columns).enumerate() {
                            row.copy_from_slice(self.ids(slot, b * self.steps + t));
                        }
                    }
                }
            }
        }
    }

    /// A value. No part of the step that calls it may write to it: its outputs are other buffers, which `place` keeps apart.
    pub(crate) fn rows(&self, slot: Slot) -> Rows<'_> {
        let (at, stride) = self.place(slot);
        // SAFETY: the buffer lies inside the arena, and a value with rows has its last column inside its last row.
        let data = unsafe { std::slice::from_raw_parts(self.arena.add(at), (self.rows * stride).saturating_sub(slot.start)) };
        Rows { data, rows: self.rows, width: slot.width, stride }
    }

    /// One row of a value.
    pub(crate) fn row(&self, slot: Slot, r: usize) -> &[f32] {
        self.rows(slot).row(r)
    }

    /// The frames of sequence `b`.
    pub(crate) fn sequence(&self, slot: Slot, b: usize) -> Rows<'_> {
        let rows = self.rows(slot);
        Rows { data: &rows.data[b * self.steps * rows.stride..], rows: self.steps, ..rows }
    }

    /// Where the frames of sequence `b` of an output lie.
    pub(crate) fn sequence_at(&self, slot: Slot, b: usize) -> OutPointer {
        let (data, stride) = self.output(slot);
        // SAFETY: the sequence's rows lie inside the buffer.
        OutPointer { data: unsafe { data.add(b * self.steps * stride) }, stride }
    }

    /// Where an output lies and how far its rows are apart.
    pub(crate) fn output(&self, slot: Slot) -> (*mut f32, usize) {
        let (at, stride) = self.place(slot);
        // SAFETY: the buffer lies inside the arena.
        (unsafe { self.arena.add(at) }, stride)
    }

    /// One row of an output.
    ///
    /// # Safety
    /// The slot is an output of the step, and no other part of the step uses the row.
    pub(crate) unsafe fn row_mut(&self, slot: Slot, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        let (data, stride) = self.output(slot);
        // SAFETY: row r lies inside the buffer.
        unsafe { std::slice::from_raw_parts_mut(data.add(r * stride), slot.width) }
    }

    /// One row of an index matrix.
    pub(crate) fn ids(&self, slot: IndexSlot, r: usize) -> &[u32] {
        assert!(r < self.rows);
        // SAFETY: row r lies inside the matrix.
        unsafe { std::slice::from_raw_parts(self.indices.add(slot.at * self.rows + r * slot.columns), slot.columns) }
    }

    /// One row of an index matrix that the step writes.
    ///
    /// # Safety
    /// As for [`Self::row_mut`].
    pub(crate) unsafe fn ids_mut(&self, slot: IndexSlot, r: usize) -> &mut [u32] {
        assert!(r < self.rows);
        // SAFETY: row r lies inside the matrix.
        unsafe { std::slice::from_raw_parts_mut(self.indices.add(slot.at * self.rows + r * slot.columns), slot.columns) }
    }

    /// All rows of it, one behind the other.
    ///
    /// # Safety
    /// As for [`Self::row_mut`], of every row.
    pub(crate) unsafe fn all_ids_mut(&self, slot: IndexSlot) -> &mut [u32] {
        // SAFETY: the matrix lies inside the arena of indices.
        unsafe { std::slice::from_raw_parts_mut(self.indices.add(slot.at * self.rows), self.rows * slot.columns) }
    }

    /// How many sequences there are.
    pub(crate) fn batch(&self) -> usize {
        self.sequences.len()
    }

    /// One reset per frame of sequence `b`.
    pub(crate) fn resets(&self, b: usize) -> &[bool] {
        // SAFETY: the promise of `Frame::new`.
        unsafe { &*self.sequences[b].resets }
    }

    /// A state of sequence `b`.
    ///
    /// # Safety
    /// No other part of the step uses that state of that sequence.
    pub(crate) unsafe fn state(&self, b: usize, StatePlace { at, width, .. }: StatePlace) -> &mut [f32] {
        // SAFETY: the promises of `Frame::new` and of the caller.
        let all = unsafe { &mut *self.sequences[b].state };
        &mut all[at..at + width]
    }

    /// Where a state of sequence `b` begins.
    pub(crate) fn state_at(&self, b: usize, StatePlace { at, width, .. }: StatePlace) -> *mut f32 {
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
