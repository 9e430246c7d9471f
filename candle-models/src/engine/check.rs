//! What an input may hold, checked before a pass: a bad request must not cost the others of its batch, and none may answer nonsense.

use super::layout::{Field, Layout};
use crate::exec::SAMPLE;
use crate::signature::{ANY, TensorSpec, Values};
use crate::{Error, Result};
use std::ops::Range;

/// Bits of a float that was not set: a NaN of its own, which no calculation gives.
const UNSET_FLOAT: u32 = 0x7fc5_e7e7;
/// An index that was not set.
const UNSET_INDEX: u32 = SAMPLE - 1;

/// The values that an input holds until it is set, of one row: its default, or what [`Checks`] refuses.
pub(super) fn blank_floats(spec: &TensorSpec) -> Vec<f32> {
    match spec.values() {
        Values::Floats { default: Some(row), .. } => row.clone(),
        _ => vec![f32::from_bits(UNSET_FLOAT); spec.width()],
    }
}

/// The same for an input of indices.
pub(super) fn blank_indices(spec: &TensorSpec) -> Vec<u32> {
    match spec.values() {
        Values::Indices { default: Some(row), .. } => row.clone(),
        _ => vec![UNSET_INDEX; spec.width()],
    }
}

/// Which values a row of inputs can hold.
#[derive(Debug)]
pub(super) struct Checks {
    /// The largest of each place among the inputs of indices.
    last: Vec<u32>,
    /// Whether [`SAMPLE`] can stand there.
    sample: Vec<bool>,
    /// The places of floats whose range is narrower than all finite numbers, and that range.
    within: Vec<(Range<usize>, Range<f32>)>,
}

impl Checks {
    /// The values that the inputs of a signature can take.
    pub fn new(layout: &Layout) -> Self {
        let mut checks = Self { last: vec![UNSET_INDEX - 1; layout.indices], sample: vec![true; layout.indices], within: Vec::new() };
        for Field { spec, range } in &layout.inputs {
            match spec.values() {
                Values::Floats { within, .. } if *within == ANY => {}
                Values::Floats { within, .. } => checks.within.push((range.clone(), within.clone())),
                Values::Indices { below, .. } if below.is_empty() => {}
                Values::Indices { below, sample, .. } => {
                    // The limits of a row hold in every frame.
                    checks.last[range.clone()].iter_mut().zip(below.iter().cycle()).for_each(|(last, below)| *last = below - 1);
                    checks.sample[range.clone()].fill(*sample);
                }
            }
        }
        checks
    }

    /// Names the input at fault.
    pub fn check(&self, layout: &Layout, floats: &[f32], indices: &[u32]) -> Result<()> {
        // Without a branch per value: this runs before every step.
        let finite = floats.iter().fold(true, |all, x| all & x.is_finite());
        let contained = |(at, within): &(Range<usize>, Range<f32>)| floats[at.clone()].iter().fold(true, |all, x| all & within.contains(x));
        let allowed = self.last.iter().zip(&self.sample).zip(indices);
        let right = allowed.fold(true, |all, ((last, sample), &i)| all & ((i <= *last) | (*sample & (i == SAMPLE))));
        if finite && right && self.within.iter().all(contained) { Ok(()) } else { Err(self.fault(layout, floats, indices)) }
    }

    fn fault(&self, layout: &Layout, floats: &[f32], indices: &[u32]) -> Error {
        let fault = |Field { spec, range }: &Field| {
            let (unset, right) = match spec.values() {
                Values::Floats { .. } => {
                    let values = &floats[range.clone()];
                    (values.iter().any(|x| x.to_bits() == UNSET_FLOAT), spec.check_f32(values))
                }
                Values::Indices { .. } => {
                    let values = &indices[range.clone()];
                    (values.contains(&UNSET_INDEX), spec.check_u32(values))
                }
            };
            if unset && spec.is_required() {
                return Some(Error::tensor(&spec.name, "to be set before the first pass: it has no default", "nothing"));
            }
            right.err()
        };
        layout.inputs.iter().find_map(fault).unwrap_or_else(|| Error::Input("an input is out of range".to_owned()))
    }
}
