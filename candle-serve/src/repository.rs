//! The models that a server has: the bundles of a folder, or a single one.

use crate::fault::{Fault, Kind, one_line};
use crate::log::Log;
use crate::model::{Model, VERSION};
use crate::protocol::describe::{IndexEntry, State};
use crate::sequences::{Keep, Why};
use candle_models::bundle::{Bundle, CONFIG};
use candle_models::engine::Options;
use candle_models::registry::{Family, Registry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Longest name of a model.
pub(crate) const NAME_LIMIT: usize = 128;
/// Bundles of a folder that are looked at.
const MOST: usize = 4096;

/// Where bundles lie.
#[derive(Debug, Clone)]
enum Place {
    /// In a folder, each in one of its own.
    Folder(PathBuf),
    /// The folder is a bundle itself.
    Bundle { name: String, path: PathBuf },
}

/// The models of a server.
pub(crate) struct Repository {
    place: Place,
    families: Registry<dyn Family>,
    options: Options,
    keep: Keep,
    log: Arc<Log>,
    models: RwLock<BTreeMap<String, Entry>>,
    /// Held by whoever loads or unloads: one at a time.
    changing: Mutex<()>,
}

#[derive(Default)]
struct Entry {
    /// What is served.
    model: Option<Arc<Model>>,
    /// What is being done, or was done last, where nothing is served.
    state: Option<State>,
    /// Why nothing is served, or the last attempt to load it anew failed.
    reason: String,
}

impl Entry {
    fn state(&self) -> State {
        match (&self.model, self.state) {
            (Some(_), _) => State::Ready,
            (None, state) => state.unwrap_or(State::Unavailable),
        }
    }
}

/// Names of models: letters, digits, `_`, `-` and, behind the first place, `.`.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    name.len() <= NAME_LIMIT && name.starts_with(plain) && name.chars().all(|c| plain(c) || c == '.')
}

impl Repository {
    /// The repository at `path`. A bundle there is called `name`, or like its folder.
    ///
    /// # Errors
    /// If there is no folder, or a bundle's name is none for a model.
    pub fn open(
        path: &Path,
        name: Option<&str>,
        families: Registry<dyn Family>,
        options: Options,
        keep: Keep,
        log: Arc<Log>,
    ) -> candle_models::Result<Self> {
        options.validate()?;
        let path = path.canonicalize().map_err(candle_models::Error::io(path))?;
        if !path.is_dir() {
            return Err(candle_models::Error::file(&path, "expected a folder of bundles, or a bundle"));
        }
        let place = if path.join(CONFIG).is_file() {
            let folder = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.map(str::to_owned).or(folder).unwrap_or_default();
            if !is_name(&name) {
                return Err(candle_models::Error::config("model name", wrong_name(&name)));
            }
            Place::Bundle { name, path }
        } else if let Some(name) = name {
            return Err(candle_models::Error::config(
                "model name",
                format!("{name} is for a single bundle, and {} is none", path.display()),
            ));
        } else {
            Place::Folder(path)
        };
        Ok(Self { place, families, options, keep, log, models: RwLock::default(), changing: Mutex::default() })
    }

    /// How engines are set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How long a sequence may be idle.
    pub fn idle(&self) -> Duration {
        self.keep.idle
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Entry>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Entry>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of that name, if it is served.
    pub fn model(&self, name: &str) -> Result<Arc<Model>, Fault> {
        match self.read().get(name) {
            Some(Entry { model: Some(model), .. }) => Ok(model.clone()),
            Some(entry) => {
                let state = match entry.state() {
                    State::Loading => "is being loaded",
                    _ => "is not loaded",
                };
                let reason = if entry.reason.is_empty() { String::new() } else { format!(": {}", entry.reason) };
                Err(Fault::new(Kind::Unavailable, format!("model '{name}' {state}{reason}")))
            }
            None => Err(Fault::new(Kind::NotFound, format!("unknown model: '{}' is not found", one_line(name)))),
        }
    }

    /// The models that are served.
    pub fn served(&self) -> Vec<Arc<Model>> {
        self.read().values().filter_map(|entry| entry.model.clone()).collect()
    }

    /// Every model with its state: those that are served, and those that could be. Reads the folder.
    pub fn index(&self, ready: bool) -> Vec<IndexEntry> {
        let mut index: BTreeMap<String, IndexEntry> = BTreeMap::new();
        // A folder that cannot be read any more takes nothing away from what is served.
        for name in self.found().unwrap_or_default() {
            index.insert(name.clone(), IndexEntry { name, version: VERSION, state: State::Unavailable, reason: "not loaded".to_owned() });
        }
        for (name, entry) in self.read().iter() {
            let entry = IndexEntry { name: name.clone(), version: VERSION, state: entry.state(), reason: entry.reason.clone() };
            index.insert(name.clone(), entry);
        }
        index.into_values().filter(|entry| !ready || entry.state == State::Ready).collect()
    }

    /// Names of the bundles that lie there now.
    fn found(&self) -> candle_models::Result<Vec<String>> {
        let folder = match &self.place {
            Place::Folder(folder) => folder,
            Place::Bundle { name, .. } => return Ok(vec![name.clone()]),
        };
        let entries = std::fs::read_dir(folder).map_err(candle_models::Error::io(folder))?;
        let names = entries.flatten().filter(|entry| entry.path().join(CONFIG).is_file());
        let mut names: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).take(MOST).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort_unstable();
        Ok(names)
    }

    /// Loads every bundle, one after the other: how many are served then. Those that fail stand in the index with their reasons.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn load_all(&self) -> candle_models::Result<usize> {
        for name in self.found()? {
            // The reason stands in the index.
            let _ = self.load(&name);
        }
        Ok(self.served().len())
    }

    /// Loads a bundle, or loads it anew. Until that has succeeded the old model answers; its sequences go on in the new one, or are over if
    /// that has another signature. Takes its time.
    pub fn load(&self, name: &str) -> Result<(), Fault> {
        let began = Instant::now();
        let loaded = self.replace(name);
        self.log.load(name, &loaded, began.elapsed());
        loaded
    }

    fn replace(&self, name: &str) -> Result<(), Fault> {
        let _change = self.change();
        if is_name(name) {
            // Otherwise there is no such bundle, or it cannot be asked for.
            let mut models = self.write();
            let entry = models.entry(name.to_owned()).or_default();
            entry.state = Some(State::Loading);
        }
        let old = self.read().get(name).and_then(|entry| entry.model.clone());
        let loaded = self.start(name, old.as_deref());
        let mut models = self.write();
        match loaded {
            Ok(model) => {
                let model = Arc::new(model);
                models.insert(name.to_owned(), Entry { model: Some(model.clone()), state: None, reason: String::new() });
                drop(models);
                if let Some(old) = old {
                    model.replace(&old);
                }
                Ok(())
            }
            Err(Missing::Bundle(fault)) => {
                // What has never been there is not kept in mind.
                if models.get(name).is_some_and(|entry| entry.model.is_none()) {
                    models.remove(name);
                }
                Err(fault)
            }
            Err(Missing::Model(reason)) => {
                let entry = models.entry(name.to_owned()).or_default();
                (entry.state, entry.reason) = (Some(State::Unavailable), reason.clone());
                Err(Fault::input(format!("failed to load '{name}': {reason}")))
            }
        }
    }

    fn start(&self, name: &str, old: Option<&Model>) -> Result<Model, Missing> {
        let path = self.path(name)?;
        let start = || {
            let began = Instant::now();
            let network = self.families.load(&Bundle::open(path)?)?;
            let mut model = Model::start(name, network, &self.options, &self.keep, old)?;
            model.load = began.elapsed();
            Ok::<_, candle_models::Error>(model)
        };
        start().map_err(|error| Missing::Model(error.to_string()))
    }

    /// Where a bundle lies: directly below the repository's folder, whatever links there are.
    fn path(&self, name: &str) -> Result<PathBuf, Missing> {
        let unknown = || Missing::Bundle(Fault::new(Kind::NotFound, format!("unknown model: '{}' is not found", one_line(name))));
        match &self.place {
            Place::Bundle { name: own, path } => {
                if own == name {
                    Ok(path.clone())
                } else {
                    Err(unknown())
                }
            }
            Place::Folder(folder) => {
                let path = folder.join(name);
                if !is_name(name) {
                    // A folder that lies there under another name is reported; nothing else is looked for.
                    let lies_there = self.found().is_ok_and(|found| found.iter().any(|found| found == name));
                    return Err(if lies_there { Missing::Model(wrong_name(name)) } else { unknown() });
                }
                let path = path.canonicalize().map_err(|_| unknown())?;
                if !path.join(CONFIG).is_file() {
                    return Err(unknown());
                }
                if !path.starts_with(folder) {
                    return Err(Missing::Model("its folder is a link out of the repository".to_owned()));
                }
                Ok(path)
            }
        }
    }

    /// Stops serving a model. Requests that it has are answered; its sequences are over, but for the snapshots of those that nobody uses.
    pub fn unload(&self, name: &str) -> Result<(), Fault> {
        let _change = self.change();
        let mut models = self.write();
        let Some(entry) = models.get_mut(name) else {
            return Err(Fault::new(Kind::NotFound, format!("unknown model: '{}' is not found", one_line(name))));
        };
        let old = entry.model.take();
        (entry.state, entry.reason) = (Some(State::Unavailable), "unloaded".to_owned());
        drop(models);
        if let Some(old) = old {
            old.sequences.save();
            old.sequences.close(Why::Unloaded);
            self.log.unload(name);
        }
        Ok(())
    }
}

/// Why a model was not loaded.
enum Missing {
    /// There is no such bundle.
    Bundle(Fault),
    /// There is one, which cannot be served.
    Model(String),
}

fn wrong_name(name: &str) -> String {
    format!("expected a name of at most {NAME_LIMIT} letters, digits, '_', '-' and '.', found {}", one_line(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_no_way_out_of_the_folder() {
        for name in ["policy-mlp", "m", "0", "_", "-x", "a.b", "A_1.2-3"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(NAME_LIMIT + 1);
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "../x", "a b", "a\0", "ä", "%2e%2e", &long] {
            assert!(!is_name(name), "{name}");
        }
    }
}
