//! Checkpoints: a directory per saved step that either is complete or does not count.
//!
//! ```text
//! <dir>/step-000000001200/            written as .partial-..., every file synced, then renamed
//!   parameters.safetensors ...        named tensors by file
//!   state.json                        everything that is not a tensor
//!   manifest.json                     SHA-256 of the other files; written last
//! <dir>/latest                        the name of the newest one, replaced by a rename
//! ```
//! A crash at any moment leaves the older checkpoints and `latest` as they were.

use candle_core::{Device, safetensors::load_buffer};
use candle_models::files::write_atomic;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const FORMAT: u32 = 1;
const PARTIAL: &str = ".partial-";
const MANIFEST: &str = "manifest.json";
const STATE: &str = "state.json";
const LATEST: &str = "latest";

/// What a run needs to go on as if it had never stopped.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Groups of named tensors, one file each: `parameters`, `moments`, `average`, `carried`.
    pub tensors: BTreeMap<String, NamedTensors>,
    /// Everything else: configuration, data cursor, counters.
    pub state: serde_json::Value,
    /// The evaluation's result, if there was one; lower is better.
    pub score: Option<f64>,
}

impl Checkpoint {
    /// The group of tensors of that name.
    pub fn group(&self, name: &str) -> Result<&NamedTensors> {
        self.tensors.get(name).ok_or_else(|| Error::Input(format!("checkpoint of step {}: no tensors '{name}'", self.step)))
    }
}

/// Which checkpoints are kept.
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
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    retention: Retention,
}

impl Store {
    /// Opens or creates the directory, and removes what an interrupted save left behind.
    pub fn open(directory: impl Into<PathBuf>, retention: Retention) -> Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory).map_err(Error::io(&directory))?;
        for (name, path) in entries(&directory)? {
            if name.starts_with(PARTIAL) {
                remove(&path)?;
            }
        }
        Ok(Self { directory, retention })
    }

    /// Writes a checkpoint, makes it the latest, and deletes those that need not be kept. If it fails (a full disk), the
    /// older checkpoints are untouched and the error says which of them counts.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        self.save_through(checkpoint, &|path| File::create(path))
    }

    /// [`Self::save`] with the files opened by `create`.
    fn save_through(&self, checkpoint: &Checkpoint, create: &dyn Fn(&Path) -> std::io::Result<File>) -> Result<PathBuf> {
        let partial = self.directory.join(format!("{PARTIAL}{}", name_of(checkpoint.step)));
        let written = write_directory(&partial, checkpoint, create).and_then(|()| self.publish(&partial, checkpoint.step));
        let path = written.map_err(|error| {
            let _ = fs::remove_dir_all(&partial);
            let kept = self.latest_name().map_or("there is no older one".to_owned(), |name| format!("the latest is still {name}"));
            Error::Input(format!("checkpoint of step {} not saved: {error}; {kept}", checkpoint.step))
        })?;
        self.prune()?;
        Ok(path)
    }

    /// Notes the evaluation's result of a saved step, and deletes the checkpoints that need not be kept.
    pub fn set_score(&self, step: u64, score: f64) -> Result<()> {
        let path = self.directory.join(name_of(step));
        let manifest = Manifest { score: Some(score), ..read_manifest(&path)? };
        write_atomic(path.join(MANIFEST), &json(&path, &manifest)?)?;
        self.prune()
    }

    fn publish(&self, partial: &Path, step: u64) -> Result<PathBuf> {
        let path = self.directory.join(name_of(step));
        if path.exists() {
            remove(&path)?; // The same step, saved before by a run that was then resumed from an older one.
        }
        fs::rename(partial, &path).map_err(Error::io(&path))?;
        let (pointer, draft) = (self.directory.join(LATEST), self.directory.join(format!("{PARTIAL}{LATEST}")));
        write_file(&draft, name_of(step).as_bytes(), &|path| File::create(path))?;
        fs::rename(&draft, &pointer).map_err(Error::io(&pointer))?;
        sync_directory(&self.directory)?;
        Ok(path)
    }

    fn prune(&self) -> Result<()> {
        let mut saved = Vec::new();
        for (name, path) in entries(&self.directory)? {
            if let (Some(step), Ok(manifest)) = (step_of(&name), read_manifest(&path)) {
                saved.push((step, manifest.score));
            }
        }
        self.retention.delete(&saved).into_iter().try_for_each(|step| remove(&self.directory.join(name_of(step))))
    }

    /// The name of the newest one, if there is any.
    pub fn latest_name(&self) -> Option<String> {
        let name = fs::read_to_string(self.directory.join(LATEST)).ok()?;
        self.directory.join(&name).join(MANIFEST).exists().then_some(name)
    }

    /// The newest complete checkpoint, and why newer ones were passed over, if any.
    pub fn latest(&self) -> Result<(Option<Checkpoint>, Vec<Error>)> {
        self.first_complete(|saved| saved.sort_unstable_by_key(|s| std::cmp::Reverse(s.0)))
    }

    /// The complete checkpoint with the lowest score.
    pub fn best(&self) -> Result<Option<Checkpoint>> {
        let score = |path: &Path| read_manifest(path).ok().and_then(|m| m.score).unwrap_or(f64::INFINITY);
        let (found, _) = self.first_complete(|saved| saved.sort_by(|a, b| score(&a.1).total_cmp(&score(&b.1))))?;
        Ok(found.filter(|c| c.score.is_some()))
    }

    fn first_complete(&self, sort: impl Fn(&mut Vec<(u64, PathBuf)>)) -> Result<(Option<Checkpoint>, Vec<Error>)> {
        let mut saved: Vec<_> = entries(&self.directory)?.into_iter().filter_map(|(n, p)| Some((step_of(&n)?, p))).collect();
        sort(&mut saved);
        let mut damaged = Vec::new();
        for (_, path) in saved {
            match load(&path) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                Err(error) => damaged.push(error),
            }
        }
        Ok((None, damaged))
    }
}

fn name_of(step: u64) -> String {
    format!("step-{step:012}")
}

fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

fn write_directory(path: &Path, checkpoint: &Checkpoint, create: &dyn Fn(&Path) -> std::io::Result<File>) -> Result<()> {
    fs::create_dir(path).map_err(Error::io(path))?;
    let mut files = BTreeMap::new();
    let mut add = |name: String, bytes: &[u8]| -> Result<()> {
        write_file(&path.join(&name), bytes, create)?;
        files.insert(name, hex(bytes));
        Ok(())
    };
    for (group, tensors) in &checkpoint.tensors {
        let bytes = safetensors::serialize(tensors.iter(), None).map_err(|e| Error::file(path, e))?;
        add(format!("{group}.safetensors"), &bytes)?;
    }
    add(STATE.to_owned(), &json(path, &checkpoint.state)?)?;
    let manifest = Manifest { format: FORMAT, step: checkpoint.step, score: checkpoint.score, files };
    write_file(&path.join(MANIFEST), &json(path, &manifest)?, create)?;
    sync_directory(path)
}

fn load(path: &Path) -> Result<Checkpoint> {
    let manifest = read_manifest(path)?;
    let mut checkpoint = Checkpoint { step: manifest.step, score: manifest.score, ..Checkpoint::default() };
    for (name, hash) in &manifest.files {
        let file = path.join(name);
        let bytes = fs::read(&file).map_err(Error::io(&file))?;
        if hex(&bytes) != *hash {
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

fn read_manifest(path: &Path) -> Result<Manifest> {
    let file = path.join(MANIFEST);
    let bytes = fs::read(&file).map_err(Error::io(&file))?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| Error::file(&file, e))?;
    if manifest.format != FORMAT {
        return Err(Error::file(&file, format!("expected checkpoint format {FORMAT}, found {}", manifest.format)));
    }
    Ok(manifest)
}

fn json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|e| Error::file(path, e))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn write_file(path: &Path, bytes: &[u8], create: &dyn Fn(&Path) -> std::io::Result<File>) -> Result<()> {
    let mut file = create(path).map_err(Error::io(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path))
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::io(path))
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(Error::io(path))
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
    use candle_core::Tensor;

    fn checkpoint(step: u64, score: Option<f64>) -> Checkpoint {
        let tensor = Tensor::from_vec(vec![step as f32; 1000], 1000, &Device::Cpu).unwrap();
        let parameters = [("w".to_owned(), tensor)].into_iter().collect();
        let tensors = [("parameters".to_owned(), parameters), ("carried".to_owned(), NamedTensors::new())].into();
        Checkpoint { step, tensors, state: serde_json::json!({"cursor": [step, 0.1]}), score }
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
}
