//! The seam between the engine and what runs a model.

use crate::Result;

/// Where one sequence of a batch lies; raw slices, so that a batch can be formed every frame without allocation.
///
/// A [`Layout`](super::layout::Layout) says what lies where in each slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence {
    /// Inputs of floats, one behind the other in the signature's order.
    pub floats: *const [f32],
    /// Inputs of indices, likewise.
    pub indices: *const [u32],
    /// One per frame: back to the initial state before that frame.
    pub resets: *const [bool],
    /// The states one behind the other in the signature's order.
    pub state: *mut [f32],
    /// Outputs of floats, likewise.
    pub out_floats: *mut [f32],
    /// Outputs of indices, likewise.
    pub out_indices: *mut [u32],
}

/// Runs a batch: every sequence's inputs to its outputs, its state replaced in place by the one behind the pass.
pub(crate) trait Execute: Send {
    /// Runs 1 to [`max_batch`](Self::max_batch) sequences. After an error or a panic the states and outputs of these
    /// sequences hold anything, and the next batch runs as if nothing had happened.
    ///
    /// # Safety
    /// All slices are valid, and those that are written overlap no other.
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()>;

    /// The most sequences of a batch.
    fn max_batch(&self) -> usize;
}
