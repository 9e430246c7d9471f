//! Products with prepared weights on tiles, for inference: in bf16, and with weights of 8 bits; those in f32 are in [`floats`].
//!
//! The panels of a [`PackedMatrix`](super::super::PackedMatrix) are read as they lie: a line holds a word of two bf16, or of four integers, for each of its 32
//! columns, and 16 lines are two tiles of a product's right side. Activations are rounded to bf16, or become integers of 16 bits as for the dot products
//! of AVX-512 ([`vnni`]), whose low and high bytes are rows of tiles. Sums of integers are exact: results are the same to the bit.
//!
//! A product into a tile takes 16 cycles and its sum is there after 52: four tiles of sums are on their way at once, for 32 rows (or low and high bytes of
//! 16) by one panel, or for 16 rows (8 of both bytes) by two. Where rows are few, tiles have as many lines and no more.

use super::super::packed::{Block, Kind, Line, PANEL};
use super::super::{Activation, bf16, vnni};
use super::{Configured, Lines, WHOLE, floats};
use pulp::x86::V4;
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile.
const TILE: usize = 16;

/// Four tiles of sums: twice 16 rows of 32.
#[repr(C, align(64))]
pub(super) struct Sums(pub [[u32; PANEL]; 2 * TILE]);

impl Sums {
    pub const ZERO: Self = Self([[0; PANEL]; 2 * TILE]);

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn integers(&self, m: usize) -> [__m512i; 2] {
        let row = &self.0[m];
        // SAFETY: a row is two aligned vectors.
        unsafe { [_mm512_load_si512(row.as_ptr().cast()), _mm512_load_si512(row[16..].as_ptr().cast())] }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn floats(&self, m: usize) -> [__m512; 2] {
        let [first, second] = self.integers(m);
        [_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)]
    }

    /// Of a row whose low and high bytes have their sums in these rows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_bytes(&self, row: vnni::Quantised, [low, high]: [usize; 2]) -> [__m512; 2] {
        let [[low, more_low], [high, more_high]] = [self.integers(low), self.integers(high)];
        let [begin_low, begin_high] = row.begin();
        let (begin_low, begin_high) = (_mm512_set1_epi32(begin_low), _mm512_set1_epi32(begin_high));
        let low = [_mm512_add_epi32(low, begin_low), _mm512_add_epi32(more_low, begin_low)];
        row.floats(low, [_mm512_add_epi32(high, begin_high), _mm512_add_epi32(more_high, begin_high)])
    }
}

/// The lines of two panels that are left behind the last 16, with zeros behind them.
#[repr(C, align(64))]
struct Rest([[Line; TILE]; 2]);

/// Whether [`run`] is the fastest way to compute a block.
pub(in crate::ops) fn serves(block: &Block) -> bool {
    let matrix = block.matrix;
    let gains = || match matrix.kind {
        Kind::F32 => floats::serves(block),
        Kind::Bf16 => matrix.rounds_activations && block.rows.len() >= FEWEST,
        Kind::Q8 => block.rows.len() >= FEWEST,
    };
    super::simd::has_tiles() && gains() && (1..=vnni::MAX_INPUTS).contains(&matrix.inputs)
}

/// From how many rows on tiles are faster than dot products of vectors. One row or two read weights faster on tiles from the second-level cache and slower from
/// behind it: a step of the usual networks took longer.
const FEWEST: usize = 3;

/// Words of a row of activations in a tile's order, without gaps: a multiple of a tile's lines.
fn words(block: &Block) -> usize {
    let inputs = block.matrix.inputs;
    if block.matrix.kind == Kind::Q8 { inputs.div_ceil(4).next_multiple_of(TILE) } else { bf16::words(inputs) }
}

/// Lines for the activations of two tiles.
pub(in crate::ops) fn scratch(block: &Block) -> usize {
    if block.matrix.kind == Kind::F32 { 0 } else { (2 * TILE * words(block)).div_ceil(PANEL) }
}

/// Runs a block that [`serves`] is true of.
///
/// # Safety
/// What [`super::super::linear_block`] asks for.
pub(in crate::ops) unsafe fn run(block: &Block, scratch: &mut [Line]) {
    // SAFETY: lines are words, one behind the other; the path has the tiles and vectors.
    unsafe {
        let scratch = std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<u32>(), scratch.len() * PANEL);
        match block.matrix.kind {
            Kind::F32 => floats::run(block),
            Kind::Bf16 => halves(block, scratch),
            Kind::Q8 => integers(block, scratch),
        }
    }
}

/// The assembly of a product's sums over the lines of panels: what one step of 16 lines does, and where its second pointer goes.
macro_rules! sums {
    ($(#[$doc:meta])* $name:ident, $second_step:literal, $second_rest:literal, $($step:literal),*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The tiles are configured. `a` and the panel have `steps` steps of 16 lines and, where `rest` is not null, one more, whose lines lie there.
        unsafe fn $name(steps: usize, rest: *const Rest, (a, stride): (*const u32, usize), panel: *const Line, second: *const u8, to: &mut Sums) {
            // SAFETY: the caller's promise. One assembly block, so that nothing is kept in tiles between two of them.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "test {steps}, {steps}",
                    "jz 3f",
                    "2:",
                    $($step,)*
                    "add {a}, 64",
                    "add {panel}, 2048",
                    $second_step,
                    "dec {steps}",
                    "jnz 2b",
                    "3:",
                    "test {rest}, {rest}",
                    "jz 4f",
                    "mov {panel}, {rest}",
                    $second_rest,
                    "xor {rest}, {rest}",
                    "mov {steps}, 1",
                    "jmp 2b",
                    "4:",
                    "tilestored [{to} + {line}], tmm0",
                    "tilestored [{to} + {line} + 64], tmm1",
                    "tilestored [{to} + {line} + 2048], tmm2",
                    "tilestored [{to} + {line} + 2112], tmm3",
                    steps = inout(reg) steps => _,
                    rest = inout(reg) rest => _,
                    a = inout(reg) a => _,
                    stride = in(reg) stride * size_of::<u32>(),
                    panel = inout(reg) panel => _,
                    second = inout(reg) second => _,
                    to = in(reg) to.0.as_mut_ptr(),
                    line = in(reg) size_of::<Line>(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

sums! {
    /// In bf16, 32 rows by one panel; `second` points at the lower 16 rows.
    tall_halves, "add {second}, 64", "",
    "tileloadd tmm6, [{panel} + {line}]", "tileloadd tmm7, [{panel} + {line} + 64]",
    "tileloadd tmm4, [{a} + {stride}]", "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{second} + {stride}]", "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7"
}

sums! {
    /// In bf16, up to 16 rows by two panels; `second` points at the second one.
    wide_halves, "add {second}, 2048", "lea {second}, [{rest} + 2048]",
    "tileloadd tmm4, [{a} + {stride}]",
    "tileloadd tmm5, [{panel} + {line}]", "tdpbf16ps tmm0, tmm4, tmm5",
    "tileloadd tmm6, [{panel} + {line} + 64]", "tdpbf16ps tmm1, tmm4, tmm6",
    "tileloadd tmm7, [{second} + {line}]", "tdpbf16ps tmm2, tmm4, tmm7",
    "tileloadd tmm5, [{second} + {line} + 64]", "tdpbf16ps tmm3, tmm4, tmm5"
}

sums! {
    /// Of integers, the low bytes of up to 8 rows and below them the high bytes, by two panels; `second` points at the second one.
    wide_integers, "add {second}, 2048", "lea {second}, [{rest} + 2048]",
    "tileloadd tmm4, [{a} + {stride}]",
    "tileloadd tmm5, [{panel} + {line}]", "tdpbsud tmm0, tmm4, tmm5",
    "tileloadd tmm6, [{panel} + {line} + 64]", "tdpbsud tmm1, tmm4, tmm6",
    "tileloadd tmm7, [{second} + {line}]", "tdpbsud tmm2, tmm4, tmm7",
    "tileloadd tmm5, [{second} + {line} + 64]", "tdpbsud tmm3, tmm4, tmm5"
}

/// The shapes of the tiles for a `wide` product of so many lines: sums and left side have these, the right side has all.
fn wide(lines: usize) -> Lines {
    std::array::from_fn(|tile| if tile < 5 { lines as u8 } else { TILE as u8 })
}

sums! {
    /// Of integers, 16 rows by one panel: low bytes, and high bytes to which `second` points.
    tall_integers, "add {second}, 64", "",
    "tileloadd tmm6, [{panel} + {line}]", "tileloadd tmm7, [{panel} + {line} + 64]",
    "tileloadd tmm4, [{a} + {stride}]", "tdpbsud tmm0, tmm4, tmm6", "tdpbsud tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{second} + {stride}]", "tdpbsud tmm2, tmm5, tmm6", "tdpbsud tmm3, tmm5, tmm7"
}

impl Rest {
    const ZERO: Self = Self([[Line::ZERO; TILE]; 2]);

    /// Takes what these panels have behind whole steps; null if nothing.
    fn take(&mut self, first: &[Line], second: &[Line]) -> *const Self {
        let whole = first.len() / TILE * TILE;
        if whole == first.len() {
            return std::ptr::null();
        }
        for (rest, panel) in self.0.iter_mut().zip([first, second]) {
            rest[..first.len() - whole].copy_from_slice(&panel[whole..]);
        }
        self
    }
}

/// In bf16.
///
/// # Safety
/// As for [`run`], and `scratch` has the words of 32 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")]
unsafe fn halves(block: &Block, scratch: &mut [u32]) {
    let length = words(block);
    let mut tiles = Configured::default();
    for r in block.rows.clone().step_by(2 * TILE) {
        let count = (block.rows.end - r).min(2 * TILE);
        for (m, to) in scratch.chunks_exact_mut(length).take(count).enumerate() {
            bf16::narrow(block.input(r + m), to);
        }
        let lower = scratch[TILE * length..].as_ptr();
        let (lines, product): (_, Product) = match count > TILE {
            true => (WHOLE, Product::Tall(tall_halves, lower)),
            false => (wide(count), Product::Wide(wide_halves)),
        };
        // SAFETY: the path has tiles; rows have words for all lines and zeros behind them; rows that are not there give sums that nobody reads. Rows and
        // panels lie inside the block.
        unsafe {
            tiles.shape(lines);
            by_panels(block, &product, (scratch.as_ptr(), length), |p, sums, first| {
                store(block, (p, r, count), |m| sums.floats(first + m))
            });
        }
    }
}

/// With weights of 8 bits.
///
/// # Safety
/// As for [`run`], and `scratch` has the words of 32 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn integers(block: &Block, scratch: &mut [u32]) {
    let length = words(block);
    let mut tiles = Configured::default();
    for r in block.rows.clone().step_by(TILE) {
        let count = (block.rows.end - r).min(TILE);
        let is_tall = 2 * count > TILE;
        // The high bytes are in a tile of their own, or in the lines behind the low ones.
        let first_high = if is_tall { TILE } else { count };
        let mut rows = [vnni::Quantised::default(); TILE];
        let (low, high) = scratch.split_at_mut(first_high * length);
        let places = low.chunks_exact_mut(length).zip(high.chunks_exact_mut(length));
        for (m, ((low, high), row)) in places.zip(&mut rows).take(count).enumerate() {
            *row = quantise(block.input(r + m), low, high);
        }
        let (lines, product) = match is_tall {
            true => (WHOLE, Product::Tall(tall_integers, high.as_ptr())),
            false => (wide(2 * count), Product::Wide(wide_integers)),
        };
        // SAFETY: the path has tiles; rows have words for all lines and zeros behind them; rows that are not there give sums that nobody reads. Rows and
        // panels lie inside the block.
        unsafe {
            tiles.shape(lines);
            by_panels(block, &product, (low.as_ptr(), length), |p, sums, first| {
                store(block, (p, r, count), |m| sums.of_bytes(rows[m], [first + m, first + first_high + m]));
            });
        }
    }
}

/// A function that [`sums`] defines.
type Kernel = unsafe fn(usize, *const Rest, (*const u32, usize), *const Line, *const u8, &mut Sums);

/// How some rows meet panels.
enum Product {
    /// One panel at a time; the words of the lower rows, or of high bytes, lie here.
    Tall(Kernel, *const u32),
    /// Two panels at a time.
    Wide(Kernel),
}

/// Some rows by all panels of a block: `store(p, sums, first)` takes the sums of panel `p`, which begin at row `first`.
///
/// # Safety
/// The tiles have the shapes of the product, and the rows their words, a stride apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn by_panels(block: &Block, product: &Product, words: (*const u32, usize), store: impl Fn(usize, &Sums, usize)) {
    let (mut sums, mut left) = (Sums::ZERO, Rest::ZERO);
    let at_once = if matches!(product, Product::Wide(_)) { 2 } else { 1 };
    for p in block.panels.clone().step_by(at_once) {
        // Of an odd number of panels the last one is computed twice.
        let last = (p + at_once - 1).min(block.panels.end - 1);
        let (panel, second) = (block.matrix.panel(p), block.matrix.panel(last));
        let (kernel, beside) = match *product {
            Product::Tall(kernel, lower) => (kernel, lower.cast()),
            Product::Wide(kernel) => (kernel, second.as_ptr().cast()),
        };
        let rest = left.take(panel, second);
        // SAFETY: the caller's promise; a panel's lines are as many as the rows have words.
        unsafe { kernel(panel.len() / TILE, rest, words, panel.as_ptr(), beside, &mut sums) };
        for (i, p) in (p..=last).enumerate() {
            store(p, &sums, i * TILE);
        }
    }
}

/// Writes the results of `count` rows from `r` on and panel `p`: factor, bias and activation of their sums.
///
/// # Safety
/// They lie inside the block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn store(block: &Block, (p, r, count): (usize, usize, usize), sums: impl Fn(usize) -> [__m512; 2]) {
    let (scale, bias) = block.matrix.columns(p);
    let width = (block.matrix.outputs - p * PANEL).min(PANEL);
    let mask = |columns: usize| ((1u32 << columns.min(16)) - 1) as __mmask16;
    let (mask, second_mask) = (mask(width), mask(width.saturating_sub(16)));
    // SAFETY: a panel has as many factors and biases as columns.
    let load = |from: &[f32]| unsafe { [_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from[16..].as_ptr())] };
    let (scale, bias, zero) = (load(scale), load(bias), _mm512_setzero_ps());
    let line = |m: usize| {
        let sums = sums(m);
        let y = [_mm512_fmadd_ps(sums[0], scale[0], bias[0]), _mm512_fmadd_ps(sums[1], scale[1], bias[1])];
        if block.act == Activation::Relu { [_mm512_max_ps(y[0], zero), _mm512_max_ps(y[1], zero)] } else { y }
    };
    let put = |m: usize, y: [__m512; 2]| {
        // SAFETY: columns p * PANEL .. + width of the row belong to this block alone.
        unsafe {
            let to = block.out.data.add((r + m) * block.out.stride + p * PANEL);
            _mm512_mask_storeu_ps(to, mask, y[0]);
            _mm512_mask_storeu_ps(to.wrapping_add(16), second_mask, y[1]);
        }
    };
    if matches!(block.act, Activation::None | Activation::Relu) {
        (0..count).for_each(|m| put(m, line(m)));
        return;
    }
    let mut lines = [[0.0f32; PANEL]; 2 * TILE];
    for (m, to) in lines[..count].iter_mut().enumerate() {
        let y = line(m);
        // SAFETY: a line is two vectors.
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), y[0]);
            _mm512_storeu_ps(to[16..].as_mut_ptr(), y[1]);
        }
    }
    block.act.apply::<V4>(lines[..count].as_flattened_mut());
    lines[..count].iter().enumerate().for_each(|(m, y)| put(m, load(y)));
}

/// A row as integers, whose low and high bytes lie apart, zeros behind them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn quantise(x: &[f32], low: &mut [u32], high: &mut [u32]) -> vnni::Quantised {
    let mut places = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
    let row = vnni::quantise(x, |words| {
        let Some((low, high)) = places.next() else { return };
        let (lows, highs) = (_mm512_maskz_compress_epi32(0x1111, words), _mm512_maskz_compress_epi32(0x2222, words));
        // SAFETY: both hold four words.
        unsafe {
            _mm_storeu_si128(low.as_mut_ptr().cast(), _mm512_castsi512_si128(lows));
            _mm_storeu_si128(high.as_mut_ptr().cast(), _mm512_castsi512_si128(highs));
        }
    });
    for (low, high) in places {
        (*low, *high) = ([0; 4], [0; 4]);
    }
    row
}
