//! Early stopping: whether the scores of held-out data still improve (Prechelt 1998).
//!
//! [`EarlyStop`] is the rule, [`Plateau`] what has to be remembered; both are plain data. The trainer feeds every evaluation's score
//! and acts on the answer; a checkpoint that carries the plateau lets a resumed run stop where the uninterrupted one does.
//!
//! ```
//! use candle_train::early_stop::{EarlyStop, Plateau};
//!
//! let rule = EarlyStop { patience: 1, ..EarlyStop::default() };
//! let plateau = Plateau::default().after(1.0, &rule).after(2.0, &rule);
//! assert_eq!((plateau.best, plateau.evaluations, rule.gives_up(&plateau)), (Some(1.0), 1, true));
//! ```

use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// When to give up. Scores are [costs](crate::task::Score::cost): lower ones are better.
///
/// ```
/// use candle_train::early_stop::{EarlyStop, Plateau};
///
/// let rule = EarlyStop { patience: 2, ..EarlyStop::default() };
/// let after = |costs: &[f64]| costs.iter().fold(Plateau::default(), |plateau, cost| plateau.after(*cost, &rule));
/// assert!(!rule.gives_up(&after(&[3.0, 2.0, 2.5])));
/// assert!(rule.gives_up(&after(&[3.0, 2.0, 2.5, 2.0])));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStop {
    /// Evaluations in a row without improvement after which training stops; 0 for never.
    pub patience: u64,
    /// An improvement is a score lower than the best one by more than this.
    pub min_delta: f64,
}

impl Default for EarlyStop {
    fn default() -> Self {
        Self { patience: 0, min_delta: 0.0 }
    }
}

impl EarlyStop {
    /// Refuses a difference that is not a number of 0 or more.
    pub fn validate(&self) -> Result<()> {
        if self.min_delta.is_finite() && self.min_delta >= 0.0 {
            return Ok(());
        }
        Err(Error::config("early_stop.min_delta", format!("expected a value of 0 or more, found {}", self.min_delta)))
    }

    /// Whether scores have not improved for long enough to stop.
    pub fn gives_up(&self, plateau: &Plateau) -> bool {
        self.patience > 0 && plateau.evaluations >= self.patience
    }
}

/// How long scores have not improved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    /// The cost that has to be beaten; none before the first.
    pub best: Option<f64>,
    /// Evaluations since.
    pub evaluations: u64,
}

impl Plateau {
    /// The plateau after one more score. A score that is not finite is no improvement.
    #[must_use]
    pub fn after(self, score: f64, rule: &EarlyStop) -> Self {
        let better = score.is_finite() && self.best.is_none_or(|best| score < best - rule.min_delta);
        if better { Self { best: Some(score), evaluations: 0 } } else { Self { evaluations: self.evaluations + 1, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The evaluation, from 1, after which the rule stops.
    fn stops(rule: EarlyStop, scores: &[f64]) -> Option<usize> {
        let mut plateau = Plateau::default();
        scores.iter().position(|&score| {
            plateau = plateau.after(score, &rule);
            rule.gives_up(&plateau)
        })
    }

    #[test]
    fn stops_after_its_patience_without_improvement() {
        let scores = [3.0, 2.0, 2.5, 2.0, 1.9, 1.95, 1.9, 1.8999, f64::NAN, 5.0];
        let rule = |patience, min_delta| EarlyStop { patience, min_delta };
        assert_eq!(stops(rule(0, 0.0), &scores), None);
        // An equal score is no improvement, 1.8999 is one.
        assert_eq!(stops(rule(2, 0.0), &scores), Some(3));
        assert_eq!(stops(rule(3, 0.0), &scores), None);
        assert_eq!(stops(rule(3, 0.01), &scores), Some(7));
        assert_eq!(stops(rule(5, 0.2), &scores), Some(6), "1.9 is not better than 2.0 by 0.2, nor is any after it");
        assert_eq!(stops(rule(1, 0.0), &[f64::NAN, 1.0]), Some(0));
    }

    #[test]
    fn a_plateau_survives_a_checkpoint() {
        let rule = EarlyStop { patience: 3, min_delta: 0.0 };
        let scores = [1.0, 0.1 + 0.2, 0.4, 0.3, 0.5];
        for cut in 0..=scores.len() {
            let feed = |plateau: Plateau, scores: &[f64]| scores.iter().fold(plateau, |p, &score| p.after(score, &rule));
            let saved = serde_json::to_value(feed(Plateau::default(), &scores[..cut])).unwrap();
            let resumed = feed(serde_json::from_value(saved).unwrap(), &scores[cut..]);
            assert_eq!(resumed, feed(Plateau::default(), &scores), "resumed after {cut}");
        }
    }

    #[test]
    fn a_senseless_difference_is_named() {
        for min_delta in [-1.0, f64::NAN, f64::INFINITY] {
            let error = EarlyStop { min_delta, patience: 1 }.validate().unwrap_err().to_string();
            assert!(error.starts_with("config: early_stop.min_delta: expected "), "{error}");
        }
    }
}
