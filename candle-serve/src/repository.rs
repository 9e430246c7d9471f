//! The models that a server has: those of the bundles below a folder, or of a single one.

use crate::fault::{Fault, Kind, one_line};
use crate::log::Log;
use crate::model::{Model, VERSION};
use crate::places::{Bundles, Place, is_name, wrong_name};
use crate::protocol::describe::{IndexEntry, State};
use crate::sequences::{Keep, Why};
use candle_models::bundle::Bundle;
use candle_models::engine::Options;
use candle_models::registry::{Family, Registry};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long batches of several rows may take that are run before a model is served.
const WARM_UP: Duration = Duration::from_millis(5);

/// The models of a server.
pub(crate) struct Repository {
    place: Place,
    families: Registry<dyn Family>,
    options: Options,
    keep: Keep,
    log: Arc<Log>,
    models: RwLock<BTreeMap<String, Entry>>,
    /// Held by whoever loads or unloads at a client's word, and by whoever loads everything: one at a time.
    changing: Mutex<()>,
}

#[derive(Default)]
struct Entry {
    /// What is served.
    model: Option<Arc<Model>>,
    /// What is being done, or was done last, where nothing is served.
    state: Option<State>,
    /// The bundle that it is a further network of.
    of: Option<String>,
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
        let place = Place::open(path, name)?;
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
        for name in self.place.bundles().unwrap_or_default().into_keys() {
            index.insert(name.clone(), IndexEntry { name, version: VERSION, state: State::Unavailable, reason: "not loaded".to_owned() });
        }
        for (name, entry) in self.read().iter() {
            let entry = IndexEntry { name: name.clone(), version: VERSION, state: entry.state(), reason: entry.reason.clone() };
            index.insert(name.clone(), entry);
        }
        index.into_values().filter(|entry| !ready || entry.state == State::Ready).collect()
    }

    /// Loads every bundle, as many at a time as there are processors: how many models are served then. Those that fail stand in the index
    /// with their reasons.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn load_all(&self) -> candle_models::Result<usize> {
        let bundles = self.place.bundles()?;
        let _change = self.change();
        let names = Mutex::new(bundles.keys());
        let next = || names.lock().unwrap_or_else(PoisonError::into_inner).next();
        let loader = || {
            while let Some(name) = next() {
                // The reason stands in the index.
                let _ = self.load_from(&bundles, name);
            }
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            (0..threads.min(bundles.len())).for_each(|_| drop(scope.spawn(loader)));
        });
        Ok(self.served().len())
    }

    /// Loads a bundle with all its networks, or one of those, or loads them anew. Until that has succeeded the old models answer; their
    /// sequences go on in the new ones, or are over in one that has another signature. Takes its time.
    pub fn load(&self, name: &str) -> Result<(), Fault> {
        let _change = self.change();
        self.load_from(&self.place.bundles().unwrap_or_default(), name)
    }

    fn load_from(&self, bundles: &Bundles, name: &str) -> Result<(), Fault> {
        let began = Instant::now();
        let loaded = self.replace(bundles, name);
        self.log.load(name, &loaded, began.elapsed());
        loaded
    }

    fn replace(&self, bundles: &Bundles, name: &str) -> Result<(), Fault> {
        if is_name(name) {
            // Otherwise there is no such bundle, or it cannot be asked for.
            let mut models = self.write();
            let entry = models.entry(name.to_owned()).or_default();
            entry.state = Some(State::Loading);
        }
        let loaded = self.start(bundles, name);
        let mut models = self.write();
        match loaded {
            Ok(new) => {
                let old = put(&mut models, name, new);
                drop(models);
                old.into_iter().for_each(|(old, new)| match new {
                    Some(new) => new.replace(&old),
                    None => old.sequences.close(Why::Unloaded),
                });
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

    /// The models of a bundle, or the one of them that has that name, warm.
    fn start(&self, bundles: &Bundles, name: &str) -> Result<Vec<Loaded>, Missing> {
        let (bundle, path) = find(bundles, name)?;
        let began = Instant::now();
        let model = |error: candle_models::Error| Missing::Model(error.to_string());
        let networks = self.families.networks(&Bundle::open(path).map_err(model)?).map_err(model)?;
        let mut loaded = Vec::new();
        for (at, (network, recorded)) in networks.into_iter().enumerate() {
            let of = (at > 0).then(|| bundle.to_owned());
            let own = of.as_ref().map_or_else(|| bundle.to_owned(), |bundle| format!("{bundle}.{network}"));
            if name != bundle && name != own {
                continue;
            }
            if of.is_some() && bundles.contains_key(&own) {
                return Err(Missing::Model(format!("its network {network} would be called {own}, as another bundle is: rename one")));
            }
            if !is_name(&own) {
                return Err(Missing::Model(wrong_name(&own)));
            }
            let old = self.read().get(&own).and_then(|entry| entry.model.clone());
            let mut model = Model::start(&own, recorded, &self.options, &self.keep, old.as_deref()).map_err(model)?;
            let cold = |error| Missing::Model(format!("{own} failed in a first step, which is made before it is served: {error}"));
            model.engine.warm_up(WARM_UP).map_err(cold)?;
            model.load = began.elapsed();
            loaded.push(Loaded { model: Arc::new(model), of });
        }
        if loaded.is_empty() { Err(unknown(name)) } else { Ok(loaded) }
    }

    /// Stops serving a model, and a bundle's further networks with it. Requests that it has are answered; its sequences are over, but for the
    /// snapshots of those that nobody uses.
    pub fn unload(&self, name: &str) -> Result<(), Fault> {
        let _change = self.change();
        let mut models = self.write();
        if !models.contains_key(name) {
            return Err(Fault::new(Kind::NotFound, format!("unknown model: '{}' is not found", one_line(name))));
        }
        let its = models.iter_mut().filter(|(own, entry)| *own == name || entry.of.as_deref() == Some(name));
        let old: Vec<Arc<Model>> = its
            .filter_map(|(_, entry)| {
                (entry.state, entry.reason) = (Some(State::Unavailable), "unloaded".to_owned());
                entry.model.take()
            })
            .collect();
        drop(models);
        for old in old {
            old.sequences.save();
            old.sequences.close(Why::Unloaded);
            self.log.unload(&old.name);
        }
        Ok(())
    }
}

/// A model that can be served.
struct Loaded {
    model: Arc<Model>,
    /// The bundle that it is a further network of.
    of: Option<String>,
}

/// Serves what was loaded as `name`: the models that are not served any more, each with the one in its place if there is one.
fn put(models: &mut BTreeMap<String, Entry>, name: &str, new: Vec<Loaded>) -> Vec<(Arc<Model>, Option<Arc<Model>>)> {
    // Networks that the bundle has no more.
    let mut gone = Vec::new();
    let stays = |own: &str| new.iter().any(|loaded| loaded.model.name == own);
    models.retain(|own, entry| {
        let stays = entry.of.as_deref() != Some(name) || stays(own);
        if !stays {
            gone.extend(entry.model.take());
        }
        stays
    });
    let mut old: Vec<_> = gone.into_iter().map(|model| (model, None)).collect();
    for Loaded { model, of } in new {
        let entry = Entry { model: Some(model.clone()), of, ..Entry::default() };
        let before = models.insert(model.name.clone(), entry).and_then(|entry| entry.model);
        old.extend(before.map(|before| (before, Some(model))));
    }
    old
}

/// The bundle of that name, or that has a network of that name.
fn find<'b>(bundles: &'b Bundles, name: &str) -> Result<(&'b str, &'b Path), Missing> {
    let bundle = |name: &str| bundles.get_key_value(name);
    let found = bundle(name).or_else(|| name.rsplit_once('.').and_then(|(name, _)| bundle(name)));
    match found {
        Some((bundle, Ok(path))) => Ok((bundle, path)),
        Some((bundle, Err(reason))) if bundle == name => Err(Missing::Model(reason.clone())),
        _ => Err(unknown(name)),
    }
}

/// Why a model was not loaded.
enum Missing {
    /// There is no such bundle.
    Bundle(Fault),
    /// There is one, which cannot be served.
    Model(String),
}

fn unknown(name: &str) -> Missing {
    Missing::Bundle(Fault::new(Kind::NotFound, format!("unknown model: '{}' is not found", one_line(name))))
}
