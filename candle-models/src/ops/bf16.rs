//! Products in bf16 by the dot products of AVX-512: two multiply-adds per lane and instruction, with sums in f32.
//!
//! Activations are rounded to bf16, to the nearest, ties to even: 0.2% of each at most, as much as rounding the weights has done to them. Rows, tiles and panels
//! have no part in a row's result but for the order of its sum. Training takes its products with weights and its gradients of weights here as well.

use super::matmul::with_scratch;
use super::packed::{Block, Line, PANEL, pair};
use super::{OutPointer, Rows};
use pulp::x86::V4;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of the tallest tile: 24 registers of sums.
const TALLEST: usize = 12;

/// Rows of a gradient's operands that are laid out at once: a panel of them, which meets every tile, then fits the first-level cache.
const AT_ONCE: usize = 256;

/// Words of a row of `inputs` activations, two in each; those behind the last are zero.
pub(super) fn words(inputs: usize) -> usize {
    inputs.div_ceil(PANEL) * (PANEL / 2)
}

/// Lines for the activations of the tallest tile that this block needs.
pub(super) fn scratch(block: &Block) -> usize {
    (block.rows.len().min(TALLEST) * words(block.matrix.inputs)).div_ceil(PANEL)
}

/// Runs a block in tiles of up to twelve rows.
///
/// # Safety
/// What [`super::linear_block`] asks for, and a path with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn run(block: &Block, scratch: &mut [Line]) {
    let scratch = flat(scratch);
    let mut r = block.rows.start;
    while r < block.rows.end {
        // SAFETY: the rows r.. lie inside the block.
        unsafe {
            r += match block.rows.end - r {
                TALLEST.. => tile::<TALLEST, 1>(block, r, scratch),
                8.. => tile::<8, 1>(block, r, scratch),
                4.. => tile::<4, 2>(block, r, scratch),
                2.. => tile::<2, 4>(block, r, scratch),
                _ => tile::<1, 4>(block, r, scratch),
            };
        }
    }
}

/// Lines as words, one behind the other.
fn flat(lines: &mut [Line]) -> &mut [u32] {
    // SAFETY: a line is its words.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * PANEL) }
}

/// `M` rows by all panels. Returns `M`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn tile<const M: usize, const U: usize>(block: &Block, r: usize, scratch: &mut [u32]) -> usize {
    let length = words(block.matrix.inputs);
    for (m, to) in scratch.chunks_mut(length.max(1)).take(M).enumerate() {
        narrow(block.input(r + m), to);
    }
    for p in block.panels.clone() {
        // SAFETY: every row has a word for every line of the panel; the caller's promise about rows and columns; the instructions are there.
        unsafe {
            for (m, sums) in sums::<M, U>(block.matrix.panel(p), scratch.as_ptr(), [length, 1]).into_iter().enumerate() {
                block.store(V4::new_unchecked(), p, r + m, &pulp::cast::<_, [_; 2]>(sums));
            }
        }
    }
    M
}

/// The sums of `M` rows over the lines of a panel, `U` lines at a time into sums of their own, which hides the latency. Words of a row are `on` words apart, rows
/// `apart`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn sums<const M: usize, const U: usize>(lines: &[Line], words: *const u32, [apart, on]: [usize; 2]) -> [[__m512; 2]; M] {
    let mut acc = [[[_mm512_setzero_ps(); 2]; M]; U];
    for (i, lines) in lines.chunks(U).enumerate() {
        for (u, line) in lines.iter().enumerate() {
            line.prefetch_ahead();
            let w = line.0.as_ptr();
            // SAFETY: a line is two aligned vectors of pairs.
            let w = unsafe { [_mm512_load_si512(w.cast()), _mm512_load_si512(w.add(16).cast())].map(|w| pairs(w)) };
            for (m, acc) in acc[u].iter_mut().enumerate() {
                // SAFETY: a row has a word for every line, as the caller promises.
                let x = pairs(_mm512_set1_epi32(unsafe { *words.add(m * apart + (i * U + u) * on) } as i32));
                *acc = [_mm512_dpbf16_ps(acc[0], x, w[0]), _mm512_dpbf16_ps(acc[1], x, w[1])];
            }
        }
    }
    let mut total = acc[0];
    for more in &acc[1..] {
        for (total, more) in total.iter_mut().zip(more) {
            *total = [_mm512_add_ps(total[0], more[0]), _mm512_add_ps(total[1], more[1])];
        }
    }
    total
}

#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are bf16.
    unsafe { std::mem::transmute(words) }
}

/// Rounds a row into words of two values, zeros behind the last, in whole vectors of 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn narrow(x: &[f32], to: &mut [u32]) {
    let put = |to: &mut [u32; 16], [low, high]: [__m512; 2]| {
        // SAFETY: both are 64 bytes, and `to` holds as many.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))) };
    };
    let (whole, rest) = x.as_chunks::<32>();
    let (to, behind) = to.as_chunks_mut::<16>().0.split_at_mut(whole.len());
    for (chunk, to) in whole.iter().zip(to) {
        // SAFETY: a chunk holds 32 floats.
        put(to, unsafe { [_mm512_loadu_ps(chunk.as_ptr()), _mm512_loadu_ps(chunk[16..].as_ptr())] });
    }
    let mut behind = behind.iter_mut();
    if !rest.is_empty()
        && let Some(to) = behind.next()
    {
        let masks = [(1u32 << rest.len().min(16)) - 1, (1u32 << rest.len().saturating_sub(16)) - 1];
        // SAFETY: reads the floats that are there.
        put(to, unsafe {
            [
                _mm512_maskz_loadu_ps(masks[0] as __mmask16, rest.as_ptr()),
                _mm512_maskz_loadu_ps(masks[1] as __mmask16, rest.as_ptr().wrapping_add(16)),
            ]
        });
    }
    for to in behind {
        *to = [0; 16];
    }
}

/// `out += x^T dy` with `out` of `x.width` rows of `dy.width` values: the gradient of a weight, over the rows of both. The sum is not rounded to bf16.
///
/// # Safety
/// `out` points at such rows that nobody else touches, and the path has these instructions.
pub(super) unsafe fn multiply_transposed(x: Rows, dy: Rows, out: OutPointer) {
    assert!(x.rows == dy.rows && out.stride >= dy.width, "{} x {} by {} x {}", x.width, x.rows, dy.rows, dy.width);
    let (most, panels) = (AT_ONCE.min(x.rows).div_ceil(2), dy.width.div_ceil(PANEL));
    let left = (most * x.width).div_ceil(PANEL);
    with_scratch(left + most * panels, |scratch| {
        let (left, right) = scratch.split_at_mut(left);
        let left = flat(left);
        for first in (0..x.rows).step_by(AT_ONCE) {
            let rows = AT_ONCE.min(x.rows - first);
            let count = rows.div_ceil(2);
            for i in 0..count {
                let at = first + 2 * i..(first + 2 * i + 2).min(first + rows);
                pair(both(x, &at), &mut left[i * x.width..][..x.width]);
                let [low, high] = both(dy, &at);
                for (p, low) in low.chunks(PANEL).enumerate() {
                    let high = high.chunks(PANEL).nth(p).unwrap_or_default();
                    let line = &mut right[p * count + i];
                    *line = Line::ZERO;
                    pair([low, high], &mut line.0[..low.len()]);
                }
            }
            for (p, lines) in right[..panels * count].chunks(count).enumerate() {
                let columns = (dy.width - p * PANEL).min(PANEL);
                let mut i = 0;
                while i < x.width {
                    // SAFETY: rows i.. of `out` have these columns, and every line has a word for each of them; the instructions are there.
                    unsafe {
                        let to = out.data.add(i * out.stride + p * PANEL);
                        let words = left.as_ptr().add(i);
                        i += match x.width - i {
                            TALLEST.. => add::<TALLEST, 1>(lines, (words, x.width), (to, out.stride), columns),
                            8.. => add::<8, 1>(lines, (words, x.width), (to, out.stride), columns),
                            4.. => add::<4, 2>(lines, (words, x.width), (to, out.stride), columns),
                            2.. => add::<2, 4>(lines, (words, x.width), (to, out.stride), columns),
                            _ => add::<1, 4>(lines, (words, x.width), (to, out.stride), columns),
                        };
                    }
                }
            }
        }
    });
}

/// Two rows, or one and nothing.
fn both<'a>(of: Rows<'a>, at: &Range<usize>) -> [&'a [f32]; 2] {
    [of.row(at.start), if at.len() > 1 { of.row(at.start + 1) } else { &[] }]
}

/// Adds the sums of `M` columns of the left side to as many rows of so many columns. Returns `M`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add<const M: usize, const U: usize>(
    lines: &[Line],
    (words, on): (*const u32, usize),
    (to, stride): (*mut f32, usize),
    columns: usize,
) -> usize {
    let masks = [(1u32 << columns.min(16)) - 1, (1u32 << columns.saturating_sub(16)) - 1];
    // SAFETY: the caller's promise.
    unsafe {
        for (m, sums) in sums::<M, U>(lines, words, [1, on]).into_iter().enumerate() {
            for (v, (sum, mask)) in sums.into_iter().zip(masks).enumerate() {
                let (to, mask) = (to.add(m * stride + 16 * v), mask as __mmask16);
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to)));
            }
        }
    }
    M
}

#[cfg(test)]
mod tests {
    use super::super::{Activation, Format, PackedMatrix, linear_block, simd};
    use super::*;
    use crate::random::Random;

    fn is_skipped() -> bool {
        let skipped = !simd::has_fast_bf16();
        if skipped {
            eprintln!("skipped: no dot products of bf16 on this machine or path");
        }
        skipped
    }

    fn values(n: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(seed).fill_normal(0, &mut values);
        values
    }

    fn rounded(x: f32) -> f64 {
        f64::from(half::bf16::from_f32(x).to_f32())
    }

    /// Odd and even numbers of rows, more than are laid out at once, tiles of every height, panels that are not whole, and rows that lie apart.
    #[test]
    fn gradients_of_weights_add_the_product_over_rows() {
        if is_skipped() {
            return;
        }
        for (rows, inputs, outputs) in [(1, 1, 1), (2, 3, 33), (7, 12, 16), (33, 27, 48), (300, 15, 70), (513, 40, 31)] {
            let (stride, wide) = (inputs + 3, outputs + 2);
            let (x, dy, start) = (values(rows * stride, 1), values(rows * outputs, 2), values(inputs * wide, 3));
            let mut out = start.clone();
            let x_rows = Rows { data: &x, rows, width: inputs, stride };
            let dy_rows = Rows { data: &dy, rows, width: outputs, stride: outputs };
            // SAFETY: `out` holds the rows, and the path has the instructions.
            unsafe { multiply_transposed(x_rows, dy_rows, OutPointer { data: out.as_mut_ptr(), stride: wide }) };
            for i in 0..inputs {
                for c in 0..wide {
                    let at = i * wide + c;
                    let product = |r: usize| rounded(x[r * stride + i]) * rounded(dy[r * outputs + c]);
                    let expected = f64::from(start[at]) + if c < outputs { (0..rows).map(product).sum() } else { 0.0 };
                    let tolerance = if c < outputs { 1e-5 * (rows as f64).sqrt() } else { 0.0 };
                    let found = f64::from(out[at]);
                    assert!((found - expected).abs() <= tolerance, "{rows} x {inputs} x {outputs} at {i}, {c}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn a_transposed_weight_is_the_weight_the_other_way_round() {
        if is_skipped() {
            return;
        }
        for (inputs, outputs, rows) in [(5, 7, 3), (40, 33, 13), (64, 96, 1)] {
            let (w, dy) = (values(inputs * outputs, 4), values(rows * outputs, 5));
            let matrix = PackedMatrix::transposed(inputs, outputs, &w, &Format::Bf16).rounding_activations();
            let mut out = vec![f32::NAN; rows * inputs];
            let pointer = OutPointer::rows(&mut out, inputs);
            // SAFETY: `out` holds rows of the matrix's width.
            unsafe { linear_block(&matrix, Activation::None, (&dy, outputs), 0..rows, 0..matrix.panel_count(), pointer) };
            for (at, found) in out.iter().enumerate() {
                let (r, i) = (at / inputs, at % inputs);
                let expected: f64 = (0..outputs).map(|c| rounded(dy[r * outputs + c]) * rounded(w[i * outputs + c])).sum();
                assert!((f64::from(*found) - expected).abs() < 1e-4, "{inputs} x {outputs} at {r}, {i}: {found} {expected}");
            }
        }
    }
}
