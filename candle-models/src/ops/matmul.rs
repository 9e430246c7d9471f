//! Products with prepared weights: `act(x W + b)` for one row up to many, in blocks that threads share.
//!
//! The weight is packed once ([`PackedMatrix`]), each panel contiguous in the order the kernel reads it, so a single row
//! streams the weights at memory speed and many rows reuse a panel from the second-level cache. These kernels serve inference, and training on
//! tapes; what trains on tensors multiplies matrices as they lie (`linear`).
//!
//! What bounds a row of its own is bytes and arithmetic instructions per weight. On a core with AVX-512, in the order f32,
//! bf16, 8 bits: 4, 2 and 1 bytes from the second-level cache (some 45 a cycle), and for 16 weights 1, 2 and 4 (widened) or
//! half (dot products of integers, `vnni`) of the two vector instructions a cycle. Measured at 512 x 512 against f32: one
//! row 1.5 times as fast in bf16 and 3.4 times in 8 bits; 32 rows 0.85 and 1.7 times. Dot products of bf16 (`bf16`) on an EPYC, which takes as long for one
//! as for a multiply-add: one row 2.2, 32 rows 2.0 times as fast as in f32 (`candle-bench precision`). Several rows of narrow weights,
//! and many in f32, go to the tiles of AMX (`amx`) where there are some. With AVX2 alone (16-bit multiply-adds, `avx2`) one row of 8-bit weights is 1.7 to
//! 2.9 times as fast as in f32, 32 rows 1.2 to 1.6 times (`CANDLE_SIMD=avx2 candle-bench precision`). Several rows ask for a line 16
//! before they read it, and so does one row in bf16 or 8 bits by dot products: on a Xeon whose second-level cache is a little smaller
//! than the weights 36 rows in f32 so take 0.82 of the time; one row in f32 gains nothing.
//!
//! Tried and not kept: `vdpbf16ps` on Intel's processors (for 32 rows 0.6 of f32's speed with one rounded activation, 0.3 with two), the
//! rows of a tile side by side instead of a stride apart (as fast), four pointers to rows in place of one (1 to 1.04
//! times as fast on a Xeon), the next panel asked for while this one is read (1.06 with 4 MB of weights, .95 with 1 MB), and on AVX2 tiles of 6 rows by half a panel (as
//! fast as 3 rows by a panel).

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::packed::{Bf16, Block, Element, F32, Kind, Line, PANEL, PackedMatrix, Q8};
use super::{Activation, OutPointer, simd};
#[cfg(target_arch = "x86_64")]
use super::{avx2, bf16, simd::Integers, vnni};
use pulp::{Simd, WithSimd};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// The fewest rows for which a panel of narrow weights is widened once and then read as f32: 4, or 9 where there are
/// registers for weights on their way beside the sums of 8 rows.
const fn widen_from(tallest: usize) -> usize {
    if tallest > 8 { 9 } else { 4 }
}

thread_local! {
    /// A widened panel, or rows of narrow activations: kept, so that only a thread's first products allocate.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

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
    let block = Block { matrix, act, x, x_stride, rows, panels, out };
    let arch = simd::arch();
    match matrix.kind {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        _ if amx::serves(&block) => {
            // SAFETY: as above for the block; the path says that the tiles are there.
            with_scratch(amx::scratch(&block), |scratch| unsafe { amx::run(&block, scratch) });
        }
        Kind::F32 => arch.dispatch(Of(block, &mut [], PhantomData::<F32>)),
        #[cfg(target_arch = "x86_64")]
        Kind::Bf16 if matrix.rounds_activations => {
            // SAFETY: such a matrix is made only where the path says that the instructions are there.
            with_scratch(bf16::scratch(&block), |scratch| unsafe { bf16::run(&block, scratch) });
        }
        Kind::Bf16 => with_scratch(block.widened(), |scratch| arch.dispatch(Of(block, scratch, PhantomData::<Bf16>))),
        #[cfg(target_arch = "x86_64")]
        Kind::Q8 if simd::integers() == Integers::DotProduct && matrix.inputs <= vnni::MAX_INPUTS => {
            // SAFETY: the path says that the instructions are there.
            with_scratch(vnni::scratch(&block), |scratch| unsafe { vnni::run(&block, scratch) });
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Q8 if simd::integers() == Integers::MultiplyAdd && matrix.inputs <= avx2::MAX_INPUTS => {
            // SAFETY: as above.
            with_scratch(avx2::scratch(&block), |scratch| unsafe { avx2::run(&block, scratch) });
        }
        Kind::Q8 => with_scratch(block.widened(), |scratch| arch.dispatch(Of(block, scratch, PhantomData::<Q8>))),
    }
}

/// Calls `f` with so many lines of the thread's, whatever stands in them.
pub(super) fn with_scratch(lines: usize, f: impl FnOnce(&mut [Line])) {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < lines {
            scratch.resize(lines, Line::ZERO);
        }
        f(&mut scratch[..lines]);
    });
}

/// A block whose matrix is made of `E`, and room for a widened panel.
struct Of<'a, E>(Block<'a>, &'a mut [Line], PhantomData<E>);

impl<E: Element> WithSimd for Of<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Of(block, scratch, _) = self;
        // Registers decide the tile: 12 rows x 2 vectors fill AVX-512's 32, 3 rows x 4 vectors AVX2's 16. Of a last panel that is at most half full
        // nothing but that half is computed.
        match S::F32_LANES {
            16 => block.run::<S, E, 2, 12, 1, 12>(simd, scratch),
            8 => block.run::<S, E, 4, 3, 2, 6>(simd, scratch),
            4 => block.run::<S, E, 8, 3, 4, 3>(simd, scratch),
            2 => block.run::<S, E, 16, 1, 8, 1>(simd, scratch),
            _ => block.run::<S, E, 32, 1, 16, 1>(simd, scratch),
        }
    }
}

impl Block<'_> {
    /// Lines of a panel widened to f32, if this block may want that.
    fn widened(&self) -> usize {
        if self.rows.len() < widen_from(0) { 0 } else { self.matrix.inputs }
    }

    /// Row `r` of `x`.
    #[inline(always)]
    pub(super) fn input(&self, r: usize) -> &[f32] {
        &self.x[r * self.x_stride..][..self.matrix.inputs]
    }

    /// `V` vectors make a panel, `M` rows are the tallest tile; `H` vectors are half a panel, with `N` rows.
    #[inline(always)]
    fn run<S: Simd, E: Element, const V: usize, const M: usize, const H: usize, const N: usize>(self, simd: S, scratch: &mut [Line]) {
        for p in self.panels.clone() {
            let lines = self.matrix.panel(p);
            if E::ROWS > 1 && self.rows.len() >= widen_from(M) {
                widen_panel::<S, E, V>(simd, lines, scratch);
                self.panel::<S, F32, V, M, H, N>(simd, p, scratch);
            } else {
                self.panel::<S, E, V, M, H, N>(simd, p, lines);
            }
        }
    }

    /// All rows by a panel or its half.
    #[inline(always)]
    fn panel<S: Simd, E: Element, const V: usize, const M: usize, const H: usize, const N: usize>(
        &self,
        simd: S,
        p: usize,
        lines: &[Line],
    ) {
        let half = self.matrix.outputs - p * PANEL <= PANEL / 2;
        if half { self.all_rows::<S, E, H, N>(simd, p, lines) } else { self.all_rows::<S, E, V, M>(simd, p, lines) }
    }

    /// All rows by the first `V` vectors of a panel.
    #[inline(always)]
    fn all_rows<S: Simd, E: Element, const V: usize, const M: usize>(&self, simd: S, p: usize, lines: &[Line]) {
        let mut r = self.rows.start;
        while r < self.rows.end {
            let left = self.rows.end - r;
            // SAFETY: the rows r.. and the panel p lie inside the block that the caller handed over.
            unsafe {
                // Of weights that are widened on their way there is room for one beside a tall tile's sums. Four rows are faster as two tiles of two than as
                // three rows and one.
                r += if left >= M && M > 1 && (M < V || E::ROWS == 1) && !(M == 3 && left == 4) {
                    self.tile::<S, E, V, M>(simd, p, r, lines)
                } else if left >= 8 && M > 8 {
                    self.tile::<S, E, V, 8>(simd, p, r, lines)
                } else if left >= 4 && M > 4 {
                    self.tile::<S, E, V, 4>(simd, p, r, lines)
                } else if left >= 2 && M > 2 {
                    self.tile::<S, E, V, 2>(simd, p, r, lines)
                } else {
                    self.single_row::<S, E, V>(simd, p, r, lines)
                };
            }
        }
    }

    /// `M` rows by one panel; returns `M`.
    #[inline(always)]
    unsafe fn tile<S: Simd, E: Element, const V: usize, const M: usize>(&self, simd: S, p: usize, r: usize, lines: &[Line]) -> usize {
        // The rows r .. r + M are inside x (asserted in `linear_block`).
        let tile =
            Tile::<E> { x: self.input(r).as_ptr(), x_stride: self.x_stride, inputs: self.matrix.inputs, lines, weights: PhantomData };
        // SAFETY: M rows of so many inputs, a stride apart, begin there.
        let sums: [[S::f32s; V]; M] = unsafe { tile.sum(simd) };
        for (m, row) in sums.iter().enumerate() {
            // SAFETY: the caller's promise about rows and columns.
            unsafe { self.store(simd, p, r + m, row) };
        }
        M
    }

    /// One row by one panel. Eight partial sums hide the latency of the multiply-add: sixteen, with V = 4, are more than AVX2 has registers for.
    /// Returns 1.
    #[inline(always)]
    unsafe fn single_row<S: Simd, E: Element, const V: usize>(&self, simd: S, p: usize, r: usize, lines: &[Line]) -> usize {
        const UNROLL: usize = 4;
        let parts = if V > 2 { 2 } else { UNROLL };
        let mut acc = [[simd.splat_f32s(0.0); V]; UNROLL];
        let (blocks, rest) = self.input(r).as_chunks::<UNROLL>();
        let (whole, last) = lines.split_at(blocks.len() * (UNROLL / E::ROWS));
        for (x, lines) in blocks.iter().zip(whole.chunks_exact(UNROLL / E::ROWS)) {
            for (u, &x) in x.iter().enumerate() {
                let a = simd.splat_f32s(x);
                for (acc, &w) in acc[u % parts].iter_mut().zip(words::<S, V>(&lines[u / E::ROWS])) {
                    *acc = simd.mul_add_e_f32s(a, E::widen(simd, w, u % E::ROWS), *acc);
                }
            }
        }
        for (x, line) in rest.chunks(E::ROWS).zip(last) {
            for (u, &x) in x.iter().enumerate() {
                let a = simd.splat_f32s(x);
                for (acc, &w) in acc[0].iter_mut().zip(words::<S, V>(line)) {
                    *acc = simd.mul_add_e_f32s(a, E::widen(simd, w, u), *acc);
                }
            }
        }
        let mut total = acc[0];
        for (v, t) in total.iter_mut().enumerate() {
            *t = simd.add_f32s(*t, acc[1][v]);
            if parts == UNROLL {
                *t = simd.add_f32s(*t, simd.add_f32s(acc[2][v], acc[3][v]));
            }
        }
        // SAFETY: the caller's promise about rows and columns.
        unsafe { self.store(simd, p, r, &total) };
        1
    }

    /// Factor, bias and activation of the sums of row `r` and panel `p`, into the output.
    ///
    /// # Safety
    /// Both lie inside the block.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const V: usize>(&self, simd: S, p: usize, r: usize, sums: &[S::f32s; V]) {
        assert!(V * S::F32_LANES <= PANEL);
        let (scale, bias) = self.matrix.columns(p);
        let (scale, bias) = (scale.as_ptr().cast::<S::f32s>(), bias.as_ptr().cast::<S::f32s>());
        let zero = simd.splat_f32s(0.0);
        let mut line = [zero; V];
        for v in 0..V {
            // SAFETY: a panel has V vectors of factors and as many of biases, wherever they begin.
            line[v] = unsafe { simd.mul_add_e_f32s(sums[v], scale.add(v).read_unaligned(), bias.add(v).read_unaligned()) };
        }
        match self.act {
            Activation::None => {}
            Activation::Relu => line.iter_mut().for_each(|y| *y = simd.select_f32s(simd.greater_than_f32s(*y, zero), *y, zero)),
            // SAFETY: a vector is so many floats.
            act => act.apply::<S>(unsafe { std::slice::from_raw_parts_mut(line.as_mut_ptr().cast(), V * S::F32_LANES) }),
        }
        let width = (self.matrix.outputs - p * PANEL).min(V * S::F32_LANES);
        // SAFETY: columns p * PANEL .. + width of row r belong to this block alone.
        unsafe {
            let to = self.out.data.add(r * self.out.stride + p * PANEL);
            if width == V * S::F32_LANES {
                to.cast::<[S::f32s; V]>().write_unaligned(line);
                return;
            }
            let (whole, rest) = (width / S::F32_LANES, width % S::F32_LANES);
            for (v, part) in line[..whole].iter().enumerate() {
                to.cast::<S::f32s>().add(v).write_unaligned(*part);
            }
            if rest > 0 {
                let to = std::slice::from_raw_parts_mut(to.add(width - rest), rest);
                simd.partial_store_f32s(to, line[whole]);
            }
        }
    }
}

/// Rows of `x` that meet a panel together.
struct Tile<'a, E> {
    x: *const f32,
    x_stride: usize,
    inputs: usize,
    lines: &'a [Line],
    weights: PhantomData<E>,
}

impl<E: Element> Tile<'_, E> {
    /// The products of `M` rows by the first `V` vectors of the panel. A function of its own, so that all registers are the sums': where it was part
    /// of a larger one, a sum was written to memory with every line.
    ///
    /// # Safety
    /// From `x` on there are `M` rows of so many inputs, a stride apart.
    #[inline(never)]
    unsafe fn sum<S: Simd, const V: usize, const M: usize>(&self, simd: S) -> [[S::f32s; V]; M] {
        let Self { x, x_stride, inputs, lines, .. } = *self;
        simd.vectorize(
            #[inline(always)]
            || {
                let mut sums = [[simd.splat_f32s(0.0); V]; M];
                for (i, line) in lines.iter().enumerate() {
                    line.prefetch_ahead();
                    for u in 0..E::ROWS {
                        // Only the last line can have fewer rows than its words have room for.
                        if E::ROWS > 1 && i * E::ROWS + u >= inputs {
                            break;
                        }
                        // SAFETY: m < M and i * ROWS + u < inputs.
                        let input = |m: usize| simd.splat_f32s(unsafe { *x.add(m * x_stride + i * E::ROWS + u) });
                        let weights = words::<S, V>(line);
                        // The fewer of inputs and weights stay in registers beside the sums.
                        if M < V {
                            let inputs: [_; M] = std::array::from_fn(input);
                            for (v, &w) in weights.iter().enumerate() {
                                let w = E::widen(simd, w, u);
                                for (row, &a) in sums.iter_mut().zip(&inputs) {
                                    row[v] = simd.mul_add_e_f32s(a, w, row[v]);
                                }
                            }
                        } else {
                            let w = weights.map(|w| E::widen(simd, w, u));
                            for (m, row) in sums.iter_mut().enumerate() {
                                let a = input(m);
                                for (sum, &w) in row.iter_mut().zip(&w) {
                                    *sum = simd.mul_add_e_f32s(a, w, *sum);
                                }
                            }
                        }
                    }
                }
                sums
            },
        )
    }
}

/// The first `V` vectors of a line.
#[inline(always)]
fn words<S: Simd, const V: usize>(line: &Line) -> &[S::u32s; V] {
    assert!(V * S::F32_LANES <= PANEL);
    // SAFETY: a line has so many words (asserted), and is aligned for any vector.
    unsafe { &*line.0.as_ptr().cast() }
}

/// Writes a narrow panel as one of f32 lines, one for each of `to`.
#[inline(always)]
fn widen_panel<S: Simd, E: Element, const V: usize>(simd: S, lines: &[Line], to: &mut [Line]) {
    for (line, to) in lines.iter().zip(to.chunks_mut(E::ROWS)) {
        // Constant bounds, so that `widen` knows the row; behind the last one there is no line to write to.
        for row in 0..E::ROWS {
            let Some(to) = to.get_mut(row) else { break };
            for (&w, to) in words::<S, V>(line).iter().zip(S::as_mut_simd_u32s(&mut to.0).0) {
                *to = simd.transmute_u32s_f32s(E::widen(simd, w, row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::Format;
    use super::*;
    use crate::random::Random;

    const SHAPES: [(usize, usize, usize); 15] = [
        (1, 1, 1),
        (1, 288, 512),
        (2, 7, 33),
        (3, 13, 31),
        (4, 6, 40),
        (8, 64, 64),
        (13, 5, 100),
        (25, 48, 17),
        (31, 3, 8),
        (6, 301, 96),
        (19, 128, 130),
        (40, 100, 70),
        (30, 64, 96),
        (64, 96, 160),
        (150, 100, 131),
    ];

    fn values(n: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(seed).fill_normal(0, &mut values);
        values
    }

    fn formats(weight: &[f32], outputs: usize) -> [Format; 3] {
        [Format::F32, Format::Bf16, Format::q8(weight, outputs)]
    }

    /// What a format makes of a weight.
    fn rounded(weight: &[f32], format: &Format) -> Vec<f32> {
        match format {
            Format::F32 => weight.to_vec(),
            Format::Bf16 => weight.iter().map(|w| half::bf16::from_f32(*w).to_f32()).collect(),
            Format::Q8(scale) => {
                let integers = format.integers(weight).unwrap();
                integers.iter().zip(scale.iter().cycle()).map(|(q, s)| f32::from(*q) * s).collect()
            }
        }
    }

    /// A weight packed in every way that this path has, and whether activations are rounded to its format as well.
    fn packed([k, n]: [usize; 2], w: &[f32], b: &[f32]) -> Vec<(Format, PackedMatrix, bool)> {
        let mut all: Vec<_> = formats(w, n).map(|format| (format.clone(), PackedMatrix::new(k, n, w, b, &format), false)).into();
        if super::super::has_bf16_products() {
            all.push((Format::Bf16, PackedMatrix::new(k, n, w, b, &Format::Bf16).rounding_activations(), true));
        }
        all
    }

    fn product(matrix: &PackedMatrix, act: Activation, x: (&[f32], usize), rows: usize, out: &mut [f32], stride: usize) {
        let pointer = OutPointer { data: out.as_mut_ptr(), stride };
        assert!(out.len() >= rows * stride && stride >= matrix.outputs);
        // SAFETY: `out` outlives the call and holds rows x stride values.
        unsafe { linear_block(matrix, act, x, 0..rows, 0..matrix.panel_count(), pointer) };
    }

    #[test]
    fn every_tile_odd_shape_and_format_matches_the_sum_written_out() {
        for (rows, k, n) in SHAPES {
            let (x, w, b) = (values(rows * (k + 3), 3), values(k * n, 5), values(n, 7));
            for (format, matrix, rounds) in packed([k, n], &w, &b) {
                let (w, stride) = (rounded(&w, &format), n + 2);
                let multiplied = if rounds { rounded(&x, &format) } else { x.clone() };
                let mut out = vec![f32::NAN; rows * stride];
                product(&matrix, Activation::Relu, (&x, k + 3), rows, &mut out, stride);
                for r in 0..rows {
                    let x = &multiplied[r * (k + 3)..][..k];
                    let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
                    for c in 0..n {
                        let column = || w.iter().skip(c).step_by(n).map(|w| f64::from(*w));
                        let want: f64 = x.iter().zip(column()).map(|(x, w)| f64::from(*x) * w).sum::<f64>() + f64::from(b[c]);
                        let got = f64::from(out[r * stride + c]);
                        // Half a step of 16-bit activations for every weight, where the path rounds them.
                        let steps =
                            if matches!(format, Format::Q8(_)) { column().map(f64::abs).sum::<f64>() * largest / 65_000.0 } else { 0.0 };
                        let tolerance = 1e-5 * (1.0 + want.abs()) * (k as f64).sqrt() + steps;
                        assert!((got - want.max(0.0)).abs() < tolerance, "{rows}x{k}x{n} {format:?} at {r},{c}: {got} {want}");
                    }
                    assert!(out[r * stride + n].is_nan(), "wrote behind the row");
                }
            }
        }
    }

    #[test]
    fn a_row_of_eight_bit_weights_is_the_same_alone_and_in_a_batch_where_sums_are_integers() {
        let (rows, k, n) = (23, 77, 45);
        let (x, w) = (values(rows * k, 1), values(k * n, 2));
        let matrix = PackedMatrix::new(k, n, &w, &[], &Format::q8(&w, n));
        let mut all = vec![0.0; rows * n];
        product(&matrix, Activation::None, (&x, k), rows, &mut all, n);
        for r in 0..rows {
            let mut one = vec![0.0; n];
            product(&matrix, Activation::None, (&x[r * k..], k), 1, &mut one, n);
            for (a, b) in one.iter().zip(&all[r * n..]) {
                let tolerance = if simd::integers() == simd::Integers::Widened { 1e-5 } else { 0.0 };
                assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "row {r}: {a} and {b}");
            }
        }
    }

    #[test]
    fn the_largest_sums_of_integers_do_not_overflow() {
        // One more input than each kernel takes, and as many as it does.
        for k in [1 << 12, (1 << 12) + 1, 1 << 16, (1 << 16) + 1] {
            for (sign, integer) in [(1.0f32, 127.0f32), (-1.0, 127.0), (1.0, -128.0), (-1.0, -128.0)] {
                let format = Format::Q8([1.0f32].into());
                let matrix = PackedMatrix::new(k, 1, &vec![integer; k], &[], &format);
                let mut out = [0.0; 6];
                product(&matrix, Activation::None, (&vec![sign * 3.0; 6 * k], k), 6, &mut out, 1);
                let want = sign * 3.0 * integer * k as f32;
                // 65 537 equal floats summed one by one are off by a thousandth; a sum that wraps is off by more than itself.
                assert!(out.iter().all(|y| (y / want - 1.0).abs() < 5e-3), "{out:?} instead of {want}");
            }
        }
    }

    #[test]
    fn rows_that_are_not_finite_stay_so_and_leave_the_others_alone() {
        let (rows, k, n) = (7, 40, 33);
        let w = values(k * n, 2);
        for format in formats(&w, n) {
            let matrix = PackedMatrix::new(k, n, &w, &values(n, 3), &format);
            let mut clean = vec![0.0; rows * n];
            let mut x = values(rows * k, 1);
            x[4 * k..5 * k].fill(0.0);
            x[5 * k..6 * k].fill(1e-38);
            product(&matrix, Activation::None, (&x, k), rows, &mut clean, n);
            assert!(clean.iter().all(|y| y.is_finite()));
            (x[k + 39], x[3 * k]) = (f32::NAN, f32::INFINITY);
            let mut out = vec![0.0; rows * n];
            product(&matrix, Activation::None, (&x, k), rows, &mut out, n);
            for (r, (out, clean)) in out.chunks(n).zip(clean.chunks(n)).enumerate() {
                let broken = r == 1 || r == 3;
                // A weight that rounds to zero under infinity is not a number either.
                assert!(if broken { out.iter().all(|y| !y.is_finite()) } else { out == clean }, "row {r} {format:?}: {out:?}");
            }
        }
    }
}
