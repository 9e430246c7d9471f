//! Gradients of the estimate on the CPU, row by row: of the measurements, from those of what beams are made of: the strongest pair of vectors and the paths that are
//! told, or the beams to receive the choices with and their logits. The rest of the result is for layers to read, and hands nothing back.
//!
//! The gradient of a complex number `c` is `dL/d(re c) + i dL/d(im c)`: of `c = a b` those are `da = dc conj(b)` and of `c = conj(a) b` `da = conj(dc) b`. Names that
//! begin with `d` are gradients; complex numbers lie as in `passes`.

mod beams;

use super::hermitian;
use super::passes::{self, Estimate, Kept, Measured, Scratch, Step, Trace, variance, with_scratch};
use super::{LEAST, Pursuit, Tables};
use crate::families::beam::complex::product;
use crate::families::beam::user::ANTENNA_SCALE;
use crate::ops::simd::kernel;
use crate::ops::{Operand, Products, Target, add_into};
use beams::{of_answers, of_strongest, of_unit};

/// Gradients on their way back, and memory to work in.
struct Owed<'a> {
    /// Of `w_t^H a_r`, `[A, 2, T]`.
    seen: &'a mut [f32],
    /// Of `y`, `[2, T]`.
    y: &'a mut [f32],
    /// Of the covariance of the step at hand: Hermitian, `[2, T, T]`.
    covariance: &'a mut [f32],
    /// Of the power that is taken for noise, which is on the diagonal of every covariance.
    noise: f32,
    /// Of its `m`, `[A, 2, D]`, and `q`, `[A, D]`.
    matched: &'a mut [f32],
    q: &'a mut [f32],
    /// Of the means of its path, `[A, 2, D]`, and of the second moments of the others, `[A, D]`.
    means: &'a mut [f32],
    gamma: &'a mut [f32],
    /// Of its `z`, and of what was solved for it, `[2, T]` both.
    z: &'a mut [f32],
    left: &'a mut [f32],
    /// A matrix to work in, `[2, T, T]`.
    square: &'a mut [f32],
}

/// Fills `dx` with the gradient of the measurements `x` at an SNR from that of the estimate.
pub(super) fn of(tables: &Tables, pursuit: Pursuit, (x, snr): (&[f32], f32), dfound: &[f32], dx: &mut [f32]) {
    let ([n, m], [arrivals, _], [grid, t]) = (tables.antennas, tables.directions(), [tables.grid(), tables.measurements()]);
    let sizes = [
        2 * n * m,        // dchannel
        2 * grid,         // dmeans
        grid,             // dlikely
        2 * t * arrivals, // seen
        2 * t,            // y
        2 * t * t,        // covariance
        2 * grid,         // matched
        grid,             // q
        2 * grid,         // means
        grid,             // gamma
        2 * t,            // z
        2 * t,            // left
        2 * t * t,        // square
    ];
    let kept = Kept::all(pursuit);
    with_scratch(Estimate::size(tables, pursuit, kept) + sizes.iter().sum::<usize>(), |mut memory| {
        let mut estimate = Estimate::new(tables, pursuit, kept, (x, snr), &mut memory);
        let [dchannel, dmeans, dlikely, seen, y, covariance, matched, q, means, gamma, z, left, square] = passes::take(&mut memory, sizes);
        of_channel(tables, &mut estimate, dfound, (dchannel, dmeans, dlikely));
        let share = 1.0 / pursuit.starts() as f32;
        dmeans.iter_mut().chain(&mut *dlikely).for_each(|d| *d *= share);
        let mut owed = Owed { seen, y, covariance, noise: 0.0, matched, q, means, gamma, z, left, square };
        owed.seen.fill(0.0);
        owed.y.fill(0.0);
        for pass in 0..pursuit.starts() {
            of_pass(tables, pursuit, (&mut estimate, pass), (dmeans, dlikely), &mut owed);
        }
        let Measured { y, noise, .. } = estimate.measured;
        if noise > super::noise(f64::from(snr)) {
            let by = 2.0 * owed.noise * pursuit.unexplained as f32 / t as f32;
            owed.y.iter_mut().zip(&*y).for_each(|(d, y)| *d += by * y);
        }
        to_measurements(tables, x, (owed.seen, owed.y), dx);
    });
}

/// From what is said of an estimate to the means of its paths, `[A, 2, D]`, and their second moments, `[A, D]`. `dchannel` is to work in.
fn of_channel(tables: &Tables, estimate: &mut Estimate, dfound: &[f32], (dchannel, dmeans, dlikely): (&mut [f32], &mut [f32], &mut [f32])) {
    let ([n, m], [arrivals, departures]) = (tables.antennas, tables.directions());
    let Estimate { channel, by_arrival, all, shares, .. } = estimate;
    let leaves = &mut shares[arrivals..];
    dchannel.fill(0.0);
    if tables.choices.is_empty() {
        of_strongest(tables, (channel, leaves), dfound, dchannel);
    } else {
        leaves.fill(0.0);
        of_answers(tables, channel, dfound, dchannel);
    }
    // What leaves in each direction is in the second moments of all paths.
    let total = all.iter().sum::<f32>() + LEAST as f32;
    let mean = all.chunks_exact(departures).flat_map(|row| row.iter().zip(&*leaves)).map(|(p, d)| p * d).sum::<f32>() / total;
    leaves.iter_mut().for_each(|d| *d = (*d - mean) / total);
    dlikely.chunks_exact_mut(departures).for_each(|row| row.copy_from_slice(leaves));
    of_combined(&tables.steering[0], dchannel, by_arrival, n);
    Products::F32.product_alone(
        Operand::new(by_arrival, 2 * m),
        Operand::new(&tables.leaving, 2 * m).t(),
        dmeans,
        2 * departures,
        Target::Fresh,
    );
}

/// From the means and the second moments of all paths of a pass to what its steps read.
fn of_pass(
    tables: &Tables,
    pursuit: Pursuit,
    (estimate, pass): (&mut Estimate, usize),
    (dmeans, dlikely): (&[f32], &[f32]),
    owed: &mut Owed,
) {
    let ([_, departures], [grid, t]) = (tables.directions(), [tables.grid(), tables.measurements()]);
    let Estimate { measured, scratch, moments, traces, .. } = estimate;
    let Trace { steps, explained, z, before } = traces.of(tables, pass);
    let last = pursuit.steps() - 1;

    // What the other paths make of what the last leaves.
    let step = Step::of(tables, steps, last);
    owed.means.copy_from_slice(dmeans);
    owed.covariance.fill(0.0);
    of_rest(step.gamma, before, owed.means, (owed.gamma, owed.matched), departures);
    add_into(owed.gamma, dlikely);
    of_matched(tables, measured.seen, (step.inverse, z), owed, scratch.turned);
    // From here on `moments` are gradients of them, as they are behind the step at hand.
    for (path, moments) in moments.chunks_exact_mut(grid).enumerate() {
        moments.copy_from_slice(if path == pursuit.path(last) { dlikely } else { owed.gamma });
    }
    // The mean of the last path was taken off.
    passes::match_all(tables, measured.seen, owed.left, scratch.turned, owed.matched);
    owed.means.iter_mut().zip(&*owed.matched).for_each(|(to, x)| *to -= x);
    owed.left.iter_mut().for_each(|x| *x = -*x);
    add_conjugated(owed.left, explained, owed.seen, t);

    for at in (0..=last).rev() {
        let (path, step) = (pursuit.path(at), Step::of(tables, steps, at));
        if at < last {
            // Only the last has means.
            owed.means.fill(0.0);
            owed.covariance.fill(0.0);
        }
        let likely = &mut moments[path * grid..][..grid];
        of_posterior(step.matched, step.q, step.shares, measured.certainty, likely, owed.means, owed.matched, owed.q, scratch.lanes);
        likely.fill(0.0);
        of_compared(tables, measured, &step, owed, scratch);
        owed.noise += owed.covariance[..t * t].iter().step_by(t + 1).sum::<f32>();
        if at > 0 {
            // R = noise + sum gamma x x^H
            passes::weigh(tables, step.gamma, scratch.weighted);
            add_forms(owed.covariance, scratch.weighted, measured.seen, owed.seen, t);
            hermitian::pack(owed.covariance, scratch.packed, t);
            passes::forms(tables, measured.received, (scratch.packed, scratch.weighted), owed.gamma, departures);
            let others = moments.chunks_exact_mut(grid).enumerate().filter(|(other, _)| *other != path);
            others.for_each(|(_, moments)| add_into(moments, owed.gamma));
        }
    }
}

/// From `m = x^H z` and `q = x^H R^-1 x` of a step to the covariance and what beams see.
fn of_compared(tables: &Tables, measured: &Measured, step: &Step, owed: &mut Owed, scratch: &mut Scratch) {
    let t = tables.measurements();
    of_matched(tables, measured.seen, (step.inverse, step.z), owed, scratch.turned);
    passes::weigh(tables, owed.q, scratch.weighted);
    hermitian::covariance(measured.received, scratch.weighted, scratch.packed, t);
    hermitian::unpack(scratch.packed, 0.0, owed.square, t);
    sandwich(step.inverse, owed.square, owed.covariance, t);
    add_forms(step.inverse, scratch.weighted, measured.seen, owed.seen, t);
}

kernel! {
    /// From the channel to what arrives from every direction, `[A, 2, M]`: the conjugates of the steering vectors `[A, N, 2]` times it.
    fn of_combined<S>(steering: &'a [f32], channel: &'a [f32], by_arrival: &'a mut [f32], n: usize) {
        by_arrival.fill(0.0);
        let width = channel.len() / n;
        for (a, row) in steering.chunks_exact(2 * n).zip(by_arrival.chunks_exact_mut(width)) {
            let (re, im) = row.split_at_mut(width / 2);
            for (a, h) in a.chunks_exact(2).zip(channel.chunks_exact(width)) {
                let (h_re, h_im) = h.split_at(width / 2);
                for j in 0..width / 2 {
                    re[j] += a[0] * h_re[j] + a[1] * h_im[j];
                    im[j] += a[0] * h_im[j] - a[1] * h_re[j];
                }
            }
        }
    }
}

/// From the means of the channel's paths, `mu = a + gamma b`, to `gamma` and `b`.
fn of_rest(gamma: &[f32], b: &[f32], dmu: &[f32], (dgamma, db): (&mut [f32], &mut [f32]), columns: usize) {
    let all = gamma.chunks_exact(columns).zip(b.chunks_exact(2 * columns)).zip(dmu.chunks_exact(2 * columns));
    for (((gamma, b), d), (dgamma, db)) in all.zip(dgamma.chunks_exact_mut(columns).zip(db.chunks_exact_mut(2 * columns))) {
        for i in 0..columns {
            let j = columns + i;
            dgamma[i] = d[i] * b[i] + d[j] * b[j];
            (db[i], db[j]) = (gamma[i] * d[i], gamma[i] * d[j]);
        }
    }
}

/// From `m = x^H z`, where `z = R^-1 y`, to `e`, `R` and `y`; `owed.left` becomes the gradient of this `y`. `sent` is to work in.
fn of_matched(tables: &Tables, seen: &[f32], (inverse, z): (&[f32], &[f32]), owed: &mut Owed, sent: &mut [f32]) {
    let t = tables.measurements();
    passes::sent(tables, owed.matched, sent);
    through(seen, z, sent, (owed.seen, owed.z), t);
    hermitian::solve(inverse, owed.z, owed.left);
    of_inverse(owed.left, z, owed.covariance, t);
    add_into(owed.y, owed.left);
}

/// From `m = x^H z` to `e` and `z`: `sent` is the sum of `dm s` over the directions of departure.
fn through(seen: &[f32], z: &[f32], sent: &[f32], (dseen, dz): (&mut [f32], &mut [f32]), t: usize) {
    dz.fill(0.0);
    let (dz_re, dz_im) = dz.split_at_mut(t);
    for (e, d) in seen.chunks_exact(2 * t).zip(sent.chunks_exact(2 * t)) {
        for i in 0..t {
            dz_re[i] += e[i] * d[i] - e[t + i] * d[t + i];
            dz_im[i] += e[i] * d[t + i] + e[t + i] * d[i];
        }
    }
    add_conjugated(z, sent, dseen, t);
}

/// `out_r += z conj(sent_r)`.
fn add_conjugated(z: &[f32], sent: &[f32], out: &mut [f32], t: usize) {
    let (z_re, z_im) = z.split_at(t);
    for (d, out) in sent.chunks_exact(2 * t).zip(out.chunks_exact_mut(2 * t)) {
        for i in 0..t {
            out[i] += z_re[i] * d[i] + z_im[i] * d[t + i];
            out[t + i] += z_im[i] * d[i] - z_re[i] * d[t + i];
        }
    }
}

/// From `z = R^-1 y` to `R`: `-(u z^H + z u^H) / 2`, where `u = R^-1 dz`.
fn of_inverse(u: &[f32], z: &[f32], dcovariance: &mut [f32], t: usize) {
    let (re, im) = dcovariance.split_at_mut(t * t);
    for i in 0..t {
        for j in 0..t {
            re[i * t + j] -= 0.5 * (u[i] * z[j] + u[t + i] * z[t + j] + z[i] * u[j] + z[t + i] * u[t + j]);
            im[i * t + j] -= 0.5 * (u[t + i] * z[j] - u[i] * z[t + j] + z[t + i] * u[j] - z[i] * u[t + j]);
        }
    }
}

/// From `R^-1` to `R`: `out -= R^-1 d R^-1`.
fn sandwich(inverse: &[f32], d: &[f32], out: &mut [f32], t: usize) {
    let mut half = vec![0.0; 2 * t * t];
    add_product(1.0, inverse, d, &mut half, t);
    add_product(-1.0, &half, inverse, out, t);
}

kernel! {
    /// `out += sign a b` of square matrices.
    fn add_product<S>(sign: f32, a: &'a [f32], b: &'a [f32], out: &'a mut [f32], t: usize) {
        let ((a_re, a_im), (b_re, b_im), (out_re, out_im)) = (a.split_at(t * t), b.split_at(t * t), out.split_at_mut(t * t));
        for i in 0..t {
            let (re, im) = (&mut out_re[i * t..][..t], &mut out_im[i * t..][..t]);
            for k in 0..t {
                let (a, c) = (sign * a_re[i * t + k], sign * a_im[i * t + k]);
                let (b_re, b_im) = (&b_re[k * t..][..t], &b_im[k * t..][..t]);
                for j in 0..t {
                    re[j] += a * b_re[j] - c * b_im[j];
                    im[j] += a * b_im[j] + c * b_re[j];
                }
            }
        }
    }
}

/// From `sum_rs c_rs x_rs^H A x_rs` to `e`: twice `A` times the conjugate of `sum_s c_rs s s^H`, entry by entry, times `e`.
fn add_forms(a: &[f32], weighted: &[f32], seen: &[f32], dseen: &mut [f32], t: usize) {
    let (a_re, a_im) = a.split_at(t * t);
    for ((c, e), d) in weighted.chunks_exact(t * t).zip(seen.chunks_exact(2 * t)).zip(dseen.chunks_exact_mut(2 * t)) {
        let [c_re, c_im, diagonal] = hermitian::parts(c, t);
        let mut at = 0;
        for i in 0..t {
            for j in 0..i {
                let (a, b) = (a_re[i * t + j], a_im[i * t + j]);
                let (re, im) = (2.0 * (a * c_re[at + j] + b * c_im[at + j]), 2.0 * (b * c_re[at + j] - a * c_im[at + j]));
                d[i] += re * e[j] - im * e[t + j];
                d[t + i] += re * e[t + j] + im * e[j];
                d[j] += re * e[i] + im * e[t + i];
                d[t + j] += re * e[t + i] - im * e[i];
            }
            let own = 2.0 * a_re[i * t + i] * diagonal[i];
            d[i] += own * e[i];
            d[t + i] += own * e[t + i];
            at += i;
        }
    }
}

kernel! {
    /// From second moments and means of a path to `m` and `q`. `lanes` `[D]` is to work in.
    fn of_posterior<S>(
        matched: &'a [f32],
        q: &'a [f32],
        shares: &'a [f32],
        certainty: f32,
        dlikely: &'a [f32],
        dmeans: &'a [f32],
        dmatched: &'a mut [f32],
        dq: &'a mut [f32],
        lanes: &'a mut [f32],
    ) {
        let columns = lanes.len();
        // Of the shares, in place of those of `q`, and their mean.
        lanes.fill(0.0);
        for (row, dshares) in dq.chunks_exact_mut(columns).enumerate() {
            let [q, p, dlikely] = [q, shares, dlikely].map(|x| &x[row * columns..][..columns]);
            let [(re, im), (d_re, d_im)] = [matched, dmeans].map(|x| x[2 * row * columns..][..2 * columns].split_at(columns));
            for i in 0..columns {
                let variance = variance(q[i]);
                let (a, b) = (re[i] * variance, im[i] * variance);
                dshares[i] = dlikely[i] * (a * a + b * b + variance) + d_re[i] * a + d_im[i] * b;
                lanes[i] += p[i] * dshares[i];
            }
        }
        let mean = lanes.iter().sum::<f32>();
        for (row, (dq, dmatched)) in dq.chunks_exact_mut(columns).zip(dmatched.chunks_exact_mut(2 * columns)).enumerate() {
            let [q, p, dlikely] = [q, shares, dlikely].map(|x| &x[row * columns..][..columns]);
            let [(re, im), (d_re, d_im)] = [matched, dmeans].map(|x| x[2 * row * columns..][..2 * columns].split_at(columns));
            let (to_re, to_im) = dmatched.split_at_mut(columns);
            for i in 0..columns {
                let variance = variance(q[i]);
                let dlogit = p[i] * (dq[i] - mean);
                // Of the mean of the gain.
                let (a, b) = (p[i] * (2.0 * dlikely[i] * re[i] * variance + d_re[i]), p[i] * (2.0 * dlikely[i] * im[i] * variance + d_im[i]));
                let power = re[i] * re[i] + im[i] * im[i];
                let dvariance = p[i] * dlikely[i] + a * re[i] + b * im[i] + dlogit * (0.5 / variance + certainty * power);
                let by = 2.0 * dlogit * certainty * variance;
                (to_re[i], to_im[i]) = (variance * a + by * re[i], variance * b + by * im[i]);
                dq[i] = if q[i] > 0.0 { -variance * variance * dvariance } else { 0.0 };
            }
        }
    }
}

/// From what beams see and from what was received to `2.4 y_t w_t`.
fn to_measurements(tables: &Tables, x: &[f32], (dseen, dy): (&[f32], &[f32]), dx: &mut [f32]) {
    let (n, t) = (tables.antennas[0], dy.len() / 2);
    for (i, (x, dx)) in x.chunks_exact(2 * n).zip(dx.chunks_exact_mut(2 * n)).enumerate() {
        dx.fill(0.0);
        let size = (x.iter().map(|x| x * x).sum::<f32>() + 1e-24).sqrt();
        if size < 1e-9 {
            continue;
        }
        for (a, d) in tables.steering[0].chunks_exact(2 * n).zip(dseen.chunks_exact(2 * t)) {
            for (a, dx) in a.chunks_exact(2).zip(dx.chunks_exact_mut(2)) {
                let [re, im] = product([d[i], -d[t + i]], [a[0], a[1]]);
                (dx[0], dx[1]) = (dx[0] + re, dx[1] + im);
            }
        }
        let unit: Vec<f32> = x.iter().map(|x| x / size).collect();
        of_unit(&unit, size, dx);
        dx.iter_mut().zip(&unit).for_each(|(dx, unit)| *dx += dy[i] / ANTENNA_SCALE * unit);
    }
}
