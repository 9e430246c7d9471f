//! What a pool of memory does for work that allocates: the system's allocator and mimalloc behind the same counter, in processes
//! of their own that take turns.
//!
//! Candle allocates a fresh buffer for every result. The system's allocator gives large ones back when they are freed and has the
//! next one mapped, page by page, again; mimalloc, as our programs set it, keeps them. What that is worth is a matter of measurement: the row says slower
//! where it is slower, and how much memory is reused says nothing of speed.

pub mod child;
mod row;

pub use row::{MemoryRow, Side};

use crate::case::{Case, Pass};
use crate::family::{BenchFamily, OwnWork};
use crate::harness::{self, Round, Rounds, Settings};
use crate::host::Host;
use crate::host::this_program;
use crate::network::{FEW, Network, Place};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use anyhow::{Context, Result, bail, ensure};
use child::{Counted, Request, Workload};
use clap::ArgMatches;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Work with the system's allocator and with a pool: requests, page faults, peak memory and time of both.
#[derive(clap::Args)]
pub struct Memory {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Rows of a step.
    #[arg(long, value_name = "B", default_value_t = 8)]
    rows: usize,
    /// Sequences of a training step; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 8)]
    batch: usize,
}

impl Suite for Memory {
    const NAME: &'static str = "memory";
    const TITLE: &'static str = "What an allocator's pool does";
    type Row = MemoryRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<MemoryRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&[self.rows, self.batch]])?;
        let own = bench.families.iter().map(|family| own_work(family, bench.options)).collect::<Result<Vec<_>>>()?.concat();
        ensure!(own.iter().all(|(_, case)| case.batch > 0), "batches: a call has at least one row");
        let suite = MemorySuite {
            networks: bench.networks(common, FEW)?,
            rows: self.rows,
            batch: self.batch,
            frames: common.window,
            own,
            program: this_program()?.with_file_name("allocations"),
            place: self.device.open()?,
            settings: common.settings.clone(),
        };
        bench.begin(&suite.describe(), None);
        suite.run(&bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Work of a family's own, with its sizes.
fn own_work(family: &dyn BenchFamily, options: &ArgMatches) -> Result<Vec<(Workload, Case)>> {
    let own = |OwnWork { name, case, config }| (Workload::Own { family: family.name().to_owned(), name, config }, case);
    Ok(family.workloads(options)?.into_iter().map(own).collect())
}

/// The variable that chooses the allocator of the second program: before its first allocation there are no arguments yet.
pub const ALLOCATOR_VARIABLE: &str = "CANDLE_BENCH_ALLOCATOR";
/// Its two values: no pool, and the pool.
pub const ALLOCATORS: [&str; 2] = ["system", "mimalloc"];

/// Which work is done with and without a pool.
#[derive(Debug, Clone)]
pub struct MemorySuite {
    /// A step of the engine, a step on tensors, and a training step of each.
    pub networks: Vec<Network>,
    /// Rows of a step.
    pub rows: usize,
    /// Sequences of a training step.
    pub batch: usize,
    /// Frames of a sequence.
    pub frames: usize,
    /// Work of families beside it, with its sizes.
    pub own: Vec<(Workload, Case)>,
    /// The program `allocations`, which lies beside `candle-bench` and knows the shipped families.
    pub program: PathBuf,
    /// Where: the CPU.
    pub place: Place,
    /// Lengths of the measurements.
    pub settings: Settings,
}

/// Why there are no rows of a GPU.
const NO_GPU: &str = "memory: not available on a GPU: the pool there is the driver's, which candle-models sets to keep freed memory when it opens \
                      the device and does not switch off again; memory in use stands in the tables of latency and train";

impl MemorySuite {
    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        let Settings { warm_up_s, window_s, rounds, limit_s, .. } = self.settings;
        format!(
            "Two processes of one program, one with the system's allocator and one with mimalloc (the pool), both behind a counter of every request, on one \
             thread, warmed up {warm_up_s} s each, then {rounds} rounds of {window_s} s of either in turn, the first mover changing, no more than {limit_s} s. A round's ratio is \
             the system's median time over the pool's; printed is the median ratio with its 95% bootstrap interval: above one, the pool is faster. Requests and bytes: calls of alloc, alloc_zeroed and \
             realloc within the counted rounds. Page faults: minor ones of the process, each a page of {} bytes or more that the system has to give, over the same rounds. Reused: \
             the share of the bytes asked for that no fault had to bring; it says nothing of speed. Mapped: growth of the address space over those rounds. Peak: VmHWM.",
            child::PAGE_BYTES
        )
    }

    /// The work in the order of the table.
    pub fn cases(&self) -> Vec<(Workload, Case)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            let (step, train) = (network.case(Pass::Step, self.rows, 1, 1), network.case(Pass::Train, self.batch, self.frames, 1));
            let bundle = || network.bundle.clone();
            cases.push((Workload::EngineStep { bundle: bundle() }, step.clone()));
            // Weights of 8 bits or 16 are for the engine alone.
            if network.dtype == "f32" {
                cases.push((Workload::TensorStep { bundle: bundle() }, step));
                cases.extend(network.family.updates().map(|_| (Workload::TrainingStep { bundle: bundle() }, train)));
            }
        }
        cases.extend(self.own.iter().cloned());
        cases
    }

    /// Measures every work on the CPU; `seen` is called after each row.
    ///
    /// # Errors
    /// For a GPU, whose memory is another matter.
    pub fn run(&self, host: &Host, mut seen: impl FnMut(&MemoryRow)) -> Result<Vec<MemoryRow>> {
        ensure!(self.place.device.is_cpu(), "{NO_GPU}");
        let mut rows = Vec::new();
        for (workload, case) in self.cases() {
            self.settings.interrupt.check()?;
            let row = self.row(&workload, case, host).with_context(|| workload.name().to_owned())?;
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }

    fn row(&self, workload: &Workload, case: Case, host: &Host) -> Result<MemoryRow> {
        let request = Request { workload: workload.clone(), case: case.clone() };
        let [mut system, mut pool] = [Counting::start(&self.program, 0, &request)?, Counting::start(&self.program, 1, &request)?];
        let comparison = harness::compare(&mut pool, &mut system, &self.settings)?;
        let [without, with] = [&system, &pool].map(|side| side.figures(comparison.rounds));
        Ok(MemoryRow { host: host.clone(), case, workload: workload.name().to_owned(), without, with, comparison })
    }
}

/// The second program at work on one side.
struct Counting {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    allocator: &'static str,
    rounds: Vec<Counted>,
}

impl Counting {
    fn start(program: &Path, allocator: usize, request: &Request) -> Result<Self> {
        let allocator = ALLOCATORS[allocator];
        let mut command = Command::new(program);
        command.arg(serde_json::to_string(request)?).env(ALLOCATOR_VARIABLE, allocator);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("{}: cannot be started", program.display()))?;
        let (requests, answers) = (process.stdin.take().context("no input")?, process.stdout.take().context("no output")?);
        Ok(Self { process, requests, answers: BufReader::new(answers), allocator, rounds: Vec::new() })
    }

    /// What the last rounds counted.
    fn figures(&self, rounds: usize) -> Side {
        Side::of(self.allocator, &self.rounds[self.rounds.len().saturating_sub(rounds)..])
    }
}

impl Rounds for Counting {
    fn round(&mut self, calls: usize) -> Result<Round> {
        writeln!(self.requests, "{calls}").and_then(|()| self.requests.flush()).context("the second process is gone")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("no answer from the second process")?;
        let Ok(counted) = serde_json::from_str::<Counted>(&line) else {
            bail!("the second process ended; what it said stands above");
        };
        ensure!(counted.allocator == self.allocator, "asked for the allocator {}, found {}", self.allocator, counted.allocator);
        let round = counted.round.clone();
        self.rounds.push(counted);
        Ok(round)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // It ends with its input; killing it spares the wait.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests;
