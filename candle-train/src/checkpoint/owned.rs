//! Files that a task owns: what is too large to be held in memory a second time, as a replay buffer.
//!
//! Every rank streams its own below `task/rank-R/` of the checkpoint, into a directory aside that becomes part of the checkpoint by a
//! rename. So ranks whose task has files share the disk of the run's directory.

use super::PARTIAL;
use super::files::{hash_of_file, sync_directory, write_file};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Component, Path, PathBuf};

/// Their folder in a checkpoint.
pub(super) const FOLDER: &str = "task";

/// Files of a task, by their path below a directory, with the SHA-256 of their content in hexadecimal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFiles {
    /// Where they are: aside until the checkpoint is written, then in it.
    pub directory: PathBuf,
    /// `rank-0/replay` and its hash.
    pub hashes: BTreeMap<String, String>,
}

impl TaskFiles {
    /// Moves the files into a checkpoint that is being written. Gives their names there.
    pub(super) fn move_to(&self, checkpoint: &Path) -> Result<BTreeMap<String, String>> {
        if self.hashes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let folder = checkpoint.join(FOLDER);
        fs::rename(&self.directory, &folder).map_err(Error::io(&self.directory))?;
        for name in self.hashes.keys() {
            let path = folder.join(name);
            if !path.is_file() {
                return Err(Error::file(&path, "not there: ranks whose task has files share the disk of the run's directory"));
            }
        }
        sync_directory(&folder)?;
        Ok(self.hashes.iter().map(|(name, hash)| (format!("{FOLDER}/{name}"), hash.clone())).collect())
    }

    /// Takes in a file that a checkpoint's manifest names, if it is one of a task.
    pub(super) fn found(&mut self, checkpoint: &Path, name: &str, hash: &str) -> Result<bool> {
        let Some(own) = name.strip_prefix(FOLDER).and_then(|name| name.strip_prefix('/')) else { return Ok(false) };
        let path = checkpoint.join(name);
        if hash_of_file(&path)? != *hash {
            return Err(Error::file(&path, "damaged: its hash is not the manifest's"));
        }
        self.directory = checkpoint.join(FOLDER);
        self.hashes.insert(own.to_owned(), hash.to_owned());
        Ok(true)
    }

    /// Removes what did not become part of a checkpoint.
    pub(super) fn discard(&self) {
        if !self.hashes.is_empty() {
            let _ = fs::remove_dir_all(&self.directory); // What is left is removed when the store is opened again.
        }
    }
}

/// Where a task writes the files of one rank for one checkpoint.
#[derive(Debug)]
pub struct StateFiles {
    directory: PathBuf,
    rank: usize,
    hashes: BTreeMap<String, String>,
}

impl StateFiles {
    /// Of a rank, for the checkpoint of a step in the store at `store`.
    pub(crate) fn new(store: &Path, step: u64, rank: usize) -> Self {
        Self { directory: store.join(format!("{PARTIAL}task-{step:012}")), rank, hashes: BTreeMap::new() }
    }

    /// Writes a file through a buffer, hashed on its way, and syncs it to the disk. Training waits for it.
    ///
    /// # Errors
    /// If the name is not a plain file name, or the disk is full: that costs this checkpoint and not the run.
    pub fn write(&mut self, name: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        if !is_plain(name) {
            return Err(Error::Input(format!("a task's file: expected a file name, found '{name}'")));
        }
        let folder = self.directory.join(folder_of(self.rank));
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let hash = write_file(&folder.join(name), &|path| File::create(path), |file| {
            let mut buffered = BufWriter::with_capacity(1 << 20, file);
            write(&mut buffered)?;
            buffered.flush()
        })?;
        sync_directory(&folder)?;
        self.hashes.insert(format!("{}/{name}", folder_of(self.rank)), hash);
        Ok(())
    }

    /// What was written.
    pub(crate) fn hashes(&self) -> &BTreeMap<String, String> {
        &self.hashes
    }

    /// What all ranks wrote.
    pub(crate) fn of_all(self, hashes: BTreeMap<String, String>) -> TaskFiles {
        TaskFiles { directory: self.directory, hashes }
    }

    /// Removes what was written: another rank could not.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_dir_all(&self.directory); // What is left is removed when the store is opened again.
    }
}

/// The files of a checkpoint as a task reads them.
#[derive(Debug)]
pub struct SavedFiles {
    files: TaskFiles,
    rank: usize,
    ranks: [usize; 2],
}

impl SavedFiles {
    /// For a rank of a run of `ranks[1]` that continues one of `ranks[0]`.
    pub(crate) fn new(files: TaskFiles, rank: usize, ranks: [usize; 2]) -> Self {
        Self { files, rank, ranks }
    }

    /// Ranks of the run that saved them.
    pub fn ranks(&self) -> usize {
        self.ranks[0]
    }

    /// Whether the first rank has saved a file of that name.
    pub fn has(&self, name: &str) -> bool {
        self.files.hashes.contains_key(&format!("{}/{name}", folder_of(0)))
    }

    /// Opens a file of this rank.
    ///
    /// # Errors
    /// If there is none of that name, or the run that saved had another number of ranks: a task that can share the files out anew opens
    /// them by [`Self::open_of`].
    pub fn open(&self, name: &str) -> Result<BufReader<File>> {
        let [then, now] = self.ranks;
        if then != now {
            return Err(Error::Input(format!("the task's files were saved by {then} ranks, this run has {now}")));
        }
        self.open_of(self.rank, name)
    }

    /// Opens a file that a rank has saved. Its content was checked when the checkpoint was found.
    ///
    /// # Errors
    /// If there is none.
    pub fn open_of(&self, rank: usize, name: &str) -> Result<BufReader<File>> {
        let (path, known) = (self.files.directory.join(folder_of(rank)).join(name), format!("{}/{name}", folder_of(rank)));
        if !self.files.hashes.contains_key(&known) {
            let names: Vec<&str> = self.files.hashes.keys().map(String::as_str).collect();
            return Err(Error::Input(format!("checkpoint: no file '{known}' of its task, only [{}]", names.join(", "))));
        }
        File::open(&path).map(BufReader::new).map_err(Error::io(&path))
    }
}

fn folder_of(rank: usize) -> String {
    format!("rank-{rank}")
}

fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Checkpoint, Retention, Store};
    use std::io::Read;

    fn save(store: &Store, directory: &Path, step: u64) -> PathBuf {
        let mut hashes = BTreeMap::new();
        for rank in 0..2 {
            let mut files = StateFiles::new(directory, step, rank);
            files.write("replay", |file| (0..300_000u32).try_for_each(|i| file.write_all(&(i + rank as u32).to_le_bytes()))).unwrap();
            hashes.extend(files.hashes().clone());
        }
        let files = StateFiles::new(directory, step, 0).of_all(hashes);
        store.save(&Checkpoint { step, files, ..Checkpoint::default() }).unwrap()
    }

    #[test]
    fn what_ranks_stream_into_a_checkpoint_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention { last: 1, ..Retention::default() }).unwrap();
        save(&store, dir.path(), 1);
        save(&store, dir.path(), 2);
        let found = store.latest().unwrap().0.unwrap();
        assert_eq!((found.step, found.files.hashes.len()), (2, 2));
        let files = SavedFiles::new(found.files, 1, [2, 2]);
        let mut bytes = Vec::new();
        files.open("replay").unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() == 1_200_000 && bytes[..4] == 1u32.to_le_bytes());
        assert_eq!(
            files.open("other").unwrap_err().to_string(),
            "checkpoint: no file 'rank-1/other' of its task, only [rank-0/replay, rank-1/replay]"
        );
        let entries = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(entries, 2, "the checkpoint and the pointer are left, and nothing aside");
    }

    #[test]
    fn another_number_of_ranks_is_refused_unless_the_task_can_share_out_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        save(&store, dir.path(), 1);
        let files = SavedFiles::new(store.latest().unwrap().0.unwrap().files, 0, [2, 1]);
        assert_eq!(files.open("replay").unwrap_err().to_string(), "the task's files were saved by 2 ranks, this run has 1");
        assert!(files.ranks() == 2 && files.open_of(1, "replay").is_ok());
    }

    #[test]
    fn a_damaged_file_of_a_task_passes_its_checkpoint_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        save(&store, dir.path(), 1);
        let file = save(&store, dir.path(), 2).join("task/rank-1/replay");
        let mut bytes = fs::read(&file).unwrap();
        bytes[1_000_000] ^= 1;
        fs::write(&file, bytes).unwrap();
        let (found, damaged) = store.latest().unwrap();
        assert_eq!(found.unwrap().step, 1);
        assert!(damaged[0].to_string().contains("rank-1/replay: damaged"), "{}", damaged[0]);
    }

    #[test]
    fn a_file_that_its_rank_wrote_elsewhere_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        let mut files = StateFiles::new(dir.path(), 1, 0);
        files.write("replay", |file| file.write_all(b"here")).unwrap();
        let mut hashes = files.hashes().clone();
        hashes.insert("rank-1/replay".to_owned(), String::new());
        let files = files.of_all(hashes);
        let error = store.save(&Checkpoint { step: 1, files, ..Checkpoint::default() }).unwrap_err().to_string();
        assert!(error.contains("rank-1/replay") && error.contains("share the disk"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing half written is left");
    }

    #[test]
    fn files_stay_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = StateFiles::new(dir.path(), 1, 0);
        for name in ["", ".", "..", "a/b", "/a", "a/"] {
            assert!(files.write(name, |_| Ok(())).is_err(), "'{name}'");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
