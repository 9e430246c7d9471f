//! Weights as the products read them: packed once, in the format in which they were stored.
//!
//! A matrix lies in panels of 32 columns, each panel contiguous, line by line. A line holds one 32-bit word per column: one
//! f32, two bf16 or four 8-bit integers of rows that follow one another. All formats so have one geometry, a narrow weight
//! becomes f32 by shifts and masks within its own lane, and four 8-bit rows lie as integer dot products want them.

use super::simd::{self, kernel};
use super::{Activation, OutPointer};
use pulp::Simd;
use std::ops::Range;
use std::sync::Arc;

/// Columns of a panel: two AVX-512 registers, four of AVX2.
pub(crate) const PANEL: usize = 32;

/// How the weight of a linear layer lies in memory. Sums are f32 with every format. Activations are, too, but that where a processor multiplies integers faster
/// they meet weights of 8 bits as integers of 16 bits, and that an engine that computes in bf16 rounds them to that.
///
/// ```
/// use candle_models::ops::Format;
///
/// let weight = [0.5, -2.0, -1.0, 1.0]; // [inputs, outputs]
/// let Format::Q8(factors) = Format::q8(&weight, 2) else { panic!("8 bits") };
/// assert_eq!(*factors, [1.0 / 127.0, 2.0 / 127.0]);
/// assert_eq!(Format::Q8(factors).integers(&weight), Some(vec![64, -127, -127, 64]));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Format {
    /// 4 bytes.
    #[default]
    F32,
    /// 2 bytes: the upper half of an f32.
    Bf16,
    /// 1 byte: a signed integer times its column's factor, `[outputs]`.
    Q8(Arc<[f32]>),
}

impl Format {
    /// 8 bits for a row-major weight `[inputs, outputs]`: a column's largest magnitude becomes 127. A column of zeros
    /// has the factor 0.
    pub fn q8(weight: &[f32], outputs: usize) -> Self {
        let mut largest = vec![0.0f32; outputs];
        for row in weight.chunks(outputs.max(1)) {
            largest.iter_mut().zip(row).for_each(|(l, w)| *l = l.max(w.abs()));
        }
        Self::Q8(largest.into_iter().map(|l| l / 127.0).collect())
    }

    /// The integers of a row-major weight `[inputs, outputs]`, if this is an 8-bit format. A weight that was made from
    /// integers and these factors gives the same integers.
    pub fn integers(&self, weight: &[f32]) -> Option<Vec<i8>> {
        let Self::Q8(scale) = self else { return None };
        let rows = weight.chunks(scale.len().max(1));
        Some(rows.flat_map(|row| row.iter().zip(&**scale).map(|(w, s)| quantise(*w, *s))).collect())
    }
}

/// To the nearest, ties to even.
fn quantise(weight: f32, scale: f32) -> i8 {
    // A float becomes an integer by saturation, and what is not a number becomes 0.
    if scale > 0.0 { (weight / scale).round_ties_even() as i8 } else { 0 }
}

/// One word per column.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; PANEL]);

impl Line {
    pub const ZERO: Self = Self([0; PANEL]);

    /// Asks for a line of the panel behind this one. Left to itself a processor fetches them one by one when they are read, and waits for the second-level cache.
    #[inline(always)]
    pub fn prefetch_ahead(&self) {
        const AHEAD: usize = 16;
        let ahead = self.0.as_ptr().cast::<f32>().wrapping_add(AHEAD * PANEL);
        simd::prefetch(ahead, simd::Level::First);
        simd::prefetch(ahead.wrapping_add(PANEL / 2), simd::Level::First);
    }
}

/// A weight's encoding in a 32-bit word.
pub(super) trait Element {
    /// Rows of a line.
    const ROWS: usize;

    /// The low bits of a word.
    fn encode(weight: f32, scale: f32) -> u32;

    /// Row `row` of a line as floats, without the column's factor.
    fn widen<S: Simd>(simd: S, words: S::u32s, row: usize) -> S::f32s;
}

pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct Q8;

impl Element for F32 {
    const ROWS: usize = 1;

    fn encode(weight: f32, _: f32) -> u32 {
        weight.to_bits()
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, words: S::u32s, _: usize) -> S::f32s {
        simd.transmute_f32s_u32s(words)
    }
}

impl Element for Bf16 {
    const ROWS: usize = 2;

    fn encode(weight: f32, _: f32) -> u32 {
        narrow(weight)
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, words: S::u32s, row: usize) -> S::f32s {
        let upper = if row == 0 {
            simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16))
        } else {
            simd.and_u32s(words, simd.splat_u32s(0xffff_0000))
        };
        simd.transmute_f32s_u32s(upper)
    }
}

/// An 8-bit weight is stored with this added: unsigned, as the integer dot product wants one of its sides.
pub(super) const ZERO_POINT: i32 = 128;

impl Element for Q8 {
    const ROWS: usize = 4;

    fn encode(weight: f32, scale: f32) -> u32 {
        (i32::from(quantise(weight, scale)) + ZERO_POINT) as u32
    }

    /// The byte as the low bits of 2^23 is 2^23 plus the byte: a subtraction makes it a float.
    #[inline(always)]
    fn widen<S: Simd>(simd: S, words: S::u32s, row: usize) -> S::f32s {
        const TWO_23: f32 = 8_388_608.0;
        let byte = if row == 0 { words } else { simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(8 * row as u32)) };
        let byte = simd.and_u32s(byte, simd.splat_u32s(0xff));
        let float = simd.transmute_f32s_u32s(simd.or_u32s(byte, simd.splat_u32s(TWO_23.to_bits())));
        simd.sub_f32s(float, simd.splat_f32s(TWO_23 + ZERO_POINT as f32))
    }
}

/// A weight `[inputs, outputs]` and its bias, packed by panels; columns behind the last are zero.
pub(crate) struct PackedMatrix {
    pub inputs: usize,
    pub outputs: usize,
    pub(super) kind: Kind,
    /// Whether activations are rounded to bf16.
    pub(super) rounds_activations: bool,
    lines: Vec<Line>,
    /// What a column's sum is multiplied by: 1 but for 8 bits.
    scale: Vec<f32>,
    bias: Vec<f32>,
}

/// Which [`Element`] the lines are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    Bf16,
    Q8,
}

impl PackedMatrix {
    /// Packs a row-major weight `[inputs, outputs]`; an empty bias is zero.
    pub fn new(inputs: usize, outputs: usize, weight: &[f32], bias: &[f32], format: &Format) -> Self {
        let (lines, kind) = match format {
            Format::F32 => (lines_of_floats(outputs, weight), Kind::F32),
            Format::Bf16 => (lines_of_halves(outputs, weight), Kind::Bf16),
            Format::Q8(scale) => (lines::<Q8>(outputs, weight, scale), Kind::Q8),
        };
        assert_eq!(weight.len(), inputs * outputs);
        let columns = outputs.next_multiple_of(PANEL);
        let (mut padded, mut factors) = (vec![0.0; columns], vec![1.0; columns]);
        padded[..bias.len()].copy_from_slice(bias);
        if let Format::Q8(scale) = format {
            factors[..outputs].copy_from_slice(scale);
        }
        Self { inputs, outputs, kind, rounds_activations: false, lines, scale: factors, bias: padded }
    }

    /// The same with activations rounded to bf16, if the weights are. Panics where products in bf16 gain nothing.
    pub fn rounding_activations(self) -> Self {
        let rounds_activations = self.kind == Kind::Bf16;
        assert!(!rounds_activations || super::has_bf16_products(), "no products in bf16 on this path");
        Self { rounds_activations, ..self }
    }

    /// Packs the transpose, `[outputs, inputs]`, of a row-major weight `[inputs, outputs]`, without bias, in f32 or bf16: 8 bits have factors of columns.
    pub fn transposed(inputs: usize, outputs: usize, weight: &[f32], format: &Format) -> Self {
        assert_eq!(weight.len(), inputs * outputs);
        let columns = inputs.next_multiple_of(PANEL);
        let (kind, values) = if *format == Format::Bf16 { (Kind::Bf16, Bf16::ROWS) } else { (Kind::F32, F32::ROWS) };
        let length = outputs.div_ceil(values);
        let mut lines = vec![Line::ZERO; length * columns / PANEL];
        for (panel, lines) in lines.chunks_mut(length.max(1)).enumerate() {
            let rows = weight.chunks_exact(outputs).skip(panel * PANEL).take(PANEL);
            for (column, row) in rows.enumerate() {
                let put = |(line, word): (&mut Line, u32)| line.0[column] = word;
                match kind {
                    Kind::Bf16 => {
                        lines.iter_mut().zip(row.chunks(2).map(|x| x.iter().rfold(0, |word, x| word << 16 | narrow(*x)))).for_each(put)
                    }
                    _ => lines.iter_mut().zip(row.iter().map(|x| x.to_bits())).for_each(put),
                }
            }
        }
        let (scale, bias) = (vec![1.0; columns], vec![0.0; columns]);
        Self { inputs: outputs, outputs: inputs, kind, rounds_activations: false, lines, scale, bias }
    }

    pub fn panel_count(&self) -> usize {
        self.bias.len() / PANEL
    }

    /// Whether weights of 8 bits are multiplied as such, several at a time.
    pub fn multiplies_integers(&self) -> bool {
        self.kind == Kind::Q8 && simd::integers() == simd::Integers::DotProduct
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice()) + 4 * (self.scale.len() + self.bias.len())
    }

    /// The lines of panel `p`.
    pub(super) fn panel(&self, p: usize) -> &[Line] {
        let length = self.lines.len() / self.panel_count();
        &self.lines[p * length..][..length]
    }

    /// Factors and biases of the columns of panel `p`.
    pub(super) fn columns(&self, p: usize) -> (&[f32], &[f32]) {
        (&self.scale[p * PANEL..][..PANEL], &self.bias[p * PANEL..][..PANEL])
    }
}

/// [`lines`] of f32: a copy, which training repeats at every step.
fn lines_of_floats(outputs: usize, weight: &[f32]) -> Vec<Line> {
    let rows = weight.len() / outputs.max(1);
    let mut lines = vec![Line::ZERO; rows * outputs.div_ceil(PANEL)];
    for (panel, lines) in lines.chunks_mut(rows.max(1)).enumerate() {
        let columns = panel * PANEL..((panel + 1) * PANEL).min(outputs);
        for (line, row) in lines.iter_mut().zip(weight.chunks_exact(outputs)) {
            line.0.iter_mut().zip(&row[columns.clone()]).for_each(|(word, value)| *word = value.to_bits());
        }
    }
    lines
}

/// [`lines`] of bf16, which training packs at every step as well.
fn lines_of_halves(outputs: usize, weight: &[f32]) -> Vec<Line> {
    let length = (weight.len() / outputs.max(1)).div_ceil(2);
    let mut lines = vec![Line::ZERO; length * outputs.div_ceil(PANEL)];
    for (i, rows) in weight.chunks((2 * outputs).max(1)).enumerate() {
        let (low, high) = rows.split_at(outputs);
        for (p, low) in low.chunks(PANEL).enumerate() {
            let high = high.chunks(PANEL).nth(p).unwrap_or_default();
            pair([low, high], &mut lines[p * length + i].0[..low.len()]);
        }
    }
    lines
}

/// The bits of the nearest bf16, of two the even one.
#[inline(always)]
fn narrow(x: f32) -> u32 {
    let bits = x.to_bits();
    // What is not a number stays so, whatever its lower bits were.
    if x.is_nan() { bits >> 16 | 0x40 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

kernel! {
    fn pair_up<S>(low: &'a [f32], high: &'a [f32], words: &'a mut [u32]) {
        for ((low, high), word) in low.iter().zip(high).zip(words) {
            *word = narrow(*low) | narrow(*high) << 16;
        }
    }
}

/// Words of two bf16, the first values in their lower halves; no second values are zeros.
pub(super) fn pair([low, high]: [&[f32]; 2], words: &mut [u32]) {
    if high.is_empty() {
        words.iter_mut().zip(low).for_each(|(word, low)| *word = narrow(*low));
    } else {
        pair_up(low, high, words);
    }
}

/// All panels of a weight, one behind the other; rows behind the last are zero.
fn lines<E: Element>(outputs: usize, weight: &[f32], scale: &[f32]) -> Vec<Line> {
    let groups: Vec<&[f32]> = weight.chunks((outputs * E::ROWS).max(1)).collect();
    let line = |start: usize, group: &[f32]| {
        let word = |column: usize| {
            let scale = scale.get(column).copied().unwrap_or_default();
            let weight = |row: usize| if column < outputs { group.get(row * outputs + column).copied().unwrap_or_default() } else { 0.0 };
            (0..E::ROWS).fold(0, |word, row| word | E::encode(weight(row), scale) << (row * 32 / E::ROWS))
        };
        Line(std::array::from_fn(|c| word(start + c)))
    };
    (0..outputs).step_by(PANEL).flat_map(|start| groups.iter().map(move |group| line(start, group))).collect()
}

/// One block of a product: rows `rows` of `x` by the panels `panels` of `matrix`, with everything that the kernels need.
pub(super) struct Block<'a> {
    pub matrix: &'a PackedMatrix,
    pub act: Activation,
    pub x: &'a [f32],
    pub x_stride: usize,
    pub rows: Range<usize>,
    pub panels: Range<usize>,
    pub out: OutPointer,
}

/// For a row of activations whose largest magnitude becomes the integer `largest`: what one is worth, and its reciprocal. The first is
/// NaN, and with it the whole row of results, if a number of the row is not finite.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn activation_scale(magnitude: f32, largest: f32) -> (f32, f32) {
    match magnitude {
        m if !m.is_finite() => (f32::NAN, 0.0),
        m if m > 1e-30 => (m / largest, largest / m),
        // The reciprocal would overflow; such a row counts as zeros.
        _ => (0.0, 0.0),
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

    fn dequantised(integers: &[i8], scale: &[f32]) -> Vec<f32> {
        integers.iter().zip(scale.iter().cycle()).map(|(q, s)| f32::from(*q) * s).collect()
    }

    #[test]
    fn eight_bits_err_by_half_a_step_at_most_and_use_the_whole_range() {
        let (inputs, outputs) = (37, 45);
        let weight = values(inputs * outputs, 1);
        let format = Format::q8(&weight, outputs);
        let (Format::Q8(scale), Some(integers)) = (&format, format.integers(&weight)) else { panic!("{format:?}") };
        for (i, (w, d)) in weight.iter().zip(dequantised(&integers, scale)).enumerate() {
            assert!((w - d).abs() <= 0.5001 * scale[i % outputs], "{w} became {d}");
        }
        for column in 0..outputs {
            let largest = integers.iter().skip(column).step_by(outputs).map(|q| i32::from(*q).abs()).max();
            assert_eq!(largest, Some(127), "column {column}");
        }
    }

    #[test]
    fn what_was_made_of_integers_gives_the_same_integers() {
        let (inputs, outputs) = (256, 301);
        // Every integer from -128 to 127 under factors from the smallest normal number to the largest that stays finite.
        let scale: Vec<f32> = (0..outputs).map(|c| 2f32.powi(c * 240 / 300 - 126) * (1.0 + c as f32 / 997.0)).collect();
        let integers: Vec<i8> = (0..inputs * outputs).map(|i| (i / outputs) as u8 as i8).collect();
        let weight = dequantised(&integers, &scale);
        assert!(weight.iter().all(|w| w.is_finite()));
        assert_eq!(Format::Q8(scale.into()).integers(&weight).unwrap(), integers);
    }

    #[test]
    fn columns_without_a_size_stay_zero_and_finite() {
        let weight = [0.0, 1e-45, 3.0, -0.0, -1e-45, -3.0];
        let format = Format::q8(&weight, 3);
        let Format::Q8(scale) = &format else { panic!("{format:?}") };
        assert_eq!((scale[0], format.integers(&weight).unwrap()), (0.0, vec![0, 0, 127, 0, 0, -127]));
        assert!(scale.iter().all(|s| s.is_finite()));
        assert!(Format::q8(&[], 0).integers(&[]).is_some_and(|integers| integers.is_empty()));
    }

    #[test]
    fn narrow_formats_take_less_memory() {
        let weight = values(256 * 64, 2);
        let bytes = |format: &Format| PackedMatrix::new(256, 64, &weight, &[], format).bytes();
        let f32 = bytes(&Format::F32);
        assert_eq!(f32, 4 * (256 * 64 + 2 * 64));
        assert_eq!((bytes(&Format::Bf16), bytes(&Format::q8(&weight, 64))), (f32 - 2 * 256 * 64, f32 - 3 * 256 * 64));
    }
}
