//! The operations of a Mamba block that remember: the causal convolution and the selective scan, one step of a few dozen rows at a time.

use super::{Differentiable, Matrix, Parameters, Tape};
use crate::Result;
use crate::exec::host;
use crate::exec::program::Slot;
use crate::ops::simd::{self, kernel};
use crate::ops::{Activation, activate, activate_backward};
use candle_core::Tensor;
use std::ops::Range;

/// Causal depthwise convolution and SiLU: `out_t = silu(b + sum over k of w_k x_(t - K + 1 + k))`.
pub(super) struct Conv {
    x: Slot,
    out: Slot,
    /// What SiLU is applied to.
    before: Slot,
    /// `[K, width]`, the oldest step first.
    weight: Vec<f32>,
    bias: Vec<f32>,
    place: Range<usize>,
    bias_place: Range<usize>,
}

impl Conv {
    pub fn new([x, out]: [Slot; 2], [weight, bias]: [&Tensor; 2], matrices: &mut Vec<Matrix>, parameters: &mut Parameters) -> Result<Self> {
        let (place, bias_place) = (parameters.summed.of(weight), parameters.summed.of(bias));
        let before = super::node::matrix(matrices, out.width);
        Ok(Self { x, out, before, weight: host(weight)?, bias: host(bias)?, place, bias_place })
    }

    pub fn out(&self) -> Slot {
        self.out
    }

    fn taps(&self) -> usize {
        self.weight.len() / self.out.width
    }

    /// What its backward reads of all steps.
    pub fn reads_later(&self) -> Vec<Slot> {
        vec![self.x, self.before]
    }

    /// Gradients of the last K steps' inputs, which arrive from later steps.
    pub fn carried(&self) -> usize {
        self.weight.len()
    }

    pub fn forward(&self, tape: &mut Tape, t: usize, out: &mut [f32]) {
        let (width, taps) = (self.out.width, self.taps());
        out.chunks_exact_mut(width).for_each(|row| row.copy_from_slice(&self.bias));
        for back in 0..taps.min(t + 1) {
            let (x, weight) = (tape.value(self.x, t - back), &self.weight[(taps - 1 - back) * width..][..width]);
            out.chunks_exact_mut(width).enumerate().for_each(|(r, out)| add_product(x.row(r), weight, out));
        }
        tape.values[self.before.buffer].at_mut(t).copy_from_slice(out);
        activate(Activation::Silu, out);
    }

    /// `carry` holds the gradients of inputs in a ring, step `t` in place `t mod K`.
    pub fn backward(&self, net: &Differentiable, tape: &mut Tape, t: usize, dy: &mut [f32], carry: &mut [f32]) {
        let (width, taps, rows) = (self.out.width, self.taps(), tape.rows);
        activate_backward(Activation::Silu, tape.values[self.before.buffer].at(t), dy);
        let mut sums = std::mem::take(&mut tape.sums);
        dy.chunks_exact(width).for_each(|row| crate::ops::add_into(&mut sums[self.bias_place.clone()], row));
        for back in 0..taps.min(t + 1) {
            let (x, k) = (tape.value(self.x, t - back), taps - 1 - back);
            let (weight, dw) = (&self.weight[k * width..][..width], &mut sums[self.place.clone()][k * width..][..width]);
            let dx = &mut carry[(t - back) % taps * rows * width..][..rows * width];
            for (r, (dy, dx)) in dy.chunks_exact(width).zip(dx.chunks_exact_mut(width)).enumerate() {
                add_product(x.row(r), dy, dw);
                add_product(weight, dy, dx);
            }
        }
        tape.sums = sums;
        let dx = &mut carry[t % taps * rows * width..][..rows * width];
        tape.deliver(net, self.x, t, dx);
        dx.fill(0.0);
    }
}

kernel! {
    /// `out += a b`.
    fn add_product<S>(a: &'a [f32], b: &'a [f32], out: &'a mut [f32]) {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = simd::fma::<S>(a, b, *o);
        }
    }
}

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
    pub fn new(
        [u, dt, bc, out]: [Slot; 4],
        [a_log, skip]: [&Tensor; 2],
        matrices: &mut Vec<Matrix>,
        parameters: &mut Parameters,
    ) -> Result<Self> {
        let states = bc.width / 2;
        let (place, skip_place) = (parameters.summed.of(a_log), parameters.summed.of(skip));
        let kept = super::node::matrix(matrices, states * out.width);
        let a = host(&a_log.t()?.contiguous()?)?.into_iter().map(|log| -log.exp()).collect();
        Ok(Self { u, dt, bc, out, kept, a, skip: host(skip)?, place, skip_place })
    }

    pub fn out(&self) -> Slot {
        self.out
    }

    /// What its backward reads of all steps.
    pub fn reads_later(&self) -> Vec<Slot> {
        vec![self.u, self.dt, self.bc, self.kept]
    }

    /// The state's gradient.
    pub fn carried(&self) -> usize {
        self.kept.width
    }

    pub fn forward(&self, tape: &mut Tape, t: usize, out: &mut [f32]) {
        let width = self.out.width;
        let mut kept = std::mem::take(&mut tape.values[self.kept.buffer]);
        let range = kept.range(t);
        let (before, now) = kept.data.split_at_mut(range.start);
        let now = &mut now[..range.len()];
        if t == 0 {
            now.fill(0.0);
        } else {
            now.copy_from_slice(&before[range.start - range.len()..]);
        }
        let [u, dt, bc] = [self.u, self.dt, self.bc].map(|slot| tape.value(slot, t));
        for (r, (out, h)) in out.chunks_exact_mut(width).zip(now.chunks_exact_mut(self.kept.width)).enumerate() {
            scan_row(u.row(r), dt.row(r), bc.row(r), (&self.a, &self.skip), h, out);
        }
        tape.values[self.kept.buffer] = kept;
    }

    /// `carry` is the gradient of the states behind the step, and becomes that of the states before it.
    pub fn backward(&self, net: &Differentiable, tape: &mut Tape, t: usize, dy: &[f32], carry: &mut [f32]) {
        let (width, states) = (self.out.width, self.bc.width / 2);
        let zeros = vec![0.0; self.kept.width];
        let mut grads = [self.u.width, self.dt.width, self.bc.width].map(|width| vec![0.0; tape.rows * width]);
        let (mut da, mut dskip) = (vec![0.0; self.a.len()], vec![0.0; width]);
        {
            let [u, dt, bc, kept] = [self.u, self.dt, self.bc, self.kept].map(|slot| tape.value(slot, t));
            let before = (t > 0).then(|| tape.value(self.kept, t - 1));
            let [du, ddt, dbc] = &mut grads;
            let outs = du.chunks_exact_mut(width).zip(ddt.chunks_exact_mut(width)).zip(dbc.chunks_exact_mut(2 * states));
            let rows = dy.chunks_exact(width).zip(carry.chunks_exact_mut(self.kept.width));
            for (r, ((dy, dh), ((du, ddt), dbc))) in rows.zip(outs).enumerate() {
                let before = before.as_ref().map_or(zeros.as_slice(), |rows| rows.row(r));
                let x = (u.row(r), dt.row(r), bc.row(r));
                scan_row_backward(x, (&self.a, &self.skip), [before, kept.row(r)], dy, dh, (du, ddt, dbc), (&mut da, &mut dskip));
            }
        }
        // A = -exp(log): its derivative is A itself; the parameter lies as [width, N].
        let to = &mut tape.sums[self.place.clone()];
        for (n, (da, a)) in da.chunks_exact(width).zip(self.a.chunks_exact(width)).enumerate() {
            da.iter().zip(a).enumerate().for_each(|(w, (da, a))| to[w * states + n] += da * a);
        }
        crate::ops::add_into(&mut tape.sums[self.skip_place.clone()], &dskip);
        for (slot, grad) in [self.u, self.dt, self.bc].into_iter().zip(&grads) {
            tape.deliver(net, slot, t, grad);
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
