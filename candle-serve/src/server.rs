//! A server: its listeners, its models, and its end.

use crate::grpc::{self, Services};
use crate::http::{Listener, Phase, Protocol, accept};
use crate::log::Log;
use crate::options::{Address, Options};
use crate::protocol::describe::{EXTENSIONS, SHARED_MEMORY};
use crate::repository::Repository;
use crate::shared_memory::Regions;
use candle_models::registry::{Family, Registry};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// What requests work on.
pub(crate) struct Shared {
    pub options: Options,
    pub repository: Repository,
    pub regions: Regions,
    pub log: Arc<Log>,
    /// Models that were loaded at the start, and one more; 0 before that.
    pub loaded: watch::Sender<usize>,
    pub phase: watch::Receiver<Phase>,
}

impl Shared {
    /// The parts of the protocol beyond its core that this server has.
    pub fn extensions(&self) -> Vec<&'static str> {
        EXTENSIONS.into_iter().filter(|name| *name != SHARED_MEMORY || self.regions.is_allowed()).collect()
    }

    /// Why the server is not ready, if it is not.
    pub fn readiness(&self) -> Option<&'static str> {
        match (*self.loaded.borrow(), *self.phase.borrow()) {
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
///     let port = vec!["127.0.0.1:0".parse()?];
///     let options = Options { http: port.clone(), grpc: port, ..Options::new("../weights/policy-mlp") };
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
    grpc_addresses: Vec<Address>,
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
        let (name, idle) = (options.model_name.as_deref(), options.limits.sequence_time);
        let log = Arc::new(Log::new(options.log));
        let repository = Repository::open(&options.folder, name, families, options.engine.clone(), idle, log.clone()).map_err(other)?;
        let connections = u32::try_from(options.limits.connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let (phase, watched) = watch::channel(Phase::Open);
        let (http, grpc) = (bind(&options.http).await?, bind(&options.grpc).await?);
        let shared = Arc::new(Shared {
            regions: Regions::new(options.shared_memory),
            log,
            options,
            repository,
            loaded: watch::Sender::new(0),
            phase: watched.clone(),
        });
        let (services, reporter) = Services::new(shared.clone()).await.map_err(io::Error::other)?;
        let room = Arc::new(Semaphore::new(connections as usize));
        let mut listeners = JoinSet::new();
        let mut listen = |bound: Vec<(Listener, Address)>, protocol: Protocol| {
            let each = bound.into_iter().map(|(listener, address)| {
                shared.log.server(&format!("listening at {address}"));
                listeners.spawn(accept(listener, protocol.clone(), room.clone(), watched.clone()));
                address
            });
            each.collect()
        };
        let addresses = listen(http, Protocol::Http(shared.clone()));
        let grpc_addresses = listen(grpc, Protocol::Grpc(services));
        listeners.spawn(grpc::report(reporter, shared.clone()));
        listeners.spawn(expire(Arc::downgrade(&shared), idle, watched));
        Ok(Self { shared, addresses, grpc_addresses, phase, listeners, room, connections })
    }

    /// Where it listens for HTTP, with the port that was free in place of 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The same for gRPC.
    pub fn grpc_addresses(&self) -> &[Address] {
        &self.grpc_addresses
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
        self.shared.loaded.send_replace(loaded + 1);
        self.shared.log.server(&format!("{loaded} models are served"));
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
        self.shared.log.server("about to end");
    }

    /// Ends: takes no connection any more and finishes what runs, for [`Options::patience`] at most. Whether everything was finished.
    pub async fn stop(mut self) -> bool {
        let patience = self.shared.options.patience;
        self.phase.send_replace(Phase::Closing);
        while self.listeners.join_next().await.is_some() {}
        let finished = tokio::time::timeout(patience, self.room.acquire_many(self.connections)).await.is_ok();
        self.shared.log.server(if finished { "stopped" } else { "stopped before some requests were finished" });
        finished
    }
}

async fn bind(addresses: &[Address]) -> io::Result<Vec<(Listener, Address)>> {
    let mut bound = Vec::new();
    for address in addresses {
        let listener = Listener::bind(address).await;
        bound.push(listener.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?);
    }
    Ok(bound)
}

/// Ends sequences that were not used for too long.
async fn expire(shared: std::sync::Weak<Shared>, idle: Duration, mut phase: watch::Receiver<Phase>) {
    let tick = (idle / 8).clamp(Duration::from_millis(5), Duration::from_secs(10));
    loop {
        tokio::select! {
            () = tokio::time::sleep(tick) => {}
            // The server has gone as well if nobody can say so any more.
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        // The last session of an engine waits for its thread when it is dropped.
        let expired = tokio::task::spawn_blocking(move || shared.repository.served().iter().for_each(|model| model.sequences.expire()));
        // A panic has been reported by the panic hook; the next round goes on.
        let _ = expired.await;
    }
}
