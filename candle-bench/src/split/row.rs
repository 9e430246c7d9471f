//! A row of the table of training steps.

use super::TOLERANCE;
use super::steps::Split;
use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::host::Host;
use crate::report::charts::{self, Bar, Lengths, Panel};
use crate::stats::{Interval, Summary};
use crate::table::{Record, Shown, gpu_memory, longest, micros};
use Shown::{Csv, Everywhere};
use candle_models::nvml;
use serde::{Deserialize, Serialize};

/// A training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What; the batch is that of all ranks, the threads are those of one.
    #[serde(flatten)]
    pub case: Case,
    /// Ranks that share the batch.
    pub ranks: usize,
    /// What a sample is called: `frames`, `episodes`.
    pub unit: String,
    /// Samples of a step, of all ranks.
    pub samples: usize,
    /// Steps in all rounds.
    pub steps: usize,
    /// The trainer's own step, in microseconds: the mean of every round.
    pub step_us: Summary,
    /// Its parts, in microseconds: medians over the rounds of means over their steps.
    pub split: Split,
    /// Median of the rounds' ratios, all parts over the step; for one rank.
    pub parts_over_step: Option<f64>,
    /// Its 95% interval.
    pub parts_over_step_ci: Option<Interval>,
    /// Billions of operations a second: 6 for every use of a weight.
    pub gflop_per_s: f64,
    /// What the machine's own large product in the same dtype reaches.
    pub peak_gflop_per_s: Option<f64>,
    /// The share of it: model FLOP utilisation.
    pub mfu: Option<f64>,
    /// Peak of the resident set of a process that trains, in megabytes.
    pub peak_mb: Option<f64>,
    /// Memory in use on the GPU in megabytes, that of other programs counted in.
    pub gpu_mb: Option<f64>,
    /// What has to be said beside it.
    pub note: String,
}

impl TrainRow {
    /// Samples a second.
    pub fn samples_per_s(&self) -> f64 {
        1e6 * self.samples as f64 / self.step_us.p50
    }

    /// The part of the step that is in none of its parts, in microseconds; below zero where the parts exceed it.
    pub fn left_over_us(&self) -> f64 {
        self.step_us.p50 - self.split.sum()
    }

    /// Whether what is left over is at most [`TOLERANCE`] of the step.
    pub fn adds_up(&self) -> bool {
        self.left_over_us().abs() <= TOLERANCE * self.step_us.p50
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { case, unit, ranks, .. } = self;
        let share = |us: f64| 100.0 * us / self.step_us.p50;
        let parts: Vec<_> = self.split.parts().iter().map(|(name, us)| format!("{name} {:.1}%", share(*us))).collect();
        let mfu = self.mfu.map_or_else(String::new, |mfu| format!(" | MFU {:.1}%", 100.0 * mfu));
        let add = if self.adds_up() { "" } else { ", DOES NOT ADD UP" };
        format!(
            "{} batch {} threads {} ranks {ranks} {} | {:.1} ms, {:.0} {unit}/s | {}, left over {:.1}%{add}{mfu}",
            case.backbone,
            case.batch,
            case.threads,
            case.dtype,
            self.step_us.p50 / 1e3,
            self.samples_per_s(),
            parts.join(", "),
            share(self.left_over_us())
        )
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| nvml::UNKNOWN.to_owned(), |value| format!("{value:.1}"))
}

impl Record for TrainRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Everywhere),
        ("Backbone", Csv),
        ("Batch", Everywhere),
        ("Frames", Everywhere),
        ("Threads", Everywhere),
        ("Ranks", Everywhere),
        ("Dtype", Everywhere),
        ("Device", Csv),
        ("Samples/Second", Everywhere),
        ("Unit", Everywhere),
        ("p50 step", Everywhere),
        ("Avg step", Csv),
        ("Avg step low", Csv),
        ("Avg step high", Csv),
        ("Rounds", Csv),
        ("Steps", Csv),
        ("Data", Everywhere),
        ("Forward", Everywhere),
        ("Backward", Everywhere),
        ("Optimiser", Everywhere),
        ("Communication", Everywhere),
        ("Left over", Everywhere),
        ("Left over %", Everywhere),
        ("Adds up", Everywhere),
        ("Parts over step", Csv),
        ("95% of it", Csv),
        ("GFLOP/s", Everywhere),
        ("Peak GFLOP/s", Everywhere),
        ("MFU %", Everywhere),
        ("Peak MB", Everywhere),
        ("GPU MB", Csv),
        ("Note", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Batch", "Frames", "Threads", "Ranks", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let (case, step, left) = (&self.case, &self.step_us, self.left_over_us());
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            case.batch.to_string(),
            case.frames.to_string(),
            case.threads.to_string(),
            self.ranks.to_string(),
            case.dtype.clone(),
            case.device.clone(),
            format!("{:.0}", self.samples_per_s()),
            self.unit.clone(),
            micros(step.p50),
            micros(step.mean),
            micros(step.mean_ci.low),
            micros(step.mean_ci.high),
            step.n.to_string(),
            self.steps.to_string(),
        ];
        cells.extend(self.split.parts().map(|(_, us)| micros(us)));
        cells.extend([
            format!("{left:.0}"),
            format!("{:.1}", 100.0 * left / step.p50),
            if self.adds_up() { "yes" } else { "no" }.to_owned(),
            self.parts_over_step.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
            self.parts_over_step_ci.map_or_else(String::new, |ci| format!("{:.3} to {:.3}", ci.low, ci.high)),
            format!("{:.1}", self.gflop_per_s),
            optional(self.peak_gflop_per_s),
            optional(self.mfu.map(|mfu| 100.0 * mfu)),
            self.peak_mb.map_or_else(|| nvml::UNKNOWN.to_owned(), |mb| format!("{mb:.0}")),
            gpu_memory(self.gpu_mb),
            self.note.clone(),
        ]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        format!("{} steps in {} rounds", self.steps, self.step_us.n)
    }

    /// The part that takes longest.
    fn bound(&self) -> Option<String> {
        longest(self.split.parts())
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let bar = |row: &Self| {
            let Case { batch, threads, .. } = row.case;
            let ranks = if row.ranks == 1 { String::new() } else { format!(", {} ranks", row.ranks) };
            let parts = row.split.parts().into_iter().chain([("left over", row.left_over_us().max(0.0))]);
            let label = format!("batch {batch}, {}{ranks}, {}", charts::threads(threads), charts::network(&row.case));
            Bar { label, parts: parts.map(|(name, us)| (name.to_owned(), us)).collect() }
        };
        let bars = rows.iter().map(bar).collect();
        charts::stacked("Where a training step's time goes", "Shares of a step", Lengths::Shares, bars)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![Figure::mean("mean step", &self.step_us)];
        figures.extend(self.mfu.map(|mfu| Figure::new("share of the machine's own product", "share", Sense::Yield, mfu)));
        figures.extend(self.peak_mb.map(|mb| Figure::new("peak memory", "MB", Sense::Cost, mb)));
        figures
    }
}
