//! Data sets that are made: in files that depend on a description and their number alone.
//!
//! A file is complete or absent. Whoever is asked for a part of the files makes those of them that are missing: a run that was killed goes on where it was,
//! and several processes, jobs of an array or ranks, share the work. When none is missing, a manifest with their hashes is written.

use crate::overlay;
use candle_models::files::{remove_partial, write_atomic};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The description as it was resolved, beside the data.
const DESCRIPTION: &str = "dataset.toml";
/// What all files are.
const MANIFEST: &str = "manifest.json";

/// What a data set is made on: a part of its description, as a GPU rounds in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeOn {
    /// The CPU.
    Cpu,
    /// A GPU.
    Cuda,
}

/// How a data set lies in files.
#[derive(Debug, Clone, Copy)]
pub struct Shards {
    /// What its rows are called, as in `events`.
    pub unit: &'static str,
    /// Rows of the whole.
    pub rows: u64,
    /// Rows of a file.
    pub each: u64,
}

impl Shards {
    fn count(&self) -> u64 {
        self.rows.div_ceil(self.each)
    }

    fn rows_of(&self, shard: u64) -> Range<u64> {
        shard * self.each..((shard + 1) * self.each).min(self.rows)
    }

    fn name(&self, shard: u64) -> String {
        format!("{}-{shard:06}.safetensors", self.unit)
    }

    /// Rows of the files of part `part` of `parts` that are not in a folder.
    pub fn missing(&self, folder: &Path, [part, parts]: [u64; 2]) -> Vec<Range<u64>> {
        let absent = |shard: &u64| !folder.join(self.name(*shard)).exists();
        (0..self.count()).filter(|shard| shard % parts == part).filter(absent).map(|shard| self.rows_of(shard)).collect()
    }

    /// Writes the manifest if no file is missing; says what there is.
    fn finish(&self, folder: &Path, description: &impl Serialize) -> Result<String> {
        let missing = self.missing(folder, [0, 1]).len();
        if missing > 0 {
            return Ok(format!("{missing} files of other parts are missing"));
        }
        let entry = |shard: u64| {
            let (path, rows) = (folder.join(self.name(shard)), self.rows_of(shard));
            let (bytes, hash) = hashed(&path)?;
            let (file, rows) = (self.name(shard), rows.end - rows.start);
            Ok(serde_json::json!({ "file": file, self.unit: rows, "bytes": bytes, "sha256": hash }))
        };
        let files = (0..self.count()).map(entry).collect::<Result<Vec<_>>>()?;
        let manifest = serde_json::json!({ self.unit: self.rows, "dataset": description, "files": files });
        let path = folder.join(MANIFEST);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| Error::file(&path, error.to_string()))?;
        write_atomic(&path, &text)?;
        Ok(format!("{} files of {} {}: {}", files.len(), self.rows, self.unit, path.display()))
    }
}

/// The length of a file, and its SHA-256.
fn hashed(path: &Path) -> Result<(usize, String)> {
    let bytes = std::fs::read(path).map_err(|error| Error::file(path, error.to_string()))?;
    Ok((bytes.len(), Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Makes the files of a part that are missing, `make` the bytes of one from the numbers of its rows. Says how many rows were made, and what there is now.
///
/// # Errors
/// If a data set of another description lies there, a file cannot be made, or the disk is full.
pub fn fill(
    folder: &Path,
    description: &impl Serialize,
    (shards, part): (Shards, [u64; 2]),
    mut make: impl FnMut(Range<u64>) -> Result<Vec<u8>>,
) -> Result<(u64, String)> {
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error.to_string()))?;
    describe(folder, description)?;
    let mut made = 0;
    for rows in shards.missing(folder, part) {
        let path = folder.join(shards.name(rows.start / shards.each));
        // What a killed run left beside it.
        remove_partial(&path)?;
        made += rows.end - rows.start;
        write_atomic(&path, &make(rows)?)?;
    }
    Ok((made, shards.finish(folder, description)?))
}

/// Writes the description, or compares it with the one that lies there.
fn describe(folder: &Path, description: &impl Serialize) -> Result<()> {
    let (path, text) = (folder.join(DESCRIPTION), overlay::to_toml(description)?);
    match std::fs::read_to_string(&path) {
        Ok(found) if found == text => Ok(()),
        Ok(found) => {
            let differs = found.lines().zip(text.lines()).find(|(found, new)| found != new);
            let how = differs.map_or_else(|| "another number of keys".to_owned(), |(found, new)| format!("`{found}` there, `{new}` here"));
            Err(Error::file(&path, format!("data of another description: {how}; name another folder")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => write_atomic(&path, text.as_bytes()),
        Err(error) => Err(Error::file(&path, error.to_string())),
    }
}

/// The files of a data set that is complete, in their order.
///
/// # Errors
/// If there is no manifest, it cannot be read or names what is no file of its folder, or a file is another one than it says.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let path = folder.join(MANIFEST);
    let text = std::fs::read(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::file(folder, format!("no data set, or one that is not complete: {MANIFEST} is missing")),
        _ => Error::file(&path, error.to_string()),
    })?;
    let Manifest { files } = serde_json::from_slice(&text).map_err(|error| Error::file(&path, error.to_string()))?;
    let file = |Entry { file, sha256 }: Entry| {
        if Path::new(&file).file_name() != Some(file.as_ref()) {
            return Err(Error::file(&path, format!("expected names of files beside it, found {file:?}")));
        }
        let file = folder.join(file);
        match hashed(&file)?.1 == sha256 {
            true => Ok(file),
            false => Err(Error::file(
                &file,
                format!("not the file that {MANIFEST} says: its SHA-256 differs; remove both and make the data set again"),
            )),
        }
    };
    files.into_iter().map(file).collect()
}

/// What is read of a manifest.
#[derive(Deserialize)]
struct Manifest {
    files: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    file: String,
    sha256: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is another one than the manifest says is refused, and so is a manifest that leads out of its folder, or is none.
    #[test]
    fn files_are_those_of_the_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let shards = Shards { unit: "rows", rows: 5, each: 2 };
        let description = serde_json::json!({ "seed": 1 });
        let make = |rows: Range<u64>| Ok(rows.map(|row| row as u8).collect());
        let missing = files(folder).unwrap_err().to_string();
        assert!(missing.contains("manifest.json is missing"), "{missing}");
        fill(folder, &description, (shards, [0, 2]), make).unwrap();
        assert!(files(folder).is_err(), "the files of the other part are missing");
        assert_eq!(fill(folder, &description, (shards, [1, 2]), make).unwrap().0, 2);
        let found = files(folder).unwrap();
        assert_eq!(found, [0, 1, 2].map(|i| folder.join(shards.name(i))));
        std::fs::write(&found[1], [2, 4]).unwrap();
        let other = files(folder).unwrap_err().to_string();
        assert!(other.contains("rows-000001.safetensors") && other.contains("its SHA-256 differs"), "{other}");
        std::fs::remove_file(&found[1]).unwrap();
        assert!(files(folder).is_err());
        fill(folder, &description, (shards, [0, 1]), make).unwrap();
        assert_eq!(files(folder).unwrap(), found);
        let path = folder.join(MANIFEST);
        let text = std::fs::read_to_string(&path).unwrap();
        for (name, message) in
            [("../rows-000001.safetensors", "expected names of files beside it"), ("", "expected names of files beside it")]
        {
            std::fs::write(&path, text.replace("rows-000001.safetensors", name)).unwrap();
            let error = files(folder).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        std::fs::write(&path, "{").unwrap();
        assert!(files(folder).unwrap_err().to_string().contains("manifest.json"));
    }
}
