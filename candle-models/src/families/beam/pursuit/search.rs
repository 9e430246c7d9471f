//! The search on the CPU, row by row: directions of the transmitter side by side in vector registers, those of the receiver one after the other.

use super::{FINE, LEAST, LEAST_PROBABILITY, LOGARITHM, MISFIT, SHARPNESS, Tables, UNSEEN, WEAK};
use crate::families::beam::complex::{inner, product};
use crate::ops::simd;
use pulp::{Simd, WithSimd};
use std::cell::RefCell;

/// Numbers of the widest register, a multiple of which the directions of the transmitter fill.
const LANES: usize = 16;

/// Numbers for so many directions.
pub(super) fn columns(directions: usize) -> usize {
    directions.next_multiple_of(LANES)
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Numbers of which the first so many are taken for something.
fn take<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (taken, behind) = std::mem::take(rest).split_at_mut(count);
    *rest = behind;
    taken
}

/// Looks for a path for each of `found`, which it fills.
pub(super) fn paths<'a>(tables: &Tables, x: &[f32], found: impl Iterator<Item = &'a mut [f32]>) {
    let ([receive, transmit], [arrivals, _], t, columns) = (tables.antennas, tables.directions(), tables.measurements(), tables.columns());
    let sizes = [2 * t * receive, 2 * t * arrivals, 2 * t, 3 * t, arrivals, columns, 2 * t, 2 * receive, 2 * transmit];
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < sizes.iter().sum() {
            scratch.resize(sizes.iter().sum(), 0.0);
        }
        let mut rest = &mut scratch[..];
        let [w, seen, left, factors, arrives, leaves, g, u, v] = sizes.map(|size| take(&mut rest, size));
        let whole = turned(x, receive, w, left);
        for (w, seen) in w.chunks_exact(2 * receive).zip(seen.chunks_exact_mut(2 * arrivals)) {
            for (a, seen) in tables.steering[0].chunks_exact(2 * receive).zip(seen.chunks_exact_mut(2)) {
                seen.copy_from_slice(&inner(w, a));
            }
        }
        let seen_by = |seen: &[f32]| seen.iter().map(|x| x * x).sum::<f32>();
        let power: f32 = seen.chunks_exact(2 * arrivals).zip(&tables.power).map(|(seen, sent)| seen_by(seen) * sent).sum();
        let floor = power * (UNSEEN / (arrivals * tables.directions()[1]) as f64) as f32 + LEAST as f32;
        for found in found {
            let energy = squares(left) + LEAST as f32;
            leaves.fill(0.0);
            let matched = Matched { tables, seen, left, factors, floor, energy, arrives, leaves };
            simd::arch().dispatch(matched);
            let leaves = &mut leaves[..tables.directions()[1]];
            let total: f32 = arrives.iter().sum();
            [&mut *arrives, leaves].into_iter().flatten().for_each(|p| *p /= total);
            sum_of(&tables.steering[0], arrives, u);
            sum_of(&tables.steering[1], leaves, v);
            for ((w, f), g) in w.chunks_exact(2 * receive).zip(tables.beams.chunks_exact(2 * transmit)).zip(g.chunks_exact_mut(2)) {
                g.copy_from_slice(&product(inner(w, u), inner(v, f)));
            }
            let gain = inner(g, left).map(|sum| sum / (squares(g) + WEAK as f32));
            for (left, g) in left.chunks_exact_mut(2).zip(g.chunks_exact(2)) {
                let explained = product([g[0], g[1]], gain);
                (left[0], left[1]) = (left[0] - explained[0], left[1] - explained[1]);
            }
            let (path, rest) = found.split_at_mut(2 * receive);
            for (to, u) in path.chunks_exact_mut(2).zip(u.chunks_exact(2)) {
                to.copy_from_slice(&product([u[0], u[1]], gain));
            }
            let (leaving, rest) = rest.split_at_mut(2 * transmit);
            leaving.copy_from_slice(v);
            rest[0] = squares(left) / whole;
            let said = |p: &f32| 1.0 + LOGARITHM as f32 * (p + LEAST_PROBABILITY as f32).ln();
            rest[1..].iter_mut().zip(arrives.iter().chain(&*leaves)).for_each(|(to, p)| *to = said(p));
        }
    });
}

/// The beams of the measurements `x`, each turned by the phase of what was received so that `left` is real; the power of all that was received.
fn turned(x: &[f32], receive: usize, w: &mut [f32], left: &mut [f32]) -> f32 {
    let mut whole = LEAST as f32;
    for ((x, w), left) in x.chunks_exact(2 * receive).zip(w.chunks_exact_mut(2 * receive)).zip(left.chunks_exact_mut(2)) {
        let y = (squares(x) + 1e-24).sqrt();
        w.iter_mut().zip(x).for_each(|(w, x)| *w = x / y);
        (left[0], left[1]) = (y, 0.0);
        whole += y * y;
    }
    whole
}

fn squares(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

/// The sum of steering vectors, each as often as its probability.
fn sum_of(steering: &[f32], p: &[f32], to: &mut [f32]) {
    to.fill(0.0);
    for (a, p) in steering.chunks_exact(to.len()).zip(p) {
        to.iter_mut().zip(a).for_each(|(to, a)| *to += p * a);
    }
}

/// The likelihoods of all pairs of directions, summed over those of the transmitter and over those of the receiver.
struct Matched<'a> {
    tables: &'a Tables,
    /// `w_t^H a_r`, `[T, 2 N, 2]`.
    seen: &'a [f32],
    /// What is left of the measurements, `[T, 2]`.
    left: &'a [f32],
    /// To work in: of one direction of the receiver `conj(w_t^H a_r) e_t` and `|w_t^H a_r|^2`.
    factors: &'a mut [f32],
    floor: f32,
    energy: f32,
    arrives: &'a mut [f32],
    leaves: &'a mut [f32],
}

impl WithSimd for Matched<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tables, seen, left, factors, floor, energy, arrives, leaves } = self;
        let (columns, arrivals) = (tables.columns(), FINE * tables.antennas[0]);
        let splat = |x: f32| simd.splat_f32s(x);
        let (least, most) = (splat(MISFIT as f32), splat((1.0 + MISFIT) as f32));
        let (floor, energy, one) = (splat(floor), splat(energy), splat(1.0));
        for (r, arrives) in arrives.iter_mut().enumerate() {
            for ((factors, seen), e) in factors.chunks_exact_mut(3).zip(seen.chunks_exact(2 * arrivals)).zip(left.chunks_exact(2)) {
                let [re, im] = [seen[2 * r], seen[2 * r + 1]];
                let [x, y] = product([re, -im], [e[0], e[1]]);
                factors.copy_from_slice(&[x, y, re * re + im * im]);
            }
            let mut total = splat(0.0);
            for first in (0..columns).step_by(S::F32_LANES) {
                let (mut x, mut y, mut power) = (splat(0.0), splat(0.0), floor);
                for (factors, sent) in factors.chunks_exact(3).zip(tables.sent.chunks_exact(2 * columns)) {
                    let part = |first: usize| S::as_simd_f32s(&sent[first..][..S::F32_LANES]).0[0];
                    let (re, im) = (part(first), part(columns + first));
                    let [a, b, size] = [factors[0], factors[1], factors[2]].map(splat);
                    // (a + j b) (re - j im)
                    x = simd.mul_add_e_f32s(a, re, simd.mul_add_e_f32s(b, im, x));
                    y = simd.mul_add_e_f32s(b, re, simd.sub_f32s(y, simd.mul_f32s(a, im)));
                    power = simd.mul_add_e_f32s(size, simd.mul_add_e_f32s(re, re, simd.mul_f32s(im, im)), power);
                }
                let matched = simd.mul_add_e_f32s(x, x, simd.mul_f32s(y, y));
                let explained = simd.div_f32s(matched, simd.mul_f32s(power, energy));
                let misfit = simd.max_f32s(simd.sub_f32s(most, explained), least);
                let mut likelihood = simd.div_f32s(one, misfit);
                for _ in 0..SHARPNESS.ilog2() {
                    likelihood = simd.mul_f32s(likelihood, likelihood);
                }
                // Behind the last direction nothing is likely.
                let likelihood = simd.mul_f32s(likelihood, S::as_simd_f32s(&tables.there[first..][..S::F32_LANES]).0[0]);
                let leaves = &mut S::as_mut_simd_f32s(&mut leaves[first..][..S::F32_LANES]).0[0];
                *leaves = simd.add_f32s(*leaves, likelihood);
                total = simd.add_f32s(total, likelihood);
            }
            *arrives = simd.reduce_sum_f32s(total);
        }
    }
}
