//! The arithmetic behind the tables: pure functions of counts and times, the units in their names.
//!
//! A call's time is in microseconds, work in floating-point operations (a multiply-add is two) or bytes. The wrong claims that
//! the tests below turn down were all published, most of them with one of these formulas missing or turned around.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rate that may lie above the measured roof by noise; beyond it, the count or the roof is wrong.
pub const ABOVE_ROOF: f64 = 1.05;
/// A call that takes so many times as long as its roof allows is bound by neither memory nor arithmetic.
pub const FAR_ABOVE: f64 = 4.0;

/// A figure that would say something else than what was measured.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refused {
    /// More than the machine can do.
    #[error("{rate:.1} is {:.0}% of a roof of {roof:.1}: the count of the work or the roof is wrong", 100.0 * .rate / .roof)]
    AboveRoof {
        /// The rate, in the roof's unit.
        rate: f64,
        /// The roof.
        roof: f64,
    },
    /// Both together took less than the longer one alone.
    #[error(
        "{both_us} us for copy and compute together, {longer_us} us for the longer one alone: the data did not start where it was said to"
    )]
    FasterThanItsParts {
        /// Copy and compute overlapped.
        both_us: f64,
        /// The longer of the two alone.
        longer_us: f64,
    },
    /// The two sides were not measured alike.
    #[error("no speed-up against this baseline: {0}")]
    UnequalBaseline(&'static str),
    /// What goes into a formula is not a time, a count or a rate.
    #[error("{field}: {value} is not a positive number")]
    NotPositive {
        /// What it stands for.
        field: &'static str,
        /// The number.
        value: f64,
    },
}

fn positive(fields: &[(&'static str, f64)]) -> Result<(), Refused> {
    match fields.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        Some(&(field, value)) => Err(Refused::NotPositive { field, value }),
        None => Ok(()),
    }
}

/// Operations of a product of `rows` x `terms` with `terms` x `columns`.
pub fn product_flop(rows: usize, terms: usize, columns: usize) -> f64 {
    2.0 * rows as f64 * terms as f64 * columns as f64
}

/// Operations of a training step, from how often each weight is used in its forward pass: two there, four in the backward pass.
pub fn training_flop(weight_uses: f64) -> f64 {
    6.0 * weight_uses
}

/// Billions of operations a second.
pub fn gflop_per_s(flop: f64, us: f64) -> f64 {
    flop / us / 1e3
}

/// Billions of bytes a second.
pub fn gb_per_s(bytes: f64, us: f64) -> f64 {
    bytes / us / 1e3
}

/// Calls a second.
pub fn calls_per_s(us: f64) -> f64 {
    1e6 / us
}

/// The rate over several pieces of work, as pairs of operations and microseconds: all operations over all time, which is
/// neither the rate of one of them nor the mean of their rates.
pub fn average_gflop_per_s(work: &[(f64, f64)]) -> f64 {
    let (flop, us) = work.iter().fold((0.0, 0.0), |(flop, us), (f, t)| (flop + f, us + t));
    gflop_per_s(flop, us)
}

/// Operations for every byte that has to move.
pub fn intensity_flop_per_byte(flop: f64, bytes: f64) -> f64 {
    flop / bytes
}

/// What a machine reaches in arithmetic and in moving memory, from one source: a share is of the roof that is printed beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofs {
    /// Billions of operations a second.
    pub gflop_per_s: f64,
    /// Billions of bytes a second.
    pub gb_per_s: f64,
}

/// What keeps a call from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Moving its bytes.
    Memory,
    /// Its arithmetic.
    Compute,
    /// Neither: it takes far longer than both.
    Overhead,
}

impl Bound {
    /// `memory`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Overhead => "overhead",
        }
    }
}

impl Roofs {
    /// The intensity from which on arithmetic is the limit.
    pub fn ridge_flop_per_byte(self) -> f64 {
        self.gflop_per_s / self.gb_per_s
    }

    /// The most that work of this intensity can reach.
    pub fn attainable_gflop_per_s(self, intensity_flop_per_byte: f64) -> f64 {
        self.gflop_per_s.min(intensity_flop_per_byte * self.gb_per_s)
    }

    /// Which roof work of this intensity lies under.
    pub fn bound(self, intensity_flop_per_byte: f64) -> Bound {
        if intensity_flop_per_byte < self.ridge_flop_per_byte() { Bound::Memory } else { Bound::Compute }
    }

    /// The least time of so many operations on so many bytes, in microseconds: that of the longer one.
    pub fn least_us(self, flop: f64, bytes: f64) -> f64 {
        (flop / self.gflop_per_s).max(bytes / self.gb_per_s) / 1e3
    }

    /// The share of what is attainable that a call reaches.
    ///
    /// # Errors
    /// Above [`ABOVE_ROOF`] it is no measurement.
    pub fn share(self, flop: f64, bytes: f64, us: f64) -> Result<f64, Refused> {
        // As a rate under the roof that is the lower one here.
        match self.bound(intensity_flop_per_byte(flop, bytes)) {
            Bound::Compute => share_of_roof(gflop_per_s(flop, us), self.gflop_per_s),
            _ => share_of_roof(gb_per_s(bytes, us), self.gb_per_s),
        }
    }

    /// What limits a call that was timed.
    pub fn bound_of_call(self, flop: f64, bytes: f64, us: f64) -> Bound {
        if us > FAR_ABOVE * self.least_us(flop, bytes) { Bound::Overhead } else { self.bound(intensity_flop_per_byte(flop, bytes)) }
    }
}

/// A rate over its roof, both in one unit.
///
/// # Errors
/// Above [`ABOVE_ROOF`] it is no measurement.
pub fn share_of_roof(rate: f64, roof: f64) -> Result<f64, Refused> {
    positive(&[("rate", rate), ("roof", roof)])?;
    if rate > ABOVE_ROOF * roof { Err(Refused::AboveRoof { rate, roof }) } else { Ok(rate / roof) }
}

/// The share of `n` times the rate of one that `n` together reach: strong scaling, the same work shared out.
pub fn parallel_efficiency(one_per_s: f64, together_per_s: f64, n: usize) -> f64 {
    together_per_s / (n as f64 * one_per_s)
}

/// How many times as fast as the baseline: below one it is slower.
pub fn speed_ratio(baseline_us: f64, us: f64) -> f64 {
    baseline_us / us
}

/// `2.50 times faster`, `10.7 times slower`: the word follows the ratio.
pub fn speed_in_words(ratio: f64) -> String {
    let times = |x: f64| if x < 10.0 { format!("{x:.2} times") } else { format!("{x:.1} times") };
    match ratio {
        r if !(r > 0.0 && r.is_finite()) => "not compared".to_owned(),
        // What rounds to one is said to be neither.
        r if (r - 1.0).abs() < 0.005 => "as fast".to_owned(),
        r if r > 1.0 => format!("{} faster", times(r)),
        r => format!("{} slower", times(1.0 / r)),
    }
}

/// Whether a side of a comparison traces, compiles or converts at every call, or has done so before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Done once, and not timed.
    Before,
    /// Part of every call.
    EveryCall,
}

/// One side of a claim that a narrower dtype is faster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Side<'a> {
    /// Of a call, in microseconds.
    pub us: f64,
    /// What it computed in, as found on the machine and not as asked for.
    pub dtype: &'a str,
    /// Calls before any counted.
    pub warm_up_calls: usize,
    /// When it was prepared.
    pub preparation: Preparation,
}

/// How many times as fast a narrower dtype is.
///
/// # Errors
/// Where anything but the dtype differs, or the dtype does not.
pub fn precision_speedup(baseline: Side, narrow: Side) -> Result<f64, Refused> {
    positive(&[("baseline", baseline.us), ("narrow", narrow.us)])?;
    if baseline.warm_up_calls == 0 || narrow.warm_up_calls == 0 {
        return Err(Refused::UnequalBaseline("a side was not warmed up"));
    }
    if baseline.preparation != narrow.preparation {
        return Err(Refused::UnequalBaseline("one side is prepared at every call"));
    }
    if baseline.dtype == narrow.dtype {
        return Err(Refused::UnequalBaseline("both sides computed in the same dtype"));
    }
    Ok(speed_ratio(baseline.us, narrow.us))
}

/// The share of requests for memory that the system was not asked for. It says nothing of speed.
pub fn reuse_share(requests: usize, allocations: usize) -> f64 {
    1.0 - allocations as f64 / requests as f64
}

/// The share of the shorter of copy and compute that the other one hides, `(copy + compute - both) / min(copy, compute)`: 1 when
/// the shorter one is hidden, 0 when nothing is, and also when both together take longer than one after the other.
///
/// # Errors
/// When both together were faster than the longer one alone by more than noise: the copy was none.
pub fn overlap_efficiency(copy_us: f64, compute_us: f64, both_us: f64) -> Result<f64, Refused> {
    positive(&[("copy", copy_us), ("compute", compute_us), ("both", both_us)])?;
    let longer_us = copy_us.max(compute_us);
    if ABOVE_ROOF * both_us < longer_us {
        return Err(Refused::FasterThanItsParts { both_us, longer_us });
    }
    Ok(((copy_us + compute_us - both_us) / copy_us.min(compute_us)).clamp(0.0, 1.0))
}

/// Calls after which preparing (compiling, capturing) has paid for itself; never where the prepared call is not faster.
pub fn break_even_calls(prepare_us: f64, eager_us: f64, prepared_us: f64) -> Option<f64> {
    (prepared_us < eager_us).then(|| prepare_us / (eager_us - prepared_us))
}

#[cfg(test)]
mod tests;
