//! What the trainer hides behind its computing: batches made on a thread of their own, and on a GPU their way to the device.

mod row;
#[cfg(feature = "cuda")]
mod upload;

pub use row::{Hidden, OverlapRow};

use crate::case::Case;
use crate::formulas::{self, Refused};
use crate::harness::{Settings, pool};
use crate::host::Host;
use crate::network::{FEW, Network, Place};
use crate::stats::{self, Interval, Summary};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::trainee::{Prefetched, Trainee};
use anyhow::{Context, Result, ensure};
use row::gain_words;
use std::sync::Arc;
use std::time::Instant;

/// What the trainer hides behind its computing: making batches, and on a GPU their upload; efficiency and gain of prefetching.
#[derive(clap::Args)]
pub struct Overlap {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Sequences of a training step; their frames are those of a window.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [8])]
    batches: Vec<usize>,
}

impl Suite for Overlap {
    const NAME: &'static str = "overlap";
    const TITLE: &'static str = "Making batches while computing";
    type Row = OverlapRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<OverlapRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches])?;
        let networks = bench.networks(common, FEW)?;
        let suite = OverlapSuite {
            trainees: networks.iter().map(Network::trainee).collect::<Result<_>>()?,
            batches: self.batches.clone(),
            frames: common.window,
            threads: common.threads.clone(),
            place: self.device.open()?,
            settings: common.settings.clone(),
        };
        suite.remarks().iter().for_each(|remark| eprintln!("{remark}"));
        bench.begin(&suite.describe(), None);
        suite.run(&bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Batches that wait at most: so many come at once, and the next ones at the pace of the thread that makes them.
const WAITING: usize = 5;
/// Steps of the least round: as many batches must be made in it as are trained on.
const LEAST_STEPS: usize = 2 * WAITING;

/// Which training loops are measured.
#[derive(Debug, Clone)]
pub struct OverlapSuite {
    /// What is trained, its batches made ahead by a thread.
    pub trainees: Vec<Arc<dyn Trainee>>,
    /// Sequences of a step.
    pub batches: Vec<usize>,
    /// Frames of a sequence.
    pub frames: usize,
    /// Threads of a step; the loader's comes on top.
    pub threads: Vec<usize>,
    /// Where steps are computed.
    pub place: Place,
    /// Lengths of the measurements.
    pub settings: Settings,
}

/// Why there is no row of uploads on a CPU.
const NO_UPLOAD: &str = "upload: not available on the CPU: values are computed where they lie";

impl OverlapSuite {
    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        let Settings { window_s, rounds, limit_s, .. } = self.settings;
        let upload = if self.place.device.is_cuda() {
            " upload, on the GPU: copies of a batch's floats that start in pinned host memory, on a stream of their own; the next one is started before a step. The device is waited for after \
             every batch that is made or copied alone, and at the end of every round."
        } else {
            " There is no upload on the CPU: values are computed where they lie."
        };
        format!(
            "copy: taking batches from the trainer's loader as fast as its thread makes them from data in memory. compute: forward, backward and update on one batch that is \
             there. both: the trainer's loop, every batch from the loader and a step on it. The three take turns, {rounds} rounds of about {window_s} s and at least {LEAST_STEPS} steps each, the order \
             rotating, no more than {limit_s} s; before a round the loader starts anew and as many batches as may wait are taken, so that none counts that was made before. Efficiency: (copy + compute - both) / min(copy, compute), in [0, 1]; the median of the \
             rounds with its 95% bootstrap interval. Gain: copy + compute over both, what prefetching does to the step.{upload}"
        )
    }

    /// What is said beside the table: what does not exist here.
    pub fn remarks(&self) -> Option<&'static str> {
        self.place.device.is_cpu().then_some(NO_UPLOAD)
    }

    /// Measures every loop; `seen` is called after each row.
    pub fn run(&self, host: &Host, mut seen: impl FnMut(&OverlapRow)) -> Result<Vec<OverlapRow>> {
        let mut rows = Vec::new();
        for trainee in &self.trainees {
            for &threads in &self.threads {
                for &batch in &self.batches {
                    let case = self.place.of(trainee.case(batch, self.frames, threads));
                    let pool = pool(threads)?;
                    let found = pool.install(|| self.rows(&**trainee, &case, host));
                    for row in found.with_context(|| format!("{}, batch {batch}, {threads} threads", case.model))? {
                        seen(&row);
                        rows.push(row);
                    }
                }
            }
        }
        Ok(rows)
    }

    fn rows(&self, trainee: &dyn Trainee, case: &Case, host: &Host) -> Result<Vec<OverlapRow>> {
        self.settings.validate()?;
        let work = trainee.prefetched(case, &self.place)?.context("its batches are made in the step, and not ahead by a thread")?;
        let mut bench = Bench { work, place: self.place.clone() };
        let rows = vec![self.row(&mut bench, "loader's thread", case, host)?];
        #[cfg(feature = "cuda")]
        if self.place.device.is_cuda() {
            let mut uploads = upload::Uploads::new(bench, &self.place.device)?;
            return Ok(rows.into_iter().chain([self.row(&mut uploads, "upload", case, host)?]).collect());
        }
        Ok(rows)
    }

    fn row(&self, bench: &mut impl Loop, what: &str, case: &Case, host: &Host) -> Result<OverlapRow> {
        // The first steps find cold memory; they also say how many fill a round.
        let pace = (0..2).map(|_| bench.both(1)).collect::<Result<Vec<_>>>()?.pop().context("no step")?;
        let steps = ((self.settings.window_s * 1e6 / pace) as usize).max(LEAST_STEPS);
        let (mut rounds, start) = (Vec::new(), Instant::now());
        while rounds.len() < self.settings.rounds && (rounds.len() < 4 || start.elapsed().as_secs_f64() < self.settings.limit_s) {
            self.settings.interrupt.check()?;
            rounds.push(bench.round(steps, rounds.len())?);
        }
        // What noise has made faster than its parts is a row without an efficiency, and no end of the run.
        let (hidden, advice) = match hidden(&rounds) {
            Ok(hidden) => (Some(hidden), gain_words(&hidden)),
            Err(reason) => (None, format!("refused: {reason:#}")),
        };
        let note = contention(host.cpus, case.threads);
        let column = |of: fn(&Round) -> f64| Summary::of(&rounds.iter().map(of).collect::<Vec<_>>()).context("no rounds");
        Ok(OverlapRow {
            host: host.clone(),
            case: case.clone(),
            what: what.to_owned(),
            copy_us: column(|r| r.copy)?,
            compute_us: column(|r| r.compute)?,
            both_us: column(|r| r.both)?,
            hidden,
            advice,
            rounds: rounds.len(),
            steps,
            note,
        })
    }
}

/// What the number of processors has to do with it.
fn contention(cpus: usize, threads: usize) -> String {
    if cpus > threads {
        return String::new();
    }
    let processors = if cpus == 1 { "the one processor".to_owned() } else { format!("all {cpus} processors") };
    format!("the loader's thread shares {processors} with the step: what it hides it takes from it")
}

/// Times of a batch in one round, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Round {
    copy: f64,
    compute: f64,
    both: f64,
}

/// What rounds say of the overlap.
///
/// # Errors
/// Where the medians of all rounds together refuse to: the data did not start where it was said to.
fn hidden(rounds: &[Round]) -> Result<Hidden> {
    ensure!(!rounds.is_empty(), "no rounds");
    let median = |of: &dyn Fn(&Round) -> f64| stats::median(&stats::sorted(&rounds.iter().map(of).collect::<Vec<_>>()));
    // A single round may lie beyond noise; the medians may not.
    formulas::overlap_efficiency(median(&|r| r.copy), median(&|r| r.compute), median(&|r| r.both))?;
    let of_round = |r: &Round| match formulas::overlap_efficiency(r.copy, r.compute, r.both) {
        // Faster than its parts by noise: all of the shorter one was hidden.
        Err(Refused::FasterThanItsParts { .. }) => Ok(1.0),
        other => other,
    };
    let efficiencies = rounds.iter().map(of_round).collect::<Result<Vec<_>, _>>()?;
    let gains: Vec<f64> = rounds.iter().map(|r| formulas::speed_ratio(r.copy + r.compute, r.both)).collect();
    let found = |values: &[f64]| -> (f64, Interval) { (stats::median(&stats::sorted(values)), stats::median_interval(values)) };
    let ((efficiency, efficiency_ci), (gain, gain_ci)) = (found(&efficiencies), found(&gains));
    Ok(Hidden { efficiency, efficiency_ci, gain, gain_ci })
}

/// Two kinds of work that can be done alone and at the same time; each answers with the time of a batch in microseconds.
trait Loop {
    /// Making or moving batches alone.
    fn copy(&mut self, steps: usize) -> Result<f64>;
    /// Steps alone.
    fn compute(&mut self, steps: usize) -> Result<f64>;
    /// Every step while the next batch is on its way.
    fn both(&mut self, steps: usize) -> Result<f64>;

    /// The three in turn, beginning with another one in every round.
    fn round(&mut self, steps: usize, number: usize) -> Result<Round> {
        let mut round = Round { copy: 0.0, compute: 0.0, both: 0.0 };
        for i in 0..3 {
            match (number + i) % 3 {
                0 => round.copy = self.copy(steps)?,
                1 => round.compute = self.compute(steps)?,
                _ => round.both = self.both(steps)?,
            }
        }
        Ok(round)
    }
}

/// A loop of the trainer whose parts are run alone and together.
struct Bench {
    work: Box<dyn Prefetched>,
    place: Place,
}

impl Bench {
    /// Takes what may have been made before: the thread then works at its own pace.
    fn drain(&mut self) -> Result<()> {
        (0..WAITING).try_for_each(|_| self.work.next_batch())
    }

    /// So many steps on one batch; the time of one in microseconds.
    fn repeat(&mut self, steps: usize) -> Result<f64> {
        let start = Instant::now();
        (0..steps).try_for_each(|_| self.work.step())?;
        self.place.device.synchronize()?;
        Ok(each_us(start, steps))
    }
}

impl Loop for Bench {
    fn copy(&mut self, steps: usize) -> Result<f64> {
        self.drain()?;
        let start = Instant::now();
        for _ in 0..steps {
            self.work.next_batch()?;
            self.place.device.synchronize()?;
        }
        Ok(each_us(start, steps))
    }

    fn compute(&mut self, steps: usize) -> Result<f64> {
        self.work.pause()?;
        self.repeat(steps)
    }

    fn both(&mut self, steps: usize) -> Result<f64> {
        self.drain()?;
        let start = Instant::now();
        for _ in 0..steps {
            self.work.next_batch()?;
            self.work.step()?;
        }
        self.place.device.synchronize()?;
        Ok(each_us(start, steps))
    }
}

fn each_us(start: Instant, steps: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / steps as f64
}

#[cfg(test)]
mod tests;
