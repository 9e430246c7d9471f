//! A server: its listeners, its models, and its end.

use crate::http::{Listener, Phase, accept};
use crate::keys::Keys;
use crate::options::{Address, Options};
use crate::repository::Repository;
use crate::sequences::Keep;
use crate::snapshots::{Folder, Store};
use crate::tls::{HTTP_1, Tls};
use candle_models::registry::{Family, Registry};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// What requests work on.
pub(crate) struct Shared {
    pub options: Options,
    pub repository: Repository,
    /// Of clients; without them everybody may do everything.
    pub keys: Option<Keys>,
    /// Models that were loaded at the start, and one more; 0 before that.
    loaded: AtomicUsize,
    phase: watch::Receiver<Phase>,
}

impl Shared {
    /// Why the server is not ready, if it is not.
    pub fn readiness(&self) -> Option<&'static str> {
        match (self.loaded.load(Ordering::Acquire), *self.phase.borrow()) {
            (_, Phase::Leaving | Phase::Closing) => Some("the server is about to end"),
            (0, _) => Some("models are being loaded"),
            (1, _) => Some("no model was loaded"),
            _ => None,
        }
    }
}

/// A server that listens and serves.
///
/// ```
/// use candle_serve::{Options, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// runtime.block_on(async {
///     let options = Options { http: vec!["127.0.0.1:0".parse()?], ..Options::new("../weights/policy-mlp") };
///     let server = Server::start(options, candle_models::families::shipped()).await?;
///     println!("{} serves {} models", server.addresses()[0], server.load().await?);
///     server.stop().await;
///     Ok(())
/// })
/// # }
/// ```
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    phase: watch::Sender<Phase>,
    listeners: JoinSet<()>,
    /// Room for connections: all of it is free once none is left.
    room: Arc<Semaphore>,
    connections: u32,
}

impl Server {
    /// Listens, and answers whether it is alive; models are loaded by [`Self::load`].
    ///
    /// # Errors
    /// If the folder is none, an option is out of range, or an address cannot be had.
    pub async fn start(options: Options, families: Registry<dyn Family>) -> io::Result<Self> {
        let other = |error: candle_models::Error| io::Error::other(error.to_string());
        let folder = options.snapshots.as_deref().map(Folder::open).transpose().map_err(other)?;
        let store = folder.map(|folder| Arc::new(folder) as Arc<dyn Store>);
        let keep = Keep { idle: options.limits.sequence_time, store };
        let name = options.model_name.as_deref();
        let repository = Repository::open(&options.folder, name, families, options.engine.clone(), keep).map_err(other)?;
        let tls = options.tls.as_ref().map(|files| Tls::open(files, HTTP_1, options.limits.header_time)).transpose().map_err(other)?;
        let keys = options.keys.as_deref().map(Keys::open).transpose().map_err(other)?;
        let connections = u32::try_from(options.limits.connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let (phase, watched) = watch::channel(Phase::Open);
        let mut bound = Vec::new();
        for address in &options.http {
            let listener = Listener::bind(address).await;
            bound.push(listener.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?);
        }
        let shared = Arc::new(Shared { options, repository, keys, loaded: AtomicUsize::new(0), phase: watched.clone() });
        let room = Arc::new(Semaphore::new(connections as usize));
        let (mut listeners, mut addresses) = (JoinSet::new(), Vec::new());
        for (listener, address) in bound {
            addresses.push(address);
            listeners.spawn(accept(listener, tls.clone(), shared.clone(), room.clone(), watched.clone()));
        }
        listeners.spawn(keep_sequences(Arc::downgrade(&shared), watched));
        Ok(Self { shared, addresses, phase, listeners, room, connections })
    }

    /// Where it listens, with the port that was free in place of 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Loads every bundle: how many are served then. Those that fail stand in the repository's index with their reasons, and in
    /// [`Self::failures`].
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub async fn load(&self) -> candle_models::Result<usize> {
        let shared = self.shared.clone();
        let loaded = tokio::task::spawn_blocking(move || shared.repository.load_all()).await;
        let loaded = loaded.map_err(|panic| candle_models::Error::Input(format!("loading: {panic}")))??;
        self.shared.loaded.store(loaded + 1, Ordering::Release);
        Ok(loaded)
    }

    /// Bundles that are not served, with the reason.
    pub fn failures(&self) -> Vec<(String, String)> {
        let index = self.shared.repository.index(false).into_iter();
        index.filter(|entry| !entry.reason.is_empty()).map(|entry| (entry.name, entry.reason)).collect()
    }

    /// Says from now on that it is not ready, and answers as before: a balancer can turn away.
    pub fn leave(&self) {
        self.phase.send_replace(Phase::Leaving);
    }

    /// Ends: takes no connection any more and finishes what runs, for [`Options::patience`] at most; then the sequences that have moved are
    /// written into snapshots, if there are any. Whether everything was finished.
    pub async fn stop(mut self) -> bool {
        let patience = self.shared.options.patience;
        self.phase.send_replace(Phase::Closing);
        while self.listeners.join_next().await.is_some() {}
        let finished = tokio::time::timeout(patience, self.room.acquire_many(self.connections)).await.is_ok();
        let shared = self.shared.clone();
        let saved = tokio::task::spawn_blocking(move || shared.repository.served().iter().for_each(|model| model.sequences.save()));
        finished && saved.await.is_ok()
    }
}

/// Ends sequences that were not used for too long, and writes snapshots of those that have moved, if there are any.
async fn keep_sequences(shared: std::sync::Weak<Shared>, mut phase: watch::Receiver<Phase>) {
    let Some((idle, every)) = shared.upgrade().map(|shared| (shared.options.limits.sequence_time, shared.options.snapshot_every)) else {
        return;
    };
    let tick = (idle / 8).min(every).clamp(Duration::from_millis(5), Duration::from_secs(10));
    let mut saved = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(tick) => {}
            // The server has gone as well if nobody can say so any more.
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        let due = saved.elapsed() >= every;
        if due {
            saved = Instant::now();
        }
        let round = move || {
            for model in shared.repository.served() {
                model.sequences.expire();
                if due {
                    model.sequences.save();
                }
            }
        };
        // The last session of an engine waits for its thread when it is dropped, and files are written. A panic has been reported by the
        // panic hook; the next round goes on.
        let _ = tokio::task::spawn_blocking(round).await;
    }
}
