//! How cost grows: with ranks of a training step, frames of a window, rows of a batch, and sessions on one thread.

mod row;

pub use row::{Axis, Point, ScalingRow};

use crate::calls::{EngineCalls, Inputs};
use crate::case::{Case, Pass};
use crate::formulas;
use crate::harness::{self, Settings, Timed};
use crate::host::Host;
use crate::load::{Arrivals, LoadSuite};
use crate::network::{EVERY, Network, Place};
use crate::ranks::RankRun;
use crate::split;
use crate::stats::{self, PowerLaw, Summary};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use anyhow::{Context, Result, ensure};
use candle_models::bundle::Bundle;
use std::path::{Path, PathBuf};

/// How cost grows with ranks, frames of a window, batch and sessions, with the fitted exponent; of every backbone.
#[derive(clap::Args)]
pub struct Scaling {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Frames of a window pass of one sequence, rising.
    #[arg(long, value_name = "FRAMES", value_delimiter = ',', default_values_t = [15, 30, 60, 120, 240])]
    frames: Vec<usize>,
    /// Rows of a streaming step, rising.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 64])]
    batches: Vec<usize>,
    /// Sessions of an engine on one thread, rising.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    sessions: Vec<usize>,
    /// Seconds of the load of each number of sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    load_seconds: f64,
    /// candle-train, built with the feature mpi: measures ranks too.
    #[arg(long, value_name = "PROGRAM")]
    ranks: Option<PathBuf>,
    /// Ranks that share a training step, of one thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4])]
    rank_counts: Vec<usize>,
    /// Sequences of a step that ranks share; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 32)]
    rank_batch: usize,
    /// Seconds that each number of ranks trains.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    rank_seconds: u32,
}

impl Suite for Scaling {
    const NAME: &'static str = "scaling";
    const TITLE: &'static str = "Cost by size, and ranks";
    type Row = ScalingRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<ScalingRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.frames, &self.batches, &self.sessions, &[self.rank_batch]])?;
        let suite = ScalingSuite {
            networks: bench.networks(common, EVERY)?,
            frames: self.frames.clone(),
            batches: self.batches.clone(),
            sessions: self.sessions.clone(),
            load_seconds: self.load_seconds,
            threads: common.threads.clone(),
            place: self.device.open()?,
            ranks: RankScaling {
                program: self.ranks.clone(),
                counts: self.rank_counts.clone(),
                batch: self.rank_batch,
                frames: common.window,
                seconds: self.rank_seconds,
            },
            settings: common.settings.clone(),
        };
        suite.validate()?;
        bench.begin(&suite.describe(), None);
        suite.run(&bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// What is made to grow.
#[derive(Debug, Clone)]
pub struct ScalingSuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Frames of a window pass of one sequence.
    pub frames: Vec<usize>,
    /// Rows of a streaming step.
    pub batches: Vec<usize>,
    /// Sessions of an engine on one thread, in a closed loop; none leaves that out.
    pub sessions: Vec<usize>,
    /// Seconds of each load.
    pub load_seconds: f64,
    /// Threads of a window pass and of a step.
    pub threads: Vec<usize>,
    /// Where they compute.
    pub place: Place,
    /// Ranks of a training step.
    pub ranks: RankScaling,
    /// Lengths of the measurements.
    pub settings: Settings,
}

/// A training step shared by ranks.
#[derive(Debug, Clone)]
pub struct RankScaling {
    /// `candle-train`, built with the feature `mpi`; without it there is no such row.
    pub program: Option<PathBuf>,
    /// Numbers of ranks, one among them.
    pub counts: Vec<usize>,
    /// Sequences of a step, of all ranks together.
    pub batch: usize,
    /// Frames of a sequence.
    pub frames: usize,
    /// Seconds that each number of ranks trains.
    pub seconds: u32,
}

/// What a row says where there is no program for ranks.
const NO_PROGRAM: &str = "not available: ranks are processes of candle-train, and none was named: \
                          cargo build --release -p candle-train --features cli,mpi, then --ranks target/release/candle-train";

impl ScalingSuite {
    /// Names the argument at fault.
    pub fn validate(&self) -> Result<()> {
        let RankScaling { counts, batch, seconds, .. } = &self.ranks;
        ensure!(
            counts.iter().all(|n| (1..=*batch).contains(n)),
            "rank-counts: from 1 to {batch}, the sequences of a step, found {counts:?}"
        );
        ensure!(counts.contains(&1), "rank-counts: efficiency is beside one rank, which is missing in {counts:?}");
        ensure!(*seconds > 0, "rank-seconds: a run has at least one");
        let curves = [("frames", &self.frames), ("batches", &self.batches), ("sessions", &self.sessions)];
        for (name, values) in curves {
            ensure!(values.is_sorted_by(|a, b| a < b) && !values.contains(&0), "{name}: expected rising numbers from 1, found {values:?}");
        }
        ensure!(self.load_seconds.is_finite() && self.load_seconds > 0.0, "load-seconds: {} s is not a length", self.load_seconds);
        Ok(())
    }

    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "time ~ a x^b: least squares on the logarithms of the median times, b with its standard error and its 95% interval by Student's t, which hold from the \
             smallest to the largest x that was measured and nowhere else. b = 1: twice as much takes twice as long. Time of frames: a window pass of one sequence through the engine; of \
             a batch: a streaming step. {} Sessions: a closed loop of so many agents on one thread of an engine for {} s, time from the request to its answer. A \
             backbone that attends to a window of frames has a row up to that window and one from there on as well. Ranks: processes of candle-train over MPI, one \
             thread each, that share one batch (strong scaling) for {} s, times and shares by the trainer's own metrics; efficiency is the rate over so many times that of one rank; \
             more ranks than CPUs share these.",
            self.settings.describe(),
            self.load_seconds,
            self.ranks.seconds
        )
    }

    /// Measures every curve; `seen` is called after each row.
    pub fn run(&self, host: &Host, mut seen: impl FnMut(&ScalingRow)) -> Result<Vec<ScalingRow>> {
        self.validate()?;
        let mut rows = Vec::new();
        let mut add = |row: ScalingRow| {
            seen(&row);
            rows.push(row);
        };
        for network in &self.networks {
            for &threads in &self.threads {
                self.windows(network, threads, host)?.into_iter().for_each(&mut add);
                if !self.batches.is_empty() {
                    add(self.steps(network, threads, host)?);
                }
            }
            if !self.sessions.is_empty() {
                add(self.loads(network, host)?);
            }
        }
        let trained = self.networks.iter().filter(|network| network.dtype == "f32");
        match self.rank_program() {
            Ok(program) => trained.map(|network| self.ranks(program, network, host)).try_for_each(|row| row.map(&mut add))?,
            // Once for all of them.
            Err(reason) => trained.take(1).for_each(|network| {
                let case = network.case(Pass::Train, self.ranks.batch, self.ranks.frames, 1);
                let case = Case { model: "networks".to_owned(), backbone: "networks".to_owned(), ..self.place.of(case) };
                add(ScalingRow::not_available(host, case, Axis::Ranks, reason));
            }),
        }
        Ok(rows)
    }

    /// The whole curve over frames, and its two sides where the network attends to a window.
    fn windows(&self, network: &Network, threads: usize, host: &Host) -> Result<Vec<ScalingRow>> {
        let case = |frames| self.place.of(network.case(Pass::Window, 1, frames, threads));
        let points = self.frames.iter().map(|&frames| self.point(network, &case(frames), frames)).collect::<Result<Vec<_>>>()?;
        let Some(&most) = self.frames.last() else { return Ok(Vec::new()) };
        let row = |part: String, points: Vec<Point>| ScalingRow::new(host, case(most), Axis::Frames, part, points);
        let mut rows = vec![row("all".to_owned(), points.clone())];
        let attended = network.family.attention_window(&Bundle::open(&network.bundle)?)?;
        if let Some(window) = attended.filter(|w| self.frames[0] < *w && *w < most) {
            let side = |keep: &dyn Fn(usize) -> bool| points.iter().filter(|p| keep(p.x)).cloned().collect::<Vec<_>>();
            rows.push(row(format!("up to the window of {window}"), side(&|x| x <= window)));
            rows.push(row(format!("from the window of {window}"), side(&|x| x >= window)));
        }
        Ok(rows)
    }

    fn steps(&self, network: &Network, threads: usize, host: &Host) -> Result<ScalingRow> {
        let case = |batch| self.place.of(network.case(Pass::Step, batch, 1, threads));
        let points = self.batches.iter().map(|&batch| self.point(network, &case(batch), batch)).collect::<Result<_>>()?;
        let most = self.batches.last().copied().unwrap_or(1);
        Ok(ScalingRow::new(host, case(most), Axis::Batch, "all".to_owned(), points))
    }

    fn point(&self, network: &Network, case: &Case, x: usize) -> Result<Point> {
        let model = network.load()?;
        let inputs = Inputs::random(&*model, case);
        let calls = EngineCalls::new(model, case, &inputs, &self.place)?;
        let measured =
            harness::measure(&mut Timed(calls), &self.settings).with_context(|| format!("{}, {}", case.model, case.pass_name()))?;
        let per_s = measured.calls_per_s * (case.batch * case.frames) as f64;
        Ok(Point {
            x,
            latency_us: measured.latency_us,
            steady: measured.steady,
            samples_per_s: per_s,
            efficiency: None,
            communication: None,
        })
    }

    fn loads(&self, network: &Network, host: &Host) -> Result<ScalingRow> {
        let most = self.sessions.last().copied().unwrap_or(1);
        let case = self.place.of(network.case(Pass::Step, most, 1, 1));
        let suite = LoadSuite {
            networks: vec![network.clone()],
            arrivals: vec![Arrivals::Closed],
            sessions: self.sessions.clone(),
            threads: vec![1],
            place: self.place.clone(),
            seconds: self.load_seconds,
            awake: false,
            warm_up: self.settings.warm_up_s,
            interrupt: self.settings.interrupt.clone(),
        };
        let point = |row: crate::load::LoadRow| Point {
            x: row.case.batch,
            latency_us: row.latency_us,
            steady: true,
            samples_per_s: row.answers_per_s,
            efficiency: None,
            communication: None,
        };
        let points = suite.run(host, |_| {})?.into_iter().map(point).collect();
        Ok(ScalingRow::new(host, case, Axis::Sessions, "all".to_owned(), points))
    }

    /// What trains as several ranks, or why nothing does.
    fn rank_program(&self) -> Result<&Path, &'static str> {
        if self.place.device.is_cuda() {
            return Err("not available: ranks on GPUs need one GPU each, and this suite computes on one");
        }
        self.ranks.program.as_deref().ok_or(NO_PROGRAM)
    }

    fn ranks(&self, program: &Path, network: &Network, host: &Host) -> Result<ScalingRow> {
        let RankScaling { counts, batch, frames, seconds, .. } = &self.ranks;
        let case = network.case(Pass::Train, *batch, *frames, 1);
        let scratch = tempfile::tempdir().context("no directory for the runs")?;
        let arguments = split::program_arguments(&*network.trainee()?, &case, &scratch.path().join("run.toml"))?;
        let mut points: Vec<Point> = Vec::new();
        for &ranks in counts {
            self.settings.interrupt.check()?;
            let run = RankRun { program, ranks, seconds: *seconds, arguments: arguments.clone(), sets: Vec::new() };
            let steps = run.steps(&scratch.path().join(ranks.to_string()))?;
            let us: Vec<f64> = steps.iter().map(|s| s.us).collect();
            let latency_us = Summary::of(&us).context("no steps")?;
            let waits: Vec<f64> = steps.iter().map(|s| s.communication * s.us).collect();
            points.push(Point {
                x: ranks,
                samples_per_s: 1e6 * (batch * frames) as f64 / latency_us.mean,
                efficiency: None,
                communication: Some(stats::mean(&waits) / latency_us.mean),
                steady: true,
                latency_us,
            });
        }
        let one = points.iter().find(|p| p.x == 1).map_or(f64::NAN, |p| p.samples_per_s);
        points.iter_mut().for_each(|p| p.efficiency = Some(formulas::parallel_efficiency(one, p.samples_per_s, p.x)));
        Ok(ScalingRow::new(host, case, Axis::Ranks, "all".to_owned(), points))
    }
}

/// The law that median times follow; none through fewer than two points.
fn law(points: &[Point]) -> Option<PowerLaw> {
    PowerLaw::fit(&points.iter().map(|p| (p.x as f64, p.latency_us.p50)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
