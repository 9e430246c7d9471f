//! Measures the models of this workspace on this machine and compares them with PyTorch and ONNX Runtime.

mod all;
mod arguments;
mod costs;
mod instructions;
mod pages;
mod report;
mod run;

use arguments::{
    All, BatchSize, BeamBench, Common, Compare, FirstAnswer, Gpu, Graph, Latency, Load, Ops, Page, Peers, Precision, Readme, Roofline,
    SelfCheck, Startup, Targets, TrainPeak, Training,
};
use candle_bench::interrupt::{EXIT_CODE, Interrupt};
use candle_bench::startup;
use candle_models::device;
use clap::{Parser, Subcommand};
use costs::{Memory, Overlap, Scaling, Train, TrainMemory};
use instructions::{CountedPath, Instructions};
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
    /// Every suite in one run on the shipped bundles: reports in one directory, tables on one page, recommendations.
    All(All),
    /// Latency percentiles and throughput by backbone, batch and threads: streaming step and window pass.
    Latency(Latency),
    /// Which batch to run: throughput and latency over the batch, the knee, and the largest that fits.
    BatchSize(BatchSize),
    /// Eager against captured passes: what capturing costs, what it gains, and after how many calls it has paid for itself.
    Graph(Graph),
    /// Products of matrices and of the policies' layers by dtype: speed, error against f64, share of the peak.
    Precision(Precision),
    /// From the start of a process to its first answer, split, with cold and warm caches.
    Startup(Startup),
    /// Every fused operation and every model's pass under the roofs of this machine: what keeps each from being faster.
    Roofline(Roofline),
    /// Many agents on one engine: latency by stage in a closed loop, at 60 Hz and with random arrivals; missed deadlines.
    Load(Load),
    /// The figures that the project holds itself to, beside their limits; of the shipped policies.
    Targets(Targets),
    /// Ratios to PyTorch, ONNX Runtime and JAX on the same weights and inputs, in interleaved rounds.
    Peers(Peers),
    /// The figures that the project holds itself to on a GPU, of the shipped policies, beside PyTorch.
    Gpu(Gpu),
    /// What the trainer adds to its work: time above the bare sum, memory beside PyTorch's, time of a checkpoint; Mamba policy.
    Training(Training),
    /// Where the time of a training step goes: data, forward, backward, optimiser, communication; samples a second, MFU, peak memory.
    ///
    /// --dtypes is what losses are computed in: f32, on a GPU bf16 and f16 too, and bf16 for beam controllers on a CPU that multiplies in
    /// it. --bundles takes policies and beam controllers.
    Train(Train),
    /// How cost grows with ranks, frames of a window, batch and sessions, with the fitted exponent; of every backbone.
    Scaling(Scaling),
    /// Work with the system's allocator and with a pool: requests, page faults, peak memory and time of both.
    Memory(Memory),
    /// What the trainer hides behind its computing: making batches, and on a GPU their upload; efficiency and gain of prefetching.
    Overlap(Overlap),
    /// Trains as a request in JSON says and prints the peak of the resident set in KiB: `train` starts it.
    #[command(hide = true)]
    TrainMemory(TrainMemory),
    /// Trains for a few steps and prints the resident set in KiB before and the peak: `training` starts it.
    #[command(hide = true)]
    TrainPeak(TrainPeak),
    /// Takes one step and says when it had done what: `startup` and `gpu` start it.
    #[command(hide = true)]
    FirstAnswer(FirstAnswer),
    /// The figures of the beam family: training of the published network beside PyTorch, channels, the next beam of the shipped one.
    Beam(BeamBench),
    /// Every fused operation against its plain form on the policy's sizes: ratio, rate, and share of this machine's peak.
    Ops(Ops),
    /// Two runs beside each other, row by row: faster, slower or unclear, and the regressions by name.
    ///
    /// Rows are matched by what identifies them, whatever their order. A figure is unclear when its 95% intervals overlap or it has
    /// none, when either measurement never became steady, or when it changed by less than the threshold; without intervals a limit
    /// that was kept and no longer is counts. Rows that were measured elsewhere (another host name, CPU or build profile)
    /// are compared and marked, but nothing there is a regression: give runs on machines of one kind one name with --host. Where
    /// other programs run beside it, only ratios of rounds in turn (peers, ops, targets) say something: latencies there move with the load.
    ///
    /// Exit code: 0 without a regression, 1 with one, 2 for what cannot be compared.
    Compare(Compare),
    /// One self-contained HTML page of a run: every table, charts, and the method of every number.
    Report(Page),
    /// Fills the tables of Markdown files from committed runs.
    ///
    /// A table stands between two lines, "<!-- table: NAME RUN-DIRECTORY -->" and "<!-- end -->". Exit code: 0, or 1 for a
    /// table that cannot be made and, with --check, for one that is not what its run says.
    Readme(Readme),
    /// Whether this machine can be measured now: clock, roofs, steadiness and what suites take for granted, each found beside expected.
    ///
    /// Nothing of it is part of the tests: it depends on the processor and on what else runs. Takes up to two minutes. Exit code: 0 where all
    /// checks hold, 1 where one does not.
    SelfCheck(SelfCheck),
    /// Instructions of hot paths, counted by valgrind: a history that other programs on the machine do not blur.
    Instructions(Instructions),
    /// Takes one path: `instructions` counts it.
    #[command(hide = true)]
    CountedPath(CountedPath),
}

impl Suite {
    /// What can be asked of every suite that measures.
    fn common(&mut self) -> Option<&mut Common> {
        match self {
            Self::Latency(a) => Some(&mut a.common),
            Self::BatchSize(a) => Some(&mut a.common),
            Self::Graph(a) => Some(&mut a.common),
            Self::Precision(a) => Some(&mut a.common),
            Self::Startup(a) => Some(&mut a.common),
            Self::Roofline(a) => Some(&mut a.common),
            Self::Load(a) => Some(&mut a.common),
            Self::Targets(a) => Some(&mut a.common),
            Self::Peers(a) => Some(&mut a.common),
            Self::Gpu(a) => Some(&mut a.common),
            Self::Training(a) => Some(&mut a.common),
            Self::Beam(a) => Some(&mut a.common),
            Self::Train(a) => Some(&mut a.common),
            Self::Scaling(a) => Some(&mut a.common),
            Self::Memory(a) => Some(&mut a.common),
            Self::Overlap(a) => Some(&mut a.common),
            Self::Ops(a) => Some(&mut a.common),
            // Its parts have their own, its processes are told all there is, and the others measure nothing.
            Self::All(_) | Self::TrainPeak(_) | Self::TrainMemory(_) | Self::FirstAnswer(_) => None,
            Self::Compare(_) | Self::Report(_) | Self::Readme(_) | Self::Instructions(_) | Self::CountedPath(_) | Self::SelfCheck(_) => {
                None
            }
        }
    }

    /// Most threads of a call; none for what measures nothing.
    fn threads(&mut self) -> Option<usize> {
        match self {
            Self::All(_) => Some(all::THREADS),
            Self::TrainPeak(a) => Some(a.threads),
            Self::TrainMemory(_) | Self::FirstAnswer(_) | Self::SelfCheck(_) => Some(1),
            other => other.common()?.threads.iter().copied().max(),
        }
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::All(a) => all::all(a),
            Self::Latency(a) => run::latency(a),
            Self::BatchSize(a) => run::batch_size(a),
            Self::Graph(a) => run::graph(a),
            Self::Precision(a) => run::precision(a),
            Self::Startup(a) => run::startup(a),
            Self::Roofline(a) => run::roofline(a),
            Self::Load(a) => run::load(a),
            Self::Targets(a) => run::targets(a),
            Self::Peers(a) => run::peers(a),
            Self::Gpu(a) => run::gpu(a),
            Self::Training(a) => run::training(a),
            Self::Beam(a) => run::beam(a),
            Self::Train(a) => costs::train(a),
            Self::Scaling(a) => costs::scaling(a),
            Self::Memory(a) => costs::memory(a),
            Self::Overlap(a) => costs::overlap(a),
            Self::Ops(a) => run::ops(a),
            Self::TrainPeak(a) => run::train_peak(a),
            Self::TrainMemory(a) => costs::train_memory(a),
            Self::FirstAnswer(a) => run::first_answer(a),
            Self::Compare(a) => run::compare(a),
            Self::Report(a) => pages::report(a),
            Self::Readme(a) => pages::readme(a),
            // Instructions are no time: they are the same in a development build that CI has.
            Self::Instructions(a) => instructions::instructions(a),
            Self::SelfCheck(a) => run::self_check(a),
            Self::CountedPath(a) => a.path.run().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Runs a suite until its end or until SIGINT, and says what went wrong.
fn run_suite(suite: &mut Suite) -> ExitCode {
    let interrupt = suite.common().map(|common| common.settings.interrupt.clone());
    let result = interrupt.as_ref().map_or(Ok(()), Interrupt::on_signal).and_then(|()| suite.run());
    // Whatever else failed then, for peers and ranks get the signal too.
    if interrupt.is_some_and(|interrupt| interrupt.came()) && result.is_err() {
        eprintln!("interrupted");
        return ExitCode::from(EXIT_CODE);
    }
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn main() -> ExitCode {
    let began_ns = startup::now_ns();
    let Arguments { mut suite } = Arguments::parse();
    let threads = suite.threads();
    if cfg!(debug_assertions) && threads.is_some() {
        eprintln!("warning: this is not a release build (cargo run --release -p candle-bench): the times are not worth keeping");
    }
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads.unwrap_or(1)) };
    if let Suite::FirstAnswer(arguments) = &mut suite {
        arguments.began_ns = began_ns;
    }
    run_suite(&mut suite)
}
