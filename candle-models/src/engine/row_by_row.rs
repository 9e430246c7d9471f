//! Batches on a [`Runner`] of one row, sequence by sequence.

use super::execute::{Execute, Sequence};
use super::layout::Layout;
use super::{Model, Runner};
use crate::Result;
use candle_core::DType;
use std::sync::Arc;

/// Runs the sequences of a batch one after the other.
pub(super) struct RowByRow {
    runner: Runner,
    layout: Layout,
    max_batch: usize,
}

impl RowByRow {
    pub fn new(model: Arc<dyn Model>, max_batch: usize, threads: usize) -> Result<Self> {
        let layout = Layout::new(model.signature(), 1);
        Ok(Self { runner: Runner::new(model, 1, threads)?, layout, max_batch })
    }

    /// # Safety
    /// As for [`Execute::execute`].
    unsafe fn run(&mut self, sequence: &Sequence) -> Result<()> {
        // SAFETY: the caller's promise: the slices are valid, and those that are written overlap no other.
        let (floats, indices, resets) = unsafe { (&*sequence.floats, &*sequence.indices, &*sequence.resets) };
        // SAFETY: as above.
        let (state, out_floats, out_indices) = unsafe { (&mut *sequence.state, &mut *sequence.out_floats, &mut *sequence.out_indices) };
        for field in &self.layout.inputs {
            match field.spec.dtype {
                DType::U32 => self.runner.set_u32(&field.spec.name, &indices[field.range.clone()])?,
                _ => self.runner.set_f32(&field.spec.name, &floats[field.range.clone()])?,
            }
        }
        for (i, field) in self.layout.states.iter().enumerate() {
            self.runner.state_mut(i).copy_from_slice(&state[field.range.clone()]);
        }
        self.runner.step(resets)?;
        for (i, field) in self.layout.states.iter().enumerate() {
            state[field.range.clone()].copy_from_slice(self.runner.state_mut(i));
        }
        for field in &self.layout.outputs {
            match field.spec.dtype {
                DType::U32 => out_indices[field.range.clone()].copy_from_slice(self.runner.indices(&field.spec.name, 0)?),
                _ => out_floats[field.range.clone()].copy_from_slice(self.runner.floats(&field.spec.name, 0)?),
            }
        }
        Ok(())
    }
}

impl Execute for RowByRow {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the caller's promise.
        sequences.iter().try_for_each(|sequence| unsafe { self.run(sequence) })
    }

    fn max_batch(&self) -> usize {
        self.max_batch
    }
}
