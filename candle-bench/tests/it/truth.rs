//! The harness turned on itself: what it says of sources whose times are known.

use candle_bench::formulas::speed_in_words;
use candle_bench::harness::{self, Settings, Subject, Timed};
use std::time::{Duration, Instant};

/// Every call waits, without sleeping, for a time that follows from its number.
struct Spin<F> {
    call: u32,
    length: F,
}

impl<F: Fn(u32) -> Duration> Subject for Spin<F> {
    fn run(&mut self) -> anyhow::Result<()> {
        let (start, length) = (Instant::now(), (self.length)(self.call));
        self.call += 1;
        while start.elapsed() < length {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn spin(length: impl Fn(u32) -> Duration) -> Timed<Spin<impl Fn(u32) -> Duration>> {
    Timed(Spin { call: 0, length })
}

fn steady_spin(us: u64) -> Timed<Spin<impl Fn(u32) -> Duration>> {
    spin(move |_| Duration::from_micros(us))
}

fn quick() -> Settings {
    Settings { warm_up_s: 0.02, window_s: 0.1, ..Settings::default() }
}

/// The median: other programs of a shared machine delay some of the calls, and no call is faster.
#[test]
fn a_spin_of_known_length_is_measured_within_one_percent() {
    for us in [200u64, 1000] {
        let found = harness::measure(&mut steady_spin(us), &quick()).unwrap();
        let p50 = found.latency_us.p50;
        assert!((p50 / us as f64 - 1.0).abs() < 0.01, "{p50} us, expected {us}");
        assert!(found.latency_us.mean >= us as f64 && found.latency_us.max >= p50, "{found:?}");
        assert!(found.calls_per_s <= 1e6 / us as f64, "{found:?}");
    }
}

#[test]
fn an_unstable_source_is_reported_as_unstable() {
    let settings = Settings { warm_up_s: 0.0, window_s: 0.002, max_windows: 5, ..Settings::default() };
    let found = harness::measure(&mut spin(|call| Duration::from_micros(10 + u64::from(call))), &settings).unwrap();
    assert!(!found.steady && found.windows == 5, "{found:?}");
}

#[test]
fn an_optimisation_that_is_slower_is_called_slower() {
    let settings = Settings { warm_up_s: 0.01, window_s: 0.02, ..Settings::default() };
    let found = harness::compare(&mut steady_spin(300), &mut steady_spin(200), &settings).unwrap();
    assert!((found.ratio - 2.0 / 3.0).abs() < 0.02 && found.ratio_ci.high < 1.0, "{found:?}");
    let words = speed_in_words(found.ratio);
    assert!(words.ends_with("times slower") && !words.contains("faster"), "{words}");
}

#[test]
fn nothing_is_faster_than_itself() {
    let settings = Settings { warm_up_s: 0.01, window_s: 0.02, ..Settings::default() };
    let found = harness::compare(&mut steady_spin(200), &mut steady_spin(200), &settings).unwrap();
    assert!((found.ratio - 1.0).abs() < 0.01, "{found:?}");
}
