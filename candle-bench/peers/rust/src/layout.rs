//! Files of named tensors.

use crate::protocol::Case;
use anyhow::{Context, Result, bail, ensure};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers of a tensor.
#[derive(Debug, Clone)]
pub enum Values {
    Floats(Vec<f32>),
    Indices(Vec<u32>),
}

/// A tensor with its shape.
#[derive(Debug, Clone)]
pub struct Named {
    pub shape: Vec<usize>,
    pub values: Values,
}

/// Every tensor of a file, f32 and u32.
pub fn read(file: &Path) -> Result<BTreeMap<String, Named>> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).with_context(|| file.display().to_string())?;
    let named = |(name, view): (String, TensorView)| {
        let words = view.data().as_chunks().0.iter();
        let values = match view.dtype() {
            Dtype::F32 => Values::Floats(words.map(|word| f32::from_le_bytes(*word)).collect()),
            Dtype::U32 => Values::Indices(words.map(|word| u32::from_le_bytes(*word)).collect()),
            other => bail!("{}: {name} is {other:?}, expected F32 or U32", file.display()),
        };
        Ok((name, Named { shape: view.shape().to_vec(), values }))
    };
    tensors.tensors().into_iter().map(named).collect()
}

impl Named {
    /// Frame `t` of `[B, T, ...]`, as `[B, ...]`.
    fn frame(&self, t: usize) -> Self {
        let (frames, width) = (self.shape[1], self.shape[2..].iter().product::<usize>());
        fn rows<T: Copy>(values: &[T], frames: usize, width: usize, t: usize) -> Vec<T> {
            values.chunks(frames * width).flat_map(|row| &row[t * width..][..width]).copied().collect()
        }
        let values = match &self.values {
            Values::Floats(values) => Values::Floats(rows(values, frames, width, t)),
            Values::Indices(values) => Values::Indices(rows(values, frames, width, t)),
        };
        Self { shape: [&self.shape[..1], &self.shape[2..]].concat(), values }
    }

    pub fn floats(&self) -> Result<&[f32]> {
        match &self.values {
            Values::Floats(values) => Ok(values),
            Values::Indices(_) => bail!("indices where floats are expected"),
        }
    }

    pub fn indices(&self) -> Result<&[u32]> {
        match &self.values {
            Values::Indices(values) => Ok(values),
            Values::Floats(_) => bail!("floats where indices are expected"),
        }
    }
}

/// A case's inputs, frame by frame.
pub fn inputs(case: &Case) -> Result<Vec<BTreeMap<String, Named>>> {
    let tensors = read(&case.inputs)?;
    let shape = &tensors.values().next().context("no inputs")?.shape;
    ensure!(shape.len() > 1 && shape[0] == case.batch, "inputs are {shape:?}, the case says {} rows", case.batch);
    Ok((0..shape[1]).map(|t| tensors.iter().map(|(name, tensor)| (name.clone(), tensor.frame(t))).collect()).collect())
}

/// Writes outputs of all frames as `[B, T, width]`.
pub fn write(file: &Path, batch: usize, frames: &[Vec<(String, Values)>]) -> Result<()> {
    let first = frames.first().context("no frames")?;
    let (mut bytes, mut found) = (Vec::new(), Vec::new());
    for (i, (name, values)) in first.iter().enumerate() {
        let (dtype, count) = match values {
            Values::Floats(values) => (Dtype::F32, values.len()),
            Values::Indices(values) => (Dtype::U32, values.len()),
        };
        let (width, mut data) = (count / batch, Vec::with_capacity(4 * count * frames.len()));
        for row in 0..batch {
            for frame in frames {
                match &frame[i].1 {
                    Values::Floats(values) => data.extend(values[row * width..][..width].iter().flat_map(|x| x.to_le_bytes())),
                    Values::Indices(values) => data.extend(values[row * width..][..width].iter().flat_map(|x| x.to_le_bytes())),
                }
            }
        }
        found.push((name.clone(), dtype, vec![batch, frames.len(), width]));
        bytes.push(data);
    }
    let views = found.iter().zip(&bytes).map(|((name, dtype, shape), data)| Ok((name, TensorView::new(*dtype, shape.clone(), data)?)));
    let views = views.collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, file).with_context(|| file.display().to_string())
}
