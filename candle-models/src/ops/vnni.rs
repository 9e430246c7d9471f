//! Products of 8-bit weights by the integer dot products of AVX-512 VNNI: four multiply-adds per lane and instruction.
//!
//! A row of activations becomes integers of 16 bits, `x = scale (256 high + low)` with two signed bytes, so what rounding
//! adds to a product is 1.5e-5 of it (measured), against 4e-3 that rounding the weights to 8 bits has added. Both bytes
//! meet the same weights, which lie with 128 added because one side of the instruction is unsigned; the sums start at what
//! that adds. Sums are exact and may wrap on the way: the result does not depend on the order, the tile or the batch.

use super::packed::{Block, Line, PANEL, ZERO_POINT, activation_scale};
use pulp::x86::V4;
use std::arch::x86_64::*;

/// A sum of 127 times 128 over as many inputs, and 128 times the sum of an input's bytes, fit into 32 bits.
pub(super) const MAX_INPUTS: usize = 1 << 16;

/// Rows of the tallest tile: 24 registers of sums.
const TALLEST: usize = 6;

/// The largest integer of two signed bytes with both at 127.
const LARGEST: f32 = 32_639.0;

/// Lines for the activations of the tallest tile that this block needs.
pub(super) fn scratch(block: &Block) -> usize {
    block.rows.len().min(TALLEST) * block.matrix.inputs.div_ceil(PANEL)
}

/// A row as integers.
#[derive(Clone, Copy, Default)]
pub(super) struct Quantised {
    /// What one is worth. NaN for a row with a number that is not finite.
    scale: f32,
    /// Sums of the low and of the high bytes.
    sums: [i32; 2],
}

impl Quantised {
    /// What the sums of the products with low and with high bytes begin with: the weights have 128 added.
    pub(super) fn begin(self) -> [i32; 2] {
        self.sums.map(|sum| sum.wrapping_mul(-ZERO_POINT))
    }

    /// The sums of a panel as floats, from those of the products with low and with high bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn floats(self, low: [__m512i; 2], high: [__m512i; 2]) -> [__m512; 2] {
        let sum = |v: usize| _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[v]), _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(low[v]));
        [_mm512_mul_ps(sum(0), _mm512_set1_ps(self.scale)), _mm512_mul_ps(sum(1), _mm512_set1_ps(self.scale))]
    }
}

/// Runs a block whose matrix has at most [`MAX_INPUTS`] inputs, in tiles of up to six rows.
///
/// # Safety
/// What [`super::linear_block`] asks for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn run(block: &Block, scratch: &mut [Line]) {
    let mut r = block.rows.start;
    while r < block.rows.end {
        // SAFETY: the rows r.. lie inside the block.
        unsafe {
            r += match block.rows.end - r {
                TALLEST.. => tile::<TALLEST, 1>(block, r, scratch),
                4.. => tile::<4, 1>(block, r, scratch),
                2.. => tile::<2, 2>(block, r, scratch),
                _ => tile::<1, 4>(block, r, scratch),
            };
        }
    }
}

/// `M` rows by all panels, `U` lines at a time into sums of their own, which hides the latency. Returns `M`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<const M: usize, const U: usize>(block: &Block, r: usize, scratch: &mut [Line]) -> usize {
    let length = block.matrix.inputs.div_ceil(PANEL);
    let mut rows = [Quantised::default(); M];
    for ((m, row), to) in rows.iter_mut().enumerate().zip(scratch.chunks_mut(length.max(1))) {
        // SAFETY: lines are words, one behind the other.
        let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u32>(), to.len() * PANEL) };
        let mut to = to.chunks_exact_mut(16);
        *row = quantise(block.input(r + m), |words| {
            let Some(to) = to.next() else { return };
            // SAFETY: `to` holds 16 words.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) };
        });
    }
    let integers = scratch.as_ptr().cast::<i32>();
    for p in block.panels.clone() {
        let lines = block.matrix.panel(p);
        let mut acc = [[[_mm512_setzero_si512(); 4]; M]; U];
        for (acc, row) in acc[0].iter_mut().zip(&rows) {
            let [low, high] = row.begin().map(|sum| _mm512_set1_epi32(sum));
            *acc = [high, high, low, low];
        }
        for (i, lines) in lines.chunks(U).enumerate() {
            for (u, line) in lines.iter().enumerate() {
                line.prefetch_ahead();
                let w = line.0.as_ptr();
                // SAFETY: a line is two aligned vectors.
                let w = unsafe { [_mm512_load_si512(w.cast()), _mm512_load_si512(w.add(16).cast())] };
                for (m, acc) in acc[u].iter_mut().enumerate() {
                    // SAFETY: row m holds four words for every line of the panel.
                    let (low, high) = unsafe {
                        let at = integers.add(m * length * PANEL + 4 * (i * U + u));
                        (_mm512_set1_epi32(*at), _mm512_set1_epi32(*at.add(1)))
                    };
                    *acc = [
                        _mm512_dpbusd_epi32(acc[0], w[0], high),
                        _mm512_dpbusd_epi32(acc[1], w[1], high),
                        _mm512_dpbusd_epi32(acc[2], w[0], low),
                        _mm512_dpbusd_epi32(acc[3], w[1], low),
                    ];
                }
            }
        }
        for (m, row) in rows.iter().enumerate() {
            let sums = |part: usize| acc.iter().skip(1).fold(acc[0][m][part], |sum, acc| _mm512_add_epi32(sum, acc[m][part]));
            let line = row.floats([sums(2), sums(3)], [sums(0), sums(1)]);
            // SAFETY: the caller's promise about rows and columns; the instructions are there.
            unsafe { block.store(V4::new_unchecked(), p, r + m, &pulp::cast::<_, [_; 2]>(line)) };
        }
    }
    M
}

/// Makes a row integers, and hands on 16 words for every 16 inputs, zeros behind the last. Four inputs take four words: their low bytes, their high bytes, and
/// two words of zeros, which saves moving bytes between lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn quantise(x: &[f32], mut put: impl FnMut(__m512i)) -> Quantised {
    let (whole, rest) = x.as_chunks::<16>();
    // SAFETY: reads the floats that are there, fewer than 16.
    let rest = unsafe { _mm512_maskz_loadu_ps((1 << rest.len()) - 1, rest.as_ptr()) };
    // SAFETY: a chunk holds 16 floats.
    let load = |chunk: &[f32; 16]| unsafe { _mm512_loadu_ps(chunk.as_ptr()) };
    // The largest magnitude by its bits, which order as integers and put what is not finite on top.
    let mut largest = _mm512_castps_si512(_mm512_abs_ps(rest));
    for chunk in whole {
        largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_abs_ps(load(chunk))));
    }
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    let (scale, inverse) = activation_scale(largest, LARGEST);
    // Within four integers, in order: the lowest bytes, the second bytes, zeros.
    let order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    let bytes = |x: __m512| {
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
        // The second byte of q + 128 is the high one; its lowest byte less 128 is the low one.
        let q = _mm512_xor_si512(_mm512_add_epi32(q, _mm512_set1_epi32(128)), _mm512_set1_epi32(128));
        _mm512_shuffle_epi8(q, order)
    };
    let mut sums = _mm512_setzero_si512();
    let mut take = |bytes: __m512i| {
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), bytes);
        put(bytes);
    };
    for chunk in whole {
        take(bytes(load(chunk)));
    }
    if !x.len().is_multiple_of(16) {
        take(bytes(rest));
    }
    let half = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums));
    let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    Quantised { scale, sums: [_mm_cvtsi128_si32(quarter), _mm_extract_epi32::<1>(quarter)] }
}
