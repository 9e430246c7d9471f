//! Checkpoints: a directory per saved step that either is complete or does not count.
//!
//! ```text
//! <dir>/step-000000001200/            written as .partial-..., every file synced, then renamed
//!   parameters.safetensors ...        named tensors by file
//!   task/rank-0/ ...                  files of the task, where it has some, of every rank
//!   state.json                        everything that is not a tensor
//!   manifest.json                     SHA-256 of the other files; written last
//! <dir>/latest                        the name of the newest one, replaced by a rename
//! ```
//! A crash at any moment leaves the older checkpoints as they were, and `latest` at a complete one. [`Store`] is the directory,
//! [`Writer`] saves to it while training goes on.
//!
//! ```
//! use candle_train::checkpoint::{Checkpoint, Retention, Store, Writer};
//! # fn main() -> candle_models::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("candle-train-writer-{}", std::process::id()));
//! let mut writer = Writer::new(Store::open(&folder, Retention::default())?)?;
//! writer.save(Checkpoint { step: 100, ..Checkpoint::default() })?; // on a thread, while training goes on
//! writer.finish()?;
//! assert_eq!(writer.store().latest_name().as_deref(), Some("step-000000000100"));
//! # drop(writer);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```

mod files;
mod owned;
mod writer;

pub use owned::{SavedFiles, StateFiles, TaskFiles};
pub use writer::{Writer, host_copy};

use candle_models::files::write_atomic;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use files::{Create, json, read_manifest, sync_directory, write_bytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FORMAT: u32 = 1;
const PARTIAL: &str = ".partial-";
const MANIFEST: &str = "manifest.json";
const STATE: &str = "state.json";
const LATEST: &str = "latest";
/// The group of the parameters' moving average.
pub(crate) const AVERAGE: &str = "average";

/// What a run needs to go on as if it had never stopped.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::signature::TensorSpec;
/// use candle_models::tensors::NamedTensors;
/// use candle_train::checkpoint::Checkpoint;
/// # fn main() -> candle_models::Result<()> {
/// let parameters = NamedTensors::from_iter([("slope".to_owned(), Tensor::new(&[2f32], &Device::Cpu)?)]);
/// let checkpoint = Checkpoint { step: 100, tensors: [("parameters".to_owned(), parameters)].into(), ..Checkpoint::default() };
/// assert!(checkpoint.check("parameters", &[TensorSpec::f32("slope", &[1])]).is_ok());
/// let refused = checkpoint.check("parameters", &[TensorSpec::f32("slope", &[2])]).unwrap_err();
/// assert!(refused.to_string().starts_with("the checkpoint of step 100 is of another model"), "{refused}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Groups of named tensors, one file each: `parameters`, `moments`, `average`, `carried` (the task's rows), and `replicated` where the task
    /// has such tensors.
    pub tensors: BTreeMap<String, NamedTensors>,
    /// Everything else: configuration, data cursor, counters.
    pub state: serde_json::Value,
    /// The evaluation's score, if there was one, as a [cost](crate::task::Score::cost): lower is better.
    pub score: Option<f64>,
    /// Files of the task.
    pub files: TaskFiles,
}

impl Checkpoint {
    /// The group of tensors of that name.
    pub fn group(&self, name: &str) -> Result<&NamedTensors> {
        self.tensors.get(name).ok_or_else(|| Error::Input(format!("checkpoint of step {}: no tensors '{name}'", self.step)))
    }

    /// Refuses a group that does not hold exactly these tensors: one of another architecture. The error names the first tensor that
    /// is missing, of another shape or too many.
    pub fn check(&self, group: &str, expected: &[TensorSpec]) -> Result<()> {
        let checked = self.group(group)?.check(expected, &[]);
        checked.map_err(|e| Error::Input(format!("the checkpoint of step {} is of another model: {group}: {e}", self.step)))
    }
}

/// Which checkpoints are kept.
///
/// ```
/// use candle_train::checkpoint::Retention;
///
/// let keep = Retention { last: 1, best: 1, every: 0 };
/// // By step and score: the newest stays, and the one with the lowest score.
/// assert_eq!(keep.delete(&[(100, Some(0.9)), (200, Some(0.4)), (300, Some(0.6)), (400, None)]), [300, 100]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// The newest ones; at least 1.
    pub last: usize,
    /// The ones with the lowest score.
    pub best: usize,
    /// Those of every so many steps, for good; 0 for none.
    pub every: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { last: 2, best: 1, every: 0 }
    }
}

impl Retention {
    /// The steps to delete out of those that are there.
    pub fn delete(&self, saved: &[(u64, Option<f64>)]) -> Vec<u64> {
        let mut newest: Vec<u64> = saved.iter().map(|s| s.0).collect();
        newest.sort_unstable_by(|a, b| b.cmp(a));
        let mut best: Vec<(f64, u64)> = saved.iter().filter_map(|&(step, score)| Some((score?, step))).collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let keep: Vec<u64> = newest.iter().take(self.last.max(1)).copied().chain(best.iter().take(self.best).map(|b| b.1)).collect();
        let milestone = |step: u64| self.every > 0 && step.is_multiple_of(self.every);
        newest.retain(|step| !keep.contains(step) && !milestone(*step));
        newest
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    step: u64,
    score: Option<f64>,
    files: BTreeMap<String, String>,
}

/// The directory of a run's checkpoints.
///
/// ```
/// use candle_train::checkpoint::{Checkpoint, Retention, Store};
/// # fn main() -> candle_models::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("candle-train-store-{}", std::process::id()));
/// let store = Store::open(&folder, Retention::default())?;
/// store.save(&Checkpoint { step: 100, ..Checkpoint::default() })?;
/// store.save(&Checkpoint { step: 200, ..Checkpoint::default() })?;
/// let (newest, damaged) = store.latest()?;
/// assert_eq!((newest.map(|checkpoint| checkpoint.step), damaged.len()), (Some(200), 0));
/// assert!(Store::open(&folder, Retention::default()).is_err()); // one process writes there
/// # drop(store);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    retention: Retention,
    /// Holds the directory's lock, which the system releases when the process is gone, however it went.
    _lock: File,
}

impl Store {
    /// Opens or creates the directory, and removes what an interrupted save left behind. For the one process that writes there.
    ///
    /// # Errors
    /// If another process writes there (where the file system knows locks).
    pub fn open(directory: impl Into<PathBuf>, retention: Retention) -> Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(Error::io(&directory))?;
        if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_directory(parent)?;
        }
        let lock = File::open(&directory).map_err(Error::io(&directory))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(Error::file(&directory, "another process trains there: it is locked"));
        }
        for (name, path) in entries(&directory)? {
            if name.starts_with(PARTIAL) {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(Error::io(&path))?;
            }
        }
        Ok(Self { directory, retention, _lock: lock })
    }

    /// Writes a checkpoint, makes it the latest, and deletes those that need not be kept. If it fails (a full disk), the
    /// older checkpoints are untouched and the error says which of them counts.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        self.save_through(checkpoint, &|path| File::create(path))
    }

    /// [`Self::save`] with the files opened by `create`.
    fn save_through(&self, checkpoint: &Checkpoint, create: Create) -> Result<PathBuf> {
        let partial = self.directory.join(format!("{PARTIAL}{}", name_of(checkpoint.step)));
        let written = files::write(&partial, checkpoint, create).and_then(|()| self.publish(&partial, checkpoint.step, create));
        let path = written.map_err(|error| {
            let _ = fs::remove_dir_all(&partial);
            checkpoint.files.discard();
            self.not_saved(checkpoint.step, &error)
        })?;
        self.prune(Some(checkpoint.step))?;
        Ok(path)
    }

    /// Why there is no checkpoint of a step, and which one counts.
    fn not_saved(&self, step: u64, error: &Error) -> Error {
        let kept = self.latest_name().map_or("there is no older one".to_owned(), |name| format!("the latest is still {name}"));
        Error::Input(format!("checkpoint of step {step} not saved: {error}; {kept}"))
    }

    /// Notes the evaluation's result of a saved step, and deletes the checkpoints that need not be kept.
    pub fn set_score(&self, step: u64, score: f64) -> Result<()> {
        let path = self.directory.join(name_of(step));
        let manifest = Manifest { score: Some(score), ..read_manifest(&path)? };
        write_atomic(path.join(MANIFEST), &json(&path, &manifest)?)?;
        self.prune(None)
    }

    fn publish(&self, partial: &Path, step: u64, create: Create) -> Result<PathBuf> {
        let path = self.directory.join(name_of(step));
        if path.exists() {
            // Damaged, so that the run was resumed from an older one. `latest` must not name it while it is replaced.
            let older = self.newest_below(step)?;
            self.point_to(older, create)?;
            self.remove(step)?;
        }
        fs::rename(partial, &path).map_err(Error::io(&path))?;
        sync_directory(&self.directory)?;
        self.point_to(Some(step), create)?;
        Ok(path)
    }

    /// Makes `latest` name this step, or nothing.
    fn point_to(&self, step: Option<u64>, create: Create) -> Result<()> {
        let pointer = self.directory.join(LATEST);
        match step {
            Some(step) => {
                let draft = self.directory.join(format!("{PARTIAL}{LATEST}"));
                write_bytes(&draft, name_of(step).as_bytes(), create)?;
                fs::rename(&draft, &pointer).map_err(Error::io(&pointer))?;
            }
            None if pointer.exists() => fs::remove_file(&pointer).map_err(Error::io(&pointer))?,
            None => {}
        }
        sync_directory(&self.directory)
    }

    /// Deletes what need not be kept, and after the save of a step what is newer: this run has passed it over as damaged.
    fn prune(&self, saved: Option<u64>) -> Result<()> {
        let mut kept = Vec::new();
        for (step, path) in steps(&self.directory)? {
            if saved.is_some_and(|saved| step > saved) {
                self.remove(step)?;
            } else if let Ok(manifest) = read_manifest(&path) {
                kept.push((step, manifest.score));
            }
        }
        self.retention.delete(&kept).into_iter().try_for_each(|step| self.remove(step))
    }

    /// Removes a checkpoint so that a crash in mid-removal leaves none that looks whole or damaged.
    fn remove(&self, step: u64) -> Result<()> {
        let (path, aside) = (self.directory.join(name_of(step)), self.directory.join(format!("{PARTIAL}removed-{}", name_of(step))));
        fs::rename(&path, &aside).map_err(Error::io(&path))?;
        fs::remove_dir_all(&aside).map_err(Error::io(&aside))
    }

    /// The name of the newest one, if there is any.
    pub fn latest_name(&self) -> Option<String> {
        let named = fs::read_to_string(self.directory.join(LATEST)).ok().and_then(|name| step_of(&name));
        let complete = |step: &u64| read_manifest(&self.directory.join(name_of(*step))).is_ok();
        named.filter(complete).or_else(|| self.newest_below(u64::MAX).ok()?).map(name_of)
    }

    /// The newest one before this step with a manifest.
    fn newest_below(&self, limit: u64) -> Result<Option<u64>> {
        let steps = steps(&self.directory)?.into_iter().filter(|(step, path)| *step < limit && read_manifest(path).is_ok());
        Ok(steps.map(|(step, _)| step).max())
    }

    /// The newest complete checkpoint, and why newer ones were passed over, if any.
    pub fn latest(&self) -> Result<(Option<Checkpoint>, Vec<Error>)> {
        latest(&self.directory)
    }

    /// The complete checkpoint with the lowest score.
    pub fn best(&self) -> Result<Option<Checkpoint>> {
        best(&self.directory)
    }
}

/// Which checkpoint of a run.
///
/// ```
/// use candle_train::checkpoint::Which;
/// # fn main() -> candle_models::Result<()> {
/// assert_eq!("best".parse::<Which>()?, Which::Best);
/// assert_eq!("1200".parse::<Which>()?, Which::Step(1200));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest one that is complete.
    Latest,
    /// The one with the best score.
    Best,
    /// That of a step.
    Step(u64),
}

impl FromStr for Which {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "latest" => Ok(Self::Latest),
            "best" => Ok(Self::Best),
            _ => text
                .parse()
                .map(Self::Step)
                .map_err(|_| Error::config("step", format!("expected latest, best or a number, found '{text}'"))),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Best => f.write_str("best"),
            Self::Step(step) => step.fmt(f),
        }
    }
}

/// A checkpoint of a directory in which another process may be saving, `None` if there is no such.
pub(crate) fn read(directory: &Path, which: Which) -> Result<Checkpoint> {
    let missing = || Error::file(directory, format!("no complete checkpoint: asked for {which}"));
    match which {
        Which::Latest => latest(directory)?.0.ok_or_else(missing),
        Which::Best => best(directory)?.ok_or_else(missing),
        Which::Step(step) => {
            let path = directory.join(name_of(step));
            if path.is_dir() { files::read(&path) } else { Err(missing()) }
        }
    }
}

/// The newest complete checkpoint, and why newer ones were passed over, if any.
fn latest(directory: &Path) -> Result<(Option<Checkpoint>, Vec<Error>)> {
    first_complete(directory, |saved| saved.sort_unstable_by_key(|s| std::cmp::Reverse(s.0)))
}

/// The complete checkpoint with the lowest score.
fn best(directory: &Path) -> Result<Option<Checkpoint>> {
    let score = |path: &Path| read_manifest(path).ok().and_then(|m| m.score).unwrap_or(f64::INFINITY);
    let (found, _) = first_complete(directory, |saved| saved.sort_by(|a, b| score(&a.1).total_cmp(&score(&b.1))))?;
    Ok(found.filter(|c| c.score.is_some()))
}

fn first_complete(directory: &Path, sort: impl Fn(&mut Vec<(u64, PathBuf)>)) -> Result<(Option<Checkpoint>, Vec<Error>)> {
    let mut saved = steps(directory)?;
    sort(&mut saved);
    let mut damaged = Vec::new();
    for (step, path) in saved {
        match files::read(&path) {
            Ok(checkpoint) if checkpoint.step == step => return Ok((Some(checkpoint), damaged)),
            Ok(other) => damaged.push(Error::file(&path, format!("expected step {step}, found step {}", other.step))),
            Err(error) => damaged.push(error),
        }
    }
    Ok((None, damaged))
}

/// Everything that is called a checkpoint, complete or not.
fn steps(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    Ok(entries(directory)?.into_iter().filter_map(|(name, path)| Some((step_of(&name)?, path))).collect())
}

pub(crate) fn name_of(step: u64) -> String {
    format!("step-{step:012}")
}

fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = fs::read_dir(directory).map_err(Error::io(directory))?;
    let entry = |e: std::io::Result<fs::DirEntry>| {
        let e = e.map_err(Error::io(directory))?;
        Ok((e.file_name().to_string_lossy().into_owned(), e.path()))
    };
    read.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    fn checkpoint(step: u64, score: Option<f64>) -> Checkpoint {
        let tensor = Tensor::from_vec(vec![step as f32; 1000], 1000, &Device::Cpu).unwrap();
        let parameters = [("w".to_owned(), tensor)].into_iter().collect();
        let tensors = [("parameters".to_owned(), parameters), ("carried".to_owned(), NamedTensors::new())].into();
        Checkpoint { step, tensors, state: serde_json::json!({"cursor": [step, 0.1]}), score, ..Checkpoint::default() }
    }

    fn steps(store: &Store) -> Vec<u64> {
        let mut steps: Vec<u64> = entries(&store.directory).unwrap().iter().filter_map(|e| step_of(&e.0)).collect();
        steps.sort_unstable();
        steps
    }

    #[test]
    fn what_is_saved_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        assert!(store.latest().unwrap().0.is_none());
        store.save(&checkpoint(3, Some(0.5))).unwrap();
        let found = store.latest().unwrap().0.unwrap();
        assert_eq!((found.step, found.score), (3, Some(0.5)));
        assert_eq!(found.state, checkpoint(3, None).state);
        let values = found.group("parameters").unwrap().get("w").unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values, vec![3.0; 1000]);
        assert!(found.group("carried").unwrap().is_empty());
        assert!(found.group("nothing").is_err());
    }

    #[test]
    fn the_last_and_the_best_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention { last: 2, best: 1, every: 0 }).unwrap();
        for (step, score) in [(1, Some(3.0)), (2, Some(1.0)), (3, None), (4, Some(2.0)), (5, None)] {
            store.save(&checkpoint(step, score)).unwrap();
        }
        assert_eq!(steps(&store), [2, 4, 5]);
        assert_eq!(store.best().unwrap().unwrap().step, 2);
        assert_eq!(store.latest().unwrap().0.unwrap().step, 5);
    }

    #[test]
    fn every_so_many_steps_are_kept_for_good() {
        let saved: Vec<(u64, Option<f64>)> = (1..=10).map(|i| (i * 10, (i == 3).then_some(1.0))).collect();
        let kept = |retention: Retention| {
            let deleted = retention.delete(&saved);
            saved.iter().map(|s| s.0).filter(|step| !deleted.contains(step)).collect::<Vec<_>>()
        };
        assert_eq!(kept(Retention { last: 1, best: 1, every: 40 }), [30, 40, 80, 100]);
        assert_eq!(kept(Retention { last: 0, best: 0, every: 0 }), [100], "the newest is always kept");
    }

    #[test]
    fn a_damaged_one_is_passed_over_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        store.save(&checkpoint(1, None)).unwrap();
        let newest = store.save(&checkpoint(2, None)).unwrap();
        let file = newest.join("parameters.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        bytes[2000] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let (found, damaged) = store.latest().unwrap();
        assert_eq!(found.unwrap().step, 1);
        assert!(damaged[0].to_string().contains("parameters.safetensors: damaged"), "{}", damaged[0]);
    }

    #[test]
    fn a_full_disk_keeps_the_older_one_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        store.save(&checkpoint(1, None)).unwrap();
        // Every write to /dev/full fails with "no space left on device".
        let full = |path: &Path| {
            let full = path.ends_with("parameters.safetensors");
            if full { fs::OpenOptions::new().write(true).open("/dev/full") } else { File::create(path) }
        };
        let error = store.save_through(&checkpoint(2, None), &full).unwrap_err().to_string();
        assert!(error.contains("step 2 not saved") && error.contains("No space left"), "{error}");
        assert!(error.ends_with("the latest is still step-000000000001"), "{error}");
        assert_eq!(store.latest().unwrap().0.unwrap().step, 1);
        assert_eq!(entries(dir.path()).unwrap().len(), 2, "only the checkpoint and the pointer are left");
    }

    #[test]
    fn two_do_not_write_to_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = Store::open(dir.path(), Retention::default()).unwrap();
        let error = Store::open(dir.path(), Retention::default()).unwrap_err().to_string();
        assert!(error.ends_with("another process trains there: it is locked"), "{error}");
        drop(first);
        Store::open(dir.path(), Retention::default()).unwrap();
    }

    #[test]
    fn what_an_interrupted_save_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".partial-step-000000000009")).unwrap();
        fs::write(dir.path().join(".partial-latest"), "step-").unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        assert!(entries(dir.path()).unwrap().is_empty());
        assert!(store.latest().unwrap().0.is_none());
    }

    #[test]
    fn a_score_comes_after_the_save() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention { last: 1, best: 1, every: 0 }).unwrap();
        for (step, score) in [(1, 2.0), (2, 1.0), (3, 3.0)] {
            store.save(&checkpoint(step, None)).unwrap();
            store.set_score(step, score).unwrap();
        }
        assert_eq!(steps(&store), [2, 3]);
        assert_eq!(store.best().unwrap().unwrap().score, Some(1.0));
        assert!(store.latest().unwrap().1.is_empty(), "the manifest is whole");
        assert!(store.set_score(9, 1.0).is_err());
    }

    #[test]
    fn saving_a_step_again_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        store.save(&checkpoint(1, None)).unwrap();
        store.save(&checkpoint(1, Some(1.0))).unwrap();
        assert_eq!(store.latest().unwrap().0.unwrap().score, Some(1.0));
    }

    #[test]
    fn whatever_is_damaged_is_passed_over_and_leaves_the_run_able_to_go_on() {
        type Damage = fn(&Path);
        let cut: Damage = |file| fs::write(file, &fs::read(file).unwrap()[..fs::metadata(file).unwrap().len() as usize / 2]).unwrap();
        let empty: Damage = |file| fs::write(file, "").unwrap();
        let gone: Damage = |file| fs::remove_file(file).unwrap();
        let flipped: Damage = |file| {
            let mut bytes = fs::read(file).unwrap();
            bytes[12] ^= 1;
            fs::write(file, bytes).unwrap();
        };
        for file in ["parameters.safetensors", "carried.safetensors", STATE, MANIFEST] {
            for damage in [cut, empty, gone, flipped] {
                let dir = tempfile::tempdir().unwrap();
                let store = Store::open(dir.path(), Retention { last: 1, best: 1, every: 0 }).unwrap();
                store.save(&checkpoint(1, Some(1.0))).unwrap();
                damage(&store.save(&checkpoint(3, None)).unwrap().join(file));
                let (found, damaged) = store.latest().unwrap();
                assert_eq!(found.unwrap().step, 1, "{file}");
                assert!(damaged.len() == 1 && damaged[0].to_string().contains(file), "{file}: {damaged:?}");
                // The run goes on from step 1: what it saves counts, and the damaged one is not kept in its place.
                store.save(&checkpoint(2, None)).unwrap();
                assert_eq!((steps(&store), store.latest_name()), (vec![1, 2], Some(name_of(2))), "{file}");
                store.save(&checkpoint(3, None)).unwrap();
                assert_eq!(store.latest().unwrap().0.unwrap().step, 3, "{file}");
                assert!(store.latest().unwrap().1.is_empty(), "{file}");
            }
        }
    }

    #[test]
    fn a_pointer_to_nothing_does_not_hide_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        assert_eq!(store.latest_name(), None);
        store.save(&checkpoint(1, None)).unwrap();
        for text in ["step-000000000009", "", "../..", "step-"] {
            fs::write(dir.path().join(LATEST), text).unwrap();
            assert_eq!(store.latest_name(), Some(name_of(1)), "{text:?}");
            assert_eq!(store.latest().unwrap().0.unwrap().step, 1, "{text:?}");
        }
        fs::remove_file(dir.path().join(LATEST)).unwrap();
        assert_eq!(store.latest_name(), Some(name_of(1)));
    }

    #[test]
    fn a_checkpoint_under_another_name_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Retention::default()).unwrap();
        fs::rename(store.save(&checkpoint(1, None)).unwrap(), dir.path().join(name_of(7))).unwrap();
        let (found, damaged) = store.latest().unwrap();
        assert!(found.is_none() && damaged[0].to_string().ends_with("expected step 7, found step 1"), "{damaged:?}");
    }

    #[test]
    fn another_architecture_is_named_by_its_tensor() {
        let checkpoint = checkpoint(4, None);
        checkpoint.check("parameters", &[TensorSpec::f32("w", &[1000])]).unwrap();
        for (specs, message) in [
            (vec![TensorSpec::f32("w", &[10, 100])], "tensor w: expected F32 [10, 100], found F32 [1000]"),
            (vec![TensorSpec::f32("w", &[1000]), TensorSpec::f32("x", &[1])], "tensor x: expected to be present, found only [w]"),
            (vec![], "tensor w: expected no such tensor in the signature, found one"),
        ] {
            let error = checkpoint.check("parameters", &specs).unwrap_err().to_string();
            assert_eq!(error, format!("the checkpoint of step 4 is of another model: parameters: {message}"));
        }
    }
}
