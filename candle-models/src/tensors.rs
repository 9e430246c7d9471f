//! Named tensors: what crosses every boundary of a model.

use crate::signature::TensorSpec;
pub use crate::stored::{StoredTensor, index_safetensors};

use crate::stored::{self, Entry, Stored};
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors by name, walked in name order.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let sum = Tensor::new(&[[1f32], [2.0]], &Device::Cpu)?; // two rows
/// let state = NamedTensors::from_iter([("sum".to_owned(), sum)]);
/// let values = |state: &NamedTensors| state.get("sum")?.flatten_all()?.to_vec1::<f32>().map_err(candle_models::Error::from);
/// assert_eq!(values(&state.gather_rows(&[1, 1, 0])?)?, [2.0, 2.0, 1.0]); // a fork of row 1
/// assert_eq!(values(&state.reset_rows(&[true, false])?)?, [0.0, 2.0]);
/// assert_eq!(state.get("product").unwrap_err().to_string(), "tensor product: expected to be present, found only [sum]");
/// # Ok(())
/// # }
/// ```
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
                Ok((s.name.clone(), Tensor::zeros(shape, s.dtype(), device)?))
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
    ///
    /// # Errors
    /// If a row is not in every tensor.
    pub fn gather_rows(&self, rows: &[u32]) -> Result<Self> {
        self.map(|name, t| {
            // Checked here because CUDA answers an index out of range by ending the context.
            check_rows(name, t, rows)?;
            select(t, rows)
        })
    }

    /// The same tensors with rows `rows` replaced by the rows of `from` in order; where a row repeats, the last counts.
    ///
    /// # Errors
    /// If `from` has other tensors, dtypes or shapes behind the batch axis, not one row for each of `rows`, or a row is
    /// out of range.
    pub fn scatter_rows(&self, rows: &[u32], from: &Self) -> Result<Self> {
        if let Some(extra) = from.0.keys().find(|n| !self.contains(n)) {
            return Err(Error::tensor(extra, "no tensor of that name", "one"));
        }
        self.map(|name, t| {
            check_rows(name, t, rows)?;
            let new = from.get(name)?;
            let expected: Vec<usize> = std::iter::once(rows.len()).chain(t.dims().iter().skip(1).copied()).collect();
            if new.dims() != expected || new.dtype() != t.dtype() {
                let found = format!("{:?} {:?}", new.dtype(), new.dims());
                return Err(Error::tensor(name, format!("{:?} {expected:?}", t.dtype()), found));
            }
            let batch = t.dim(0)? as u32;
            let mut source: Vec<u32> = (0..batch).collect();
            for (i, row) in rows.iter().enumerate() {
                source[*row as usize] = batch + i as u32;
            }
            select(&Tensor::cat(&[t, new], 0)?, &source)
        })
    }

    /// The same tensors with zeros in the rows where `reset` is true: the initial state, whatever was there (NaN too).
    ///
    /// # Errors
    /// If there is not one value for each row.
    pub fn reset_rows(&self, reset: &[bool]) -> Result<Self> {
        if !reset.contains(&true) && self.0.values().all(|t| t.dims().first() == Some(&reset.len())) {
            return Ok(self.clone());
        }
        self.map(|name, t| {
            let mut row = t.dims().to_vec();
            match row.first_mut() {
                Some(batch) if *batch == reset.len() => *batch = 1,
                _ => return Err(Error::tensor(name, format!("{} rows", reset.len()), format!("{:?}", t.dims()))),
            }
            let zero = reset.len() as u32;
            let source: Vec<u32> = (0..zero).zip(reset).map(|(row, reset)| if *reset { zero } else { row }).collect();
            select(&Tensor::cat(&[t, &Tensor::zeros(row, t.dtype(), t.device())?], 0)?, &source)
        })
    }

    /// Reads a safetensors file of at most 1 GiB: floats (F32, F16, BF16) as f32, integers (U8, U32, I32, I64) as u32.
    ///
    /// # Errors
    /// In one line with the file: if it is damaged, a float is not finite, an integer does not fit, or the dtype is another.
    pub fn load_safetensors(path: impl AsRef<Path>) -> Result<Self> {
        let mut stored = Stored::open(path.as_ref())?;
        let infos: Vec<_> = stored.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        infos.into_iter().map(|(name, info)| Ok((name.clone(), stored.read(&name, &info)?))).collect()
    }

    /// Writes a safetensors file, complete or not at all.
    ///
    /// # Errors
    /// If a dtype is not F32, F16, BF16, U8, U32 or I64, or if writing fails: then the old file is unchanged.
    pub fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()> {
        let entries = self.iter().map(|(name, tensor)| Entry::new(name, tensor)).collect::<Result<_>>()?;
        stored::write(path.as_ref(), entries, &serde_json::Value::Null)
    }

    /// These inputs `[leading..., shape...]`, with the defaults of those that are missing on the host.
    ///
    /// # Errors
    /// If one without a default is missing; if one has another dtype or shape, or is not among `specs`.
    pub fn complete(&self, specs: &[TensorSpec], leading: &[usize]) -> Result<Self> {
        let mut all = self.clone();
        for spec in specs.iter().filter(|spec| !self.contains(&spec.name)) {
            if let Some(row) = spec.default_row()? {
                let shape: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
                all.insert(&spec.name, row.broadcast_as(shape)?.contiguous()?);
            }
        }
        all.check(specs, leading)?;
        Ok(all)
    }

    /// Checks that exactly the tensors of `specs` are here, each `[leading..., shape...]` of its dtype.
    pub fn check(&self, specs: &[TensorSpec], leading: &[usize]) -> Result<()> {
        for spec in specs {
            let tensor = self.get(&spec.name)?;
            let expected: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
            if tensor.dims() != expected || tensor.dtype() != spec.dtype() {
                return Err(Error::tensor(
                    &spec.name,
                    format!("{:?} {expected:?}", spec.dtype()),
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

fn check_rows(name: &str, tensor: &Tensor, rows: &[u32]) -> Result<()> {
    let batch = tensor.dims().first().copied().unwrap_or(0);
    match rows.iter().find(|row| **row as usize >= batch) {
        Some(row) => Err(Error::tensor(name, format!("row {row}"), format!("{batch} rows"))),
        None => Ok(()),
    }
}

fn select(tensor: &Tensor, rows: &[u32]) -> Result<Tensor> {
    Ok(tensor.contiguous()?.index_select(&Tensor::new(rows, tensor.device())?, 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use candle_core::DType;

    fn state(seed: u64, batch: usize) -> NamedTensors {
        let mut values = vec![0.; batch * 6];
        Random::new(seed).fill_normal(0, &mut values);
        let ids: Vec<u32> = (0..batch as u64).map(|i| Random::new(seed).bits(i)).collect();
        [
            ("hidden".to_owned(), Tensor::from_vec(values, (batch, 2, 3), &Device::Cpu).unwrap()),
            ("last".to_owned(), Tensor::from_vec(ids, batch, &Device::Cpu).unwrap()),
        ]
        .into_iter()
        .collect()
    }

    fn values(tensors: &NamedTensors) -> (Vec<f32>, Vec<u32>) {
        let flat = |name| tensors.get(name).unwrap().flatten_all().unwrap();
        (flat("hidden").to_vec1().unwrap(), flat("last").to_vec1().unwrap())
    }

    #[test]
    fn gather_then_scatter_is_the_identity() {
        let (s, r) = (state(1, 7), Random::new(2));
        for n in 0..50 {
            let rows = &r.at(n).permutation(7)[..r.below(n, 8) as usize];
            let back = s.scatter_rows(rows, &s.gather_rows(rows).unwrap()).unwrap();
            assert_eq!(values(&back), values(&s), "rows {rows:?}");
        }
    }

    #[test]
    fn scatter_then_gather_gives_the_new_rows() {
        let (s, new) = (state(1, 7), state(3, 3));
        let scattered = s.scatter_rows(&[6, 0, 2], &new).unwrap();
        assert_eq!(values(&scattered.gather_rows(&[6, 0, 2]).unwrap()), values(&new));
        let untouched = [1, 3, 4, 5];
        assert_eq!(values(&scattered.gather_rows(&untouched).unwrap()), values(&s.gather_rows(&untouched).unwrap()));
        // Where a row repeats, the last counts.
        let twice = s.scatter_rows(&[4, 4, 1], &new).unwrap();
        assert_eq!(values(&twice.gather_rows(&[4]).unwrap()), values(&new.gather_rows(&[1]).unwrap()));
    }

    #[test]
    fn transposed_tensors_keep_their_rows() {
        let t = Tensor::arange(0f32, 6., &Device::Cpu).unwrap().reshape((2, 3)).unwrap().t().unwrap();
        let s: NamedTensors = [("x".to_owned(), t)].into_iter().collect();
        let rows = s.gather_rows(&[2, 0]).unwrap().get("x").unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(rows, [[2., 5.], [0., 3.]]);
    }

    #[test]
    fn reset_puts_zeros_even_over_nan() {
        let mut s = state(1, 3);
        s.insert("hidden", Tensor::full(f32::NAN, (3, 2), &Device::Cpu).unwrap());
        let reset = s.reset_rows(&[true, true, true]).unwrap();
        assert_eq!(values(&reset), (vec![0.; 6], vec![0; 3]));
        let s = state(1, 3);
        let one = s.reset_rows(&[false, true, false]).unwrap();
        assert_eq!(values(&one.gather_rows(&[0, 2]).unwrap()), values(&s.gather_rows(&[0, 2]).unwrap()));
        assert_eq!(values(&one.gather_rows(&[1]).unwrap()), (vec![0.; 6], vec![0]));
        assert_eq!(values(&s.reset_rows(&[false; 3]).unwrap()), values(&s));
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let (s, new) = (state(1, 4), state(2, 1));
        let message = |r: Result<NamedTensors>| r.unwrap_err().to_string();
        assert_eq!(message(s.gather_rows(&[1, 4])), "tensor hidden: expected row 4, found 4 rows");
        assert_eq!(message(s.scatter_rows(&[4], &new)), "tensor hidden: expected row 4, found 4 rows");
        assert_eq!(message(s.scatter_rows(&[0, 1], &new)), "tensor hidden: expected F32 [2, 2, 3], found F32 [1, 2, 3]");
        assert_eq!(message(s.reset_rows(&[true; 3])), "tensor hidden: expected 3 rows, found [4, 2, 3]");
        assert_eq!(message(s.reset_rows(&[false; 5])), "tensor hidden: expected 5 rows, found [4, 2, 3]");
        let mut extra = new.clone();
        extra.insert("more", Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap());
        assert_eq!(message(s.scatter_rows(&[0], &extra)), "tensor more: expected no tensor of that name, found one");
        assert!(message(s.scatter_rows(&[0], &NamedTensors::new())).starts_with("tensor hidden: expected to be present"));
        let scalar: NamedTensors = [("x".to_owned(), Tensor::new(1f32, &Device::Cpu).unwrap())].into_iter().collect();
        assert!(scalar.gather_rows(&[0]).is_err() && scalar.reset_rows(&[true]).is_err() && scalar.reset_rows(&[]).is_err());
    }

    #[test]
    fn files_keep_names_shapes_and_bits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.safetensors");
        let s = state(1, 5);
        s.save_safetensors(&path).unwrap();
        let loaded = NamedTensors::load_safetensors(&path).unwrap();
        assert_eq!(values(&loaded), values(&s));
        assert_eq!(loaded.get("hidden").unwrap().dims(), [5, 2, 3]);
        // The same content gives the same bytes.
        let bytes = std::fs::read(&path).unwrap();
        s.save_safetensors(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        NamedTensors::new().save_safetensors(&path).unwrap();
        assert!(NamedTensors::load_safetensors(&path).unwrap().is_empty());
    }

    #[test]
    fn integers_become_indices_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids.safetensors");
        let save = |ids: &[i64]| {
            let s: NamedTensors = [("ids".to_owned(), Tensor::new(ids, &Device::Cpu).unwrap())].into_iter().collect();
            s.save_safetensors(&path).unwrap();
            NamedTensors::load_safetensors(&path)
        };
        assert_eq!(save(&[0, 398, u32::MAX.into()]).unwrap().get("ids").unwrap().to_vec1::<u32>().unwrap(), [0, 398, u32::MAX]);
        let error = save(&[3, -1]).unwrap_err().to_string();
        assert!(error.ends_with("ids.safetensors: tensor ids: expected integers from 0 to 2^32 - 1, found -1 at index 1"), "{error}");
        let wide: NamedTensors = [("x".to_owned(), Tensor::new(&[1f64], &Device::Cpu).unwrap())].into_iter().collect();
        assert!(wide.save_safetensors(&path).unwrap_err().to_string().starts_with("tensor x: expected F32, F16"));
    }
}
