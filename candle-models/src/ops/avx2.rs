//! Products of 8-bit weights by AVX2's multiply-adds of 16-bit integers, where there are no dot products of bytes ([`super::vnni`]): two
//! multiply-adds per lane and instruction.
//!
//! A row of activations becomes integers of 16 bits or a few less: as many as let the sum over all inputs fit into 32 bits. For 512 inputs
//! rounding adds 1.5e-5 of the largest activation, for the most inputs taken here eight times that, against the 4e-3 that rounding the
//! weights to 8 bits has added. Four weights of a column lie in one word with 128 added; its even and its odd bytes become two pairs of
//! 16-bit integers by a mask and a shift, and the sums start at what the 128 add. Sums are exact and may wrap on the way: the result does
//! not depend on the order, the tile or the batch.

use super::packed::{Block, Line, PANEL, ZERO_POINT, activation_scale};
use pulp::x86::V3;
use std::arch::x86_64::*;

/// With more inputs the activations would keep less than 12 bits.
pub(super) const MAX_INPUTS: usize = 1 << 12;

/// Rows of the tallest tile: 8 registers of sums, 4 of activations, 3 of weights on their way.
const TALLEST: usize = 2;

/// Activations that a step of [`quantise`] reads, and words that it writes.
const STEP: (usize, usize) = (8, 4);

/// Words of a row of activations.
const fn words(inputs: usize) -> usize {
    inputs.div_ceil(STEP.0) * STEP.1
}

/// Lines for the activations of the tallest tile that this block needs.
pub(super) fn scratch(block: &Block) -> usize {
    (block.rows.len().min(TALLEST) * words(block.matrix.inputs)).div_ceil(PANEL)
}

/// A row as integers: for every four inputs the first and third as one word, the second and fourth as the next.
#[derive(Clone, Copy, Default)]
struct Quantised {
    /// What one is worth. NaN for a row with a number that is not finite.
    scale: f32,
    sum: i32,
}

/// Runs a block whose matrix has at most [`MAX_INPUTS`] inputs.
///
/// # Safety
/// What [`super::linear_block`] asks for.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run(block: &Block, scratch: &mut [Line]) {
    let mut r = block.rows.start;
    while r < block.rows.end {
        // SAFETY: the rows r.. lie inside the block.
        unsafe {
            r += match block.rows.end - r {
                TALLEST.. => tile::<TALLEST>(block, r, scratch),
                _ => tile::<1>(block, r, scratch),
            };
        }
    }
}

/// `M` rows by all panels. Returns `M`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize>(block: &Block, r: usize, scratch: &mut [Line]) -> usize {
    let (inputs, length) = (block.matrix.inputs, words(block.matrix.inputs));
    // SAFETY: a line is `PANEL` words.
    let integers = unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<i32>(), scratch.len() * PANEL) };
    let mut rows = [Quantised::default(); M];
    for ((m, row), to) in rows.iter_mut().enumerate().zip(integers.chunks_mut(length.max(STEP.1))) {
        *row = quantise(block.input(r + m), largest(inputs), to);
    }
    let integers = integers.as_ptr();
    for p in block.panels.clone() {
        let mut acc: [[__m256i; 4]; M] = std::array::from_fn(|m| [_mm256_set1_epi32(rows[m].sum.wrapping_mul(-ZERO_POINT)); 4]);
        for (i, line) in block.matrix.panel(p).iter().enumerate() {
            let x: [[__m256i; 2]; M] = std::array::from_fn(|m| {
                // SAFETY: row m holds two words for every line of the panel.
                unsafe {
                    let at = integers.add(m * length + 2 * i);
                    [_mm256_set1_epi32(*at), _mm256_set1_epi32(*at.add(1))]
                }
            });
            for v in 0..4 {
                // SAFETY: a line is four aligned vectors.
                let w = unsafe { _mm256_load_si256(line.0.as_ptr().add(8 * v).cast()) };
                let (even, odd) = (_mm256_and_si256(w, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(w));
                for (acc, x) in acc.iter_mut().zip(&x) {
                    let sum = _mm256_add_epi32(acc[v], _mm256_madd_epi16(even, x[0]));
                    acc[v] = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, x[1]));
                }
            }
        }
        for (m, row) in rows.iter().enumerate() {
            let mut line = [0.0; PANEL];
            for (acc, to) in acc[m].iter().zip(line.chunks_exact_mut(8)) {
                let sum = _mm256_mul_ps(_mm256_cvtepi32_ps(*acc), _mm256_set1_ps(row.scale));
                // SAFETY: `to` holds 8 floats.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), sum) };
            }
            // SAFETY: the caller's promise about rows and columns; the instructions are there.
            unsafe { block.store(V3::new_unchecked(), p, r + m, &pulp::cast::<_, [_; 4]>(line)) };
        }
    }
    M
}

/// The largest integer of an activation: with weights of up to 128 the sum over all inputs fits into 32 bits.
const fn largest(inputs: usize) -> i32 {
    let most = i32::MAX / (ZERO_POINT * if inputs == 0 { 1 } else { inputs as i32 });
    if most < i16::MAX as i32 { most } else { i16::MAX as i32 }
}

/// Writes a row's integers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn quantise(x: &[f32], largest: i32, to: &mut [i32]) -> Quantised {
    let (whole, rest) = x.as_chunks::<8>();
    let mut last = [0.0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // SAFETY: a chunk holds 8 floats.
    let load = |chunk: &[f32; 8]| unsafe { _mm256_loadu_ps(chunk.as_ptr()) };
    // The largest magnitude by its bits, which order as integers and put what is not finite on top.
    let magnitude = |chunk: &[f32; 8]| _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0), load(chunk)));
    let most = whole.iter().fold(magnitude(&last), |most, chunk| _mm256_max_epi32(most, magnitude(chunk)));
    let mut bits = [0u32; 8];
    // SAFETY: 8 words.
    unsafe { _mm256_storeu_si256(bits.as_mut_ptr().cast(), most) };
    let most = f32::from_bits(bits.into_iter().fold(0, u32::max));
    let (scale, inverse) = activation_scale(most, largest as f32);
    // Within four integers of 16 bits: the first, the third, the second, the fourth.
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1));
    let mut sums = _mm256_setzero_si256();
    let chunks = whole.iter().chain((!rest.is_empty()).then_some(&last));
    for (chunk, to) in chunks.zip(to.chunks_exact_mut(STEP.1)) {
        let q = _mm256_cvtps_epi32(_mm256_mul_ps(load(chunk), _mm256_set1_ps(inverse)));
        sums = _mm256_add_epi32(sums, q);
        let words = _mm256_shuffle_epi8(_mm256_packs_epi32(q, q), order);
        // SAFETY: `to` holds 4 words.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(words))) };
    }
    let mut lanes = [0i32; 8];
    // SAFETY: 8 words.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
    Quantised { scale, sum: lanes.into_iter().fold(0, i32::wrapping_add) }
}
