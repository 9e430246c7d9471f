//! Learning-rate schedules: pure functions of the step.

use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the learning rate moves between the end of the warm-up and the last step.
///
/// ```
/// use candle_train::schedule::{Schedule, Shape};
///
/// let last = |shape| Schedule { shape, peak: 1.0, floor: 0.1, warmup: 0, ..Schedule::default() }.at(99, 100);
/// assert_eq!(last(Shape::Constant), 1.0);
/// assert!((last(Shape::Linear) - 0.1).abs() < 1e-12 && (last(Shape::Cosine) - 0.1).abs() < 1e-12);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Stays at the peak.
    Constant,
    /// Half a cosine from the peak to `floor * peak`.
    Cosine,
    /// A straight line from the peak to `floor * peak`.
    Linear,
    /// Half a cosine from the peak towards `floor * peak`, again and again: the first takes `period` steps, each next one `growth`
    /// times as many (Loshchilov and Hutter 2017).
    Restarts,
    /// Multiplied by `decay` every `period` steps, never below `floor * peak`.
    Step,
    /// Instead of the warm-up half a cosine from a 25th of the peak up to the peak over the share `rise` of all steps, then half a
    /// cosine down to `floor * peak` (Smith and Topin 2018, in PyTorch's form of two phases).
    OneCycle,
}

/// A linear warm-up, then a [`Shape`].
///
/// ```
/// use candle_train::schedule::Schedule;
///
/// let schedule = Schedule { peak: 1e-3, warmup: 10, ..Schedule::default() };
/// assert_eq!(schedule.at(0, 1000), 1e-4); // a tenth of the way up
/// assert_eq!(schedule.at(9, 1000), 1e-3);
/// assert!(schedule.at(999, 1000) < 1.01e-5);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak: f64,
    /// Steps of linear warm-up from `peak / warmup` to `peak`; at most a quarter of the run.
    pub warmup: u64,
    /// The way down.
    pub shape: Shape,
    /// The last learning rate, as a share of the peak.
    pub floor: f64,
    /// Of `restarts`, steps until the first one; of `step`, steps between two decays.
    pub period: u64,
    /// Of `restarts`, how many times as long each period is as the one before.
    pub growth: u64,
    /// Of `step`, the factor every `period` steps.
    pub decay: f64,
    /// Of `one_cycle`, the share of the run in which the rate rises.
    pub rise: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { peak: 1e-3, warmup: 100, shape: Shape::Cosine, floor: 0.01, period: 1000, growth: 1, decay: 0.5, rise: 0.3 }
    }
}

/// The first learning rate of one cycle, as a share of the peak: PyTorch's.
const START: f64 = 1.0 / 25.0;

impl Schedule {
    /// The learning rate of `step` (from 0) in a run of `total` steps.
    pub fn at(&self, step: u64, total: u64) -> f64 {
        if self.shape == Shape::OneCycle {
            return self.peak * self.one_cycle(step as f64, total as f64);
        }
        // A run shorter than its warm-up must not end at a tenth of the peak: warm up over at most a quarter of it.
        let warmup = self.warmup.min(total / 4);
        if step < warmup {
            return self.peak * (step + 1) as f64 / warmup as f64;
        }
        let span = total.saturating_sub(warmup + 1).max(1);
        let step = step - warmup;
        let progress = (step as f64 / span as f64).min(1.0);
        let share = match self.shape {
            Shape::Constant | Shape::OneCycle => 1.0,
            Shape::Cosine => cosine(1.0, self.floor, progress),
            Shape::Linear => self.floor + (1.0 - self.floor) * (1.0 - progress),
            Shape::Restarts => cosine(1.0, self.floor, self.since_restart(step)),
            Shape::Step => self.decay.powf((step / self.period.max(1)) as f64).max(self.floor),
        };
        self.peak * share
    }

    /// How far `step` is in its period, from 0 to below 1.
    fn since_restart(&self, step: u64) -> f64 {
        let (mut at, mut length) = (step, self.period.max(1));
        if self.growth <= 1 {
            return (at % length) as f64 / length as f64;
        }
        while at >= length {
            (at, length) = (at - length, length.saturating_mul(self.growth));
        }
        at as f64 / length as f64
    }

    /// The share of the peak.
    fn one_cycle(&self, step: f64, total: f64) -> f64 {
        let (top, end) = ((self.rise * total - 1.0).max(0.0), total - 1.0);
        if step < top {
            return cosine(START, 1.0, step / top);
        }
        // A run of one step has its peak and its end at once.
        cosine(1.0, self.floor, ((step - top) / (end - top).max(f64::MIN_POSITIVE)).min(1.0))
    }

    /// Refuses rates that are not finite and positive.
    pub fn validate(&self) -> Result<()> {
        if !(self.peak.is_finite() && self.peak > 0.0) {
            return Err(Error::config("schedule.peak", format!("expected a positive rate, found {}", self.peak)));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Err(Error::config("schedule.floor", format!("expected a share between 0 and 1, found {}", self.floor)));
        }
        for (field, value) in [("period", self.period), ("growth", self.growth)] {
            if value == 0 {
                return Err(Error::config(format!("schedule.{field}"), "expected at least 1, found 0"));
            }
        }
        for (field, share) in [("decay", self.decay), ("rise", self.rise)] {
            if !(share > 0.0 && share < 1.0) {
                return Err(Error::config(format!("schedule.{field}"), format!("expected a share between 0 and 1, found {share}")));
            }
        }
        Ok(())
    }
}

/// Half a cosine from `from` to `to` for a progress from 0 to 1.
fn cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + (PI * progress).cos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay;

    fn schedule(shape: Shape) -> Schedule {
        Schedule { peak: 1.0, warmup: 10, shape, floor: 0.1, ..Schedule::default() }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "expected {expected}, found {found}");
    }

    #[test]
    fn warms_up_in_a_line() {
        for shape in [Shape::Constant, Shape::Cosine, Shape::Linear] {
            let s = schedule(shape);
            close(s.at(0, 111), 0.1);
            close(s.at(4, 111), 0.5);
            close(s.at(9, 111), 1.0);
            close(s.at(10, 111), 1.0);
        }
    }

    #[test]
    fn ends_at_the_floor_and_stays_there() {
        for shape in [Shape::Cosine, Shape::Linear] {
            let s = schedule(shape);
            close(s.at(60, 111), 0.55);
            close(s.at(110, 111), 0.1);
            close(s.at(500, 111), 0.1);
        }
        close(schedule(Shape::Constant).at(110, 111), 1.0);
        close(schedule(Shape::Cosine).at(35, 111), 0.1 + 0.9 * 0.5 * (1.0 + 0.5f64.sqrt()));
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_still_reaches_the_peak() {
        let s = Schedule { warmup: 1000, ..schedule(Shape::Cosine) };
        close(s.at(1, 8), 1.0);
        close(s.at(7, 8), 0.1);
        assert!(s.at(0, 1).is_finite());
    }

    #[test]
    fn a_senseless_rate_is_named() {
        for peak in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = Schedule { peak, ..Schedule::default() }.validate().unwrap_err().to_string();
            assert!(error.starts_with("config: schedule.peak"), "{error}");
        }
        assert!(Schedule { floor: 1.5, ..Schedule::default() }.validate().is_err());
        for (schedule, field) in [
            (Schedule { period: 0, ..Schedule::default() }, "period"),
            (Schedule { growth: 0, ..Schedule::default() }, "growth"),
            (Schedule { decay: 1.0, ..Schedule::default() }, "decay"),
            (Schedule { rise: f64::NAN, ..Schedule::default() }, "rise"),
        ] {
            let error = schedule.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("config: schedule.{field}: expected ")), "{error}");
        }
    }

    /// `tests/golden/schedules.py` makes the values: PyTorch's schedulers, step by step.
    #[test]
    fn every_shape_equals_pytorch() {
        #[derive(Deserialize)]
        struct Case {
            schedule: Schedule,
            total: u64,
            rates: Vec<f64>,
        }
        let cases: Vec<Case> = serde_json::from_str(include_str!("../tests/golden/schedules.json")).unwrap();
        let mut seen: Vec<String> = cases.iter().map(|case| format!("{:?}", case.schedule.shape)).collect();
        seen.dedup();
        assert_eq!(seen, ["Constant", "Cosine", "Linear", "Restarts", "Step", "OneCycle"]);
        for Case { schedule, total, rates } in cases {
            assert_eq!(rates.len() as u64, total);
            for (step, expected) in rates.into_iter().enumerate() {
                let found = schedule.at(step as u64, total);
                // PyTorch computes some rates from the one before, and so adds up rounding.
                assert!((found - expected).abs() <= 1e-12 * schedule.peak, "{schedule:?}, step {step}: found {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn a_shape_is_set_by_its_name() {
        let sets = ["schedule.shape=restarts", "schedule.period=50", "schedule.growth=2"].map(str::to_owned);
        let preset = crate::trainer::TrainerConfig::default();
        let config = overlay::resolve(&preset, Some("schedule.shape = \"cosine\""), &sets, &overlay::kind_alone).unwrap();
        let Schedule { shape, period, growth, .. } = config.schedule;
        assert_eq!((shape, period, growth), (Shape::Restarts, 50, 2));
    }

    #[test]
    fn every_step_of_any_run_has_a_rate() {
        for shape in [Shape::Constant, Shape::Cosine, Shape::Linear, Shape::Restarts, Shape::Step, Shape::OneCycle] {
            for growth in [1, 3] {
                let s = Schedule { period: 3, growth, ..schedule(shape) };
                for (step, total) in [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3), (7, 8), (8, 8), (1000, 8), (u64::MAX / 2, u64::MAX)] {
                    let rate = s.at(step, total);
                    let lowest = if shape == Shape::OneCycle { START } else { 0.1 };
                    assert!((lowest - 1e-12..=1.0 + 1e-12).contains(&rate), "{s:?} at {step} of {total}: {rate}");
                }
            }
        }
    }
}
