//! Classes from logits: drawn in proportion to their probabilities, or the most likely ones.

use crate::exec::SAMPLE;
use crate::ops::{Rows, exponentials, simd};

/// Draws that are made side by side, one in each lane of vectors: a sum over classes alone waits for itself from class to class.
const LANES: usize = 16;

/// The fewest for which lanes are faster than one draw after the other.
const FEWEST: usize = 5;

/// Classes whose weights lie on the stack.
const NEAR: usize = 32;

/// From what classes are drawn.
pub(crate) struct Draws<'a> {
    /// Columns of a row, one class each.
    pub columns: usize,
    /// `[rows, columns * classes]`. Where a column has a single logit, it is that of class 1 against class 0.
    pub logits: Rows<'a>,
    /// `[rows, columns]`. When [0, 1) is divided in proportion to the classes' probabilities, the class is the one that this number falls on, the last where
    /// it is 1 or more (or NaN). A negative number asks for the most likely class, the first of equals.
    pub uniform: Rows<'a>,
}

impl Draws<'_> {
    /// Puts a class in the place of every [`SAMPLE`] among `classes` `[rows, columns]`.
    pub fn replace(&self, classes: &mut [u32]) {
        // Row, column, and the place among the classes.
        let (mut places, mut count, each) = ([(0, 0, 0); LANES], 0, self.logits.width / self.columns);
        let mut place = 0;
        for r in 0..self.logits.rows {
            for column in 0..self.columns {
                if classes[place] == SAMPLE {
                    places[count] = (r, column, place);
                    count += 1;
                    if count == LANES {
                        self.side_by_side(each, &places, classes);
                        count = 0;
                    }
                }
                place += 1;
            }
        }
        let places = &places[..count];
        if count >= FEWEST {
            return self.side_by_side(each, places, classes);
        }
        for &(r, column, place) in places {
            classes[place] = alone(&self.logits.row(r)[column * each..][..each], self.uniform.row(r)[column]);
        }
    }

    /// The classes of at most as many places as there are lanes.
    fn side_by_side(&self, each: usize, places: &[(usize, usize, usize)], classes: &mut [u32]) {
        let (mut uniform, mut found) = ([-1.0; LANES], [0; LANES]);
        // Class 0 of a single logit has the logit 0.
        let first = usize::from(each == 1);
        with_room(first + each, |weights: &mut [[f32; LANES]]| {
            for (lane, &(r, column, _)) in places.iter().enumerate() {
                uniform[lane] = self.uniform.row(r)[column];
                let logits = &self.logits.row(r)[column * each..][..each];
                weights[first..].iter_mut().zip(logits).for_each(|(weights, logit)| weights[lane] = *logit);
            }
            in_lanes(weights, &uniform, &mut found);
        });
        places.iter().zip(found).for_each(|(&(.., place), class)| classes[place] = class);
    }
}

/// One draw.
fn alone(logits: &[f32], uniform: f32) -> u32 {
    if let [logit] = *logits {
        return alone(&[0.0, logit], uniform);
    }
    if uniform < 0.0 {
        return logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |m, (i, &l)| if l > m.1 { (i, l) } else { m }).0 as u32;
    }
    with_room(logits.len(), |weights: &mut [f32]| {
        exponentials(logits, weights, &mut 0.0);
        with_room(logits.len(), |reached: &mut [f64]| {
            let mut sum = 0.0;
            for (reached, weight) in reached.iter_mut().zip(weights) {
                sum += f64::from(*weight);
                *reached = sum;
            }
            let target = f64::from(uniform) * sum;
            let last = reached.len() - 1;
            // A target that is no number is below none of them.
            last as u32 - reached[..last].iter().map(|reached| u32::from(*reached > target)).sum::<u32>()
        })
    })
}

/// Calls `f` with room for so many values, which are zero.
fn with_room<T: Default + Copy, R>(count: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    match count {
        0..=2 => f(&mut [T::default(); 2][..count]),
        3..=NEAR => f(&mut [T::default(); NEAR][..count]),
        _ => f(&mut vec![T::default(); count]),
    }
}

simd::kernel! {
    /// The classes of a draw in each lane: `logits` by class, which become weights. The sums are in f64, class by class.
    fn in_lanes<S = simd>(logits: &'a mut [[f32; LANES]], uniform: &'a [f32; LANES], classes: &'a mut [u32; LANES]) {
        // In registers: written as the loops below, this one stays a lane after the other.
        let mut most = [0.0; LANES];
        for at in (0..LANES).step_by(S::F32_LANES) {
            let lanes = at..at + S::F32_LANES;
            let (mut largest, mut likeliest) = (simd.splat_f32s(f32::NEG_INFINITY), simd.splat_u32s(0));
            for (class, logits) in logits.iter().enumerate() {
                let logits = S::as_simd_f32s(&logits[lanes.clone()]).0[0];
                let is_more = simd.greater_than_f32s(logits, largest);
                largest = simd.select_f32s(is_more, logits, largest);
                likeliest = simd.select_u32s(is_more, simd.splat_u32s(class as u32), likeliest);
            }
            S::as_mut_simd_f32s(&mut most[lanes.clone()]).0[0] = largest;
            S::as_mut_simd_u32s(&mut classes[lanes]).0[0] = likeliest;
        }
        if uniform.iter().all(|uniform| *uniform < 0.0) {
            return;
        }
        let mut sum = [0.0; LANES];
        for weights in logits.iter_mut() {
            for lane in 0..LANES {
                weights[lane] = simd::exp::<S>(weights[lane] - most[lane]);
                sum[lane] += f64::from(weights[lane]);
            }
        }
        let (mut reached, mut beyond, last) = ([0.0; LANES], [0; LANES], logits.len() - 1);
        let target: [f64; LANES] = std::array::from_fn(|lane| f64::from(uniform[lane]) * sum[lane]);
        for weights in &logits[..last] {
            for lane in 0..LANES {
                reached[lane] += f64::from(weights[lane]);
                beyond[lane] += u32::from(reached[lane] > target[lane]);
            }
        }
        for lane in 0..LANES {
            classes[lane] = if uniform[lane] < 0.0 { classes[lane] } else { last as u32 - beyond[lane] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Draws;
    use crate::exec::SAMPLE;
    use crate::ops::Rows;
    use crate::random::{Random, categorical};

    /// The classes of so many columns a row, from their logits one behind the other.
    fn classes(columns: usize, logits: &[Vec<f32>], uniform: impl Fn(usize) -> f32) -> Vec<u32> {
        let (rows, each) = (logits.len() / columns, logits[0].len());
        let uniform: Vec<f32> = (0..logits.len()).map(uniform).collect();
        let (mut classes, logits) = (vec![SAMPLE; logits.len()], logits.concat());
        let matrix = |data, width| Rows { data, rows, width, stride: width };
        Draws { columns, logits: matrix(&logits, columns * each), uniform: matrix(&uniform, columns) }.replace(&mut classes);
        classes
    }

    #[test]
    fn classes_are_drawn_as_from_weights_one_after_the_other() {
        let random = Random::new(3);
        for case in 0..400 {
            // Up to more classes than lie on the stack, and every number of draws that lanes have room for or not.
            let (count, columns, rows) = (1 + case as usize % 40, 1 + case as usize % 3, 1 + case as usize % 37);
            let at = |draw: usize, class: usize| (case * 128 + draw as u64) * 64 + class as u64;
            let logit = |draw: usize, class: usize| 40.0 * random.uniform(at(draw, class)) - 20.0;
            let logits: Vec<Vec<f32>> = (0..rows * columns).map(|draw| (0..count).map(|class| logit(draw, class)).collect()).collect();
            let all = |logits: &[f32]| if let [logit] = *logits { vec![0.0, logit] } else { logits.to_vec() };
            let most = |logits: &[f32]| logits.iter().fold(f32::NEG_INFINITY, |m, l| m.max(*l));
            for uniform in [0.0, 0.999_999_94, 1.0, random.uniform(1 << 40 | case)] {
                for (class, logits) in classes(columns, &logits, |_| uniform).into_iter().zip(&logits) {
                    let logits = all(logits);
                    let weights = logits.iter().map(|l| f64::from(l - most(&logits)).exp() as f32);
                    // Beside a border, where the exponential's rounding decides, either class is right.
                    let [a, b] = [-1e-5, 1e-5].map(|by| categorical((uniform + by).max(0.0), weights.clone()) as u32);
                    assert!((a..=b).contains(&class), "{logits:?} at {uniform}");
                }
            }
            let [likeliest, last] = [-1.0, f32::NAN].map(|uniform| classes(columns, &logits, |_| uniform));
            for ((likeliest, last), logits) in likeliest.into_iter().zip(last).zip(&logits) {
                let logits = all(logits);
                assert_eq!((logits[likeliest as usize], last), (most(&logits), logits.len() as u32 - 1));
            }
            let different = |i: usize| random.uniform(1 << 41 | i as u64) - 0.2;
            let alone = logits.iter().enumerate().flat_map(|(i, one)| classes(1, std::slice::from_ref(one), |_| different(i)));
            assert_eq!(classes(columns, &logits, different), alone.collect::<Vec<_>>(), "many draws equal each one alone");
        }
    }

    #[test]
    fn of_equal_logits_the_first_is_the_most_likely_and_what_is_no_number_is_the_least() {
        let logits = [vec![1.0, 2.0, 2.0], vec![f32::NAN, -1.0, f32::NAN], vec![f32::NAN; 3]];
        assert_eq!(classes(1, &logits, |_| -1.0), [1, 1, 0]);
        assert_eq!(classes(3, &[vec![0.0], vec![f32::NAN], vec![1e-3]], |_| -1.0), [0, 0, 1]);
    }

    #[test]
    fn classes_that_are_given_stay() {
        let logits = [1.0, 2.0, 3.0, 4.0];
        let (mut classes, rows) = (vec![7, SAMPLE], |data, width| Rows { data, rows: 1, width, stride: width });
        Draws { columns: 2, logits: rows(&logits, 4), uniform: rows(&[-1.0; 2], 2) }.replace(&mut classes);
        assert_eq!(classes, [7, 1]);
    }
}
