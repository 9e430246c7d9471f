//! Named tensors and signatures: what crosses every boundary of a model.

use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::collections::BTreeMap;

/// One named tensor of a signature: its dtype and its shape behind the batch axis (and the time axis, in an unroll).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name, as in `features`.
    pub name: String,
    /// `F32` or `U32`.
    pub dtype: DType,
    /// The shape of one row: `[288]`, `[512, 16]`.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of 32-bit floats.
    pub fn f32(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype: DType::F32, shape: shape.to_vec() }
    }

    /// A tensor of indices.
    pub fn u32(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype: DType::U32, shape: shape.to_vec() }
    }

    /// Values in one row.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a model eats, gives and carries. Every shape leaves out the leading batch axis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Inputs of a frame.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of a frame.
    pub outputs: Vec<TensorSpec>,
    /// State carried from frame to frame; empty for a model without memory.
    pub state: Vec<TensorSpec>,
}

/// Tensors by name, walked in name order.
#[derive(Debug, Clone, Default)]
pub struct NamedTensors(BTreeMap<String, Tensor>);

impl NamedTensors {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Zeros `[batch, ...]` for every spec.
    pub fn zeros(specs: &[TensorSpec], batch: usize, device: &Device) -> Result<Self> {
        specs
            .iter()
            .map(|s| {
                let shape: Vec<usize> = std::iter::once(batch).chain(s.shape.iter().copied()).collect();
                Ok((s.name.clone(), Tensor::zeros(shape, s.dtype, device)?))
            })
            .collect()
    }

    /// The tensor of that name, or an error that lists the names there are.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.0.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            Error::tensor(name, "to be present", format!("only [{}]", names.join(", ")))
        })
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        self.0.insert(name.into(), tensor)
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and tensors in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(n, t)| (n.as_str(), t))
    }

    /// The same names with other tensors.
    pub fn map(&self, mut f: impl FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
        self.0.iter().map(|(n, t)| Ok((n.clone(), f(n, t)?))).collect()
    }

    /// Rows `rows` of every tensor: the rows may repeat, so this also forks a state.
    pub fn gather_rows(&self, rows: &[u32]) -> Result<Self> {
        self.map(|_, t| Ok(t.index_select(&Tensor::new(rows, t.device())?, 0)?))
    }

    /// Checks that exactly the tensors of `specs` are here, each `[leading..., shape...]` of its dtype.
    pub fn check(&self, specs: &[TensorSpec], leading: &[usize]) -> Result<()> {
        for spec in specs {
            let tensor = self.get(&spec.name)?;
            let expected: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
            if tensor.dims() != expected || tensor.dtype() != spec.dtype {
                return Err(Error::tensor(
                    &spec.name,
                    format!("{:?} {expected:?}", spec.dtype),
                    format!("{:?} {:?}", tensor.dtype(), tensor.dims()),
                ));
            }
        }
        if let Some(extra) = self.0.keys().find(|n| !specs.iter().any(|s| s.name == **n)) {
            return Err(Error::tensor(extra, "no such tensor in the signature", "one"));
        }
        Ok(())
    }
}

impl FromIterator<(String, Tensor)> for NamedTensors {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl IntoIterator for NamedTensors {
    type Item = (String, Tensor);
    type IntoIter = std::collections::btree_map::IntoIter<String, Tensor>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
