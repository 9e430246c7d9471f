//! What an engine has done and how long it took, counted by atomics: reading stops nobody.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two: a percentile is off by at most 1/64.
const FINE: u32 = 6;
/// Longer times, from 18 minutes on, fall into the last bucket.
const MOST: u64 = (1 << 40) - 1;

/// Durations counted in buckets: percentiles in constant memory, however many there are. Any number of threads can record.
///
/// ```
/// use candle_models::engine::Histogram;
/// use std::time::Duration;
///
/// let times = Histogram::default();
/// (1..=100).for_each(|ms| times.record(Duration::from_millis(ms)));
/// assert_eq!((times.count(), times.sum()), (100, Duration::from_millis(5050)));
/// let median = times.percentile(0.5);
/// assert!(median <= Duration::from_millis(50) && median >= Duration::from_millis(50) * 63 / 64);
/// ```
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..=bucket(MOST)).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }
}

impl Clone for Histogram {
    fn clone(&self) -> Self {
        let copy = |n: &AtomicU64| AtomicU64::new(n.load(Relaxed));
        Self { buckets: self.buckets.iter().map(copy).collect(), sum: copy(&self.sum) }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(MOST).min(MOST);
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|n| n.load(Relaxed)).sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Relaxed))
    }

    /// The average; zero without any.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Relaxed).checked_div(self.count()).unwrap_or(0))
    }

    /// The buckets that hold something, each with the longest time that falls into it, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.buckets.iter().enumerate().map(|(bucket, n)| (bucket, n.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (Duration::from_nanos(lowest(bucket + 1) - 1), count))
    }

    /// The time that a share of the counted ones (0 to 1) does not exceed, less at most 1/64; zero without any.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.buckets.iter().position(|n| {
            seen += n.load(Relaxed);
            seen >= rank
        });
        Duration::from_nanos(found.map_or(0, lowest))
    }
}

/// Values below 2^6 have a bucket each; above, the six bits behind the leading one choose it.
fn bucket(nanos: u64) -> usize {
    let shift = (63 - (nanos | 1).leading_zeros()).saturating_sub(FINE);
    ((u64::from(shift) << FINE) + (nanos >> shift)) as usize
}

fn lowest(bucket: usize) -> u64 {
    let shift = ((bucket >> FINE) as u32).saturating_sub(1);
    ((bucket as u64) - (u64::from(shift) << FINE)) << shift
}

/// What an engine has done since its start. Each number is exact; read while the engine runs, one may be a step ahead of another.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options::default())?;
/// let mut agent = engine.open()?;
/// agent.floats_mut("features")?.fill(0.1);
/// agent.indices_mut("ids")?.fill(14);
/// (0..10).try_for_each(|_| agent.step())?;
/// let stats = engine.stats();
/// assert_eq!((stats.open, stats.steps, stats.lone_steps, stats.lone.count()), (1, 10, 10, 10));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Sessions open now.
    pub open: usize,
    /// Steps made, those of lone sessions on their own threads counted.
    pub steps: u64,
    /// Steps of lone sessions on their own threads: they have no place in the batches.
    pub lone_steps: u64,
    /// Batches run.
    pub batches: u64,
    /// How many batches had `i` + 1 requests.
    pub batch_sizes: Vec<u64>,
    /// Requests refused because too many waited.
    pub overloaded: u64,
    /// Requests whose deadline was over before their batch was formed.
    pub expired: u64,
    /// Steps that were begun before their deadline and over only after it.
    pub late: u64,
    /// Requests that their sessions no longer wanted: taken out of the queue, or their answers thrown away.
    pub cancelled: u64,
    /// Requests in batches in which the model failed or panicked, lone steps counted.
    pub failed: u64,
    /// From a request to the start of its batch, by request.
    pub queue: Histogram,
    /// Running a batch, by batch.
    pub execute: Histogram,
    /// From the end of a batch until the session has its answer, by request.
    pub reply: Histogram,
    /// Running a lone session's step on its own thread.
    pub lone: Histogram,
}

/// The live side of [`Stats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub steps: AtomicU64,
    pub lone_steps: AtomicU64,
    pub batches: AtomicU64,
    pub batch_sizes: Box<[AtomicU64]>,
    pub overloaded: AtomicU64,
    pub expired: AtomicU64,
    pub late: AtomicU64,
    pub cancelled: AtomicU64,
    pub failed: AtomicU64,
    pub queue: Histogram,
    pub execute: Histogram,
    pub reply: Histogram,
    pub lone: Histogram,
}

impl Counters {
    pub fn new(max_batch: usize) -> Self {
        Self { batch_sizes: (0..max_batch).map(|_| AtomicU64::new(0)).collect(), ..Self::default() }
    }

    /// What has been counted so far.
    pub fn read(&self, open: usize) -> Stats {
        let get = |n: &AtomicU64| n.load(Relaxed);
        Stats {
            open,
            steps: get(&self.steps),
            lone_steps: get(&self.lone_steps),
            batches: get(&self.batches),
            batch_sizes: self.batch_sizes.iter().map(get).collect(),
            overloaded: get(&self.overloaded),
            expired: get(&self.expired),
            late: get(&self.late),
            cancelled: get(&self.cancelled),
            failed: get(&self.failed),
            queue: self.queue.clone(),
            execute: self.execute.clone(),
            reply: self.reply.clone(),
            lone: self.lone.clone(),
        }
    }
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_the_bucket_that_starts_at_or_below_it() {
        for value in (0..5000).chain([1 << 20, (1 << 39) + 12345, MOST - 1, MOST]) {
            let low = lowest(bucket(value));
            assert!(low <= value && value - low <= value / 64, "{value} in the bucket of {low}");
            assert_eq!(bucket(low), bucket(value));
        }
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(MOST)));
    }

    #[test]
    fn percentiles_are_those_of_the_values_whoever_records_them() {
        let times = Histogram::default();
        assert_eq!((times.percentile(0.5), times.mean()), (Duration::ZERO, Duration::ZERO));
        std::thread::scope(|scope| {
            for part in 0..4 {
                let times = &times;
                scope.spawn(move || (1..=1000).filter(|us| us % 4 == part).for_each(|us| times.record(Duration::from_micros(us))));
            }
        });
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = times.percentile(share).as_nanos() as f64 / 1000.0;
            assert!((found - us).abs() <= us / 64.0, "{share}: {found} us");
        }
        assert_eq!((times.count(), times.sum()), (1000, Duration::from_micros(500_500)));
        let mut least = Duration::ZERO;
        for (most, count) in times.buckets() {
            let inside = (1..=1000).map(Duration::from_micros).filter(|time| (least..=most).contains(time)).count() as u64;
            assert_eq!(count, inside);
            least = most + Duration::from_nanos(1);
        }
        assert_eq!(times.buckets().map(|(_, count)| count).sum::<u64>(), 1000);
        assert_eq!(times.clone().mean(), Duration::from_nanos(500_500));
    }
}
