//! The seam between the engine and what runs a model.

use super::unrolled::Unrolled;
use super::{Model, Placement};
use crate::device::{self, ChosenDevice, Purpose};
use crate::exec::Target;
use crate::exec::cpu::CpuExecutor;
#[cfg(feature = "cuda")]
use crate::exec::cuda::CudaExecutor;
use crate::exec::program::Program;
pub(super) use crate::exec::program::Sequence;
use crate::ops::Products;
use crate::{Error, Result};
use candle_core::DType;
#[cfg(feature = "cuda")]
use candle_core::Device;
use std::sync::Arc;

/// Seconds that every operation of a pass took, by name.
pub(super) type Profile = Vec<(&'static str, f64)>;

/// Runs a batch: every sequence's inputs to its outputs, its state replaced in place by the one behind the pass.
pub(super) trait Execute: Send {
    /// After an error or a panic the states and outputs of these sequences hold anything, and the next batch runs as if
    /// nothing had happened.
    ///
    /// # Safety
    /// All slices are valid, those that are written overlap no other, and no two sequences have the same slot.
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()>;

    /// Whether states live with the executor: [`read_state`](Self::read_state) and [`write_state`](Self::write_state) bring them to
    /// a sequence's slice and back.
    fn keeps_states(&self) -> bool {
        false
    }

    /// # Safety
    /// As for [`execute`](Self::execute).
    unsafe fn read_state(&mut self, _: &Sequence) -> Result<()> {
        Ok(())
    }

    /// # Safety
    /// As for [`execute`](Self::execute).
    unsafe fn write_state(&mut self, _: &Sequence) -> Result<()> {
        Ok(())
    }

    /// A pass over the first sequences, operation by operation.
    ///
    /// # Safety
    /// As for [`execute`](Self::execute).
    unsafe fn profile(&mut self, sequences: &[Sequence]) -> Result<Profile> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(sequences) }.map(|()| Profile::new())
    }

    /// Names of the operations without a kernel here: they run on tensors on the host.
    fn on_tensors(&self) -> &[&'static str] {
        &[]
    }

    /// Bytes held: weights, states that live here, and what passes work in.
    fn bytes(&self) -> usize {
        0
    }
}

impl Execute for CpuExecutor {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(sequences) }
    }

    unsafe fn profile(&mut self, sequences: &[Sequence]) -> Result<Profile> {
        // SAFETY: the caller's promise.
        unsafe { self.profile(sequences) }
    }

    fn on_tensors(&self) -> &[&'static str] {
        self.on_tensors()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

impl Execute for Unrolled {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(sequences) }
    }

    fn on_tensors(&self) -> &[&'static str] {
        &["unroll"]
    }
}

#[cfg(feature = "cuda")]
impl Execute for CudaExecutor {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(sequences) }
    }

    fn keeps_states(&self) -> bool {
        true
    }

    unsafe fn read_state(&mut self, sequence: &Sequence) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.read_state(sequence) }
    }

    unsafe fn write_state(&mut self, sequence: &Sequence) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write_state(sequence) }
    }

    unsafe fn profile(&mut self, sequences: &[Sequence]) -> Result<Profile> {
        // SAFETY: the caller's promise.
        unsafe { self.profile(sequences) }
    }

    fn on_tensors(&self) -> &[&'static str] {
        self.on_tensors()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

/// What runs a model at that place, for batches of at most `batch` sequences of `steps` frames with `slots` states. A model that is not
/// recorded runs by its `unroll`.
///
/// Every executor on CUDA opens the device anew: a stream of its own, so that two on one GPU do not meet in a capture.
pub(super) fn executor(model: &Arc<dyn Model>, place: &Placement, sizes: (usize, usize, usize)) -> Result<Box<dyn Execute>> {
    let ChosenDevice { device, fallback } = place.device.open()?;
    if let Some(reason) = fallback {
        eprintln!("candle-models: {reason}");
    }
    let record = |target| Program::new(model.signature(), target, |recorder| model.record(recorder));
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = &device {
        let dtype = device::compute_dtype(place.dtype, &device, Purpose::Inference)?;
        return match record(Target::Cuda { steps: sizes.1 }) {
            Err(Error::NotRecorded) => Ok(Box::new(Unrolled::new(model.clone(), &device, sizes.1)?)),
            program => Ok(Box::new(CudaExecutor::new(program?, cuda.clone(), dtype, sizes, place.launches)?)),
        };
    }
    let dtype = device::compute_dtype(place.dtype, &device, Purpose::Inference)?;
    let products = if dtype == DType::BF16 { Products::Bf16 } else { Products::F32 };
    let (batch, steps, _) = sizes;
    match record(Target::Cpu) {
        Err(Error::NotRecorded) => Ok(Box::new(Unrolled::new(model.clone(), &device, steps)?)),
        program => Ok(Box::new(CpuExecutor::new(program?, (batch, steps), place.threads, products)?)),
    }
}
