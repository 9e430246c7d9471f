//! Launches of `episode.cu`.

use crate::cuda::{Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "episode", text: include_str!("episode.cu") };
const MEASURE: Kernel = Kernel { source: &SOURCE, name: "measure" };
const BACKWARD: Kernel = Kernel { source: &SOURCE, name: "measure_backward" };
const THREADS: usize = 128;

/// What all steps of a batch of episodes have in common.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Episode {
    /// `H f`, f32 `[B T, 2 N_RX]`: that of step t of episode b at `b T + t`.
    pub responses: Matrix,
    /// f32 `[B, 2 + 2 T]`: the beam that the sweep starts with, SNR in dB, noise of every step.
    pub course: Matrix,
    /// The beam of step 0, f32 `[2 N_RX]`.
    pub first: u64,
    /// What was measured, f32 `[T, B, 2]`.
    pub measured: u64,
    pub steps: u32,
    /// Beams of the codebook.
    pub beams: u32,
    /// Places of a beam in the record.
    pub places: u32,
    /// 1 where the networks see every sweep from its start.
    pub relative: u32,
    /// 0 for the published one, 1 for antennas.
    pub view: u32,
    /// 0 for measurements, 1 for noise, 2 for nothing.
    pub sensing: u32,
    /// The number of the last step that there can be, 1 at least.
    pub last: f32,
    /// What measurements are multiplied by, and those in antenna space.
    pub scale: f32,
    pub antenna_scale: f32,
}

/// Measures with the beams of a step, and writes what the network reads and the record.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Measure {
    pub episode: Episode,
    /// `[B, 2 N_RX]`; [`Matrix::NONE`] in step 0.
    pub beams: Matrix,
    /// `[B, ...]`.
    pub features: Matrix,
    /// f32 `[B, ...]`, of which the step's place is written.
    pub record: Matrix,
    pub step: u32,
}

impl Measure {
    /// # Safety
    /// Everything has the stated sizes for `batch` episodes, beams and features are of that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(MEASURE, Some(dtype), ((batch, 1, 1), THREADS, 0), self) }
    }
}

/// From the gradients of what the network read and of the record to those of beams, `H f` and reference. The last step comes first.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MeasureBackward {
    pub episode: Episode,
    /// As in the forward.
    pub beams: Matrix,
    /// `[B, ...]`.
    pub grad: Matrix,
    /// f32 `[B, ...]`.
    pub outer: Matrix,
    /// `[B, 2 N_RX]`, and in step 0 instead of it f32; 0 in other steps.
    pub beams_grad: Matrix,
    pub first_grad: u64,
    /// f32 `[B, T, 2 N_RX]`, of which the step is written.
    pub responses_grad: u64,
    /// f32 `[B, 2]`, from step to step.
    pub references: u64,
    pub step: u32,
}

impl MeasureBackward {
    /// # Safety
    /// As for [`Measure::launch`].
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(BACKWARD, Some(dtype), ((batch, 1, 1), THREADS, 0), self) }
    }
}
