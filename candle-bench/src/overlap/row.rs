//! A row of the table of overlap.

use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::host::Host;
use crate::stats::{Interval, Summary};
use crate::table::{Record, Shown, longest, micros};
use Shown::{Csv, Everywhere};
use serde::{Deserialize, Serialize};

/// A gain below this is not worth a recommendation.
const WORTH: f64 = 1.02;

/// What overlapping hides, over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hidden {
    /// The share of the shorter one that is hidden, from 0 to 1.
    pub efficiency: f64,
    /// Its 95% interval.
    pub efficiency_ci: Interval,
    /// How many times as fast both together are as one after the other.
    pub gain: f64,
    /// Its 95% interval.
    pub gain_ci: Interval,
}

/// What is recommended, from the interval of the gain alone.
pub(super) fn gain_words(hidden: &Hidden) -> String {
    let Hidden { gain, gain_ci, .. } = hidden;
    let percent = 100.0 * (gain - 1.0);
    if gain_ci.low >= WORTH {
        format!("prefetch: a step takes {:.1}% less time", 100.0 * (1.0 - 1.0 / gain))
    } else if gain_ci.high < 1.0 {
        format!("no prefetch: both together are {:.1}% slower than one after the other", 100.0 * (1.0 / gain - 1.0))
    } else {
        format!("no gain that can be told from noise ({percent:+.1}%)")
    }
}

/// Copying and computing, alone and together. Times are microseconds of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverlapRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The step.
    #[serde(flatten)]
    pub case: Case,
    /// What is hidden: `loader's thread`, `upload`.
    pub what: String,
    /// Making or copying a batch alone, over the rounds.
    pub copy_us: Summary,
    /// A step on a batch that is there, over the rounds.
    pub compute_us: Summary,
    /// Both at the same time, over the rounds.
    pub both_us: Summary,
    /// What that hides; nothing where the times refuse to say so.
    pub hidden: Option<Hidden>,
    /// What is recommended, or why nothing is.
    pub advice: String,
    /// Rounds of each of the three.
    pub rounds: usize,
    /// Batches of a round.
    pub steps: usize,
    /// What the number of processors has to do with it, or empty.
    pub note: String,
}

impl OverlapRow {
    /// What it hides, where that is worth a change.
    pub fn pays(&self) -> Option<Hidden> {
        self.hidden.filter(|hidden| hidden.gain_ci.low >= WORTH)
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { case, what, advice, .. } = self;
        let efficiency = self.hidden.map_or_else(|| "none".to_owned(), |h| format!("{:.2}", h.efficiency));
        format!(
            "{} {what} batch {} threads {} | copy {} us, compute {} us, both {} us | efficiency {efficiency} | {advice}",
            case.backbone,
            case.batch,
            case.threads,
            micros(self.copy_us.p50),
            micros(self.compute_us.p50),
            micros(self.both_us.p50)
        )
    }
}

impl Record for OverlapRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Everywhere),
        ("Backbone", Csv),
        ("What", Everywhere),
        ("Batch", Everywhere),
        ("Frames", Everywhere),
        ("Threads", Everywhere),
        ("Dtype", Csv),
        ("Device", Csv),
        ("p50 copy", Everywhere),
        ("p50 compute", Everywhere),
        ("p50 both", Everywhere),
        ("Efficiency", Everywhere),
        ("95% of the efficiency", Everywhere),
        ("Gain", Everywhere),
        ("95% of the gain", Everywhere),
        ("Advice", Everywhere),
        ("Rounds", Csv),
        ("Batches/Round", Csv),
        ("Note", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "What", "Batch", "Frames", "Threads", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let Self { case, .. } = self;
        let cell = |of: &dyn Fn(&Hidden) -> String| self.hidden.as_ref().map_or_else(String::new, of);
        vec![
            case.model.clone(),
            case.backbone.clone(),
            self.what.clone(),
            case.batch.to_string(),
            case.frames.to_string(),
            case.threads.to_string(),
            case.dtype.clone(),
            case.device.clone(),
            micros(self.copy_us.p50),
            micros(self.compute_us.p50),
            micros(self.both_us.p50),
            cell(&|h| format!("{:.2}", h.efficiency)),
            cell(&|h| format!("{:.2} to {:.2}", h.efficiency_ci.low, h.efficiency_ci.high)),
            cell(&|h| format!("{:.3}", h.gain)),
            cell(&|h| format!("{:.3} to {:.3}", h.gain_ci.low, h.gain_ci.high)),
            self.advice.clone(),
            self.rounds.to_string(),
            self.steps.to_string(),
            self.note.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        format!("{} rounds in turn of {} batches each", self.rounds, self.steps)
    }

    /// The longer of the two.
    fn bound(&self) -> Option<String> {
        longest([("copy", self.copy_us.p50), ("compute", self.compute_us.p50)])
    }

    fn figures(&self) -> Vec<Figure> {
        let of = |pick: fn(&Hidden) -> (f64, Interval)| self.hidden.as_ref().map(pick).unzip();
        let (gain, gain_ci) = of(|h| (h.gain, h.gain_ci));
        let (efficiency, efficiency_ci) = of(|h| (h.efficiency, h.efficiency_ci));
        let figure = |name, unit, sense, value: Option<f64>| Figure::new(name, unit, sense, value.unwrap_or(f64::NAN));
        vec![
            Figure::mean("mean time of both", &self.both_us),
            Figure { interval: gain_ci, ..figure("one after the other over both", "x", Sense::Rate, gain) },
            Figure { interval: efficiency_ci, ..figure("efficiency", "share", Sense::Yield, efficiency) },
        ]
    }
}
