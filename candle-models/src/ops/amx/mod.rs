//! Matrix products in bf16 with sums in f32, on the tiles of Intel AMX: for training, where weights change at every step.
//!
//! A tile is 16 lines of 64 bytes. `tdpbf16ps` adds to a tile of 16 x 16 sums the product of 16 rows of 32 values and of 32
//! rows of 16, the latter with two rows interleaved: 8192 multiply-adds in 16 cycles, where two FMA units of AVX-512 do 512.
//! Operands are rounded to bf16 and laid out as tiles before a product. The unit of that is a square of 32 x 32 values,
//! two tiles: 2 x 2 tiles of sums then read one square of either side at each step, and the loads hide behind the products.
//!
//! Measured on one thread of a shared machine, in turn with the f32 kernels, so that neither finds its weight in the
//! second-level cache: 64 x 256 x 768 is 6 times as fast, 64 x 384 x 1152 and 64 x 1152 x 384 4.5 times, the gradient of a
//! weight of 384 x 1152 over 1024 rows 3.4 times; 16 rows 2.4 times and one row 1.6 times, as weights of half the width are.
//! Alone, with the weight in that cache, 64 x 384 x 1152 took half the time. Laying out a weight of 384 x 1152 costs 120 us
//! in either direction. Tried and not kept: software prefetches of the right side (within the noise).
//!
//! # Rounding
//! bf16 has f32's range and 8 bits of mantissa, one of them implied: an operand is off by up to 2^-9 = 0.2% of itself, to the
//! nearest, ties to even. What is above the largest bf16 becomes infinite; infinities and NaN pass through. Products of two
//! bf16 are exact in f32 and sums are rounded to f32 at each addition; numbers below f32's normal range count as zero on
//! either side.

mod pack;

use super::{Rows, simd};
use pack::{Role, SIDE, Square, pack, squares};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::RefCell;
use std::sync::OnceLock;

/// Rows of one operand that are laid out as tiles at a time: bounds the memory for them, and what is read again is in the cache.
const ROWS: usize = 256;

/// Steps of the sum that a block goes through at a time, so that the squares of the right side stay in the first-level cache.
const STEPS: usize = 16;

/// Whether the products of this module may run: the CPU has the instructions, Linux lets the process use the tiles, and
/// `CANDLE_SIMD` names no lower path than the best.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    // All CPUs with tiles have the integer dot products, which are only in the best path.
    *AVAILABLE.get_or_init(|| simd::has_dot_products() && has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
    let has_vectors = std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512bf16");
    has_vectors && __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_AND_TILES == BF16_AND_TILES
}

/// Asks Linux for the tiles' state: 8 KiB a thread, which a process gets on demand only. Holds for all threads, from now on.
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: the system call writes no memory of the process; a kernel that does not know it answers with an error.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// The shapes of this thread's tiles, from construction until it is dropped: all of 16 lines of 64 bytes.
struct Configured;

impl Configured {
    /// # Safety
    /// [`available`].
    unsafe fn new() -> Self {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            line_bytes: [u16; 16],
            lines: [u8; 16],
        }
        const TILES: usize = 8;
        let mut configuration = Configuration { palette: 1, start_row: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
        configuration.line_bytes[..TILES].fill(64);
        configuration.lines[..TILES].fill(16);
        // SAFETY: reads 64 bytes; the instruction is there and permitted.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the instruction is there, as this value says. No other code keeps anything in tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// `to = from + a b` for a block of 32 x 32 sums and `steps` squares of either side. Strides are in bytes: 0 repeats a row.
///
/// # Safety
/// The tiles are configured, `steps` squares are readable, `from` points at rows of 32 values to read and `to` at 32 such
/// rows to write.
unsafe fn block(
    steps: usize,
    a: *const Square,
    b: *const Square,
    (from, from_stride): (*const f32, usize),
    (to, to_stride): (*mut f32, usize),
) {
    // SAFETY: the caller's promise. One assembly block, so that nothing is kept in tiles between two of them.
    unsafe {
        asm!(
            "tileloadd tmm0, [{from} + {from_stride}]",
            "tileloadd tmm1, [{from} + {from_stride} + 64]",
            "tileloadd tmm2, [{lower} + {from_stride}]",
            "tileloadd tmm3, [{lower} + {from_stride} + 64]",
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            "tileloadd tmm6, [{b} + {line}]",
            "tileloadd tmm4, [{a} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {line} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "tilestored [{to} + {to_stride}], tmm0",
            "tilestored [{to} + {to_stride} + 64], tmm1",
            "tilestored [{to_lower} + {to_stride}], tmm2",
            "tilestored [{to_lower} + {to_stride} + 64], tmm3",
            steps = inout(reg) steps => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            line = in(reg) 64usize,
            from = in(reg) from,
            lower = in(reg) from.wrapping_byte_add(16 * from_stride),
            from_stride = in(reg) from_stride,
            to = in(reg) to,
            to_lower = in(reg) to.wrapping_byte_add(16 * to_stride),
            to_stride = in(reg) to_stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// What the sums of a product start from.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// The same for all rows; empty means zeros.
    Bias(&'a [f32]),
    /// What is at their destination.
    There,
}

/// `out = start + a b`, `out` with rows of `columns` values. The sum goes over `steps` squares.
///
/// # Safety
/// [`available`].
unsafe fn product(a: &[Square], b: &[Square], steps: usize, start: Start, out: &mut [f32], columns: usize) {
    let rows = out.len() / columns.max(1);
    assert!(a.len() >= steps * rows.div_ceil(SIDE) && b.len() >= steps * columns.div_ceil(SIDE));
    // SAFETY: the caller's promise.
    let _configured = unsafe { Configured::new() };
    for first in (0..steps.max(1)).step_by(STEPS) {
        let start = if first == 0 { start } else { Start::There };
        let count = STEPS.min(steps - first);
        for (j, c) in (0..columns).step_by(SIDE).enumerate() {
            for (i, r) in (0..rows).step_by(SIDE).enumerate() {
                let (a, b) = (a[i * steps + first..].as_ptr(), b[j * steps + first..].as_ptr());
                let sides = (count, a, b);
                // SAFETY: both sides hold `steps` squares for every row and column of squares (asserted).
                unsafe { place(sides, start, &mut out[r * columns..], columns, c) };
            }
        }
    }
}

/// One block of [`product`] into the first rows of `out`, from column `c` on.
///
/// # Safety
/// The tiles are configured and `steps` squares are readable.
#[inline]
unsafe fn place((steps, a, b): (usize, *const Square, *const Square), start: Start, out: &mut [f32], columns: usize, c: usize) {
    const ZEROS: [f32; SIDE] = [0.0; SIDE];
    const BYTES: usize = size_of::<f32>();
    let (height, width) = ((out.len() / columns).min(SIDE), (columns - c).min(SIDE));
    if (height, width) == (SIDE, SIDE) {
        let to = out[c..].as_mut_ptr();
        let from = match start {
            Start::Bias([]) => (ZEROS.as_ptr(), 0),
            Start::Bias(bias) => (bias[c..][..SIDE].as_ptr(), 0),
            Start::There => (to.cast_const(), columns * BYTES),
        };
        // SAFETY: `out` holds 32 rows, each with 32 columns from `c` on; the rest is the caller's promise.
        return unsafe { block(steps, a, b, from, (to, columns * BYTES)) };
    }
    let mut padded = [[0.0; SIDE]; SIDE];
    for (padded, out) in padded.iter_mut().zip(out.chunks_exact(columns)) {
        match start {
            Start::Bias([]) => {}
            Start::Bias(bias) => padded[..width].copy_from_slice(&bias[c..][..width]),
            Start::There => padded[..width].copy_from_slice(&out[c..][..width]),
        }
    }
    let to = padded.as_mut_ptr().cast::<f32>();
    // SAFETY: 32 rows of 32 values; the rest is the caller's promise.
    unsafe { block(steps, a, b, (to.cast_const(), SIDE * BYTES), (to, SIDE * BYTES)) };
    for (padded, out) in padded.iter().zip(out.chunks_exact_mut(columns)) {
        out[c..][..width].copy_from_slice(&padded[..width]);
    }
}

thread_local! {
    /// Operands laid out as tiles: kept, so that only a thread's first products allocate.
    static SCRATCH: RefCell<Vec<Square>> = const { RefCell::new(Vec::new()) };
}

fn with_scratch(squares: usize, f: impl FnOnce(&mut [Square])) {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < squares {
            scratch.resize(squares, Square::ZERO);
        }
        f(&mut scratch[..squares]);
    });
}

/// A weight `[inputs, outputs]` in bf16, laid out as the right side of products.
pub(crate) struct Tiles {
    pub inputs: usize,
    pub outputs: usize,
    squares: Vec<Square>,
}

impl Tiles {
    /// From a row-major weight `[inputs, outputs]`. Panics where the products are not [`available`].
    pub fn new(inputs: usize, outputs: usize, weight: &[f32]) -> Self {
        Self::packed((inputs, outputs), weight, outputs, Role::Right)
    }

    /// The transpose `[outputs, inputs]` of a row-major weight `[inputs, outputs]`. Panics where the products are not
    /// [`available`].
    pub fn transposed(inputs: usize, outputs: usize, weight: &[f32]) -> Self {
        Self::packed((outputs, inputs), weight, outputs, Role::RightTransposed)
    }

    /// `width` is that of the weight as it lies in memory.
    fn packed((inputs, outputs): (usize, usize), weight: &[f32], width: usize, role: Role) -> Self {
        assert!(available() && weight.len() == inputs * outputs, "{} weights for {inputs} x {outputs}", weight.len());
        let rows = Rows { data: weight, rows: weight.len() / width.max(1), width, stride: width };
        let mut squares = vec![Square::ZERO; squares(inputs, outputs)];
        // SAFETY: available (asserted).
        unsafe { pack(rows, role, &mut squares) };
        Self { inputs, outputs, squares }
    }
}

/// `out = x W + bias` with `out` row-major `[rows, outputs]`; an empty bias is zero. Both `x` and `W` are rounded to bf16.
pub(crate) fn multiply(weight: &Tiles, x: Rows, bias: &[f32], out: &mut [f32]) {
    let (inputs, outputs) = (weight.inputs, weight.outputs);
    assert!(x.width == inputs && out.len() == x.rows * outputs, "{} x {} by {inputs} x {outputs}", x.rows, x.width);
    assert!(bias.is_empty() || bias.len() == outputs, "{} biases for {outputs} outputs", bias.len());
    if out.is_empty() {
        return;
    }
    with_scratch(squares(ROWS.min(x.rows), inputs), |scratch| {
        for (part, out) in out.chunks_mut(ROWS * outputs).enumerate() {
            let x = Rows { rows: out.len() / outputs, ..x.rows_from(part * ROWS) };
            // SAFETY: available, or there would be no `Tiles`.
            unsafe {
                pack(x, Role::Left, scratch);
                product(scratch, &weight.squares, inputs.div_ceil(SIDE), Start::Bias(bias), out, outputs);
            }
        }
    });
}

/// `out += x^T dy` with `out` row-major `[x.width, dy.width]`: the gradient of a weight, over the rows of both. Both are
/// rounded to bf16, the sum is not. Panics where the products are not [`available`].
pub(crate) fn multiply_transposed(x: Rows, dy: Rows, out: &mut [f32]) {
    assert!(available() && x.rows == dy.rows && out.len() == x.width * dy.width, "{} x {} by {} x {}", x.width, x.rows, dy.rows, dy.width);
    let rows = ROWS.min(x.rows);
    let (left, right) = (squares(rows, x.width), squares(rows, dy.width));
    with_scratch(left + right, |scratch| {
        let (left, right) = scratch.split_at_mut(left);
        for first in (0..x.rows).step_by(ROWS) {
            let rows = ROWS.min(x.rows - first);
            // SAFETY: available (asserted).
            unsafe {
                pack(Rows { rows, ..x.rows_from(first) }, Role::LeftTransposed, left);
                pack(Rows { rows, ..dy.rows_from(first) }, Role::Right, right);
                product(left, right, rows.div_ceil(SIDE), Start::There, out, dy.width);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn is_skipped() -> bool {
        if !available() {
            eprintln!("skipped: no products in tiles on this machine or path");
        }
        !available()
    }

    fn values(n: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(seed).fill_normal(0, &mut values);
        values
    }

    fn rows(data: &[f32], rows: usize, width: usize, stride: usize) -> Rows<'_> {
        Rows { data: &data[..(rows - 1) * stride + width], rows, width, stride }
    }

    fn transposed(w: &[f32], columns: usize) -> Vec<f32> {
        (0..columns).flat_map(|c| w.iter().skip(c).step_by(columns).copied()).collect()
    }

    /// Holds `got` against `start + sum a b` of rounded operands in f64, up to what `n` roundings of a sum in f32 give.
    fn check(got: f32, start: f32, pairs: impl Iterator<Item = (f32, f32)>, what: &str) {
        let round = |x: f32| f64::from(half::bf16::from_f32(x).to_f32());
        let (mut sum, mut size, mut n) = (f64::from(start), f64::from(start.abs()), 1.0);
        for (a, b) in pairs {
            let product = round(a) * round(b);
            (sum, size, n) = (sum + product, size + product.abs(), n + 1.0);
        }
        let tolerance = f64::sqrt(n) * size * 2f64.powi(-23);
        assert!((f64::from(got) - sum).abs() <= tolerance, "{what}: {got} instead of {sum}");
    }

    #[test]
    fn products_of_any_shape_and_stride_are_those_of_rounded_operands() {
        if is_skipped() {
            return;
        }
        let shapes = [
            (1, 1, 1),
            (1, 44, 32),
            (2, 16, 1),
            (17, 33, 15),
            (16, 32, 16),
            (31, 64, 45),
            (32, 32, 32),
            (33, 31, 100),
            (64, 44, 70),
            (64, 513, 33),
            (35, 1100, 64),
            (1, 1536, 3),
            (513, 31, 5),
            (1100, 3, 65),
        ];
        for (m, k, n) in shapes {
            let (x, w, b) = (values(m * (k + 3), 1), values(k * n, 2), values(n, 3));
            let x = rows(&x, m, k, k + 3);
            let both = [Tiles::new(k, n, &w), Tiles::transposed(n, k, &transposed(&w, n))];
            for bias in [&b[..], &[]] {
                let outs = both.each_ref().map(|tiles| {
                    let mut out = vec![f32::NAN; m * n];
                    multiply(tiles, x, bias, &mut out);
                    out
                });
                assert_eq!(outs[0], outs[1], "{m}x{k}x{n}: packed from the transpose");
                for (i, got) in outs[0].iter().enumerate() {
                    let (r, c) = (i / n, i % n);
                    let pairs = x.row(r).iter().copied().zip(w.iter().skip(c).step_by(n).copied());
                    check(*got, bias.get(c).copied().unwrap_or_default(), pairs, &format!("{m}x{k}x{n} at {r},{c}"));
                }
            }
        }
    }

    #[test]
    fn gradients_of_weights_add_the_product_over_rows() {
        if is_skipped() {
            return;
        }
        for (m, k, n) in [(1, 1, 1), (1, 40, 33), (31, 16, 64), (32, 32, 32), (33, 65, 17), (100, 7, 96), (513, 45, 1), (1030, 32, 40)] {
            let (x, dy, there) = (values(m * (k + 5), 1), values(m * (n + 1), 2), values(k * n, 3));
            let (x, dy) = (rows(&x, m, k, k + 5), rows(&dy, m, n, n + 1));
            let mut out = there.clone();
            multiply_transposed(x, dy, &mut out);
            for (i, (got, start)) in out.iter().zip(&there).enumerate() {
                let (r, c) = (i / n, i % n);
                check(*got, *start, (0..m).map(|s| (x.row(s)[r], dy.row(s)[c])), &format!("{k}x{m}x{n} at {r},{c}"));
            }
        }
    }

    #[test]
    fn operands_round_to_the_nearest_even_and_keep_what_is_not_finite() {
        if is_skipped() {
            return;
        }
        let cases = [
            (1.0 + 2f32.powi(-8), 1.0),
            (1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-6)),
            (-1.0 - 2f32.powi(-8) - 2f32.powi(-20), -1.0 - 2f32.powi(-7)),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (f32::NAN, f32::NAN),
            (1e-40, 0.0),
        ];
        // As an activation, as a weight, and as either side of a gradient; other rows and columns stay what they are.
        for (value, want) in cases {
            let (m, k, n) = (40, 35, 50);
            let same = |got: f32, want: f32| got == want || got.is_nan() && want.is_nan();
            let holder = |rows: usize, columns: usize, (r, c): (usize, usize)| {
                let mut matrix = vec![0.0; rows * columns];
                matrix[r * columns + c] = value;
                matrix
            };
            let ones = |n: usize| vec![1.0f32; n];
            let mut out = vec![0.0; m * n];
            let x = holder(m, k, (33, 34));
            multiply(&Tiles::new(k, n, &ones(k * n)), rows(&x, m, k, k), &[], &mut out);
            assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i / n == 33 { want } else { 0.0 })), "{value} in x");
            let w = holder(k, n, (34, 2));
            multiply(&Tiles::new(k, n, &w), rows(&ones(m * k), m, k, k), &[], &mut out);
            assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i % n == 2 { want } else { 0.0 })), "{value} in w");
            let mut out = vec![0.0; k * n];
            multiply_transposed(rows(&x, m, k, k), rows(&ones(m * n), m, n, n), &mut out);
            assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i / n == 34 { want } else { 0.0 })), "{value} in x^T");
            let dy = holder(m, n, (39, 49));
            let mut out = vec![0.0; k * n];
            multiply_transposed(rows(&ones(m * k), m, k, k), rows(&dy, m, n, n), &mut out);
            assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i % n == 49 { want } else { 0.0 })), "{value} in dy");
        }
    }

    #[test]
    fn threads_have_tiles_of_their_own() {
        if is_skipped() {
            return;
        }
        let (m, k, n) = (64, 300, 200);
        let (x, w) = (values(m * k, 1), values(k * n, 2));
        let run = || {
            let mut out = vec![0.0; m * n];
            multiply(&Tiles::new(k, n, &w), rows(&x, m, k, k), &[], &mut out);
            out
        };
        let want = run();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..50).all(|_| run() == want))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|same| same)));
        });
    }

    #[test]
    fn no_rows_and_no_columns_are_no_product() {
        if is_skipped() {
            return;
        }
        let none = |width: usize| Rows { data: &[], rows: 0, width, stride: width };
        multiply(&Tiles::new(5, 3, &[1.0; 15]), none(5), &[], &mut []);
        let mut out = [f32::NAN; 6];
        multiply(&Tiles::new(0, 3, &[]), Rows { rows: 2, ..none(0) }, &[1.0, 2.0, 3.0], &mut out);
        assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        multiply_transposed(none(2), none(3), &mut out);
        assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}
