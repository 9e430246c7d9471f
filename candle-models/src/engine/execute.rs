//! The seam between the engine and what runs a model.

use crate::Result;
use crate::exec::cpu::CpuExecutor;
pub(super) use crate::exec::program::Sequence;

/// Runs a batch: every sequence's inputs to its outputs, its state replaced in place by the one behind the pass.
pub(super) trait Execute: Send {
    /// After an error or a panic the states and outputs of these sequences hold anything, and the next batch runs as if
    /// nothing had happened.
    ///
    /// # Safety
    /// All slices are valid, and those that are written overlap no other.
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()>;
}

impl Execute for CpuExecutor {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(sequences) }
    }
}
