//! The command `candle-bench` as a function of the families that a program measures: [`run`] them, its own and those shipped.
//!
//! ```no_run
//! use candle_bench::{command, families};
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     // SAFETY: the program has started no thread yet.
//!     unsafe { command::run(&families::shipped(), std::env::args_os()) }
//! }
//! ```

mod all;
mod children;
mod instructions;
mod pages;
mod tools;

use crate::family::Families;
use crate::run::suites;
use crate::{host, startup};
use all::All;
use candle_models::cli::Usage;
use candle_models::device;
use candle_train::command::keep_freed_memory;
use children::{FirstAnswer, TrainMemory};
use clap::{Command, FromArgMatches, Subcommand};
use instructions::{CountedPath, Instructions};
use pages::{Page, Readme};
use std::ffi::OsString;
use std::process::ExitCode;
use tools::{Compare, SelfCheck};

/// The exit code of a command that was called wrongly.
const USAGE: u8 = 2;

/// The commands beside the suites.
#[derive(Subcommand)]
enum Tool {
    /// Every suite in one run on the shipped bundles: reports in one directory, tables on one page, recommendations.
    All(All),
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
    /// Trains as a request in JSON says and prints the resident set in KiB before it and the peak: `train` and other suites start it.
    #[command(hide = true)]
    TrainMemory(TrainMemory),
    /// Takes one step and says when it had done what: `startup` and `gpu` start it.
    #[command(hide = true)]
    FirstAnswer(FirstAnswer),
    /// Takes one path: `instructions` counts it.
    #[command(hide = true)]
    CountedPath(CountedPath),
}

impl Tool {
    /// Most threads of a call; none for what measures nothing.
    fn threads(&self) -> Option<usize> {
        match self {
            Self::All(_) => Some(all::THREADS),
            Self::TrainMemory(_) | Self::FirstAnswer(_) | Self::SelfCheck(_) => Some(1),
            // Instructions are no time: they are the same in a development build that CI has.
            Self::Compare(_) | Self::Report(_) | Self::Readme(_) | Self::Instructions(_) | Self::CountedPath(_) => None,
        }
    }

    /// `began_ns`: when the process began to run, in nanoseconds since 1970.
    fn run(&self, families: &Families, began_ns: u64) -> anyhow::Result<ExitCode> {
        match self {
            Self::All(a) => all::all(families, a),
            Self::TrainMemory(a) => children::train_memory(families, a),
            Self::FirstAnswer(a) => children::first_answer(families, a, began_ns),
            Self::Compare(a) => tools::compare(families, a),
            Self::SelfCheck(a) => tools::self_check(families, a),
            Self::Report(a) => pages::report(families, a),
            Self::Readme(a) => pages::readme(families, a),
            Self::Instructions(a) => instructions::instructions(families, a),
            Self::CountedPath(a) => instructions::counted(families, a),
        }
    }
}

/// The command line: the suites, with what the families add to them, and the tools.
pub fn command(families: &Families) -> Command {
    let command = Command::new("candle-bench").version(env!("CARGO_PKG_VERSION")).subcommand_required(true).arg_required_else_help(true);
    let command = command.about("Latency and batch tables of the shipped models, and comparisons with other libraries.");
    Tool::augment_subcommands(command.subcommands(suites(families).iter().map(|suite| (suite.command)(families))))
}

/// Says what went wrong.
fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<Usage>() { USAGE.into() } else { ExitCode::FAILURE }
    })
}

/// Runs the command with these families; the first argument is the program's own name. Where the program has arguments of its own in front
/// (`own_family bench latency`), the others are the last ones of the process: suites start the program again with the same in front.
///
/// The exit code is 0 for done, 1 for failed or refused, 2 for called wrongly.
///
/// # Safety
/// It sets the number of threads in the process's environment: no other thread may be running.
pub unsafe fn run<A: Into<OsString> + Clone>(families: &Families, arguments: impl IntoIterator<Item = A>) -> ExitCode {
    let began_ns = startup::now_ns();
    keep_freed_memory();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    host::set_arguments(&arguments);
    let matches = match command(families).try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // A closed pipe is no reason to complain about.
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let run = || {
        let suites = suites(families);
        let suite = matches.subcommand().and_then(|(name, chosen)| Some((suites.iter().find(|suite| suite.name == name)?, chosen)));
        let tool = if suite.is_none() { Some(Tool::from_arg_matches(&matches)?) } else { None };
        let threads = match (&suite, &tool) {
            (Some((suite, chosen)), _) => Some((suite.threads)(chosen)?),
            (None, tool) => tool.as_ref().and_then(Tool::threads),
        };
        if cfg!(debug_assertions) && threads.is_some() {
            eprintln!("warning: this is not a release build (cargo run --release --bin candle-bench): the times are not worth keeping");
        }
        // SAFETY: the caller's promise; none has been started here.
        unsafe { device::configure_threads(threads.unwrap_or(1)) };
        match (suite, tool) {
            (Some((suite, chosen)), _) => (suite.run)(families, chosen, None),
            (None, Some(tool)) => tool.run(families, began_ns),
            (None, None) => unreachable!("clap asks for a command"),
        }
    };
    code(run())
}
