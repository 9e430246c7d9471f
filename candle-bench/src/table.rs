//! Results as typed rows, and the same rows as Markdown, CSV and JSON.

use crate::case::{Case, Execution};
use crate::compare::{Figure, Sense};
use crate::harness::{Comparison, Measurement};
use crate::host::Host;
use crate::report::charts::{self, Panel};
use anyhow::{Context, Result};
use candle_models::nvml;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt::Write as _;
use std::path::Path;

/// The longest of several parts, in microseconds, and its share of them.
pub(crate) fn longest<'a>(parts: impl IntoIterator<Item = (&'a str, f64)>) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().collect();
    let sum: f64 = parts.iter().map(|(_, us)| us).sum();
    let (name, us) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let share = Some(100.0 * us / sum).filter(|share| share.is_finite())?;
    Some(format!("{name}: {} us of {} us at the median, {share:.0}%", micros(us), micros(sum)))
}

/// One point of the latency table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// How long.
    #[serde(flatten)]
    pub measurement: Measurement,
    /// Bytes of weights, states, inputs, outputs and what a pass works in, where the engine runs it.
    #[serde(default)]
    pub bytes: Option<usize>,
    /// Memory in use on the GPU that computed, in megabytes, that of other programs counted in; `None` for the CPU and
    /// where the driver does not say.
    pub gpu_mb: Option<f64>,
}

/// One comparison with a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Whom with, `onnxruntime 1.25.1`.
    pub peer: String,
    /// How far the outputs are apart.
    pub agreement: Agreement,
    /// How long; nothing when the outputs disagree, for then the two did not do the same work.
    pub comparison: Option<Comparison>,
}

/// How far two answers to the same input are apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The output that differs most.
    pub output: String,
    /// Its largest difference, relative to one plus the magnitude of theirs.
    #[serde(deserialize_with = "number")]
    pub worst: f64,
    /// The largest difference allowed.
    pub tolerance: f64,
}

impl Agreement {
    /// Whether the outputs agree.
    pub fn holds(&self) -> bool {
        self.worst <= self.tolerance
    }
}

/// A row that can be printed.
pub trait Record: Serialize {
    /// Its own column names and whether the column is left out of the Markdown table; those of its host follow in CSV.
    const COLUMNS: &'static [(&'static str, Shown)];
    /// Those of its columns that tell one row of a run from another.
    const IDENTITY: &'static [&'static str];
    /// The cells of these columns, as many as there are.
    fn cells(&self) -> Vec<String>;
    /// Where it was measured.
    fn host(&self) -> &Host;
    /// What two runs are compared by.
    fn figures(&self) -> Vec<Figure>;

    /// How often it was measured, in words; empty where the method alone says so.
    fn often(&self) -> String {
        String::new()
    }

    /// What bounds it, where that is known.
    fn bound(&self) -> Option<String> {
        None
    }

    /// The captured pass of a model that was timed, if it is one: the roofline of the same run knows what bounds it.
    fn pass(&self) -> Option<&Case> {
        None
    }

    /// What is drawn of the rows of a report.
    fn charts(_rows: &[Self]) -> Vec<Panel>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// The columns that tell it from other rows, with their cells.
    fn identity(&self) -> Vec<(&'static str, String)> {
        let cells: Vec<_> = Self::COLUMNS.iter().map(|(name, _)| *name).zip(self.cells()).collect();
        Self::IDENTITY.iter().filter_map(|name| cells.iter().find(|(column, _)| column == name).cloned()).collect()
    }
}

/// JSON has no number for what is none: `null` is read as NaN.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Where a column appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In Markdown and CSV.
    Everywhere,
    /// In CSV alone.
    Csv,
}
use Shown::{Csv, Everywhere};

impl Record for LatencyRow {
    // Names as in perf_analyzer's CSV where the meaning is the same; latencies are microseconds there as here.
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Pass", Everywhere),
        ("Batch", Everywhere),
        ("Threads", Everywhere),
        ("Dtype", Everywhere),
        ("Execution", Everywhere),
        ("Concurrency", Csv),
        ("Inferences/Second", Everywhere),
        ("Frames/Second", Csv),
        ("p50 latency", Everywhere),
        ("p90 latency", Everywhere),
        ("p95 latency", Csv),
        ("p99 latency", Everywhere),
        ("p99.9 latency", Everywhere),
        ("Max latency", Everywhere),
        ("Avg latency", Everywhere),
        ("Avg latency low", Csv),
        ("Avg latency high", Csv),
        ("Late %", Everywhere),
        ("Requests", Csv),
        ("Windows", Csv),
        ("Steady", Everywhere),
        ("Waited %", Csv),
        ("Clock change %", Csv),
        ("Memory MB", Everywhere),
        ("GPU MB", Csv),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Pass", "Batch", "Threads", "Device", "Dtype", "Execution"];

    fn cells(&self) -> Vec<String> {
        let (case, found, latency) = (&self.case, &self.measurement, &self.measurement.latency_us);
        let rows_per_s = found.calls_per_s * case.batch as f64;
        vec![
            case.model.clone(),
            case.backbone.clone(),
            case.pass_name(),
            case.batch.to_string(),
            case.threads.to_string(),
            case.dtype.clone(),
            case.execution.name().to_owned(),
            "1".to_owned(),
            format!("{rows_per_s:.0}"),
            format!("{:.0}", rows_per_s * case.frames as f64),
            micros(latency.p50),
            optional(latency.p90),
            optional(latency.p95),
            optional(latency.p99),
            optional(latency.p99_9),
            micros(latency.max),
            micros(latency.mean),
            micros(latency.mean_ci.low),
            micros(latency.mean_ci.high),
            percent(found.late),
            latency.n.to_string(),
            found.windows.to_string(),
            yes_no(found.steady),
            percent(found.waited),
            percent(found.clock),
            self.bytes.map_or_else(String::new, megabytes),
            gpu_memory(self.gpu_mb),
            case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure { steady: self.measurement.steady, ..Figure::mean("mean latency", &self.measurement.latency_us) }]
    }

    fn often(&self) -> String {
        self.measurement.often()
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case).filter(|case| case.execution == Execution::Captured)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        charts::latency(rows)
    }
}

impl Record for PeerRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Pass", Everywhere),
        ("Batch", Everywhere),
        ("Threads", Everywhere),
        ("Peer", Everywhere),
        ("Worst difference", Everywhere),
        ("Tolerance", Csv),
        ("Our p50 latency", Everywhere),
        ("Their p50 latency", Everywhere),
        ("Our p99 latency", Everywhere),
        ("Their p99 latency", Everywhere),
        ("Ratio", Everywhere),
        ("Ratio low", Csv),
        ("Ratio high", Csv),
        ("95% of the ratio", Everywhere),
        ("Smallest ratio", Csv),
        ("Largest ratio", Csv),
        ("Rounds", Everywhere),
        ("Our requests", Csv),
        ("Their requests", Csv),
        ("Device", Csv),
        ("Dtype", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Pass", "Batch", "Threads", "Peer", "Device", "Dtype"];

    fn cells(&self) -> Vec<String> {
        let case = &self.case;
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            case.pass_name(),
            case.batch.to_string(),
            case.threads.to_string(),
            self.peer.clone(),
            format!("{:.1e}", self.agreement.worst),
            format!("{:.1e}", self.agreement.tolerance),
        ];
        match &self.comparison {
            Some(c) => cells.extend([
                micros(c.ours_us.p50),
                micros(c.theirs_us.p50),
                optional(c.ours_us.p99),
                optional(c.theirs_us.p99),
                format!("{:.2}", c.ratio),
                format!("{:.2}", c.ratio_ci.low),
                format!("{:.2}", c.ratio_ci.high),
                format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high),
                format!("{:.2}", c.ratio_range.low),
                format!("{:.2}", c.ratio_range.high),
                c.rounds.to_string(),
                c.ours_us.n.to_string(),
                c.theirs_us.n.to_string(),
            ]),
            None => {
                cells.extend(std::iter::repeat_n(String::new(), 4));
                cells.push(format!("outputs disagree ({})", self.agreement.output));
                cells.extend(std::iter::repeat_n(String::new(), 8));
            }
        }
        cells.extend([case.device.clone(), case.dtype.clone()]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        compared_sides(self.comparison.as_ref(), "our mean latency", "their time over ours")
    }

    fn often(&self) -> String {
        rounds_in_turn(self.comparison.as_ref())
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        charts::peers(rows)
    }
}

/// The mean of our side and the ratio of the two; not a number where the sides did not do the same work.
pub(crate) fn compared_sides(comparison: Option<&Comparison>, ours: &'static str, ratio: &'static str) -> Vec<Figure> {
    match comparison {
        Some(c) => {
            vec![Figure::mean(ours, &c.ours_us), Figure { interval: Some(c.ratio_ci), ..Figure::new(ratio, "x", Sense::Rate, c.ratio) }]
        }
        None => vec![Figure::new(ours, "us", Sense::Time, f64::NAN), Figure::new(ratio, "x", Sense::Rate, f64::NAN)],
    }
}

/// How often two sides were measured.
pub(crate) fn rounds_in_turn(comparison: Option<&Comparison>) -> String {
    let rounds = |c: &Comparison| format!("{} rounds in turn, {} calls of ours, {} of theirs", c.rounds, c.ours_us.n, c.theirs_us.n);
    comparison.map_or_else(|| "not timed".to_owned(), rounds)
}

/// Microseconds with about three significant digits.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// The same, empty where there is none.
pub(crate) fn optional(us: Option<f64>) -> String {
    us.map_or_else(String::new, micros)
}

/// Percent of a share, empty where it is not known.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.2}", 100.0 * share))
}

/// Megabytes of 10^6 bytes.
pub(crate) fn megabytes(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}

/// Megabytes, or that they are unknown.
pub(crate) fn gpu_memory(mb: Option<f64>) -> String {
    mb.map_or_else(|| nvml::UNKNOWN.to_owned(), |mb| format!("{mb:.0}"))
}

pub(crate) fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

/// A Markdown table of the columns that are shown there.
pub fn markdown<R: Record>(rows: &[R]) -> String {
    let shown: Vec<usize> = (0..R::COLUMNS.len()).filter(|&i| R::COLUMNS[i].1 == Everywhere).collect();
    let mut text = String::new();
    let mut line = |cells: Vec<String>| {
        let picked: Vec<String> = shown.iter().map(|&i| cells[i].replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", picked.join(" | "));
    };
    line(R::COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect());
    line(R::COLUMNS.iter().map(|_| "---".to_owned()).collect());
    rows.iter().for_each(|row| line(row.cells()));
    text
}

/// All columns as CSV (RFC 4180, line feeds).
pub fn csv<R: Record>(rows: &[R]) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    let line = |cells: Vec<String>| cells.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(",") + "\n";
    let header = line(R::COLUMNS.iter().map(|(name, _)| *name).chain(Host::COLUMNS).map(str::to_owned).collect());
    rows.iter().fold(header, |text, row| text + &line(row.cells().into_iter().chain(row.host().cells()).collect()))
}

/// Version of the reports' JSON: raised when a file of an earlier version can no longer be read.
pub const FORMAT: u32 = 1;

/// Reports that were written before they named a version have the first one.
pub(crate) fn first_format() -> u32 {
    1
}

/// A suite's rows with what is needed to read and repeat them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<R> {
    /// [`FORMAT`] of the program that wrote it.
    #[serde(default = "first_format")]
    pub format: u32,
    /// The command line.
    pub command: String,
    /// How it was measured, in words.
    pub method: String,
    /// Whether the run ended before its last row, or has not come to it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The results.
    pub rows: Vec<R>,
}

impl<R> Report<R> {
    /// A whole report of this version.
    pub fn new(command: String, method: String, rows: Vec<R>) -> Self {
        Self { format: FORMAT, command, method, interrupted: false, rows }
    }
}

impl<R: Record> Report<R> {
    /// Writes `<name>.md`, `<name>.csv` and `<name>.json` into `directory`, which is made if it is missing.
    pub fn write(&self, directory: &Path, name: &str) -> Result<()> {
        std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (extension, text) in [("md", self.markdown()), ("csv", csv(&self.rows)), ("json", json)] {
            write(&directory.join(format!("{name}.{extension}")), &text)?;
        }
        Ok(())
    }

    /// The table with command and method above it.
    pub fn markdown(&self) -> String {
        let Self { command, method, rows, .. } = self;
        let mark = if self.interrupted { "**Interrupted: rows are missing.** " } else { "" };
        format!("Command: `{command}`\n\n{mark}{method} Latencies in microseconds.\n\n{}", markdown(rows))
    }
}

/// Writes beside the target and renames, so that a failure leaves no half of a file.
fn write(path: &Path, text: &str) -> Result<()> {
    let part = path.with_extension("tmp");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Pass;
    use crate::stats::{Interval, Summary};

    fn case() -> Case {
        Case {
            model: "mlp 512-512, independent heads".to_owned(),
            backbone: "mlp".to_owned(),
            pass: Pass::Window,
            batch: 8,
            frames: 60,
            threads: 2,
            device: "cpu".to_owned(),
            dtype: "f32".to_owned(),
            execution: Execution::Captured,
        }
    }

    fn row() -> LatencyRow {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        let latency_us = Summary::of(&samples).unwrap();
        let measurement =
            Measurement { latency_us, calls_per_s: 1000.0, windows: 3, steady: true, late: Some(0.0), waited: None, clock: None };
        LatencyRow {
            host: Host::detect(Some("a \"quoted\" host".to_owned())),
            case: case(),
            measurement,
            bytes: Some(5_000_000),
            gpu_mb: None,
        }
    }

    fn peer(comparison: Option<Comparison>) -> PeerRow {
        let agreement = Agreement { output: "logits".to_owned(), worst: 0.5, tolerance: 1e-4 };
        PeerRow { host: Host::detect(None), case: case(), peer: "onnxruntime 1.25.1".to_owned(), agreement, comparison }
    }

    /// Splits one CSV line as RFC 4180 says.
    fn fields(line: &str) -> Vec<String> {
        let (mut fields, mut quoted, mut chars) = (vec![String::new()], false, line.chars().peekable());
        while let Some(c) = chars.next() {
            let last = fields.last_mut().unwrap();
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => last.push(chars.next().unwrap()),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                c => last.push(c),
            }
        }
        fields
    }

    #[test]
    fn csv_has_a_cell_for_every_column() {
        let text = csv(&[row()]);
        let lines: Vec<Vec<String>> = text.lines().map(fields).collect();
        let cell = |name: &str| &lines[1][lines[0].iter().position(|c| c == name).unwrap()];
        assert_eq!(lines[0].len(), lines[1].len());
        assert_eq!(cell("Host"), "a \"quoted\" host");
        assert_eq!(cell("Model"), "mlp 512-512, independent heads");
        assert_eq!(cell("p90 latency"), "90.0");
        assert_eq!(cell("p99.9 latency"), "");
        assert_eq!(cell("Inferences/Second"), "8000");
        assert_eq!(cell("Frames/Second"), "480000");
    }

    #[test]
    fn markdown_shows_the_chosen_columns() {
        let text = markdown(&[row()]);
        let columns = LatencyRow::COLUMNS.iter().filter(|c| c.1 == Everywhere).count();
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|l| l.matches('|').count() == columns + 1), "{text}");
        assert!(text.contains("| mlp | window 60 | 8 | 2 |"), "{text}");
    }

    #[test]
    fn a_disagreement_prints_no_ratio() {
        let columns = PeerRow::COLUMNS.len();
        assert_eq!(peer(None).cells().len(), columns);
        assert!(markdown(&[peer(None)]).contains("outputs disagree (logits)"));
        let summary = Summary::of(&[1.0, 2.0]).unwrap();
        let interval = Interval { low: 1.5, high: 2.5 };
        let comparison =
            Comparison { ours_us: summary.clone(), theirs_us: summary, ratio: 2.0, ratio_ci: interval, ratio_range: interval, rounds: 11 };
        assert_eq!(peer(Some(comparison.clone())).cells().len(), columns);
        assert!(markdown(&[peer(Some(comparison))]).contains("| 2.00 | 1.50 to 2.50 | 11 |"));
    }

    /// JSON writes what is not finite as `null`.
    #[test]
    fn outputs_that_disagree_without_measure_still_do_when_read_back() {
        let row = PeerRow { agreement: Agreement { worst: f64::INFINITY, ..peer(None).agreement }, ..peer(None) };
        let back: PeerRow = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert!(!back.agreement.holds() && back.figures().iter().all(|figure| figure.value.is_nan()));
    }

    #[test]
    fn a_report_survives_the_round_trip() {
        let report = Report::new("candle-bench latency".to_owned(), "as said.".to_owned(), vec![row()]);
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("runs/2026-01-31-host");
        report.write(&target, "latency").unwrap();
        let back: Report<LatencyRow> = serde_json::from_str(&std::fs::read_to_string(target.join("latency.json")).unwrap()).unwrap();
        assert_eq!(back, report);
        let mut names: Vec<_> = std::fs::read_dir(&target).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["latency.csv", "latency.json", "latency.md"]);
    }

    #[test]
    fn an_interrupted_report_says_so_and_a_whole_one_does_not() {
        let whole = Report::new("candle-bench latency".to_owned(), "as said.".to_owned(), vec![row()]);
        let cut = Report { interrupted: true, ..whole.clone() };
        assert!(cut.markdown().contains("**Interrupted: rows are missing.** as said.") && !whole.markdown().contains("nterrupted"));
        let json = |report: &Report<LatencyRow>| serde_json::to_string(report).unwrap();
        assert!(json(&cut).contains("\"interrupted\":true") && !json(&whole).contains("interrupted"));
        assert_eq!(serde_json::from_str::<Report<LatencyRow>>(&json(&cut)).unwrap(), cut);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let report = Report::new(String::new(), String::new(), vec![row()]);
        let error = report.write(file.path(), "latency").unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
    }
}
