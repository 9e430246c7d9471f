//! The estimate on the CPU, row by row.
//!
//! Matrices of measurements are packed as in `hermitian`. What is complex otherwise has its real parts in front of all imaginary ones.

use super::hermitian::{covariance, invert, outer_all, pack, solve, spread, unpack};
use super::{GAIN, LEAST, LEAST_PROBABILITY, LOGARITHM, LOGIT, NEVER, NOTHING, Pursuit, STEPS, SparseChannel, Tables, near};
use crate::families::beam::complex::{inner, product};
use crate::families::beam::steering::element;
use crate::families::beam::user::ANTENNA_SCALE;
use crate::ops::simd::{exp, kernel};
use crate::ops::{Operand, Target, add_into, product_alone};
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// What is told of measurements, summed over those of the same beam, or to be told to them.
    static BY_BEAM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with so many numbers to work in, of any value.
fn by_beam(count: usize, f: impl FnOnce(&mut [f32])) {
    BY_BEAM.with_borrow_mut(|numbers| {
        numbers.resize(numbers.len().max(count), 0.0);
        f(&mut numbers[..count]);
    });
}

/// Numbers of which the first so many are taken for something.
pub(super) fn take<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (taken, behind) = std::mem::take(rest).split_at_mut(count);
    *rest = behind;
    taken
}

/// Fills `found` with what is estimated of the measurements `x` at an SNR.
pub(super) fn estimate(tables: &Tables, pursuit: Pursuit, (x, snr): (&[f32], f32), found: &mut [f32]) {
    let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
    let (pairs, grid) = (t * t, arrivals * departures);
    let sizes = [
        2 * t,                // y
        2 * t,                // rest
        2 * t * arrivals,     // seen
        arrivals * pairs,     // received
        arrivals * pairs,     // weighted
        grid,                 // gamma
        pursuit.paths * grid, // moments
        2 * grid,             // matched
        2 * grid,             // means
        grid,                 // all
        2 * grid,             // before
        2 * t * arrivals,     // explained
        2 * t * arrivals,     // turned
        2 * t * t,            // inverse
        pairs,                // packed
        2 * t,                // z
        2 * m * arrivals,     // by_arrival
        2 * n * m,            // channel
        2 * (n + m),          // beams
        2 * m,                // left_of
        departures,           // towards
        arrivals + departures,
    ];
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(sizes.iter().sum()), 0.0);
        let mut rest = &mut scratch[..];
        let [
            y,
            rest_of_y,
            seen,
            received,
            weighted,
            gamma,
            moments,
            matched,
            means,
            all,
            before,
            explained,
            turned,
            inverse,
            packed,
            z,
            by_arrival,
            channel,
            beams,
            left_of,
            towards,
            marginals,
        ] = sizes.map(|size| take(&mut rest, size));
        read(tables, x, y, seen);
        outer_all(seen, received, t);
        let (whole, noise) = (y.iter().map(|y| y * y).sum::<f32>() + LEAST as f32, super::noise(f64::from(snr)));
        let certainty = super::certainty(noise) as f32;
        let (mut places, mut left) = (Places::new(tables, pursuit), 0.0);
        means.fill(0.0);
        all.fill(0.0);
        for _ in 0..pursuit.starts() {
            moments.fill(0.0);
            for at in 0..pursuit.steps() {
                let path = pursuit.path(at);
                others(moments, path, gamma);
                let (measured, known) = (Measured { seen, received, y }, (at > 0).then_some(&*gamma));
                let likely = &mut moments[path * grid..][..grid];
                step(
                    tables,
                    &measured,
                    (known, pursuit.noise(noise, at) as f32),
                    [weighted, packed, turned],
                    [inverse, z, matched, likely],
                );
                let shares = &mut before[..grid];
                exponents(matched, likely, certainty, shares, departures);
                if at == 0 {
                    places.begin(shares);
                }
                believe(likely, shares, towards);
                posterior(matched, likely, shares, departures);
            }
            rest_of_y.copy_from_slice(y);
            means_of(tables, (seen, inverse, gamma), (matched, rest_of_y), [z, explained, turned, before]);
            add_into(means, matched);
            add_into(all, gamma);
            add_into(all, &moments[pursuit.path(pursuit.steps() - 1) * grid..][..grid]);
            left += z.iter().map(|z| z * z).sum::<f32>();
        }
        let share = 1.0 / pursuit.starts() as f32;
        left *= share * (noise * noise) as f32 / whole;
        means.iter_mut().for_each(|mean| *mean *= share);
        channel_of(tables, means, by_arrival, channel);
        shares(all, marginals, arrivals);
        let rest = if tables.choices.is_empty() {
            strongest(tables, (channel, &marginals[arrivals..]), [beams, left_of, towards], found)
        } else {
            answers(tables, channel, beams, found)
        };
        rest[0] = left;
        let said = |p: &f32| 1.0 + LOGARITHM as f32 * (p + LEAST_PROBABILITY as f32).ln();
        rest[1..].iter_mut().zip(&*marginals).for_each(|(to, p)| *to = said(p));
    });
}

/// The second moments of all paths but one: the sum of their `moments` `[K, A, D]`.
pub(super) fn others(moments: &[f32], path: usize, gamma: &mut [f32]) {
    gamma.fill(0.0);
    moments.chunks_exact(gamma.len()).enumerate().filter(|(other, _)| *other != path).for_each(|(_, moments)| add_into(gamma, moments));
}

/// The shares of the directions of arrival, then of departure.
pub(super) fn shares(gamma: &[f32], marginals: &mut [f32], arrivals: usize) {
    let (arrives, leaves) = marginals.split_at_mut(arrivals);
    leaves.fill(0.0);
    for (gamma, arrives) in gamma.chunks_exact(leaves.len()).zip(&mut *arrives) {
        *arrives = gamma.iter().sum();
        leaves.iter_mut().zip(gamma).for_each(|(leaves, gamma)| *leaves += gamma);
    }
    let total = arrives.iter().sum::<f32>() + LEAST as f32;
    marginals.iter_mut().for_each(|p| *p /= total);
}

/// Where passes begin: the pairs of directions that alone explain most of what was measured, none of them near one before it.
pub(super) struct Places {
    found: [[usize; 2]; SparseChannel::PLACES],
    count: usize,
    most: usize,
    directions: [usize; 2],
    /// How far two directions are apart that are near, in steps of the grid.
    width: usize,
}

impl Places {
    pub(super) fn new(tables: &Tables, pursuit: Pursuit) -> Self {
        Self {
            found: [[0; 2]; SparseChannel::PLACES],
            count: 0,
            most: pursuit.places,
            directions: tables.directions(),
            width: pursuit.directions,
        }
    }

    fn is_near(&self, place: [usize; 2], pair: [usize; 2]) -> bool {
        [0, 1].into_iter().all(|end| near(place[end], pair[end], self.directions[end], self.width))
    }

    /// Finds the place of the next pass by the exponents `[A, D]` of its first step, and leaves only those near it. Where there are no places, the first
    /// path is looked for everywhere.
    pub(super) fn begin(&mut self, exponents: &mut [f32]) {
        if self.most == 0 {
            return;
        }
        let columns = self.directions[1];
        let mut best: Option<(f32, [usize; 2])> = None;
        for (r, row) in exponents.chunks_exact(columns).enumerate() {
            for (s, exponent) in row.iter().enumerate() {
                let taken = || self.found[..self.count].iter().any(|place| self.is_near(*place, [r, s]));
                if best.is_none_or(|(most, _)| *exponent > most) && !taken() {
                    best = Some((*exponent, [r, s]));
                }
            }
        }
        let (_, place) = best.expect("directions that are not near the places before");
        self.found[self.count] = place;
        self.count += 1;
        for (r, row) in exponents.chunks_exact_mut(columns).enumerate() {
            row.iter_mut().enumerate().filter(|(s, _)| !self.is_near(place, [r, *s])).for_each(|(_, exponent)| *exponent = NEVER as f32);
        }
    }
}

/// A row of measurements: what its beams see of the directions of arrival, `w_t^H a_r` `[A, 2, T]`, the same times its conjugate, `[A, T^2]`, and `y` `[2, T]`.
pub(super) struct Measured<'a> {
    pub(super) seen: &'a [f32],
    pub(super) received: &'a [f32],
    pub(super) y: &'a [f32],
}

/// A step up to its posterior, from the second moments of the other paths, if there are any, and the power of all that is noise to it: the inverse of the covariance
/// `[2, T, T]`, `z` of it and `y`, and `m` `[A, 2, D]` and `q` `[A, D]` of all directions. `weighted` `[A, T^2]`, `packed` `[T^2]` and `turned` `[A, 2, T]` are to
/// work in.
pub(super) fn step(
    tables: &Tables,
    measured: &Measured,
    (gamma, noise): (Option<&[f32]>, f32),
    [weighted, packed, turned]: [&mut [f32]; 3],
    [inverse, z, matched, q]: [&mut [f32]; 4],
) {
    let (departures, t) = (tables.directions()[1], tables.measurements());
    match gamma {
        Some(gamma) => weigh(tables, gamma, weighted),
        None => weighted.fill(0.0),
    }
    covariance(measured.received, weighted, packed, t);
    unpack(packed, noise, inverse, t);
    invert(inverse, z, t);
    solve(inverse, measured.y, z);
    match_all(tables, measured.seen, z, turned, matched);
    pack(inverse, packed, t);
    forms(tables, measured.received, (packed, weighted), q, departures);
}

/// The means of all paths, in place of those of the last step's, `[A, 2, D]`, with the second moments `gamma` of the others: what the last path explains is taken off
/// `y`, and what is left goes to the others. `z` becomes what is left times `inverse`, `explained` what the last path sends, and `before` `x^H z`.
pub(super) fn means_of(
    tables: &Tables,
    (seen, inverse, gamma): (&[f32], &[f32], &[f32]),
    (means, y): (&mut [f32], &mut [f32]),
    [z, explained, turned, before]: [&mut [f32]; 4],
) {
    sent(tables, means, explained);
    explain(seen, explained, y);
    solve(inverse, y, z);
    match_all(tables, seen, z, turned, before);
    add_weighted(gamma, before, means, tables.directions()[1]);
}

/// The channel in the mean, `[N, 2, M]`, from the means of all paths; `by_arrival` is to work in.
pub(super) fn channel_of(tables: &Tables, means: &[f32], by_arrival: &mut [f32], channel: &mut [f32]) {
    let ([n, m], departures) = (tables.antennas, tables.directions()[1]);
    product_alone(Operand::new(means, 2 * departures), Operand::new(&tables.leaving, 2 * m), by_arrival, 2 * m, Target::Fresh);
    combine(&tables.steering[0], by_arrival, channel, n);
}

/// `sum_s c_rs s s^H` of every direction of arrival, packed: `[A, T^2]` of `c` `[A, D]`.
pub(super) fn weigh(tables: &Tables, c: &[f32], weighted: &mut [f32]) {
    let (departures, pairs) = (tables.directions()[1], tables.differing().pow(2));
    by_beam(c.len() / departures * pairs, |told| {
        product_alone(Operand::new(c, departures), Operand::new(&tables.pairs, pairs), told, pairs, Target::Fresh);
        for (told, weighted) in told.chunks_exact(pairs).zip(weighted.chunks_exact_mut(tables.places.len())) {
            tables.places.iter().zip(weighted).for_each(|((place, by), weighted)| *weighted = by * told[*place]);
        }
    });
}

/// `x_rs^H A x_rs` of all directions, for `A` packed as [`pack`] does.
pub(super) fn forms(tables: &Tables, received: &[f32], (packed, weighted): (&[f32], &mut [f32]), q: &mut [f32], departures: usize) {
    let pairs = tables.differing().pow(2);
    spread(packed, received, weighted, tables.measurements());
    by_beam(q.len() / departures * pairs, |summed| {
        summed.fill(0.0);
        for (weighted, summed) in weighted.chunks_exact(tables.places.len()).zip(summed.chunks_exact_mut(pairs)) {
            tables.places.iter().zip(weighted).for_each(|((place, by), weighted)| summed[*place] += by * weighted);
        }
        product_alone(Operand::new(summed, pairs), Operand::new(&tables.pairs, pairs).t(), q, departures, Target::Fresh);
    });
}

/// `sum_s c_rs s_s[t]` of every direction of arrival, `[A, 2, T]` of `c` `[A, 2, D]`.
pub(super) fn sent(tables: &Tables, c: &[f32], turned: &mut [f32]) {
    let (columns, t, count) = (2 * tables.directions()[1], tables.measurements(), tables.differing());
    by_beam(c.len() / columns * 2 * count, |told| {
        product_alone(Operand::new(c, columns), Operand::new(&tables.sent, columns).t(), told, 2 * count, Target::Fresh);
        for (told, turned) in told.chunks_exact(count).zip(turned.chunks_exact_mut(t)) {
            tables.numbers.iter().zip(turned).for_each(|(number, turned)| *turned = told[*number]);
        }
    });
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

/// What was received, `y` `[2, T]`, made real by a turn of the beams, and what these beams see, `w_t^H a_r` `[A, 2, T]`.
pub(super) fn read(tables: &Tables, x: &[f32], y: &mut [f32], seen: &mut [f32]) {
    let (n, t) = (tables.antennas[0], y.len() / 2);
    y[t..].fill(0.0);
    for (i, (x, y)) in x.chunks_exact(2 * n).zip(&mut *y).enumerate() {
        let size = (x.iter().map(|x| x * x).sum::<f32>() + 1e-24).sqrt();
        for (a, seen) in tables.steering[0].chunks_exact(2 * n).zip(seen.chunks_exact_mut(2 * t)) {
            let [re, im] = inner(x, a);
            (seen[i], seen[t + i]) = (re / size, im / size);
        }
        *y = size / ANTENNA_SCALE;
    }
}

/// `x_rs^H z` of all directions, `[A, 2, D]`.
pub(super) fn match_all(tables: &Tables, seen: &[f32], z: &[f32], turned: &mut [f32], out: &mut [f32]) {
    let (t, columns) = (tables.measurements(), 2 * tables.directions()[1]);
    turn(seen, z, turned, t);
    let (count, rows) = (tables.differing(), turned.len() / (2 * t));
    by_beam(rows * 2 * count, |summed| {
        summed.fill(0.0);
        for (turned, summed) in turned.chunks_exact(t).zip(summed.chunks_exact_mut(count)) {
            tables.numbers.iter().zip(turned).for_each(|(number, turned)| summed[*number] += turned);
        }
        product_alone(Operand::new(summed, 2 * count), Operand::new(&tables.sent, columns), out, columns, Target::Fresh);
    });
}

/// `y -= w_t^H a_r c_rt`, summed over all directions of arrival; `c` is `[A, 2, T]`.
fn explain(seen: &[f32], c: &[f32], y: &mut [f32]) {
    let t = y.len() / 2;
    let (y_re, y_im) = y.split_at_mut(t);
    for (seen, c) in seen.chunks_exact(2 * t).zip(c.chunks_exact(2 * t)) {
        let ((a, b), (re, im)) = (seen.split_at(t), c.split_at(t));
        for i in 0..t {
            y_re[i] -= a[i] * re[i] - b[i] * im[i];
            y_im[i] -= a[i] * im[i] + b[i] * re[i];
        }
    }
}

kernel! {
    /// `conj(w_t^H a_r) z_t`.
    fn turn<S>(seen: &'a [f32], z: &'a [f32], out: &'a mut [f32], t: usize) {
        let (z_re, z_im) = z.split_at(t);
        for (seen, out) in seen.chunks_exact(2 * t).zip(out.chunks_exact_mut(2 * t)) {
            let ((a, b), (re, im)) = (seen.split_at(t), out.split_at_mut(t));
            for i in 0..t {
                re[i] = a[i] * z_re[i] + b[i] * z_im[i];
                im[i] = a[i] * z_im[i] - b[i] * z_re[i];
            }
        }
    }
}

kernel! {
    /// The exponents of the likelihoods of all pairs of directions, from `m` and `q`.
    pub(super) fn exponents<S>(matched: &'a [f32], q: &'a [f32], certainty: f32, out: &'a mut [f32], columns: usize) {
        for (matched, (q, out)) in matched.chunks_exact(2 * columns).zip(q.chunks_exact(columns).zip(out.chunks_exact_mut(columns))) {
            let (re, im) = matched.split_at(columns);
            for i in 0..columns {
                out[i] = certainty * (re[i] * re[i] + im[i] * im[i]) * variance(q[i]);
            }
        }
    }
}

kernel! {
    /// How likely a path is to lie in each pair of directions, from `q` and in place of the exponents. `lanes` `[D]` is to work in.
    pub(super) fn believe<S>(q: &'a [f32], shares: &'a mut [f32], lanes: &'a mut [f32]) {
        let columns = lanes.len();
        lanes.fill(0.0);
        for p in shares.chunks_exact(columns) {
            for i in 0..columns {
                lanes[i] = if p[i] > lanes[i] { p[i] } else { lanes[i] };
            }
        }
        let most = lanes.iter().fold(0.0f32, |most, x| most.max(*x));
        lanes.fill(0.0);
        for (q, p) in q.chunks_exact(columns).zip(shares.chunks_exact_mut(columns)) {
            for i in 0..columns {
                p[i] = exp::<S>(p[i] - most) * variance(q[i]).sqrt();
                lanes[i] += p[i];
            }
        }
        let share = 1.0 / lanes.iter().sum::<f32>();
        shares.iter_mut().for_each(|p| *p *= share);
    }
}

/// The variance of a path's gain that measurements leave.
#[inline(always)]
pub(super) fn variance(q: f32) -> f32 {
    1.0 / (1.0 / GAIN as f32 + q.max(0.0))
}

kernel! {
    /// The posterior of one path: from `m`, `q` and the shares to its means `p h` and second moments.
    pub(super) fn posterior<S>(matched: &'a mut [f32], q: &'a mut [f32], shares: &'a [f32], columns: usize) {
        for (matched, (q, p)) in matched.chunks_exact_mut(2 * columns).zip(q.chunks_exact_mut(columns).zip(shares.chunks_exact(columns))) {
            let (re, im) = matched.split_at_mut(columns);
            for i in 0..columns {
                let variance = variance(q[i]);
                let (a, b) = (re[i] * variance, im[i] * variance);
                q[i] = p[i] * (a * a + b * b + variance);
                (re[i], im[i]) = (p[i] * a, p[i] * b);
            }
        }
    }
}

kernel! {
    /// `out += gamma x`, of complex `x` and real `gamma`.
    fn add_weighted<S>(gamma: &'a [f32], x: &'a [f32], out: &'a mut [f32], columns: usize) {
        for ((gamma, x), out) in gamma.chunks_exact(columns).zip(x.chunks_exact(2 * columns)).zip(out.chunks_exact_mut(2 * columns)) {
            let ((re, im), (out_re, out_im)) = (x.split_at(columns), out.split_at_mut(columns));
            for i in 0..columns {
                (out_re[i], out_im[i]) = (out_re[i] + gamma[i] * re[i], out_im[i] + gamma[i] * im[i]);
            }
        }
    }
}

kernel! {
    /// The channel `[N, 2, M]`: steering vectors of the receiver `[A, N, 2]` times what arrives from their directions, `[A, 2, M]`.
    fn combine<S>(steering: &'a [f32], by_arrival: &'a [f32], channel: &'a mut [f32], n: usize) {
        channel.fill(0.0);
        let width = channel.len() / n;
        for (a, row) in steering.chunks_exact(2 * n).zip(by_arrival.chunks_exact(width)) {
            let (g_re, g_im) = row.split_at(width / 2);
            for (a, h) in a.chunks_exact(2).zip(channel.chunks_exact_mut(width)) {
                let (re, im) = h.split_at_mut(width / 2);
                for j in 0..width / 2 {
                    re[j] += a[0] * g_re[j] - a[1] * g_im[j];
                    im[j] += a[0] * g_im[j] + a[1] * g_re[j];
                }
            }
        }
    }
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
