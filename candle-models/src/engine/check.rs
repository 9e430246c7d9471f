//! What an input may hold, checked before a request is queued: a bad request must not cost the others of its batch.

use super::IndexLimits;
use super::layout::{Field, Layout};
use crate::exec::SAMPLE;
use crate::tensors::TensorSpec;
use crate::{Error, Result};
use candle_core::DType;

/// Which values each index of a row can take.
#[derive(Debug)]
pub(super) struct Checks {
    /// The largest of each place among the inputs of indices.
    last: Vec<u32>,
    /// Whether [`SAMPLE`] can stand there.
    sample: Vec<bool>,
}

impl Checks {
    /// The limits that a model states for its inputs of indices.
    pub fn new(layout: &Layout, limits: impl Fn(&str) -> IndexLimits) -> Result<Self> {
        let mut checks = Self { last: vec![u32::MAX; layout.indices], sample: vec![true; layout.indices] };
        for Field { spec, range } in layout.inputs.iter().filter(|f| f.spec.dtype == DType::U32) {
            let limits = limits(&spec.name);
            if limits.below.is_empty() {
                continue;
            }
            if limits.below.len() != spec.width() || limits.below.contains(&0) {
                let expected = format!("{} index limits above 0", spec.width());
                return Err(Error::tensor(&spec.name, expected, format!("{:?}", limits.below)));
            }
            checks.last[range.clone()].iter_mut().zip(&limits.below).for_each(|(last, below)| *last = below - 1);
            checks.sample[range.clone()].fill(limits.sample);
        }
        Ok(checks)
    }

    /// Names the input at fault.
    pub fn check(&self, layout: &Layout, floats: &[f32], indices: &[u32]) -> Result<()> {
        // Without a branch per value: this runs before every step.
        let finite = floats.iter().fold(true, |all, x| all & x.is_finite());
        let allowed = self.last.iter().zip(&self.sample).zip(indices);
        let right = allowed.fold(true, |all, ((last, sample), &i)| all & ((i <= *last) | (*sample & (i == SAMPLE))));
        if finite && right { Ok(()) } else { Err(self.fault(layout, floats, indices)) }
    }

    fn fault(&self, layout: &Layout, floats: &[f32], indices: &[u32]) -> Error {
        for Field { spec, range } in &layout.inputs {
            for (column, at) in range.clone().enumerate() {
                if let Some(error) = self.fault_at(spec, column, at, (floats, indices)) {
                    return error;
                }
            }
        }
        Error::Input("an input is out of range".to_owned())
    }

    fn fault_at(&self, spec: &TensorSpec, column: usize, at: usize, (floats, indices): (&[f32], &[u32])) -> Option<Error> {
        if spec.dtype != DType::U32 {
            let wrong = !floats[at].is_finite();
            return wrong.then(|| Error::tensor(&spec.name, "finite numbers", format!("{} in column {column}", floats[at])));
        }
        let (last, sample, found) = (self.last[at], self.sample[at], indices[at]);
        if found <= last || (sample && found == SAMPLE) {
            return None;
        }
        let found = if found == SAMPLE { "SAMPLE".to_owned() } else { found.to_string() };
        let or = if sample { " or SAMPLE" } else { "" };
        Some(Error::tensor(&spec.name, format!("an index up to {last}{or} in column {column}"), found))
    }
}
