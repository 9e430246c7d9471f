//! `out += x^T dy` for few columns: the gradient of a small weight that is applied at many places, or of one of many small weights. Rows are read where
//! they lie and nothing is packed, which takes longer than the products themselves where a matrix has 24 columns or one row.

use super::{OutPointer, Rows, simd};
use pulp::{Simd, WithSimd};

/// The most columns of `x` and of `dy` for which it is faster than the general product.
const WIDEST: usize = 64;

/// Whether this is the way for such a weight.
pub(super) fn serves(x: &Rows, dy: &Rows) -> bool {
    x.width.max(dy.width) <= WIDEST
}

/// Adds `x^T dy` to `out`.
///
/// # Safety
/// `out` points at `x.width` rows of `dy.width` values that nobody else touches.
pub(super) unsafe fn add(x: Rows, dy: Rows, out: OutPointer) {
    let inside = |m: &Rows| m.rows == 0 || m.data.len() >= (m.rows - 1) * m.stride + m.width;
    assert!(x.rows == dy.rows && inside(&x) && inside(&dy));
    simd::arch().dispatch(OuterProducts { x, dy, out });
}

struct OuterProducts<'a> {
    x: Rows<'a>,
    dy: Rows<'a>,
    out: OutPointer,
}

impl WithSimd for OuterProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut column = 0;
        while column < self.dy.width {
            // SAFETY: a tile has at least one column, and none behind the last.
            unsafe {
                if self.dy.width - column > S::F32_LANES {
                    self.columns::<S, 2>(simd, column);
                } else {
                    self.columns::<S, 1>(simd, column);
                }
            }
            column += 2 * S::F32_LANES;
        }
    }
}

impl OuterProducts<'_> {
    /// `V` vectors of columns of `dy`, the last of which may go beyond them, by all columns of `x`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const V: usize>(&self, simd: S, column: usize) {
        let mut i = 0;
        while i < self.x.width {
            // SAFETY: the caller's promise; tiles end with the columns of x.
            i += unsafe {
                match self.x.width - i {
                    6.. => self.tile::<S, V, 6>(simd, i, column),
                    4.. => self.tile::<S, V, 4>(simd, i, column),
                    2.. => self.tile::<S, V, 2>(simd, i, column),
                    _ => self.tile::<S, V, 1>(simd, i, column),
                }
            };
        }
    }

    /// `M` columns of `x` by `V` vectors of `dy`; returns `M`. Vectors that go beyond the columns read what lies behind them, for sums that nobody asks for:
    /// masks would cost more than the products. The last rows, behind which nothing may lie, are copied before.
    #[inline(always)]
    unsafe fn tile<S: Simd, const V: usize, const M: usize>(&self, simd: S, i: usize, column: usize) -> usize {
        let Rows { data, rows, width, stride } = self.dy;
        // Rows from whose columns on as many values follow as the vectors have.
        let reached = column + V * S::F32_LANES;
        let whole = if data.len() < reached { 0 } else { rows.min((data.len() - reached) / stride.max(1) + 1) };
        let count = (width - column).min(V * S::F32_LANES);
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        // SAFETY: row r of x has M columns from i on, and behind the column of a whole row of dy lie V vectors; of the others `count` values are copied.
        unsafe {
            let x = |r: usize| self.x.data.as_ptr().add(r * self.x.stride + i).cast::<[f32; M]>();
            let dy = |r: usize| data.as_ptr().add(r * stride + column);
            for r in 0..whole {
                add_row::<S, V, M>(simd, &*x(r), &dy(r).cast::<[S::f32s; V]>().read_unaligned(), &mut sums);
            }
            for r in whole..rows {
                let mut row = [simd.splat_f32s(0.0); V];
                std::ptr::copy_nonoverlapping(dy(r), row.as_mut_ptr().cast::<f32>(), count);
                add_row::<S, V, M>(simd, &*x(r), &row, &mut sums);
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            // SAFETY: the promise about `out`; a row of sums has at least `count` values.
            unsafe {
                let to = std::slice::from_raw_parts_mut(self.out.data.add((i + m) * self.out.stride + column), count);
                let from = std::slice::from_raw_parts(sums.as_ptr().cast::<f32>(), count);
                for (to, from) in to.iter_mut().zip(from) {
                    *to += from;
                }
            }
        }
        M
    }
}

/// Adds the products of a row.
#[inline(always)]
fn add_row<S: Simd, const V: usize, const M: usize>(simd: S, x: &[f32; M], dy: &[S::f32s; V], sums: &mut [[S::f32s; V]; M]) {
    for (sums, x) in sums.iter_mut().zip(x) {
        let factor = simd.splat_f32s(*x);
        for (sum, value) in sums.iter_mut().zip(dy) {
            *sum = simd.mul_add_e_f32s(factor, *value, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn it_is_the_sum_of_the_products_of_all_rows() {
        for (rows, inputs, outputs) in
            [(64, 1, 1), (1, 24, 48), (0, 3, 3), (2, 5, 7), (65, 3, 17), (100, 24, 12), (70, 33, 48), (64, 64, 64)]
        {
            let (stride, wide) = (inputs + 2, outputs + 1);
            let (mut x, mut dy) = (vec![0.0f32; rows * stride], vec![0.0f32; rows * wide]);
            Random::new(1).fill_normal(0, &mut x);
            Random::new(2).fill_normal(0, &mut dy);
            // What lies beside a part of a larger matrix stays as it is.
            let to = outputs + 3;
            let mut out: Vec<f32> = (0..inputs * to).map(|i| i as f32).collect();
            let expected: Vec<f64> = (0..inputs * to)
                .map(|at| {
                    let (i, j) = (at / to, at % to);
                    let product = |r: usize| f64::from(x[r * stride + i]) * f64::from(dy[r * wide + j]);
                    at as f64 + if j < outputs { (0..rows).map(product).sum() } else { 0.0 }
                })
                .collect();
            let matrix = |data, width, stride| Rows { data, rows, width, stride };
            let (x, dy) = (matrix(&x, inputs, stride), matrix(&dy, outputs, wide));
            assert!(serves(&x, &dy));
            // SAFETY: `out` has a row of more than `outputs` values for each input.
            unsafe { add(x, dy, OutPointer { data: out.as_mut_ptr(), stride: to }) };
            for (at, (found, expected)) in out.iter().zip(&expected).enumerate() {
                assert!((f64::from(*found) - expected).abs() < 1e-3, "{inputs} by {outputs}, {at}: {found} {expected}");
            }
        }
    }
}
