//! Loss scaling for f16: gradients below 6e-8 vanish in it and above 65504 overflow, so the loss is multiplied by the largest
//! factor that does not overflow (Micikevicius et al. 2018).

use candle_core::DType;
use serde::{Deserialize, Serialize};

const START: f64 = 65536.0;
/// Updates in a row after which the factor is doubled.
const PERIOD: u64 = 2000;

/// The factor, and how it moves.
///
/// ```
/// use candle_models::candle_core::DType;
/// use candle_train::scale::LossScale;
///
/// let mut scale = LossScale::of(DType::F16);
/// let first = scale.factor();
/// assert!(scale.after(false)); // something was not finite: it answers for that
/// assert_eq!(scale.factor(), first / 2.0);
/// assert_eq!(LossScale::of(DType::F32).factor(), 1.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    factor: f64,
    /// Updates since the factor last changed.
    good: u64,
    dynamic: bool,
}

impl LossScale {
    /// For losses computed in `dtype`: dynamic for f16, 1 for what has the exponents of f32.
    pub fn of(dtype: DType) -> Self {
        let dynamic = dtype == DType::F16;
        Self { factor: if dynamic { START } else { 1.0 }, good: 0, dynamic }
    }

    /// This one as a run goes on that has saved another: what was found, unless it was for another dtype.
    #[must_use]
    pub fn continued(self, saved: Self) -> Self {
        if saved.dynamic == self.dynamic { saved } else { self }
    }

    /// What the loss is multiplied by, and gradients divided by.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Takes in whether a step was finite. Returns whether the factor answers for one that was not: it was halved.
    pub fn after(&mut self, finite: bool) -> bool {
        if !self.dynamic {
            return false;
        }
        if finite {
            self.good += 1;
            if self.good == PERIOD {
                // Beyond this the factor itself would overflow in f32.
                (self.factor, self.good) = ((self.factor * 2.0).min(2f64.powi(100)), 0);
            }
            return false;
        }
        let halved = self.factor > 1.0;
        (self.factor, self.good) = ((self.factor / 2.0).max(1.0), 0);
        halved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_at_once_and_doubles_slowly() {
        let mut scale = LossScale::of(DType::F16);
        assert!(scale.after(false));
        assert_eq!(scale.factor(), 32768.0);
        (0..1999).for_each(|_| assert!(!scale.after(true)));
        assert_eq!(scale.factor(), 32768.0);
        scale.after(true);
        assert_eq!(scale.factor(), 65536.0);
        // An overflow starts the count anew.
        (0..1999).for_each(|_| assert!(!scale.after(true)));
        scale.after(false);
        scale.after(true);
        assert_eq!(scale.factor(), 32768.0);
    }

    #[test]
    fn at_one_it_answers_for_nothing_more() {
        let mut scale = LossScale::of(DType::F16);
        assert_eq!((0..100).filter(|_| scale.after(false)).count(), 16);
        assert_eq!(scale.factor(), 1.0);
    }

    #[test]
    fn a_run_that_goes_on_in_another_dtype_starts_anew() {
        let [mut narrow, wide] = [DType::F16, DType::BF16].map(LossScale::of);
        narrow.after(false);
        assert_eq!(LossScale::of(DType::F16).continued(narrow), narrow);
        assert_eq!(LossScale::of(DType::F16).continued(wide).factor(), 65536.0);
        assert_eq!(wide.continued(narrow), wide);
    }

    #[test]
    fn wide_exponents_need_none() {
        for dtype in [DType::F32, DType::BF16] {
            let mut scale = LossScale::of(dtype);
            assert!(!scale.after(false));
            (0..5000).for_each(|_| assert!(!scale.after(true)));
            assert_eq!(scale.factor(), 1.0);
        }
    }
}
