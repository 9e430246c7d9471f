//! How long a run is: in steps, in samples, or in time.
//!
//! ```
//! use candle_train::budget::{Budget, Spent};
//! use std::time::Duration;
//!
//! let minute = Budget::Time(Duration::from_secs(60));
//! assert!(!minute.is_spent(100, Spent { seconds: 59.0, ..Spent::default() }));
//! assert!(minute.is_spent(100, Spent { seconds: 60.0, ..Spent::default() }));
//! ```

use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a run may spend.
///
/// ```
/// use candle_train::budget::{Budget, Spent};
///
/// let frames = Budget::Samples(1_000_000);
/// let spent = Spent { samples: 250_000, ..Spent::default() };
/// assert_eq!((frames.share(500, spent), frames.steps(500, spent)), (0.25, 2000)); // at this pace
/// assert!(Budget::from(500).is_spent(500, Spent::default()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Steps of the optimiser.
    Steps(u64),
    /// Samples of all ranks, in the task's unit (frames, episodes): the run ends with the step that reaches them.
    Samples(u64),
    /// Wall time from the first step on, evaluation and saving counted, the time between a stop and a resume not. What such a run gives
    /// depends on the machine.
    Time(Duration),
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::Samples(samples) => write!(f, "{samples} samples"),
            Self::Time(limit) => write!(f, "{:.0} s", limit.as_secs_f64()),
        }
    }
}

impl From<u64> for Budget {
    fn from(steps: u64) -> Self {
        Self::Steps(steps)
    }
}

/// What a run has spent beside its steps: nothing where they are its budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spent {
    /// Samples of all ranks.
    pub samples: u64,
    /// Seconds by the clock of rank 0; 0 where they are not the budget.
    pub seconds: f64,
}

impl Budget {
    /// Refuses a run without a step.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Steps(0) | Self::Samples(0) => Err(Error::config("budget", "expected at least 1, found 0")),
            Self::Time(limit) if limit.is_zero() => Err(Error::config("budget", "expected a time, found 0 s")),
            _ => Ok(()),
        }
    }

    /// The share that is used up after `step` steps; 1 and more at the end.
    pub fn share(&self, step: u64, spent: Spent) -> f64 {
        match *self {
            Self::Steps(steps) => step as f64 / steps as f64,
            Self::Samples(samples) => spent.samples as f64 / samples as f64,
            Self::Time(limit) => spent.seconds / limit.as_secs_f64(),
        }
    }

    /// Whether it is used up after `step` steps.
    pub fn is_spent(&self, step: u64, spent: Spent) -> bool {
        match *self {
            Self::Steps(steps) => step >= steps,
            _ => self.share(step, spent) >= 1.0,
        }
    }

    /// Steps of the whole run: what the budget says, or what it comes to at the pace of the steps so far. Without any the largest number.
    pub fn steps(&self, step: u64, spent: Spent) -> u64 {
        match *self {
            Self::Steps(steps) => steps,
            _ if self.is_spent(step, spent) => step,
            _ if step == 0 => u64::MAX,
            Self::Samples(samples) => {
                let steps = (u128::from(step) * u128::from(samples)).div_ceil(u128::from(spent.samples.max(1)));
                if spent.samples == 0 { u64::MAX } else { u64::try_from(steps).unwrap_or(u64::MAX) }
            }
            // A conversion that does not fit gives the largest number, as does a division by zero.
            Self::Time(_) => ((step as f64 / self.share(step, spent)).ceil() as u64).max(step + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_the_pace_so_far() {
        let spent = |samples, seconds| Spent { samples, seconds };
        assert_eq!(Budget::Steps(60).steps(7, Spent::default()), 60);
        for (budget, step, spent, steps) in [
            (Budget::Samples(1000), 0, spent(0, 0.0), u64::MAX),
            (Budget::Samples(1000), 5, spent(0, 0.0), u64::MAX),
            (Budget::Samples(1000), 5, spent(500, 0.0), 10),
            (Budget::Samples(1000), 5, spent(300, 0.0), 17),
            (Budget::Samples(1000), 10, spent(1001, 0.0), 10),
            (Budget::Time(Duration::from_secs(10)), 4, spent(0, 2.5), 16),
            (Budget::Time(Duration::from_secs(10)), 4, spent(0, 9.999), 5),
            (Budget::Time(Duration::from_secs(10)), 4, spent(0, 10.0), 4),
        ] {
            assert_eq!(budget.steps(step, spent), steps, "{budget:?} after {step} steps and {spent:?}");
            assert_eq!(budget.is_spent(step, spent), steps == step);
        }
    }

    #[test]
    fn a_run_without_a_step_is_refused() {
        for budget in [Budget::Steps(0), Budget::Samples(0), Budget::Time(Duration::ZERO)] {
            assert!(budget.validate().unwrap_err().to_string().starts_with("config: budget: expected "));
        }
        Budget::Steps(1).validate().unwrap();
    }
}
