//! Two runs beside each other: which figures got better, which worse, and which cannot be told apart.
//!
//! Rows are matched by what identifies them. A figure has changed when its intervals do not overlap, both measurements were
//! steady and the change is larger than a threshold: an interval knows the noise within a run, not that from one run to the
//! next. What other machines, other builds or interrupted runs have to do with it is said, and counts as no regression.

mod text;

use crate::figure::{Figure, Identity, Sense};
use crate::run::{Row, Run, SuiteReport};
use crate::stats::Interval;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What became of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A time that is shorter, a rate that is higher.
    Faster,
    /// A time that is longer, a rate that is lower.
    Slower,
    /// Another figure that moved the right way.
    Better,
    /// Another figure that moved the wrong way.
    Worse,
    /// Not to be told apart.
    Unclear,
    /// Measured before, and now it could not be: outputs disagree, or the measurement failed.
    Lost,
    /// Measured now and not before.
    Found,
}

impl Verdict {
    /// Whether it is a change for the worse.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Slower | Self::Worse | Self::Lost)
    }
}

/// A number of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Value {
    /// The number, `null` where it could not be measured.
    pub value: f64,
    /// Its 95% interval.
    pub interval: Option<Interval>,
}

/// A figure in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: String,
    /// Which way is the better one.
    pub sense: Sense,
    /// In the earlier run.
    pub before: Value,
    /// In the later run.
    pub after: Value,
    /// After over before, minus one.
    pub change: f64,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it is unclear, or what else the verdict rests on, in a word or two.
    pub why: Option<&'static str>,
}

impl ComparedFigure {
    fn of(before: &Figure, after: &Figure, threshold: f64) -> Self {
        let change = after.value / before.value - 1.0;
        let lower_is_better = matches!(after.sense, Sense::Time | Sense::Cost);
        let improved = (after.value < before.value) == lower_is_better;
        let moved = match (after.sense, improved) {
            (Sense::Time | Sense::Rate, true) => Verdict::Faster,
            (Sense::Time | Sense::Rate, false) => Verdict::Slower,
            (Sense::Cost | Sense::Yield, true) => Verdict::Better,
            (Sense::Cost | Sense::Yield, false) => Verdict::Worse,
        };
        let (verdict, why) = match (before.value.is_finite(), after.value.is_finite()) {
            (true, false) => (Verdict::Lost, None),
            (false, true) => (Verdict::Found, None),
            (false, false) => (Verdict::Unclear, Some("not measured")),
            (true, true) => match (before.interval, after.interval) {
                _ if !before.steady || !after.steady => (Verdict::Unclear, Some("unsteady")),
                // Without an interval nothing is known of the noise; but a limit leaves room for it.
                (None, _) | (_, None) => match (before.kept, after.kept) {
                    (Some(a), Some(b)) if a != b => (if b { Verdict::Better } else { Verdict::Worse }, Some("limit")),
                    _ => (Verdict::Unclear, Some("no interval")),
                },
                (Some(a), Some(b)) if a.overlaps(b) => (Verdict::Unclear, Some("overlap")),
                _ if change.abs() < threshold => (Verdict::Unclear, Some("too little")),
                _ => (moved, None),
            },
        };
        let value = |f: &Figure| Value { value: f.value, interval: f.interval };
        let (name, unit, sense) = (after.name, after.unit.clone(), after.sense);
        Self { name, unit, sense, before: value(before), after: value(after), change, verdict, why }
    }
}

/// A row that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRow {
    /// What identifies it.
    pub case: Identity,
    /// In what the machines or the builds differ: `cpu`, `profile`. What changed then is no regression.
    pub elsewhere: Vec<&'static str>,
    /// Its figures.
    pub figures: Vec<ComparedFigure>,
}

impl ComparedRow {
    fn of(before: &Row, after: &Row, threshold: f64) -> Self {
        let figures = after.figures.iter().filter_map(|b| {
            let a = before.figures.iter().find(|a| a.name == b.name)?;
            Some(ComparedFigure::of(a, b, threshold))
        });
        Self { case: after.identity.clone(), elsewhere: before.host.differs(&after.host), figures: figures.collect() }
    }

    /// The figures that changed for the worse on the same machine.
    pub fn regressions(&self) -> impl Iterator<Item = &ComparedFigure> {
        self.figures.iter().filter(|figure| self.elsewhere.is_empty() && figure.verdict.is_loss())
    }
}

/// A suite that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedSuite {
    /// Its name.
    pub name: String,
    /// Command line of the earlier and the later run.
    pub commands: [String; 2],
    /// Whether the earlier and the later run ended before their last rows.
    pub interrupted: [bool; 2],
    /// Rows of both.
    pub rows: Vec<ComparedRow>,
    /// Rows of the earlier run alone.
    pub only_before: Vec<Identity>,
    /// Rows of the later run alone.
    pub only_after: Vec<Identity>,
    /// Rows that a run has more than once: which one belongs to which cannot be said, and so they are not compared.
    pub repeated: Vec<Identity>,
}

impl ComparedSuite {
    fn of(name: &str, before: &SuiteReport, after: &SuiteReport, threshold: f64) -> Self {
        let (a, b) = (before.by_identity(), after.by_identity());
        let alone = |these: &SuiteReport, others: &BTreeMap<&Identity, Vec<&Row>>| {
            let mut seen = BTreeSet::new();
            let rows = these.rows.iter().map(|row| &row.identity);
            rows.filter(|identity| !others.contains_key(identity) && seen.insert(*identity)).cloned().collect()
        };
        let (mut rows, mut repeated) = (Vec::new(), Vec::new());
        for row in &after.rows {
            match (a.get(&row.identity).map(Vec::as_slice), b.get(&row.identity).map(Vec::as_slice)) {
                (Some([before]), Some([after])) => rows.push(ComparedRow::of(before, after, threshold)),
                (Some(_), Some(_)) if !repeated.contains(&row.identity) => repeated.push(row.identity.clone()),
                _ => {}
            }
        }
        Self {
            name: name.to_owned(),
            commands: [before, after].map(|suite| suite.command.clone()),
            interrupted: [before, after].map(|suite| suite.interrupted),
            rows,
            only_before: alone(before, &b),
            only_after: alone(after, &a),
            repeated,
        }
    }
}

/// Two runs beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Directories of the earlier and the later run.
    pub directories: [PathBuf; 2],
    /// Relative change below which a figure is unclear.
    pub threshold: f64,
    /// Suites of both.
    pub suites: Vec<ComparedSuite>,
    /// Suites of the earlier run alone.
    pub only_before: Vec<String>,
    /// Suites of the later run alone.
    pub only_after: Vec<String>,
    /// Reports that this version has no suite for, left out.
    pub unknown: Vec<String>,
    /// Figures that changed for the worse, on the same machine and in the same kind of build.
    pub regressions: usize,
}

/// Compares every suite that both runs have.
///
/// # Errors
/// A threshold that is not a share, and two runs without a row in common.
pub fn compare(before: &Run, after: &Run, threshold: f64) -> Result<Compared> {
    ensure!((0.0..1.0).contains(&threshold), "threshold: {} is not from 0 up to 100 percent", 100.0 * threshold);
    let both = before.suites.iter().filter_map(|(name, a)| Some((name, a, after.suites.get(name)?)));
    let suites: Vec<_> = both.map(|(name, a, b)| ComparedSuite::of(name, a, b, threshold)).collect();
    let directories = [before, after].map(|run| run.directory.clone());
    let [a, b] = directories.each_ref().map(|d| d.display());
    ensure!(suites.iter().any(|suite| !suite.rows.is_empty()), "{a} and {b}: no row is in both");
    let alone = |these: &Run, others: &Run| these.suites.keys().filter(|name| !others.suites.contains_key(*name)).cloned().collect();
    let unknown = before.unknown.iter().chain(&after.unknown).collect::<BTreeSet<_>>().into_iter().cloned().collect();
    let regressions = suites.iter().flat_map(|suite| &suite.rows).map(|row| row.regressions().count()).sum();
    Ok(Compared {
        only_before: alone(before, after),
        only_after: alone(after, before),
        directories,
        threshold,
        suites,
        unknown,
        regressions,
    })
}

#[cfg(test)]
mod tests;
