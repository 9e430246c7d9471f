//! Operands of products in tiles: rounded to bf16, or split into a sum of three, and laid out in squares.

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

    /// Writes P planes, whose sum is as near to the values as P numbers in bf16 can be.
    ///
    /// # Safety
    /// `from` points at 32 rows of 32 values, `stride` apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pack<const P: usize>(self, from: *const f32, stride: usize, to: &mut [Square]) {
        for half in 0..2 {
            for line in 0..16 {
                // SAFETY: the halves of the square are the upper and the lower 16 rows, or the left and the right 16 columns; a line
                // of a tile is one aligned vector.
                unsafe {
                    let planes: [__m512i; P] = match self {
                        Self::Left | Self::RightTransposed => row(from.add((half * 16 + line) * stride)),
                        Self::Right | Self::LeftTransposed => pair_of_rows(from.add(half * 16 + 2 * line * stride), stride),
                    };
                    for (plane, to) in planes.into_iter().zip(to.iter_mut()) {
                        _mm512_store_si512(to.0[half][line].as_mut_ptr().cast(), plane);
                    }
                }
            }
            if matches!(self, Self::RightTransposed | Self::LeftTransposed) {
                to[..P].iter_mut().for_each(|to| transpose(&mut to.0[half]));
            }
        }
    }
}

/// 32 values as the sum of P times 32 in bf16, those of `low` first: each rounds what those before it left.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn narrow<const P: usize>(mut low: __m512, mut high: __m512) -> [__m512i; P] {
    let mut planes = [_mm512_setzero_si512(); P];
    for (p, plane) in planes.iter_mut().enumerate() {
        // SAFETY: both are 64 bytes in which any bits are valid.
        *plane = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        if p + 1 < P {
            low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(*plane)));
            high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64::<1>(*plane)));
        }
    }
    planes
}

/// 16 values in bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn widen(narrow: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
}

/// A row of 32 values.
///
/// # Safety
/// They lie at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn row<const P: usize>(from: *const f32) -> [__m512i; P] {
    // SAFETY: the caller's promise.
    unsafe { narrow(_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16))) }
}

/// Two rows of 16 values: a word holds one value of each.
///
/// # Safety
/// They lie at `from`, `stride` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pair_of_rows<const P: usize>(from: *const f32, stride: usize) -> [__m512i; P] {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: 64 bytes, and the caller's promise.
    let (order, planes) =
        unsafe { (_mm512_loadu_si512(ORDER.as_ptr().cast()), narrow::<P>(_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(stride)))) };
    planes.map(|both| _mm512_permutexvar_epi16(order, both))
}

/// 16 x 16 words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn transpose(tile: &mut [[u32; 16]; 16]) {
    let mut lines = [_mm512_setzero_si512(); 16];
    for (line, from) in lines.iter_mut().zip(tile.iter()) {
        // SAFETY: a line of a tile is one aligned vector.
        *line = unsafe { _mm512_load_si512(from.as_ptr().cast()) };
    }
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
    for (column, to) in columns.iter().zip(tile) {
        // SAFETY: a line of a tile is one aligned vector.
        unsafe { _mm512_store_si512(to.as_mut_ptr().cast(), *column) };
    }
}

/// Squares of a matrix of that size.
pub(super) fn squares(rows: usize, columns: usize) -> usize {
    rows.div_ceil(SIDE) * columns.div_ceil(SIDE)
}

/// Writes a matrix as the squares of a product, the P planes of a square behind one another; behind the last row and column they
/// are zero.
///
/// # Safety
/// [`simd::has_tiles`](super::simd::has_tiles).
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack<const P: usize>(source: Rows, role: Role, to: &mut [Square]) {
    let (down, across) = (source.rows.div_ceil(SIDE), source.width.div_ceil(SIDE));
    assert!(down * across == 0 || source.data.len() >= (source.rows - 1) * source.stride + source.width);
    for i in 0..down {
        for j in 0..across {
            let to = &mut to[P * role.place((i, j), (down, across))..][..P];
            let (rows, columns) = ((source.rows - i * SIDE).min(SIDE), (source.width - j * SIDE).min(SIDE));
            if (rows, columns) == (SIDE, SIDE) {
                let from = &source.data[i * SIDE * source.stride + j * SIDE..];
                // SAFETY: 32 rows and columns are there, inside the data (asserted).
                unsafe { role.pack::<P>(from.as_ptr(), source.stride, to) };
            } else {
                let mut padded = [[0.0; SIDE]; SIDE];
                for (r, row) in padded[..rows].iter_mut().enumerate() {
                    row[..columns].copy_from_slice(&source.row(i * SIDE + r)[j * SIDE..][..columns]);
                }
                // SAFETY: 32 rows of 32 values.
                unsafe { role.pack::<P>(padded.as_ptr().cast(), SIDE, to) };
            }
        }
    }
}
