//! Data sets of named tensors on disk, of any size.
//!
//! A data set is a folder of safetensors files, or one file. Each file has every tensor that the specs describe, with the same axes before
//! the described ones: `[N, ...]`, rows one behind the other, or `[N, T, ...]`, sequences of rows side by side. Floats are stored as F32,
//! F16 or BF16, indices as U8, U32, I32 or I64. Where rows are the frames of episodes, `reset` `[N]` or `[N, T]`, integers 0 and 1, may say
//! where one begins; the first row of a file and of each of its sequences always begins one. What else lies in a file is not read.
//!
//! [`Dataset::open`] reads headers, and `reset`. Rows are read when they are asked for, with positioned reads and not through a map of the
//! file: where a file is cut while a run goes on, a read is an error with its name, and a map would end the process by SIGBUS. The process
//! holds the rows that it asked for, whatever the set's size; what the system keeps of the files beside them is its page cache. Values are
//! checked as they are read. A file that is no longer the one that was opened, by size, inode and times, is refused.
//!
//! [`Loader`] makes batches of it for a [`Task`](crate::task::Task), ahead of the training. The order of an epoch follows from its address:
//! a run that is resumed goes on at the number of its batch, with nothing to save.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_models::{random::Random, signature::TensorSpec, tensors::NamedTensors};
//! use candle_train::dataset::{Dataset, Loader, Order};
//! use candle_train::parallel::Single;
//! use std::sync::Arc;
//!
//! # fn main() -> candle_models::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! let rows = |n: u32| -> candle_models::Result<NamedTensors> {
//!     let x = Tensor::arange(0f32, n as f32, &Device::Cpu)?.reshape((n as usize, 1))?;
//!     let class = Tensor::arange(0u32, n, &Device::Cpu)?.reshape((n as usize, 1))?;
//!     Ok([("x".to_owned(), x), ("class".to_owned(), class)].into_iter().collect())
//! };
//! rows(30)?.save_safetensors(folder.path().join("first.safetensors"))?;
//! rows(12)?.save_safetensors(folder.path().join("second.safetensors"))?;
//!
//! let specs = [TensorSpec::f32("x", &[1]).within(0.0..100.0), TensorSpec::u32("class", &[1]).below(&[30])];
//! let data = Arc::new(Dataset::open(folder.path(), &specs)?);
//! let mut loader = Loader::new(data, Order::Rows(8), Random::new(1), &Single, &Device::Cpu)?;
//! assert_eq!(loader.batches_per_epoch(), 5);
//! let batch = loader.get(17)?;
//! assert_eq!(batch.tensors.get("class")?.dims(), [8, 1]);
//! # Ok(())
//! # }
//! ```

mod element;
mod loader;
#[cfg(test)]
mod tests;

pub use element::Element;
pub use loader::{Batch, Loader, Order};

use crate::stamp::Stamp;
use candle_core::{DType, Device, Tensor};
use candle_models::signature::TensorSpec;
use candle_models::tensors::{NamedTensors, StoredTensor, index_safetensors};
use candle_models::{Error, Result, hex};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What the files of a folder are called.
const EXTENSION: &str = "safetensors";
/// Says where episodes begin.
const RESET: &str = "reset";
/// Files that are held open at most: systems allow a process some 1000.
const OPEN: usize = 128;
/// Values that are read at a time where all of them are.
const BLOCK: usize = 1 << 16;

/// Rows of named tensors in files, or in memory.
#[derive(Debug)]
pub struct Dataset {
    specs: Vec<TensorSpec>,
    parts: Vec<Part>,
    /// Rows before each part, and of all.
    starts: Vec<usize>,
    /// The files that were read last, the latest first.
    held: Mutex<VecDeque<(usize, Arc<File>)>>,
}

/// A file of a data set.
#[derive(Debug)]
pub struct Part {
    /// The file, or the name of what is in memory.
    path: PathBuf,
    values: Values,
    /// Axes before those that the specs describe.
    leading: Vec<usize>,
    episodes: Vec<Range<usize>>,
    unused: Vec<String>,
}

/// Where values lie, tensor by tensor in the order of the specs.
#[derive(Debug)]
enum Values {
    Stored(Stamp, Vec<StoredTensor>),
    Memory(Vec<Tensor>),
}

/// What a file holds: found by reading all of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// SHA-256 of its values and of where its episodes begin, in hexadecimal.
    pub hash: String,
    /// The mean square of each tensor.
    pub mean_squares: Vec<f64>,
}

impl Part {
    /// The file's name, without its folders.
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(|| self.path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// Its rows.
    pub fn rows(&self) -> usize {
        self.leading.iter().product()
    }

    /// Rows of each of its episodes.
    pub fn episodes(&self) -> &[Range<usize>] {
        &self.episodes
    }

    /// Tensors in it that no spec describes.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }
}

impl Dataset {
    /// Looks at the files `*.safetensors` of a folder, in the order of their names, or at one file.
    ///
    /// # Errors
    /// If there are none; if a file is damaged, or lacks a tensor or has it with another dtype or shape: with file and tensor.
    pub fn open(path: impl AsRef<Path>, specs: &[TensorSpec]) -> Result<Self> {
        let path = path.as_ref();
        let mut files: Vec<PathBuf> = vec![path.to_owned()];
        if path.is_dir() {
            let entries = fs::read_dir(path).map_err(Error::io(path))?;
            files = entries.map(|entry| Ok(entry.map_err(Error::io(path))?.path())).collect::<Result<_>>()?;
            files.retain(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
            files.sort();
        }
        if files.is_empty() {
            return Err(Error::file(path, format!("expected files *.{EXTENSION}, found none")));
        }
        let parts = files.iter().map(|file| {
            let (opened, tensors) = index_safetensors(file)?;
            let stamp = Stamp::of(&opened.metadata().map_err(Error::io(file))?);
            let shapes = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.dtype(), tensor.shape()))).collect();
            let layout = Layout::new(&shapes, specs).map_err(|e| Error::file(file, e))?;
            let stored = layout.tensors(specs).map(|name| tensors[name].clone()).collect();
            Ok(layout.part(file.clone(), Values::Stored(stamp, stored)))
        });
        Self::of(parts.collect::<Result<_>>()?, specs)
    }

    /// Tensors in memory, under a name.
    ///
    /// # Errors
    /// As those of a file; a dtype is F32 or U32.
    pub fn new(name: &str, tensors: &NamedTensors, specs: &[TensorSpec]) -> Result<Self> {
        let dtype = |tensor: &Tensor| Some(tensor.dtype()).filter(|dtype| [DType::F32, DType::U32].contains(dtype));
        let shapes = tensors.iter().map(|(name, tensor)| (name, (dtype(tensor), tensor.dims()))).collect();
        let layout = Layout::new(&shapes, specs)?;
        let columns = layout.tensors(specs).map(|name| Ok(tensors.get(name)?.flatten_all()?)).collect::<Result<_>>()?;
        Self::of(vec![layout.part(name.into(), Values::Memory(columns))], specs)
    }

    fn of(parts: Vec<Part>, specs: &[TensorSpec]) -> Result<Self> {
        let held = Mutex::new(VecDeque::new());
        let mut all = Self { specs: specs.to_vec(), parts, starts: Vec::new(), held };
        for part in 0..all.parts.len() {
            all.parts[part].episodes = all.find_episodes(part)?;
        }
        let mut rows = 0;
        all.starts = std::iter::once(0).chain(all.parts.iter().map(|part| (rows += part.rows(), rows).1)).collect();
        Ok(all)
    }

    /// What its tensors are.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Its files.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Rows of all files.
    pub fn rows(&self) -> usize {
        self.starts[self.parts.len()]
    }

    /// The file of a row, counted through all files, and the row in it.
    fn place(&self, row: usize) -> (usize, usize) {
        let part = self.starts.partition_point(|start| *start <= row) - 1;
        (part, row - self.starts[part])
    }

    /// Reads some rows of a tensor, by its place among the specs, from a file, by its place among the files.
    ///
    /// # Errors
    /// If the file has changed or cannot be read; if a value is none that the spec allows: with file, tensor and row. If `out` has not
    /// the length of these rows, or the tensor holds the other kind of values.
    pub fn read<T: Element>(&self, (part, tensor): (usize, usize), rows: Range<usize>, out: &mut [T]) -> Result<()> {
        self.read_as(&self.specs[tensor], (part, tensor), rows, out)
    }

    fn read_as<T: Element>(&self, spec: &TensorSpec, (part, tensor): (usize, usize), rows: Range<usize>, out: &mut [T]) -> Result<()> {
        let (number, part, width) = (part, &self.parts[part], spec.width());
        if rows.end > part.rows() || rows.len() * width != out.len() || spec.dtype() != T::DTYPE {
            let wanted = format!("{} values of {:?} for rows {rows:?} of {}", rows.len() * width, spec.dtype(), part.rows());
            return Err(Error::tensor(&spec.name, wanted, format!("{} of {:?}", out.len(), T::DTYPE)));
        }
        let values = rows.start * width..rows.end * width;
        let (stamp, stored) = match &part.values {
            Values::Stored(stamp, stored) => (stamp, &stored[tensor]),
            Values::Memory(columns) => {
                out.copy_from_slice(&columns[tensor].narrow(0, values.start, values.len())?.to_vec1()?);
                return T::check(spec, rows.start, out);
            }
        };
        let wrong = |e: Error| Error::file(&part.path, e);
        let file = self.file(number)?;
        let place = stored.bytes(values);
        let mut bytes = vec![0; (place.end - place.start) as usize];
        let read = file
            .metadata()
            .and_then(|found| if Stamp::of(&found) == *stamp { file.read_exact_at(&mut bytes, place.start) } else { Err(changed()) });
        read.map_err(Error::io(&part.path))?;
        T::decode(stored, &bytes, out).map_err(|(at, value)| {
            let found = format!("{value} in column {} of row {}", at % width, rows.start + at / width);
            wrong(Error::tensor(&spec.name, "integers from 0 to 2^32 - 1", found))
        })?;
        T::check(spec, rows.start, out).map_err(wrong)
    }

    /// Reads some rows of all tensors, counted through all files: `[n, ...]` by name, on the host.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn tensors(&self, rows: Range<usize>) -> Result<NamedTensors> {
        let named = |(tensor, spec): (usize, &TensorSpec)| {
            let values = match spec.dtype() {
                DType::F32 => self.tensor::<f32>(tensor, rows.clone())?,
                _ => self.tensor::<u32>(tensor, rows.clone())?,
            };
            Ok((spec.name.clone(), values))
        };
        self.specs.iter().enumerate().map(named).collect()
    }

    fn tensor<T: Element>(&self, tensor: usize, rows: Range<usize>) -> Result<Tensor> {
        let (spec, mut row) = (&self.specs[tensor], rows.start);
        let mut values = vec![T::default(); rows.len() * spec.width()];
        while row < rows.end {
            let (part, first) = self.place(row);
            let count = (rows.end - row).min(self.parts[part].rows() - first);
            let at = (row - rows.start) * spec.width();
            self.read((part, tensor), first..first + count, &mut values[at..at + count * spec.width()])?;
            row += count;
        }
        Ok(Tensor::from_vec(values, [&[rows.len()], &spec.shape[..]].concat(), &Device::Cpu)?)
    }

    /// Reads every value of every file once, several files at a time: what a run notes of its data, so that it is not continued with other
    /// data. That takes as long as the disk needs, and checks every value before the first step.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn contents(&self) -> Result<Vec<Contents>> {
        (0..self.parts.len()).into_par_iter().map(|part| self.contents_of(part)).collect()
    }

    fn contents_of(&self, part: usize) -> Result<Contents> {
        let (mut hash, mut mean_squares) = (Sha256::new(), Vec::with_capacity(self.specs.len()));
        for (tensor, spec) in self.specs.iter().enumerate() {
            mean_squares.push(match spec.dtype() {
                DType::F32 => self.scan::<f32>(spec, (part, tensor), &mut hash)?,
                _ => self.scan::<u32>(spec, (part, tensor), &mut hash)?,
            });
        }
        self.parts[part].episodes.iter().for_each(|episode| hash.update((episode.start as u64).to_le_bytes()));
        Ok(Contents { hash: hex(hash.finalize()), mean_squares })
    }

    /// Takes in a tensor of a file; gives the mean of its squares.
    fn scan<T: Element>(&self, spec: &TensorSpec, place: (usize, usize), hash: &mut Sha256) -> Result<f64> {
        let (mut squares, mut values) = (0.0, Vec::new());
        self.for_blocks(spec, place, &mut values, |values: &[T]| {
            hash.update(bytemuck::cast_slice(values));
            squares += values.iter().map(|x| x.to_f64().powi(2)).sum::<f64>();
        })?;
        Ok(squares / (self.parts[place.0].rows() * spec.width()).max(1) as f64)
    }

    fn for_blocks<T: Element>(
        &self,
        spec: &TensorSpec,
        place: (usize, usize),
        values: &mut Vec<T>,
        mut see: impl FnMut(&[T]),
    ) -> Result<()> {
        let (rows, step) = (self.parts[place.0].rows(), (BLOCK / spec.width().max(1)).max(1));
        for start in (0..rows).step_by(step) {
            let block = start..rows.min(start + step);
            values.resize(block.len() * spec.width(), T::default());
            self.read_as(spec, place, block, values)?;
            see(values);
        }
        Ok(())
    }

    /// Where episodes begin: at the first row of every sequence, and where `reset` says so.
    fn find_episodes(&self, part: usize) -> Result<Vec<Range<usize>>> {
        let Part { leading, values, .. } = &self.parts[part];
        let (rows, length) = (self.parts[part].rows(), leading[leading.len() - 1]);
        let mut starts: Vec<usize> = (0..rows).step_by(length).collect();
        let columns = match values {
            Values::Stored(_, stored) => stored.len(),
            Values::Memory(columns) => columns.len(),
        };
        if columns > self.specs.len() {
            let mut row = 0;
            self.for_blocks(&reset(), (part, self.specs.len()), &mut Vec::new(), |flags: &[u32]| {
                let begins = |(i, flag): (usize, &u32)| (*flag == 1 && !(row + i).is_multiple_of(length)).then_some(row + i);
                starts.extend(flags.iter().enumerate().filter_map(begins));
                row += flags.len();
            })?;
            starts.sort_unstable();
        }
        starts.push(rows);
        Ok(starts.windows(2).map(|pair| pair[0]..pair[1]).collect())
    }

    /// The file of a part: one of those that are held open, or opened now.
    fn file(&self, number: usize) -> Result<Arc<File>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let known = held.iter().position(|(part, _)| *part == number).and_then(|at| held.remove(at));
        let path = &self.parts[number].path;
        let (_, file) = match known {
            Some(known) => known,
            None => (number, Arc::new(File::open(path).map_err(Error::io(path))?)),
        };
        held.push_front((number, file.clone()));
        held.truncate(OPEN);
        Ok(file)
    }
}

fn reset() -> TensorSpec {
    TensorSpec::u32(RESET, &[]).below(&[2])
}

fn changed() -> std::io::Error {
    std::io::Error::other("the file has changed since it was opened")
}

/// How a file's tensors are laid out.
struct Layout {
    leading: Vec<usize>,
    resets: bool,
    unused: Vec<String>,
}

impl Layout {
    /// Checks dtypes and shapes against the specs. The first of them says what the leading axes are.
    fn new(found: &BTreeMap<&str, (Option<DType>, &[usize])>, specs: &[TensorSpec]) -> Result<Self> {
        let get = |name: &str| {
            let names = || found.keys().copied().collect::<Vec<_>>().join(", ");
            found.get(name).copied().ok_or_else(|| Error::tensor(name, "to be present", format!("only [{}]", names())))
        };
        let first = specs.first().ok_or_else(|| Error::Input("a data set without tensors".to_owned()))?;
        let (_, dims) = get(&first.name)?;
        let leading = &dims[..dims.len().saturating_sub(first.shape.len())];
        if !(1..=2).contains(&leading.len()) {
            let behind: String = first.shape.iter().map(|n| format!(", {n}")).collect();
            let expected = format!("[rows{behind}] or [sequences, rows{behind}]");
            return Err(Error::tensor(&first.name, expected, format!("{dims:?}")));
        }
        if leading.contains(&0) {
            return Err(Error::tensor(&first.name, "at least one row", format!("{dims:?}")));
        }
        let resets = found.contains_key(RESET) && specs.iter().all(|spec| spec.name != RESET);
        for spec in specs.iter().chain(resets.then(reset).as_ref()) {
            let (dtype, dims) = get(&spec.name)?;
            let expected: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
            let kind = |dtype| if dtype == Some(DType::F32) { "floats" } else { "integers" };
            if dims != expected || dtype.is_none() || kind(dtype) != kind(Some(spec.dtype())) {
                let found = if dtype.is_none() { "another dtype" } else { kind(dtype) };
                return Err(Error::tensor(&spec.name, format!("{} {expected:?}", kind(Some(spec.dtype()))), format!("{found} {dims:?}")));
            }
        }
        let known = |name: &str| name == RESET || specs.iter().any(|spec| spec.name == name);
        let unused = found.keys().filter(|name| !known(name)).map(|name| (*name).to_owned()).collect();
        Ok(Self { leading: leading.to_vec(), resets, unused })
    }

    /// The names of what is read, in order.
    fn tensors<'a>(&self, specs: &'a [TensorSpec]) -> impl Iterator<Item = &'a str> {
        specs.iter().map(|spec| spec.name.as_str()).chain(self.resets.then_some(RESET))
    }

    fn part(self, path: PathBuf, values: Values) -> Part {
        Part { path, values, leading: self.leading, episodes: Vec::new(), unused: self.unused }
    }
}
