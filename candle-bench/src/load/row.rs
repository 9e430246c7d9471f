//! What one load showed: its figures, its line in the table, its charts.

use super::agent::{Log, Sample};
use crate::case::Case;
use crate::figure::Figure;
use crate::harness::FRAME;
use crate::host::Host;
use crate::lateness::{Lateness, Service};
use crate::load::Arrivals;
use crate::report::charts::{self, Across, Bar, Chart, Content, Lengths, Panel, entry, lines, network, threads};
use crate::stats::{Summary, percentile, sorted};
use crate::table::{Record, Shown, longest, micros, optional};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Names of the stages of a latency.
pub const STAGES: [&str; 4] = ["wake", "queue", "execute", "reply"];

/// What one load showed. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The network; its batch is the number of sessions.
    #[serde(flatten)]
    pub case: Case,
    /// When agents asked.
    pub arrivals: Arrivals,
    /// Whether processors that had nothing to do were kept awake.
    #[serde(default)]
    pub awake: bool,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Answers a second.
    pub answers_per_s: f64,
    /// Requests of a batch on average.
    pub mean_batch: f64,
    /// From the moment a request was due to its answer.
    #[serde(flatten)]
    pub latency_us: Summary,
    /// Where that went: how late the agent woke up, its wait in the queue, its batch, the way back.
    pub stages: [Stage; 4],
    /// The latency less the machine's part of it: what the times in which a thread that only sleeps was due and did not run would have
    /// added to it behind an engine without a fault ([`Lateness::delays`]). Reports from before there was this figure have none.
    #[serde(default)]
    pub own_us: Option<Summary>,
    /// The longest that such a thread was kept waiting.
    pub pause_us: f64,
    /// Requests without an answer within a frame.
    pub missed: usize,
    /// Those of them that would have missed it without the machine's part.
    #[serde(default)]
    pub own_missed: Option<usize>,
    /// Requests refused because too many waited.
    pub overloaded: usize,
}

impl Record for LoadRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Shown::Csv),
        ("Backbone", Shown::Everywhere),
        ("Dtype", Shown::Everywhere),
        ("Arrivals", Shown::Everywhere),
        ("Sessions", Shown::Everywhere),
        ("Threads", Shown::Everywhere),
        ("Inferences/Second", Shown::Everywhere),
        ("Mean batch", Shown::Everywhere),
        ("p50 latency", Shown::Everywhere),
        ("p99 latency", Shown::Everywhere),
        ("p99.9 latency", Shown::Everywhere),
        ("Max latency", Shown::Everywhere),
        ("Wake p50/p99", Shown::Everywhere),
        ("Queue p50/p99", Shown::Everywhere),
        ("Execute p50/p99", Shown::Everywhere),
        ("Reply p50/p99", Shown::Everywhere),
        ("p99 less machine", Shown::Everywhere),
        ("p99.9 less machine", Shown::Everywhere),
        ("Longest pause", Shown::Everywhere),
        ("Missed", Shown::Everywhere),
        ("Missed less machine", Shown::Everywhere),
        ("Overloaded", Shown::Csv),
        ("Requests", Shown::Everywhere),
        ("Seconds", Shown::Csv),
        ("Awake", Shown::Csv),
        ("Device", Shown::Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Dtype", "Arrivals", "Sessions", "Threads", "Awake", "Device"];

    fn cells(&self) -> Vec<String> {
        let (case, latency) = (&self.case, &self.latency_us);
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            case.dtype.clone(),
            self.arrivals.name().to_owned(),
            case.batch.to_string(),
            case.threads.to_string(),
            format!("{:.0}", self.answers_per_s),
            format!("{:.1}", self.mean_batch),
            micros(latency.p50),
            optional(latency.p99),
            optional(latency.p99_9),
            micros(latency.max),
        ];
        cells.extend(self.stages.iter().map(|s| format!("{} / {}", micros(s.p50), micros(s.p99))));
        cells.extend([
            optional(self.own_us.as_ref().and_then(|own| own.p99)),
            optional(self.own_us.as_ref().and_then(|own| own.p99_9)),
            micros(self.pause_us),
            self.missed.to_string(),
            self.own_missed.map(|missed| missed.to_string()).unwrap_or_default(),
            self.overloaded.to_string(),
            latency.n.to_string(),
            format!("{}", self.seconds),
        ]);
        cells.push(if self.awake { "yes" } else { "" }.to_owned());
        cells.push(case.device.clone());
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::mean("mean latency", &self.latency_us)]
    }

    fn told(&self) -> Option<String> {
        let Case { backbone, batch, threads, .. } = &self.case;
        Some(format!(
            "{backbone} {:?} {batch} sessions, {threads} threads | p50 {:.1} us, {:.0} answers a second, {} missed",
            self.arrivals, self.latency_us.p50, self.answers_per_s, self.missed
        ))
    }

    fn often(&self) -> String {
        format!("{} answers in {} s", self.latency_us.n, self.seconds)
    }

    /// The stage that takes longest, by medians.
    fn bound(&self) -> Option<String> {
        longest(STAGES.into_iter().zip(self.stages.iter().map(|stage| stage.p50)))
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let title = |row: &Self| format!("{}, {}, {}", row.arrivals.name(), network(&row.case), threads(row.case.threads));
        let samples = rows.iter().flat_map(|row| {
            let latency = &row.latency_us;
            let shown = [("p50", Some(latency.p50)), ("p99", latency.p99), ("p99.9", latency.p99_9), ("max", Some(latency.max))];
            shown.into_iter().map(move |(name, us)| {
                // What was not measured keeps the place, and so the colour, of its line.
                let point = (row.case.batch as f64, us.unwrap_or(f64::NAN));
                charts::Sample { chart: title(row), series: name.to_owned(), point }
            })
        });
        let mut bars: Vec<(String, Vec<Bar>)> = Vec::new();
        for row in rows {
            let parts = STAGES.iter().zip(&row.stages).map(|(name, stage)| ((*name).to_owned(), stage.p50));
            let sessions = row.case.batch;
            let label = if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") };
            entry(&mut bars, &title(row)).push(Bar { label, parts: parts.collect() });
        }
        let stages = bars.into_iter().map(|(title, bars)| Chart { title, content: Content::Bars(Lengths::Shares, bars) }).collect();
        charts::present([
            ("Latency, µs, by sessions", "Both axes are logarithmic.", charts::Shown::Open, lines(Across::Logarithmic, samples)),
            (
                "Where the latency goes",
                "Medians of the stages; beside each bar is their sum, which is not the median of the latency.",
                charts::Shown::Open,
                stages,
            ),
        ])
    }
}

/// A part of the latency, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Median.
    pub p50: f64,
    /// 99th percentile, the largest where there are fewer than a hundred.
    pub p99: f64,
}

/// Sums up what the agents saw. `most` is the largest batch of the engine, `mean_batch` what it ran on average.
pub(super) fn row(
    host: &Host,
    case: Case,
    (arrivals, awake, seconds): (Arrivals, bool, f64),
    (mean_batch, most): (f64, usize),
    lateness: &Lateness,
    records: &[Log],
) -> Result<LoadRow> {
    let mut asked: Vec<Sample> = records.iter().flat_map(|log| log.samples.iter().copied()).collect();
    asked.sort_by_key(|sample| sample.due);
    let answers = || asked.iter().filter_map(|sample| sample.answer);
    let service = Service::of(answers().map(|answer| (answer.batch as usize, answer.execute())), most, FRAME);
    let due: Vec<_> = asked.iter().map(|sample| sample.due).collect();
    let total: Vec<Duration> = asked.iter().map(|sample| sample.total).collect();
    let machine = lateness.delays(&due, &service);
    let own: Vec<Duration> = total.iter().zip(&machine).map(|(total, machine)| total.saturating_sub(*machine)).collect();
    let summary = |times: &[Duration]| {
        let answered = times.iter().zip(&asked).filter(|(_, sample)| sample.answer.is_some());
        Summary::of(&answered.map(|(time, _)| micros_of(*time)).collect::<Vec<_>>()).context("no request was answered")
    };
    let stage = |i: usize| {
        let sorted = sorted(&answers().map(|answer| f64::from(answer.parts_us[i])).collect::<Vec<_>>());
        let most = sorted.last().copied().unwrap_or(0.0);
        Stage { p50: percentile(&sorted, 0.5).unwrap_or(most), p99: percentile(&sorted, 0.99).unwrap_or(most) }
    };
    let missed = |times: &[Duration]| times.iter().filter(|time| **time > FRAME).count();
    Ok(LoadRow {
        host: host.clone(),
        case,
        arrivals,
        awake,
        seconds,
        answers_per_s: answers().count() as f64 / seconds,
        mean_batch,
        latency_us: summary(&total)?,
        stages: [0, 1, 2, 3].map(stage),
        own_us: Some(summary(&own)?),
        pause_us: micros_of(lateness.longest()),
        missed: missed(&total),
        own_missed: Some(missed(&own)),
        overloaded: records.iter().map(|log| log.overloaded).sum(),
    })
}

fn micros_of(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Pass;
    use crate::load::agent::Answer;
    use crate::testing;
    use std::time::Instant;

    #[test]
    fn stages_and_latency_are_those_of_all_answers() {
        let directory = tempfile::tempdir().unwrap();
        let case = testing::network("mlp", directory.path()).case(Pass::Step, 2, 1, 1);
        // Two agents; wake, queue, execute and reply of each answer. The first gave up three requests.
        let due = Instant::now();
        let log = |us: u16, given_up| {
            let answer = |us: u16| {
                let parts_us = [1, 2, 4, 8].map(|share| f32::from(share * us));
                Sample { due, total: Duration::from_micros(15 * u64::from(us)), answer: Some(Answer { parts_us, batch: 1 }) }
            };
            let late = std::iter::repeat_n(Sample { due, total: Duration::from_millis(17), answer: None }, given_up);
            Log { samples: (us..us + 50).map(answer).chain(late).collect(), overloaded: 1 }
        };
        let machine = Lateness::default();
        let row = row(&Host::detect(None), case, (Arrivals::Ticks, false, 2.0), (1.5, 2), &machine, &[log(1, 3), log(51, 0)]).unwrap();
        assert_eq!((row.latency_us.n, row.answers_per_s, row.missed, row.own_missed, row.overloaded), (100, 50.0, 3, Some(3), 2));
        let close = |found: f64, want: f64| assert!((found - want).abs() < 1e-6, "{found} and {want}");
        for (stage, part) in row.stages.iter().zip([1.0, 2.0, 4.0, 8.0]) {
            close(stage.p50, 50.0 * part);
            close(stage.p99, 99.0 * part);
        }
        for (found, want) in [(row.latency_us.p50, 757.5), (row.latency_us.max, 1500.0), (row.pause_us, 0.0)] {
            close(found, want);
        }
        // Without pauses of the machine everything is the engine's own.
        assert_eq!(row.own_us, Some(row.latency_us));
    }
}
