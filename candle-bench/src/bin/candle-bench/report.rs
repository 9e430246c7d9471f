//! Where the rows of a suite go.

use crate::arguments::Common;
use anyhow::Result;
use candle_bench::host::Host;
use candle_bench::table::{Record, Report};
use candle_bench::targets::TargetRow;
use std::path::{Path, PathBuf};

/// Where the reports of a run go.
pub fn directory(out: Option<&Path>, host: &Host) -> PathBuf {
    out.map_or_else(|| PathBuf::from(format!("candle-bench/runs/{}-{}", host.date, host.host)), Path::to_owned)
}

/// Characters of a line where nobody says how many fit.
const WIDTH: usize = 100;

/// Characters of a line of the terminal; of `COLUMNS` where the output goes elsewhere.
pub fn terminal_width() -> usize {
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
    console::Term::stdout().size_checked().map(|(_, columns)| columns.into()).or_else(asked).unwrap_or(WIDTH)
}

/// The rows of a run so far, written after each: whatever ends the run leaves what it had, marked as interrupted.
pub struct Kept<R: Record + Clone> {
    directory: PathBuf,
    name: &'static str,
    report: Report<R>,
    part: bool,
}

impl<R: Record + Clone> Kept<R> {
    pub fn new(common: &Common, host: &Host, name: &'static str, method: String) -> Self {
        let command =
            common.part.clone().unwrap_or_else(|| format!("candle-bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")));
        let report = Report::new(command, format!("{host}. {method}"), Vec::new());
        let report = Report { interrupted: true, ..report };
        Self { directory: directory(common.out.as_deref(), host), name, report, part: common.part.is_some() }
    }

    pub fn add(&mut self, row: &R) {
        self.report.rows.push(row.clone());
        if let Err(error) = self.report.write(&self.directory, self.name) {
            eprintln!("warning: {error:#}");
        }
    }

    pub fn rows(&self) -> &[R] {
        &self.report.rows
    }

    fn files(&self) -> String {
        format!("{}/{}.{{md,csv,json}}", self.directory.display(), self.name)
    }

    /// Ends the run: the rows are written and shown.
    pub fn report(mut self) -> Result<()> {
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
        println!("{}", if self.part { self.report.table_text(width) } else { self.report.text(width) });
        eprintln!("written: {}", self.files());
        Ok(())
    }
}

impl Kept<TargetRow> {
    /// Adds a row and tells of it.
    pub fn tell(&mut self, row: &TargetRow) {
        self.add(row);
        eprintln!("{}", row.line());
    }
}

impl<R: Record + Clone> Drop for Kept<R> {
    fn drop(&mut self) {
        if self.report.interrupted && !self.rows().is_empty() {
            eprintln!("kept, marked as interrupted: {} rows in {}", self.rows().len(), self.files());
        }
    }
}
