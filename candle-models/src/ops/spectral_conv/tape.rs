//! The convolution on a tape. With `g` the gradient of a result, `G` its waves each counted as the synthesis counts them, the gradients are
//! `conj(X) G` of the weight, `conj(W) G` of the coefficients, and of the input the synthesis of these as means. In real parts, with the rows of `X`
//! `Xr` and `Xi`, both are plain products with the rows `[Gr | Gi]` and `[Gi | -Gr]`.

use super::waves::{Scale, Waves};
use super::{SpectralConv, finish_mode};
use crate::Result;
use crate::exec::program::{Slot, Wires};
use crate::exec::tape::{Product, Weight};
use crate::exec::{Derivative, TapeBuilder, TapeStep, operands};
use crate::ops::{OutPointer, Rows, add_into};
use std::ops::Range;
use std::sync::Arc;

pub(super) struct OnTape {
    waves: Arc<Waves>,
    channels: [usize; 2],
    x: Slot,
    out: Slot,
    lines: Slot,
    folded: Slot,
    /// Coefficients of the input, `[modes, 2, C]`.
    s: Slot,
    /// Products with the weights, `[modes, 2, 2 O]`; its gradient is `G`.
    q: Slot,
    weights: Vec<Arc<Weight>>,
    bias: Vec<f32>,
    bias_place: Range<usize>,
    mean: usize,
}

impl OnTape {
    pub fn new(op: &SpectralConv, wires: &Wires, tape: &mut TapeBuilder) -> Result<Self> {
        let ([lines, folded, s, q], [c, o]) = (operands("spectral_conv", &wires.scratch)?, op.channels);
        [lines, folded, s, q].into_iter().for_each(|slot| tape.own(slot));
        let weights = tape.weights(&op.weight)?;
        for (mode, weight) in weights.iter().enumerate() {
            for part in 0..2 {
                let x = Slot { start: s.start + (2 * mode + part) * c, width: c, ..s };
                let dy = Slot { start: q.start + (2 * mode + part) * 2 * o, width: 2 * o, ..q };
                tape.product(Product { weight: weight.clone(), x, dy, groups: 1, from_before: false });
            }
        }
        tape.scratch(lines.width + folded.width + s.width + wires.x[0].width);
        let bias_place = op.bias.as_ref().map_or(0..0, |bias| tape.sum(bias));
        let bias = op.bias.as_ref().map(crate::exec::host).transpose()?.unwrap_or_default();
        let (x, out, mean) = (wires.x[0], wires.out[0], op.waves.mean_mode());
        Ok(Self { waves: op.waves.clone(), channels: op.channels, x, out, lines, folded, s, q, weights, bias, bias_place, mean })
    }

    /// Coefficients of a grid, `stride` values apart.
    fn analyse(&self, scale: Scale, x: &[f32], channels: usize, [lines, folded]: [&mut [f32]; 2], (to, stride): (&mut [f32], usize)) {
        let all = |values: &mut [f32]| OutPointer { data: values.as_mut_ptr(), stride: 0 };
        let (lines_at, folded, to) = (all(lines), all(folded), all(to));
        for h in 0..self.waves.grid[0] {
            // SAFETY: this thread alone uses the whole buffers, which are as long as the widths of the operation.
            unsafe { self.waves.across(scale, x, channels, h, lines_at) };
        }
        // SAFETY: as above.
        unsafe { self.waves.down(lines, channels, 0..self.waves.kept[1], folded, (to, stride)) };
    }

    /// A grid of coefficients `stride` values apart.
    fn synthesise(&self, scale: Scale, (y, stride): (&[f32], usize), channels: usize, [lines, folded]: [&mut [f32]; 2], to: &mut [f32]) {
        let all = |values: &mut [f32]| OutPointer { data: values.as_mut_ptr(), stride: 0 };
        let (lines_at, folded, to) = (all(lines), all(folded), all(to));
        // SAFETY: this thread alone uses the whole buffers, which are as long as the widths of the operation.
        unsafe { self.waves.up((y, stride), channels, 0..self.waves.kept[1], folded, lines_at) };
        for h in 0..self.waves.grid[0] {
            // SAFETY: as above.
            unsafe { self.waves.along(scale, lines, channels, h, to) };
        }
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        let [c, o] = self.channels;
        step.with_all_values([self.lines, self.folded, self.s, self.q, self.out], |step, [lines, folded, s, q, out]| {
            let rows = s.chunks_exact_mut(self.s.width).zip(q.chunks_exact_mut(self.q.width));
            for (r, ((s, q), out)) in rows.zip(out.chunks_exact_mut(self.out.width)).enumerate() {
                self.analyse(Scale::Mean, step.value(self.x).row(r), c, [&mut *lines, &mut *folded], (&mut *s, 2 * c));
                let modes = s.chunks_exact(2 * c).zip(q.chunks_exact_mut(4 * o));
                for (weight, (s, q)) in self.weights.iter().zip(modes) {
                    weight.multiply(Rows { data: s, rows: 2, width: c, stride: c }, q);
                    finish_mode(q);
                }
                q[self.mean * 4 * o..].iter_mut().zip(&self.bias).for_each(|(q, bias)| *q += bias);
                self.synthesise(Scale::Twice, (q, 4 * o), o, [&mut *lines, &mut *folded], out);
            }
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let [c, o] = self.channels;
        step.with_grads(self.out, |step, dy, scratch| {
            let (lines, rest) = scratch.split_at_mut(self.lines.width);
            let (folded, rest) = rest.split_at_mut(self.folded.width);
            let (ds, rest) = rest.split_at_mut(self.s.width);
            let dx = &mut rest[..step.rows() * self.x.width];
            step.with_grads(self.q, |step, g, _| {
                let rows = dy.chunks_exact(self.out.width).zip(g.chunks_exact_mut(self.q.width));
                for ((dy, g), dx) in rows.zip(dx.chunks_exact_mut(self.x.width)) {
                    self.analyse(Scale::Twice, dy, o, [&mut *lines, &mut *folded], (&mut *g, 4 * o));
                    for (weight, (g, ds)) in self.weights.iter().zip(g.chunks_exact_mut(4 * o).zip(ds.chunks_exact_mut(2 * c))) {
                        let (first, second) = g.split_at_mut(2 * o);
                        second[..o].copy_from_slice(&first[o..]);
                        second[o..].iter_mut().zip(&first[..o]).for_each(|(second, first)| *second = -first);
                        weight.multiply_transposed(g, ds);
                    }
                    if !self.bias_place.is_empty() {
                        add_into(&mut step.sums()[self.bias_place.clone()], &g[self.mean * 4 * o..][..o]);
                    }
                    self.synthesise(Scale::Mean, (ds, 2 * c), c, [&mut *lines, &mut *folded], dx);
                }
            });
            step.deliver(self.x, dx);
        });
    }
}
