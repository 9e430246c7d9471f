//! The gradients of one sequence of the selective scan.
//!
//! For every group of channels (one vector) and every state, the recurrence runs forwards once more and then backwards. All
//! frames of one state are done before the next state begins: what a group works on is then a few lines of `steps` vectors,
//! which stay in the first-level cache (800 to 235 us for 60 frames of 512 channels by 16 states against all states of a
//! frame at once, whose history did not fit). Sums over channels are kept by lane and added up at the end.

use super::forward::{ScanInput, ScanShape, exp2, load, store};
use crate::ops::simd;
use crate::ops::{OutPointer, Rows};
use pulp::{Simd, WithSimd};

/// Lanes of the widest vector.
const MOST: usize = 16;
/// States in hand at once: a state alone waits for its own sum from frame to frame.
const TOGETHER: usize = 2;

/// What the backward of one sequence reads and writes.
pub(crate) struct ScanBackward<'a> {
    pub shape: ScanShape,
    /// One per step.
    pub resets: &'a [bool],
    pub x: ScanInput<'a>,
    /// Gradient of the output, `[steps, width]`.
    pub grad: Rows<'a>,
    /// State before the sequence, `[states, width]`.
    pub before: &'a [f32],
    /// Gradient of `u`, `[steps, width]`.
    pub du: OutPointer,
    /// Gradient of the raw step size, `[steps, width]`.
    pub ddt: OutPointer,
    /// Gradients of B and, next to them, of C: `[steps, 2 states]`.
    pub dbc: OutPointer,
    /// Gradients of A (not scaled) and of the skip, `[states + 1, width]`.
    pub dparams: &'a mut [f32],
    /// Reused from sequence to sequence.
    pub scratch: &'a mut Vec<f32>,
}

impl ScanBackward<'_> {
    /// Writes all gradients.
    ///
    /// # Safety
    /// `du`, `ddt` and `dbc` point at rows of the stated sizes that nobody else touches meanwhile.
    pub unsafe fn run(self) {
        let ScanShape { steps, width, states } = self.shape;
        assert!(self.resets.len() == steps && self.before.len() >= states * width && self.dparams.len() >= (states + 1) * width);
        pulp::Arch::new().dispatch(self);
    }
}

/// One value per frame and lane, for every quantity of a group; the whole scratch of a sequence.
struct Lines<'a, V> {
    dt: &'a mut [V],
    u: &'a mut [V],
    /// `dt u`.
    du: &'a mut [V],
    grad: &'a mut [V],
    /// Gradient of `dt A`, summed over states.
    through: &'a mut [V],
    /// Gradient of `dt u`, summed over states.
    input: &'a mut [V],
    /// Of the states in hand, `[steps, TOGETHER]`.
    decay: &'a mut [V],
    history: &'a mut [V],
    /// Gradients of B and C by lane, `[states, steps]`.
    db: &'a mut [V],
    dc: &'a mut [V],
    /// B and C, `[states, steps]`.
    b: &'a [f32],
    c: &'a [f32],
}

impl WithSimd for ScanBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let ScanShape { steps, width, states } = self.shape;
        let lanes = S::F32_LANES;
        let mut scratch = std::mem::take(self.scratch);
        let lines = 6 + 2 * TOGETHER;
        let (vectors, all) = (steps * lanes * (lines + 2 * states), steps * (lanes * (lines + 2 * states) + 2 * states));
        if scratch.len() < all {
            scratch.resize(all, 0.0);
        }
        let (vectors, selection) = scratch[..all].split_at_mut(vectors);
        let (b, c) = selection.split_at_mut(steps * states);
        for t in 0..steps {
            for n in 0..states {
                (b[n * steps + t], c[n * steps + t]) = (self.x.b.row(t)[n], self.x.c.row(t)[n]);
            }
        }
        let (lines, sums) = S::as_mut_simd_f32s(vectors).0.split_at_mut(lines * steps);
        sums.fill(simd.splat_f32s(0.0));
        let (db, dc) = sums.split_at_mut(states * steps);
        let (lines, histories) = lines.split_at_mut(6 * steps);
        let (decay, history) = histories.split_at_mut(TOGETHER * steps);
        let mut parts = lines.chunks_exact_mut(steps);
        let mut line = || parts.next().unwrap_or_default();
        let (dt, u, du, grad, through, input) = (line(), line(), line(), line(), line(), line());
        let mut l = Lines { dt, u, du, grad, through, input, decay, history, db, dc, b, c };
        for d in (0..width).step_by(lanes) {
            let count = lanes.min(width - d);
            // SAFETY: the channels d..d + count exist; whole groups get a constant count.
            unsafe { if count == lanes { self.group(simd, d, lanes, &mut l) } else { self.group(simd, d, count, &mut l) } };
        }
        for t in 0..steps {
            for n in 0..states {
                // SAFETY: row t of `dbc` holds 2 * states values (the caller's promise).
                unsafe {
                    let row = self.dbc.data.add(t * self.dbc.stride);
                    *row.add(n) = simd.reduce_sum_f32s(l.db[n * steps + t]);
                    *row.add(states + n) = simd.reduce_sum_f32s(l.dc[n * steps + t]);
                }
            }
        }
        *self.scratch = scratch;
    }
}

impl ScanBackward<'_> {
    /// The `count` channels from `d` on, at most one vector.
    #[inline(always)]
    unsafe fn group<S: Simd>(&mut self, simd: S, d: usize, count: usize, l: &mut Lines<S::f32s>) {
        let ScanShape { width, states, .. } = self.shape;
        // SAFETY: the channels lie inside their rows.
        unsafe {
            let dskip = self.read(simd, d, count, l);
            let mut n = 0;
            while n + TOGETHER <= states {
                self.states::<S, TOGETHER>(simd, n, (d, count), l);
                n += TOGETHER;
            }
            (n..states).for_each(|n| self.states::<S, 1>(simd, n, (d, count), l));
            store(simd, self.dparams[states * width + d..].as_mut_ptr(), count, dskip);
            self.write(simd, d, count, l);
        }
    }

    /// Fills the lines of a group; returns the gradient of the skip.
    #[inline(always)]
    unsafe fn read<S: Simd>(&self, simd: S, d: usize, count: usize, l: &mut Lines<S::f32s>) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        let mut dskip = zero;
        for t in 0..self.shape.steps {
            let mut line = [0.0f32; MOST];
            line[..count].copy_from_slice(&self.x.dt.row(t)[d..d + count]);
            line.iter_mut().for_each(|x| *x = simd::softplus::<S>(*x));
            // SAFETY: the channels lie inside their rows, a vector in `line`.
            unsafe {
                l.dt[t] = load(simd, line.as_ptr(), S::F32_LANES);
                l.u[t] = load(simd, self.x.u.row(t)[d..].as_ptr(), count);
                l.grad[t] = load(simd, self.grad.row(t)[d..].as_ptr(), count);
            }
            l.du[t] = simd.mul_f32s(l.dt[t], l.u[t]);
            dskip = simd.mul_add_e_f32s(l.grad[t], l.u[t], dskip);
            (l.through[t], l.input[t]) = (zero, zero);
        }
        dskip
    }

    /// The `P` states from `n` on, forwards and backwards in time, with the gradients of their A.
    ///
    /// # Safety
    /// The channels `d..d + count` exist.
    #[inline(always)]
    unsafe fn states<S: Simd, const P: usize>(&mut self, simd: S, n: usize, (d, count): (usize, usize), l: &mut Lines<S::f32s>) {
        let (steps, width, zero) = (self.shape.steps, self.shape.width, simd.splat_f32s(0.0));
        let at = |p: usize| (n + p) * width + d;
        // SAFETY: the caller's promise.
        let a: [_; P] = std::array::from_fn(|p| unsafe { load(simd, self.x.a[at(p)..].as_ptr(), count) });
        // SAFETY: as above.
        let before: [_; P] = std::array::from_fn(|p| unsafe { load(simd, self.before[at(p)..].as_ptr(), count) });
        let rows = |p: usize| (n + p) * steps..(n + p + 1) * steps;
        let (b, c): ([&[f32]; P], [&[f32]; P]) = (std::array::from_fn(|p| &l.b[rows(p)]), std::array::from_fn(|p| &l.c[rows(p)]));
        let (mut all_db, mut all_dc) = (l.db[n * steps..].chunks_exact_mut(steps), l.dc[n * steps..].chunks_exact_mut(steps));
        let db: [&mut [S::f32s]; P] = std::array::from_fn(|_| all_db.next().unwrap_or_default());
        let dc: [&mut [S::f32s]; P] = std::array::from_fn(|_| all_dc.next().unwrap_or_default());
        let (resets, dt, du, grad) = (&self.resets[..steps], &l.dt[..steps], &l.du[..steps], &l.grad[..steps]);
        let (decay, history) = (&mut l.decay.as_chunks_mut::<P>().0[..steps], &mut l.history.as_chunks_mut::<P>().0[..steps]);
        let (through, input) = (&mut l.through[..steps], &mut l.input[..steps]);
        let mut h = before;
        for t in 0..steps {
            let mut exponents = a;
            for exponent in &mut exponents {
                *exponent = simd.mul_f32s(dt[t], *exponent);
            }
            decay[t] = exp2(simd, exponents);
            for p in 0..P {
                let previous = if resets[t] { zero } else { h[p] };
                h[p] = simd.mul_add_e_f32s(decay[t][p], previous, simd.mul_f32s(du[t], simd.splat_f32s(b[p][t])));
                history[t][p] = h[p];
            }
        }
        let (mut carry, mut da) = ([zero; P], [zero; P]);
        for t in (0..steps).rev() {
            let (grad, dt, du, reset) = (grad[t], dt[t], du[t], resets[t]);
            let (mut to_input, mut to_through) = (input[t], through[t]);
            for p in 0..P {
                let gh = simd.mul_add_e_f32s(grad, simd.splat_f32s(c[p][t]), carry[p]);
                dc[p][t] = simd.mul_add_e_f32s(grad, h[p], dc[p][t]);
                db[p][t] = simd.mul_add_e_f32s(gh, du, db[p][t]);
                to_input = simd.mul_add_e_f32s(gh, simd.splat_f32s(b[p][t]), to_input);
                h[p] = if t > 0 { history[t - 1][p] } else { before[p] };
                let through = simd.mul_f32s(gh, decay[t][p]);
                // Behind a reset neither the state nor its gradient passes.
                let exponent = if reset { zero } else { simd.mul_f32s(through, h[p]) };
                carry[p] = if reset { zero } else { through };
                da[p] = simd.mul_add_e_f32s(exponent, dt, da[p]);
                to_through = simd.mul_add_e_f32s(exponent, a[p], to_through);
            }
            (input[t], through[t]) = (to_input, to_through);
        }
        for (p, da) in da.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { store(simd, self.dparams[at(p)..].as_mut_ptr(), count, da) };
        }
    }

    /// Writes the gradients of a group's inputs.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, simd: S, d: usize, count: usize, l: &Lines<S::f32s>) {
        // SAFETY: the channels lie inside their rows; the outputs are the caller's promise.
        unsafe {
            let skip = load(simd, self.x.skip[d..].as_ptr(), count);
            for t in 0..self.shape.steps {
                let mut line = [0.0f32; MOST];
                line[..count].copy_from_slice(&self.x.dt.row(t)[d..d + count]);
                line.iter_mut().for_each(|x| *x = simd::sigmoid::<S>(*x));
                // A is scaled by log2(e): one factor ln(2) brings its product back.
                let ln_2 = simd.splat_f32s(std::f32::consts::LN_2);
                let ddt = simd.mul_add_e_f32s(l.through[t], ln_2, simd.mul_f32s(l.u[t], l.input[t]));
                let ddt = simd.mul_f32s(ddt, load(simd, line.as_ptr(), S::F32_LANES));
                store(simd, self.ddt.data.add(t * self.ddt.stride + d), count, ddt);
                let du = simd.mul_add_e_f32s(l.dt[t], l.input[t], simd.mul_f32s(l.grad[t], skip));
                store(simd, self.du.data.add(t * self.du.stride + d), count, du);
            }
        }
    }
}
