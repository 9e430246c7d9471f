//! Reading and writing safetensors files strictly: everything the header says is checked against the file's length
//! before memory is taken for it, and every failure is one line that names the file.

use crate::files::{AtomicFile, open_limited};
use crate::ops::Format;
use crate::{Error, Result, one_line};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The largest file that is read: 1 GiB, far above the small networks of this crate.
pub(crate) const FILE_LIMIT: u64 = 1 << 30;
/// The largest header, some 40 000 tensors. A parsed header takes up to 16 times its length.
const HEADER_LIMIT: u64 = 4 << 20;
/// What integers are read, and which dtypes.
const INTEGERS: &str = "integers from 0 to 2^32 - 1";
const READABLE: &str = "F32, F16, BF16, U8, U32, I32 or I64";
/// The header's key for the one JSON string of metadata. One key, because the format keeps them in no order, and two
/// files of the same content should be equal.
const METADATA_KEY: &str = "metadata";

/// A safetensors file whose header has been read and checked.
pub(crate) struct Stored {
    path: PathBuf,
    file: File,
    data_start: u64,
    header: Metadata,
}

impl Stored {
    /// Reads the header: offsets without gap or overlap, sizes that agree with shape and dtype, and a file exactly as
    /// long as they say.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_up_to(path, FILE_LIMIT)
    }

    /// The same of a file of at most `limit` bytes.
    fn open_up_to(path: &Path, limit: u64) -> Result<Self> {
        let (mut file, length) = open_limited(path, limit)?;
        let wrong = |reason: String| Error::file(path, reason);
        if length < 8 {
            return Err(wrong(format!("expected a safetensors file, found {length} bytes")));
        }
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(Error::io(path))?;
        let header_length = u64::from_le_bytes(prefix);
        let limit = HEADER_LIMIT.min(length - 8);
        if header_length > limit {
            return Err(wrong(format!("expected a header of at most {limit} bytes, found {header_length}: truncated, or not safetensors")));
        }
        let mut text = vec![0; header_length as usize];
        file.read_exact(&mut text).map_err(Error::io(path))?;
        let header: Metadata = serde_json::from_slice(&text).map_err(|e| wrong(format!("header: {}", one_line(&e.to_string()))))?;
        let (data, expected) = (length - 8 - header_length, header.data_len() as u64);
        if data != expected {
            let state = if data < expected { "truncated" } else { "too long" };
            return Err(wrong(format!("expected {expected} bytes of tensors, found {data}: {state}")));
        }
        Ok(Self { path: path.to_owned(), file, data_start: 8 + header_length, header })
    }

    /// What the file holds, in name order.
    pub fn tensors(&self) -> BTreeMap<String, &TensorInfo> {
        self.header.tensors().into_iter().collect()
    }

    /// The metadata; null if the file has none.
    pub fn metadata(&self) -> Result<serde_json::Value> {
        let Some(text) = self.header.metadata().as_ref().and_then(|m| m.get(METADATA_KEY)) else {
            return Ok(serde_json::Value::Null);
        };
        serde_json::from_str(text).map_err(|e| Error::file(&self.path, format!("metadata: {}", one_line(&e.to_string()))))
    }

    /// A tensor's bytes as numbers of the size that they are stored in: little-endian in memory as in the file.
    fn raw<T: bytemuck::Pod>(&mut self, info: &TensorInfo) -> Result<Vec<T>> {
        let (start, end) = info.data_offsets;
        self.file.seek(SeekFrom::Start(self.data_start + start as u64)).map_err(Error::io(&self.path))?;
        let mut values = vec![T::zeroed(); (end - start) / size_of::<T>()];
        self.file.read_exact(bytemuck::cast_slice_mut(&mut values)).map_err(Error::io(&self.path))?;
        Ok(values)
    }

    /// The f32 values of 8-bit integers and the factors of their columns, both checked for dtype and shape by the caller.
    pub fn read_scaled(&mut self, name: &str, info: &TensorInfo, scale: (&str, &TensorInfo)) -> Result<(Tensor, Format)> {
        let factors: Vec<f32> = self.raw(scale.1)?;
        if let Some(i) = factors.iter().position(|f| !(f.is_finite() && *f >= 0.0)) {
            return Err(self.wrong(scale.0, "finite numbers that are not negative", format!("{} at index {i}", factors[i])));
        }
        let integers = self.raw::<i8>(info)?.into_iter().map(f32::from);
        let values = integers.zip(factors.iter().cycle()).map(|(q, f)| q * f).collect();
        Ok((self.floats(name, info, values)?, Format::Q8(factors.into())))
    }

    /// One tensor: floats as f32, integers as u32. Numbers must be finite and indices in range.
    pub fn read(&mut self, name: &str, info: &TensorInfo) -> Result<Tensor> {
        let count = info.shape.iter().product();
        match read_as(info.dtype) {
            // Read in place: most parameters are f32.
            Some(DType::F32) if info.dtype == Dtype::F32 => {
                let values = self.raw(info)?;
                self.floats(name, info, values)
            }
            Some(DType::F32) => {
                let mut values = vec![0.0; count];
                decode_f32(info.dtype, &self.raw(info)?, &mut values);
                self.floats(name, info, values)
            }
            Some(_) => {
                let mut values = vec![0; count];
                decode_u32(info.dtype, &self.raw(info)?, &mut values)
                    .map_err(|(i, value)| self.wrong(name, INTEGERS, format!("{value} at index {i}")))?;
                Ok(Tensor::from_vec(values, info.shape.as_slice(), &Device::Cpu)?)
            }
            None => Err(self.wrong(name, READABLE, info.dtype)),
        }
    }

    /// A tensor of this file is not what it should be.
    pub fn wrong(&self, name: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format!("tensor {}: expected {expected}, found {found}", one_line(name)))
    }

    fn floats(&self, name: &str, info: &TensorInfo, values: Vec<f32>) -> Result<Tensor> {
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(self.wrong(name, "finite numbers", format!("{} at index {i}", values[i])));
        }
        Ok(Tensor::from_vec(values, info.shape.as_slice(), &Device::Cpu)?)
    }
}

/// Opens a safetensors file of any size and tells where its tensors lie. The header alone is read, and checked against the file's length:
/// offsets without gap or overlap, sizes that agree with shape and dtype.
///
/// ```
/// # fn main() -> candle_models::Result<()> {
/// use candle_core::{Device, Tensor};
/// use candle_models::tensors::{NamedTensors, index_safetensors};
/// use std::io::{Read, Seek, SeekFrom};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("rows.safetensors");
/// let rows = Tensor::new(&[[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::Cpu)?;
/// NamedTensors::from_iter([("x".to_owned(), rows)]).save_safetensors(&path)?;
/// let (mut file, tensors) = index_safetensors(&path)?;
/// let (x, mut bytes, mut row) = (&tensors["x"], [0; 8], [0.0; 2]);
/// file.seek(SeekFrom::Start(x.bytes(4..6).start)).and_then(|_| file.read_exact(&mut bytes)).unwrap();
/// x.decode_f32(&bytes, &mut row);
/// assert_eq!((x.shape(), row), ([3, 2].as_slice(), [5.0, 6.0]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// In one line with the file: if it is damaged, or no safetensors file.
pub fn index_safetensors(path: impl AsRef<Path>) -> Result<(File, BTreeMap<String, StoredTensor>)> {
    let stored = Stored::open_up_to(path.as_ref(), u64::MAX)?;
    let place = |(name, info): (String, &TensorInfo)| {
        let start = stored.data_start + info.data_offsets.0 as u64;
        (name, StoredTensor { dtype: info.dtype, shape: info.shape.clone(), start })
    };
    let tensors = stored.tensors().into_iter().map(place).collect();
    Ok((stored.file, tensors))
}

/// Where the values of a tensor lie in its file, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
}

impl StoredTensor {
    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// What its values are read as: floats (F32, F16, BF16) as f32, integers (U8, U32, I32, I64) as u32. `None` of another dtype.
    pub fn dtype(&self) -> Option<DType> {
        read_as(self.dtype)
    }

    /// Where some of its values, counted in the order of rows, lie in the file.
    pub fn bytes(&self, values: Range<usize>) -> Range<u64> {
        let width = (self.dtype.bitsize() / 8) as u64;
        self.start + values.start as u64 * width..self.start + values.end as u64 * width
    }

    /// The floats of such bytes. They may be infinite or no numbers.
    pub fn decode_f32(&self, bytes: &[u8], values: &mut [f32]) {
        decode_f32(self.dtype, bytes, values);
    }

    /// The integers of such bytes.
    ///
    /// # Errors
    /// If one is none from 0 to 2^32 - 1: its place, and what it is.
    pub fn decode_u32(&self, bytes: &[u8], values: &mut [u32]) -> Result<(), (usize, i64)> {
        decode_u32(self.dtype, bytes, values)
    }
}

/// A tensor on its way into a file.
pub(crate) struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Entry {
    /// A F32, F16, BF16, U8, U32 or I64 tensor in its own dtype.
    pub fn new(name: &str, tensor: &Tensor) -> Result<Self> {
        let flat = tensor.flatten_all()?;
        let (dtype, bytes) = match tensor.dtype() {
            DType::F32 => (Dtype::F32, flat.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect()),
            DType::F16 => (Dtype::F16, flat.to_vec1::<f16>()?.into_iter().flat_map(f16::to_le_bytes).collect()),
            DType::BF16 => (Dtype::BF16, flat.to_vec1::<bf16>()?.into_iter().flat_map(bf16::to_le_bytes).collect()),
            DType::U8 => (Dtype::U8, flat.to_vec1()?),
            DType::U32 => (Dtype::U32, flat.to_vec1::<u32>()?.into_iter().flat_map(u32::to_le_bytes).collect()),
            DType::I64 => (Dtype::I64, flat.to_vec1::<i64>()?.into_iter().flat_map(i64::to_le_bytes).collect()),
            other => return Err(Error::tensor(name, "F32, F16, BF16, U8, U32 or I64", format!("{other:?}"))),
        };
        Ok(Self { name: name.to_owned(), dtype, shape: tensor.dims().to_vec(), bytes })
    }

    /// 8-bit integers.
    pub fn integers(name: &str, shape: &[usize], integers: Vec<i8>) -> Self {
        let bytes = integers.into_iter().map(|q| q as u8).collect();
        Self { name: name.to_owned(), dtype: Dtype::I8, shape: shape.to_vec(), bytes }
    }
}

/// Writes a file that [`Stored`] reads, with the metadata unless it is null. Complete or absent.
pub(crate) fn write(path: &Path, mut entries: Vec<Entry>, metadata: &serde_json::Value) -> Result<()> {
    // Wide elements first, as the format recommends, so that every tensor is aligned.
    entries.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));
    let mut offset = 0;
    let infos = entries.iter().map(|entry| {
        let start = offset;
        offset += entry.bytes.len();
        (entry.name.clone(), TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets: (start, offset) })
    });
    let text = (!metadata.is_null()).then(|| [(METADATA_KEY.to_owned(), metadata.to_string())].into());
    let header = Metadata::new(text, infos.collect()).map_err(|e| Error::file(path, e))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| Error::file(path, e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > HEADER_LIMIT || (offset + header.len()) as u64 + 8 > FILE_LIMIT {
        let reason =
            format!("{} bytes of header and {offset} of tensors exceed the limits of {HEADER_LIMIT} and {FILE_LIMIT}", header.len());
        return Err(Error::file(path, reason));
    }
    let mut file = AtomicFile::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(Error::io(path))?;
    file.write_all(&header).map_err(Error::io(path))?;
    for entry in entries {
        file.write_all(&entry.bytes).map_err(Error::io(path))?;
    }
    file.commit()
}

/// What values of that dtype are read as.
fn read_as(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => Some(DType::F32),
        Dtype::U8 | Dtype::U32 | Dtype::I32 | Dtype::I64 => Some(DType::U32),
        _ => None,
    }
}

fn decode_f32(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        Dtype::F16 => decode(bytes, |b| f16::from_le_bytes(b).to_f32(), values),
        Dtype::BF16 => decode(bytes, |b| bf16::from_le_bytes(b).to_f32(), values),
        _ => copy(bytes, values),
    }
}

fn decode_u32(dtype: Dtype, bytes: &[u8], values: &mut [u32]) -> Result<(), (usize, i64)> {
    match dtype {
        Dtype::U8 => decode(bytes, |[b]| b.into(), values),
        Dtype::I32 => return decode_signed(bytes, |b| i32::from_le_bytes(b).into(), values),
        Dtype::I64 => return decode_signed(bytes, i64::from_le_bytes, values),
        _ => copy(bytes, values),
    }
    Ok(())
}

/// Numbers in memory are little-endian, as they are in a file.
fn copy<T: bytemuck::Pod>(bytes: &[u8], values: &mut [T]) {
    let values = bytemuck::cast_slice_mut(values);
    let n = values.len().min(bytes.len());
    values[..n].copy_from_slice(&bytes[..n]);
}

fn decode<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T, values: &mut [T]) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = value(*b));
}

fn decode_signed<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> i64, values: &mut [u32]) -> Result<(), (usize, i64)> {
    for (i, (x, b)) in values.iter_mut().zip(bytes.as_chunks().0).enumerate() {
        let value = value(*b);
        *x = u32::try_from(value).map_err(|_| (i, value))?;
    }
    Ok(())
}
