//! What the workspace's command-line programs share: exit codes, errors in one line, progress and readable numbers.
//!
//! Exit codes: 0 done, 1 failed, 2 called wrongly.

use crate::device::{self, ChosenDevice, DeviceChoice, Purpose};
use crate::engine::Placement;
use crate::exec::Launches;
use crate::one_line;
use anyhow::Result;
use candle_core::{DType, Device};
use clap::{Args, Parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write};
use std::process::ExitCode;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Where and in what to compute, as typed.
#[derive(Debug, Clone, Default, Args)]
pub struct Computing {
    /// auto (a CUDA device if there is one), cpu, cuda or cuda:NUMBER. Default: CANDLE_DEVICE, or auto.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// What matrices and activations are computed in: f32, bf16 or f16. Default: CANDLE_DTYPE, or what suits the device and the task.
    #[arg(long, value_name = "DTYPE", value_parser = device::float_dtype)]
    dtype: Option<DType>,
}

impl Computing {
    /// Opens the device. One that was hoped for and is not there is a warning, one that was asked for is an error.
    pub fn open(&self, purpose: Purpose) -> crate::Result<(Device, DType)> {
        let ChosenDevice { device, fallback } = DeviceChoice::or_environment(self.device)?.open()?;
        fallback.iter().for_each(|reason| eprintln!("warning: {reason}"));
        let dtype = device::compute_dtype(self.dtype, &device, purpose)?;
        Ok((device, dtype))
    }

    /// The same, on what `choose` makes of the device that was typed or that the environment names.
    pub fn on(self, choose: impl FnOnce(DeviceChoice) -> DeviceChoice) -> crate::Result<Self> {
        Ok(Self { device: Some(choose(DeviceChoice::or_environment(self.device)?)), ..self })
    }
}

impl Computing {
    /// The same for an engine or a runner, which opens the device itself; `threads` where that is the CPU.
    pub fn placement(&self, threads: usize, launches: Launches) -> crate::Result<Placement> {
        Ok(Placement { device: DeviceChoice::or_environment(self.device)?, threads, dtype: self.dtype, launches })
    }
}

/// Arguments that parse but contradict each other: ends the program with code 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0} (see --help)")]
pub struct Usage(pub String);

impl Usage {
    /// The error for `return` and `?`.
    pub fn error(text: impl Into<String>) -> anyhow::Error {
        Self(text.into()).into()
    }
}

/// Parses the arguments and [`answer`]s with what `program` makes of them.
pub fn main<A: Parser>(program: impl FnOnce(A) -> Result<()>) -> ExitCode {
    answer(A::try_parse(), program)
}

/// Runs `program` on parsed arguments and turns what comes back into an exit code, an error into one line `error: ...` on standard
/// error.
///
/// A reader that closes standard output early (`| head`) ends the program without complaint.
pub fn answer<A>(parsed: Result<A, clap::Error>, program: impl FnOnce(A) -> Result<()>) -> ExitCode {
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match program(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report("error", &error);
            ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILED })
        }
    }
}

/// Help and version go out as they are; an error is cut to the sentence before the usage text.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is no reason to complain about.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let sentence: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let sentence = sentence.join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    // A call without arguments answers with the help text instead of a sentence.
    let sentence =
        if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand { "nothing to do" } else { sentence };
    report("error", &Usage::error(one_line(sentence)));
    ExitCode::from(USAGE)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = |e: &'_ (dyn std::error::Error + 'static)| match e.downcast_ref::<crate::Error>() {
        Some(crate::Error::Io { cause, .. }) => Some(cause.kind()),
        _ => e.downcast_ref::<io::Error>().map(io::Error::kind),
    };
    error.chain().filter_map(cause).any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Writes `kind: error` with its causes in one line to standard error.
pub fn report(kind: &str, error: &anyhow::Error) {
    // Nothing is left to tell a user whose standard error is closed.
    let _ = writeln!(io::stderr(), "{kind}: {}", one_line_of(error));
}

/// An error with its causes, on one line whatever its parts contain.
pub fn one_line_of(error: &anyhow::Error) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        // Libraries repeat the cause in their own text.
        if !causes.last().is_some_and(|last| last.ends_with(&cause)) {
            causes.push(cause);
        }
    }
    causes.join(": ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes `warning: text` to standard error.
pub fn warn(text: impl std::fmt::Display) {
    report("warning", &anyhow::anyhow!("{text}"));
}

/// The number of threads for one stream of frames: what was typed, or the environment's, or 1 (a step of one row is over
/// before a second thread has woken up).
///
/// # Errors
/// If the number is not from 1 to 1024.
pub fn stream_threads(typed: Option<usize>) -> Result<usize> {
    let typed = typed.or_else(|| std::env::var_os(device::THREADS_VARIABLE).is_none().then_some(1));
    Ok(device::threads(typed).map_err(|e| Usage(e.to_string()))?)
}

/// A progress bar over `length` of `what`: drawn on a terminal only, and gone when it is dropped.
pub fn progress(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what} {{elapsed}} (left: {{eta}}) {{msg}}"));
    // The template is made of known parts; should one be renamed, the library's own bar is as good.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// `4.1 MB`: three digits and a unit of powers of 1000.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// `1.32 M`: three digits and a power of 1000.
pub fn count(n: u64) -> String {
    scaled(n as f64, &["", "k", "M", "G", "T"])
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would be rounded to four digits.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (4_096_000, "4.10 MB"), (99_960, "100 kB"), (999_499_999, "999 MB")];
        cases.into_iter().for_each(|(n, text)| assert_eq!(bytes(n), text));
        assert_eq!((bytes(999_999), count(12), count(1_320_000)), ("1.00 MB".to_owned(), "12".to_owned(), "1.32 M".to_owned()));
        assert!(bytes(u64::MAX).ends_with(" TB"));
    }

    #[test]
    fn an_error_is_one_line_and_says_nothing_twice() {
        let io = io::Error::other("disk\nfull");
        let error = anyhow::Error::from(crate::Error::io("a/b")(io)).context("writing the table");
        assert_eq!(one_line_of(&error), "writing the table: a/b: disk full");
    }

    #[test]
    fn a_closed_pipe_is_recognised_below_other_errors() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::from(closed()).context("standard output")));
        assert!(is_closed_pipe(&crate::Error::io("-")(closed()).into()));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
