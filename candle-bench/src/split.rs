//! Where the time of a training step goes: data, forward, backward, optimiser and communication, beside the trainer's own step.

pub mod row;
pub mod steps;

pub use row::TrainRow;

use crate::case::Case;
use crate::family::{self, BenchFamily, Families};
use crate::formulas;
use crate::harness::{self, Comparison, InPool, Settings, pool};
use crate::host::{self, Host, peak_kilobytes, this_program};
use crate::network::{FEW, Place};
use crate::ops::{Peaks, gpu};
use crate::ranks::{RankRun, RankStep};
use crate::stats::{self, Summary};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::trainee::Trainee;
use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use candle_models::bundle::{Bundle, Manifest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use steps::{Phased, Split, Whole};

/// Where the time of a training step goes: data, forward, backward, optimiser, communication; samples a second, MFU, peak memory.
///
/// --dtypes is what losses are computed in: f32, on a GPU bf16 and f16 too; on a CPU with tiles for it (Intel's AMX), or fast dot products for what trains
/// on tapes, bf16 is what products are taken in. --bundles takes every family that trains.
#[derive(clap::Args)]
pub struct Train {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Sequences of a step; their frames are those of a window.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [8, 32])]
    batches: Vec<usize>,
    /// candle-train, built with the feature mpi: measures several ranks too.
    #[arg(long, value_name = "PROGRAM")]
    ranks: Option<PathBuf>,
    /// Ranks that share a batch, of one thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2], requires = "ranks")]
    rank_counts: Vec<usize>,
}

/// What is trained, each with its batches.
pub type Trainees = Vec<(Arc<dyn Trainee>, Vec<usize>)>;

impl Train {
    fn trainees(&self, bench: &SuiteRun<TrainRow>) -> Result<Trainees> {
        let SuiteRun { families, options, .. } = bench;
        let Common { backbones, bundles, .. } = &self.common;
        let batches = |family: &dyn BenchFamily| family.batches(options).unwrap_or_else(|| self.batches.clone());
        let usual = |kind: &str| -> Result<_> {
            let (family, manifest) = family::usual(families, kind, options)?;
            Ok((family::trainee(families, &manifest)?, batches(family)))
        };
        if !bundles.is_empty() {
            let open = |bundle: &PathBuf| -> Result<_> {
                let opened = Bundle::open(bundle)?;
                let family = families.family(&opened)?;
                Ok((family::trainee(families, opened.manifest())?, batches(family)))
            };
            return bundles.iter().map(open).collect();
        }
        if let Some(kinds) = backbones {
            return kinds.iter().map(|kind| usual(kind)).collect();
        }
        let known = family::kinds(families);
        let mut trainees = FEW.iter().filter(|kind| known.contains(kind)).map(|kind| usual(kind)).collect::<Result<Trainees>>()?;
        for family in families.iter() {
            trainees.extend(family.trainees(options)?.into_iter().map(|trainee| (trainee, batches(family))));
        }
        Ok(trainees)
    }
}

impl Suite for Train {
    const NAME: &'static str = "train";
    const TITLE: &'static str = "Where a training step's time goes";
    type Row = TrainRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TrainRow>) -> Result<()> {
        let common = &self.common;
        let trainees = self.trainees(bench)?;
        let batches = trainees.iter().map(|(_, batches)| &batches[..]);
        common.validate(&batches.chain([&self.rank_counts[..]]).collect::<Vec<_>>())?;
        let suite = TrainSplitSuite {
            trainees,
            frames: common.window,
            threads: common.threads.clone(),
            dtypes: common.dtypes.clone(),
            place: self.device.open()?,
            program: this_program()?,
            ranks: self.ranks.clone().map(|program| (program, self.rank_counts.clone())),
            settings: common.settings.clone(),
        };
        bench.begin(&suite.describe(), None);
        suite.not_available().iter().for_each(|reason| eprintln!("{reason}"));
        let rows = suite.run(&bench.host.clone(), |row| bench.add(row))?;
        ensure!(!rows.is_empty(), "nothing that was asked for can be trained on this device");
        Ok(())
    }
}

/// The trainer's steps of two cases in rounds of either in turn; nothing where this CPU does not train in one of their dtypes.
///
/// # Errors
/// Where a step fails.
pub(crate) fn compare(trainee: &dyn Trainee, cases: [&Case; 2], settings: &Settings) -> Result<Option<Comparison>> {
    if cases.iter().any(|case| steps::check(trainee, case, &Device::Cpu).is_err()) {
        return Ok(None);
    }
    let pool = pool(cases[0].threads)?;
    let side =
        |case| Ok::<_, anyhow::Error>(InPool { pool: pool.clone(), subject: pool.install(|| Whole::new(trainee, case, &Device::Cpu))? });
    let [mut ours, mut theirs] = [side(cases[0])?, side(cases[1])?];
    let compared = harness::compare(&mut ours, &mut theirs, settings)?;
    // Graphs are taken down where the stack is deep.
    pool.install(|| drop((ours.subject, theirs.subject)));
    Ok(Some(compared))
}

/// Training steps of the process whose memory is read: the second one is the first that has moments beside gradients.
pub(crate) const MEMORY_STEPS: usize = 3;
/// Share of a step that its parts may miss or exceed.
pub const TOLERANCE: f64 = 0.1;

/// Which steps are measured.
#[derive(Debug, Clone)]
pub struct TrainSplitSuite {
    /// The models, with the batches that each is trained on.
    pub trainees: Trainees,
    /// Frames of a sequence.
    pub frames: usize,
    /// Threads of a step.
    pub threads: Vec<usize>,
    /// What losses are computed in: `f32`; on a GPU `bf16` and `f16` too, and for what trains on tapes, on a CPU that has instructions for it, `bf16`.
    pub dtypes: Vec<String>,
    /// Where.
    pub place: Place,
    /// This command, which is started again to see how much memory a step takes.
    pub program: PathBuf,
    /// Ranks of one thread each, and `candle-train` with the feature `mpi` that has them.
    pub ranks: Option<(PathBuf, Vec<usize>)>,
    /// Lengths of the measurements.
    pub settings: Settings,
}

/// A row that is to be: what is trained, and its sizes.
type Trained = (Arc<dyn Trainee>, Case);

impl TrainSplitSuite {
    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        let Settings { warm_up_s, window_s, rounds, limit_s, .. } = self.settings;
        format!(
            "Two trainers of the same model on the same kind of batches, in turn, after {warm_up_s} s of warm-up each, in {rounds} rounds of {window_s} s or one \
             step, no more than {limit_s} s: one as it is, timed by its own clock from asking for the batch to the update (the step, and samples a second), and one \
             with a clock between its parts. On a GPU the device is waited for at each of these, which the whole step does once: its parts may then exceed it. \
             data: waiting for the loader's thread, which makes batches ahead, or making one in the step. forward: to the loss. backward: all \
             gradients, and taking the graph down. optimiser: norm, clipping, AdamW, moving average. communication: waiting for other ranks, none for one rank. Means over \
             the steps of a round, medians over the rounds; a loader fills its queue while the other trainer computes. left over: the trainer's step less all parts, its figures, loss scale and \
             metrics, and what the clock disturbs; the parts add up where it is at most {:.0}% of the step. MFU: 6 operations for every use of a weight of a matrix \
             in a forward pass, over the time, over the machine's own large product (on a CPU that of candle-bench ops, in f32; on a GPU the fastest square one in the case's dtype). Attention's and scan's own \
             operations are not counted. Peak memory: VmHWM of a process that makes {MEMORY_STEPS} steps. Rows of several ranks: time, data and communication by \
             candle-train's own metrics (MPI, one thread a rank); forward, backward and optimiser of a rank's share of the batch, measured alone in this process, so that \
             what ranks take from each other (caches, memory) is left over.",
            100.0 * TOLERANCE,
        )
    }

    /// The cases in the order of the table, those apart that cannot be computed on this device, and why.
    fn cases(&self) -> (Vec<Trained>, Vec<String>) {
        let (mut cases, mut not_available) = (Vec::new(), Vec::new());
        for (trainee, batches) in &self.trainees {
            for dtype in &self.dtypes {
                for &threads in &self.threads {
                    for &batch in batches {
                        let case = Case { dtype: dtype.clone(), ..self.place.of(trainee.case(batch, self.frames, threads)) };
                        match steps::check(&**trainee, &case, &self.place.device) {
                            Ok(()) => cases.push((trainee.clone(), case)),
                            Err(reason) => not_available.push(format!("{}: not available: {reason:#}", describe(&case))),
                        }
                    }
                }
            }
        }
        (cases, not_available)
    }

    /// What was asked for and cannot be computed on this device, and why.
    pub fn not_available(&self) -> Vec<String> {
        self.cases().1
    }

    /// Measures every case that can be; `seen` is called after each row.
    ///
    /// # Errors
    /// Where a step fails.
    pub fn run(&self, host: &Host, mut seen: impl FnMut(&TrainRow)) -> Result<Vec<TrainRow>> {
        let (mut rows, mut peaks) = (Vec::new(), BTreeMap::new());
        let mut add = |row: TrainRow| {
            seen(&row);
            rows.push(row);
        };
        for (trainee, case) in self.cases().0 {
            self.settings.interrupt.check()?;
            let place = describe(&case);
            let key = (case.threads, case.dtype.clone());
            let peak = match peaks.get(&key) {
                Some(peak) => *peak,
                None => *peaks.entry(key).or_insert(self.peak_gflop_per_s(&case)?),
            };
            let single = self.row(&*trainee, case, peak, host).with_context(|| place.clone())?;
            add(single.clone());
            if single.case.threads == 1 && single.case.dtype == "f32" && self.place.device.is_cpu() {
                self.ranks(&*trainee, &single).with_context(|| place)?.into_iter().for_each(&mut add);
            }
        }
        Ok(rows)
    }

    /// The rate of a large product where and in what the case computes, in billions of operations a second. Products in bf16 on a CPU
    /// have none here: what they reach has little to do with f32.
    fn peak_gflop_per_s(&self, case: &Case) -> Result<Option<f64>> {
        let device = &self.place.device;
        if device.is_cpu() {
            let measure = || Ok(Peaks::of_threads(case.threads, &self.settings)?.gflop_per_s);
            return (case.dtype == "f32").then(measure).transpose();
        }
        Ok(Some(gpu::fastest_product(device, &case.dtype, &self.settings)?))
    }

    fn row(&self, trainee: &dyn Trainee, case: Case, peak_gflop_per_s: Option<f64>, host: &Host) -> Result<TrainRow> {
        let pool = pool(case.threads)?;
        let device = &self.place.device;
        let mut whole = InPool { pool: pool.clone(), subject: pool.install(|| Whole::new(trainee, &case, device))? };
        let mut phased = InPool { pool: pool.clone(), subject: pool.install(|| Phased::new(trainee, &case, device))? };
        let compared = harness::compare(&mut whole, &mut phased, &self.settings)?;
        let (split, (means_us, steps)) = (phased.subject.last(compared.rounds), whole.subject.last(compared.rounds));
        let step_us = Summary::of(&means_us).context("no rounds")?;
        let gpu_mb = self.place.gpu_mb();
        // Graphs are taken down where the stack is deep.
        pool.install(|| drop((whole.subject, phased.subject)));
        let flop = formulas::training_flop(trainee.weight_uses(&case)?);
        let gflop_per_s = formulas::gflop_per_s(flop, step_us.p50);
        let mut notes = Vec::new();
        let mfu = mfu(gflop_per_s, peak_gflop_per_s).map_err(|reason| notes.push(format!("MFU not available: {reason}"))).ok();
        let peak_mb = self.peak_mb(trainee, &case).map_err(|reason| notes.push(format!("peak memory not available: {reason:#}"))).ok();
        Ok(TrainRow {
            host: host.clone(),
            ranks: 1,
            unit: trainee.unit().to_owned(),
            samples: trainee.samples(&case),
            steps,
            step_us,
            split,
            parts_over_step: Some(compared.ratio),
            parts_over_step_ci: Some(compared.ratio_ci),
            gflop_per_s,
            peak_gflop_per_s,
            mfu,
            peak_mb,
            gpu_mb,
            note: notes.join("; "),
            case,
        })
    }

    /// Megabytes that the resident set of a process reaches in which such steps are made.
    fn peak_mb(&self, trainee: &dyn Trainee, case: &Case) -> Result<f64> {
        let [_, kilobytes] = memory_of_a_process(&self.program, trainee, case)?;
        Ok(kilobytes as f64 * 1024.0 / 1e6)
    }

    /// The same batch on several ranks of one thread each.
    fn ranks(&self, trainee: &dyn Trainee, single: &TrainRow) -> Result<Vec<TrainRow>> {
        let Some((program, counts)) = &self.ranks else { return Ok(Vec::new()) };
        let scratch = tempfile::tempdir().context("no directory for the runs")?;
        let several = counts.iter().filter(|&&ranks| ranks > 1 && ranks <= single.case.batch);
        several.map(|&ranks| self.rank_row(trainee, single, (program.as_path(), ranks), scratch.path())).collect()
    }

    fn rank_row(&self, trainee: &dyn Trainee, single: &TrainRow, (program, ranks): (&Path, usize), scratch: &Path) -> Result<TrainRow> {
        self.settings.interrupt.check()?;
        // What one rank computes, alone.
        let share = Case { batch: single.case.batch.div_ceil(ranks), ..single.case.clone() };
        let alone = self.split_alone(trainee, &share)?;
        let arguments = program_arguments(trainee, &single.case, &scratch.join(format!("{ranks}.toml")))?;
        // As long as the rounds of a row together.
        let seconds = (self.settings.rounds as f64 * self.settings.window_s).ceil().clamp(3.0, 60.0) as u32;
        let sets = Vec::new();
        let steps = RankRun { program, ranks, seconds, arguments, sets }.steps(&scratch.join(format!("{ranks}")))?;
        // As many rounds as a row of one rank has.
        let rounds: Vec<_> = steps.chunks(steps.len().div_ceil(self.settings.rounds)).collect();
        let means = |of: fn(&RankStep) -> f64| -> Vec<f64> {
            rounds.iter().map(|round| stats::mean(&round.iter().map(of).collect::<Vec<_>>())).collect()
        };
        let median = |of: fn(&RankStep) -> f64| stats::median(&stats::sorted(&means(of)));
        let split = Split { data: median(|s| s.data * s.us), communication: median(|s| s.communication * s.us), ..alone };
        let step_us = Summary::of(&means(|s| s.us)).context("no steps")?;
        let flop = formulas::training_flop(trainee.weight_uses(&single.case)?);
        let gflop_per_s = formulas::gflop_per_s(flop, step_us.p50);
        // That of one process with as many threads as ranks have processors.
        let peak_gflop_per_s = self.peak_gflop_per_s(&Case { threads: ranks.min(single.host.cpus), ..single.case.clone() })?;
        let mut notes =
            vec!["parts of the computation measured alone; peak memory not available: it is that of several processes".to_owned()];
        let mfu = mfu(gflop_per_s, peak_gflop_per_s).map_err(|reason| notes.push(format!("MFU not available: {reason}"))).ok();
        Ok(TrainRow {
            ranks,
            steps: steps.len(),
            step_us,
            split,
            parts_over_step: None,
            parts_over_step_ci: None,
            gflop_per_s,
            peak_gflop_per_s,
            mfu,
            peak_mb: None,
            gpu_mb: None,
            note: notes.join("; "),
            ..single.clone()
        })
    }

    /// The parts of a step alone, no trainer beside it.
    fn split_alone(&self, trainee: &dyn Trainee, case: &Case) -> Result<Split> {
        let pool = pool(case.threads)?;
        let mut phased = InPool { pool: pool.clone(), subject: pool.install(|| Phased::new(trainee, case, &self.place.device))? };
        harness::measure(&mut phased, &self.settings)?;
        // Its last three windows are those that agree.
        let split = phased.subject.last(3);
        pool.install(|| drop(phased.subject));
        Ok(split)
    }
}

fn describe(case: &Case) -> String {
    format!("{}, batch {}, {} threads, {}", case.model, case.batch, case.threads, case.dtype)
}

/// The share of the machine's own product, or why there is none.
fn mfu(gflop_per_s: f64, peak_gflop_per_s: Option<f64>) -> Result<f64, String> {
    let peak = peak_gflop_per_s.ok_or("the peak of products in this dtype is not measured on a CPU")?;
    formulas::share_of_roof(gflop_per_s, peak).map_err(|refused| refused.to_string())
}

/// What `candle-train` is asked for, its configuration written to `file`.
pub(crate) fn program_arguments(trainee: &dyn Trainee, case: &Case, file: &Path) -> Result<Vec<OsString>> {
    let (preset, text) = trainee.program(case)?;
    std::fs::write(file, text).with_context(|| format!("{}: cannot be written", file.display()))?;
    let mut arguments: Vec<OsString> = [trainee.training(), "--preset", preset, "--config"].map(OsString::from).into();
    arguments.push(file.into());
    Ok(arguments)
}

/// What a process whose memory is read is asked to train.
#[derive(Debug, Serialize, Deserialize)]
struct MemoryRequest {
    /// The content of `config.json`.
    config: Manifest,
    case: Case,
}

/// A process of `program` that trains for a few steps: its resident set in KiB before it loads anything, and the peak.
pub(crate) fn memory_of_a_process(program: &Path, trainee: &dyn Trainee, case: &Case) -> Result<[u64; 2]> {
    let place = program.display();
    let request = MemoryRequest { config: trainee.manifest()?, case: case.clone() };
    let mut command = host::start(program, "train-memory");
    let output = command.arg(serde_json::to_string(&request)?).output().with_context(|| format!("{place}: cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let kilobytes: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match kilobytes[..] {
        [before, peak] if output.status.success() => Ok([before, peak]),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{place}: {}", said.lines().last().unwrap_or("no peak from it"))
        }
    }
}

/// Trains for a few steps as a request in JSON says: this process's resident set in KiB before anything was loaded, and the peak.
pub(crate) fn memory_of(families: &Families, request: &str) -> Result<[u64; 2]> {
    let before = peak_kilobytes()?;
    let MemoryRequest { config, case } = serde_json::from_str(request).context("not a request for training")?;
    let trainee = family::trainee(families, &config)?;
    let place = Place::open(case.device.parse()?)?;
    let pool = pool(case.threads)?;
    pool.install(|| {
        let mut whole = Whole::new(&*trainee, &case, &place.device)?;
        (0..MEMORY_STEPS).try_for_each(|_| whole.step().map(drop))
    })?;
    Ok([before, peak_kilobytes()?])
}

#[cfg(test)]
mod tests;
