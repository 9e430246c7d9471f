//! A run directory read back: the reports of its suites, for whoever compares or shows them.

use crate::family::Families;
use crate::figure::{Figure, Identity};
use crate::host::Host;
use crate::report::charts::Panel;
use crate::suite::{self, Suite};
use crate::table::{self, FORMAT, Record, Report, Shown};
use crate::{batch_size, graph, latency, load, memory, ops, overlap, peers, precision, roofline, scaling, serve, split, startup};
use anyhow::{Context, Result, bail, ensure};
use clap::{ArgMatches, Command};
use roofline::RooflineRow;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The part of a page that a suite stands in, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chapter {
    /// What is set against limits.
    Limits,
    /// Answers of trained models.
    Inference,
    /// Training.
    Training,
    /// Other devices.
    Devices,
    /// Single operations.
    Operations,
}

/// A suite in the list of all.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name of its command and of its report.
    pub name: &'static str,
    /// The heading of its part of a page.
    pub title: &'static str,
    /// Where on a page that is.
    pub chapter: Chapter,
    /// Its command, with help and arguments.
    pub command: fn(&Families) -> Command,
    /// The most threads that a call of it may use.
    pub threads: fn(&ArgMatches) -> Result<usize>,
    /// Measures; with the command line of a part of a page.
    pub run: fn(&Families, &ArgMatches, Option<String>) -> Result<ExitCode>,
    /// Reads its rows from the text of a report.
    parse: fn(&str) -> Result<SuiteReport>,
}

impl Entry {
    /// A suite by its type.
    pub fn of<S: Suite>(chapter: Chapter) -> Self {
        Self {
            name: S::NAME,
            title: S::TITLE,
            chapter,
            command: suite::command::<S>,
            threads: |matches| Ok(S::from_arg_matches(matches)?.common().threads.iter().copied().max().unwrap_or(1)),
            run: suite::run::<S>,
            parse: SuiteReport::parse::<S::Row>,
        }
    }
}

/// The suite that says what bounds a pass.
const ROOFLINE: &str = roofline::Roofline::NAME;

/// Every suite, in the order of a page: those that are about no family in particular, listed here alone, and those of the families.
pub fn suites(families: &Families) -> Vec<Entry> {
    use Chapter::{Inference, Limits, Operations, Training};
    let mut suites = vec![
        Entry::of::<latency::Latency>(Inference),
        Entry::of::<batch_size::BatchSize>(Inference),
        Entry::of::<graph::Graph>(Inference),
        Entry::of::<precision::Precision>(Inference),
        Entry::of::<startup::Startup>(Inference),
        Entry::of::<roofline::Roofline>(Inference),
        Entry::of::<load::Load>(Inference),
        Entry::of::<peers::Peers>(Inference),
        Entry::of::<split::Train>(Training),
        Entry::of::<overlap::Overlap>(Training),
        Entry::of::<memory::Memory>(Training),
        Entry::of::<scaling::Scaling>(Training),
        Entry::of::<ops::Ops>(Operations),
        Entry::of::<ops::steps::Steps>(Operations),
    ];
    suites.extend(families.iter().flat_map(|family| family.suites()));
    suites.push(Entry::of::<serve::Serve>(Limits));
    suites.sort_by_key(|entry| entry.chapter);
    suites
}

/// A row of any suite.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What tells it from the others.
    pub identity: Identity,
    /// Where it was measured.
    pub host: Host,
    /// What two runs are compared by.
    pub figures: Vec<Figure>,
    /// Its cells, one for every column of its suite.
    pub cells: Vec<String>,
    /// How often it was measured; empty where the method alone says so.
    pub often: String,
    /// What bounds it, where that is known.
    pub bound: Option<String>,
    /// The row of the roofline that says what bounds it.
    pub(crate) placed_as: Option<Identity>,
}

impl Row {
    fn of<R: Record>(row: &R) -> Self {
        Self {
            identity: Identity::new(row.identity()),
            host: row.host().clone(),
            figures: row.figures(),
            cells: row.cells(),
            often: row.often(),
            bound: row.bound(),
            placed_as: row.pass().map(|case| {
                let [operation, shape] = case.placed_as();
                let cells = [operation, shape, case.threads.to_string(), case.device.clone()];
                Identity::new(RooflineRow::IDENTITY.iter().copied().zip(cells).collect())
            }),
        }
    }
}

/// The report of one suite.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteReport {
    /// The command line.
    pub command: String,
    /// How it was measured, in words.
    pub method: String,
    /// Whether rows are missing.
    pub interrupted: bool,
    /// Names of the columns, and where each is shown.
    pub columns: &'static [(&'static str, Shown)],
    /// The rows in the order of the run.
    pub rows: Vec<Row>,
    /// What is drawn of them.
    pub charts: Vec<Panel>,
}

impl SuiteReport {
    fn parse<R: Record + DeserializeOwned>(text: &str) -> Result<Self> {
        let Report { command, method, interrupted, rows, .. } = serde_json::from_str::<Report<R>>(text)?;
        Ok(Self { command, method, interrupted, columns: R::COLUMNS, charts: R::charts(&rows), rows: rows.iter().map(Row::of).collect() })
    }

    /// A report by the name of its suite; nothing where this version has no such suite.
    fn read(suites: &[Entry], path: &Path, name: &str) -> Result<Option<Self>> {
        let Some(entry) = suites.iter().find(|entry| entry.name == name) else { return Ok(None) };
        checked(path, name, entry.parse).map(Some)
    }

    /// Rows by identity; several where a run measured the same more than once.
    pub fn by_identity(&self) -> BTreeMap<&Identity, Vec<&Row>> {
        self.rows.iter().fold(BTreeMap::new(), |mut map, row| {
            map.entry(&row.identity).or_insert_with(Vec::new).push(row);
            map
        })
    }
}

/// What is read of a report before the rest of it can be trusted.
#[derive(Deserialize)]
struct Version {
    #[serde(default = "table::first_format")]
    format: u32,
}

fn checked<T>(path: &Path, name: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let place = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{place}: cannot be read"))?;
    let Version { format } = serde_json::from_str(&text).with_context(|| format!("{place}: not a report"))?;
    ensure!(
        format == FORMAT,
        "{place}: format {format} is that of another version of candle-bench, this one reads format {FORMAT}: use the version that wrote it"
    );
    parse(&text).with_context(|| format!("{place}: not a report of suite {name}"))
}

/// The typed rows of one suite of a run directory.
///
/// # Errors
/// Names the file that is missing, no report of that suite, or one of another version.
pub fn report<R: DeserializeOwned>(directory: &Path, suite: &str) -> Result<Report<R>> {
    checked(&directory.join(format!("{suite}.json")), suite, |text| Ok(serde_json::from_str(text)?))
}

/// The reports of a run directory.
#[derive(Debug, Clone)]
pub struct Run {
    /// Where it lies.
    pub directory: PathBuf,
    /// The suites that this program knows, in the order of a page.
    pub(crate) known: Vec<Entry>,
    /// Its suites by name.
    pub suites: BTreeMap<String, SuiteReport>,
    /// Names of the reports that this version has no suite for.
    pub unknown: Vec<String>,
}

impl Run {
    /// Reads every `<suite>.json` of a directory with the suites of these families.
    ///
    /// # Errors
    /// Names the directory that is none or holds no report, and the file that is no report or one of another version.
    pub fn open(families: &Families, directory: &Path) -> Result<Self> {
        let place = directory.display();
        if !directory.is_dir() {
            bail!("{place}: {}", if directory.exists() { "not a directory" } else { "no such directory" });
        }
        let mut run = Self { directory: directory.to_owned(), known: suites(families), suites: BTreeMap::new(), unknown: Vec::new() };
        for entry in std::fs::read_dir(directory).with_context(|| format!("{place}: cannot be read"))? {
            let path = entry.with_context(|| format!("{place}: cannot be read"))?.path();
            let (Some(name), Some("json")) = (path.file_stem().and_then(|s| s.to_str()), path.extension().and_then(|e| e.to_str())) else {
                continue;
            };
            match SuiteReport::read(&run.known, &path, name)? {
                Some(suite) => drop(run.suites.insert(name.to_owned(), suite)),
                None => run.unknown.push(name.to_owned()),
            }
        }
        run.unknown.sort();
        run.place();
        ensure!(!run.suites.is_empty(), "{place}: not a run directory, for it holds no report of a suite (latency.json and the like)");
        Ok(run)
    }

    /// Rows that are passes of models are bound by what the roofline of the same run says of these.
    fn place(&mut self) {
        let Some(roofline) = self.suites.get(ROOFLINE) else { return };
        let bounds: BTreeMap<_, _> = roofline.rows.iter().filter_map(|row| Some((row.identity.clone(), row.bound.clone()?))).collect();
        for row in self.suites.values_mut().flat_map(|suite| &mut suite.rows) {
            if let (None, Some(placed)) = (&row.bound, &row.placed_as) {
                row.bound = bounds.get(placed).cloned();
            }
        }
    }

    /// The suites that it has, in the order of a page, with their names and what they are about.
    pub fn in_order(&self) -> impl Iterator<Item = (&'static str, &'static str, &SuiteReport)> {
        self.known.iter().filter_map(|entry| Some((entry.name, entry.title, self.suites.get(entry.name)?)))
    }
}
