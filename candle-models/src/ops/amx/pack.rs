//! Operands of products in tiles: rounded to bf16 and laid out in squares.

use super::Rows;
use std::arch::x86_64::*;

/// Rows and columns of a square of values, and of a block of sums.
pub(super) const SIDE: usize = 32;

/// 32 x 32 values in bf16: two tiles, each 16 lines of 16 words of two values.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Square([[[u32; 16]; 16]; 2]);

impl Square {
    pub const ZERO: Self = Self([[[0; 16]; 16]; 2]);
}

/// What a matrix becomes in a product, whose sum goes over the columns of its left side and over the rows of its right side.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Left,
    LeftTransposed,
    Right,
    RightTransposed,
}

impl Role {
    /// Where the square in row `i` and column `j` of `down` x `across` lies: the squares of a sum follow one another.
    fn place(self, (i, j): (usize, usize), (down, across): (usize, usize)) -> usize {
        match self {
            Self::Left | Self::RightTransposed => i * across + j,
            Self::Right | Self::LeftTransposed => j * down + i,
        }
    }

    /// # Safety
    /// `from` points at 32 rows of 32 values, `stride` apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pack(self, from: *const f32, stride: usize, to: &mut Square) {
        for (half, tile) in to.0.iter_mut().enumerate() {
            // SAFETY: the halves of the square are the upper and the lower 16 rows, or the left and the right 16 columns.
            let lines = unsafe {
                match self {
                    Self::Left => narrow_rows(from.add(half * 16 * stride), stride),
                    Self::RightTransposed => transpose(narrow_rows(from.add(half * 16 * stride), stride)),
                    Self::Right => interleave_rows(from.add(half * 16), stride),
                    Self::LeftTransposed => transpose(interleave_rows(from.add(half * 16), stride)),
                }
            };
            for (line, to) in lines.iter().zip(tile) {
                // SAFETY: a line of a tile is one aligned vector.
                unsafe { _mm512_store_si512(to.as_mut_ptr().cast(), *line) };
            }
        }
    }
}

/// 32 values as bf16, the 16 of `low` first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn narrow(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes in which any bits are valid.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// 16 rows of 32 values.
///
/// # Safety
/// They lie `stride` apart from `from` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn narrow_rows(from: *const f32, stride: usize) -> [__m512i; 16] {
    let mut lines = [_mm512_setzero_si512(); 16];
    for (r, line) in lines.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *line = unsafe {
            let row = from.add(r * stride);
            narrow(_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(16)))
        };
    }
    lines
}

/// 32 rows of 16 values, two rows in a vector: a word holds one value of each.
///
/// # Safety
/// They lie `stride` apart from `from` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn interleave_rows(from: *const f32, stride: usize) -> [__m512i; 16] {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: 64 bytes.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    let mut lines = [_mm512_setzero_si512(); 16];
    for (pair, line) in lines.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let both = unsafe {
            let row = from.add(2 * pair * stride);
            narrow(_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(stride)))
        };
        *line = _mm512_permutexvar_epi16(order, both);
    }
    lines
}

/// 16 x 16 words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn transpose(lines: [__m512i; 16]) -> [__m512i; 16] {
    // Within each quarter of the vectors, 4 x 4 words change places; then the quarters do.
    let mut words = lines;
    for (from, to) in lines.chunks_exact(4).zip(words.chunks_exact_mut(4)) {
        let (a, b) = (_mm512_unpacklo_epi32(from[0], from[1]), _mm512_unpacklo_epi32(from[2], from[3]));
        let (c, d) = (_mm512_unpackhi_epi32(from[0], from[1]), _mm512_unpackhi_epi32(from[2], from[3]));
        to[0] = _mm512_unpacklo_epi64(a, b);
        to[1] = _mm512_unpackhi_epi64(a, b);
        to[2] = _mm512_unpacklo_epi64(c, d);
        to[3] = _mm512_unpackhi_epi64(c, d);
    }
    let mut columns = words;
    for j in 0..4 {
        // Quarters 0 and 2, or 1 and 3, of the upper and of the lower eight lines.
        let (a, b) = (_mm512_shuffle_i32x4::<0x88>(words[j], words[4 + j]), _mm512_shuffle_i32x4::<0x88>(words[8 + j], words[12 + j]));
        let (c, d) = (_mm512_shuffle_i32x4::<0xdd>(words[j], words[4 + j]), _mm512_shuffle_i32x4::<0xdd>(words[8 + j], words[12 + j]));
        columns[j] = _mm512_shuffle_i32x4::<0x88>(a, b);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(c, d);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(a, b);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(c, d);
    }
    columns
}

/// Squares of a matrix of that size.
pub(super) fn squares(rows: usize, columns: usize) -> usize {
    rows.div_ceil(SIDE) * columns.div_ceil(SIDE)
}

/// Writes a matrix as the squares of a product; behind the last row and column they are zero.
///
/// # Safety
/// [`super::available`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack(source: Rows, role: Role, to: &mut [Square]) {
    let (down, across) = (source.rows.div_ceil(SIDE), source.width.div_ceil(SIDE));
    assert!(down * across == 0 || source.data.len() >= (source.rows - 1) * source.stride + source.width);
    for i in 0..down {
        for j in 0..across {
            let to = &mut to[role.place((i, j), (down, across))];
            let (rows, columns) = ((source.rows - i * SIDE).min(SIDE), (source.width - j * SIDE).min(SIDE));
            if (rows, columns) == (SIDE, SIDE) {
                let from = &source.data[i * SIDE * source.stride + j * SIDE..];
                // SAFETY: 32 rows and columns are there, inside the data (asserted).
                unsafe { role.pack(from.as_ptr(), source.stride, to) };
            } else {
                let mut padded = [[0.0; SIDE]; SIDE];
                for (r, row) in padded[..rows].iter_mut().enumerate() {
                    row[..columns].copy_from_slice(&source.row(i * SIDE + r)[j * SIDE..][..columns]);
                }
                // SAFETY: 32 rows of 32 values.
                unsafe { role.pack(padded.as_ptr().cast(), SIDE, to) };
            }
        }
    }
}
