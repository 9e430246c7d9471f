//! A figure that this project holds itself to, and its limit: a row of the suites that set what they measure against limits.

use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::host::Host;
use crate::stats::Interval;
use crate::table::{Record, Shown, number};
use serde::{Deserialize, Serialize};

/// In the place of a figure that could not be measured; the evidence says why.
const NOT_MEASURED: &str = "not measured";

/// The unit of a share of the least time that the machine allows a pass.
pub const FLOOR: &str = "of its floor";

/// The unit of a pass's speed beside that of the same pass in f32.
pub const OVER_F32: &str = "times the speed in f32";

/// One figure and its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// In words.
    pub what: String,
    /// The figure, in `unit`; not a number where it could not be measured.
    #[serde(deserialize_with = "number")]
    pub found: f64,
    /// Its 95% interval, where it comes from rounds in turn.
    #[serde(default)]
    pub found_ci: Option<Interval>,
    /// What it may be at most, or at least.
    pub limit: Limit,
    /// Unit of both.
    pub unit: String,
    /// What the figure was made from.
    pub evidence: String,
}

/// Our time over that of the fastest peer.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The ratio; not a number where no peer did the same work.
    pub found: f64,
    /// Its 95% interval.
    pub found_ci: Option<Interval>,
    /// [`Sides`], or why there are none.
    pub evidence: String,
}

/// What a ratio to a peer was made from; its text is the evidence of such a row, and is read back from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides {
    /// Our median, in microseconds.
    pub ours_us: f64,
    /// Whom with, `onnxruntime 1.25.1`.
    pub peer: String,
    /// Their median, in microseconds.
    pub theirs_us: f64,
    /// Rounds of either side.
    pub rounds: usize,
    /// Peers that it was not judged against: those that are missing, and those whose outputs disagree.
    pub without: Vec<String>,
}

impl std::fmt::Display for Sides {
    /// `74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds; without jax, tract`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ours_us, peer, theirs_us, rounds, without } = self;
        write!(f, "{ours_us:.1} us, {peer} {theirs_us:.1} us, {rounds} rounds")?;
        if without.is_empty() { Ok(()) } else { write!(f, "; without {}", without.join(", ")) }
    }
}

impl Sides {
    /// What [`Display`](std::fmt::Display) wrote; nothing for any other evidence.
    pub fn read(evidence: &str) -> Option<Self> {
        let (evidence, without) = evidence.split_once("; without ").unwrap_or((evidence, ""));
        let without = without.split(", ").filter(|peer| !peer.is_empty()).map(str::to_owned).collect();
        let (ours, rest) = evidence.split_once(" us, ")?;
        let (theirs, rounds) = rest.rsplit_once(" us, ")?;
        let (peer, theirs) = theirs.rsplit_once(' ')?;
        let rounds = rounds.strip_suffix(" rounds")?.parse().ok()?;
        Some(Self { ours_us: ours.parse().ok()?, peer: peer.to_owned(), theirs_us: theirs.parse().ok()?, rounds, without })
    }
}

/// A bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The figure is to lie at or below it.
    AtMost(f64),
    /// The figure is to lie at or above it.
    AtLeast(f64),
}

impl TargetRow {
    /// A figure without an interval.
    pub fn new(host: &Host, case: Case, what: impl Into<String>, (found, limit, unit): (f64, Limit, &str), evidence: String) -> Self {
        Self { host: host.clone(), case, what: what.into(), found, found_ci: None, limit, unit: unit.to_owned(), evidence }
    }

    /// Whether the figure keeps its limit; one that is not a number does not.
    pub fn met(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.found <= most,
            Limit::AtLeast(least) => self.found >= least,
        }
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { what, found, unit, evidence, case, .. } = self;
        let met = if self.met() { "met" } else { "NOT MET" };
        let found = if found.is_finite() { format!("{found:.3} {unit}") } else { NOT_MEASURED.to_owned() };
        format!("{what} | batch {} threads {} | {found} | {met} | {evidence}", case.batch, case.threads)
    }
}

impl Record for TargetRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("What", Shown::Everywhere),
        ("Batch", Shown::Everywhere),
        ("Threads", Shown::Everywhere),
        ("Dtype", Shown::Csv),
        ("Found", Shown::Everywhere),
        ("Limit", Shown::Everywhere),
        ("Unit", Shown::Everywhere),
        ("Met", Shown::Everywhere),
        ("From", Shown::Everywhere),
        ("Model", Shown::Csv),
        ("Device", Shown::Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["What", "Model", "Batch", "Threads", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let limit = match self.limit {
            Limit::AtMost(most) => format!("<= {most}"),
            Limit::AtLeast(least) => format!(">= {least}"),
        };
        let digits = if self.found >= 10.0 { 1 } else { 3 };
        vec![
            self.what.clone(),
            self.case.batch.to_string(),
            self.case.threads.to_string(),
            self.case.dtype.clone(),
            if self.found.is_finite() { format!("{:.digits$}", self.found) } else { NOT_MEASURED.to_owned() },
            limit,
            self.unit.clone(),
            if self.met() { "yes" } else { "no" }.to_owned(),
            self.evidence.clone(),
            self.case.model.clone(),
            self.case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        let sense = if matches!(self.limit, Limit::AtMost(_)) { Sense::Cost } else { Sense::Yield };
        let figure = Figure::new("figure", &self.unit, sense, self.found);
        vec![Figure { interval: self.found_ci, kept: Some(self.met()), ..figure }]
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        self.evidence.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Pass;
    use crate::testing;

    #[test]
    fn a_limit_is_met_at_its_value_and_never_by_what_is_not_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let case = testing::network("mlp", directory.path()).case(Pass::Step, 1, 1, 1);
        let host = Host::detect(Some("test".into()));
        let row = |found, limit| TargetRow::new(&host, case.clone(), "x", (found, limit, "us"), String::new());
        assert!(row(2.0, Limit::AtMost(2.0)).met() && !row(2.1, Limit::AtMost(2.0)).met());
        assert!(row(0.5, Limit::AtLeast(0.5)).met() && !row(0.4, Limit::AtLeast(0.5)).met());
        assert!(!row(f64::NAN, Limit::AtMost(2.0)).met() && !row(f64::NAN, Limit::AtLeast(0.0)).met());
        assert_eq!(row(1.0, Limit::AtMost(2.0)).cells().len(), TargetRow::COLUMNS.len());
        let unknown = row(f64::NAN, Limit::AtMost(2.0));
        assert!(unknown.line().contains("| not measured | NOT MET") && !unknown.line().contains("NaN"), "{}", unknown.line());
        assert_eq!(unknown.cells()[4], "not measured");
        let back: TargetRow = serde_json::from_str(&serde_json::to_string(&row(f64::NAN, Limit::AtMost(2.0))).unwrap()).unwrap();
        assert!(back.found.is_nan() && !back.met());
    }

    #[test]
    fn the_sides_of_a_ratio_are_read_back_from_its_evidence() {
        let all = Sides { ours_us: 74.8, peer: "onnxruntime 1.25.1".into(), theirs_us: 158.0, rounds: 6, without: Vec::new() };
        assert_eq!(all.to_string(), "74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds");
        let some = Sides { without: vec!["jax".into(), "tract 0.23.9 (logits by 1.0e-1)".into()], ..all.clone() };
        assert_eq!(some.to_string(), "74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds; without jax, tract 0.23.9 (logits by 1.0e-1)");
        for sides in [all, some] {
            assert_eq!(Sides::read(&sides.to_string()), Some(sides));
        }
        for other in
            ["11.2 us, bare 9.1 us, medians", "outputs disagree: logits by 1.0e-1", "", "174.3 ms, bare 173.0 ms, median of 8 rounds"]
        {
            assert_eq!(Sides::read(other), None, "{other}");
        }
    }
}
