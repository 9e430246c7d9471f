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

    /// Writes the rows and prints them.
    pub fn report<R: Record>(&self, name: &str, method: String, rows: Vec<R>, host: &Host) -> Result<()> {
        let report = self.write(name, method, rows, host)?;
        println!("{}", report.markdown());
        eprintln!("written: {}/{name}.{{md,csv,json}}", self.directory(host).display());
        Ok(())
    }

    /// Writes the rows; in mid-run too, so that a run that is cut off leaves what it had.
    fn write<R: Record>(&self, name: &str, method: String, rows: Vec<R>, host: &Host) -> Result<Report<R>> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let machine = format!(
            "Host {}: {}, {} CPUs, {}. Commit {}, {}, {} build.",
            host.host, host.cpu, host.cpus, host.features, host.commit, host.date, host.profile
        );
        let report = Report::new(format!("candle-bench {}", arguments.join(" ")), format!("{machine} {method}"), rows);
        report.write(&self.directory(host), name)?;
        Ok(report)
    }
}

/// Characters of a line where nobody says how many fit.
const WIDTH: usize = 100;

/// Characters of a line of the terminal; of `COLUMNS` where the output goes elsewhere.
pub fn terminal_width() -> usize {
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
    console::Term::stdout().size_checked().map(|(_, columns)| columns.into()).or_else(asked).unwrap_or(WIDTH)
}

/// The rows of a run so far, written again after each.
pub struct Kept<'a, R> {
    common: &'a Common,
    host: &'a Host,
    name: &'static str,
    method: String,
    pub rows: Vec<R>,
}

impl<'a, R: Record + Clone> Kept<'a, R> {
    pub fn new(common: &'a Common, host: &'a Host, name: &'static str, method: String) -> Self {
        Self { common, host, name, method, rows: Vec::new() }
    }

    pub fn add(&mut self, row: &R) {
        self.rows.push(row.clone());
        if let Err(error) = self.common.write(self.name, self.method.clone(), self.rows.clone(), self.host) {
            eprintln!("warning: {error:#}");
        }
    }

    /// Ends the run: the rows are written and shown.
    pub fn report(self) -> Result<()> {
        self.common.report(self.name, self.method, self.rows, self.host)
    }
}
