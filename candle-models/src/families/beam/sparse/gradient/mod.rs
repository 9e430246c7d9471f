//! Gradients of the estimate on the CPU, row by row: of the measurements, from those of what beams are made of: the strongest pair of vectors and the paths that are
//! told, or the beams to receive the choices with and their logits. The rest of the result is for layers to read, and hands nothing back.
//!
//! The gradient of a complex number `c` is `dL/d(re c) + i dL/d(im c)`: of `c = a b` those are `da = dc conj(b)` and of `c = conj(a) b` `da = conj(dc) b`. Names that
//! begin with `d` are gradients; complex numbers lie as in `rows`.

mod beams;

use super::hermitian;
use super::rows::{self, Measured, Places, variance};
use super::{LEAST, Pursuit, Tables};
use crate::families::beam::complex::product;
use crate::families::beam::user::ANTENNA_SCALE;
use crate::ops::simd::kernel;
use crate::ops::{Operand, Target, add_into, product_alone};
use beams::{of_answers, of_strongest, of_unit};
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A step as the forward pass left it.
struct Past<'a> {
    /// Second moments of the other paths.
    gamma: &'a mut [f32],
    inverse: &'a mut [f32],
    z: &'a mut [f32],
    matched: &'a mut [f32],
    q: &'a mut [f32],
    /// How likely the path is to lie in each pair of directions.
    shares: &'a mut [f32],
}

impl<'a> Past<'a> {
    fn size(tables: &Tables) -> usize {
        let ([arrivals, departures], t) = (tables.directions(), tables.measurements());
        5 * arrivals * departures + 2 * t * t + 2 * t
    }

    fn of(tables: &Tables, mut memory: &'a mut [f32]) -> Self {
        let ([arrivals, departures], t) = (tables.directions(), tables.measurements());
        let grid = arrivals * departures;
        let sizes = [grid, 2 * t * t, 2 * t, 2 * grid, grid, grid];
        let [gamma, inverse, z, matched, q, shares] = sizes.map(|size| rows::take(&mut memory, size));
        Self { gamma, inverse, z, matched, q, shares }
    }
}

/// All steps from one place as the forward pass left them, and what it made of the last.
struct Start<'a> {
    steps: Vec<Past<'a>>,
    /// What the last path sends, `[A, 2, T]`.
    explained: &'a mut [f32],
    /// What is left of the measurements, times the inverse of the covariance, and `x^H` times that.
    z: &'a mut [f32],
    before: &'a mut [f32],
}

impl<'a> Start<'a> {
    fn rest(tables: &Tables) -> [usize; 3] {
        let ([arrivals, departures], t) = (tables.directions(), tables.measurements());
        [2 * t * arrivals, 2 * t, 2 * arrivals * departures]
    }

    fn size(tables: &Tables, pursuit: Pursuit) -> usize {
        pursuit.steps() * Past::size(tables) + Self::rest(tables).iter().sum::<usize>()
    }

    fn of(tables: &Tables, pursuit: Pursuit, memory: &'a mut [f32]) -> Self {
        let (steps, mut memory) = memory.split_at_mut(pursuit.steps() * Past::size(tables));
        let steps = steps.chunks_exact_mut(Past::size(tables)).map(|memory| Past::of(tables, memory)).collect();
        let [explained, z, before] = Self::rest(tables).map(|size| rows::take(&mut memory, size));
        Self { steps, explained, z, before }
    }
}

/// Gradients on their way back.
struct Owed<'a> {
    /// Of `w_t^H a_r`, `[A, 2, T]`.
    seen: &'a mut [f32],
    /// Of `y`, `[2, T]`.
    y: &'a mut [f32],
    /// Of the covariance of the step at hand: Hermitian, `[2, T, T]`.
    covariance: &'a mut [f32],
}

/// Fills `dx` with the gradient of the measurements `x` at an SNR from that of the estimate.
pub(super) fn of(tables: &Tables, pursuit: Pursuit, (x, snr): (&[f32], f32), dfound: &[f32], dx: &mut [f32]) {
    let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
    let (pairs, grid) = (t * t, arrivals * departures);
    let sizes = [
        2 * t,                                           // y
        2 * t * arrivals,                                // seen
        arrivals * pairs,                                // received
        arrivals * pairs,                                // weighted
        2 * t * arrivals,                                // turned
        pairs,                                           // packed
        grid,                                            // likely
        pursuit.paths * grid,                            // moments
        2 * grid,                                        // own
        2 * grid,                                        // means
        grid,                                            // all
        2 * m * arrivals,                                // by_arrival
        2 * n * m,                                       // channel
        2 * n * m,                                       // dchannel
        arrivals + departures,                           // marginals
        2 * grid,                                        // dmeans
        2 * grid,                                        // dmatched
        grid,                                            // dq
        2 * t * arrivals,                                // dseen
        2 * t,                                           // dy
        grid,                                            // dgamma
        2 * pairs,                                       // dcovariance
        2 * t,                                           // left
        2 * t,                                           // dz
        2 * t,                                           // dleft
        2 * pairs,                                       // square
        2 * grid,                                        // dall
        pursuit.starts() * Start::size(tables, pursuit), // starts
    ];
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(sizes.iter().sum()), 0.0);
        let mut rest = &mut scratch[..];
        let [
            y,
            seen,
            received,
            weighted,
            turned,
            packed,
            likely,
            moments,
            own,
            means,
            all,
            by_arrival,
            channel,
            dchannel,
            marginals,
            dmeans,
            dmatched,
            dq,
            dseen,
            dy,
            dgamma,
            dcovariance,
            left,
            dz,
            dleft,
            square,
            dall,
            starts,
        ] = sizes.map(|size| rows::take(&mut rest, size));
        rows::read(tables, x, y, seen);
        hermitian::outer_all(seen, received, t);
        let noise = super::noise(f64::from(snr));
        let certainty = super::certainty(noise) as f32;
        let mut starts: Vec<Start> =
            starts.chunks_exact_mut(Start::size(tables, pursuit)).map(|memory| Start::of(tables, pursuit, memory)).collect();
        let share = 1.0 / pursuit.starts() as f32;

        // The forward pass once more, with what every step was.
        let measured = Measured { seen, received, y };
        let mut places = Places::new(tables, pursuit);
        means.fill(0.0);
        all.fill(0.0);
        for start in &mut starts {
            moments.fill(0.0);
            for (at, now) in start.steps.iter_mut().enumerate() {
                let path = pursuit.path(at);
                rows::others(moments, path, now.gamma);
                let noise = pursuit.noise(noise, at) as f32;
                let known = (at > 0).then_some(&*now.gamma);
                rows::step(tables, &measured, (known, noise), [weighted, packed, turned], [now.inverse, now.z, now.matched, now.q]);
                own.copy_from_slice(now.matched);
                likely.copy_from_slice(now.q);
                rows::exponents(now.matched, now.q, certainty, now.shares, departures);
                if at == 0 {
                    places.begin(now.shares);
                }
                rows::believe(now.q, now.shares, &mut marginals[..departures]);
                rows::posterior(own, likely, now.shares, departures);
                moments[path * grid..][..grid].copy_from_slice(likely);
            }
            let last = start.steps.last().expect("a path or more");
            left.copy_from_slice(y);
            rows::means_of(tables, (seen, last.inverse, last.gamma), (own, left), [start.z, start.explained, turned, start.before]);
            add_into(means, own);
            add_into(all, likely);
            add_into(all, last.gamma);
        }
        means.iter_mut().chain(&mut *all).for_each(|x| *x *= share);
        rows::channel_of(tables, means, by_arrival, channel);
        rows::shares(all, marginals, arrivals);

        // Beams, to the channel, to the means of its paths.
        dchannel.fill(0.0);
        if tables.choices.is_empty() {
            of_strongest(tables, (channel, &mut marginals[arrivals..]), dfound, dchannel);
        } else {
            marginals[arrivals..].fill(0.0);
            of_answers(tables, channel, dfound, dchannel);
        }
        // What leaves in each direction is in the second moments of all paths.
        let total = all.iter().sum::<f32>() + LEAST as f32;
        let mean =
            all.chunks_exact(departures).flat_map(|row| row.iter().zip(&marginals[arrivals..])).map(|(p, d)| p * d).sum::<f32>() / total;
        marginals[arrivals..].iter_mut().for_each(|d| *d = share * (*d - mean) / total);
        likely.chunks_exact_mut(departures).for_each(|row| row.copy_from_slice(&marginals[arrivals..]));
        of_combined(&tables.steering[0], dchannel, by_arrival, n);
        product_alone(Operand::new(by_arrival, 2 * m), Operand::new(&tables.leaving, 2 * m).t(), dall, 2 * departures, Target::Fresh);
        dall.iter_mut().for_each(|d| *d *= share);

        let mut owed = Owed { seen: dseen, y: dy, covariance: dcovariance };
        owed.seen.fill(0.0);
        owed.y.fill(0.0);
        for start in &starts {
            // What the other paths make of what the last leaves.
            let last = start.steps.last().expect("a path or more");
            dmeans.copy_from_slice(dall);
            owed.covariance.fill(0.0);
            of_rest(last.gamma, start.before, dmeans, (dgamma, dmatched), departures);
            add_into(dgamma, likely);
            of_matched(tables, seen, (last.inverse, start.z), dmatched, &mut owed, [turned, dz, dleft]);
            // From here on `moments` are gradients of them, as they are behind the step at hand.
            for (path, moments) in moments.chunks_exact_mut(grid).enumerate() {
                moments.copy_from_slice(if path == pursuit.path(pursuit.steps() - 1) { likely } else { dgamma });
            }
            // The mean of the last path was taken off.
            rows::match_all(tables, seen, dleft, turned, dmatched);
            dmeans.iter_mut().zip(&*dmatched).for_each(|(to, x)| *to -= x);
            dleft.iter_mut().for_each(|x| *x = -*x);
            add_conjugated(dleft, start.explained, owed.seen, t);

            for (at, now) in start.steps.iter().enumerate().rev() {
                let likely = &mut moments[pursuit.path(at) * grid..][..grid];
                if at + 1 < pursuit.steps() {
                    // Only the last has means.
                    dmeans.fill(0.0);
                    owed.covariance.fill(0.0);
                }
                let lanes = &mut marginals[..departures];
                of_posterior(now.matched, now.q, now.shares, certainty, likely, dmeans, dmatched, dq, lanes);
                of_matched(tables, seen, (now.inverse, now.z), dmatched, &mut owed, [turned, dz, dleft]);
                // q = x^H R^-1 x
                rows::weigh(tables, dq, weighted);
                hermitian::covariance(received, weighted, packed, t);
                hermitian::unpack(packed, 0.0, square, t);
                sandwich(now.inverse, square, owed.covariance, t);
                add_forms(now.inverse, weighted, seen, owed.seen, t);
                // R = noise + sum gamma x x^H
                likely.fill(0.0);
                if at > 0 {
                    rows::weigh(tables, now.gamma, weighted);
                    add_forms(owed.covariance, weighted, seen, owed.seen, t);
                    hermitian::pack(owed.covariance, packed, t);
                    rows::forms(tables, received, (packed, weighted), dq, departures);
                    let others = moments.chunks_exact_mut(grid).enumerate().filter(|(path, _)| *path != pursuit.path(at));
                    others.for_each(|(_, moments)| add_into(moments, dq));
                }
            }
        }
        to_measurements(tables, x, (owed.seen, owed.y), dx);
    });
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

/// From `m = x^H z`, where `z = R^-1 y`, to `e`, `R` and `y`. `dy` becomes the gradient of this `y`; `sent` and `dz` are to work in.
fn of_matched(
    tables: &Tables,
    seen: &[f32],
    (inverse, z): (&[f32], &[f32]),
    dmatched: &[f32],
    owed: &mut Owed,
    [sent, dz, dy]: [&mut [f32]; 3],
) {
    let t = tables.measurements();
    rows::sent(tables, dmatched, sent);
    through(seen, z, sent, (owed.seen, dz), t);
    hermitian::solve(inverse, dz, dy);
    of_inverse(dy, z, owed.covariance, t);
    add_into(owed.y, dy);
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
