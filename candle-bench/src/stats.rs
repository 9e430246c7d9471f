//! Percentiles, means and confidence intervals of timings. Units are the caller's.

use candle_models::random::Random;
use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 1000;
/// Blocks that consecutive samples are put into before resampling: neighbouring timings are not independent.
const BLOCKS: usize = 100;

/// A 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The 2.5% point.
    pub low: f64,
    /// The 97.5% point.
    pub high: f64,
}

impl Interval {
    /// The interval of the inverse of a positive figure.
    pub fn inverse(self) -> Self {
        Self { low: 1.0 / self.high, high: 1.0 / self.low }
    }

    /// Whether some value lies in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// What is reported of a set of timings, in the samples' unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Samples.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// 95% interval of the mean, bootstrapped over blocks of consecutive samples.
    pub mean_ci: Interval,
    /// Median.
    pub p50: f64,
    /// 90th percentile; empty, as every percentile below, when no sample lies beyond it.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
    /// Largest sample.
    pub max: f64,
}

impl Summary {
    /// Summarises `samples` in the order they were taken. `None` when there are none or one is not finite.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|s| !s.is_finite()) {
            return None;
        }
        let sorted = sorted(samples);
        Some(Self {
            n: samples.len(),
            mean: mean(samples),
            mean_ci: mean_interval(samples),
            p50: median(&sorted),
            p90: percentile(&sorted, 0.9),
            p95: percentile(&sorted, 0.95),
            p99: percentile(&sorted, 0.99),
            p99_9: percentile(&sorted, 0.999),
            max: sorted[sorted.len() - 1],
        })
    }
}

/// A sorted copy.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The arithmetic mean; NaN without samples.
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// The median of sorted samples, the mean of the middle two for an even count; NaN without samples.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
    }
}

/// The nearest-rank percentile of sorted samples: the smallest with at least `q` of all samples at or below it.
/// `None` when fewer than one sample is expected beyond it: that would be the maximum under another name.
pub fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let n = sorted.len() as f64;
    // The slack keeps 1000 * (1 - 0.999) from falling below one by rounding.
    if n * (1.0 - q) < 1.0 - 1e-9 {
        return None;
    }
    let rank = (n * q - 1e-9).ceil().max(1.0) as usize;
    Some(sorted[rank - 1])
}

/// The 95% bootstrap interval of the mean of consecutive samples, resampling whole blocks.
fn mean_interval(samples: &[f64]) -> Interval {
    let length = samples.len().div_ceil(BLOCKS);
    let blocks: Vec<(f64, usize)> = samples.chunks(length).map(|c| (c.iter().sum(), c.len())).collect();
    bootstrap(blocks.len(), |picks| {
        let (sum, count) = picks.iter().fold((0.0, 0), |(s, n), &i| (s + blocks[i].0, n + blocks[i].1));
        sum / count as f64
    })
}

/// The 95% bootstrap interval of the median of independent values.
pub fn median_interval(values: &[f64]) -> Interval {
    bootstrap(values.len(), |picks| median(&sorted(&picks.iter().map(|&i| values[i]).collect::<Vec<_>>())))
}

/// `y = a x^b`, by least squares on the logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerLaw {
    /// a, in the unit of y.
    pub factor: f64,
    /// b.
    pub exponent: f64,
    /// Standard error of b; none from two points, on which every line lies.
    pub standard_error: Option<f64>,
    /// Points.
    pub points: usize,
    /// The smallest and the largest x: it says nothing beyond them.
    pub range: Interval,
}

impl PowerLaw {
    /// Through pairs of x and y. `None` where a value is not positive, or fewer than two x differ.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        if points.iter().any(|(x, y)| !(x.is_finite() && y.is_finite() && *x > 0.0 && *y > 0.0)) {
            return None;
        }
        let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        let n = logs.len() as f64;
        let (mean_x, mean_y) = logs.iter().fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x / n, sy + y / n));
        let (sxx, sxy) = logs.iter().fold((0.0, 0.0), |(sxx, sxy), (x, y)| {
            let dx = x - mean_x;
            (sxx + dx * dx, sxy + dx * (y - mean_y))
        });
        let xs = points.iter().map(|(x, _)| *x);
        let range = Interval { low: xs.clone().fold(f64::INFINITY, f64::min), high: xs.fold(0.0, f64::max) };
        if range.low >= range.high {
            return None;
        }
        let exponent = sxy / sxx;
        let offset = mean_y - exponent * mean_x;
        let residue: f64 = logs.iter().map(|(x, y)| (y - offset - exponent * x).powi(2)).sum();
        let standard_error = (points.len() > 2).then(|| (residue / (n - 2.0) / sxx).sqrt());
        Some(Self { factor: offset.exp(), exponent, standard_error, points: points.len(), range })
    }

    /// The 95% interval of the exponent by Student's t: few points say little.
    pub fn exponent_ci(&self) -> Option<Interval> {
        /// The 97.5% points for 1, 2 ... degrees of freedom; with more, the last one is a little wide.
        const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
        let half = self.standard_error? * T[self.points.saturating_sub(3).min(T.len() - 1)];
        Some(Interval { low: self.exponent - half, high: self.exponent + half })
    }
}

/// The 2.5% and 97.5% points of `statistic` over resamples of `0..n`. The draws are the same in every run.
fn bootstrap(n: usize, mut statistic: impl FnMut(&[usize]) -> f64) -> Interval {
    let random = Random::new(0).stream("bootstrap");
    let mut picks = vec![0; n];
    let mut values: Vec<f64> = Vec::with_capacity(RESAMPLES);
    for resample in 0..RESAMPLES as u64 {
        for (i, pick) in picks.iter_mut().enumerate() {
            *pick = random.at(resample).below(i as u64, n as u32) as usize;
        }
        values.push(statistic(&picks));
    }
    values.sort_by(f64::total_cmp);
    Interval { low: values[RESAMPLES * 25 / 1000], high: values[RESAMPLES * 975 / 1000 - 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.5), Some(50.0));
        assert_eq!(percentile(&hundred, 0.9), Some(90.0));
        assert_eq!(percentile(&hundred, 0.99), Some(99.0));
        assert_eq!(median(&hundred), 50.5);
        let thousand: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&thousand, 0.999), Some(999.0));
    }

    #[test]
    fn a_tail_without_samples_is_not_invented() {
        let few: Vec<f64> = (1..=99).map(f64::from).collect();
        let summary = Summary::of(&few).unwrap();
        assert_eq!((summary.p90, summary.p99, summary.p99_9), (Some(90.0), None, None));
        assert_eq!(summary.max, 99.0);
    }

    #[test]
    fn nothing_and_nan_have_no_summary() {
        assert!(Summary::of(&[]).is_none());
        assert!(Summary::of(&[1.0, f64::NAN]).is_none());
    }

    #[test]
    fn exponential_timings_give_the_known_percentiles() {
        // Inverse transform of evenly spread uniforms, shuffled: mean 100, p(q) = -100 ln(1 - q).
        let n = 20_000;
        let exponential = |i: u32| -100.0 * (1.0 - (f64::from(i) + 0.5) / f64::from(n)).ln();
        let samples: Vec<f64> = Random::new(7).permutation(n as usize).into_iter().map(exponential).collect();
        let summary = Summary::of(&samples).unwrap();
        for (q, found) in [(0.5, Some(summary.p50)), (0.9, summary.p90), (0.95, summary.p95), (0.99, summary.p99), (0.999, summary.p99_9)] {
            let expected = -100.0 * (1.0_f64 - q).ln();
            assert!((found.unwrap() - expected).abs() < 0.01 * expected, "p{q}: {found:?}, expected {expected}");
        }
        assert!((summary.mean - 100.0).abs() < 0.5, "{}", summary.mean);
        // The standard error of the mean is 100 / sqrt(n): the interval is about 1.96 of them on either side.
        let half = 0.5 * (summary.mean_ci.high - summary.mean_ci.low);
        let expected = 1.96 * 100.0 / f64::from(n).sqrt();
        assert!((half / expected - 1.0).abs() < 0.3, "half width {half}, expected {expected}");
        assert!(summary.mean_ci.low < 100.0 && 100.0 < summary.mean_ci.high);
    }

    #[test]
    fn bursts_widen_the_interval() {
        // The same values, once alternating and once in two long phases: only blocks see the difference.
        let alternating: Vec<f64> = (0..2000).map(|i| f64::from(i % 2)).collect();
        let phases: Vec<f64> = (0..2000).map(|i| f64::from(i / 1000)).collect();
        let width = |s: &[f64]| mean_interval(s).high - mean_interval(s).low;
        assert!(width(&phases) > 5.0 * width(&alternating), "{} {}", width(&phases), width(&alternating));
    }

    #[test]
    fn intervals_that_touch_overlap_and_an_inverse_keeps_its_order() {
        let of = |low, high| Interval { low, high };
        assert!(of(1.0, 2.0).overlaps(of(2.0, 3.0)) && of(2.0, 3.0).overlaps(of(1.0, 2.0)) && of(0.0, 9.0).overlaps(of(4.0, 5.0)));
        assert!(!of(1.0, 2.0).overlaps(of(2.1, 3.0)) && !of(2.1, 3.0).overlaps(of(1.0, 2.0)));
        assert_eq!(of(2.0, 4.0).inverse(), of(0.25, 0.5));
    }

    #[test]
    fn the_interval_of_a_median_holds_it() {
        let values: Vec<f64> = (0..21).map(|i| 2.0 + 0.01 * f64::from(i)).collect();
        let interval = median_interval(&values);
        assert!(interval.low >= 2.0 && interval.low < 2.1 && 2.1 < interval.high && interval.high <= 2.2, "{interval:?}");
        assert_eq!(median_interval(&[3.0]), Interval { low: 3.0, high: 3.0 });
    }

    #[test]
    fn a_power_law_is_found_with_its_error() {
        let exact: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0f64].map(|x| (x, 3.0 * x.powf(1.5))).into();
        let found = PowerLaw::fit(&exact).unwrap();
        assert!((found.exponent - 1.5).abs() < 1e-12 && (found.factor - 3.0).abs() < 1e-12, "{found:?}");
        assert!(found.standard_error.unwrap() < 1e-9 && found.points == 5);
        assert_eq!(found.range, Interval { low: 1.0, high: 16.0 });
        // Ordinary least squares on ln x = 0, 1, 2, 3 and ln y = 0, 1, 1, 2: b = 0.6, residuals -0.1, 0.3, -0.3, 0.1, so that the
        // error is sqrt(0.2 / 2 / 5).
        let e = std::f64::consts::E;
        let noisy = PowerLaw::fit(&[(1.0, 1.0), (e, e), (e * e, e), (e * e * e, e * e)]).unwrap();
        assert!((noisy.exponent - 0.6).abs() < 1e-12 && (noisy.factor - 0.1f64.exp()).abs() < 1e-12, "{noisy:?}");
        assert!((noisy.standard_error.unwrap() - 0.02f64.sqrt()).abs() < 1e-12, "{noisy:?}");
        let interval = noisy.exponent_ci().unwrap();
        assert!((interval.high - 0.6 - 4.303 * 0.02f64.sqrt()).abs() < 1e-12 && interval.low < 0.6, "{interval:?}");
    }

    #[test]
    fn a_power_law_needs_two_places_and_positive_values() {
        let two = PowerLaw::fit(&[(1.0, 2.0), (2.0, 8.0)]).unwrap();
        assert!((two.exponent - 2.0).abs() < 1e-12 && two.standard_error.is_none() && two.exponent_ci().is_none());
        assert!(PowerLaw::fit(&[(2.0, 1.0), (2.0, 3.0), (2.0, 2.0)]).is_none());
        assert!(PowerLaw::fit(&[(1.0, 0.0), (2.0, 1.0)]).is_none() && PowerLaw::fit(&[(1.0, f64::NAN), (2.0, 1.0)]).is_none());
        assert!(PowerLaw::fit(&[]).is_none());
    }
}
