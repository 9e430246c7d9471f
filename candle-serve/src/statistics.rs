//! What a model has been asked and how long that took, counted by atomics: reading stops nobody.

use crate::fault::{Fault, Kind};
use candle_models::engine::{Histogram, Stats, Timing};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A number of events and their time together.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Timer {
    fn record(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub fn read(&self) -> Counted {
        Counted { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// A number of events and their time together, as the protocol has it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Counted {
    pub count: u64,
    pub ns: u64,
}

/// Where a request's time went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub input: Duration,
    pub output: Duration,
    /// Of the row that was answered last.
    pub step: Timing,
}

/// Why requests failed, in the words of the metric.
pub(crate) const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];
const CANCELED: usize = 1;

/// What a model has been asked.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub success: Timer,
    pub fail: Timer,
    /// Both of them.
    pub requests: Histogram,
    pub queue: Timer,
    pub input: Timer,
    pub infer: Timer,
    pub output: Timer,
    /// Rows of the requests that succeeded.
    pub rows: AtomicU64,
    /// Failed requests by the reasons above.
    pub failures: [AtomicU64; 4],
    /// Requests that are being answered now.
    pub pending: AtomicU64,
    /// When the last request began, in milliseconds since 1970.
    last: AtomicU64,
    /// Times by batch size, from 1.
    batches: Box<[BatchTimes]>,
}

/// Nanoseconds of all rows whose batch had a size.
#[derive(Debug, Default)]
struct BatchTimes {
    input: AtomicU64,
    infer: AtomicU64,
    output: AtomicU64,
}

impl Statistics {
    /// Of a model that runs up to `max_batch` rows together.
    pub fn new(max_batch: usize) -> Self {
        Self { batches: (0..max_batch).map(|_| BatchTimes::default()).collect(), ..Self::default() }
    }

    /// Counts a request that begins.
    pub fn begin(&self) -> Running<'_> {
        self.pending.fetch_add(1, Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last.store(since.as_millis() as u64, Relaxed);
        Running { statistics: self, began: Instant::now(), over: false }
    }

    fn failed(&self, reason: usize, time: Duration) {
        self.fail.record(time);
        self.requests.record(time);
        self.failures[reason].fetch_add(1, Relaxed);
    }

    /// As the protocol has them; batches are counted by the engine.
    pub fn report<'a>(&self, name: &'a str, engine: &Stats) -> Report<'a> {
        let inference_stats = InferenceStats {
            success: self.success.read(),
            fail: self.fail.read(),
            queue: self.queue.read(),
            compute_input: self.input.read(),
            compute_infer: self.infer.read(),
            compute_output: self.output.read(),
            cache_hit: Counted::default(),
            cache_miss: Counted::default(),
        };
        let sizes = engine.batch_sizes.iter().zip(&self.batches).enumerate().filter(|(_, (count, _))| **count > 0);
        let batch = |(at, (&count, times)): (usize, (&u64, &BatchTimes))| {
            let size = at as u64 + 1;
            // Rows share the time of their batch.
            let shared = |ns: &AtomicU64| Counted { count, ns: ns.load(Relaxed) / size };
            let own = |ns: &AtomicU64| Counted { count, ns: ns.load(Relaxed) };
            BatchStats {
                batch_size: size,
                compute_input: own(&times.input),
                compute_infer: shared(&times.infer),
                compute_output: own(&times.output),
            }
        };
        Report {
            name,
            version: crate::model::VERSION,
            last_inference: self.last.load(Relaxed),
            inference_count: self.rows.load(Relaxed),
            execution_count: engine.batches,
            inference_stats,
            response_stats: Empty {},
            batch_stats: sizes.map(batch).collect(),
            memory_usage: [],
        }
    }
}

/// A request that is being answered: one that is dropped before its end has been given up by its client.
pub(crate) struct Running<'a> {
    statistics: &'a Statistics,
    began: Instant,
    over: bool,
}

impl Running<'_> {
    pub fn success(mut self, rows: usize, times: &Times) {
        self.over = true;
        let statistics = self.statistics;
        let time = self.began.elapsed();
        statistics.success.record(time);
        statistics.requests.record(time);
        statistics.queue.record(times.step.queue);
        statistics.input.record(times.input);
        statistics.infer.record(times.step.execute);
        statistics.output.record(times.output);
        statistics.rows.fetch_add(rows as u64, Relaxed);
        if let Some(batch) = times.step.batch.checked_sub(1).and_then(|at| statistics.batches.get(at)) {
            batch.input.fetch_add(times.input.as_nanos() as u64, Relaxed);
            batch.infer.fetch_add(times.step.execute.as_nanos() as u64 * rows as u64, Relaxed);
            batch.output.fetch_add(times.output.as_nanos() as u64, Relaxed);
        }
    }

    pub fn fail(mut self, fault: &Fault) {
        self.over = true;
        let reason = match fault.kind {
            Kind::Overloaded | Kind::Deadline | Kind::Unavailable => 0,
            Kind::Failed | Kind::StateLost => 2,
            _ => 3,
        };
        self.statistics.failed(reason, self.began.elapsed());
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.statistics.pending.fetch_sub(1, Relaxed);
        if !self.over {
            self.statistics.failed(CANCELED, self.began.elapsed());
        }
    }
}

/// A model's statistics, as the protocol has them.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    pub name: &'a str,
    pub version: &'static str,
    pub last_inference: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference_stats: InferenceStats,
    /// Of models that answer more than once: none here.
    response_stats: Empty,
    pub batch_stats: Vec<BatchStats>,
    /// The engine does not count its memory.
    memory_usage: [(); 0],
}

#[derive(Debug, Serialize)]
struct Empty {}

#[derive(Debug, Serialize)]
pub(crate) struct InferenceStats {
    pub success: Counted,
    pub fail: Counted,
    pub queue: Counted,
    pub compute_input: Counted,
    pub compute_infer: Counted,
    pub compute_output: Counted,
    pub cache_hit: Counted,
    pub cache_miss: Counted,
}

#[derive(Debug, Serialize)]
pub(crate) struct BatchStats {
    pub batch_size: u64,
    pub compute_input: Counted,
    pub compute_infer: Counted,
    pub compute_output: Counted,
}
