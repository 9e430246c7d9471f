//! `out = A x` for a small `A` and rows of channels: the products of a transform, whose tables stand on the left. Rows are read where they lie, and
//! nothing is packed.

use super::super::{OutPointer, simd};
use pulp::{Simd, WithSimd};

/// Some columns of rows whose other columns somebody else may write.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub data: *const f32,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

/// `out = a x`: `a` `[m, k]` by the `k` rows of `x`, into `m` rows of its width.
///
/// # Safety
/// `x` points at its rows, which nobody writes; `out` at as many rows as `a` has, as wide as those of `x`, that nobody else uses.
pub(super) unsafe fn left_product(a: &[f32], x: Lines, out: OutPointer) {
    assert!(x.rows > 0 && a.len().is_multiple_of(x.rows));
    simd::arch().dispatch(LeftProduct { a, x, out });
}

struct LeftProduct<'a> {
    a: &'a [f32],
    x: Lines,
    out: OutPointer,
}

impl WithSimd for LeftProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (width, lanes) = (self.x.width, S::F32_LANES);
        let mut column = 0;
        // SAFETY: columns end at the width; where a last vector begins before the columns that are left, it writes those before them again as they are.
        unsafe {
            while column + 2 * lanes <= width {
                self.columns::<S, 2>(simd, column);
                column += 2 * lanes;
            }
            while column + lanes <= width {
                self.columns::<S, 1>(simd, column);
                column += lanes;
            }
            if column < width && width >= lanes {
                self.columns::<S, 1>(simd, width - lanes);
                column = width;
            }
            (column..width).for_each(|column| self.column(column));
        }
    }
}

impl LeftProduct<'_> {
    /// `V` vectors of columns of all rows of the result.
    #[inline(always)]
    unsafe fn columns<S: Simd, const V: usize>(&self, simd: S, column: usize) {
        let rows = self.a.len() / self.x.rows;
        let mut r = 0;
        // SAFETY: the caller's promise about columns; rows end with those of `a`.
        unsafe {
            while r < rows {
                r += match rows - r {
                    6.. => self.tile::<S, V, 6>(simd, r, column),
                    4.. => self.tile::<S, V, 4>(simd, r, column),
                    2.. => self.tile::<S, V, 2>(simd, r, column),
                    _ => self.tile::<S, V, 1>(simd, r, column),
                };
            }
        }
    }

    /// `M` rows by `V` vectors; returns `M`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const V: usize, const M: usize>(&self, simd: S, r: usize, column: usize) -> usize {
        let (k, x) = (self.x.rows, self.x.data);
        let a = self.a[r * k..(r + M) * k].as_ptr();
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        for i in 0..k {
            // SAFETY: row i of x has these columns, and a has M rows from r on.
            unsafe {
                let line = x.add(i * self.x.stride + column).cast::<S::f32s>();
                let mut values = [simd.splat_f32s(0.0); V];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = line.add(v).read_unaligned();
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat_f32s(*a.add(m * k + i));
                    for (sum, value) in sums.iter_mut().zip(&values) {
                        *sum = simd.mul_add_e_f32s(factor, *value, *sum);
                    }
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: the promise about `out`.
                unsafe { self.out.data.add((r + m) * self.out.stride + column).cast::<S::f32s>().add(v).write_unaligned(*sum) };
            }
        }
        M
    }

    /// One column, where there are fewer than a vector has.
    unsafe fn column(&self, column: usize) {
        for (r, a) in self.a.chunks_exact(self.x.rows).enumerate() {
            // SAFETY: the promises about `x` and `out`.
            unsafe {
                let sum: f32 = a.iter().enumerate().map(|(i, a)| a * *self.x.data.add(i * self.x.stride + column)).sum();
                *self.out.data.add(r * self.out.stride + column) = sum;
            }
        }
    }
}
