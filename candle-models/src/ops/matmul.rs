//! Products with prepared weights: `act(x W + b)` for one row up to many, in blocks that threads share.
//!
//! The weight is packed once into panels of 32 columns, each panel contiguous in the order the kernel reads it, so a single
//! row streams the weights at memory speed and many rows reuse a panel from the second-level cache. Training multiplies
//! through Candle; these kernels serve inference.

use super::Activation;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Columns of a panel: two AVX-512 registers, four of AVX2.
pub(crate) const PANEL: usize = 32;

/// A weight `[inputs, outputs]` and its bias, packed by panels; columns behind the last are zero.
pub(crate) struct PackedMatrix {
    pub inputs: usize,
    pub outputs: usize,
    panels: Vec<f32>,
    bias: Vec<f32>,
}

impl PackedMatrix {
    /// Packs a row-major weight `[inputs, outputs]`; an empty bias is zero.
    pub fn new(inputs: usize, outputs: usize, weight: &[f32], bias: &[f32]) -> Self {
        assert_eq!(weight.len(), inputs * outputs);
        let count = outputs.div_ceil(PANEL);
        let mut panels = vec![0.0; count * inputs * PANEL];
        for (p, panel) in panels.chunks_mut((inputs * PANEL).max(1)).enumerate() {
            let columns = p * PANEL..(p * PANEL + PANEL).min(outputs);
            for (row, to) in weight.chunks(outputs).zip(panel.chunks_mut(PANEL)) {
                to[..columns.len()].copy_from_slice(&row[columns.clone()]);
            }
        }
        let mut padded = vec![0.0; count * PANEL];
        padded[..bias.len()].copy_from_slice(bias);
        Self { inputs, outputs, panels, bias: padded }
    }

    pub fn panel_count(&self) -> usize {
        self.bias.len() / PANEL
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> usize {
        4 * (self.panels.len() + self.bias.len())
    }
}

/// Where the threads of one product write. Blocks are disjoint, which is why sharing the pointer is sound.
#[derive(Clone, Copy)]
pub(crate) struct OutPointer {
    pub data: *mut f32,
    /// Values between the starts of two rows.
    pub stride: usize,
}

// SAFETY: every task writes its own block of rows and columns, and the caller keeps the memory borrowed until all are done.
unsafe impl Send for OutPointer {}
// SAFETY: as above.
unsafe impl Sync for OutPointer {}

/// One block of a product: rows `rows` of `x` by the panels `panels` of `matrix`.
///
/// # Safety
/// `x` holds `x_stride * (rows.end - 1) + inputs` values; `out` points at a matrix with at least `rows.end` rows of
/// `matrix.outputs` values, `out.stride` apart, and nobody else touches the block meanwhile.
pub(crate) unsafe fn linear_block(
    matrix: &PackedMatrix,
    act: Activation,
    (x, x_stride): (&[f32], usize),
    rows: Range<usize>,
    panels: Range<usize>,
    out: OutPointer,
) {
    if rows.is_empty() || panels.is_empty() {
        return;
    }
    assert!(x.len() >= x_stride * (rows.end - 1) + matrix.inputs && panels.end <= matrix.panel_count());
    pulp::Arch::new().dispatch(Block { matrix, act, x, x_stride, rows, panels, out });
}

struct Block<'a> {
    matrix: &'a PackedMatrix,
    act: Activation,
    x: &'a [f32],
    x_stride: usize,
    rows: Range<usize>,
    panels: Range<usize>,
    out: OutPointer,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Registers decide the tile: 12 rows x 2 vectors fill AVX-512's 32, 2 rows x 4 vectors fit AVX2's 16.
        match S::F32_LANES {
            16 => self.run::<S, 2, 12>(simd),
            8 => self.run::<S, 4, 2>(simd),
            4 => self.run::<S, 8, 2>(simd),
            2 => self.run::<S, 16, 1>(simd),
            _ => self.run::<S, 32, 1>(simd),
        }
    }
}

impl Block<'_> {
    /// `V` vectors make a panel, `M` rows are the tallest tile.
    #[inline(always)]
    fn run<S: Simd, const V: usize, const M: usize>(self, simd: S) {
        for p in self.panels.clone() {
            let mut r = self.rows.start;
            while r < self.rows.end {
                let left = self.rows.end - r;
                // SAFETY: the rows r.. and the panel p lie inside the block that the caller handed over.
                unsafe {
                    r += if left >= M && M > 8 {
                        self.tile::<S, V, M>(simd, p, r)
                    } else if left >= 8 && M >= 8 {
                        self.tile::<S, V, 8>(simd, p, r)
                    } else if left >= 4 && M >= 4 {
                        self.tile::<S, V, 4>(simd, p, r)
                    } else if left >= 2 && M >= 2 {
                        self.tile::<S, V, 2>(simd, p, r)
                    } else {
                        self.single_row::<S, V>(simd, p, r)
                    };
                }
            }
        }
    }

    /// `M` rows by one panel; returns `M`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const V: usize, const M: usize>(&self, simd: S, p: usize, r: usize) -> usize {
        let k = self.matrix.inputs;
        let panel = S::as_simd_f32s(&self.matrix.panels[p * k * PANEL..][..k * PANEL]).0;
        let bias = S::as_simd_f32s(&self.matrix.bias[p * PANEL..][..PANEL]).0;
        let mut acc = [[bias[0]; V]; M];
        for row in &mut acc {
            row.copy_from_slice(&bias[..V]);
        }
        // SAFETY: row r + M - 1 is inside x (asserted in `linear_block`).
        let x = unsafe { self.x.as_ptr().add(r * self.x_stride) };
        for i in 0..k {
            // SAFETY: i * V + V <= panel.len() = k * V.
            let w = unsafe { &*panel.as_ptr().add(i * V).cast::<[S::f32s; V]>() };
            for (m, row) in acc.iter_mut().enumerate() {
                // SAFETY: m < M and i < inputs.
                let a = simd.splat_f32s(unsafe { *x.add(m * self.x_stride + i) });
                for (acc, &w) in row.iter_mut().zip(w) {
                    *acc = simd.mul_add_e_f32s(a, w, *acc);
                }
            }
        }
        for (m, row) in acc.iter().enumerate() {
            // SAFETY: the caller's promise about rows and columns.
            unsafe { self.store::<S, V>(p, r + m, row) };
        }
        M
    }

    /// One row by one panel: four partial sums hide the latency of the multiply-add. Returns 1.
    #[inline(always)]
    unsafe fn single_row<S: Simd, const V: usize>(&self, simd: S, p: usize, r: usize) -> usize {
        const UNROLL: usize = 4;
        let k = self.matrix.inputs;
        let panel = S::as_simd_f32s(&self.matrix.panels[p * k * PANEL..][..k * PANEL]).0;
        let bias = S::as_simd_f32s(&self.matrix.bias[p * PANEL..][..PANEL]).0;
        let mut acc = [[simd.splat_f32s(0.0); V]; UNROLL];
        let x = &self.x[r * self.x_stride..][..k];
        let mut i = 0;
        while i + UNROLL <= k {
            for (u, row) in acc.iter_mut().enumerate() {
                // SAFETY: i + u < k, and the panel holds k * V vectors.
                let (a, w) = unsafe { (*x.get_unchecked(i + u), &*panel.as_ptr().add((i + u) * V).cast::<[S::f32s; V]>()) };
                let a = simd.splat_f32s(a);
                for (acc, &w) in row.iter_mut().zip(w) {
                    *acc = simd.mul_add_e_f32s(a, w, *acc);
                }
            }
            i += UNROLL;
        }
        for (&a, w) in x[i..].iter().zip(panel[i * V..].chunks_exact(V)) {
            let a = simd.splat_f32s(a);
            for (acc, &w) in acc[0].iter_mut().zip(w) {
                *acc = simd.mul_add_e_f32s(a, w, *acc);
            }
        }
        let mut total = acc[0];
        for (v, t) in total.iter_mut().enumerate() {
            let pair = simd.add_f32s(simd.add_f32s(*t, acc[1][v]), simd.add_f32s(acc[2][v], acc[3][v]));
            *t = simd.add_f32s(pair, bias[v]);
        }
        // SAFETY: the caller's promise about rows and columns.
        unsafe { self.store::<S, V>(p, r, &total) };
        1
    }

    #[inline(always)]
    unsafe fn store<S: Simd, const V: usize>(&self, p: usize, r: usize, acc: &[S::f32s; V]) {
        let mut line = [0.0f32; PANEL];
        S::as_mut_simd_f32s(&mut line).0[..V].copy_from_slice(acc);
        self.act.apply::<S>(&mut line);
        let width = (self.matrix.outputs - p * PANEL).min(PANEL);
        // SAFETY: columns p * PANEL .. + width of row r belong to this block alone.
        unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), self.out.data.add(r * self.out.stride + p * PANEL), width) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn values(n: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(seed).fill_normal(0, &mut values);
        values
    }

    #[test]
    fn every_tile_and_odd_shape_matches_the_sum_written_out() {
        for (rows, k, n) in [(1, 1, 1), (1, 288, 512), (2, 7, 33), (3, 13, 31), (8, 64, 64), (13, 5, 100), (25, 48, 17), (31, 3, 8)] {
            let (x, w, b) = (values(rows * (k + 3), 3), values(k * n, 5), values(n, 7));
            let matrix = PackedMatrix::new(k, n, &w, &b);
            let stride = n + 2;
            let mut out = vec![f32::NAN; rows * stride];
            let pointer = OutPointer { data: out.as_mut_ptr(), stride };
            // SAFETY: `out` outlives the call and holds rows x stride values.
            unsafe { linear_block(&matrix, Activation::Relu, (&x, k + 3), 0..rows, 0..matrix.panel_count(), pointer) };
            for r in 0..rows {
                for c in 0..n {
                    let want: f64 = (0..k).map(|i| f64::from(x[r * (k + 3) + i]) * f64::from(w[i * n + c])).sum::<f64>() + f64::from(b[c]);
                    let got = f64::from(out[r * stride + c]);
                    assert!(
                        (got - want.max(0.0)).abs() < 1e-5 * (1.0 + want.abs()) * (k as f64).sqrt(),
                        "{rows}x{k}x{n} at {r},{c}: {got} {want}"
                    );
                }
                assert!(out[r * stride + n].is_nan(), "wrote behind the row");
            }
        }
    }
}
