//! Order statistics of numbers that are not negative: their bits have their order.

/// Bits of a number that choose its bucket: sign, exponent and the first four of the fraction.
const BITS: u32 = 13;
const BUCKETS: usize = 1 << (BITS - 1);

/// What order statistics are found with.
#[derive(Debug, Clone, Default)]
pub struct Rank {
    counts: Vec<u32>,
    inside: Vec<f32>,
}

impl Rank {
    /// The median of the lowest share of the numbers; of the lowest one where that is less than one.
    pub fn median_of_lowest(&mut self, values: &[f32], share: f64) -> f64 {
        let count = ((share * values.len() as f64) as usize).max(1);
        let [low, high] = [(count - 1) / 2, count / 2].map(|place| f64::from(self.at(values, place)));
        (low + high) / 2.0
    }

    /// The number with so many below it, in the order of size.
    pub fn at(&mut self, values: &[f32], place: usize) -> f32 {
        let bucket = |x: f32| (x.to_bits() >> (32 - BITS)) as usize & (BUCKETS - 1);
        self.counts.clear();
        self.counts.resize(BUCKETS, 0);
        values.iter().for_each(|x| self.counts[bucket(*x)] += 1);
        let (mut below, mut of) = (0, 0);
        for (i, count) in self.counts.iter().enumerate() {
            of = i;
            if below + *count as usize > place {
                break;
            }
            below += *count as usize;
        }
        self.inside.clear();
        self.inside.extend(values.iter().filter(|x| bucket(**x) == of));
        let place = (place - below).min(self.inside.len().saturating_sub(1));
        if self.inside.is_empty() {
            return 0.0;
        }
        *self.inside.select_nth_unstable_by(place, f32::total_cmp).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_place_is_that_of_the_sorted_numbers() {
        for n in [1, 2, 3, 100, 5000] {
            let mut values: Vec<f32> = (0..n).map(|i| Random::new(n).normal(i).powi(2)).collect();
            values[0] = 0.0;
            let mut sorted = values.clone();
            sorted.sort_by(f32::total_cmp);
            let mut rank = Rank::default();
            for place in [0, n as usize / 7, n as usize / 2, n as usize - 1] {
                assert_eq!(rank.at(&values, place), sorted[place]);
            }
        }
    }
}
