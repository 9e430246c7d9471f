//! A row of the table of memory with and without a pool.

use super::child::{Counted, PAGE_BYTES};
use crate::case::Case;
use crate::figure::{Figure, Sense};
use crate::formulas::reuse_share;
use crate::harness::Comparison;
use crate::host::Host;
use crate::table::{Record, Shown, compared_sides, micros, rounds_in_turn};
use Shown::{Csv, Everywhere};
use serde::{Deserialize, Serialize};

/// What one allocator was asked for and what it asked the system for, a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// `system`, `mimalloc`.
    pub allocator: String,
    /// Calls that were counted.
    pub calls: usize,
    /// Requests for memory, a call.
    pub requests: f64,
    /// Kilobytes of them, a call.
    pub kilobytes: f64,
    /// Minor page faults, a call.
    pub faults: f64,
    /// The share of the bytes that no page fault had to bring; none where nothing was asked for.
    pub reused: Option<f64>,
    /// Growth of the address space over all counted calls, in megabytes.
    pub mapped_mb: f64,
    /// Peak of the process's resident set, in megabytes.
    pub peak_mb: f64,
}

impl Side {
    /// Of all rounds together.
    pub fn of(allocator: &str, rounds: &[Counted]) -> Self {
        let sum = |of: fn(&Counted) -> usize| rounds.iter().map(of).sum::<usize>();
        let (calls, requests, bytes) = (sum(|r| r.round.latencies_us.len()), sum(|r| r.requests), sum(|r| r.bytes));
        let faults = sum(|r| r.faults);
        let each = |total: usize| total as f64 / calls.max(1) as f64;
        Self {
            allocator: allocator.to_owned(),
            calls,
            requests: each(requests),
            kilobytes: each(bytes) / 1e3,
            faults: each(faults),
            reused: (bytes > 0).then(|| reuse_share(bytes, faults * PAGE_BYTES)),
            mapped_mb: rounds.iter().map(|r| r.mapped_bytes).sum::<i64>() as f64 / 1e6,
            peak_mb: rounds.iter().map(|r| r.peak_kilobytes).max().unwrap_or(0) as f64 * 1024.0 / 1e6,
        }
    }
}

/// One kind of work with the system's allocator and with the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// Its sizes.
    #[serde(flatten)]
    pub case: Case,
    /// What is done, in words.
    pub workload: String,
    /// Pool off: the system's allocator.
    pub without: Side,
    /// Pool on: mimalloc.
    pub with: Side,
    /// How long: ours is with the pool, theirs without.
    pub comparison: Comparison,
}

impl MemoryRow {
    /// What the pool does to the time, in words: `1.20 times faster`, `10.7 times slower`.
    pub fn verdict(&self) -> String {
        let words = self.comparison.in_words();
        match self.without.requests + self.with.requests > 0.0 {
            true => words,
            // A pool that is asked for nothing does nothing: what differs is where the process's memory lies, or noise.
            false => format!("asked for nothing; {words}"),
        }
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { case, workload, without, with, comparison, .. } = self;
        format!(
            "{} {workload} batch {} | {:.0} requests, {:.0} KB a call | page faults {:.1} to {:.1} | {} to {} us: with the pool {}",
            case.backbone,
            case.batch,
            with.requests,
            with.kilobytes,
            without.faults,
            with.faults,
            micros(comparison.theirs_us.p50),
            micros(comparison.ours_us.p50),
            self.verdict()
        )
    }
}

impl Record for MemoryRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Everywhere),
        ("Backbone", Csv),
        ("Work", Everywhere),
        ("Batch", Everywhere),
        ("Frames", Everywhere),
        ("Threads", Csv),
        ("Dtype", Everywhere),
        ("Device", Csv),
        ("Requests/Call", Everywhere),
        ("KB/Call", Everywhere),
        ("Faults/Call off", Everywhere),
        ("Faults/Call on", Everywhere),
        ("Reused % off", Everywhere),
        ("Reused % on", Everywhere),
        ("Mapped MB off", Csv),
        ("Mapped MB on", Csv),
        ("Peak MB off", Everywhere),
        ("Peak MB on", Everywhere),
        ("p50 latency off", Everywhere),
        ("p50 latency on", Everywhere),
        ("Ratio", Everywhere),
        ("Ratio low", Csv),
        ("Ratio high", Csv),
        ("95% of the ratio", Everywhere),
        ("With the pool", Everywhere),
        ("Calls off", Csv),
        ("Calls on", Csv),
        ("Rounds", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Work", "Batch", "Frames", "Threads", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let Self { case, workload, without, with, comparison: c, .. } = self;
        let both = |of: fn(&Side) -> String| [of(without), of(with)];
        let reused = |side: &Side| side.reused.map_or_else(String::new, |share| format!("{:.1}", 100.0 * share));
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            workload.clone(),
            case.batch.to_string(),
            case.frames.to_string(),
            case.threads.to_string(),
            case.dtype.clone(),
            case.device.clone(),
            format!("{:.1}", with.requests),
            format!("{:.1}", with.kilobytes),
        ];
        cells.extend(both(|side| format!("{:.2}", side.faults)));
        cells.extend(both(reused));
        cells.extend(both(|side| format!("{:.1}", side.mapped_mb)));
        cells.extend(both(|side| format!("{:.1}", side.peak_mb)));
        cells.extend([
            micros(c.theirs_us.p50),
            micros(c.ours_us.p50),
            format!("{:.2}", c.ratio),
            format!("{:.2}", c.ratio_ci.low),
            format!("{:.2}", c.ratio_ci.high),
            format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high),
            self.verdict(),
            without.calls.to_string(),
            with.calls.to_string(),
            c.rounds.to_string(),
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
        format!("{}; counted over {} calls of each", rounds_in_turn(Some(&self.comparison)), self.with.calls)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = compared_sides(Some(&self.comparison), "mean latency with the pool", "time without over with the pool");
        figures.push(Figure::new("requests", "a call", Sense::Cost, self.with.requests));
        figures.push(Figure::new("peak memory with the pool", "MB", Sense::Cost, self.with.peak_mb));
        figures
    }
}
