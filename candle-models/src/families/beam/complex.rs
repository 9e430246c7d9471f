//! Complex vectors as interleaved pairs `[N, 2]` (real, imaginary) of f32.

use std::ops::{Add, Mul, Sub};

/// `a^H b`: the inner product that conjugates its first argument.
pub fn inner(a: &[f32], b: &[f32]) -> [f32; 2] {
    let [re, im] = sums::<f32>(a, b);
    [re, im]
}

/// `a^H b` with products and sums in f64.
pub fn inner_f64(a: &[f32], b: &[f32]) -> [f64; 2] {
    sums::<f64>(a, b)
}

/// `out += c x`.
pub fn add_scaled(c: [f32; 2], x: &[f32], out: &mut [f32]) {
    for (out, x) in out.chunks_exact_mut(2).zip(x.chunks_exact(2)) {
        out[0] += c[0] * x[0] - c[1] * x[1];
        out[1] += c[0] * x[1] + c[1] * x[0];
    }
}

/// `a b`.
pub fn product([a, b]: [f32; 2], [c, d]: [f32; 2]) -> [f32; 2] {
    [a * c - b * d, a * d + b * c]
}

/// `||x||^2`, summed in f64.
pub fn squared_norm(x: &[f32]) -> f64 {
    inner_f64(x, x)[0]
}

/// Divides by the norm; a vector whose norm is zero or not finite becomes the first unit vector, so that what is computed
/// with it stays finite.
pub fn normalise(x: &mut [f32]) {
    let norm = squared_norm(x).sqrt();
    if norm > 0. && norm.is_finite() {
        x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    } else {
        x.fill(0.);
        x[0] = 1.;
    }
}

/// Eight running sums, which the compiler keeps in vector registers: `a[k] b[k]`, whose total is the real part, and
/// `a[k] b[k ^ 1]`, where the difference between even and odd places is the imaginary part.
fn sums<T: From<f32> + Default + Copy + std::ops::Mul<Output = T> + std::ops::Add<Output = T> + std::ops::Sub<Output = T>>(
    a: &[f32],
    b: &[f32],
) -> [T; 2] {
    let (mut straight, mut crossed) = ([T::default(); 8], [T::default(); 8]);
    let (a_groups, b_groups) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest = a_groups.remainder().iter().zip(b_groups.remainder().chunks_exact(2).flat_map(|p| [[p[0], p[1]], [p[1], p[0]]]));
    for (k, (a, [b, other])) in rest.enumerate() {
        straight[k] = T::from(*a) * T::from(b);
        crossed[k] = T::from(*a) * T::from(other);
    }
    for (a, b) in a_groups.zip(b_groups) {
        for k in 0..8 {
            straight[k] = straight[k] + T::from(a[k]) * T::from(b[k]);
            crossed[k] = crossed[k] + T::from(a[k]) * T::from(b[k ^ 1]);
        }
    }
    let pairs = |x: [T; 8], f: fn(T, T) -> T| {
        let [a, b, c, d] = [f(x[0], x[1]), f(x[2], x[3]), f(x[4], x[5]), f(x[6], x[7])];
        (a + b) + (c + d)
    };
    [pairs(straight, |even, odd| even + odd), pairs(crossed, |even, odd| even - odd)]
}

/// A complex number in f64: real and imaginary part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Complex(pub f64, pub f64);

impl Complex {
    /// `z*`.
    pub fn conjugate(self) -> Self {
        Self(self.0, -self.1)
    }

    /// `|z|^2`.
    pub fn power(self) -> f64 {
        self.0 * self.0 + self.1 * self.1
    }

    /// `c z`.
    pub fn scaled(self, c: f64) -> Self {
        Self(c * self.0, c * self.1)
    }
}

impl From<[f64; 2]> for Complex {
    fn from([re, im]: [f64; 2]) -> Self {
        Self(re, im)
    }
}

impl Add for Complex {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
}

impl Sub for Complex {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0, self.1 - other.1)
    }
}

impl Mul for Complex {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn inner_products_follow_their_definition() {
        for n in 1..40usize {
            let [a, b] = [0, 1].map(|stream| {
                let mut x = vec![0.; 2 * n];
                Random::new(n as u64).at(stream).fill_normal(0, &mut x);
                x
            });
            let mut expected = [0f64; 2];
            for (a, b) in a.chunks_exact(2).zip(b.chunks_exact(2)) {
                let [ar, ai, br, bi] = [a[0], a[1], b[0], b[1]].map(f64::from);
                expected[0] += ar * br + ai * bi;
                expected[1] += ar * bi - ai * br;
            }
            let (exact, single) = (inner_f64(&a, &b), inner(&a, &b));
            for (k, expected) in expected.into_iter().enumerate() {
                assert!((exact[k] - expected).abs() < 1e-12 * n as f64);
                assert!((f64::from(single[k]) - expected).abs() < 2e-6 * n as f64);
            }
        }
    }

    #[test]
    fn a_vector_without_direction_normalises_to_a_unit_vector() {
        for bad in [0., f32::NAN, f32::INFINITY] {
            let mut x = [bad; 6];
            normalise(&mut x);
            assert_eq!(x, [1., 0., 0., 0., 0., 0.]);
        }
        let mut x = [3., 0., 0., 4.];
        normalise(&mut x);
        assert_eq!(x, [0.6, 0., 0., 0.8]);
    }
}
