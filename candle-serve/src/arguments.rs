//! The command line of `candle-serve`.

use crate::keys::Role;
use crate::log::LogFormat;
use crate::options::{Address, Options, SnapshotStore, TlsFiles};
use candle_models::device::DeviceChoice;
use candle_models::engine::Placement;
use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use std::time::Duration;

/// Serves model bundles over the Open Inference Protocol v2.
#[derive(Debug, Parser)]
#[command(name = "candle-serve", version, about, after_help = "candle-serve key --help: keys for clients.")]
pub struct Arguments {
    /// A folder with bundles in it or in its folders, each of which is served under its way with points between; or a single bundle.
    pub folder: PathBuf,

    /// Where to listen for HTTP: HOST:PORT, or unix:PATH. Can be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub http: Vec<Address>,

    /// The server's certificate in PEM, with those behind it: all ports speak TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of that certificate in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Certificates in PEM one of which has to have signed that of every client.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// A file of keys, one in each line as `candle-serve key` makes them: every request has to have one.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,

    /// Where to listen for gRPC, in the same way.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub grpc: Vec<Address>,

    /// What a single bundle is called; by default like its folder.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,

    /// Where models run: cpu, cuda, cuda:N, or auto for a GPU if there is one.
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,

    /// Threads that compute a batch on the CPU.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// Most rows of a request, and of a batch.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_batch: usize,

    /// How long the oldest request may wait for a fuller batch, in microseconds: at most a second. By default what waits is run.
    #[arg(long, value_name = "US")]
    pub max_wait: Option<u64>,

    /// Sequences and rows that a model can have at the same time.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub sessions: usize,

    /// How long a sequence may be idle before it is ended, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub sequence_idle: u64,

    /// Where snapshots of sequences are kept, which can be shared with other servers: sequences go on from there. A folder, or Redis as
    /// `redis://[USER:PASSWORD@]HOST:PORT[/DB]`, `rediss://...` or `redis+unix:///PATH`. By default sequences end with the server.
    #[arg(long, value_name = "DIR|URL")]
    pub snapshots: Option<SnapshotStore>,

    /// How long a snapshot is kept whose sequence does not move, in seconds. By default until the sequence ends.
    #[arg(long, value_name = "S", requires = "snapshots", value_parser = clap::value_parser!(u64).range(1..))]
    pub snapshot_keep: Option<u64>,

    /// How often sequences that have moved are written there, in seconds; 0 is with every step, before its answer.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub snapshot_every: u64,

    /// Lets clients name shared memory of this machine, which the server then reads and writes for them.
    #[arg(long)]
    pub allow_shared_memory: bool,

    /// Where traces of requests are written to, once a client asks for them.
    #[arg(long, value_name = "FILE")]
    pub trace_file: Option<PathBuf>,

    /// How lines of the log on standard error are written.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// How long a server that is asked to end still takes requests, in seconds, while it says that it is not ready.
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub grace: u64,
}

/// Makes a key for a client: its line for the file of `--keys` on the standard output, the key itself on the standard error.
#[derive(Debug, Parser)]
#[command(name = "candle-serve key", version, about)]
pub struct KeyArguments {
    /// Whose key it is: sequences belong to that name.
    pub name: String,

    /// What the key is good for.
    #[arg(long)]
    pub role: Role,
}

impl Arguments {
    /// The options that were asked for.
    pub fn options(self) -> Options {
        let mut options = Options::new(self.folder);
        options.engine.place = Placement { device: self.device, ..Placement::cpu(self.threads) };
        options.engine.max_batch = self.max_batch;
        options.engine.max_wait = self.max_wait.map(Duration::from_micros);
        (options.engine.sessions, options.engine.queue) = (self.sessions, self.sessions);
        options.limits.sequence_time = Duration::from_secs(self.sequence_idle);
        options.keys = self.keys;
        options.snapshot_every = Duration::from_secs(self.snapshot_every);
        options.snapshot_keep = self.snapshot_keep.map(Duration::from_secs);
        let tls = self.tls_cert.zip(self.tls_key);
        options.tls = tls.map(|(certificate, key)| TlsFiles { certificate, key, client_ca: self.tls_client_ca });
        Options {
            model_name: self.model_name,
            http: self.http,
            grpc: self.grpc,
            snapshots: self.snapshots,
            shared_memory: self.allow_shared_memory,
            log: self.log_format,
            trace: self.trace_file,
            ..options
        }
    }
}

/// The command lines, for tests of documentation.
pub fn command() -> clap::Command {
    Arguments::command().subcommand_negates_reqs(true).subcommand(KeyArguments::command().name("key"))
}
