//! The result of an estimate, on the CPU: the beams for its channel, the share of the measurements that is left, and the directions of its paths.
//!
//! Complex numbers have all real parts in front of the imaginary ones.

use super::passes::{Estimate, take};
use super::{LEAST, LEAST_PROBABILITY, LOGARITHM, LOGIT, NOTHING, STEPS, SparseChannel, Tables};
use crate::families::beam::complex::{inner, product};
use crate::families::beam::steering::element;
use crate::ops::simd::kernel;

/// Sizes of the memory that [`say`] needs.
fn sizes(tables: &Tables) -> [usize; 3] {
    let [n, m] = tables.antennas;
    [2 * (n + m), 2 * m, tables.directions()[1]]
}

pub(super) fn size(tables: &Tables) -> usize {
    sizes(tables).iter().sum()
}

/// Fills `found` with the result of an estimate. Its channel is overwritten, and `memory` is for intermediate results.
pub(super) fn say(tables: &Tables, estimate: &mut Estimate, mut memory: &mut [f32], found: &mut [f32]) {
    let [beams, left_of, towards] = take(&mut memory, sizes(tables));
    let (channel, shares) = (&mut *estimate.channel, &*estimate.shares);
    let rest = if tables.choices.is_empty() {
        strongest(tables, (channel, &shares[tables.directions()[0]..]), [beams, left_of, towards], found)
    } else {
        answers(tables, channel, beams, found)
    };
    rest[0] = estimate.left;
    let said = |p: &f32| 1.0 + LOGARITHM as f32 * (p + LEAST_PROBABILITY as f32).ln();
    rest[1..].iter_mut().zip(shares).for_each(|(to, p)| *to = said(p));
}

/// Paths that the transmitter is told, and the strongest pairs of singular vectors; what of `found` is left behind them.
fn strongest<'a>(
    tables: &Tables,
    (channel, leaves): (&mut [f32], &[f32]),
    [beams, left_of, towards]: [&mut [f32]; 3],
    found: &'a mut [f32],
) -> &'a mut [f32] {
    let [n, m] = tables.antennas;
    let (u, v) = beams.split_at_mut(2 * n);
    departing(tables, leaves, v);
    let (told, found) = found.split_at_mut(3 * SparseChannel::TOLD);
    let (first, rest) = found.split_at_mut(2 * (n + m));
    let (second, rest) = rest.split_at_mut(2 * (n + m));
    let strongest = climb(channel, u, v);
    tell(u, v, 1.0 / strongest, 1.0, first);
    split(&tables.steering[1], &first[2 * n..], left_of, towards, told);
    for (row, u) in channel.chunks_exact_mut(2 * m).enumerate().map(|(i, row)| (row, [u[i], u[n + i]])) {
        // H -= u v^H
        for j in 0..m {
            (row[j], row[m + j]) = (row[j] - (u[0] * v[j] + u[1] * v[m + j]), row[m + j] - (u[1] * v[j] - u[0] * v[m + j]));
        }
    }
    u[..n].fill(1.0);
    u[n..].fill(0.0);
    back(channel, u, v);
    let next = climb(channel, u, v);
    tell(u, v, 1.0 / strongest, next / strongest, second);
    rest
}

/// Where a channel leaves, in the mean: never far from its first vector, and so without a jump of its phase.
pub(super) fn departing(tables: &Tables, leaves: &[f32], v: &mut [f32]) {
    let m = tables.antennas[1];
    v.fill(0.0);
    for (p, b) in leaves.iter().zip(tables.steering[1].chunks_exact(2 * m)) {
        for (j, b) in b.chunks_exact(2).enumerate() {
            (v[j], v[m + j]) = (v[j] + p * b[0], v[m + j] + p * b[1]);
        }
    }
}

/// The beams to receive the transmitter's choices with, and their logits; what of `found` is left behind them.
fn answers<'a>(tables: &Tables, channel: &[f32], beams: &mut [f32], found: &'a mut [f32]) -> &'a mut [f32] {
    let ([n, m], count) = (tables.antennas, tables.choices());
    let (u, f) = beams.split_at_mut(2 * n);
    let (answers, rest) = found.split_at_mut(2 * n * count);
    let (logits, rest) = rest.split_at_mut(count);
    for ((choice, answer), power) in tables.choices.chunks_exact(2 * m).zip(answers.chunks_exact_mut(2 * n)).zip(&mut *logits) {
        apart(choice, f);
        forth(channel, f, u);
        *power = u.iter().map(|u| u * u).sum::<f32>();
        tell(u, &[], 1.0 / (*power + LEAST as f32).sqrt(), 1.0, answer);
    }
    let total = logits.iter().sum::<f32>() + LEAST as f32;
    logits.iter_mut().for_each(|x| *x = LOGIT as f32 * (*x / total + LEAST_PROBABILITY as f32).ln());
    rest
}

kernel! {
    /// `u = H v`.
    pub(super) fn forth<S>(channel: &'a [f32], v: &'a [f32], u: &'a mut [f32]) {
        let ((v_re, v_im), n) = (v.split_at(v.len() / 2), u.len() / 2);
        for (i, row) in channel.chunks_exact(v.len()).enumerate() {
            let (h_re, h_im) = row.split_at(v.len() / 2);
            let (mut re, mut im) = (0.0, 0.0);
            for j in 0..v_re.len() {
                re += h_re[j] * v_re[j] - h_im[j] * v_im[j];
                im += h_re[j] * v_im[j] + h_im[j] * v_re[j];
            }
            (u[i], u[n + i]) = (re, im);
        }
    }
}

kernel! {
    /// `v = H^H u`.
    pub(super) fn back<S>(channel: &'a [f32], u: &'a [f32], v: &'a mut [f32]) {
        v.fill(0.0);
        let (m, n) = (v.len() / 2, u.len() / 2);
        let (v_re, v_im) = v.split_at_mut(m);
        for (i, row) in channel.chunks_exact(2 * m).enumerate() {
            let ((h_re, h_im), [a, b]) = (row.split_at(m), [u[i], u[n + i]]);
            for j in 0..m {
                v_re[j] += h_re[j] * a + h_im[j] * b;
                v_im[j] += h_re[j] * b - h_im[j] * a;
            }
        }
    }
}

/// Steps of the power method from `v`; `v` of norm 1 and `u = H v` in the end, whose norm is the result.
fn climb(channel: &[f32], u: &mut [f32], v: &mut [f32]) -> f32 {
    for _ in 0..STEPS {
        ascend(channel, u, v);
    }
    forth(channel, v, u);
    norm(u)
}

/// A step of the power method: `u = H v`, and `v = H^H u` divided by its norm, which is the result.
pub(super) fn ascend(channel: &[f32], u: &mut [f32], v: &mut [f32]) -> f32 {
    forth(channel, v, u);
    back(channel, u, v);
    let norm = norm(v);
    v.iter_mut().for_each(|v| *v /= norm);
    norm
}

/// A beam `[M, 2]` as paths, for each the sine of its angle and the parts of its gain: matching pursuit (Mallat and Zhang 1993) among the steering vectors of the
/// grid. A direction is where a parabola through the highest power and its neighbours is highest. `rest` and `power` are to work in.
pub(super) fn split(grid: &[f32], beam: &[f32], rest: &mut [f32], power: &mut [f32], told: &mut [f32]) {
    let (antennas, count) = (beam.len() / 2, power.len());
    rest.copy_from_slice(beam);
    for told in told.chunks_exact_mut(3) {
        let around = highest(grid, rest, power);
        let ([before, at, behind], most) = (around.map(|s| power[s]), around[1]);
        let curve = (2.0 * at - before - behind).max(LEAST as f32);
        let direction = 2.0 * (most as f32 + 0.5 * (behind - before) / curve) / count as f32 - 1.0;
        told[0] = direction * at / (at + NOTHING as f32 * (antennas * antennas) as f32);
        let mut gain = [0.0; 2];
        for (i, x) in rest.chunks_exact(2).enumerate() {
            let [cos, sin] = element(i, told[0]);
            let [re, im] = product([cos, -sin], [x[0], x[1]]);
            gain = [gain[0] + re / antennas as f32, gain[1] + im / antennas as f32];
        }
        (told[1], told[2]) = (gain[0], gain[1]);
        for (i, x) in rest.chunks_exact_mut(2).enumerate() {
            let [re, im] = product(gain, element(i, told[0]));
            (x[0], x[1]) = (x[0] - re, x[1] - im);
        }
    }
}

/// The direction of the grid with most of a beam's power, between its neighbours.
pub(super) fn highest(grid: &[f32], beam: &[f32], power: &mut [f32]) -> [usize; 3] {
    for (power, b) in power.iter_mut().zip(grid.chunks_exact(beam.len())) {
        let [re, im] = inner(b, beam);
        *power = re * re + im * im;
    }
    let count = power.len();
    let most = (1..count).fold(0, |most, s| if power[s] > power[most] { s } else { most });
    [(most + count - 1) % count, most, (most + 1) % count]
}

/// Complex numbers that lay side by side, with all real parts in front.
pub(super) fn apart(x: &[f32], out: &mut [f32]) {
    let (re, im) = out.split_at_mut(x.len() / 2);
    x.chunks_exact(2).zip(re.iter_mut().zip(im)).for_each(|(x, (re, im))| (*re, *im) = (x[0], x[1]));
}

pub(super) fn norm(x: &[f32]) -> f32 {
    (x.iter().map(|x| x * x).sum::<f32>() + LEAST as f32).sqrt()
}

/// Writes `u` and `v`, so much of them, for vectors of norm 1 as numbers of mean square 1/2.
pub(super) fn tell(u: &[f32], v: &[f32], of_u: f32, of_v: f32, out: &mut [f32]) {
    let (to_u, to_v) = out.split_at_mut(u.len());
    for (x, of, out) in [(u, of_u, to_u), (v, of_v, to_v)] {
        let (count, by) = (x.len() / 2, of * ((x.len() / 2) as f32).sqrt());
        for (i, out) in out.chunks_exact_mut(2).enumerate() {
            (out[0], out[1]) = (by * x[i], by * x[count + i]);
        }
    }
}
