//! The selective scan on a tape, one step of a few dozen rows at a time.

use super::SelectiveScan;
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::{Derivative, TapeBuilder, TapeStep, host, operands};
use crate::ops::add_into;
use crate::ops::simd::{self, kernel};
use std::ops::Range;

/// Selective scan: `h = exp(s A) h + s u B`, `y = C h + D u` with `s = softplus(dt)`.
pub(super) struct Scan {
    u: Slot,
    dt: Slot,
    /// B and C side by side.
    bc: Slot,
    out: Slot,
    /// The states of every step, `[N, width]`.
    kept: Slot,
    /// A `[N, width]`, negative, and D `[width]`.
    a: Vec<f32>,
    skip: Vec<f32>,
    place: Range<usize>,
    skip_place: Range<usize>,
}

impl Scan {
    pub fn new(op: &SelectiveScan, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let ([u, dt, bc], out) = (operands("selective-scan", &wires.x)?, wires.out[0]);
        let (place, skip_place) = (tape.sum(&op.a_log), tape.sum(&op.skip));
        let kept = tape.matrix(bc.width / 2 * out.width);
        [u, dt, bc, kept].into_iter().for_each(|slot| tape.keep_values(slot));
        // The state's gradient.
        tape.carry(kept.width);
        let a = host(&op.a_log.t()?.contiguous()?)?.into_iter().map(|log| -log.exp()).collect();
        Ok(Self { u, dt, bc, out, kept, a, skip: host(&op.skip)?, place, skip_place })
    }
}

impl Derivative for Scan {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.out, |step, out| {
            step.with_values_before(self.kept, |step, before, now| {
                match before {
                    None => now.fill(0.0),
                    Some(before) => now.copy_from_slice(before),
                }
                let [u, dt, bc] = [self.u, self.dt, self.bc].map(|slot| step.value(slot));
                for (r, (out, h)) in out.chunks_exact_mut(self.out.width).zip(now.chunks_exact_mut(self.kept.width)).enumerate() {
                    scan_row(u.row(r), dt.row(r), bc.row(r), (&self.a, &self.skip), h, out);
                }
            });
        });
    }

    /// What is carried is the gradient of the states behind the step, and becomes that of the states before it.
    fn backward(&self, step: &mut TapeStep) {
        let (width, states) = (self.out.width, self.bc.width / 2);
        let zeros = vec![0.0; self.kept.width];
        let mut grads = [self.u.width, self.dt.width, self.bc.width].map(|width| vec![0.0; step.rows() * width]);
        let (mut da, mut dskip) = (vec![0.0; self.a.len()], vec![0.0; width]);
        step.with_grads(self.out, |step, dy, _| {
            step.with_carry(|step, carry| {
                let [u, dt, bc, kept] = [self.u, self.dt, self.bc, self.kept].map(|slot| step.value(slot));
                let before = (step.number() > 0).then(|| step.value_before(self.kept, 1));
                let [du, ddt, dbc] = &mut grads;
                let outs = du.chunks_exact_mut(width).zip(ddt.chunks_exact_mut(width)).zip(dbc.chunks_exact_mut(2 * states));
                let rows = dy.chunks_exact(width).zip(carry.chunks_exact_mut(self.kept.width));
                for (r, ((dy, dh), ((du, ddt), dbc))) in rows.zip(outs).enumerate() {
                    let before = before.as_ref().map_or(zeros.as_slice(), |rows| rows.row(r));
                    let x = (u.row(r), dt.row(r), bc.row(r));
                    scan_row_backward(x, (&self.a, &self.skip), [before, kept.row(r)], dy, dh, (du, ddt, dbc), (&mut da, &mut dskip));
                }
            });
        });
        // A = -exp(log): its derivative is A itself; the parameter lies as [width, N].
        let to = &mut step.sums()[self.place.clone()];
        for (n, (da, a)) in da.chunks_exact(width).zip(self.a.chunks_exact(width)).enumerate() {
            da.iter().zip(a).enumerate().for_each(|(w, (da, a))| to[w * states + n] += da * a);
        }
        add_into(&mut step.sums()[self.skip_place.clone()], &dskip);
        for (slot, grad) in [self.u, self.dt, self.bc].into_iter().zip(&grads) {
            step.deliver(slot, grad);
        }
    }
}

kernel! {
    #[allow(clippy::needless_range_loop, reason = "several slices at one place")]
    /// One row: `h` `[N, width]` is updated in place, `out` written.
    fn scan_row<S>(u: &'a [f32], dt: &'a [f32], bc: &'a [f32], fixed: (&'a [f32], &'a [f32]), h: &'a mut [f32], out: &'a mut [f32]) {
        let ((a, skip), width) = (fixed, out.len());
        let (b, c) = bc.split_at(bc.len() / 2);
        for w in 0..width {
            out[w] = skip[w] * u[w];
        }
        for (n, (h, a)) in h.chunks_exact_mut(width).zip(a.chunks_exact(width)).enumerate() {
            for w in 0..width {
                let step = simd::softplus::<S>(dt[w]);
                h[w] = simd::fma::<S>(simd::exp::<S>(step * a[w]), h[w], step * u[w] * b[n]);
                out[w] = simd::fma::<S>(c[n], h[w], out[w]);
            }
        }
    }
}

kernel! {
    #[allow(clippy::needless_range_loop, reason = "several slices at one place")]
    /// One row backwards. `states` are those before and behind the step; `dh` comes as the gradient of the latter and leaves as that of
    /// the former. Gradients of u, dt and of B and C are added to, as are those of A and D.
    fn scan_row_backward<S>(
        x: (&'a [f32], &'a [f32], &'a [f32]),
        fixed: (&'a [f32], &'a [f32]),
        states: [&'a [f32]; 2],
        dy: &'a [f32],
        dh: &'a mut [f32],
        grads: (&'a mut [f32], &'a mut [f32], &'a mut [f32]),
        sums: (&'a mut [f32], &'a mut [f32]),
    ) {
        let ((u, dt, bc), (a, skip), [before, behind], (du, ddt, dbc), (da, dskip)) = (x, fixed, states, grads, sums);
        let width = dy.len();
        let (b, c) = bc.split_at(bc.len() / 2);
        let (db, dc) = dbc.split_at_mut(b.len());
        for w in 0..width {
            du[w] += dy[w] * skip[w];
            dskip[w] += dy[w] * u[w];
        }
        for n in 0..b.len() {
            let at = n * width..(n + 1) * width;
            let (a, before, behind) = (&a[at.clone()], &before[at.clone()], &behind[at.clone()]);
            let (dh, da) = (&mut dh[at.clone()], &mut da[at]);
            let (mut for_b, mut for_c) = (0.0, 0.0);
            for w in 0..width {
                let step = simd::softplus::<S>(dt[w]);
                let decay = simd::exp::<S>(step * a[w]);
                let through = simd::fma::<S>(dy[w], c[n], dh[w]);
                for_c += dy[w] * behind[w];
                for_b += through * step * u[w];
                let by_exponent = through * before[w] * decay;
                da[w] += by_exponent * step;
                du[w] += through * step * b[n];
                let by_step = by_exponent * a[w] + through * u[w] * b[n];
                ddt[w] += by_step * simd::sigmoid::<S>(dt[w]);
                dh[w] = through * decay;
            }
            db[n] += for_b;
            dc[n] += for_c;
        }
    }
}
