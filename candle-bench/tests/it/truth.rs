//! The harness turned on itself: what it says of sources whose times are known. They are made up, so that no machine changes them; whether
//! the clock of a machine says the same is `candle-bench self-check`.

use candle_bench::formulas::speed_in_words;
use candle_bench::harness::{self, Round, Rounds, Settings};

/// Calls whose time follows from their number, in microseconds.
struct Source<F> {
    call: u32,
    us: F,
}

impl<F: Fn(u32) -> f64> Rounds for Source<F> {
    fn round(&mut self, calls: usize) -> anyhow::Result<Round> {
        let numbers = self.call..self.call + calls as u32;
        self.call = numbers.end;
        let latencies_us: Vec<f64> = numbers.map(&self.us).collect();
        Ok(Round { seconds: latencies_us.iter().sum::<f64>() * 1e-6, latencies_us })
    }
}

fn source<F: Fn(u32) -> f64>(us: F) -> Source<F> {
    Source { call: 0, us }
}

fn quick() -> Settings {
    Settings { warm_up_s: 0.02, window_s: 0.1, ..Settings::default() }
}

/// Whatever else runs on this machine: a call in a hundred takes ten times as long, and the median does not see it.
#[test]
fn a_source_of_known_length_is_measured_as_it_is() {
    for us in [200.0, 1000.0] {
        let found = harness::measure(&mut source(|call| if call % 100 == 7 { 10.0 * us } else { us }), &quick()).unwrap();
        assert_eq!(found.latency_us.p50, us);
        assert!(found.latency_us.mean > us && found.latency_us.max == 10.0 * us, "{found:?}");
        assert!(found.calls_per_s <= 1e6 / us, "{found:?}");
    }
}

#[test]
fn an_unstable_source_is_reported_as_unstable() {
    let settings = Settings { warm_up_s: 0.0, window_s: 0.002, max_windows: 5, ..Settings::default() };
    let found = harness::measure(&mut source(|call| 10.0 + f64::from(call)), &settings).unwrap();
    assert!(!found.steady && found.windows == 5, "{found:?}");
}

#[test]
fn an_optimisation_that_is_slower_is_called_slower() {
    let settings = Settings { warm_up_s: 0.01, window_s: 0.02, ..Settings::default() };
    let found = harness::compare(&mut source(|call| 300.0 + f64::from(call % 3)), &mut source(|_| 200.0), &settings).unwrap();
    assert!((found.ratio - 2.0 / 3.0).abs() < 0.02 && found.ratio_ci.high < 1.0, "{found:?}");
    let words = speed_in_words(found.ratio);
    assert!(words.ends_with("times slower") && !words.contains("faster"), "{words}");
}

#[test]
fn nothing_is_faster_than_itself() {
    let settings = Settings { warm_up_s: 0.01, window_s: 0.02, ..Settings::default() };
    let noisy = |call: u32| 200.0 + f64::from(call * 7 % 5);
    let found = harness::compare(&mut source(noisy), &mut source(noisy), &settings).unwrap();
    assert!((found.ratio - 1.0).abs() < 0.01 && speed_in_words(found.ratio) == "as fast", "{found:?}");
}
