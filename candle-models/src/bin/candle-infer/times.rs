//! Durations counted in buckets: percentiles in constant memory, however many there are.

use std::time::Duration;

/// Buckets per power of two: a percentile is off by at most 1/64.
const FINE: u32 = 6;

/// A histogram of durations.
#[derive(Debug, Clone)]
pub struct Times {
    buckets: Vec<u64>,
    count: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: vec![0; 1 + bucket(u64::MAX)], count: 0 }
    }
}

impl Times {
    /// Counts one.
    pub fn add(&mut self, time: Duration) {
        self.buckets[bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.count += 1;
    }

    /// The time that a share of the counted ones (0 to 1) does not exceed; zero without any.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        Duration::from_nanos(found.map_or(0, lowest))
    }
}

/// Values below 2^6 have a bucket each; above, the six bits behind the leading one choose it.
fn bucket(nanos: u64) -> usize {
    let shift = (63 - (nanos | 1).leading_zeros()).saturating_sub(FINE);
    ((u64::from(shift) << FINE) + (nanos >> shift)) as usize
}

fn lowest(bucket: usize) -> u64 {
    let shift = ((bucket >> FINE) as u32).saturating_sub(1);
    ((bucket as u64) - (u64::from(shift) << FINE)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_the_bucket_that_starts_at_or_below_it() {
        for value in (0..5000).chain([1 << 20, (1 << 40) + 12345, u64::MAX - 1, u64::MAX]) {
            let low = lowest(bucket(value));
            assert!(low <= value && value - low <= value / 64, "{value} in the bucket of {low}");
            assert_eq!(bucket(low), bucket(value));
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut times = Times::default();
        assert_eq!(times.percentile(0.5), Duration::ZERO);
        (1..=1000).for_each(|us| times.add(Duration::from_micros(us)));
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = times.percentile(share).as_nanos() as f64 / 1000.0;
            assert!((found - us).abs() <= us / 64.0, "{share}: {found} us");
        }
    }
}
