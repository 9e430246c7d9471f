//! A server: its listeners, its models, and its end.

use crate::fault::Fault;
use crate::grpc::{self, Services};
use crate::keys::{Keys, Principal, Role};
use crate::listen::{Listener, Phase, Protocol, accept};
use crate::log::Log;
use crate::metrics::{Machine, Refused};
use crate::options::{Address, Options};
use crate::protocol::describe::{EXTENSIONS, SHARED_MEMORY, TRACE};
use crate::renewal::{self, Renew, Renewed};
use crate::repository::Repository;
use crate::sequences::{Ended, Keep};
use crate::shared_memory::Regions;
use crate::snapshots::{self, Store};
use crate::spans::Spans;
use crate::tls::{Certificates, Spoken, Tls};
use crate::trace::Traces;
use crate::workers::Workers;
use candle_models::registry::{Family, Registry};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

/// How long a server that is about to end says nothing of it while it writes snapshots.
const MOVING: Duration = Duration::from_secs(2);

/// Longest time between looks at which snapshots are too old.
const SWEEPS: Duration = Duration::from_secs(3600);

/// What requests work on.
pub(crate) struct Shared {
    pub options: Options,
    pub repository: Repository,
    /// Of clients; without them everybody may do everything.
    pub keys: Option<Arc<Renewed<Keys>>>,
    pub regions: Regions,
    pub log: Arc<Log>,
    pub traces: Traces,
    /// Of requests, for a collector.
    pub spans: Option<Spans>,
    /// Sequences that have ended, of all models.
    pub ended: Arc<Ended>,
    pub refused: Refused,
    pub machine: Machine,
    /// Room for connections: all of it is free once none is left.
    pub room: Arc<Semaphore>,
    /// Models that were loaded at the start, and one more; 0 before that.
    pub loaded: watch::Sender<usize>,
    pub phase: watch::Receiver<Phase>,
}

impl Shared {
    /// Who has this authorization, whatever protocol it came by; nobody in particular where no keys are asked for, or no role is needed.
    pub fn identify(&self, authorization: Option<&[u8]>, needed: Option<Role>) -> Result<Principal, Fault> {
        match (&self.keys, needed) {
            (Some(keys), Some(needed)) => keys.get().check(authorization, needed).map(Some),
            _ => Ok(None),
        }
    }

    /// The parts of the protocol beyond its core that this server has.
    pub fn extensions(&self) -> Vec<&'static str> {
        let has = |name: &&str| match *name {
            SHARED_MEMORY => self.regions.is_allowed(),
            TRACE => self.traces.is_allowed(),
            _ => true,
        };
        EXTENSIONS.into_iter().filter(has).collect()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        (self.options.limits.connections()).saturating_sub(self.room.available_permits())
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
    places: Vec<String>,
    phase: watch::Sender<Phase>,
    /// Whether a step is in a snapshot before it is answered.
    at_once: Arc<AtomicBool>,
    listeners: JoinSet<()>,
    renew: Arc<Notify>,
    /// They end with the server.
    _workers: Arc<Workers>,
}

impl Server {
    /// Listens, and answers whether it is alive; models are loaded by [`Self::load`].
    ///
    /// # Errors
    /// If the folder is none, an option is out of range, an address cannot be had, or the file of traces cannot be written to.
    pub async fn start(options: Options, families: Registry<dyn Family>) -> io::Result<Self> {
        let other = |error: candle_models::Error| io::Error::other(error.to_string());
        let log = Arc::new(Log::new(options.log));
        let store = snapshots::open(&options).map_err(other)?;
        let at_once = Arc::new(AtomicBool::new(options.snapshot_every.is_zero()));
        let ended = Arc::<Ended>::default();
        let keep = Keep {
            idle: options.limits.sequence_time,
            store: store.clone().zip(Some(log.clone())),
            at_once: at_once.clone(),
            ended: ended.clone(),
        };
        let name = options.model_name.as_deref();
        let traces = Traces::new(options.trace.clone())?;
        let spans = options.otlp.as_ref().map(|otlp| Spans::new(otlp, log.clone())).transpose().map_err(io::Error::other)?;
        let repository = Repository::open(&options.folder, name, families, options.engine.clone(), keep, log.clone()).map_err(other)?;
        let certificates = options
            .tls
            .clone()
            .map(|files| Renewed::open("certificates", Certificates::files(&files), move || Certificates::open(&files)).map(Arc::new));
        let certificates = certificates.transpose().map_err(other)?;
        let keys = options.keys.clone().map(|path| Renewed::open("keys", vec![path.clone()], move || Keys::open(&path)).map(Arc::new));
        let keys = keys.transpose().map_err(other)?;
        let renewed =
            certificates.clone().map(|part| part as Arc<dyn Renew>).into_iter().chain(keys.clone().map(|part| part as _)).collect();
        let room = Arc::new(Semaphore::new(options.limits.connections()));
        let (phase, watched) = watch::channel(Phase::Open);
        let (http, grpc) = (bind(&options.http).await?, bind(&options.grpc).await?);
        let shared = Arc::new(Shared {
            regions: Regions::new(options.shared_memory),
            log,
            traces,
            spans,
            ended,
            refused: Refused::default(),
            machine: Machine::default(),
            room: room.clone(),
            options,
            repository,
            keys,
            loaded: watch::Sender::new(0),
            phase: watched.clone(),
        });
        let (services, reporter) = Services::new(shared.clone()).await.map_err(io::Error::other)?;
        let workers = Arc::new(Workers::start()?);
        let mut listeners = JoinSet::new();
        let mut places = Vec::new();
        let limit = shared.options.limits.header_time;
        let mut listen = |bound: Vec<(Listener, Address)>, spoken: Spoken, protocol: Protocol| {
            let tls = certificates.clone().map(|certificates| Tls { certificates, spoken, limit });
            let each = bound.into_iter().map(|(listener, address)| {
                let place = protocol.place(&address, tls.as_ref());
                shared.log.server(&format!("listening at {place}"));
                places.push(place);
                let (speaks, workers) = ((protocol.clone(), tls.clone()), (room.clone(), workers.clone()));
                listeners.spawn(accept(listener, speaks, workers, watched.clone()));
                address
            });
            each.collect()
        };
        let addresses = listen(http, Spoken::Http, Protocol::Http(shared.clone()));
        let grpc_addresses = listen(grpc, Spoken::Grpc, Protocol::Grpc(services));
        listeners.spawn(grpc::report(reporter, shared.clone()));
        let renew = Arc::new(Notify::new());
        listeners.spawn(renewal::renew(renewed, shared.log.clone(), renew.clone(), watched.clone()));
        listeners.spawn(keep_sequences(Arc::downgrade(&shared), store, watched));
        Ok(Self { shared, addresses, grpc_addresses, places, phase, at_once, listeners, renew, _workers: workers })
    }

    /// Where it listens for HTTP, with the port that was free in place of 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The same for gRPC.
    pub fn grpc_addresses(&self) -> &[Address] {
        &self.grpc_addresses
    }

    /// All of them for people, with what is spoken there.
    pub fn places(&self) -> &[String] {
        &self.places
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

    /// Has the files of certificates and keys looked at now, which happens every second by itself: what has changed is read anew. New
    /// connections have the new certificates, requests the new keys. Files that cannot be used are said in the log, and change nothing.
    pub fn renew(&self) {
        self.renew.notify_one();
    }

    /// Says from now on that it is not ready, and answers as before: a balancer can turn away. Where there are snapshots, every step that has
    /// been answered is in one by then, and those that come are before their answers: sequences go on in another server from where they are.
    pub async fn leave(&self) {
        self.at_once.store(true, Relaxed);
        // A store that takes its time does not keep balancers from turning away.
        let _ = tokio::time::timeout(MOVING, self.save()).await;
        self.phase.send_replace(Phase::Leaving);
        self.shared.log.server("about to end");
    }

    /// Writes snapshots of the sequences that have moved, if there are any. Whether nothing has panicked.
    async fn save(&self) -> bool {
        let shared = self.shared.clone();
        let save = move || shared.repository.served().iter().for_each(|model| model.sequences.save());
        tokio::task::spawn_blocking(save).await.is_ok()
    }

    /// Ends: takes no connection any more and finishes what runs, for [`Options::patience`] at most; then the sequences that have moved are
    /// written into snapshots, if there are any. Whether everything was finished.
    pub async fn stop(mut self) -> bool {
        let patience = self.shared.options.patience;
        self.phase.send_replace(Phase::Closing);
        while self.listeners.join_next().await.is_some() {}
        let all = u32::try_from(self.shared.options.limits.connections()).unwrap_or(u32::MAX);
        let finished = tokio::time::timeout(patience, self.shared.room.acquire_many(all)).await.is_ok();
        let saved = self.save().await;
        let shared = self.shared.clone();
        let flushed = tokio::task::spawn_blocking(move || shared.spans.iter().for_each(Spans::stop)).await.is_ok();
        self.shared.log.server(if finished { "stopped" } else { "stopped before some requests were finished" });
        finished && saved && flushed
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

/// Ends sequences that were not used for too long, writes snapshots of those that have moved, and removes old ones, if there are any.
async fn keep_sequences(shared: std::sync::Weak<Shared>, store: Option<Arc<dyn Store>>, mut phase: watch::Receiver<Phase>) {
    let Some((idle, every)) = shared.upgrade().map(|shared| (shared.options.limits.sequence_time, shared.options.snapshot_every)) else {
        return;
    };
    // With every step there is nothing left for rounds, but what could not be written.
    let every = if every.is_zero() { Duration::from_secs(10) } else { every };
    let tick = (idle / 8).min(every).clamp(Duration::from_millis(5), Duration::from_secs(10));
    let (mut saved, mut swept) = (Instant::now(), Instant::now());
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
        let old =
            store.clone().filter(|_| swept.elapsed() >= shared.options.snapshot_keep.map_or(Duration::MAX, |keep| (keep / 8).min(SWEEPS)));
        if old.is_some() {
            swept = Instant::now();
        }
        let round = move || {
            old.map_or(Ok(()), |store| store.sweep()).unwrap_or_else(|error| shared.log.sweep(&error));
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
