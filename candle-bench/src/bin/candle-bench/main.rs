//! Measures the models of this workspace on this machine and compares them with PyTorch and ONNX Runtime.

mod arguments;
mod report;
mod run;

use arguments::{BeamBench, Compare, FirstAnswer, Gpu, Latency, Load, Ops, Peers, Targets, TrainPeak, Training};
use candle_bench::interrupt::{EXIT_CODE, Interrupt};
use candle_models::device;
use clap::{Parser, Subcommand};
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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    type Run<'a> = Box<dyn Fn() -> anyhow::Result<ExitCode> + 'a>;
    let ((threads, interrupt), run): ((&[usize], Option<&Interrupt>), Run) = match &arguments.suite {
        Suite::Latency(a) => (a.common.shared(), Box::new(|| run::latency(a))),
        Suite::Load(a) => (a.common.shared(), Box::new(|| run::load(a))),
        Suite::Targets(a) => (a.common.shared(), Box::new(|| run::targets(a))),
        Suite::Peers(a) => (a.common.shared(), Box::new(|| run::peers(a))),
        Suite::Gpu(a) => (a.common.shared(), Box::new(|| run::gpu(a))),
        Suite::Training(a) => (a.common.shared(), Box::new(|| run::training(a))),
        Suite::Beam(a) => (a.common.shared(), Box::new(|| run::beam(a))),
        Suite::TrainPeak(a) => ((std::slice::from_ref(&a.threads), None), Box::new(|| run::train_peak(a))),
        Suite::FirstAnswer(a) => ((&[1], None), Box::new(|| run::first_answer(a))),
        Suite::Ops(a) => (a.common.shared(), Box::new(|| run::ops(a))),
        // It measures nothing.
        Suite::Compare(a) => ((&[], None), Box::new(|| run::compare(a))),
    };
    if cfg!(debug_assertions) && !threads.is_empty() {
        eprintln!("warning: this is not a release build (cargo run --release -p candle-bench): the times are not worth keeping");
    }
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads.iter().copied().max().unwrap_or(1)) };
    let result = interrupt.map_or(Ok(()), Interrupt::on_signal).and_then(|()| run());
    // Whatever else failed then, for peers and ranks get the signal too.
    if interrupt.is_some_and(Interrupt::came) && result.is_err() {
        eprintln!("interrupted");
        return ExitCode::from(EXIT_CODE);
    }
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
