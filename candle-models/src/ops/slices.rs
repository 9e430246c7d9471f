//! What a trainer on the CPU does with flat slices of numbers, compiled for every instruction set as the operations are: sums, norms,
//! the optimiser's update. Every function gives the same bits on every instruction set.
//!
//! ```
//! use candle_models::ops::slices;
//!
//! let mut sum = [1.0, 2.0];
//! slices::add(&mut sum, &[2.0, 2.0]);
//! assert_eq!((sum, slices::sum_of_squares(&sum)), ([3.0, 4.0], 25.0));
//! ```

use super::simd::kernel;
use half::f16;

/// The numbers of one step of [`adamw`] that are the same for every value of a group of parameters.
///
/// The layout is that of `Factors` in the trainer's `adamw.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AdamwFactors {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// 1 - beta1, subtracted in f64: 1 - 0.999 in f32 is off by 1.3e-5 of itself.
    pub fresh1: f32,
    /// 1 - beta2, subtracted in f64.
    pub fresh2: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// 1 - lr * decay.
    pub keep: f32,
    /// lr / (1 - beta1^t).
    pub rate: f32,
    /// 1 / sqrt(1 - beta2^t).
    pub unbias: f32,
    /// 1 - ema decay.
    pub follow: f32,
}

kernel! {
    /// One step of AdamW (Loshchilov and Hutter 2019, algorithm 2) with a moving average of the parameters, in place. Gradients are multiplied
    /// by `scale` first. All slices have one length.
    pub fn adamw<S>(
        parameters: &'a mut [f32],
        gradients: &'a [f32],
        mean: &'a mut [f32],
        square: &'a mut [f32],
        average: &'a mut [f32],
        scale: f32,
        f: AdamwFactors,
    ) {
        let memory = mean.iter_mut().zip(square.iter_mut()).zip(average.iter_mut());
        for ((p, g), ((m, v), e)) in parameters.iter_mut().zip(gradients).zip(memory) {
            let g = g * scale;
            *m = f.beta1 * *m + f.fresh1 * g;
            *v = f.beta2 * *v + f.fresh2 * g * g;
            *p = *p * f.keep - f.rate * *m / (v.sqrt() * f.unbias + f.eps);
            *e += f.follow * (*p - *e);
        }
    }
}

kernel! {
    /// Adds to every value of `sum` the one of `x`.
    pub fn add<S>(sum: &'a mut [f32], x: &'a [f32]) {
        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    }
}

kernel! {
    fn squares<S>(chunks: &'a [[f32; 8]], lanes: &'a mut [f64; 8]) {
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += f64::from(*x) * f64::from(*x));
        }
    }
}

/// The sum of squares, in f64 and over eight lanes: one sum waits four cycles for each value.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    let (chunks, tail) = x.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    squares(chunks, &mut lanes);
    lanes.iter().sum::<f64>() + tail.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
}

kernel! {
    // Without an early end, so that the compiler makes vectors of it.
    fn exponents<S>(x: &'a [f16], below_infinity: &'a mut bool) {
        *below_infinity = x.iter().fold(true, |below, x| below & (x.to_bits() & 0x7c00 != 0x7c00));
    }
}

/// Whether none of the numbers is infinite or not a number.
pub fn are_finite(x: &[f16]) -> bool {
    let mut finite = true;
    exponents(x, &mut finite);
    finite
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Lengths around the width of a vector.
    const LENGTHS: [usize; 7] = [0, 1, 7, 8, 9, 67, 1000];

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let random = Random::new(seed);
        (0..n as u64).map(|i| random.uniform(i) * 4.0 - 2.0).collect()
    }

    #[test]
    fn sums_are_those_of_single_values() {
        for n in LENGTHS {
            let (mut sum, x) = (numbers(n, 1), numbers(n, 2));
            let expected: Vec<f32> = sum.iter().zip(&x).map(|(a, b)| a + b).collect();
            add(&mut sum, &x);
            assert_eq!(sum, expected);
            let expected: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            assert!((sum_of_squares(&x) - expected).abs() <= 1e-12 * expected, "{n} values");
        }
    }

    #[test]
    fn one_number_that_is_not_finite_is_found_wherever_it_stands() {
        let finite = [f16::MAX, f16::MIN, f16::ZERO, f16::MIN_POSITIVE_SUBNORMAL];
        for n in LENGTHS {
            let mut x: Vec<f16> = finite.into_iter().cycle().take(n).collect();
            assert!(are_finite(&x));
            for i in 0..n {
                for bad in [f16::INFINITY, f16::NEG_INFINITY, f16::NAN] {
                    let good = std::mem::replace(&mut x[i], bad);
                    assert!(!are_finite(&x), "{bad} at {i} of {n}");
                    x[i] = good;
                }
            }
        }
    }

    #[test]
    fn a_step_of_adamw_is_the_one_in_f64() {
        let f = AdamwFactors {
            beta1: 0.9,
            beta2: 0.999,
            fresh1: 0.1,
            fresh2: 0.001,
            eps: 1e-8,
            keep: 0.99,
            rate: 0.01,
            unbias: 30.0,
            follow: 0.5,
        };
        for n in LENGTHS {
            let (mut p, g, mut m, mut e) = (numbers(n, 1), numbers(n, 2), numbers(n, 3), numbers(n, 4));
            let mut v: Vec<f32> = numbers(n, 5).iter().map(|x| x * x).collect();
            let before = [&p, &m, &v, &e].map(Clone::clone);
            adamw(&mut p, &g, &mut m, &mut v, &mut e, 0.5, f);
            for i in 0..n {
                let [p0, m0, v0, e0] = [0, 1, 2, 3].map(|k| f64::from(before[k][i]));
                let g = 0.5 * f64::from(g[i]);
                let m1 = 0.9 * m0 + 0.1 * g;
                let v1 = 0.999 * v0 + 0.001 * g * g;
                let p1 = 0.99 * p0 - 0.01 * m1 / (v1.sqrt() * 30.0 + 1e-8);
                let expected = [p1, m1, v1, e0 + 0.5 * (p1 - e0)];
                for (found, expected) in [p[i], m[i], v[i], e[i]].into_iter().zip(expected) {
                    assert!((f64::from(found) - expected).abs() < 2e-6, "{found} for {expected}, value {i} of {n}");
                }
            }
            // A value alone is no vector: the same bits, whatever the width of this machine's vectors.
            for (i, g) in g.iter().enumerate() {
                let mut alone = [0, 1, 2, 3].map(|k| before[k][i]);
                let [p0, m0, v0, e0] = alone.each_mut().map(std::slice::from_mut);
                adamw(p0, std::slice::from_ref(g), m0, v0, e0, 0.5, f);
                assert_eq!(alone.map(f32::to_bits), [p[i], m[i], v[i], e[i]].map(f32::to_bits), "value {i} of {n}");
            }
        }
    }
}
