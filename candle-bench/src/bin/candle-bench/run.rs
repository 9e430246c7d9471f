//! What every suite does with its arguments.

use crate::arguments::{
    BatchSize, BeamBench, Compare, FirstAnswer, Gpu, Graph, Latency, Load, Ops, Peers, Precision, Roofline, SelfCheck, Startup, Targets,
    TrainPeak, Training,
};
use crate::report::{self, Kept};
use anyhow::{Result, bail, ensure};
use candle_bench::batch_size::BatchSizeSuite;
use candle_bench::beam::BeamSuite;
use candle_bench::compare;
use candle_bench::gpu::{self, GpuSuite};
use candle_bench::graph::GraphSuite;
use candle_bench::host::Host;
use candle_bench::interrupt::Interrupt;
use candle_bench::latency::LatencySuite;
use candle_bench::load::LoadSuite;
use candle_bench::network::{Network, Place};
use candle_bench::ops::{self, OpSuite};
use candle_bench::peers::PeerSuite;
use candle_bench::precision::PrecisionSuite;
use candle_bench::ranks::RankSuite;
use candle_bench::roofline::RooflineSuite;
use candle_bench::run::Run;
use candle_bench::self_check::{self, Here};
use candle_bench::startup::{self, StartupSuite};
use candle_bench::targets::{TargetRow, TargetSuite};
use candle_bench::training::TrainingSuite;
use candle_models::policy::BackboneConfig;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

pub fn latency(arguments: &Latency) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.batches, &arguments.window_batches])?;
    let suite = LatencySuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        step_batches: arguments.batches.clone(),
        window_batches: arguments.window_batches.clone(),
        window: common.window,
        threads: common.threads.clone(),
        executions: arguments.executions.clone(),
        place: arguments.device.open()?,
    };
    let count = suite.cases().len();
    let mut kept = Kept::new(common, &host, "latency", common.settings.describe());
    suite.run(&common.settings, &host, |row| {
        kept.add(row);
        let done = kept.rows().len();
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

pub fn batch_size(arguments: &BatchSize) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[])?;
    let suite = BatchSizeSuite {
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        threads: common.threads.clone(),
        most: arguments.most,
        limits: arguments.limits,
        place: arguments.device.open()?,
    };
    suite.validate()?;
    let mut kept = Kept::new(common, &host, "batch-size", suite.describe(&common.settings));
    suite.run(&common.settings, &host, |row| kept.add(row))?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn graph(arguments: &Graph) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.batches])?;
    let suite = GraphSuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        batches: arguments.batches.clone(),
        window: common.window,
        threads: common.threads.clone(),
        place: arguments.device.open()?,
    };
    let mut kept = Kept::new(common, &host, "graph", suite.describe(&common.settings));
    suite.run(&common.settings, &host, |row| {
        kept.add(row);
        eprintln!("{} {} batch {} threads {} | {}", row.case.backbone, row.case.pass_name(), row.case.batch, row.case.threads, row.says());
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn precision(arguments: &Precision) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.products, &arguments.rows])?;
    let suite = PrecisionSuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        products: arguments.products.clone(),
        rows: arguments.rows.clone(),
        threads: common.threads.clone(),
        place: arguments.device.open()?,
    };
    let mut kept = Kept::new(common, &host, "precision", suite.describe(&common.settings));
    let refused = suite.run(&common.settings, &host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    kept.report()?;
    Ok(refuse(&refused))
}

pub fn startup(arguments: &Startup) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[])?;
    let suite = StartupSuite {
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        starts: arguments.starts,
        device: arguments.device.device,
    };
    let mut kept = Kept::new(common, &host, "startup", suite.describe());
    suite.run(&common.settings, &host, |row| kept.add(row))?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

/// Names the rows that lay above their roofs: they are none, and their run has failed.
fn refuse(rows: &[String]) -> ExitCode {
    rows.iter().for_each(|row| eprintln!("error: refused: {row}"));
    if rows.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub fn roofline(arguments: &Roofline) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.batches, &arguments.sequences, &arguments.rows])?;
    let suite = RooflineSuite {
        networks: common.networks(&BackboneConfig::KINDS, scratch.path())?,
        batches: arguments.batches.clone(),
        window: common.window,
        ops: OpSuite {
            batches: arguments.sequences.clone(),
            frames: common.window,
            rows: arguments.rows.clone(),
            threads: common.threads.clone(),
            place: arguments.device.open()?,
            only: arguments.only.clone(),
        },
    };
    let peaks = suite.ops.peaks(&common.settings)?;
    let mut kept = Kept::new(common, &host, "roofline", suite.describe(&peaks, &common.settings));
    let refused = suite.run(&peaks, &common.settings, &host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    kept.report()?;
    Ok(refuse(&refused))
}

pub fn load(arguments: &Load) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[])?;
    let suite = LoadSuite {
        networks: common.networks(&["mlp", "mamba"], scratch.path())?,
        arrivals: arguments.arrivals.clone(),
        sessions: arguments.sessions.clone(),
        threads: common.threads.clone(),
        place: arguments.device.open()?,
        seconds: arguments.duration,
        warm_up: common.settings.warm_up_s,
        interrupt: common.settings.interrupt.clone(),
    };
    suite.validate()?;
    let count = suite.cases().len();
    let mut kept = Kept::new(common, &host, "load", suite.describe());
    suite.run(&host, |row| {
        kept.add(row);
        let done = kept.rows().len();
        eprintln!(
            "{done}/{count} | {} {:?} {} sessions, {} threads | p50 {:.1} us, {:.0} answers a second, {} missed",
            row.case.backbone, row.arrivals, row.case.batch, row.case.threads, row.latency_us.p50, row.answers_per_s, row.missed
        );
    })?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn peers(arguments: &Peers) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[&arguments.batches, &arguments.window_batches, &[arguments.train_batch]])?;
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
    let mut peer = arguments.python.start()?;
    let count = suite.cases().len();
    let mut kept = Kept::new(common, &host, "peers", common.settings.describe_comparison());
    let run = suite.run(&mut peer, &common.settings, &host, |row| {
        kept.add(row);
        let done = kept.rows().len();
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
    let disagreeing = kept.rows().iter().filter(|row| !row.agreement.holds()).count();
    kept.report()?;
    if disagreeing > 0 {
        eprintln!("error: outputs disagree in {disagreeing} of {count} cases");
    }
    run.left_out().for_each(|line| eprintln!("error: {line}"));
    Ok(if disagreeing == 0 && run.rows.len() == count { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn targets(arguments: &Targets) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[])?;
    ensure!(arguments.load_seconds > 0.0, "load: {} s is not a length", arguments.load_seconds);
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
    let mut peer = arguments.python.start()?;
    let mut kept = Kept::new(common, &host, "targets", common.settings.describe_comparison());
    suite.run(&mut peer, &host, |row| kept.tell(row))?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn gpu(arguments: &Gpu) -> Result<ExitCode> {
    let common = &arguments.common;
    let (host, scratch) = common.begin(&[])?;
    let [dtype] = &common.dtypes[..] else { bail!("--dtypes: one at a time, found {}", common.dtypes.join(",")) };
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
        false => Some(arguments.python.start()?),
    };
    let method = format!("{} {}", common.settings.describe(), common.settings.describe_comparison());
    let mut kept = Kept::new(common, &host, "gpu", method);
    suite.run(peer.as_mut(), &host, |row| kept.tell(row));
    common.settings.interrupt.check()?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn ops(arguments: &Ops) -> Result<ExitCode> {
    let common = &arguments.common;
    common.validate(&[&arguments.batches, &arguments.rows])?;
    let host = Host::detect(common.host.clone());
    if let Some(bundle) = &arguments.steps {
        let mut kept = Kept::new(common, &host, "steps", ops::steps::describe(&common.settings));
        ops::steps::profile(&Network::open(bundle)?, common.window, &common.settings, &host, |row| kept.add(row))?;
        kept.report()?;
        return Ok(ExitCode::SUCCESS);
    }
    let suite = OpSuite {
        batches: arguments.batches.clone(),
        frames: common.window,
        rows: arguments.rows.clone(),
        threads: common.threads.clone(),
        place: Place::cpu(),
        only: arguments.only.clone(),
    };
    let peaks = suite.peaks(&common.settings)?;
    let mut kept = Kept::new(common, &host, "ops", suite.describe(&peaks, &common.settings));
    let refused = suite.run(&peaks, &common.settings, &host, |row| {
        kept.add(row);
        eprintln!("{}", row.line());
    })?;
    let (disagreeing, count) = (kept.rows().iter().filter(|row| !row.agreement.holds()).count(), kept.rows().len());
    kept.report()?;
    if disagreeing > 0 {
        eprintln!("error: fused and plain form disagree in {disagreeing} of {count} cases");
    }
    let refused = refuse(&refused);
    Ok(if disagreeing == 0 { refused } else { ExitCode::FAILURE })
}

pub fn training(arguments: &Training) -> Result<ExitCode> {
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
    let peer = || arguments.python.start();
    let mut kept = Kept::new(common, &host, "training", suite.describe());
    let mut seen = |row: &TargetRow| kept.tell(row);
    suite.run(peer, &host, &mut seen)?;
    if let Some(program) = &arguments.ranks {
        let ranks = RankSuite { program: program.clone(), batch: suite.batch, frames: suite.frames, rounds: 3 };
        ranks.run(&suite.network, &host)?.iter().for_each(&mut seen);
    }
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

pub fn beam(arguments: &BeamBench) -> Result<ExitCode> {
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
    let mut peer = arguments.python.start()?;
    let mut kept = Kept::new(common, &host, "beam", common.settings.describe_comparison());
    suite.run(&mut peer, &host, |row| kept.tell(row))?;
    kept.report()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs that cannot be compared are bad use.
pub fn compare(arguments: &Compare) -> Result<ExitCode> {
    let compared = || -> Result<_> {
        let [before, after] = [Run::open(&arguments.before)?, Run::open(&arguments.after)?];
        compare::compare(&before, &after, arguments.threshold / 100.0)
    };
    let compared = match compared() {
        Ok(compared) => compared,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let text = if arguments.json { serde_json::to_string_pretty(&compared)? + "\n" } else { compared.text(report::terminal_width()) };
    // A reader that has seen enough is no error.
    std::io::stdout().write_all(text.as_bytes()).or_else(|e| if e.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })?;
    Ok(if compared.regressions > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub fn train_peak(arguments: &TrainPeak) -> Result<ExitCode> {
    let TrainPeak { bundle, batch, frames, threads } = arguments;
    let [before, peak] = candle_bench::training::train_peak(&Network::open(bundle)?, *batch, *frames, *threads)?;
    println!("{before} {peak}");
    Ok(ExitCode::SUCCESS)
}

/// Takes one step of a bundle and says when it had done what.
pub fn first_answer(arguments: &FirstAnswer) -> Result<ExitCode> {
    let FirstAnswer { bundle, device, dtype, began_ns, .. } = arguments;
    println!("{}", serde_json::to_string(&startup::first_answer(*began_ns, &Network::open(bundle)?, device.device, dtype)?)?);
    Ok(ExitCode::SUCCESS)
}

pub fn self_check(arguments: &SelfCheck) -> Result<ExitCode> {
    let checks = self_check::named(&arguments.only)?;
    let here = Here { place: arguments.device.open()?, interrupt: Interrupt::default() };
    here.interrupt.on_signal()?;
    let refused = self_check::run(&checks, &here, |name, finding| println!("{}", self_check::line(name, finding)))?;
    if refused.is_empty() {
        println!("all {} checks hold", checks.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} of {} checks do not hold: {}", refused.len(), checks.len(), refused.join(", "));
    Ok(ExitCode::FAILURE)
}
