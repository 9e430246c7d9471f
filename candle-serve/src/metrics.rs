//! Counters for Prometheus, under the names that dashboards of inference servers know.

use crate::model::{Model, VERSION};
use crate::snapshots::Snapshots;
use crate::statistics::{REASONS, Statistics};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Read = fn(&Model) -> f64;

/// Names, kinds and explanations, and where the numbers of a model come from.
const METRICS: [(&str, &str, &str, Read); 14] = [
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
    ("candle_sequences", "gauge", "Sequences that are open", |m| m.sequences.len() as f64),
    ("candle_snapshots_written", "counter", "Snapshots of sequences that were written", |m| snapshots(m, |found| &found.written)),
    ("candle_snapshot_faults", "counter", "Snapshots that could not be written, read or removed", |m| snapshots(m, |found| &found.faults)),
    ("candle_sequence_requests_waiting", "gauge", "Requests that wait for their sequence's turn", |m| m.sequences.waiting() as f64),
];

fn snapshots(model: &Model, count: fn(&Snapshots) -> &AtomicU64) -> f64 {
    model.sequences.snapshots.as_ref().map_or(0.0, |snapshots| count(snapshots).load(Relaxed) as f64)
}

fn us(ns: u64) -> f64 {
    (ns / 1000) as f64
}

/// Of requests that succeeded and that failed.
fn all_us(statistics: &Statistics) -> f64 {
    us(statistics.success.read().ns + statistics.fail.read().ns)
}

/// The metrics of all models, in Prometheus' text format.
pub(crate) fn text(models: &[Arc<Model>]) -> String {
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
    text
}
