//! The command line of `candle-serve`.

use crate::log::LogFormat;
use crate::options::{Address, Options};
use candle_models::device::DeviceChoice;
use candle_models::engine::Placement;
use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use std::time::Duration;

/// Serves model bundles over the Open Inference Protocol v2.
#[derive(Debug, Parser)]
#[command(name = "candle-serve", version, about)]
pub struct Arguments {
    /// A folder of bundles, each of which is served under the name of its own folder; or a single bundle.
    pub folder: PathBuf,

    /// Where to listen for HTTP: HOST:PORT, or unix:PATH. Can be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub http: Vec<Address>,

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

    /// Lets clients name shared memory of this machine, which the server then reads and writes for them.
    #[arg(long)]
    pub allow_shared_memory: bool,

    /// How lines of the log on standard error are written.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// How long a server that is asked to end still takes requests, in seconds, while it says that it is not ready.
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub grace: u64,
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
        Options {
            model_name: self.model_name,
            http: self.http,
            grpc: self.grpc,
            shared_memory: self.allow_shared_memory,
            log: self.log_format,
            ..options
        }
    }
}

/// The command line, for tests of documentation.
pub fn command() -> clap::Command {
    Arguments::command()
}
