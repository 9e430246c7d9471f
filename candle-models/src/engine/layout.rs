//! Where the tensors of a signature lie in the slices of a sequence.

use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::ops::Range;

/// A tensor's place among those of its kind.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// As in the signature.
    pub spec: TensorSpec,
    /// Its values, `[frames, width]`.
    pub range: Range<usize>,
}

/// Places and sizes for sequences of a number of frames.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Frames of a sequence.
    pub frames: usize,
    /// Inputs in the signature's order; floats and indices are counted apart.
    pub inputs: Vec<Field>,
    /// Outputs, likewise.
    pub outputs: Vec<Field>,
    /// States. A state has no frames.
    pub states: Vec<Field>,
    /// Values of all inputs of floats.
    pub floats: usize,
    /// Values of all inputs of indices.
    pub indices: usize,
    /// Values of all states.
    pub state: usize,
    /// Values of all outputs of floats.
    pub out_floats: usize,
    /// Values of all outputs of indices.
    pub out_indices: usize,
}

impl Layout {
    /// The layout of sequences of `frames` frames.
    pub fn new(signature: &Signature, frames: usize) -> Self {
        let (inputs, floats, indices) = place(&signature.inputs, frames);
        let (outputs, out_floats, out_indices) = place(&signature.outputs, frames);
        let (states, state, _) = place(&signature.state, 1);
        Self { frames, inputs, outputs, states, floats, indices, state, out_floats, out_indices }
    }

    /// The place of an input among those of its dtype.
    pub fn input(&self, name: &str, dtype: DType) -> Result<Range<usize>> {
        Self::find(&self.inputs, "an input", name, dtype)
    }

    /// The place of an output among those of its dtype.
    pub fn output(&self, name: &str, dtype: DType) -> Result<Range<usize>> {
        Self::find(&self.outputs, "an output", name, dtype)
    }

    /// States, each row's as it lies in its slice, as named tensors `[rows, ...]`.
    pub fn save(&self, rows: &[&[f32]]) -> Result<NamedTensors> {
        let tensor = |Field { spec, range }: &Field| {
            let shape: Vec<usize> = std::iter::once(rows.len()).chain(spec.shape.iter().copied()).collect();
            let values = rows.iter().flat_map(|row| &row[range.clone()]).copied().collect();
            Ok((spec.name.clone(), Tensor::from_vec(values, shape, &Device::Cpu)?))
        };
        self.states.iter().map(tensor).collect()
    }

    /// The rows that [`save`](Self::save) made named tensors of.
    ///
    /// # Errors
    /// If names, dtypes or shapes are not those of so many rows, or a value is not finite.
    pub fn restore(&self, state: &NamedTensors, specs: &[TensorSpec], rows: usize) -> Result<Vec<Vec<f32>>> {
        state.check(specs, &[rows])?;
        let mut restored = vec![vec![0.0; self.state]; rows];
        for Field { spec, range } in &self.states {
            let values = state.get(&spec.name)?.flatten_all()?.to_vec1::<f32>()?;
            if let Some(found) = values.iter().find(|x| !x.is_finite()) {
                return Err(Error::tensor(&spec.name, "finite numbers", found));
            }
            restored.iter_mut().zip(values.chunks(range.len().max(1))).for_each(|(row, values)| row[range.clone()].copy_from_slice(values));
        }
        Ok(restored)
    }

    fn find(fields: &[Field], what: &str, name: &str, dtype: DType) -> Result<Range<usize>> {
        let kind = |dtype| if dtype == DType::U32 { "indices" } else { "floats" };
        match fields.iter().find(|f| f.spec.name == name) {
            Some(field) if field.spec.dtype() == dtype => Ok(field.range.clone()),
            Some(field) => Err(Error::tensor(name, kind(dtype), kind(field.spec.dtype()))),
            None => {
                let names: Vec<&str> = fields.iter().map(|f| f.spec.name.as_str()).collect();
                Err(Error::tensor(name, format!("{what} of the model"), format!("only [{}]", names.join(", "))))
            }
        }
    }
}

/// The fields, and how many floats and indices they hold.
fn place(specs: &[TensorSpec], frames: usize) -> (Vec<Field>, usize, usize) {
    let (mut floats, mut indices) = (0, 0);
    let field = |spec: &TensorSpec| {
        let top = if spec.dtype() == DType::U32 { &mut indices } else { &mut floats };
        let at = *top;
        *top += frames * spec.width();
        Field { spec: spec.clone(), range: at..*top }
    };
    (specs.iter().map(field).collect(), floats, indices)
}

/// Copies the whole of an input.
pub(super) fn fill<T: Copy>(name: &str, to: &mut [T], values: &[T]) -> Result<()> {
    if to.len() != values.len() {
        return Err(Error::tensor(name, format!("{} values", to.len()), values.len()));
    }
    to.copy_from_slice(values);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature() -> Signature {
        Signature {
            inputs: vec![TensorSpec::f32("a", &[3]), TensorSpec::u32("b", &[2]), TensorSpec::f32("c", &[2, 2]), TensorSpec::u32("d", &[1])],
            outputs: vec![TensorSpec::u32("b", &[1]), TensorSpec::f32("y", &[5])],
            state: vec![TensorSpec::f32("s", &[2, 3]), TensorSpec::f32("t", &[1])],
        }
    }

    #[test]
    fn tensors_of_a_kind_lie_one_behind_the_other() {
        for frames in [1, 4] {
            let layout = Layout::new(&signature(), frames);
            assert_eq!(layout.input("a", DType::F32).unwrap(), 0..3 * frames);
            assert_eq!(layout.input("c", DType::F32).unwrap(), 3 * frames..7 * frames);
            assert_eq!(layout.input("b", DType::U32).unwrap(), 0..2 * frames);
            assert_eq!(layout.input("d", DType::U32).unwrap(), 2 * frames..3 * frames);
            assert_eq!(
                (layout.floats, layout.indices, layout.out_floats, layout.out_indices),
                (7 * frames, 3 * frames, 5 * frames, frames)
            );
            assert_eq!(layout.output("b", DType::U32).unwrap(), 0..frames);
            let states: Vec<_> = layout.states.iter().map(|f| f.range.clone()).collect();
            assert_eq!((states, layout.state), (vec![0..6, 6..7], 7), "a state has no frames");
        }
    }

    #[test]
    fn wrong_names_and_dtypes_are_told_apart() {
        let layout = Layout::new(&signature(), 1);
        let message = |r: Result<Range<usize>>| r.unwrap_err().to_string();
        assert_eq!(message(layout.input("b", DType::F32)), "tensor b: expected floats, found indices");
        assert_eq!(message(layout.output("a", DType::F32)), "tensor a: expected an output of the model, found only [b, y]");
        assert_eq!(message(layout.output("b", DType::F32)), "tensor b: expected floats, found indices");
        assert_eq!(message(layout.output("y", DType::U32)), "tensor y: expected indices, found floats");
    }
}
