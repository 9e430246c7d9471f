//! Matrix products on the tiles of Intel AMX, with sums in f32: for training, where weights change at every step. Those of inference, with
//! prepared weights, are in `packed`, and in `floats` those in f32.
//!
//! A tile is 16 lines of 64 bytes. `tdpbf16ps` adds to a tile of 16 x 16 sums the product of 16 rows of 32 values and of 32
//! rows of 16, the latter with two rows interleaved: 8192 multiply-adds in 16 cycles, where two FMA units of AVX-512 do 512.
//! Operands are rounded to bf16 and laid out as tiles before a product. The unit of that is a square of 32 x 32 values,
//! two tiles: 2 x 2 tiles of sums then read one square of either side at each step, and the loads hide behind the products.
//!
//! # Precision
//! bf16 has f32's range and 8 bits of mantissa, one of them implied: an operand is off by up to 2^-9 = 0.2% of itself, to the
//! nearest, ties to even. Products of two bf16 are exact in f32 and sums are rounded to f32 at each addition.
//!
//! An f32 is the sum of three bf16, a = a0 + a1 + a2, each of which rounds what is left by those before it. Of the nine products
//! of such sums six matter ([`Products::F32`]): a0 b0, a0 b1, a1 b0, a1 b1, a0 b2 and a2 b0. The others together are below 2^-26 of
//! the product, less than f32 itself rounds. That is six times the work of one product in bf16, and still about half the time of
//! f32's own.
//!
//! In bf16, what is above the largest becomes infinite, and infinities and NaN pass through; as a sum of three, whatever is not finite
//! or above the largest bf16 ends as NaN. Numbers below f32's normal range count as zero on either side.
//!
//! # Measured
//! On one thread of a shared machine, in loops over operands that were written and laid out before, in GFLOP/s: 64 x 384 x 1152 in
//! bf16 1240 to 1360, in f32 300 to 315; 64 x 1152 x 384 in bf16 1400 to 1520, in f32 300; the f32 kernels of AVX-512 reach 120 to
//! 175. (Memory that was never written is one page of zeros: it reads as from the first-level cache, and flatters.) Laying out a weight
//! of 384 x 1152 costs 120 us in bf16, in either direction. With both sides laid out on the way, on a Xeon with a neighbour, 1920 x 256 x 1024 in bf16 340 to
//! 420 and in f32 190 to 195, where AVX-512 reaches 105 to 135; 1920 x 512 x 256 640 to 740, 190 to 220, and 115 to 155. Tried and not kept: software prefetches of the right side (within the
//! noise).

mod floats;
mod pack;
mod packed;
#[cfg(test)]
mod tests;

use super::linear::{Operand, Target};
use super::{OutPointer, Products, Rows, simd};
use pack::{Role, SIDE, Square, pack, squares};
pub(super) use packed::{run, scratch, serves};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::RefCell;
use std::sync::OnceLock;

/// Whether the CPU has the instructions of this module, and Linux lets the process use the tiles. Asked once: what a path says afterwards is
/// [`simd::has_tiles`].
pub(crate) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    const BF16_TILES_AND_BYTES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let has_vectors = std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512bf16");
    has_vectors && __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_TILES_AND_BYTES == BF16_TILES_AND_BYTES
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

/// How many lines of 64 bytes each tile has.
type Lines = [u8; 8];

/// All that a tile can have.
const WHOLE: Lines = [16; 8];

/// The shapes of this thread's tiles, until it is dropped.
#[derive(Default)]
struct Configured {
    lines: Option<Lines>,
}

impl Configured {
    /// Gives the tiles so many lines; what they held is lost where that changes.
    ///
    /// # Safety
    /// [`simd::has_tiles`].
    unsafe fn shape(&mut self, lines: Lines) {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            line_bytes: [u16; 16],
            lines: [u8; 16],
        }
        if self.lines == Some(lines) {
            return;
        }
        let mut configuration = Configuration { palette: 1, start_row: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
        configuration.line_bytes[..lines.len()].fill(64);
        configuration.lines[..lines.len()].copy_from_slice(&lines);
        // SAFETY: reads 64 bytes; the instruction is there and permitted.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        self.lines = Some(lines);
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        if self.lines.is_some() {
            // SAFETY: the instruction is there, as the shapes say. No other code keeps anything in tiles.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}

/// The assembly of a block's steps: loads of a square of either side, and the products of what is loaded.
macro_rules! step {
    (a $plane:literal) => {
        concat!("tileloadd tmm4, [{a} + {line} + 2048 * ", $plane, "]\n", "tileloadd tmm5, [{a} + {line} + 2048 * ", $plane, " + 1024]\n")
    };
    (b $plane:literal) => {
        concat!("tileloadd tmm6, [{b} + {line} + 2048 * ", $plane, "]\n", "tileloadd tmm7, [{b} + {line} + 2048 * ", $plane, " + 1024]\n")
    };
    (product) => {
        "tdpbf16ps tmm0, tmm4, tmm6\ntdpbf16ps tmm1, tmm4, tmm7\ntdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7\n"
    };
    // Of operands of three planes: a2 b0, a1 b0, a1 b1, a0 b1, a0 b2, a0 b0.
    (planes) => {
        concat!(
            step!(a 2), step!(b 0), step!(product),
            step!(a 1), step!(product),
            step!(b 1), step!(product),
            step!(a 0), step!(product),
            step!(b 2), step!(product),
            step!(b 0), step!(product)
        )
    };
}

use step;

macro_rules! block {
    ($(#[$doc:meta])* $name:ident, $planes:literal, $($step:expr),*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The tiles are configured, `steps` squares of every plane are readable, `from` points at rows of 32 values to read and `to`
        /// at 32 such rows to write.
        unsafe fn $name(
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
                    $($step,)*
                    "add {a}, {step}",
                    "add {b}, {step}",
                    "dec {steps}",
                    "jnz 2b",
                    "3:",
                    "tilestored [{to} + {to_stride}], tmm0",
                    "tilestored [{to} + {to_stride} + 64], tmm1",
                    "tilestored [{to_lower} + {to_stride}], tmm2",
                    "tilestored [{to_lower} + {to_stride} + 64], tmm3",
                    step = const $planes * size_of::<Square>(),
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
    };
}

block! {
    /// `to = from + a b` for a block of 32 x 32 sums and `steps` squares of either side. Strides are in bytes: 0 repeats a row.
    block_bf16, 1,
    step!(a 0), step!(b 0), step!(product)
}

block! {
    /// The same for operands of three planes, which lie 2048 bytes apart.
    block_f32, 3,
    step!(planes)
}

/// What the sums of a product start from.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// The same for all rows; empty means zeros.
    Bias(&'a [f32]),
    /// What is at their destination.
    There,
}

impl Start<'_> {
    /// From column `c` on.
    fn columns(self, c: usize) -> Self {
        match self {
            Self::Bias(bias) if !bias.is_empty() => Self::Bias(&bias[c..]),
            other => other,
        }
    }
}

impl Products {
    /// Numbers in bf16 whose sum an operand is.
    fn planes(self) -> usize {
        match self {
            Self::Bf16 => 1,
            Self::F32 => 3,
        }
    }

    /// Writes a matrix as the squares of a product.
    ///
    /// # Safety
    /// [`simd::has_tiles`].
    unsafe fn pack(self, source: Rows, role: Role, to: &mut [Square]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Bf16 => pack::<1>(source, role, to),
                Self::F32 => pack::<3>(source, role, to),
            }
        }
    }

    /// Squares of a matrix of that size, all planes counted.
    fn squares(self, rows: usize, columns: usize) -> usize {
        self.planes() * squares(rows, columns)
    }

    /// Steps of the sum that a block goes through at a time: in bf16 so that the squares of the right side stay in the first-level
    /// cache; in f32, with twice as many products for a load, so that sums are seldom put down and taken up again.
    fn near(self) -> usize {
        match self {
            Self::Bf16 => 16,
            Self::F32 => 12,
        }
    }

    /// Rows of the left side that are laid out at a time, values of the sum, and columns of the right side: bounds the memory for them, and what is read
    /// again is in the cache.
    fn block(self) -> [usize; 3] {
        match self {
            Self::Bf16 => [384, 512, 1024],
            Self::F32 => [256, 384, 512],
        }
    }
}

/// `out = start + a b`, `out` with rows of `columns` values, `stride` apart. The sum goes over `steps` squares.
///
/// # Safety
/// [`simd::has_tiles`], and `out` points at `rows` such rows that nobody else touches.
unsafe fn product(
    products: Products,
    [a, b]: [&[Square]; 2],
    steps: usize,
    start: Start,
    out: OutPointer,
    (rows, columns): (usize, usize),
) {
    let planes = products.planes();
    assert!(a.len() >= planes * steps * rows.div_ceil(SIDE) && b.len() >= planes * steps * columns.div_ceil(SIDE));
    let mut tiles = Configured::default();
    // SAFETY: the caller's promise.
    unsafe { tiles.shape(WHOLE) };
    let near = products.near();
    for first in (0..steps.max(1)).step_by(near) {
        let start = if first == 0 { start } else { Start::There };
        let count = near.min(steps - first);
        // Row by row of blocks: columns of them would write to as many pages as there are rows.
        for (i, r) in (0..rows).step_by(SIDE).enumerate() {
            for (j, c) in (0..columns).step_by(SIDE).enumerate() {
                let side = |squares: &[Square], i: usize| squares[planes * (i * steps + first)..].as_ptr();
                let sides = (count, side(a, i), side(b, j));
                let size = [(rows - r).min(SIDE), (columns - c).min(SIDE)];
                // SAFETY: both sides hold `steps` squares for every row and column of squares (asserted), and the rows are there.
                unsafe { place(products, sides, start.columns(c), out.block(r, c), size) };
            }
        }
    }
}

/// One block of [`product`]: `height` rows of `width` values.
///
/// # Safety
/// The tiles are configured, `steps` squares are readable, and nobody else touches the rows that `out` points at.
#[inline]
unsafe fn place(
    products: Products,
    (steps, a, b): (usize, *const Square, *const Square),
    start: Start,
    out: OutPointer,
    [height, width]: [usize; 2],
) {
    const ZEROS: [f32; SIDE] = [0.0; SIDE];
    const BYTES: usize = size_of::<f32>();
    let block = match products {
        Products::Bf16 => block_bf16,
        Products::F32 => block_f32,
    };
    if (height, width) == (SIDE, SIDE) {
        let from = match start {
            Start::Bias([]) => (ZEROS.as_ptr(), 0),
            Start::Bias(bias) => (bias[..SIDE].as_ptr(), 0),
            Start::There => (out.data.cast_const(), out.stride * BYTES),
        };
        // SAFETY: 32 rows of 32 values; the rest is the caller's promise.
        return unsafe { block(steps, a, b, from, (out.data, out.stride * BYTES)) };
    }
    let mut padded = [[0.0; SIDE]; SIDE];
    for (r, padded) in padded[..height].iter_mut().enumerate() {
        match start {
            Start::Bias([]) => {}
            Start::Bias(bias) => padded[..width].copy_from_slice(&bias[..width]),
            // SAFETY: the caller's promise.
            Start::There => padded[..width].copy_from_slice(unsafe { std::slice::from_raw_parts(out.data.add(r * out.stride), width) }),
        }
    }
    let to = padded.as_mut_ptr().cast::<f32>();
    // SAFETY: 32 rows of 32 values; the rest is the caller's promise.
    unsafe { block(steps, a, b, (to.cast_const(), SIDE * BYTES), (to, SIDE * BYTES)) };
    for (r, padded) in padded[..height].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(out.data.add(r * out.stride), width) }.copy_from_slice(&padded[..width]);
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

/// A weight `[inputs, outputs]` laid out as the right side of products.
pub(crate) struct Tiles {
    pub inputs: usize,
    pub outputs: usize,
    products: Products,
    squares: Vec<Square>,
}

impl Tiles {
    /// From a row-major weight `[inputs, outputs]`. Panics on a path without tiles.
    pub fn new(products: Products, inputs: usize, outputs: usize, weight: &[f32]) -> Self {
        Self::packed(products, (inputs, outputs), weight, outputs, Role::Right)
    }

    /// The transpose `[outputs, inputs]` of a row-major weight `[inputs, outputs]`. Panics on a path without tiles.
    pub fn transposed(products: Products, inputs: usize, outputs: usize, weight: &[f32]) -> Self {
        Self::packed(products, (outputs, inputs), weight, outputs, Role::RightTransposed)
    }

    /// `width` is that of the weight as it lies in memory.
    fn packed(products: Products, (inputs, outputs): (usize, usize), weight: &[f32], width: usize, role: Role) -> Self {
        assert!(simd::has_tiles() && weight.len() == inputs * outputs, "{} weights for {inputs} x {outputs}", weight.len());
        let rows = Rows { data: weight, rows: weight.len() / width.max(1), width, stride: width };
        let mut squares = vec![Square::ZERO; products.squares(inputs, outputs)];
        // SAFETY: the path has tiles (asserted).
        unsafe { products.pack(rows, role, &mut squares) };
        Self { inputs, outputs, products, squares }
    }
}

/// `out = x W + bias` with `out` row-major `[rows, outputs]`; an empty bias is zero.
pub(crate) fn multiply(weight: &Tiles, x: Rows, bias: &[f32], out: &mut [f32]) {
    let (inputs, outputs, products) = (weight.inputs, weight.outputs, weight.products);
    assert!(x.width == inputs && out.len() == x.rows * outputs, "{} x {} by {inputs} x {outputs}", x.rows, x.width);
    assert!(bias.is_empty() || bias.len() == outputs, "{} biases for {outputs} outputs", bias.len());
    if out.is_empty() {
        return;
    }
    let [rows, ..] = products.block();
    with_scratch(products.squares(rows.min(x.rows), inputs), |scratch| {
        for (part, out) in out.chunks_mut(rows * outputs).enumerate() {
            let x = Rows { rows: out.len() / outputs, ..x.rows_from(part * rows) };
            let (steps, size) = (inputs.div_ceil(SIDE), (x.rows, outputs));
            // SAFETY: the path has tiles, or there would be no `Tiles`; `out` holds those rows and is borrowed alone.
            unsafe {
                products.pack(x, Role::Left, scratch);
                product(products, [scratch, &weight.squares], steps, Start::Bias(bias), OutPointer::rows(out, outputs), size);
            }
        }
    });
}

/// `out += x^T dy` with `out` of `x.width` rows of `dy.width` values: the gradient of a weight, over the rows of both. The sum is not
/// rounded to bf16 with any products. Panics on a path without tiles.
///
/// # Safety
/// `out` points at such rows that nobody else touches.
pub(crate) unsafe fn multiply_transposed(products: Products, x: Rows, dy: Rows, out: OutPointer) {
    // SAFETY: the caller's promise.
    unsafe { multiply_operands(products, Operand::from(x).t(), dy.into(), out, Target::Sum) };
}

impl<'a> Operand<'a> {
    /// The matrix as it lies in memory, and whether this is its transpose.
    fn lying(self) -> (Rows<'a>, bool) {
        let is_transposed = self.column_step != 1;
        let lying = if is_transposed { self.t() } else { self };
        (Rows { data: lying.data, rows: lying.rows, width: lying.columns, stride: lying.row_step }, is_transposed)
    }
}

/// Whether a product of `m x k` by `k x n` on tiles, both sides laid out on the way, is faster than one in f32 by vectors. Measured on a Xeon in training
/// steps of a recurrent network: with sides of 48 or 16 in f32, or a sum of 16 in bf16, on tiles as well, they were as fast or 2% slower.
pub(crate) fn gains(products: Products, [m, k, n]: [usize; 3]) -> bool {
    let (least, most) = (m.min(n), m.max(n));
    simd::has_tiles()
        && match products {
            Products::Bf16 => least >= SIDE / 4 && k.min(most) >= SIDE,
            Products::F32 => least.min(k) >= 2 * SIDE,
        }
}

/// `out = a b` or `out += a b`, both sides laid out on the way: blocks of the right side, such that they lie in the second-level cache beside
/// some rows of the left one. Sums are not rounded to bf16 with any products, and a value's sum has one order wherever it lies in `out`. Panics on a path
/// without tiles.
///
/// # Safety
/// `out` points at `a.rows` rows of `b.columns` values that nobody else touches; with [`Target::Sum`] they are initialised.
pub(crate) unsafe fn multiply_operands(products: Products, a: Operand, b: Operand, out: OutPointer, target: Target) {
    let (m, k, n) = (a.rows, a.columns, b.columns);
    assert!(simd::has_tiles() && k == b.rows && out.stride >= n, "{m} x {k} by {} x {n}", b.rows);
    assert!(k > 0 || target == Target::Sum, "a sum of nothing is not written");
    let [height, depth, width] = products.block();
    let (left, right) = (products.squares(height.min(m), depth.min(k)), products.squares(depth.min(k), width.min(n)));
    let parts = |length: usize, part: usize| (0..length).step_by(part).map(move |start| start..length.min(start + part));
    with_scratch(left + right, |scratch| {
        let (left, right) = scratch.split_at_mut(left);
        for columns in parts(n, width) {
            for sum in parts(k, depth) {
                let start = if sum.start == 0 && target == Target::Fresh { Start::Bias(&[]) } else { Start::There };
                let (b, b_is_transposed) = b.part(sum.clone()).columns(columns.clone()).lying();
                let role = if b_is_transposed { Role::RightTransposed } else { Role::Right };
                // SAFETY: the path has tiles (asserted).
                unsafe { products.pack(b, role, right) };
                for rows in parts(m, height) {
                    let (a, a_is_transposed) = a.part(rows.clone()).columns(sum.clone()).lying();
                    let role = if a_is_transposed { Role::LeftTransposed } else { Role::Left };
                    let (out, size) = (out.block(rows.start, columns.start), (rows.len(), columns.len()));
                    // SAFETY: the path has tiles (asserted); `out` is the caller's promise.
                    unsafe {
                        products.pack(a, role, left);
                        product(products, [left, right], sum.len().div_ceil(SIDE), start, out, size);
                    }
                }
            }
        }
    });
}
