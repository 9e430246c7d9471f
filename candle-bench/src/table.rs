//! Results as typed rows, and the same rows as Markdown, CSV and JSON.

use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::harness::Comparison;
use crate::host::Host;
use crate::report::charts::Panel;
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

    /// How often it was measured, in words.
    fn often(&self) -> String;

    /// What is told of it as soon as it is there.
    fn told(&self) -> Option<String> {
        None
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
use Shown::Everywhere;

/// The mean of our side and the ratio of the two; not a number where the sides did not do the same work.
pub(crate) fn compared_sides(comparison: Option<&Comparison>, ours: &'static str, ratio: &'static str) -> Vec<Figure> {
    match comparison {
        Some(c) => {
            vec![Figure::mean(ours, &c.ours_us), Figure { interval: Some(c.ratio_ci), ..Figure::new(ratio, "x", Sense::Rate, c.ratio) }]
        }
        None => vec![Figure::new(ours, "us", Sense::Time, f64::NAN), Figure::new(ratio, "x", Sense::Rate, f64::NAN)],
    }
}

/// How often something was measured that was not.
pub(crate) const NOT_TIMED: &str = "not timed";

/// How often two sides were measured.
pub(crate) fn rounds_in_turn(comparison: Option<&Comparison>) -> String {
    let rounds = |c: &Comparison| format!("{} rounds in turn, {} calls of ours, {} of theirs", c.rounds, c.ours_us.n, c.theirs_us.n);
    comparison.map_or_else(|| NOT_TIMED.to_owned(), rounds)
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
    use crate::harness::Measurement;
    use crate::latency::LatencyRow;
    use crate::stats::Summary;

    fn row() -> LatencyRow {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        let latency_us = Summary::of(&samples).unwrap();
        let measurement =
            Measurement { latency_us, calls_per_s: 1000.0, windows: 3, steady: true, late: Some(0.0), waited: None, clock: None };
        LatencyRow {
            host: Host::detect(Some("a \"quoted\" host".to_owned())),
            case: Case::of("mlp 512-512, independent heads", Pass::Window, [8, 60, 2], "f32"),
            measurement,
            bytes: Some(5_000_000),
            gpu_mb: None,
        }
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
