//! What normal distributions say of recorded numbers: of all of them, and of a number by a line from the one before.

use candle_models::ops::gaussian::LOG_DEVIATION;

/// A normal distribution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normal {
    pub mean: f64,
    deviation: f64,
}

impl Normal {
    /// None is narrower than an agent can be.
    fn new(mean: f64, variance: f64) -> Self {
        Self { mean, deviation: variance.max(0.0).sqrt().max(f64::from(LOG_DEVIATION[0]).exp()) }
    }

    /// Negative logarithm of the density at `x`.
    pub fn nats(self, x: f32) -> f64 {
        let apart = (f64::from(x) - self.mean) / self.deviation;
        0.5 * apart * apart + self.deviation.ln() + 0.5 * (2.0 * std::f64::consts::PI).ln()
    }
}

/// Means, variances and covariance of pairs, gathered one by one (Welford 1962).
#[derive(Debug, Clone, Copy, Default)]
struct Pairs {
    count: f64,
    means: [f64; 2],
    /// Sums of squares of the first about its mean, of the second, and of products.
    sums: [f64; 3],
}

impl Pairs {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let (dx, dy) = (x - self.means[0], y - self.means[1]);
        self.means[0] += dx / self.count;
        self.means[1] += dy / self.count;
        let (ex, ey) = (x - self.means[0], y - self.means[1]);
        self.sums = [self.sums[0] + dx * ex, self.sums[1] + dy * ey, self.sums[2] + dx * ey];
    }
}

/// The numbers of a column.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Series {
    /// Each with itself.
    all: Pairs,
    /// Each with the one before.
    pairs: Pairs,
}

impl Series {
    /// A number and the one before; `None` in the first frame of an episode.
    pub fn add(&mut self, before: Option<f32>, x: f32) {
        let x = f64::from(x);
        self.all.add(x, x);
        if let Some(before) = before {
            self.pairs.add(f64::from(before), x);
        }
    }

    /// Of all numbers.
    pub fn marginal(&self) -> Normal {
        Normal::new(self.all.means[0], self.all.sums[0] / self.all.count.max(1.0))
    }

    /// Behind a number: about the line of least squares. In the first frame of an episode that of all numbers.
    pub fn behind(&self, before: Option<f32>) -> Normal {
        let Pairs { count, means: [x, y], sums: [xx, yy, xy] } = self.pairs;
        let Some(before) = before.filter(|_| xx > 0.0) else { return self.marginal() };
        let slope = xy / xx;
        Normal::new(y + slope * (f64::from(before) - x), (yy - slope * xy) / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::random::Random;

    #[test]
    fn a_line_with_noise_is_found() {
        let (mut series, mut before, random) = (Series::default(), 2.0f32, Random::new(3));
        // The mean of x' = 0.5 x + 1 + noise is 2, the variance that of the noise over 1 - 0.5^2.
        for t in 0..20_000 {
            let x = 0.5 * before + 1.0 + if random.uniform(t) < 0.5 { 0.1 } else { -0.1 };
            series.add((t > 0).then_some(before), x);
            before = x;
        }
        let (marginal, behind) = (series.marginal(), series.behind(Some(3.0)));
        assert!((marginal.mean - 2.0).abs() < 0.01 && (behind.mean - 2.5).abs() < 0.02, "{marginal:?}, {behind:?}");
        assert!((behind.deviation - 0.1).abs() < 0.002 && (marginal.deviation - 0.1 / 0.75f64.sqrt()).abs() < 0.003);
        let density = (-0.5f64 * 4.0).exp() / (behind.deviation * (2.0 * std::f64::consts::PI).sqrt());
        let at = (behind.mean + 2.0 * behind.deviation) as f32;
        assert!((behind.nats(at) + density.ln()).abs() < 1e-4);
    }

    #[test]
    fn what_never_changes_is_as_narrow_as_an_agent_can_be() {
        let mut series = Series::default();
        (0..9).for_each(|t| series.add((t > 0).then_some(0.25), 0.25));
        for normal in [series.marginal(), series.behind(Some(0.25)), series.behind(None), Series::default().marginal()] {
            assert!((normal.deviation - (-5f64).exp()).abs() < 1e-9, "{normal:?}");
        }
    }
}
