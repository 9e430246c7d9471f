//! A checkpoint as files: written once through a hash, synced, and checked when they are read.

use super::{Checkpoint, FORMAT, MANIFEST, Manifest, STATE};
use candle_core::{Device, safetensors::load_buffer};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result, hex};
use safetensors::tensor::{Metadata, TensorInfo, View};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// How a file to write is opened.
pub(super) type Create<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// Writes what is a checkpoint's into a new directory, the manifest last, and everything to the disk.
pub(super) fn write(path: &Path, checkpoint: &Checkpoint, create: Create) -> Result<()> {
    fs::create_dir(path).map_err(Error::io(path))?;
    let mut files = BTreeMap::new();
    for (group, tensors) in &checkpoint.tensors {
        let name = format!("{group}.safetensors");
        let hash = write_file(&path.join(&name), create, |file| write_tensors(file, tensors))?;
        files.insert(name, hash);
    }
    files.extend(checkpoint.files.move_to(path)?);
    let state = json(path, &checkpoint.state)?;
    files.insert(STATE.to_owned(), write_bytes(&path.join(STATE), &state, create)?);
    let manifest = Manifest { format: FORMAT, step: checkpoint.step, score: checkpoint.score, files };
    write_bytes(&path.join(MANIFEST), &json(path, &manifest)?, create)?;
    sync_directory(path)
}

/// Reads a checkpoint whose every file has the hash that its manifest says.
pub(super) fn read(path: &Path) -> Result<Checkpoint> {
    let manifest = read_manifest(path)?;
    let mut checkpoint = Checkpoint { step: manifest.step, score: manifest.score, ..Checkpoint::default() };
    for (name, hash) in &manifest.files {
        if checkpoint.files.found(path, name, hash)? {
            continue;
        }
        let file = path.join(name);
        let bytes = fs::read(&file).map_err(Error::io(&file))?;
        if hex(Sha256::digest(&bytes)) != *hash {
            return Err(Error::file(&file, "damaged: its hash is not the manifest's"));
        }
        if name == STATE {
            checkpoint.state = serde_json::from_slice(&bytes).map_err(|e| Error::file(&file, e))?;
        } else if let Some(group) = name.strip_suffix(".safetensors") {
            checkpoint.tensors.insert(group.to_owned(), load_buffer(&bytes, &Device::Cpu)?.into_iter().collect());
        }
    }
    Ok(checkpoint)
}

pub(super) fn read_manifest(path: &Path) -> Result<Manifest> {
    let file = path.join(MANIFEST);
    let bytes = fs::read(&file).map_err(Error::io(&file))?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| Error::file(&file, format!("damaged: {e}")))?;
    if manifest.format != FORMAT {
        return Err(Error::file(&file, format!("expected checkpoint format {FORMAT}, found {}", manifest.format)));
    }
    Ok(manifest)
}

pub(super) fn json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|e| Error::file(path, e))
}

/// Writes a file and gives the SHA-256 of its content, in hexadecimal.
pub(super) fn write_bytes(path: &Path, bytes: &[u8], create: Create) -> Result<String> {
    write_file(path, create, |file| file.write_all(bytes))
}

/// Writes a file, syncs it, and gives the SHA-256 of its content, in hexadecimal.
pub(super) fn write_file(path: &Path, create: Create, write: impl FnOnce(&mut Hashed) -> io::Result<()>) -> Result<String> {
    let open = || -> io::Result<String> {
        let mut file = Hashed { file: create(path)?, hash: Sha256::new() };
        write(&mut file)?;
        file.file.sync_all()?;
        Ok(hex(file.hash.finalize()))
    };
    open().map_err(Error::io(path))
}

/// The SHA-256 of a file's content, in hexadecimal, in memory that does not grow with it.
pub(super) fn hash_of_file(path: &Path) -> Result<String> {
    let read = || -> io::Result<String> {
        let (mut file, mut hash, mut part) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut part)? {
                0 => return Ok(hex(hash.finalize())),
                n => hash.update(&part[..n]),
            }
        }
    };
    read().map_err(Error::io(path))
}

/// A file that hashes what goes into it. Without a buffer: all but the first bytes come by the tensor.
pub(super) struct Hashed {
    file: File,
    hash: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The safetensors format, tensor by tensor: the crate's own functions either hold the whole file in memory or open it themselves.
fn write_tensors(file: &mut Hashed, tensors: &NamedTensors) -> io::Result<()> {
    let mut tensors: Vec<_> = tensors.iter().collect();
    // As the format's own writer does: wide types first, so that every tensor is aligned.
    tensors.sort_by(|a, b| View::dtype(&b.1).cmp(&View::dtype(&a.1)).then(a.0.cmp(b.0)));
    let mut end = 0;
    let place = |(name, tensor): &(&str, &candle_core::Tensor)| {
        let start = end;
        end += tensor.data_len();
        let info = TensorInfo { dtype: View::dtype(tensor), shape: tensor.dims().to_vec(), data_offsets: (start, end) };
        ((*name).to_owned(), info)
    };
    let places = tensors.iter().map(place).collect();
    let mut header = serde_json::to_vec(&Metadata::new(None, places).map_err(io::Error::other)?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    tensors.iter().try_for_each(|(_, tensor)| file.write_all(&tensor.data()))
}

pub(super) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Tensor};

    #[test]
    fn tensors_are_written_as_the_format_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        let tensor = |n: usize, dtype: DType| Tensor::arange(0, n as u32, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let named = [("a", tensor(3, DType::U8)), ("b", tensor(5, DType::F32)), ("c", tensor(2, DType::I64)), ("d", tensor(0, DType::F32))];
        let tensors: NamedTensors = named.into_iter().map(|(name, t)| (name.to_owned(), t)).collect();
        let hash = write_file(&path, &|path| File::create(path), |file| write_tensors(file, &tensors)).unwrap();
        let expected = safetensors::serialize(tensors.iter(), None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(hash, hex(Sha256::digest(expected)));
    }
}
