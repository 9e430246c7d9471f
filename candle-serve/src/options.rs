//! How a server is set up.

use crate::log::LogFormat;
use candle_models::engine;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where a server listens.
///
/// ```
/// use candle_serve::Address;
///
/// assert_eq!("unix:/run/candle.sock".parse(), Ok(Address::Unix("/run/candle.sock".into())));
/// assert_eq!("127.0.0.1:8000".parse::<Address>().map(|address| address.to_string()), Ok("127.0.0.1:8000".to_owned()));
/// assert!("8000".parse::<Address>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port; 0 takes one that is free.
    Tcp(SocketAddr),
    /// A Unix socket: a file that the server makes and removes.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path behind unix:".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                let found = text.to_socket_addrs().map_err(|e| format!("expected HOST:PORT or unix:PATH, found {text:?}: {e}"))?;
                found.into_iter().next().map(Self::Tcp).ok_or_else(|| format!("{text:?} has no address"))
            }
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What a client may take up, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body, decompressed; by default 16 MiB.
    pub body: usize,
    /// Connections at the same time, by default 1024; further ones wait.
    pub connections: usize,
    /// From the first byte of a request to the end of its headers, and for a handshake of TLS; by default 5 s.
    pub header_time: Duration,
    /// For a request's body; by default 10 s.
    pub body_time: Duration,
    /// Without a request, or without taking an answer; by default 60 s.
    pub idle_time: Duration,
    /// Without a step, for a sequence; by default 60 s.
    pub sequence_time: Duration,
}

impl Limits {
    /// Connections that there is room for: one at least.
    pub(crate) fn connections(&self) -> usize {
        self.connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 16 << 20,
            connections: 1024,
            header_time: Duration::from_secs(5),
            body_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            sequence_time: Duration::from_secs(60),
        }
    }
}

/// Files in PEM for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those up to one that clients trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates one of which has signed every client's; without them clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Where snapshots of sequences are kept.
///
/// ```
/// use candle_serve::SnapshotStore;
///
/// let store = SnapshotStore::from("rediss://agent:secret@redis:6379/2".to_owned());
/// assert!(matches!(&store, SnapshotStore::Redis(_)));
/// assert!(!format!("{store:?}").contains("secret"));
/// assert_eq!(SnapshotStore::from("/srv/snapshots".to_owned()), SnapshotStore::Folder("/srv/snapshots".into()));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum SnapshotStore {
    /// A folder, which is made if there is none.
    Folder(PathBuf),
    /// A URL of Redis: `redis://`, with TLS `rediss://`, over a Unix socket `redis+unix://`. It may have a password.
    Redis(String),
}

impl From<String> for SnapshotStore {
    fn from(text: String) -> Self {
        let is_redis = ["redis://", "rediss://", "redis+unix://"].iter().any(|scheme| text.starts_with(scheme));
        if is_redis { Self::Redis(text) } else { Self::Folder(text.into()) }
    }
}

impl From<PathBuf> for SnapshotStore {
    fn from(path: PathBuf) -> Self {
        Self::Folder(path)
    }
}

impl std::fmt::Debug for SnapshotStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) => f.debug_tuple("Folder").field(path).finish(),
            // Without its password.
            Self::Redis(_) => f.write_str("Redis"),
        }
    }
}

/// Where spans of requests are sent to.
#[derive(Debug, Clone, PartialEq)]
pub struct Otlp {
    /// A collector's port for OTLP over gRPC, as a URL.
    pub endpoint: String,
    /// The share of requests that have one, of those whose clients do not say; by default as `OTEL_TRACES_SAMPLER` says, or all.
    pub rate: Option<f64>,
}

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder with bundles in it or in its folders, or a bundle.
    pub folder: PathBuf,
    /// What a single bundle is called; by default like its folder.
    pub model_name: Option<String>,
    /// Where to listen for HTTP.
    pub http: Vec<Address>,
    /// Where to listen for gRPC.
    pub grpc: Vec<Address>,
    /// A file of keys, one of which every request has to have; without it everybody may do everything.
    pub keys: Option<PathBuf>,
    /// TLS for all ports; a Unix socket has none.
    pub tls: Option<TlsFiles>,
    /// How the engine of each model is set up.
    pub engine: engine::Options,
    /// Where snapshots of sequences are kept, which servers can share; without them sequences end with the server.
    pub snapshots: Option<SnapshotStore>,
    /// How long a snapshot is kept whose sequence does not move; by default until the sequence ends.
    pub snapshot_keep: Option<Duration>,
    /// How often sequences that have moved are written there; by default every 10 s. Zero writes with every step, before its answer.
    pub snapshot_every: Duration,
    /// Whether clients may name shared memory of this machine, to be read and written.
    pub shared_memory: bool,
    /// Where traces of requests are written to, once a client asks for them.
    pub trace: Option<PathBuf>,
    /// A collector of OpenTelemetry that is sent a span of each request.
    pub otlp: Option<Otlp>,
    /// How lines of the log are written by [`to_stderr`](crate::to_stderr): what clients are told of it.
    pub log: LogFormat,
    /// What clients may take up.
    pub limits: Limits,
    /// How long a server that ends waits for what runs; by default 20 s.
    pub patience: Duration,
}

impl Options {
    /// The defaults for that folder, on ports 8000 and, for gRPC, 8001 of this machine alone. An engine has room for 4096 sessions.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let sessions = 4096;
        Self {
            folder: folder.into(),
            model_name: None,
            http: vec![Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8000)))],
            keys: None,
            tls: None,
            snapshots: None,
            snapshot_keep: None,
            snapshot_every: Duration::from_secs(10),
            grpc: vec![Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8001)))],
            // A session has one request at most, so none is refused for the queue's sake.
            engine: engine::Options { sessions, queue: sessions, ..engine::Options::default() },
            shared_memory: false,
            trace: None,
            otlp: None,
            log: LogFormat::default(),
            limits: Limits::default(),
            patience: Duration::from_secs(20),
        }
    }
}
