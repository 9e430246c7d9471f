//! What a suite is: a command that measures rows and leaves their report. [`suites`](crate::run::suites) lists every suite once.

use crate::family::{self, Families};
use crate::harness::Settings;
use crate::host::{self, Host};
use crate::interrupt::EXIT_CODE;
use crate::network::{Network, Place};
use crate::peer::{Peer, Processes, Side};
use crate::table::{Record, Report};
use crate::text::terminal_width;
use anyhow::{Context, Result, ensure};
use candle_models::device::{self, DeviceChoice};
use clap::{ArgMatches, Command};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

/// The arguments of a suite, which measure. Their doc comment is the help of the command.
pub trait Suite: clap::Args {
    /// Name of the command and of the report.
    const NAME: &'static str;
    /// What it is about: the heading of its part of a page.
    const TITLE: &'static str;
    /// What it measures.
    type Row: Record + Clone + DeserializeOwned;

    /// The arguments that every suite has.
    fn common(&self) -> &Common;

    /// Measures: says how to [`SuiteRun::begin`], and hands every row to [`SuiteRun::add`].
    ///
    /// # Errors
    /// Before the first row for arguments that cannot be, later for what cannot be measured.
    fn measure(&self, bench: &mut SuiteRun<Self::Row>) -> Result<()>;
}

/// What can be asked of every suite.
#[derive(clap::Args)]
pub struct Common {
    /// Backbones to measure with random weights, at their usual sizes.
    #[arg(long, value_name = "KIND", value_delimiter = ',', conflicts_with = "bundles")]
    pub backbones: Option<Vec<String>>,
    /// Bundles to measure instead of random networks; of any family where nothing else is said.
    #[arg(long, value_name = "DIR")]
    pub bundles: Vec<PathBuf>,
    /// How the weights are stored: f32, bf16 or q8. Peers always run f32.
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', default_value = "f32")]
    pub dtypes: Vec<String>,
    /// Frames of a window pass (60 frames are one second).
    #[arg(long, value_name = "FRAMES", default_value_t = 60)]
    pub window: usize,
    /// Numbers of threads that a call may use.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2])]
    pub threads: Vec<usize>,
    /// Directory for the results [default: candle-bench/runs/DATE-HOST].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Name of this machine in the results [default: its host name].
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// How long to measure.
    #[command(flatten)]
    pub settings: Settings,
}

/// Where both sides compute.
#[derive(clap::Args)]
pub struct DeviceArgument {
    /// Device: cpu, cuda or cuda:NUMBER.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
}

/// The interpreter and the program that peers run in.
#[derive(clap::Args)]
pub struct Python {
    /// Python interpreter with the peers' libraries (candle-bench/peers/setup.sh makes one).
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/.venv/bin/python")]
    pub python: PathBuf,
    /// The peer's program.
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/peer.py")]
    pub script: PathBuf,
}

/// The programs that answer for every library.
#[derive(clap::Args)]
pub struct Programs {
    /// The peers in Python.
    #[command(flatten)]
    pub python: Python,
    /// The peers in Rust (candle-bench/peers/setup.sh builds them).
    #[arg(long, value_name = "FILE", default_value = "candle-bench/peers/rust/target/release/candle-bench-peer")]
    pub rust_peer: PathBuf,
}

impl DeviceArgument {
    /// Opens the device.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(&self) -> Result<Place> {
        Place::open(self.device)
    }
}

impl Python {
    /// Starts the peer.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self) -> Result<Peer> {
        Peer::start(self.command())
    }

    fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.python);
        command.arg(&self.script);
        command
    }

    /// The peers in Python alone.
    pub fn processes(&self) -> Processes {
        Processes::default().with(Side::Python, self.command())
    }
}

impl Programs {
    /// The peers, each started when it is needed.
    pub fn processes(&self) -> Processes {
        self.python.processes().with(Side::Rust, std::process::Command::new(&self.rust_peer))
    }
}

impl Common {
    /// # Errors
    /// Names the argument at fault; `batches` have at least one row each.
    pub fn validate(&self, batches: &[&[usize]]) -> Result<()> {
        self.settings.validate()?;
        ensure!(self.window > 0, "window: a pass has at least one frame");
        ensure!(batches.iter().all(|b| !b.contains(&0)), "batches: a call has at least one row");
        self.threads.iter().try_for_each(|&n| device::threads(Some(n)).map(drop)).map_err(Into::into)
    }
}

fn networks(families: &Families, common: &Common, options: &ArgMatches, kinds: &[&str], scratch: &Path) -> Result<Vec<Network>> {
    let known = family::kinds(families);
    let kinds: Vec<&str> = match &common.backbones {
        Some(named) => named.iter().map(String::as_str).collect(),
        None => known.into_iter().filter(|kind| kinds.is_empty() || kinds.contains(kind)).collect(),
    };
    let networks: Vec<Network> = match common.bundles.is_empty() {
        true => kinds.iter().map(|kind| Network::random(families, kind, options, scratch)).collect::<Result<_>>()?,
        false => common.bundles.iter().map(|bundle| Network::open(families, bundle)).collect::<Result<_>>()?,
    };
    ensure!(!networks.is_empty(), "nothing to measure: --bundles names it");
    let stored = |network: &Network| common.dtypes.iter().map(|dtype| network.stored(dtype, scratch)).collect::<Vec<_>>();
    networks.iter().flat_map(stored).collect()
}

/// Where the reports of a run go.
pub fn directory(out: Option<&Path>, host: &Host) -> PathBuf {
    out.map_or_else(|| PathBuf::from(format!("candle-bench/runs/{}-{}", host.date, host.host)), Path::to_owned)
}

/// A suite at work: where it measures, and its rows so far, written after each, so that whatever ends the run leaves what it had, marked as
/// interrupted.
pub struct SuiteRun<'a, R: Record + Clone> {
    /// Where.
    pub host: Host,
    /// What can be measured.
    pub families: &'a Families,
    /// The whole command line, with the options of families.
    pub options: &'a ArgMatches,
    scratch: TempDir,
    directory: PathBuf,
    name: &'static str,
    /// How many rows there will be, where that is known.
    cases: Option<usize>,
    report: Report<R>,
    refused: Vec<String>,
}

impl<'a, R: Record + Clone> SuiteRun<'a, R> {
    fn new(name: &'static str, common: &Common, command: String, families: &'a Families, options: &'a ArgMatches) -> Result<Self> {
        let host = Host::detect(common.host.clone());
        let report = Report { interrupted: true, ..Report::new(command, String::new(), Vec::new()) };
        let scratch = tempfile::tempdir().context("no directory for the networks")?;
        let directory = directory(common.out.as_deref(), &host);
        Ok(Self { host, families, options, scratch, directory, name, cases: None, report, refused: Vec::new() })
    }

    /// A directory for networks, gone when the suite is done.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The networks that were asked for; random ones of `kinds` where none were named.
    ///
    /// # Errors
    /// For an unknown backbone or dtype, or a bundle that cannot be opened.
    pub fn networks(&self, common: &Common, kinds: &[&str]) -> Result<Vec<Network>> {
        networks(self.families, common, self.options, kinds, self.scratch())
    }

    /// How it measures, in words, and how many rows that gives, where that is known.
    pub fn begin(&mut self, method: &str, cases: Option<usize>) {
        self.report.method = format!("{}. {method}", self.host);
        self.cases = cases;
    }

    /// Keeps a row and tells of it.
    pub fn add(&mut self, row: &R) {
        self.report.rows.push(row.clone());
        if let Err(error) = self.report.write(&self.directory, self.name) {
            eprintln!("warning: {error:#}");
        }
        if let Some(line) = row.told() {
            let place = self.cases.map_or_else(String::new, |cases| format!("{}/{cases} | ", self.rows().len()));
            eprintln!("{place}{line}");
        }
    }

    /// The rows so far.
    pub fn rows(&self) -> &[R] {
        &self.report.rows
    }

    /// Something that was to be a row and is none, or a row that must not be: the run has failed, when it has ended.
    pub fn refuse(&mut self, why: String) {
        self.refused.push(why);
    }

    /// Rows that lay above their roofs: they are none.
    pub fn refuse_rows(&mut self, rows: &[String]) {
        self.refused.extend(rows.iter().map(|row| format!("refused: {row}")));
    }

    fn files(&self) -> String {
        format!("{}/{}.{{md,csv,json}}", self.directory.display(), self.name)
    }

    /// Ends the run: the rows are written and shown, as one of the tables of a page or with all that is to be said of them.
    fn end(mut self, is_part: bool) -> Result<ExitCode> {
        self.report.interrupted = false;
        self.report.write(&self.directory, self.name)?;
        let width = terminal_width();
        let unsteady = self.rows().iter().filter(|row| row.figures().iter().any(|figure| !figure.steady)).count();
        if unsteady > 0 {
            eprintln!(
                "warning: {unsteady} of {} rows are not steady: other programs, the clock or the subject itself changed while they were measured",
                self.rows().len()
            );
        }
        println!("{}", if is_part { self.report.table_text(width) } else { self.report.text(width) });
        eprintln!("written: {}", self.files());
        self.refused.iter().for_each(|why| eprintln!("error: {why}"));
        Ok(if self.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl<R: Record + Clone> Drop for SuiteRun<'_, R> {
    fn drop(&mut self) {
        if self.report.interrupted && !self.rows().is_empty() {
            eprintln!("kept, marked as interrupted: {} rows in {}", self.rows().len(), self.files());
        }
    }
}

/// The command of a suite, with the options that families add to it, behind its own.
pub(crate) fn command<S: Suite>(families: &Families) -> Command {
    let own = S::augment_args(Command::new(S::NAME));
    let added = families.iter().fold(Command::new(S::NAME), |command, family| family.options(S::NAME, command));
    // Their arguments alone: what the command is about the suite says.
    own.args(added.get_arguments())
}

/// Runs a suite until its end or until SIGINT. `part` is its command line where it is one of several on a page, which then shows its table alone.
pub(crate) fn run<S: Suite>(families: &Families, options: &ArgMatches, part: Option<String>) -> Result<ExitCode> {
    let suite = S::from_arg_matches(options)?;
    let is_part = part.is_some();
    let command = part.unwrap_or_else(|| format!("candle-bench {}", host::arguments().join(" ")));
    let interrupt = &suite.common().settings.interrupt;
    interrupt.on_signal()?;
    let measured = || {
        let mut bench = SuiteRun::new(S::NAME, suite.common(), command, families, options)?;
        suite.measure(&mut bench)?;
        bench.end(is_part)
    };
    let ended = measured();
    // Whatever else failed then, for peers and ranks get the signal too.
    if interrupt.came() && ended.is_err() {
        eprintln!("interrupted");
        return Ok(ExitCode::from(EXIT_CODE));
    }
    ended
}
