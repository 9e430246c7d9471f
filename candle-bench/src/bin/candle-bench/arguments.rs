//! What can be asked of every suite.

use anyhow::{Context, Result, ensure};
use candle_bench::batch_size::Limits;
use candle_bench::case::{Execution, Pass};
use candle_bench::harness::Settings;
use candle_bench::host::Host;
use candle_bench::load::Arrivals;
use candle_bench::network::{Network, Place};
use candle_bench::peer::{Library, Peer};
use candle_models::device::{self, DeviceChoice};
use candle_models::policy::Heads;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[derive(clap::Args)]
pub struct Common {
    /// Backbones to measure with random weights, at their usual sizes.
    #[arg(long, value_name = "KIND", value_delimiter = ',', conflicts_with = "bundles")]
    pub backbones: Option<Vec<String>>,
    /// Heads of the random networks: autoregressive or independent.
    #[arg(long, default_value = "autoregressive", value_parser = parse_heads)]
    pub heads: Heads,
    /// Bundles to measure instead of random networks; of any family where nothing else is said.
    #[arg(long, value_name = "DIR")]
    pub bundles: Vec<PathBuf>,
    /// How the weights are stored: f32, bf16 or q8. Peers always run f32.
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32")]
    pub dtypes: Vec<String>,
    /// Frames of a window pass (60 frames are one second).
    #[arg(long, value_name = "FRAMES", default_value_t = 60)]
    pub window: usize,
    /// Numbers of threads that a call may use.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2])]
    pub threads: Vec<usize>,
    /// Directory for the results [default: candle-bench/runs/<date>-<host>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Name of this machine in the results [default: its host name].
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// The command line of this suite where it is one of several on a page, which then shows its table alone.
    #[arg(skip)]
    pub part: Option<String>,
}

/// Where both sides compute.
#[derive(clap::Args)]
pub struct OnDevice {
    /// Device: cpu, cuda or cuda:NUMBER.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
}

impl OnDevice {
    pub fn open(&self) -> Result<Place> {
        Place::open(self.device)
    }
}

#[derive(clap::Args)]
pub struct Latency {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    pub batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub window_batches: Vec<usize>,
    /// How passes are run: as the engine prepared them, or operation by operation.
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_value = "captured")]
    pub executions: Vec<Execution>,
}

#[derive(clap::Args)]
pub struct BatchSize {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// The largest batch that is timed.
    #[arg(long, value_name = "B", default_value_t = 1024)]
    pub most: usize,
    #[command(flatten)]
    pub limits: Limits,
}

#[derive(clap::Args)]
pub struct Graph {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub batches: Vec<usize>,
}

#[derive(clap::Args)]
pub struct Precision {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Rows and columns of square products; 8192 takes a while on a CPU.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [512, 1024, 2048])]
    pub products: Vec<usize>,
    /// Rows that the layers of the policies get.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 32, 256])]
    pub rows: Vec<usize>,
}

#[derive(clap::Args)]
pub struct Startup {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Starts of each kind.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub starts: usize,
}

#[derive(clap::Args)]
pub struct Roofline {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Batches of a model's streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 32, 256])]
    pub batches: Vec<usize>,
    /// Sequences of an operation's training pass; their frames are those of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [32])]
    pub sequences: Vec<usize>,
    /// Rows of a product with packed weights.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 32])]
    pub rows: Vec<usize>,
    /// Only operations with one of these in their name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
}

#[derive(clap::Args)]
pub struct Load {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// When agents ask.
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "closed,ticks,poisson")]
    pub arrivals: Vec<Arrivals>,
    /// Numbers of agents.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    pub sessions: Vec<usize>,
    /// Seconds of every load behind its warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub duration: f64,
}

#[derive(clap::Args)]
pub struct Peers {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Whom to compare with.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "onnxruntime,pytorch,jax")]
    pub libraries: Vec<Library>,
    /// What to compare.
    #[arg(long, value_name = "PASS", value_delimiter = ',', default_value = "step,window,train")]
    pub passes: Vec<Pass>,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    pub batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1])]
    pub window_batches: Vec<usize>,
    /// Batch of a training step.
    #[arg(long, value_name = "B", default_value_t = 32)]
    pub train_batch: usize,
    #[command(flatten)]
    pub python: Python,
}

#[derive(clap::Args)]
pub struct Targets {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of the load of 64 sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub load_seconds: f64,
    #[command(flatten)]
    pub python: Python,
}

#[derive(clap::Args)]
pub struct Gpu {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Without comparisons with PyTorch.
    #[arg(long)]
    pub alone: bool,
    #[command(flatten)]
    pub python: Python,
}

#[derive(clap::Args)]
pub struct Training {
    #[command(flatten)]
    pub common: Common,
    /// Sequences of a step; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 32)]
    pub batch: usize,
    /// candle-train, built with the feature mpi: measures two ranks beside one too.
    #[arg(long, value_name = "PROGRAM")]
    pub ranks: Option<PathBuf>,
    #[command(flatten)]
    pub python: Python,
}

#[derive(clap::Args)]
pub struct TrainPeak {
    pub bundle: PathBuf,
    #[arg(long)]
    pub batch: usize,
    #[arg(long)]
    pub frames: usize,
    #[arg(long)]
    pub threads: usize,
}

#[derive(clap::Args)]
pub struct FirstAnswer {
    pub bundle: PathBuf,
    #[command(flatten)]
    pub device: OnDevice,
    #[arg(long)]
    pub dtype: String,
    /// When the process began to run, in nanoseconds since 1970.
    #[arg(skip)]
    pub began_ns: u64,
}

#[derive(clap::Args)]
pub struct All {
    /// A few cases of every suite, minutes in all, in place of whole tables.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub device: OnDevice,
    /// Directory for the results [default: candle-bench/runs/<date>-<host>].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Name of this machine in the results [default: its host name].
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    #[command(flatten)]
    pub python: Python,
}

/// The peer.
#[derive(clap::Args)]
pub struct Python {
    /// Python interpreter with the peers' libraries (candle-bench/peers/setup.sh makes one).
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/.venv/bin/python")]
    pub python: PathBuf,
    /// The peer's program.
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/peer.py")]
    pub script: PathBuf,
}

impl Python {
    pub fn start(&self) -> Result<Peer> {
        Peer::start(&self.python, &self.script)
    }
}

#[derive(clap::Args)]
pub struct BeamBench {
    #[command(flatten)]
    pub common: Common,
    /// Episodes of a training step.
    #[arg(long, value_name = "B", default_value_t = 256)]
    pub batch: usize,
    /// Width of the user's network in training.
    #[arg(long, value_name = "H", default_value_t = 384)]
    pub hidden: usize,
    /// The controller whose next beam is timed.
    #[arg(long, value_name = "DIR", default_value = "weights/beam-c3")]
    pub bundle: PathBuf,
    #[command(flatten)]
    pub python: Python,
}

#[derive(clap::Args)]
pub struct Ops {
    #[command(flatten)]
    pub common: Common,
    /// Sequences of a training pass; their frames are those of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 32])]
    pub batches: Vec<usize>,
    /// Rows of a product with packed weights.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    pub rows: Vec<usize>,
    /// Only operations with one of these in their name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Instead, the share of each operation in the inference passes of this policy bundle.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = ["batches", "rows", "only"])]
    pub steps: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Compare {
    /// Directory of the earlier run.
    pub before: PathBuf,
    /// Directory of the later run.
    pub after: PathBuf,
    /// Change in percent below which a figure is unclear: its interval knows the noise within a run, not that from one run to the next.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,
    /// JSON for programs instead of tables.
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Page {
    /// Directory of the run.
    pub run: PathBuf,
    /// Where the page goes [default: report.html in the directory of the run].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Readme {
    /// The Markdown files; the runs that a file names lie relative to it.
    #[arg(value_name = "FILE", default_values = ["docs/beam.md", "docs/benchmarks.md"])]
    pub files: Vec<PathBuf>,
    /// Write nothing and fail where a table is not what its run says.
    #[arg(long)]
    pub check: bool,
}

fn parse_heads(text: &str) -> Result<Heads, String> {
    match text {
        "autoregressive" => Ok(Heads::Autoregressive),
        "independent" => Ok(Heads::Independent),
        other => Err(format!("{other} is neither autoregressive nor independent")),
    }
}

impl Common {
    /// The networks; random ones are written below `scratch`, of `kinds` where none were named.
    pub fn networks(&self, kinds: &[&str], scratch: &Path) -> Result<Vec<Network>> {
        let named: Vec<&str> = self.backbones.iter().flatten().map(String::as_str).collect();
        let kinds = if named.is_empty() { kinds } else { &named };
        let networks: Vec<Network> = match self.bundles.is_empty() {
            true => kinds.iter().map(|kind| Network::random(kind, self.heads, scratch)).collect::<Result<_>>()?,
            false => self.bundles.iter().map(|b| Network::open(b)).collect::<Result<_>>()?,
        };
        let stored = |network: &Network| self.dtypes.iter().map(|dtype| network.stored(dtype, scratch)).collect::<Vec<_>>();
        networks.iter().flat_map(stored).collect()
    }

    /// Where a suite measures, and a directory for its networks, once its arguments are found to be possible.
    pub fn begin(&self, batches: &[&[usize]]) -> Result<(Host, TempDir)> {
        self.validate(batches)?;
        Ok((Host::detect(self.host.clone()), tempfile::tempdir().context("no directory for the networks")?))
    }

    pub fn validate(&self, batches: &[&[usize]]) -> Result<()> {
        self.settings.validate()?;
        ensure!(self.window > 0, "window: a pass has at least one frame");
        ensure!(batches.iter().all(|b| !b.contains(&0)), "batches: a call has at least one row");
        self.threads.iter().try_for_each(|&n| device::threads(Some(n)).map(drop)).map_err(Into::into)
    }
}

#[derive(clap::Args)]
pub struct SelfCheck {
    #[command(flatten)]
    pub device: OnDevice,
    /// Only these checks.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub only: Vec<String>,
}
