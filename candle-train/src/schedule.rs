//! Learning-rate schedules: pure functions of the step.

use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the learning rate moves between the end of the warm-up and the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Stays at the peak.
    Constant,
    /// Half a cosine from the peak to `floor * peak`.
    Cosine,
    /// A straight line from the peak to `floor * peak`.
    Linear,
}

/// A linear warm-up, then a [`Shape`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak: f64,
    /// Steps of linear warm-up from `peak / warmup` to `peak`.
    pub warmup: u64,
    /// The way down.
    pub shape: Shape,
    /// The last learning rate, as a share of the peak.
    pub floor: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { peak: 1e-3, warmup: 100, shape: Shape::Cosine, floor: 0.01 }
    }
}

impl Schedule {
    /// The learning rate of `step` (from 0) in a run of `total` steps.
    pub fn at(&self, step: u64, total: u64) -> f64 {
        // A run shorter than its warm-up must not end at a tenth of the peak: warm up over at most a quarter of it.
        let warmup = self.warmup.min(total / 4);
        if step < warmup {
            return self.peak * (step + 1) as f64 / warmup as f64;
        }
        let span = total.saturating_sub(warmup + 1).max(1);
        let progress = ((step - warmup) as f64 / span as f64).min(1.0);
        let share = match self.shape {
            Shape::Constant => 1.0,
            Shape::Cosine => self.floor + (1.0 - self.floor) * 0.5 * (1.0 + (PI * progress).cos()),
            Shape::Linear => self.floor + (1.0 - self.floor) * (1.0 - progress),
        };
        self.peak * share
    }

    /// Refuses rates that are not finite and positive.
    pub fn validate(&self) -> Result<()> {
        if !(self.peak.is_finite() && self.peak > 0.0) {
            return Err(Error::config("schedule.peak", format!("expected a positive rate, found {}", self.peak)));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Err(Error::config("schedule.floor", format!("expected a share between 0 and 1, found {}", self.floor)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: Shape) -> Schedule {
        Schedule { peak: 1.0, warmup: 10, shape, floor: 0.1 }
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
    }
}
