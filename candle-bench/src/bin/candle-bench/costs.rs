//! Suites that say where time and memory go.

use crate::arguments::{Common, OnDevice};
use crate::report::Kept;
use anyhow::{Context, Result, bail, ensure};
use candle_bench::host::Host;
use candle_bench::memory::MemorySuite;
use candle_bench::network::Network;
use candle_bench::overlap::OverlapSuite;
use candle_bench::scaling::{RankScaling, ScalingSuite};
use candle_bench::split::trainee::Trainee;
use candle_bench::split::{self, TrainSplitSuite};
use candle_models::policy::BackboneConfig;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Train {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Sequences of a policy's step; their frames are those of a window.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [8, 32])]
    pub batches: Vec<usize>,
    /// Episodes of a beam controller's step. The published controller is measured where no backbones and no bundles are named.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [64])]
    pub beam_batches: Vec<usize>,
    /// Width of the published controller's user network.
    #[arg(long, value_name = "H", default_value_t = 384)]
    pub beam_hidden: usize,
    /// candle-train, built with the feature mpi: measures several ranks too.
    #[arg(long, value_name = "PROGRAM")]
    pub ranks: Option<PathBuf>,
    /// Ranks that share a batch, of one thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2], requires = "ranks")]
    pub rank_counts: Vec<usize>,
}

impl Train {
    fn trainees(&self) -> Result<Vec<(Trainee, Vec<usize>)>> {
        let Common { backbones, bundles, heads, .. } = &self.common;
        let batches = |trainee: &Trainee| match trainee {
            Trainee::Policy { .. } => self.batches.clone(),
            Trainee::Beam { .. } => self.beam_batches.clone(),
        };
        let named = |kinds: &mut dyn Iterator<Item = &str>| kinds.map(|kind| Trainee::policy(kind, *heads)).collect::<Result<Vec<_>>>();
        let trainees = match (bundles.is_empty(), backbones) {
            (false, _) => bundles.iter().map(|bundle| Trainee::open(bundle)).collect::<Result<_>>()?,
            (true, Some(kinds)) => named(&mut kinds.iter().map(String::as_str))?,
            (true, None) => {
                let mut trainees = named(&mut ["mlp", "mamba"].into_iter())?;
                trainees.push(Trainee::published_beam(self.beam_hidden)?);
                trainees
            }
        };
        Ok(trainees.into_iter().map(|trainee| (trainee.clone(), batches(&trainee))).collect())
    }
}

#[derive(clap::Args)]
pub struct Scaling {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Frames of a window pass of one sequence, rising.
    #[arg(long, value_name = "FRAMES", value_delimiter = ',', default_values_t = [15, 30, 60, 120, 240])]
    pub frames: Vec<usize>,
    /// Rows of a streaming step, rising.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 64])]
    pub batches: Vec<usize>,
    /// Sessions of an engine on one thread, rising.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    pub sessions: Vec<usize>,
    /// Seconds of the load of each number of sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub load_seconds: f64,
    /// candle-train, built with the feature mpi: measures ranks too.
    #[arg(long, value_name = "PROGRAM")]
    pub ranks: Option<PathBuf>,
    /// Ranks that share a training step, of one thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4])]
    pub rank_counts: Vec<usize>,
    /// Sequences of a step that ranks share; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 32)]
    pub rank_batch: usize,
    /// Seconds that each number of ranks trains.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub rank_seconds: u32,
}

#[derive(clap::Args)]
pub struct Memory {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Rows of a step.
    #[arg(long, value_name = "B", default_value_t = 8)]
    pub rows: usize,
    /// Sequences of a training step; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 8)]
    pub batch: usize,
    /// Episodes of the published beam controller at a time.
    #[arg(long, value_name = "B", default_value_t = 64)]
    pub episodes: usize,
    /// Width of its user network.
    #[arg(long, value_name = "H", default_value_t = 384)]
    pub beam_hidden: usize,
}

#[derive(clap::Args)]
pub struct Overlap {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub device: OnDevice,
    /// Sequences of a training step; their frames are those of a window.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [8])]
    pub batches: Vec<usize>,
}

#[derive(clap::Args)]
pub struct TrainMemory {
    pub request: String,
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("this program cannot be found")
}

pub fn train(arguments: &Train) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&arguments.batches, &arguments.beam_batches, &arguments.rank_counts])?;
    let host = Host::detect(common.host.clone());
    let suite = TrainSplitSuite {
        trainees: arguments.trainees()?,
        frames: common.window,
        threads: common.threads.clone(),
        dtypes: common.dtypes.clone(),
        place: arguments.device.open()?,
        program: this_program()?,
        ranks: arguments.ranks.clone().map(|program| (program, arguments.rank_counts.clone())),
        settings: common.settings.clone(),
    };
    let mut kept = Kept::new(common, &host, "train", suite.describe());
    suite.not_available().iter().for_each(|reason| eprintln!("{reason}"));
    let rows = suite.run(&host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    ensure!(!rows.is_empty(), "nothing that was asked for can be trained on this device");
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn train_memory(arguments: &TrainMemory) -> Result<ExitCode> {
    println!("{}", split::memory_of(&arguments.request)?);
    Ok(ExitCode::SUCCESS)
}

pub fn scaling(arguments: &Scaling) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.frames, &arguments.batches, &arguments.sessions, &[arguments.rank_batch]])?;
    let suite = ScalingSuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        frames: arguments.frames.clone(),
        batches: arguments.batches.clone(),
        sessions: arguments.sessions.clone(),
        load_seconds: arguments.load_seconds,
        threads: common.threads.clone(),
        place: arguments.device.open()?,
        ranks: RankScaling {
            program: arguments.ranks.clone(),
            counts: arguments.rank_counts.clone(),
            batch: arguments.rank_batch,
            frames: common.window,
            seconds: arguments.rank_seconds,
        },
        settings: common.settings.clone(),
    };
    suite.validate()?;
    let mut kept = Kept::new(common, &host, "scaling", suite.describe());
    suite.run(&host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn memory(arguments: &Memory) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&[arguments.rows, arguments.batch, arguments.episodes]])?;
    let Trainee::Beam { config, .. } = Trainee::published_beam(arguments.beam_hidden)? else { bail!("the published beam is no beam") };
    let suite = MemorySuite {
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        rows: arguments.rows,
        batch: arguments.batch,
        frames: common.window,
        beam: Some((config, arguments.episodes)),
        program: this_program()?.with_file_name("allocations"),
        place: arguments.device.open()?,
        settings: common.settings.clone(),
    };
    let mut kept = Kept::new(common, &host, "memory", suite.describe());
    suite.run(&host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn overlap(arguments: &Overlap) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.batches])?;
    let networks = common.networks(&["mlp", "mamba"], scratch.path())?;
    let suite = OverlapSuite {
        policies: networks.iter().map(Network::policy).collect::<Result<_>>()?,
        batches: arguments.batches.clone(),
        frames: common.window,
        threads: common.threads.clone(),
        place: arguments.device.open()?,
        settings: common.settings.clone(),
    };
    suite.remarks().iter().for_each(|remark| eprintln!("{remark}"));
    let mut kept = Kept::new(common, &host, "overlap", suite.describe());
    suite.run(&host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}
