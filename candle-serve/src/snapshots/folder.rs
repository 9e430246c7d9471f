//! Snapshots in files.

use super::Store;
use candle_models::Error;
use candle_models::files::write_atomic;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const EXTENSION: &str = "safetensors";
/// In the names of files that are being written, or that a server that was killed has left half-written.
const UNFINISHED: &str = ".safetensors.tmp-";

/// A folder with a folder for each model.
pub(crate) struct Folder {
    path: PathBuf,
    /// How long a file is kept that is not written again.
    keep: Option<Duration>,
}

impl Folder {
    /// The folder at `path`, which is made if there is none.
    pub fn open(path: &Path, keep: Option<Duration>) -> candle_models::Result<Self> {
        std::fs::create_dir_all(path).map_err(Error::io(path))?;
        Ok(Self { path: path.to_owned(), keep })
    }

    fn file(&self, model: &str, key: &str) -> PathBuf {
        self.path.join(model).join(format!("{key}.{EXTENSION}"))
    }
}

impl Store for Folder {
    fn put(&self, model: &str, key: &str, bytes: &[u8]) -> candle_models::Result<()> {
        let folder = self.path.join(model);
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        write_atomic(self.file(model, key), bytes)
    }

    fn get(&self, model: &str, key: &str) -> candle_models::Result<Option<Vec<u8>>> {
        let path = self.file(model, key);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(path)(error)),
        }
    }

    fn remove(&self, model: &str, key: &str) -> candle_models::Result<()> {
        gone(&self.file(model, key))
    }

    fn sweep(&self) -> candle_models::Result<()> {
        let Some(before) = self.keep.and_then(|keep| SystemTime::now().checked_sub(keep)) else { return Ok(()) };
        for model in entries(&self.path)?.into_iter().filter(|path| path.is_dir()) {
            entries(&model)?.iter().filter(|path| is_snapshot(path)).try_for_each(|path| sweep(path, before))?;
        }
        Ok(())
    }
}

fn entries(folder: &Path) -> candle_models::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    entries.map_err(Error::io(folder))
}

/// Whether it is a file of ours, complete or not: a folder may have others.
fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name =
        name.strip_prefix('.').and_then(|name| name.split_once(UNFINISHED).map(|(key, _)| key)).or(name.strip_suffix(".safetensors"));
    name.is_some_and(|key| key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Removes a file that was last written before that. Another server may have been faster.
fn sweep(path: &Path, before: SystemTime) -> candle_models::Result<()> {
    match std::fs::metadata(path).and_then(|found| found.modified()) {
        Ok(modified) if modified < before => gone(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

fn gone(path: &Path) -> candle_models::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}
