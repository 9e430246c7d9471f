//! Where the rows of a suite go.

use crate::arguments::Common;
use anyhow::Result;
use candle_bench::host::Host;
use candle_bench::table::{Record, Report};
use std::path::PathBuf;

impl Common {
    fn directory(&self, host: &Host) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from(format!("candle-bench/runs/{}-{}", host.date, host.host)))
    }
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
}

impl<R: Record + Clone> Kept<R> {
    pub fn new(common: &Common, host: &Host, name: &'static str, method: String) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let machine = format!(
            "Host {}: {}, {} CPUs, {}. Commit {}, {}, {} build.",
            host.host, host.cpu, host.cpus, host.features, host.commit, host.date, host.profile
        );
        let report = Report::new(format!("candle-bench {}", arguments.join(" ")), format!("{machine} {method}"), Vec::new());
        Self { directory: common.directory(host), name, report: Report { interrupted: true, ..report } }
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
        println!("{}", self.report.markdown());
        eprintln!("written: {}", self.files());
        Ok(())
    }
}

impl<R: Record + Clone> Drop for Kept<R> {
    fn drop(&mut self) {
        if self.report.interrupted && !self.rows().is_empty() {
            eprintln!("kept, marked as interrupted: {} rows in {}", self.rows().len(), self.files());
        }
    }
}
