//! Where results go: a table on standard output, JSON lines, or named tensors. A file is complete or absent.

use crate::files::AtomicFile;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A result could not be written: no other input can help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failed(#[from] crate::Error);

type Result<T> = std::result::Result<T, Failed>;

/// A column of results: a value per frame and sequence, or per sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The tensor's name.
    pub name: String,
    /// Floats, indices, or frame numbers.
    pub dtype: Dtype,
    /// The shape of one value.
    pub shape: Vec<usize>,
}

impl Column {
    /// A column by name, dtype and shape of one value.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec() }
    }
}

/// Where results go.
pub enum Output {
    /// Lines on standard output.
    Table,
    /// One JSON object per line.
    Lines(PathBuf, AtomicFile),
    /// Tensors `[sequences, frames, ...]`, or `[sequences, ...]`; opened when their sizes are known.
    Tensors(PathBuf, Option<TensorFile>),
}

impl Output {
    /// The output for `--out`: by the file's extension.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::Table) };
        match path.extension().and_then(|e| e.to_str()) {
            Some("jsonl") => Ok(Self::Lines(path.to_owned(), AtomicFile::create(path).map_err(Failed)?)),
            Some("safetensors") => {
                // Fails now, not after the first input was read, where the file cannot be written.
                drop(AtomicFile::create(path).map_err(Failed)?);
                Ok(Self::Tensors(path.to_owned(), None))
            }
            _ => Err(crate::cli::Usage::error(format!("--out {}: expected a name in .jsonl or .safetensors", path.display()))),
        }
    }

    /// A JSON object as a line; nothing where lines are not wanted.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let Self::Lines(path, file) = self else { return Ok(()) };
        let written = serde_json::to_writer(&mut *file, value).map_err(io::Error::from).and_then(|()| file.write_all(b"\n"));
        written.map_err(|e| Failed(crate::Error::io(path)(e)))
    }

    /// Starts the tensors of an input of so many sequences and frames, `leading` being one of `[sequences]` and `[sequences,
    /// frames]`; nothing where tensors are not wanted.
    pub fn start_tensors(&mut self, columns: &[Column], leading: &[usize]) -> Result<()> {
        let Self::Tensors(path, file) = self else { return Ok(()) };
        *file = Some(TensorFile::create(path, columns, leading)?);
        Ok(())
    }

    /// The value of a column for a sequence and frame as little-endian bytes; nothing where tensors are not wanted.
    pub fn value(&mut self, column: usize, sequence: usize, frame: usize, bytes: impl Iterator<Item = [u8; 4]>) -> Result<()> {
        let Self::Tensors(path, Some(file)) = self else { return Ok(()) };
        file.put(column, sequence, frame, bytes).map_err(|e| Failed(crate::Error::io(path)(e)))
    }

    /// Puts a file in its place.
    pub fn commit(self) -> Result<()> {
        match self {
            Self::Lines(_, file) | Self::Tensors(_, Some(TensorFile { file, .. })) => Ok(file.commit()?),
            Self::Table | Self::Tensors(_, None) => Ok(()),
        }
    }
}

/// Writes a line to standard output.
pub fn line(text: impl Display) -> Result<()> {
    print(format_args!("{text}\n"))
}

/// Writes a text to standard output.
pub(super) fn print(text: impl Display) -> Result<()> {
    write!(io::stdout().lock(), "{text}").map_err(|e| Failed(crate::Error::io("standard output")(e)))
}

/// A safetensors file whose values arrive frame by frame.
pub struct TensorFile {
    file: AtomicFile,
    frames: usize,
    /// Where each column's values begin in the file, and the bytes of one.
    columns: Vec<(u64, usize)>,
    buffer: Vec<u8>,
}

impl TensorFile {
    fn create(path: &Path, columns: &[Column], leading: &[usize]) -> Result<Self> {
        let (mut end, values) = (0, leading.iter().product::<usize>());
        let mut places = Vec::with_capacity(columns.len());
        let infos = columns.iter().map(|column| {
            let width = column.shape.iter().product::<usize>() * column.dtype.bitsize() / 8;
            let start = end;
            end += width * values;
            places.push((start as u64, width));
            let shape = leading.iter().chain(&column.shape).copied().collect();
            (column.name.clone(), TensorInfo { dtype: column.dtype, shape, data_offsets: (start, end) })
        });
        let infos: Vec<_> = infos.collect();
        let wrong = |reason: String| Failed(crate::Error::file(path, reason));
        let header = Metadata::new(None, infos).map_err(|e| wrong(e.to_string()))?;
        let mut header = serde_json::to_vec(&header).map_err(|e| wrong(e.to_string()))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = AtomicFile::create(path)?;
        let start = 8 + header.len() as u64;
        let written = file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header));
        written.map_err(crate::Error::io(path))?;
        let frames = leading.get(1).copied().unwrap_or(1);
        Ok(Self { file, frames, columns: places.into_iter().map(|(at, width)| (start + at, width)).collect(), buffer: Vec::new() })
    }

    fn put(&mut self, column: usize, sequence: usize, frame: usize, bytes: impl Iterator<Item = [u8; 4]>) -> io::Result<()> {
        let (start, width) = self.columns[column];
        self.buffer.clear();
        self.buffer.extend(bytes.flatten());
        if self.buffer.len() != width || frame >= self.frames {
            return Err(io::Error::other(format!("{} bytes for frame {frame} of {}", self.buffer.len(), self.frames)));
        }
        self.file.seek(SeekFrom::Start(start + ((sequence * self.frames + frame) * width) as u64))?;
        self.file.write_all(&self.buffer)
    }
}
