//! Measures the game policy on this machine and compares it with PyTorch and ONNX Runtime.

use anyhow::{Context, Result, bail, ensure};
use candle_bench::beam::BeamSuite;
use candle_bench::gpu::{self, GpuSuite};
use candle_bench::harness::{Settings, Subject};
use candle_bench::host::Host;
use candle_bench::load::{Arrivals, LoadSuite};
use candle_bench::ops::{self, OpSuite};
use candle_bench::peer::{Library, Peer};
use candle_bench::policy::{EngineCalls, Inputs, Network, Place};
use candle_bench::ranks::RankSuite;
use candle_bench::suites::{LatencySuite, PeerSuite};
use candle_bench::table::{Case, Pass, Record, Report};
use candle_bench::targets::TargetSuite;
use candle_bench::training::TrainingSuite;
use candle_models::device::{self, DeviceChoice};
use candle_models::policy::{BackboneConfig, Heads};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Latency and batch tables of the game policy, and comparisons with other libraries.
#[derive(Parser)]
#[command(name = "candle-bench", version)]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Latency percentiles and throughput by backbone, batch and threads: streaming step and window pass.
    Latency(Latency),
    /// Many agents on one engine: latency by stage in a closed loop, at 60 Hz and with random arrivals; missed deadlines.
    Load(Load),
    /// The figures that the project holds itself to, beside their limits; of the shipped policies.
    Targets(Targets),
    /// Ratios to PyTorch and ONNX Runtime on the same weights and inputs, in interleaved rounds.
    Peers(Peers),
    /// The figures that the project holds itself to on a GPU, of the shipped policies, beside PyTorch.
    Gpu(Gpu),
    /// What the trainer adds to its work: time above the bare sum, memory beside PyTorch's, time of a checkpoint; Mamba policy.
    Training(Training),
    /// Trains for a few steps and prints the resident set in KiB before and the peak: `training` starts it.
    #[command(hide = true)]
    TrainPeak(TrainPeak),
    /// Takes one step and prints a line: `gpu` measures how long that takes from the start of this process.
    #[command(hide = true)]
    FirstAnswer(FirstAnswer),
    /// The figures of the beam family: training of the published network beside PyTorch, channels, the next beam of the shipped one.
    Beam(BeamBench),
    /// Every fused operation against its plain form on the policy's sizes: ratio, rate, and share of this machine's peak.
    Ops(Ops),
}

#[derive(clap::Args)]
struct Common {
    /// Backbones to measure with random weights, at their usual sizes.
    #[arg(long, value_name = "KIND", value_delimiter = ',', conflicts_with = "bundles")]
    backbones: Option<Vec<String>>,
    /// Heads of the random networks: autoregressive or independent.
    #[arg(long, default_value = "autoregressive", value_parser = parse_heads)]
    heads: Heads,
    /// Policy bundles to measure instead of random networks.
    #[arg(long, value_name = "DIR")]
    bundles: Vec<PathBuf>,
    /// How the weights are stored: f32, bf16 or q8. Peers always run f32.
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32")]
    dtypes: Vec<String>,
    /// Frames of a window pass (60 frames are one second).
    #[arg(long, value_name = "FRAMES", default_value_t = 60)]
    window: usize,
    /// Numbers of threads that a call may use.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Directory for the results [default: candle-bench/runs/<date>-<host>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Name of this machine in the results [default: its host name].
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

/// Where both sides compute.
#[derive(clap::Args)]
struct OnDevice {
    /// Device: cpu, cuda or cuda:NUMBER.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
}

impl OnDevice {
    fn open(&self) -> Result<Place> {
        Place::open(self.device)
    }
}

#[derive(clap::Args)]
struct Latency {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: OnDevice,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32])]
    window_batches: Vec<usize>,
}

#[derive(clap::Args)]
struct Load {
    #[command(flatten)]
    common: Common,
    /// When agents ask.
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "closed,ticks,poisson")]
    arrivals: Vec<Arrivals>,
    /// Numbers of agents.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    sessions: Vec<usize>,
    /// Seconds of every load behind its warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    duration: f64,
}

#[derive(clap::Args)]
struct Peers {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: OnDevice,
    /// Whom to compare with.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "onnxruntime,pytorch")]
    libraries: Vec<Library>,
    /// What to compare.
    #[arg(long, value_name = "PASS", value_delimiter = ',', default_value = "step,window,train")]
    passes: Vec<Pass>,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1])]
    window_batches: Vec<usize>,
    /// Batch of a training step.
    #[arg(long, value_name = "B", default_value_t = 32)]
    train_batch: usize,
    #[command(flatten)]
    python: Python,
}

#[derive(clap::Args)]
struct Targets {
    #[command(flatten)]
    common: Common,
    /// Seconds of the load of 64 sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    load_seconds: f64,
    #[command(flatten)]
    python: Python,
}

#[derive(clap::Args)]
struct Gpu {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: OnDevice,
    /// Without comparisons with PyTorch.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    python: Python,
}

#[derive(clap::Args)]
struct Training {
    #[command(flatten)]
    common: Common,
    /// Sequences of a step; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 32)]
    batch: usize,
    /// candle-train, built with the feature mpi: measures two ranks beside one too.
    #[arg(long, value_name = "PROGRAM")]
    ranks: Option<PathBuf>,
    #[command(flatten)]
    python: Python,
}

#[derive(clap::Args)]
struct TrainPeak {
    bundle: PathBuf,
    #[arg(long)]
    batch: usize,
    #[arg(long)]
    frames: usize,
    #[arg(long)]
    threads: usize,
}

#[derive(clap::Args)]
struct FirstAnswer {
    bundle: PathBuf,
    #[command(flatten)]
    device: OnDevice,
    #[arg(long)]
    dtype: String,
}

/// The peer.
#[derive(clap::Args)]
struct Python {
    /// Python interpreter with the peers' libraries (candle-bench/peers/setup.sh makes one).
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/.venv/bin/python")]
    python: PathBuf,
    /// The peer's program.
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/peer.py")]
    script: PathBuf,
}

#[derive(clap::Args)]
struct BeamBench {
    #[command(flatten)]
    common: Common,
    /// Episodes of a training step.
    #[arg(long, value_name = "B", default_value_t = 256)]
    batch: usize,
    /// Width of the user's network in training.
    #[arg(long, value_name = "H", default_value_t = 384)]
    hidden: usize,
    /// The controller whose next beam is timed.
    #[arg(long, value_name = "DIR", default_value = "weights/beam-c3")]
    bundle: PathBuf,
    #[command(flatten)]
    python: Python,
}

#[derive(clap::Args)]
struct Ops {
    #[command(flatten)]
    common: Common,
    /// Sequences of a training pass; their frames are those of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 32])]
    batches: Vec<usize>,
    /// Rows of a product with packed weights.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    rows: Vec<usize>,
    /// Only operations with one of these in their name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Instead, the share of each operation in the inference passes of this policy bundle.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = ["batches", "rows", "only"])]
    steps: Option<PathBuf>,
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
    fn networks(&self, kinds: &[&str], scratch: &Path) -> Result<Vec<Network>> {
        let named: Vec<&str> = self.backbones.iter().flatten().map(String::as_str).collect();
        let kinds = if named.is_empty() { kinds } else { &named };
        let networks: Vec<Network> = match self.bundles.is_empty() {
            true => kinds.iter().map(|kind| Network::random(kind, self.heads, scratch)).collect::<Result<_>>()?,
            false => self.bundles.iter().map(|b| Network::open(b)).collect::<Result<_>>()?,
        };
        let stored = |network: &Network| self.dtypes.iter().map(|dtype| network.stored(dtype, scratch)).collect::<Vec<_>>();
        networks.iter().flat_map(stored).collect()
    }

    fn validate(&self, batches: &[&[usize]]) -> Result<()> {
        self.settings.validate()?;
        ensure!(self.window > 0, "window: a pass has at least one frame");
        ensure!(batches.iter().all(|b| !b.contains(&0)), "batches: a call has at least one row");
        self.threads.iter().try_for_each(|&n| device::threads(Some(n)).map(drop)).map_err(Into::into)
    }

    fn directory(&self, host: &Host) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from(format!("candle-bench/runs/{}-{}", host.date, host.host)))
    }

    /// Writes the rows and prints them.
    fn report<R: Record>(&self, name: &str, method: String, rows: Vec<R>, host: &Host) -> Result<()> {
        let report = self.write(name, method, rows, host)?;
        println!("{}", report.markdown());
        eprintln!("written: {}/{name}.{{md,csv,json}}", self.directory(host).display());
        Ok(())
    }

    /// Writes the rows; in mid-run too, so that a run that is cut off leaves what it had.
    fn write<R: Record>(&self, name: &str, method: String, rows: Vec<R>, host: &Host) -> Result<Report<R>> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let machine = format!(
            "Host {}: {}, {} CPUs, {}. Commit {}, {}, {} build.",
            host.host, host.cpu, host.cpus, host.features, host.commit, host.date, host.profile
        );
        let report = Report { command: format!("candle-bench {}", arguments.join(" ")), method: format!("{machine} {method}"), rows };
        report.write(&self.directory(host), name)?;
        Ok(report)
    }
}

/// The rows of a run so far, written again after each.
struct Kept<'a, R> {
    common: &'a Common,
    host: &'a Host,
    name: &'static str,
    method: String,
    rows: Vec<R>,
}

impl<'a, R: Record + Clone> Kept<'a, R> {
    fn new(common: &'a Common, host: &'a Host, name: &'static str, method: String) -> Self {
        Self { common, host, name, method, rows: Vec::new() }
    }

    fn add(&mut self, row: &R) {
        self.rows.push(row.clone());
        if let Err(error) = self.common.write(self.name, self.method.clone(), self.rows.clone(), self.host) {
            eprintln!("warning: {error:#}");
        }
    }

    /// Ends the run: the rows are written and shown.
    fn report(self) -> Result<()> {
        self.common.report(self.name, self.method, self.rows, self.host)
    }
}

fn latency(arguments: &Latency) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&arguments.batches, &arguments.window_batches])?;
    let host = Host::detect(common.host.clone());
    let scratch = tempfile::tempdir().context("no directory for the networks")?;
    let suite = LatencySuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        step_batches: arguments.batches.clone(),
        window_batches: arguments.window_batches.clone(),
        window: common.window,
        threads: common.threads.clone(),
        place: arguments.device.open()?,
    };
    let count = suite.cases().len();
    let mut kept = Kept::new(common, &host, "latency", common.settings.describe());
    suite.run(&common.settings, &host, |row| {
        kept.add(row);
        let done = kept.rows.len();
        let steady = if row.measurement.steady { "" } else { ", not steady" };
        eprintln!(
            "{done}/{count} | {} {} batch {} threads {} | p50 {:.1} us{steady}",
            row.case.backbone,
            row.case.pass_name(),
            row.case.batch,
            row.case.threads,
            row.measurement.latency_us.p50
        );
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: &Load) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[])?;
    let host = Host::detect(common.host.clone());
    let scratch = tempfile::tempdir().context("no directory for the networks")?;
    let suite = LoadSuite {
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        arrivals: arguments.arrivals.clone(),
        sessions: arguments.sessions.clone(),
        threads: common.threads.clone(),
        seconds: arguments.duration,
        warm_up: common.settings.warm_up_s,
    };
    suite.validate()?;
    let count = suite.cases().len();
    let mut done = 0;
    let rows = suite.run(&host, |row| {
        done += 1;
        eprintln!(
            "{done}/{count} | {} {:?} {} sessions, {} threads | p50 {:.1} us, {:.0} answers a second, {} missed",
            row.case.backbone, row.arrivals, row.case.batch, row.case.threads, row.latency_us.p50, row.answers_per_s, row.missed
        );
    })?;
    common.report("load", suite.describe(), rows, &host)?;
    Ok(ExitCode::SUCCESS)
}

fn peers(arguments: &Peers) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&arguments.batches, &arguments.window_batches, &[arguments.train_batch]])?;
    let host = Host::detect(common.host.clone());
    let scratch = tempfile::tempdir().context("no directory for the networks")?;
    let suite = PeerSuite {
        // The peer has these two.
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        libraries: arguments.libraries.clone(),
        passes: arguments.passes.clone(),
        step_batches: arguments.batches.clone(),
        window_batches: arguments.window_batches.clone(),
        train_batch: arguments.train_batch,
        window: common.window,
        threads: common.threads.clone(),
        place: arguments.device.open()?,
    };
    let mut peer = Peer::start(&arguments.python.python, &arguments.python.script)?;
    let count = suite.cases().len();
    let mut kept = Kept::new(common, &host, "peers", common.settings.describe_comparison());
    suite.run(&mut peer, &common.settings, &host, |row| {
        kept.add(row);
        let done = kept.rows.len();
        let found = match &row.comparison {
            Some(c) => format!(
                "ours {:.1} us, theirs {:.1} us, ratio {:.2} ({:.2} to {:.2})",
                c.ours_us.p50, c.theirs_us.p50, c.ratio, c.ratio_ci.low, c.ratio_ci.high
            ),
            None => format!("outputs disagree: {} by {:.1e}", row.agreement.output, row.agreement.worst),
        };
        eprintln!(
            "{done}/{count} | {} {} batch {} threads {} | {} | {found}",
            row.case.backbone,
            row.case.pass_name(),
            row.case.batch,
            row.case.threads,
            row.peer
        );
    })?;
    let disagreeing = kept.rows.iter().filter(|row| !row.agreement.holds()).count();
    kept.report()?;
    if disagreeing > 0 {
        eprintln!("error: outputs disagree in {disagreeing} of {count} cases");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn targets(arguments: &Targets) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[])?;
    ensure!(arguments.load_seconds > 0.0, "load: {} s is not a length", arguments.load_seconds);
    let host = Host::detect(common.host.clone());
    let scratch = tempfile::tempdir().context("no directory for the networks")?;
    let shipped = |name: &str| -> Result<[Network; 2]> {
        let network = Network::open(&Path::new("weights").join(name))?;
        let narrow = network.stored("q8", scratch.path())?;
        Ok([network, narrow])
    };
    let suite = TargetSuite {
        mlp: shipped("policy-mlp")?,
        mamba: shipped("policy-mamba")?,
        threads: common.threads.clone(),
        load_seconds: arguments.load_seconds,
        settings: common.settings.clone(),
    };
    let mut peer = Peer::start(&arguments.python.python, &arguments.python.script)?;
    let rows = suite.run(&mut peer, &host, |row| {
        eprintln!("{}", row.line());
    })?;
    common.report("targets", common.settings.describe_comparison(), rows, &host)?;
    Ok(ExitCode::SUCCESS)
}

fn gpu(arguments: &Gpu) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[])?;
    let [dtype] = &common.dtypes[..] else { bail!("--dtypes: one at a time, found {}", common.dtypes.join(",")) };
    let host = Host::detect(common.host.clone());
    let scratch = tempfile::tempdir().context("no directory for the networks")?;
    let shipped = |name: &str| Network::open(&Path::new("weights").join(name))?.stored(dtype, scratch.path());
    let suite = GpuSuite {
        mlp: shipped("policy-mlp")?,
        mamba: shipped("policy-mamba")?,
        place: arguments.device.open()?,
        sizes: gpu::Sizes::default(),
        settings: common.settings.clone(),
    };
    let mut peer = match arguments.alone {
        true => None,
        false => Some(Peer::start(&arguments.python.python, &arguments.python.script)?),
    };
    let method = format!("{} {}", common.settings.describe(), common.settings.describe_comparison());
    let mut kept = Kept::new(common, &host, "gpu", method);
    suite.run(peer.as_mut(), &host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    });
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

fn ops(arguments: &Ops) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&arguments.batches, &arguments.rows])?;
    let host = Host::detect(common.host.clone());
    if let Some(bundle) = &arguments.steps {
        let rows = ops::steps::profile(&Network::open(bundle)?, common.window, &common.settings, &host)?;
        common.report("steps", ops::steps::describe(&common.settings), rows, &host)?;
        return Ok(ExitCode::SUCCESS);
    }
    let suite = OpSuite {
        batches: arguments.batches.clone(),
        frames: common.window,
        rows: arguments.rows.clone(),
        threads: common.threads.clone(),
        only: arguments.only.clone(),
    };
    let (peaks, rows) = suite.run(&common.settings, &host, |row| eprintln!("{}", row.line()))?;
    let disagreeing = rows.iter().filter(|row| !row.agreement.holds()).count();
    let count = rows.len();
    common.report("ops", suite.describe(&peaks, &common.settings), rows, &host)?;
    if disagreeing > 0 {
        eprintln!("error: fused and plain form disagree in {disagreeing} of {count} cases");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn training(arguments: &Training) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&[arguments.batch]])?;
    let host = Host::detect(common.host.clone());
    let suite = TrainingSuite {
        network: Network::open(Path::new("weights/policy-mamba"))?,
        batch: arguments.batch,
        frames: common.window,
        threads: common.threads.clone(),
        settings: common.settings.clone(),
    };
    let peer = || Peer::start(&arguments.python.python, &arguments.python.script);
    let mut rows = suite.run(peer, &host, |row| eprintln!("{}", row.line()))?;
    if let Some(program) = &arguments.ranks {
        let ranks = RankSuite { program: program.clone(), batch: suite.batch, frames: suite.frames, rounds: 3 };
        let measured = ranks.run(&suite.network, &host)?;
        measured.iter().for_each(|row| eprintln!("{}", row.line()));
        rows.extend(measured);
    }
    common.report("training", suite.describe(), rows, &host)?;
    Ok(ExitCode::SUCCESS)
}

fn beam(arguments: &BeamBench) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&[arguments.batch]])?;
    let host = Host::detect(common.host.clone());
    let suite = BeamSuite {
        batch: arguments.batch,
        hidden: arguments.hidden,
        bundle: arguments.bundle.clone(),
        threads: common.threads.clone(),
        settings: common.settings.clone(),
    };
    let mut peer = Peer::start(&arguments.python.python, &arguments.python.script)?;
    let rows = suite.run(&mut peer, &host, |row| eprintln!("{}", row.line()))?;
    common.report("beam", common.settings.describe_comparison(), rows, &host)?;
    Ok(ExitCode::SUCCESS)
}

fn train_peak(arguments: &TrainPeak) -> Result<ExitCode> {
    let TrainPeak { bundle, batch, frames, threads } = arguments;
    let [before, peak] = candle_bench::training::train_peak(&Network::open(bundle)?, *batch, *frames, *threads)?;
    println!("{before} {peak}");
    Ok(ExitCode::SUCCESS)
}

/// Takes one step of a bundle and prints a line.
fn first_answer(arguments: &FirstAnswer) -> Result<ExitCode> {
    let (network, place) = (Network::open(&arguments.bundle)?, arguments.device.open()?);
    let case = Case { dtype: arguments.dtype.clone(), ..network.case(Pass::Step, 1, 1, 1) };
    EngineCalls::new(network.load()?, &case, &Inputs::random(&case), &place)?.run()?;
    println!("{}", gpu::ANSWER);
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    type Run<'a> = Box<dyn Fn() -> Result<ExitCode> + 'a>;
    let (threads, run): (&[usize], Run) = match &arguments.suite {
        Suite::Latency(a) => (&a.common.threads, Box::new(|| latency(a))),
        Suite::Load(a) => (&a.common.threads, Box::new(|| load(a))),
        Suite::Targets(a) => (&a.common.threads, Box::new(|| targets(a))),
        Suite::Peers(a) => (&a.common.threads, Box::new(|| peers(a))),
        Suite::Gpu(a) => (&a.common.threads, Box::new(|| gpu(a))),
        Suite::Training(a) => (&a.common.threads, Box::new(|| training(a))),
        Suite::Beam(a) => (&a.common.threads, Box::new(|| beam(a))),
        Suite::TrainPeak(a) => (std::slice::from_ref(&a.threads), Box::new(|| train_peak(a))),
        Suite::FirstAnswer(a) => (&[1], Box::new(|| first_answer(a))),
        Suite::Ops(a) => (&a.common.threads, Box::new(|| ops(a))),
    };
    if cfg!(debug_assertions) {
        eprintln!("warning: this is not a release build (cargo run --release -p candle-bench): the times are not worth keeping");
    }
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads.iter().copied().max().unwrap_or(1)) };
    run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
