//! Counters for Prometheus, under the names that dashboards of inference servers know.

mod machine;

use crate::fault::Kind;
use crate::model::{Model, VERSION};
use crate::server::Shared;
use crate::snapshots::Snapshots;
use crate::statistics::{REASONS, Statistics};
use candle_models::engine::{Histogram, Stats};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(crate) use machine::Machine;

type Read = fn(&Model) -> f64;

/// Names, kinds and explanations, and where the numbers of a model come from.
const METRICS: [(&str, &str, &str, Read); 13] = [
    ("nv_inference_request_success", "counter", "Requests that succeeded", |m| m.statistics.success.read().count as f64),
    ("nv_inference_count", "counter", "Rows of requests that succeeded", |m| m.statistics.rows.load(Relaxed) as f64),
    ("nv_inference_exec_count", "counter", "Batches that the engine has run", |m| m.engine.stats().batches as f64),
    ("nv_inference_request_duration_us", "counter", "Time of requests, microseconds", |m| all_us(&m.statistics)),
    ("nv_inference_queue_duration_us", "counter", "Time in the queue, microseconds", |m| us(m.statistics.queue.read().ns)),
    ("nv_inference_compute_input_duration_us", "counter", "Time to write inputs, microseconds", |m| us(m.statistics.input.read().ns)),
    ("nv_inference_compute_infer_duration_us", "counter", "Time of batches, by request, microseconds", |m| {
        us(m.statistics.infer.read().ns)
    }),
    ("nv_inference_compute_output_duration_us", "counter", "Time to write answers, microseconds", |m| us(m.statistics.output.read().ns)),
    ("nv_inference_pending_request_count", "gauge", "Requests that are being answered", |m| m.statistics.pending.load(Relaxed) as f64),
    ("nv_model_load_duration_secs", "gauge", "Time to load the model, seconds", |m| m.load.as_secs_f64()),
    ("candle_snapshots_written", "counter", "Snapshots of sequences that were written", |m| snapshots(m, |found| &found.written)),
    ("candle_snapshot_faults", "counter", "Snapshots that could not be written, read or removed", |m| snapshots(m, |found| &found.faults)),
    ("candle_sequence_requests_waiting", "gauge", "Requests that wait for their sequence's turn", |m| m.sequences.waiting() as f64),
];

fn snapshots(model: &Model, count: fn(&Snapshots) -> &AtomicU64) -> f64 {
    model.sequences.snapshots.as_ref().map_or(0.0, |snapshots| count(snapshots).load(Relaxed) as f64)
}

type Times = for<'a> fn(&'a Model, &'a Stats) -> &'a Histogram;

/// Names, explanations and sources of histograms, in seconds.
const HISTOGRAMS: [(&str, &str, Times); 4] = [
    ("candle_request_seconds", "Requests, from their headers to their answers", |model, _| &model.statistics.requests),
    ("candle_queue_seconds", "Rows that wait for their batch", |_, engine| &engine.queue),
    ("candle_execute_seconds", "Batches", |_, engine| &engine.execute),
    ("candle_reply_seconds", "Rows, from the end of their batch until the request goes on", |_, engine| &engine.reply),
];

fn us(ns: u64) -> f64 {
    (ns / 1000) as f64
}

/// Of requests that succeeded and that failed.
fn all_us(statistics: &Statistics) -> f64 {
    us(statistics.success.read().ns + statistics.fail.read().ns)
}

/// Why requests were refused: what is at fault, but for models that fail and lose states.
const REFUSED: [(Kind, &str); 12] = [
    (Kind::Input, "input"),
    (Kind::Unauthenticated, "unauthenticated"),
    (Kind::Forbidden, "forbidden"),
    (Kind::NotFound, "not_found"),
    (Kind::Method, "method"),
    (Kind::Slow, "slow"),
    (Kind::TooLarge, "too_large"),
    (Kind::Encoding, "encoding"),
    (Kind::Overloaded, "overloaded"),
    (Kind::Unsupported, "unsupported"),
    (Kind::Unavailable, "unavailable"),
    (Kind::Deadline, "deadline"),
];

/// Requests that were refused, whatever they asked for.
#[derive(Debug, Default)]
pub(crate) struct Refused([AtomicU64; REFUSED.len()]);

impl Refused {
    /// Counts one, unless a model is at fault.
    pub fn count(&self, kind: Kind) {
        if let Some(at) = REFUSED.iter().position(|(known, _)| *known == kind) {
            self.0[at].fetch_add(1, Relaxed);
        }
    }
}

/// The metrics of the server and of all models, in Prometheus' text format.
pub(crate) fn text(shared: &Shared) -> String {
    let models = &shared.repository.served();
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        // A text takes whatever is written to it.
        let _ = writeln!(text, "{arguments}");
    };
    for (name, kind, help, read) in METRICS {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        for model in models {
            line(format_args!("{name}{{model=\"{}\",version=\"{VERSION}\"}} {}", model.name, read(model)));
        }
    }
    let name = "nv_inference_request_failure";
    line(format_args!("# HELP {name} Requests that failed\n# TYPE {name} counter"));
    for model in models {
        for (reason, count) in REASONS.iter().zip(&model.statistics.failures) {
            let count = count.load(Relaxed);
            line(format_args!("{name}{{model=\"{}\",version=\"{VERSION}\",reason=\"{reason}\"}} {count}", model.name));
        }
    }
    sequences(models, &mut line);
    server(shared, &mut line);
    let engines: Vec<Stats> = models.iter().map(|model| model.engine.stats()).collect();
    for (name, help, times) in HISTOGRAMS {
        line(format_args!("# HELP {name} {help}, seconds\n# TYPE {name} histogram"));
        for (model, engine) in models.iter().zip(&engines) {
            histogram(name, &model.name, times(model, engine), &mut line);
        }
    }
    let name = "candle_batch_size";
    line(format_args!("# HELP {name} Rows of batches\n# TYPE {name} histogram"));
    for (model, engine) in models.iter().zip(&engines) {
        let sizes = || engine.batch_sizes.iter().enumerate().map(|(at, count)| (at as f64 + 1.0, *count));
        let sum = sizes().map(|(rows, count)| rows * count as f64).sum();
        buckets(name, &model.name, sizes(), (engine.batch_sizes.iter().sum(), sum), &mut line);
    }
    text
}

/// The states overlap: every sequence is open.
fn sequences(models: &[Arc<Model>], line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let name = "candle_sequences";
    line(format_args!("# HELP {name} Sequences: open, and those of them that requests wait for and whose state is in a snapshot"));
    line(format_args!("# TYPE {name} gauge"));
    for model in models {
        let counts = model.sequences.count();
        for (state, count) in [("open", counts.open), ("waiting", counts.waiting), ("snapshotted", counts.snapshotted)] {
            line(format_args!("{name}{{model=\"{}\",version=\"{VERSION}\",state=\"{state}\"}} {count}", model.name));
        }
    }
}

/// What is no model's: one that is loaded anew, or is gone, takes nothing with it.
fn server(shared: &Shared, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let name = "candle_sequences_ended_total";
    line(format_args!("# HELP {name} Sequences that have ended\n# TYPE {name} counter"));
    for (reason, count) in shared.ended.read() {
        line(format_args!("{name}{{reason=\"{reason}\"}} {count}"));
    }
    let name = "candle_rejected_total";
    line(format_args!("# HELP {name} Requests that were refused\n# TYPE {name} counter"));
    for ((_, reason), count) in REFUSED.iter().zip(&shared.refused.0) {
        line(format_args!("{name}{{reason=\"{reason}\"}} {}", count.load(Relaxed)));
    }
    let name = "candle_connections";
    line(format_args!("# HELP {name} Connections of all protocols\n# TYPE {name} gauge\n{name} {}", shared.connections()));
    for (name, kind, help, value) in shared.machine.read() {
        line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"));
    }
}

/// The upper ends of the buckets of times, an eighth of a power of two wide from a microsecond to 17 s: the same for every model and server, so that
/// histograms of several can be added up. Those of a [`Histogram`] are finer, and none of them lies across an end.
fn ends() -> impl Iterator<Item = Duration> {
    let octave = |at: u32| (1..=8u64).map(move |eighth| Duration::from_nanos((1 << at) + (eighth << (at - 3)) - 1));
    (10..34).flat_map(octave)
}

fn histogram(name: &str, model: &str, times: &Histogram, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let counted: Vec<(Duration, u64)> = times.buckets().collect();
    let all = counted.iter().map(|(_, count)| count).sum();
    let mut rest = counted.into_iter().peekable();
    let counts = ends().map(|end| {
        let within = std::iter::from_fn(|| rest.next_if(|(most, _)| *most <= end));
        (end.as_secs_f64(), within.map(|(_, count)| count).sum())
    });
    buckets(name, model, counts, (all, times.sum().as_secs_f64()), line);
}

/// A histogram of counts by the upper ends of their buckets; some may lie above the last one. Of one that has counted nothing the buckets are left out: a
/// server may have thousands of models, most of which nobody asks.
fn buckets(
    name: &str,
    model: &str,
    counts: impl Iterator<Item = (f64, u64)>,
    (all, sum): (u64, f64),
    line: &mut impl FnMut(std::fmt::Arguments<'_>),
) {
    let labels = format_args!("model=\"{model}\",version=\"{VERSION}\"");
    let mut below = 0;
    for (most, count) in counts.filter(|_| all > 0) {
        below += count;
        line(format_args!("{name}_bucket{{{labels},le=\"{most}\"}} {below}"));
    }
    line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {all}"));
    line(format_args!("{name}_sum{{{labels}}} {sum}"));
    line(format_args!("{name}_count{{{labels}}} {all}"));
}
