//! The passes of an estimate on the CPU, row by row, from measurements to the channel: all steps from every place that it begins at, and the mean of what is found.
//! A gradient goes back through the same passes, which then keep every step for it.
//!
//! Complex numbers have all real parts in front of the imaginary ones; matrices of measurements are packed as in `hermitian` where that is said.

use super::hermitian::{covariance, invert, outer_all, pack, solve, spread, unpack};
use super::{GAIN, LEAST, NEVER, Pursuit, SparseChannel, Tables, near};
use crate::families::beam::complex::inner;
use crate::families::beam::user::ANTENNA_SCALE;
use crate::ops::simd::{counted, exp, kernel};
use crate::ops::{Operand, Products, Target, add_into};
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Values by the beams that differ: sums over measurements that were sent with the same one, or values that these have in common.
    static BY_BEAM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with so many numbers to work in, of any value.
pub(super) fn with_scratch(count: usize, f: impl FnOnce(&mut [f32])) {
    SCRATCH.with_borrow_mut(|numbers| with_numbers(numbers, count, f));
}

fn by_beam(count: usize, f: impl FnOnce(&mut [f32])) {
    BY_BEAM.with_borrow_mut(|numbers| with_numbers(numbers, count, f));
}

fn with_numbers(numbers: &mut Vec<f32>, count: usize, f: impl FnOnce(&mut [f32])) {
    numbers.resize(numbers.len().max(count), 0.0);
    f(&mut numbers[..count]);
}

/// Takes so many numbers each from the front of `rest`.
pub(super) fn take<'a, const COUNT: usize>(rest: &mut &'a mut [f32], sizes: [usize; COUNT]) -> [&'a mut [f32]; COUNT] {
    sizes.map(|size| {
        let (taken, behind) = std::mem::take(rest).split_at_mut(size);
        *rest = behind;
        taken
    })
}

/// A step: what it compared, and how likely its path is to lie in each pair of directions.
pub(super) struct Step<'a> {
    /// Second moments of the other paths, `[A, D]`.
    pub(super) gamma: &'a mut [f32],
    /// The inverse of the covariance, `[2, T, T]`, and `z`, it times `y`.
    pub(super) inverse: &'a mut [f32],
    pub(super) z: &'a mut [f32],
    /// `m` `[A, 2, D]` and `q` `[A, D]`.
    pub(super) matched: &'a mut [f32],
    pub(super) q: &'a mut [f32],
    /// How likely the path is to lie in each pair of directions; before that the exponents of likelihoods.
    pub(super) shares: &'a mut [f32],
}

impl<'a> Step<'a> {
    fn sizes(tables: &Tables) -> [usize; 6] {
        let (grid, t) = (tables.grid(), tables.measurements());
        [grid, 2 * t * t, 2 * t, 2 * grid, grid, grid]
    }

    fn size(tables: &Tables) -> usize {
        Self::sizes(tables).iter().sum()
    }

    fn new(tables: &Tables, mut memory: &'a mut [f32]) -> Self {
        let [gamma, inverse, z, matched, q, shares] = take(&mut memory, Self::sizes(tables));
        Self { gamma, inverse, z, matched, q, shares }
    }

    /// Step `at` of a trace, or its only one where no more is kept.
    pub(super) fn of(tables: &Tables, steps: &'a mut [f32], at: usize) -> Self {
        let size = Self::size(tables);
        let kept = steps.len() / size;
        Self::new(tables, &mut steps[at.min(kept - 1) * size..][..size])
    }

    fn copy_from(&mut self, other: &Self) {
        self.gamma.copy_from_slice(other.gamma);
        self.inverse.copy_from_slice(other.inverse);
        self.z.copy_from_slice(other.z);
        self.matched.copy_from_slice(other.matched);
        self.q.copy_from_slice(other.q);
        self.shares.copy_from_slice(other.shares);
    }

    /// Compares the measurements with all pairs of directions. `noise` is the power that this step takes for noise, and `scratch.weighted` is [`weigh`] of `gamma`.
    fn compare(&mut self, tables: &Tables, measured: &Measured, noise: f32, scratch: &mut Scratch) {
        let (departures, t) = (tables.directions()[1], tables.measurements());
        covariance(measured.received, scratch.weighted, scratch.packed, t);
        unpack(scratch.packed, noise, self.inverse, t);
        invert(self.inverse, self.z, t);
        solve(self.inverse, measured.y, self.z);
        match_all(tables, measured.seen, self.z, scratch.turned, self.matched);
        pack(self.inverse, scratch.packed, t);
        forms(tables, measured.received, (scratch.packed, scratch.weighted), self.q, departures);
        exponents(self.matched, self.q, measured.certainty, self.shares, departures);
    }
}

/// What is kept of a pass.
pub(super) struct Trace<'a> {
    /// Every step, one behind the other, or memory for one.
    pub(super) steps: &'a mut [f32],
    /// What the last path sends, `[A, 2, T]`.
    pub(super) explained: &'a mut [f32],
    /// What the last path leaves of the measurements, times the inverse of the last covariance, and `x^H` times that, `[A, 2, D]`.
    pub(super) z: &'a mut [f32],
    pub(super) before: &'a mut [f32],
}

impl Trace<'_> {
    fn sizes(tables: &Tables, steps: usize) -> [usize; 4] {
        let ([arrivals, _], t) = (tables.directions(), tables.measurements());
        [steps * Step::size(tables), 2 * t * arrivals, 2 * t, 2 * tables.grid()]
    }
}

/// How much of the passes is kept.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    passes: usize,
    steps: usize,
}

impl Kept {
    /// Nothing but the step at hand.
    pub(super) const NONE: Self = Self { passes: 1, steps: 1 };

    /// All steps of all passes.
    pub(super) fn all(pursuit: Pursuit) -> Self {
        Self { passes: pursuit.starts(), steps: pursuit.steps() }
    }
}

/// What is kept of all passes.
pub(super) struct Traces<'a> {
    kept: Kept,
    memory: &'a mut [f32],
}

impl Traces<'_> {
    fn size(tables: &Tables, kept: Kept) -> usize {
        kept.passes * Trace::sizes(tables, kept.steps).iter().sum::<usize>()
    }

    /// The trace of a pass, or the only one where no more is kept.
    pub(super) fn of(&mut self, tables: &Tables, pass: usize) -> Trace<'_> {
        let sizes = Trace::sizes(tables, self.kept.steps);
        let size = sizes.iter().sum();
        let mut memory = &mut self.memory[pass.min(self.kept.passes - 1) * size..][..size];
        let [steps, explained, z, before] = take(&mut memory, sizes);
        Trace { steps, explained, z, before }
    }
}

/// A row of measurements.
pub(super) struct Measured<'a> {
    /// What its beams see of the directions of arrival, `w_t^H a_r` `[A, 2, T]`, and the same times its conjugate, packed, `[A, T^2]`.
    pub(super) seen: &'a mut [f32],
    pub(super) received: &'a mut [f32],
    /// `[2, T]`.
    pub(super) y: &'a mut [f32],
    /// The power that is taken for noise, and the exponent of likelihoods.
    pub(super) noise: f64,
    pub(super) certainty: f32,
}

/// Memory for intermediate results.
pub(super) struct Scratch<'a> {
    /// `[A, T^2]` and `[T^2]`, packed.
    pub(super) weighted: &'a mut [f32],
    pub(super) packed: &'a mut [f32],
    /// `[A, 2, T]`.
    pub(super) turned: &'a mut [f32],
    /// `[D]`.
    pub(super) lanes: &'a mut [f32],
}

/// The estimate of a channel, and what it came from.
pub(super) struct Estimate<'a> {
    pub(super) measured: Measured<'a>,
    pub(super) scratch: Scratch<'a>,
    /// Second moments of every path of the last pass, `[K, A, D]`.
    pub(super) moments: &'a mut [f32],
    /// The channel in the mean, `[N, 2, M]`, and the part of it that arrives from each direction, `[A, 2, M]`.
    pub(super) channel: &'a mut [f32],
    pub(super) by_arrival: &'a mut [f32],
    /// Second moments of all paths, `[A, D]`, in the mean over passes, and the shares that each direction of arrival and of departure has in them.
    pub(super) all: &'a mut [f32],
    pub(super) shares: &'a mut [f32],
    /// The share of the measurements' power that is left, in the mean over passes.
    pub(super) left: f32,
    /// The first step of all passes.
    first: Step<'a>,
    /// Means of the paths, `[A, 2, D]`: of one pass, and of all.
    own: &'a mut [f32],
    means: &'a mut [f32],
    /// What a pass leaves of the measurements, `[2, T]`.
    rest: &'a mut [f32],
    pub(super) traces: Traces<'a>,
}

impl<'a> Estimate<'a> {
    fn sizes(tables: &Tables, pursuit: Pursuit, kept: Kept) -> [usize; 17] {
        let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
        let (pairs, grid) = (t * t, arrivals * departures);
        [
            2 * t * arrivals,      // seen
            arrivals * pairs,      // received
            2 * t,                 // y
            arrivals * pairs,      // weighted
            pairs,                 // packed
            2 * t * arrivals,      // turned
            departures,            // lanes
            pursuit.paths * grid,  // moments
            2 * n * m,             // channel
            2 * m * arrivals,      // by_arrival
            grid,                  // all
            arrivals + departures, // shares
            Step::size(tables),    // first
            2 * grid,              // own
            2 * grid,              // means
            2 * t,                 // rest
            Traces::size(tables, kept),
        ]
    }

    /// Numbers that it takes.
    pub(super) fn size(tables: &Tables, pursuit: Pursuit, kept: Kept) -> usize {
        Self::sizes(tables, pursuit, kept).iter().sum()
    }

    /// Estimates from the measurements `x` at an SNR in dB over 30, in memory from the front of `memory`.
    pub(super) fn new(tables: &Tables, pursuit: Pursuit, kept: Kept, (x, snr): (&[f32], f32), memory: &mut &'a mut [f32]) -> Self {
        let sizes = Self::sizes(tables, pursuit, kept);
        let [
            seen,
            received,
            y,
            weighted,
            packed,
            turned,
            lanes,
            moments,
            channel,
            by_arrival,
            all,
            shares,
            first,
            own,
            means,
            rest,
            traces,
        ] = take(memory, sizes);
        read(tables, x, y, seen);
        outer_all(seen, received, tables.measurements());
        let (noise, power) = (super::noise(f64::from(snr)), f64::from(power(y)) / tables.measurements() as f64);
        let measured = Measured { seen, received, y, noise: pursuit.assumed(noise, power), certainty: super::certainty(noise) as f32 };
        let scratch = Scratch { weighted, packed, turned, lanes };
        let first = Step::new(tables, first);
        let (left, traces) = (0.0, Traces { kept, memory: traces });
        let mut estimate = Self { measured, scratch, moments, channel, by_arrival, all, shares, left, first, own, means, rest, traces };
        estimate.run(tables, pursuit);
        estimate
    }

    fn run(&mut self, tables: &Tables, pursuit: Pursuit) {
        let Self { measured, scratch, moments, all, left, first, own, means, rest, traces, .. } = self;
        let (grid, departures, share) = (tables.grid(), tables.directions()[1], 1.0 / pursuit.starts() as f32);
        first.gamma.fill(0.0);
        scratch.weighted.fill(0.0);
        first.compare(tables, measured, pursuit.noise(measured.noise, 0) as f32, scratch);
        let mut places = Places::new(tables, pursuit);
        means.fill(0.0);
        all.fill(0.0);
        for pass in 0..pursuit.starts() {
            let Trace { steps, explained, z, before } = traces.of(tables, pass);
            moments.fill(0.0);
            for at in 0..pursuit.steps() {
                let path = pursuit.path(at);
                let mut now = Step::of(tables, steps, at);
                if at == 0 {
                    now.copy_from(first);
                    places.begin(now.shares);
                } else {
                    others(moments, path, now.gamma);
                    weigh(tables, now.gamma, scratch.weighted);
                    now.compare(tables, measured, pursuit.noise(measured.noise, at) as f32, scratch);
                }
                believe(now.q, now.shares, scratch.lanes);
                let likely = &mut moments[path * grid..][..grid];
                own.copy_from_slice(now.matched);
                likely.copy_from_slice(now.q);
                posterior(own, likely, now.shares, departures);
            }
            // What the last path explains is taken off the measurements, and what is left goes to the others.
            let last = Step::of(tables, steps, pursuit.steps() - 1);
            sent(tables, own, explained);
            rest.copy_from_slice(measured.y);
            explain(measured.seen, explained, rest);
            solve(last.inverse, rest, z);
            match_all(tables, measured.seen, z, scratch.turned, before);
            add_weighted(last.gamma, before, own, departures);
            add_into(means, own);
            add_into(all, last.gamma);
            add_into(all, &moments[pursuit.path(pursuit.steps() - 1) * grid..][..grid]);
            *left += power(z);
        }
        let whole = power(measured.y) + LEAST as f32;
        *left *= share * (measured.noise * measured.noise) as f32 / whole;
        means.iter_mut().chain(&mut **all).for_each(|x| *x *= share);
        let ([n, m], width) = (tables.antennas, 2 * departures);
        Products::F32.product_alone(
            Operand::new(means, width),
            Operand::new(&tables.leaving, 2 * m),
            self.by_arrival,
            2 * m,
            Target::Fresh,
        );
        combine(&tables.steering[0], self.by_arrival, self.channel, n);
        shares(all, self.shares, tables.directions()[0]);
    }
}

/// The sum of all squares.
fn power(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

/// The second moments of all paths but one: the sum of their `moments` `[K, A, D]`.
fn others(moments: &[f32], path: usize, gamma: &mut [f32]) {
    gamma.fill(0.0);
    moments.chunks_exact(gamma.len()).enumerate().filter(|(other, _)| *other != path).for_each(|(_, moments)| add_into(gamma, moments));
}

/// The shares of the directions of arrival, then of departure.
fn shares(gamma: &[f32], marginals: &mut [f32], arrivals: usize) {
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
struct Places {
    found: [[usize; 2]; SparseChannel::PLACES],
    count: usize,
    most: usize,
    directions: [usize; 2],
    /// How far two directions are apart that are near, in steps of the grid.
    width: usize,
}

impl Places {
    fn new(tables: &Tables, pursuit: Pursuit) -> Self {
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
    fn begin(&mut self, exponents: &mut [f32]) {
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

/// `sum_s c_rs s s^H` of every direction of arrival, packed: `[A, T^2]` of `c` `[A, D]`.
pub(super) fn weigh(tables: &Tables, c: &[f32], weighted: &mut [f32]) {
    let (departures, pairs) = (tables.directions()[1], tables.differing().pow(2));
    by_beam(c.len() / departures * pairs, |told| {
        Products::F32.product_alone(Operand::new(c, departures), Operand::new(&tables.pairs, pairs), told, pairs, Target::Fresh);
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
        Products::F32.product_alone(Operand::new(summed, pairs), Operand::new(&tables.pairs, pairs).t(), q, departures, Target::Fresh);
    });
}

/// `sum_s c_rs s_s[t]` of every direction of arrival, `[A, 2, T]` of `c` `[A, 2, D]`.
pub(super) fn sent(tables: &Tables, c: &[f32], turned: &mut [f32]) {
    let (columns, t, count) = (2 * tables.directions()[1], tables.measurements(), tables.differing());
    by_beam(c.len() / columns * 2 * count, |told| {
        Products::F32.product_alone(Operand::new(c, columns), Operand::new(&tables.sent, columns).t(), told, 2 * count, Target::Fresh);
        for (told, turned) in told.chunks_exact(count).zip(turned.chunks_exact_mut(t)) {
            tables.numbers.iter().zip(turned).for_each(|(number, turned)| *turned = told[*number]);
        }
    });
}

/// What was received, `y` `[2, T]`, made real by a turn of the beams, and what these beams see, `w_t^H a_r` `[A, 2, T]`.
fn read(tables: &Tables, x: &[f32], y: &mut [f32], seen: &mut [f32]) {
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
        Products::F32.product_alone(Operand::new(summed, 2 * count), Operand::new(&tables.sent, columns), out, columns, Target::Fresh);
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
    fn exponents<S>(matched: &'a [f32], q: &'a [f32], certainty: f32, out: &'a mut [f32], columns: usize) {
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
    fn believe<S>(q: &'a [f32], shares: &'a mut [f32], lanes: &'a mut [f32]) {
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
                // Products of what is next to nothing would be subnormal numbers, which Intel's processors multiply slowly.
                p[i] = counted(exp::<S>(p[i] - most) * variance(q[i]).sqrt());
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
    fn posterior<S>(matched: &'a mut [f32], q: &'a mut [f32], shares: &'a [f32], columns: usize) {
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
