//! Products of many rows with prepared weights in f32, on tiles: each is six products in bf16, which together are faster than one by vectors.
//!
//! A weight stays as it lies, in panels of f32 ([`PackedMatrix`](super::super::PackedMatrix)): prepared as three numbers in bf16 it would take half as much memory
//! again, and come as much slower from there. A panel is split while its first 32 rows are multiplied: the vectors of one step hide behind the tiles of the
//! step before. Further rows find it split, in the first- or second-level cache.
//!
//! # Precision
//! That of [`Products::F32`](super::super::Products), with one difference: weights are cut off in place of rounded, which takes half the instructions. Their three numbers still
//! add up to them; the products that are left out are below 2^-24 of the whole, less than f32 itself rounds.

use super::super::Rows;
use super::super::packed::{Block, Line, PANEL};
use super::pack::{Role, SIDE, Square, pack};
use super::packed::{Sums, store};
use super::{Configured, WHOLE, block_f32, step, with_scratch};
use std::arch::asm;

/// Numbers in bf16 whose sum an operand is.
const PLANES: usize = 3;

/// Bytes of a row of a panel's sums.
const LINE: usize = PANEL * size_of::<f32>();

/// Rows that are laid out at a time: beside a panel they fit into a second-level cache.
const HEIGHT: usize = 128;

/// Whether [`run`] is the fastest way to compute a block in f32. Laying out rows pays for itself after some panels, splitting panels after some rows; a few rows
/// behind the first 32 cost as much as 32 more.
pub(super) fn serves(block: &Block) -> bool {
    let rows = block.rows.len();
    ((28..=SIDE).contains(&rows) || rows >= 44) && block.matrix.inputs >= 2 * SIDE && block.panels.len() >= 3
}

/// Two rows of 16 weights, from line pair {w} on: three words in bf16 for each two weights of a column, the first weight in the lower half.
macro_rules! split_half {
    ($half:literal) => {
        concat!(
            "vmovdqa64 zmm0, [{w} + 64 * ",
            $half,
            "]\n",
            "vmovdqa64 zmm1, [{w} + 64 * ",
            $half,
            " + 128]\n",
            "prefetcht0 [{w} + 64 * ",
            $half,
            " + 4096]\n",
            "prefetcht0 [{w} + 64 * ",
            $half,
            " + 4224]\n",
            split_half!(upper $half, 0),
            split_half!(upper $half, 1),
            "vpsrld zmm0, zmm0, 16\n",
            "vpord zmm0, zmm0, zmm1\n",
            "vmovdqa64 [{planes} + 1024 * ",
            $half,
            " + 4096], zmm0\n",
        )
    };
    // The upper halves of both go into a plane, and are taken from what is left of the weights.
    (upper $half:literal, $plane:literal) => {
        concat!(
            "vpsrld zmm2, zmm0, 16\n",
            "vpandd zmm3, zmm1, zmm5\n",
            "vpandd zmm4, zmm0, zmm5\n",
            "vpord zmm2, zmm2, zmm3\n",
            "vsubps zmm1, zmm1, zmm3\n",
            "vsubps zmm0, zmm0, zmm4\n",
            "vmovdqa64 [{planes} + 1024 * ",
            $half,
            " + 2048 * ",
            $plane,
            "], zmm2\n",
        )
    };
}

/// Splits the 32 lines of a step and goes on to the next one.
macro_rules! split {
    ($label:literal) => {
        concat!(
            "mov {pairs}, 16\n",
            $label,
            ":\n",
            split_half!(0),
            split_half!(1),
            "add {w}, 256\n",
            "add {planes}, 64\n",
            "dec {pairs}\n",
            "jnz ",
            $label,
            "b\n",
            "add {planes}, 5120\n",
        )
    };
}

/// `sums = a w` for 32 rows and a panel of `steps` steps of 32 lines, at least one, whose planes are written on the way.
///
/// # Safety
/// The tiles are configured, and there are `32 steps` lines from `w` on, `3 steps` squares of `a` and as many of `planes`.
unsafe fn split_and_multiply(steps: usize, a: *const Square, w: *const Line, planes: *mut Square, sums: &mut Sums) {
    // SAFETY: the caller's promise; prefetches may ask for any place. One assembly block, so that nothing is kept in tiles between two of them.
    unsafe {
        asm!(
            "vpternlogd zmm5, zmm5, zmm5, 255",
            "vpslld zmm5, zmm5, 16",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            split!("2"),
            "dec {steps}",
            "jz 5f",
            "3:",
            split!("4"),
            step!(planes),
            "add {a}, {step}",
            "add {b}, {step}",
            "dec {steps}",
            "jnz 3b",
            "5:",
            step!(planes),
            "tilestored [{to} + {row}], tmm0",
            "tilestored [{to} + {row} + 64], tmm1",
            "tilestored [{to} + {row} + 2048], tmm2",
            "tilestored [{to} + {row} + 2112], tmm3",
            step = const PLANES * size_of::<Square>(),
            steps = inout(reg) steps => _,
            pairs = out(reg) _,
            a = inout(reg) a => _,
            b = inout(reg) planes => _,
            planes = inout(reg) planes => _,
            w = inout(reg) w => _,
            line = in(reg) 64usize,
            to = in(reg) sums.0.as_mut_ptr(),
            row = in(reg) LINE,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// `sums = a w` for 32 rows and a panel of any number of lines from 32 on, whose planes are written.
///
/// # Safety
/// The tiles are configured, and `a` and `planes` have three squares for every 32 lines begun.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn first_rows(lines: &[Line], a: &[Square], planes: &mut [Square], sums: &mut Sums) {
    let (whole, rest) = lines.split_at(lines.len() / SIDE * SIDE);
    let steps = whole.len() / SIDE;
    // SAFETY: the caller's promise.
    unsafe { split_and_multiply(steps, a.as_ptr(), whole.as_ptr(), planes.as_mut_ptr(), sums) };
    if rest.is_empty() {
        return;
    }
    let (a, planes) = (&a[PLANES * steps..], &mut planes[PLANES * steps..]);
    let to = sums.0.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's promise; a line of sums is so long.
    unsafe {
        pack::<PLANES>(floats_of(rest), Role::Right, planes);
        block_f32(1, a.as_ptr(), planes.as_ptr(), (to.cast_const(), LINE), (to, LINE));
    }
}

/// Runs a block that [`serves`] is true of, on a path with tiles.
///
/// # Safety
/// What [`super::super::linear_block`] asks for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")]
pub(super) unsafe fn run(block: &Block) {
    const ZEROS: [f32; PANEL] = [0.0; PANEL];
    let steps = block.matrix.inputs.div_ceil(SIDE);
    let (side, tallest) = (PLANES * steps, HEIGHT.min(block.rows.len()).div_ceil(SIDE));
    let (mut sums, mut tiles) = (Sums::ZERO, Configured::default());
    // SAFETY: the path has tiles.
    unsafe { tiles.shape(WHOLE) };
    with_scratch(side * (tallest + 1), |scratch| {
        let (left, planes) = scratch.split_at_mut(side * tallest);
        for first in block.rows.clone().step_by(HEIGHT) {
            let rows = first..block.rows.end.min(first + HEIGHT);
            let x = Rows { data: &block.x[first * block.x_stride..], rows: rows.len(), width: block.matrix.inputs, stride: block.x_stride };
            // SAFETY: the path has tiles.
            unsafe { pack::<PLANES>(x, Role::Left, left) };
            for p in block.panels.clone() {
                for (r, a) in rows.clone().step_by(SIDE).zip(left.chunks_exact(side)) {
                    // SAFETY: both sides have `steps` squares of every plane, and rows and panel lie inside the block.
                    unsafe {
                        if r == first {
                            first_rows(block.matrix.panel(p), a, planes, &mut sums);
                        } else {
                            let to = sums.0.as_mut_ptr().cast();
                            block_f32(steps, a.as_ptr(), planes.as_ptr(), (ZEROS.as_ptr(), 0), (to, LINE));
                        }
                        store(block, (p, r, (rows.end - r).min(SIDE)), |m| sums.floats(m));
                    }
                }
            }
        }
    });
}

/// Lines as rows of f32.
fn floats_of(lines: &[Line]) -> Rows<'_> {
    // SAFETY: a line is so many words, one behind the other, and any bits are an f32.
    let data = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * PANEL) };
    Rows { data, rows: lines.len(), width: PANEL, stride: PANEL }
}
