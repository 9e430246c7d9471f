//! How a timing is taken: warm up, measure windows until they agree, compare by interleaving.

use crate::formulas::{speed_in_words, speed_ratio};
use crate::host;
use crate::interrupt::Interrupt;
use crate::stats::{self, Interval, Summary};
use anyhow::{Result, ensure};
use candle_core::Device;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A game's frame: an answer that takes longer comes too late.
pub const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 60);
/// Candle walks and drops the graph of an unroll by recursion. Reserved, not resident.
const STACK_BYTES: usize = 1 << 30;
/// A share of the time that threads waited for a processor from which a measurement says more of other programs than of its subject.
const WAITED: f64 = 0.1;
/// A change of the processor's clock within a measurement that makes its windows those of two machines.
const CLOCK: f64 = 0.05;

/// Something whose calls are timed. One call does all the work of one answer and ends when the answer is there.
pub trait Subject {
    /// One call.
    fn run(&mut self) -> Result<()>;
}

impl<S: Subject + ?Sized> Subject for Box<S> {
    fn run(&mut self) -> Result<()> {
        (**self).run()
    }
}

/// The timings of consecutive calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Round {
    /// Of each call, in microseconds.
    pub latencies_us: Vec<f64>,
    /// From before the first call to after the last, in seconds.
    pub seconds: f64,
}

/// A source of rounds: a subject in this process, a peer in another, or made-up numbers in a test.
pub trait Rounds {
    /// Times `calls` consecutive calls.
    fn round(&mut self, calls: usize) -> Result<Round>;
}

/// Times a [`Subject`] in this process with the monotonic clock.
pub struct Timed<S>(pub S);

impl<S: Subject> Rounds for Timed<S> {
    fn round(&mut self, calls: usize) -> Result<Round> {
        let mut latencies_us = Vec::with_capacity(calls);
        let seconds = time(&mut self.0, calls, &mut latencies_us)?;
        Ok(Round { latencies_us, seconds })
    }
}

/// Times calls into a list with room for them, which asks for no memory then; the seconds from before the first to after the last.
pub(crate) fn time(subject: &mut (impl Subject + ?Sized), calls: usize, latencies_us: &mut Vec<f64>) -> Result<f64> {
    let start = Instant::now();
    let mut last = start;
    // One clock reading a call: the end of a call is the start of the next.
    for _ in 0..calls {
        subject.run()?;
        let now = Instant::now();
        latencies_us.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    Ok((last - start).as_secs_f64())
}

/// Threads for calls that share their work through rayon, with stacks for Candle's recursions.
pub fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    Ok(Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES).build()?))
}

/// Whole rounds on a thread of a pool: a call does not wait for another thread to take it.
pub struct InPool<R> {
    /// The threads.
    pub pool: Arc<ThreadPool>,
    /// Whose rounds.
    pub subject: R,
}

impl<R: Rounds + Send> Rounds for InPool<R> {
    fn round(&mut self, calls: usize) -> Result<Round> {
        let subject = &mut self.subject;
        self.pool.install(|| subject.round(calls))
    }
}

/// Operations that a device queues up: so many are put on it before the last is waited for, and a timing is that of one.
pub(crate) struct OnDevice<F> {
    /// Puts one on the device.
    pub operation: F,
    /// How many wait together.
    pub calls: usize,
    /// Where.
    pub device: Device,
}

impl<T, E: Into<anyhow::Error>, F: FnMut() -> Result<T, E>> Subject for OnDevice<F> {
    fn run(&mut self) -> Result<()> {
        for _ in 0..self.calls {
            (self.operation)().map_err(Into::into)?;
        }
        Ok(self.device.synchronize()?)
    }
}

impl<T, E: Into<anyhow::Error>, F: FnMut() -> Result<T, E>> Rounds for OnDevice<F> {
    fn round(&mut self, calls: usize) -> Result<Round> {
        let mut latencies_us = Vec::with_capacity(calls);
        let seconds = time(self, calls, &mut latencies_us)?;
        latencies_us.iter_mut().for_each(|us| *us /= self.calls as f64);
        Ok(Round { latencies_us, seconds })
    }
}

/// Lengths and limits of a measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Least time spent before anything counts, in seconds.
    #[arg(long = "warm-up", value_name = "SECONDS", default_value_t = Self::default().warm_up_s)]
    pub warm_up_s: f64,
    /// Length of a window, or of one side's round in a comparison, in seconds; at least one call.
    #[arg(long = "window-length", value_name = "SECONDS", default_value_t = Self::default().window_s)]
    pub window_s: f64,
    /// Windows after which an unsteady measurement is given up and reported as such; at least 3.
    #[arg(long, value_name = "N", default_value_t = Self::default().max_windows)]
    pub max_windows: usize,
    /// Largest relative difference, in throughput and in median latency, among three windows that agree.
    #[arg(long, value_name = "SHARE", default_value_t = Self::default().tolerance)]
    pub tolerance: f64,
    /// Rounds of each side in a comparison; even, so that each side goes first equally often.
    #[arg(long, value_name = "N", default_value_t = Self::default().rounds)]
    pub rounds: usize,
    /// Time after which a comparison of slow calls ends, in seconds, but not before four rounds.
    #[arg(long = "limit", value_name = "SECONDS", default_value_t = Self::default().limit_s)]
    pub limit_s: f64,
    /// Ends a measurement between two windows or rounds, with an error.
    #[arg(skip)]
    pub interrupt: Interrupt,
}

impl Default for Settings {
    fn default() -> Self {
        Self { warm_up_s: 0.3, window_s: 0.5, max_windows: 10, tolerance: 0.1, rounds: 12, limit_s: 60.0, interrupt: Interrupt::default() }
    }
}

impl Settings {
    /// Names the field at fault.
    pub fn validate(&self) -> Result<()> {
        ensure!(self.warm_up_s.is_finite() && self.warm_up_s >= 0.0, "warm-up: {} s is not a time", self.warm_up_s);
        ensure!(self.window_s.is_finite() && self.window_s > 0.0, "window: {} s is not a length", self.window_s);
        ensure!(self.max_windows >= STEADY, "windows: at least {STEADY} are needed to agree, found {}", self.max_windows);
        ensure!(self.tolerance > 0.0 && self.tolerance < 1.0, "tolerance: {} is not between 0 and 1", self.tolerance);
        ensure!(self.limit_s >= 0.0, "limit: {} s is not a time", self.limit_s);
        ensure!(
            self.rounds >= LEAST_ROUNDS && self.rounds.is_multiple_of(2),
            "rounds: an even number from {LEAST_ROUNDS} up is needed, found {}",
            self.rounds
        );
        Ok(())
    }

    /// The method of [`compare`] in words, for the report.
    pub fn describe_comparison(&self) -> String {
        format!(
            "Same weights and inputs on both sides, outputs compared before timing. Warm-up {} s each, then {} rounds of {} s of either side in turn, the first \
             mover changing, at least {LEAST_ROUNDS} and no more after {} s. A round's ratio is their median latency over ours; printed is the median ratio with its 95% \
             bootstrap interval: above one, ours is faster. The peer makes up to three uncounted calls at the start of a round.",
            self.warm_up_s, self.rounds, self.window_s, self.limit_s
        )
    }

    /// The method of [`measure`] in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "Closed loop, one request in flight, monotonic clock read once a call. Warm-up {} s, then windows of {} s until the last {STEADY} agree within {:.0}% \
             in throughput and median latency, at most {}; the numbers are those of the last {STEADY} windows together. Steady: they agreed, threads of this \
             process waited for a processor for no more than {:.0}% of the time, and its clock, which a chain of dependent multiplications shows before and \
             after each window, changed by no more than {:.0}%. Percentiles are nearest-rank and left empty \
             where no sample lies beyond; the interval of the mean is a 95% block bootstrap. Late: calls that took longer than a frame of 16.67 ms.",
            self.warm_up_s,
            self.window_s,
            100.0 * self.tolerance,
            self.max_windows,
            100.0 * WAITED,
            100.0 * CLOCK,
        )
    }
}

/// Rounds of each side that a comparison has at least.
const LEAST_ROUNDS: usize = 4;
/// How many windows in a row have to agree.
const STEADY: usize = 3;
/// Calls in one window at most: keeps the samples of a sub-microsecond call in a few megabytes.
const MAX_CALLS: usize = 200_000;

/// One subject, measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Latency of a call in microseconds, over the last three windows.
    pub latency_us: Summary,
    /// Calls a second over the same windows.
    pub calls_per_s: f64,
    /// Windows measured.
    pub windows: usize,
    /// Whether the last three agreed, threads of this process did not wait long for a processor meanwhile, and its clock stayed.
    pub steady: bool,
    /// Share of the calls that took longer than a [`FRAME`].
    #[serde(default)]
    pub late: Option<f64>,
    /// How long threads of this process waited for a processor that others had, over the time of the windows; where the system says.
    #[serde(default)]
    pub waited: Option<f64>,
    /// By how much the processor's clock changed over the windows, as a share of the lowest.
    #[serde(default)]
    pub clock: Option<f64>,
}

impl Measurement {
    /// How often it was measured, and what disturbed it.
    pub fn often(&self) -> String {
        let above = |share: Option<f64>, limit| share.filter(|share| *share > limit).map(|share| 100.0 * share);
        let waited = above(self.waited, WAITED).map(|percent| format!("threads waited for a processor for {percent:.0}% of the time"));
        let clock = above(self.clock, CLOCK).map(|percent| format!("the processor's clock changed by {percent:.0}%"));
        let disturbed = waited.into_iter().chain(clock).collect::<Vec<_>>().join(" and ");
        let verdict = match (self.steady, disturbed.as_str()) {
            (true, _) => "steady".to_owned(),
            (false, "") => "not steady: they did not agree".to_owned(),
            (false, why) => format!("not steady: {why}"),
        };
        format!("{} calls in the last {STEADY} of {} windows, {verdict}", self.latency_us.n, self.windows)
    }
}

/// Warms up and measures windows until the last three agree, or says that they never did.
pub fn measure(subject: &mut dyn Rounds, settings: &Settings) -> Result<Measurement> {
    measure_beside(subject, settings, || (host::waited_for_cpu(), host::chain()))
}

/// [`measure`], where `disturbance` says how long threads of this process have waited for a processor so far, and how long a chain of dependent
/// multiplications takes now.
fn measure_beside(
    subject: &mut dyn Rounds,
    settings: &Settings,
    mut disturbance: impl FnMut() -> (Option<Duration>, Duration),
) -> Result<Measurement> {
    settings.validate()?;
    let calls = warm_up(subject, settings)?;
    let mut windows: Vec<Round> = Vec::new();
    let (mut waits, mut chains): (Vec<_>, Vec<_>) = [disturbance()].into_iter().unzip();
    let mut agreed = false;
    while !agreed && windows.len() < settings.max_windows {
        settings.interrupt.check()?;
        windows.push(subject.round(calls)?);
        let (waited, chain) = disturbance();
        waits.push(waited);
        chains.push(chain);
        agreed = windows.len() >= STEADY && agree(&windows[windows.len() - STEADY..], settings.tolerance);
    }
    let first = windows.len() - STEADY;
    let last = &windows[first..];
    let samples: Vec<f64> = last.iter().flat_map(|w| w.latencies_us.iter().copied()).collect();
    let seconds: f64 = last.iter().map(|w| w.seconds).sum();
    let waited = waits[first].zip(waits[windows.len()]).map(|(from, to)| to.saturating_sub(from).as_secs_f64() / seconds);
    let clock = clock_change(&chains[first..]);
    let late = samples.iter().filter(|us| **us > FRAME.as_secs_f64() * 1e6).count();
    Ok(Measurement {
        calls_per_s: samples.len() as f64 / seconds,
        latency_us: summary(&samples)?,
        windows: windows.len(),
        steady: agreed && waited.is_none_or(|share| share <= WAITED) && clock.is_none_or(|change| change <= CLOCK),
        late: Some(late as f64 / samples.len() as f64),
        waited,
        clock,
    })
}

/// How much faster the fastest of several equal chains was than the slowest.
fn clock_change(chains: &[Duration]) -> Option<f64> {
    let (fastest, slowest) = (chains.iter().min()?, chains.iter().max()?);
    Some(slowest.as_secs_f64() / fastest.as_secs_f64() - 1.0).filter(|change| change.is_finite())
}

/// Runs for the warm-up time and says how many calls fill a window.
fn warm_up(subject: &mut dyn Rounds, settings: &Settings) -> Result<usize> {
    let (mut spent, mut calls, mut per_call) = (0.0, 1, f64::INFINITY);
    loop {
        settings.interrupt.check()?;
        let round = subject.round(calls)?;
        ensure!(round.latencies_us.len() == calls, "asked for {calls} calls, {} were timed", round.latencies_us.len());
        spent += round.seconds;
        // The fastest round so far: the first calls are the slow ones.
        per_call = f64::min(per_call, round.seconds / calls as f64);
        if spent >= settings.warm_up_s {
            return Ok(((settings.window_s / per_call).round() as usize).clamp(1, MAX_CALLS));
        }
        calls = (2 * calls).min(((settings.warm_up_s - spent) / per_call).ceil() as usize).clamp(1, MAX_CALLS);
    }
}

/// Whether throughput and median latency of all windows lie within `tolerance` of each other.
fn agree(windows: &[Round], tolerance: f64) -> bool {
    let within = |values: Vec<f64>| {
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), &v| (l.min(v), h.max(v)));
        high <= low * (1.0 + tolerance)
    };
    within(windows.iter().map(|w| w.latencies_us.len() as f64 / w.seconds).collect())
        && within(windows.iter().map(|w| stats::median(&stats::sorted(&w.latencies_us))).collect())
}

/// Two subjects on the same work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Latency of ours in microseconds, all rounds together.
    pub ours_us: Summary,
    /// Latency of theirs.
    pub theirs_us: Summary,
    /// Median over the rounds of (their median / our median): above one, ours is faster.
    pub ratio: f64,
    /// 95% bootstrap interval of it.
    pub ratio_ci: Interval,
    /// The smallest and the largest ratio of a round.
    pub ratio_range: Interval,
    /// Rounds of each side.
    pub rounds: usize,
}

impl Comparison {
    /// Whether one of the two is faster for sure.
    pub fn told_apart(&self) -> bool {
        self.ratio_ci.low > 1.0 || self.ratio_ci.high < 1.0
    }

    /// How much faster ours is, and no more than the interval says: `1.20 times faster`, `not told apart (1.02 times faster)`.
    pub fn in_words(&self) -> String {
        let words = speed_in_words(self.ratio);
        if self.told_apart() { words } else { format!("not told apart ({words})") }
    }
}

/// Interleaves rounds of both, changing who goes first, and compares each pair of neighbours: what disturbs the machine
/// for longer than a round disturbs both sides.
pub fn compare(ours: &mut dyn Rounds, theirs: &mut dyn Rounds, settings: &Settings) -> Result<Comparison> {
    settings.validate()?;
    let calls = (warm_up(ours, settings)?, warm_up(theirs, settings)?);
    let (mut our_samples, mut their_samples, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut spent = 0.0;
    for round in 0..settings.rounds {
        // Stopping after an even number only: each side went first equally often.
        if round >= LEAST_ROUNDS && round % 2 == 0 && spent >= settings.limit_s {
            break;
        }
        settings.interrupt.check()?;
        let (a, b) = if round % 2 == 0 {
            let a = ours.round(calls.0)?;
            (a, theirs.round(calls.1)?)
        } else {
            let b = theirs.round(calls.1)?;
            (ours.round(calls.0)?, b)
        };
        let [ours, theirs] = [&a, &b].map(|round| stats::median(&stats::sorted(&round.latencies_us)));
        ratios.push(speed_ratio(theirs, ours));
        spent += a.seconds + b.seconds;
        our_samples.extend(a.latencies_us);
        their_samples.extend(b.latencies_us);
    }
    let sorted = stats::sorted(&ratios);
    Ok(Comparison {
        ours_us: summary(&our_samples)?,
        theirs_us: summary(&their_samples)?,
        ratio: stats::median(&sorted),
        ratio_ci: stats::median_interval(&ratios),
        ratio_range: Interval { low: sorted[0], high: sorted[sorted.len() - 1] },
        rounds: ratios.len(),
    })
}

fn summary(samples: &[f64]) -> Result<Summary> {
    Summary::of(samples).ok_or_else(|| anyhow::anyhow!("a round gave no timings, or one that is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls whose latency follows a function of the call's number.
    struct Synthetic<F> {
        call: usize,
        latency_us: F,
    }

    impl<F: FnMut(usize) -> f64> Rounds for Synthetic<F> {
        fn round(&mut self, calls: usize) -> Result<Round> {
            let latencies_us: Vec<f64> = (0..calls).map(|i| (self.latency_us)(self.call + i)).collect();
            self.call += calls;
            Ok(Round { seconds: latencies_us.iter().sum::<f64>() * 1e-6, latencies_us })
        }
    }

    fn synthetic(latency_us: impl FnMut(usize) -> f64) -> Synthetic<impl FnMut(usize) -> f64> {
        Synthetic { call: 0, latency_us }
    }

    /// On a machine on which nothing else runs.
    fn measure_alone(latency_us: impl FnMut(usize) -> f64, settings: &Settings) -> Measurement {
        measure_beside(&mut synthetic(latency_us), settings, || (Some(Duration::ZERO), Duration::from_micros(15))).unwrap()
    }

    #[test]
    fn steady_timings_stop_after_three_windows() {
        // 1% of the calls take ten times as long.
        let found = measure_alone(|i| if i % 100 == 7 { 1000.0 } else { 100.0 }, &Settings::default());
        assert!(found.steady);
        assert_eq!(found.windows, 3);
        let latency = &found.latency_us;
        assert_eq!((latency.p50, latency.p90, latency.max), (100.0, Some(100.0), 1000.0));
        assert_eq!(latency.p99_9, Some(1000.0));
        assert!((latency.mean - 109.0).abs() < 1.0, "{}", latency.mean);
        assert!((found.calls_per_s - 1e6 / 109.0).abs() < 100.0, "{}", found.calls_per_s);
        // Three windows of half a second.
        assert!((latency.n as f64 * latency.mean * 1e-6 - 1.5).abs() < 0.2, "{}", latency.n);
    }

    #[test]
    fn a_slow_start_is_left_out() {
        let found = measure_alone(|i| if i < 1000 { 500.0 } else { 50.0 }, &Settings::default());
        assert!(found.steady);
        assert_eq!(found.latency_us.max, 50.0);
    }

    #[test]
    fn timings_that_never_settle_are_reported_so() {
        let settings = Settings { max_windows: 6, ..Settings::default() };
        let found = measure_alone(|i| 100.0 + 0.05 * i as f64, &settings);
        assert!(!found.steady);
        assert_eq!(found.windows, 6);
    }

    #[test]
    fn the_median_alone_does_not_make_windows_agree() {
        // The median stays at 100 while rare stalls halve the throughput of every second window.
        let stalled = |stall_us: f64| Round { latencies_us: vec![100.0; 99], seconds: 99.0 * 100e-6 + stall_us * 1e-6 };
        assert!(agree(&[stalled(0.0), stalled(500.0), stalled(0.0)], 0.1));
        assert!(!agree(&[stalled(0.0), stalled(9900.0), stalled(0.0)], 0.1));
    }

    #[test]
    fn equal_windows_beside_other_programs_are_not_steady() {
        // Four looks around three windows of half a second: what threads have waited so far, and the chain.
        let look = |waited_ms: [u64; 4], chain_us: [u64; 4]| {
            let mut looks = waited_ms.into_iter().zip(chain_us);
            let next = || looks.next().map(|(ms, us)| (Some(Duration::from_millis(ms)), Duration::from_micros(us))).unwrap();
            measure_beside(&mut synthetic(|_| 100.0), &Settings::default(), next).unwrap()
        };
        assert!(look([7, 57, 107, 150], [15; 4]).steady);
        let waited = look([7, 107, 207, 307], [15; 4]);
        assert!(!waited.steady && waited.waited.is_some_and(|share| (share - 0.2).abs() < 1e-3), "{waited:?}");
        let clock = look([0; 4], [20, 20, 22, 20]);
        assert!(!clock.steady && clock.clock.is_some_and(|change| (change - 0.1).abs() < 1e-9), "{clock:?}");
    }

    #[test]
    fn a_clock_that_changes_is_seen_and_named() {
        let us = Duration::from_micros;
        assert_eq!(clock_change(&[us(20), us(22), us(20)]).map(|change| (100.0 * change).round()), Some(10.0));
        assert_eq!(clock_change(&[us(20); 4]), Some(0.0));
        assert_eq!(clock_change(&[Duration::ZERO; 2]), None);
        let found = measure(&mut synthetic(|_| 100.0), &Settings::default()).unwrap();
        assert!(found.clock.is_some_and(|change| change >= 0.0));
        let faster = Measurement { steady: false, clock: Some(0.3), waited: Some(0.25), ..found.clone() };
        let told = faster.often();
        assert!(
            told.ends_with("not steady: threads waited for a processor for 25% of the time and the processor's clock changed by 30%"),
            "{told}"
        );
        let differ = Measurement { steady: false, clock: Some(0.0), waited: None, ..found }.often();
        assert!(differ.ends_with("3 windows, not steady: they did not agree"), "{differ}");
    }

    #[test]
    fn a_long_call_still_gets_windows() {
        let settings = Settings { warm_up_s: 0.1, ..Settings::default() };
        let found = measure(&mut synthetic(|_| 5e6), &settings).unwrap();
        assert_eq!((found.latency_us.n, found.latency_us.p50, found.latency_us.p90), (3, 5e6, None));
    }

    #[test]
    fn interleaving_cancels_a_drift_that_both_sides_share() {
        // The machine slows down threefold over the run; theirs takes twice as long as ours at any moment.
        let clock = std::cell::Cell::new(0.0);
        let at = |factor: f64| {
            let us = factor * (100.0 + 1e-5 * clock.get());
            clock.set(clock.get() + us);
            us
        };
        let found = compare(&mut synthetic(|_| at(1.0)), &mut synthetic(|_| at(2.0)), &Settings::default()).unwrap();
        assert!((found.ratio - 2.0).abs() < 0.02, "{found:?}");
        assert!(found.ratio_ci.low <= found.ratio && found.ratio <= found.ratio_ci.high);
        assert!(found.ratio_range.low > 1.7 && found.ratio_range.high < 2.3, "{found:?}");
        assert_eq!(found.rounds, 12);
    }

    #[test]
    fn a_ratio_above_one_means_ours_is_faster() {
        let found = compare(&mut synthetic(|_| 300.0), &mut synthetic(|_| 100.0), &Settings::default()).unwrap();
        assert_eq!(found.ratio, 100.0 / 300.0);
    }

    #[test]
    fn an_interrupt_ends_a_measurement_after_its_window() {
        let settings = Settings { max_windows: 1000, rounds: 1000, ..Settings::default() };
        let mut calls = 0;
        let mut drifting = |i: usize| {
            calls += 1;
            if calls > 30_000 {
                settings.interrupt.now();
            }
            100.0 + 0.05 * i as f64
        };
        assert_eq!(measure(&mut synthetic(&mut drifting), &settings).unwrap_err().to_string(), "interrupted");
        assert!((30_000..60_000).contains(&calls), "{calls}");
        assert!(compare(&mut synthetic(|_| 1.0), &mut synthetic(|_| 1.0), &settings).is_err(), "it stays interrupted");
    }

    #[test]
    fn slow_calls_get_four_rounds() {
        let settings = Settings { limit_s: 1.0, ..Settings::default() };
        let found = compare(&mut synthetic(|_| 1e6), &mut synthetic(|_| 5e6), &settings).unwrap();
        assert_eq!((found.rounds, found.ratio, found.ours_us.n), (4, 5.0, 4));
    }

    #[test]
    fn the_clock_sees_a_sleep() {
        struct Sleep;
        impl Subject for Sleep {
            fn run(&mut self) -> Result<()> {
                std::thread::sleep(std::time::Duration::from_millis(2));
                Ok(())
            }
        }
        let round = Timed(Sleep).round(5).unwrap();
        assert_eq!(round.latencies_us.len(), 5);
        assert!(round.latencies_us.iter().all(|&us| us >= 2000.0), "{round:?}");
        assert!((round.latencies_us.iter().sum::<f64>() * 1e-6 - round.seconds).abs() < 1e-6);
    }

    #[test]
    fn a_timing_of_queued_operations_is_that_of_one() {
        let mut done = 0;
        let operation = || {
            done += 1;
            std::thread::sleep(Duration::from_millis(1));
            anyhow::Ok(())
        };
        let round = OnDevice { operation, calls: 5, device: Device::Cpu }.round(2).unwrap();
        assert_eq!((done, round.latencies_us.len()), (10, 2));
        assert!(round.latencies_us.iter().all(|us| *us >= 1e3), "{round:?}");
        assert!((5.0 * round.latencies_us.iter().sum::<f64>() - 1e6 * round.seconds).abs() < 1.0, "{round:?}");
    }

    #[test]
    fn impossible_settings_are_named() {
        let error = Settings { max_windows: 2, ..Settings::default() }.validate().unwrap_err().to_string();
        assert!(error.starts_with("windows:"), "{error}");
        let error = Settings { window_s: f64::NAN, ..Settings::default() }.validate().unwrap_err().to_string();
        assert!(error.starts_with("window:"), "{error}");
    }
}
