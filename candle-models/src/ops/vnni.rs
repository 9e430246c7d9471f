//! Products of 8-bit weights by the integer dot products of AVX-512 VNNI: four multiply-adds per lane and instruction.
//!
//! A row of activations becomes integers of 16 bits, `x = scale (256 high + low)` with two signed bytes, so what rounding
//! adds to a product is 1.5e-5 of it (measured), against 4e-3 that rounding the weights to 8 bits has added. Both bytes
//! meet the same weights, which lie with 128 added because one side of the instruction is unsigned; the sums start at what
//! that adds. Sums are exact and may wrap on the way: the result does not depend on the order, the tile or the batch.

use super::matmul::Block;
use super::packed::{Line, PANEL, ZERO_POINT};
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
    block.rows.len().min(TALLEST) * row_bytes(block.matrix.inputs) / size_of::<Line>()
}

/// A row's high bytes, then its low ones, each as whole lines.
fn row_bytes(inputs: usize) -> usize {
    2 * inputs.next_multiple_of(size_of::<Line>())
}

/// A row as integers.
#[derive(Clone, Copy, Default)]
struct Quantised {
    /// What one is worth. NaN for a row with a number that is not finite.
    scale: f32,
    /// Sums of the high and of the low bytes.
    sums: [i32; 2],
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
    let inputs = block.matrix.inputs;
    let half = row_bytes(inputs) / 2;
    // SAFETY: a line is plain bytes; four of them are aligned as an i32 is, because rows and lines start at multiples of 64.
    let bytes = unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<u8>(), size_of_val(scratch)) };
    let mut rows = [Quantised::default(); M];
    for (m, row) in rows.iter_mut().enumerate() {
        let (high, low) = bytes[m * 2 * half..][..2 * half].split_at_mut(half);
        *row = quantise(block.input(r + m), high, low);
    }
    for p in block.panels.clone() {
        let lines = block.matrix.panel(p);
        let mut acc = [[[_mm512_setzero_si512(); 4]; M]; U];
        for (acc, row) in acc[0].iter_mut().zip(&rows) {
            let [high, low] = row.sums.map(|sum| sum.wrapping_mul(-ZERO_POINT));
            let (high, low) = (_mm512_set1_epi32(high), _mm512_set1_epi32(low));
            *acc = [high, high, low, low];
        }
        for (i, lines) in lines.chunks(U).enumerate() {
            for (u, line) in lines.iter().enumerate() {
                let w = line.0.as_ptr();
                // SAFETY: a line is two aligned vectors.
                let w = unsafe { [_mm512_load_si512(w.cast()), _mm512_load_si512(w.add(16).cast())] };
                for (m, acc) in acc[u].iter_mut().enumerate() {
                    // SAFETY: four bytes of each half of row m, which holds four for every line.
                    let (high, low) = unsafe {
                        let at = bytes.as_ptr().add(m * 2 * half + 4 * (i * U + u)).cast::<i32>();
                        (_mm512_set1_epi32(*at), _mm512_set1_epi32(*at.add(half / 4)))
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
            let mut line = [0.0; PANEL];
            for (v, to) in line.chunks_exact_mut(16).enumerate() {
                let (high, low) = (_mm512_cvtepi32_ps(sums(v)), _mm512_cvtepi32_ps(sums(v + 2)));
                let sum = _mm512_fmadd_ps(high, _mm512_set1_ps(256.0), low);
                // SAFETY: `to` holds 16 floats.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(sum, _mm512_set1_ps(row.scale))) };
            }
            // SAFETY: the caller's promise about rows and columns.
            unsafe { block.store::<V4>(p, r + m, line) };
        }
    }
    M
}

/// Writes a row's integers as high and low bytes, zeros behind the last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn quantise(x: &[f32], high: &mut [u8], low: &mut [u8]) -> Quantised {
    let load = |i: usize| {
        let left = (x.len() - i).min(16);
        // SAFETY: reads the `left` floats that are there.
        unsafe { _mm512_maskz_loadu_ps(u16::MAX >> (16 - left), x.as_ptr().add(i)) }
    };
    // The largest magnitude by its bits, which order as integers and put what is not finite on top.
    let mut largest = _mm512_setzero_si512();
    for i in (0..x.len()).step_by(16) {
        largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_abs_ps(load(i))));
    }
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    // Below 1e-30 the reciprocal would overflow; such a row counts as zeros.
    let (scale, inverse) = match largest {
        l if !l.is_finite() => (f32::NAN, 0.0),
        l if l > 1e-30 => (l / LARGEST, LARGEST / l),
        _ => (0.0, 0.0),
    };
    let mut sums = [_mm512_setzero_si512(); 2];
    for i in (0..x.len()).step_by(16) {
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(load(i), _mm512_set1_ps(inverse)));
        let h = _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128)));
        let l = _mm512_sub_epi32(q, _mm512_slli_epi32::<8>(h));
        for ((part, to), sum) in [h, l].into_iter().zip([&mut *high, &mut *low]).zip(&mut sums) {
            *sum = _mm512_add_epi32(*sum, part);
            // SAFETY: the halves are whole lines, so 16 bytes at a multiple of 16 below `x.len()` are there.
            unsafe { _mm_storeu_si128(to[i..i + 16].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(part)) };
        }
    }
    Quantised { scale, sums: [_mm512_reduce_add_epi32(sums[0]), _mm512_reduce_add_epi32(sums[1])] }
}
