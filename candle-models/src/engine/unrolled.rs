//! A model that is not recorded: run by its own `unroll`, on tensors.

use super::Model;
use super::layout::{Field, Layout};
use crate::exec::program::Sequence;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Runs batches by `unroll` where the model's parameters are. Every pass allocates memory.
pub(super) struct Unrolled {
    model: Arc<dyn Model>,
    layout: Layout,
}

impl Unrolled {
    /// For sequences of `steps` frames.
    ///
    /// # Errors
    /// If the model is not on that device.
    pub fn new(model: Arc<dyn Model>, device: &Device, steps: usize) -> Result<Self> {
        if !model.device().same_device(device) {
            let (wanted, found) = (device.location(), model.device().location());
            return Err(Error::Input(format!("a model that is not recorded runs where its parameters are: on {found:?}, not {wanted:?}")));
        }
        let layout = Layout::new(model.signature(), steps);
        Ok(Self { model, layout })
    }

    /// The parts of all sequences as one tensor `[leading..., shape...]` on the model's device.
    fn gathered<T: candle_core::WithDType>(&self, parts: Vec<&[T]>, leading: &[usize], field: &Field) -> Result<(String, Tensor)> {
        let shape: Vec<usize> = leading.iter().chain(&field.spec.shape).copied().collect();
        Ok((field.spec.name.clone(), Tensor::from_vec(parts.concat(), shape, self.model.device())?))
    }

    /// A pass over sequences of that many frames.
    ///
    /// # Safety
    /// All slices are valid, and those that are written overlap no other.
    pub unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        let (signature, layout, count) = (self.model.signature(), &self.layout, sequences.len());
        let leading = [count, layout.frames];
        // SAFETY: the caller's promise, here and in the three below.
        let floats = |range: &Range<usize>| sequences.iter().map(|s| unsafe { &(&*s.floats)[range.clone()] }).collect();
        // SAFETY: as above.
        let indices = |range: &Range<usize>| sequences.iter().map(|s| unsafe { &(&*s.indices)[range.clone()] }).collect();
        // SAFETY: as above.
        let states = |range: &Range<usize>| sequences.iter().map(|s| unsafe { &(&*s.state)[range.clone()] }).collect();
        let inputs = layout.inputs.iter().map(|field| match field.spec.dtype() {
            DType::U32 => self.gathered::<u32>(indices(&field.range), &leading, field),
            _ => self.gathered::<f32>(floats(&field.range), &leading, field),
        });
        let inputs = inputs.collect::<Result<NamedTensors>>()?;
        let state = layout.states.iter().map(|field| self.gathered::<f32>(states(&field.range), &leading[..1], field));
        let state = state.collect::<Result<NamedTensors>>()?;
        // SAFETY: as above.
        let resets: Vec<bool> = sequences.iter().flat_map(|s| unsafe { &*s.resets }).copied().collect();
        let (outputs, state) = self.model.unroll(&inputs, &resets, &state)?;
        outputs.check(&signature.outputs, &leading)?;
        state.check(&signature.state, &leading[..1])?;
        for Field { spec, range } in &layout.outputs {
            match spec.dtype() {
                DType::U32 => scatter::<u32>(outputs.get(&spec.name)?, sequences, |s| s.out_indices, range)?,
                _ => scatter::<f32>(outputs.get(&spec.name)?, sequences, |s| s.out_floats, range)?,
            }
        }
        layout.states.iter().try_for_each(|Field { spec, range }| scatter::<f32>(state.get(&spec.name)?, sequences, |s| s.state, range))
    }
}

/// Copies a tensor's values to the part of each sequence.
fn scatter<T: candle_core::WithDType>(
    tensor: &Tensor,
    sequences: &[Sequence],
    part: impl Fn(&Sequence) -> *mut [T],
    range: &Range<usize>,
) -> Result<()> {
    let values = tensor.flatten_all()?.to_vec1::<T>()?;
    for (sequence, values) in sequences.iter().zip(values.chunks_exact(range.len().max(1))) {
        // SAFETY: `execute` is told that the slices are valid and that none overlaps another.
        let to = unsafe { &mut *part(sequence) };
        to[range.clone()].copy_from_slice(values);
    }
    Ok(())
}
