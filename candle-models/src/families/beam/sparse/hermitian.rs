//! Hermitian matrices of measurements on the CPU, packed: the real parts of the entries below the diagonal, row by row, their imaginary parts, then the diagonal,
//! `T^2` numbers. Complex vectors have their real parts in front of all imaginary ones.

use crate::ops::simd::kernel;

/// Of every entry of a packed matrix of measurements with beams of these `numbers`, the entry of a packed one of `count` beams, and its factor.
pub(super) fn places(numbers: &[usize], count: usize) -> Vec<(usize, f32)> {
    let half = count * (count - 1) / 2;
    let below = |i: usize, j: usize| i * (i - 1) / 2 + j;
    let pairs = || (0..numbers.len()).flat_map(|i| (0..i).map(move |j| (numbers[i], numbers[j])));
    let real = pairs().map(|(i, j)| if i == j { (2 * half + i, 1.0) } else { (below(i.max(j), i.min(j)), 1.0) });
    let imaginary =
        pairs().map(|(i, j)| if i == j { (0, 0.0) } else { (half + below(i.max(j), i.min(j)), if i > j { 1.0 } else { -1.0 }) });
    real.chain(imaginary).chain(numbers.iter().map(|i| (2 * half + i, 1.0))).collect()
}

/// `e e^H` of every direction of arrival.
pub(super) fn outer_all(seen: &[f32], received: &mut [f32], t: usize) {
    seen.chunks_exact(2 * t).zip(received.chunks_exact_mut(t * t)).for_each(|(seen, received)| outer(seen, received));
}

/// `s s^H` of `s` `[2, T]`.
pub(super) fn outer(s: &[f32], out: &mut [f32]) {
    let t = s.len() / 2;
    let (re, im) = s.split_at(t);
    let (below, diagonal) = out.split_at_mut(t * (t - 1));
    let (out_re, out_im) = below.split_at_mut(t * (t - 1) / 2);
    let mut at = 0;
    for i in 0..t {
        for j in 0..i {
            out_re[at + j] = re[i] * re[j] + im[i] * im[j];
            out_im[at + j] = im[i] * re[j] - re[i] * im[j];
        }
        diagonal[i] = re[i] * re[i] + im[i] * im[i];
        at += i;
    }
}

/// Real and imaginary parts below the diagonal, and the diagonal.
pub(super) fn parts(packed: &[f32], t: usize) -> [&[f32]; 3] {
    let (below, diagonal) = packed.split_at(t * (t - 1));
    let (re, im) = below.split_at(t * (t - 1) / 2);
    [re, im, diagonal]
}

kernel! {
    /// The sum of entry by entry products of packed matrices.
    pub(super) fn covariance<S>(a: &'a [f32], b: &'a [f32], out: &'a mut [f32], t: usize) {
        out.fill(0.0);
        let half = t * (t - 1) / 2;
        let (below, diagonal) = out.split_at_mut(2 * half);
        let (re, im) = below.split_at_mut(half);
        for (a, b) in a.chunks_exact(t * t).zip(b.chunks_exact(t * t)) {
            let ([a_re, a_im, a], [b_re, b_im, b]) = (parts(a, t), parts(b, t));
            for i in 0..half {
                re[i] += a_re[i] * b_re[i] - a_im[i] * b_im[i];
                im[i] += a_re[i] * b_im[i] + a_im[i] * b_re[i];
            }
            for i in 0..t {
                diagonal[i] += a[i] * b[i];
            }
        }
    }
}

/// All entries of a packed matrix with the noise on its diagonal, `[2, T, T]`.
pub(super) fn unpack(packed: &[f32], noise: f32, out: &mut [f32], t: usize) {
    let [re, im, diagonal] = parts(packed, t);
    let (out_re, out_im) = out.split_at_mut(t * t);
    let mut at = 0;
    for i in 0..t {
        for j in 0..i {
            (out_re[i * t + j], out_re[j * t + i]) = (re[at + j], re[at + j]);
            (out_im[i * t + j], out_im[j * t + i]) = (im[at + j], -im[at + j]);
        }
        (out_re[i * t + i], out_im[i * t + i]) = (diagonal[i] + noise, 0.0);
        at += i;
    }
}

/// A Hermitian matrix, twice what is below the diagonal.
pub(super) fn pack(all: &[f32], out: &mut [f32], t: usize) {
    let (re, im) = all.split_at(t * t);
    let half = t * (t - 1) / 2;
    let mut at = 0;
    for i in 0..t {
        for j in 0..i {
            (out[at + j], out[half + at + j]) = (2.0 * re[i * t + j], 2.0 * im[i * t + j]);
        }
        out[2 * half + i] = re[i * t + i];
        at += i;
    }
}

kernel! {
    /// The inverse of a positive definite matrix `[2, T, T]`, in its place and Hermitian, by Gauss and Jordan: without a change of rows, which such a matrix does not
    /// need. `row` is to work in.
    pub(super) fn invert<S>(matrix: &'a mut [f32], row: &'a mut [f32], t: usize) {
        let ((re, im), (row_re, row_im)) = (matrix.split_at_mut(t * t), row.split_at_mut(t));
        for k in 0..t {
            let pivot = 1.0 / re[k * t + k];
            (re[k * t + k], im[k * t + k]) = (1.0, 0.0);
            for j in 0..t {
                (re[k * t + j], im[k * t + j]) = (re[k * t + j] * pivot, im[k * t + j] * pivot);
                (row_re[j], row_im[j]) = (re[k * t + j], im[k * t + j]);
            }
            for i in (0..t).filter(|i| *i != k) {
                let (a, b) = (re[i * t + k], im[i * t + k]);
                (re[i * t + k], im[i * t + k]) = (0.0, 0.0);
                let (re, im) = (&mut re[i * t..][..t], &mut im[i * t..][..t]);
                for j in 0..t {
                    re[j] -= a * row_re[j] - b * row_im[j];
                    im[j] -= a * row_im[j] + b * row_re[j];
                }
            }
        }
        // Rounding has made the triangles differ. What reads one of them and what reads both would see two matrices, and likelihoods amplify that.
        for i in 0..t {
            for j in 0..i {
                let (a, b) = (0.5 * (re[i * t + j] + re[j * t + i]), 0.5 * (im[i * t + j] - im[j * t + i]));
                (re[i * t + j], im[i * t + j]) = (a, b);
                (re[j * t + i], im[j * t + i]) = (a, -b);
            }
            im[i * t + i] = 0.0;
        }
    }
}

/// A matrix `[2, T, T]` times `y` `[2, T]`.
pub(super) fn solve(matrix: &[f32], y: &[f32], z: &mut [f32]) {
    let t = y.len() / 2;
    let ((y_re, y_im), (z_re, z_im)) = (y.split_at(t), z.split_at_mut(t));
    for (i, (a_re, a_im)) in matrix[..t * t].chunks_exact(t).zip(matrix[t * t..].chunks_exact(t)).enumerate() {
        let (mut re, mut im) = (0.0, 0.0);
        for j in 0..t {
            re += a_re[j] * y_re[j] - a_im[j] * y_im[j];
            im += a_re[j] * y_im[j] + a_im[j] * y_re[j];
        }
        (z_re[i], z_im[i]) = (re, im);
    }
}

kernel! {
    /// A packed matrix times the conjugate of each of `received`, entry by entry.
    pub(super) fn spread<S>(c: &'a [f32], received: &'a [f32], out: &'a mut [f32], t: usize) {
        let half = t * (t - 1) / 2;
        let [c_re, c_im, c] = parts(c, t);
        for (e, out) in received.chunks_exact(t * t).zip(out.chunks_exact_mut(t * t)) {
            let [e_re, e_im, e] = parts(e, t);
            let (below, diagonal) = out.split_at_mut(2 * half);
            let (re, im) = below.split_at_mut(half);
            for i in 0..half {
                re[i] = c_re[i] * e_re[i] + c_im[i] * e_im[i];
                im[i] = c_im[i] * e_re[i] - c_re[i] * e_im[i];
            }
            for i in 0..t {
                diagonal[i] = c[i] * e[i];
            }
        }
    }
}
