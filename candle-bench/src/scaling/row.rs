//! A row of the table of costs that grow.

use super::law;
use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::host::Host;
use crate::report::charts::{self, Across, Panel, Sample};
use crate::stats::{PowerLaw, Summary};
use crate::table::{NOT_TIMED, Record, Shown, micros};
use Shown::{Csv, Everywhere};
use serde::{Deserialize, Serialize};

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Processes that share a training step.
    Ranks,
    /// Frames of a window.
    Frames,
    /// Rows of a streaming step.
    Batch,
    /// Agents on one thread of an engine.
    Sessions,
}

impl Axis {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Frames => "frames",
            Self::Batch => "batch",
            Self::Sessions => "sessions",
        }
    }
}

/// One place on a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// How many.
    pub x: usize,
    /// Time of a pass, a step or an answer, in microseconds.
    pub latency_us: Summary,
    /// Whether its measurement was steady.
    pub steady: bool,
    /// Rows and frames a second, of all ranks or sessions.
    pub samples_per_s: f64,
    /// Of ranks: the rate over so many times that of one.
    pub efficiency: Option<f64>,
    /// Of ranks: the share of a step that waits for the others.
    pub communication: Option<f64>,
}

/// A curve with the law that it follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What, at the largest number.
    #[serde(flatten)]
    pub case: Case,
    /// What grows.
    pub axis: Axis,
    /// Which part of the curve: `all`, `up to the window of 60`.
    pub part: String,
    /// The curve, in the order of its numbers; empty where it is not available.
    pub points: Vec<Point>,
    /// What median times follow over these points.
    pub law: Option<PowerLaw>,
    /// Why there are no points, or empty.
    pub note: String,
}

impl ScalingRow {
    /// A curve that was measured.
    pub fn new(host: &Host, case: Case, axis: Axis, part: String, points: Vec<Point>) -> Self {
        let law = law(&points);
        Self { host: host.clone(), case, axis, part, points, law, note: String::new() }
    }

    /// One that cannot be measured here, and why.
    pub fn not_available(host: &Host, case: Case, axis: Axis, reason: &str) -> Self {
        Self { note: reason.to_owned(), ..Self::new(host, case, axis, "all".to_owned(), Vec::new()) }
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { case, axis, part, note, .. } = self;
        let part = if part == "all" { String::new() } else { format!(" {part}") };
        let found = if note.is_empty() { format!("{} | {}", self.exponent(), self.curve()) } else { note.clone() };
        format!("{} {}{part}, threads {} | {found}", case.backbone, axis.name(), case.threads)
    }

    /// `x^0.98 +- 0.02`.
    fn exponent(&self) -> String {
        match &self.law {
            Some(PowerLaw { exponent, standard_error: Some(error), .. }) => format!("x^{exponent:.2} +- {error:.2}"),
            Some(PowerLaw { exponent, .. }) => format!("x^{exponent:.2}"),
            None => "no law".to_owned(),
        }
    }

    /// `1: 20.1, 2: 35.0`, microseconds by number.
    fn curve(&self) -> String {
        self.joined(|p| Some(format!("{}{}", micros(p.latency_us.p50), if p.steady { "" } else { " (not steady)" })))
    }

    fn joined(&self, cell: impl Fn(&Point) -> Option<String>) -> String {
        let cells: Vec<_> = self.points.iter().filter_map(|p| Some(format!("{}: {}", p.x, cell(p)?))).collect();
        cells.join(", ")
    }
}

impl Record for ScalingRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Everywhere),
        ("Backbone", Csv),
        ("Axis", Everywhere),
        ("Part", Everywhere),
        ("Pass", Csv),
        ("Threads", Everywhere),
        ("Dtype", Csv),
        ("Device", Csv),
        ("Smallest", Everywhere),
        ("Largest", Everywhere),
        ("Exponent", Everywhere),
        ("Standard error", Everywhere),
        ("95% of the exponent", Everywhere),
        ("Time at 1", Csv),
        ("p50 latency by number", Everywhere),
        ("Inferences/Second by number", Csv),
        ("Efficiency by number", Everywhere),
        ("Communication % by number", Everywhere),
        ("Note", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Axis", "Part", "Smallest", "Largest", "Threads", "Device", "Dtype"];

    fn cells(&self) -> Vec<String> {
        let (case, law) = (&self.case, self.law.as_ref());
        let end = |point: Option<&Point>| point.map_or_else(String::new, |p| p.x.to_string());
        vec![
            case.model.clone(),
            case.backbone.clone(),
            self.axis.name().to_owned(),
            self.part.clone(),
            case.pass_name(),
            case.threads.to_string(),
            case.dtype.clone(),
            case.device.clone(),
            end(self.points.first()),
            end(self.points.last()),
            law.map_or_else(String::new, |l| format!("{:.3}", l.exponent)),
            law.and_then(|l| l.standard_error).map_or_else(String::new, |e| format!("{e:.3}")),
            law.and_then(PowerLaw::exponent_ci).map_or_else(String::new, |ci| format!("{:.2} to {:.2}", ci.low, ci.high)),
            law.map_or_else(String::new, |l| micros(l.factor)),
            self.curve(),
            self.joined(|p| Some(format!("{:.0}", p.samples_per_s))),
            self.joined(|p| Some(format!("{:.2}", p.efficiency?))),
            self.joined(|p| Some(format!("{:.1}", 100.0 * p.communication?))),
            self.note.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let whole = rows.iter().filter(|row| row.part == "all");
        let samples = whole.flat_map(|row| {
            let sample = |point: &Point| Sample {
                chart: format!("by {}, {}", row.axis.name(), charts::threads(row.case.threads)),
                series: charts::network(&row.case),
                point: (point.x as f64, point.latency_us.p50),
            };
            row.points.iter().map(sample).collect::<Vec<_>>()
        });
        let charts = charts::lines(Across::Logarithmic, samples);
        charts::present([("Median time, µs", "Both axes are logarithmic: the slope is the exponent.", charts::Shown::Open, charts)])
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        match &self.points[..] {
            [] => NOT_TIMED.to_owned(),
            points => points.iter().map(|point| format!("{}: {} times", point.x, point.latency_us.n)).collect::<Vec<_>>().join(", "),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let steady = self.points.iter().all(|p| p.steady);
        let exponent = self.law.map_or(f64::NAN, |law| law.exponent);
        let exponent = Figure::new("exponent", "", Sense::Cost, exponent);
        let mut figures = vec![Figure { interval: self.law.and_then(|law| law.exponent_ci()), steady, ..exponent }];
        let last = self.points.last();
        figures.extend(last.map(|p| Figure { steady: p.steady, ..Figure::mean("mean latency at the largest", &p.latency_us) }));
        figures.extend(last.and_then(|p| p.efficiency).map(|e| Figure::new("efficiency at the largest", "share", Sense::Yield, e)));
        figures
    }
}
