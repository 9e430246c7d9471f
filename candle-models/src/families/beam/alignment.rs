//! How well a pair of beams fits a channel, with gradients.

use super::Channels;
use super::complex::inner;
use crate::Result;
use crate::ops::contiguous;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Shape, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// For beams `w` `[B, 2 N_RX]` and `f` `[B, 2 N_TX]` of unit norm, as shares of the channel's `||H||_F^2`, `[B, 3]`: the gain
/// `|w^H H f|^2`, what the receive beam alone could have (`||H^H w||^2`) and what the transmit beam alone could have (`||H f||^2`). All
/// are 0 for a channel without power. `step` is that of the channel, where it changes.
pub fn alignment(channels: &Arc<Channels>, step: usize, w: &Tensor, f: &Tensor) -> Result<Tensor> {
    if !(w.device().is_cpu() && w.dtype() == DType::F32) {
        return super::plain::alignment(channels, step, w, f);
    }
    Ok(w.contiguous()?.apply_op2(&f.contiguous()?, AlignmentOp { channels: channels.clone(), step })?)
}

struct AlignmentOp {
    channels: Arc<Channels>,
    step: usize,
}

/// Rows of a task.
const TASK: usize = 32;

/// `1 / ||H||_F^2`, or 0.
pub(super) fn inverse(power: f32) -> f32 {
    if power > 0.0 { 1.0 / power } else { 0.0 }
}

impl CustomOp2 for AlignmentOp {
    fn name(&self) -> &'static str {
        "alignment"
    }

    fn cpu_fwd(&self, w: &CpuStorage, wl: &Layout, f: &CpuStorage, fl: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (w, f) = (contiguous(w, wl)?, contiguous(f, fl)?);
        let (rx, tx) = (2 * self.channels.receive_elements(), 2 * self.channels.transmit_elements());
        let mut out = vec![0.0; 3 * self.channels.batch()];
        let rows = w.par_chunks_exact(rx).zip(f.par_chunks_exact(tx)).zip(out.par_chunks_exact_mut(3));
        rows.enumerate().with_min_len(TASK).for_each(|(b, ((w, f), out))| {
            let link = self.channels.at(b, self.step);
            let (mut received, mut returned) = (vec![0.0; rx], vec![0.0; tx]);
            link.received(f, &mut received);
            link.returned(w, &mut returned);
            let [re, im] = inner(w, &received);
            let found = [re * re + im * im, inner(&returned, &returned)[0], inner(&received, &received)[0]];
            out.copy_from_slice(&found.map(|x| x * inverse(link.power)));
        });
        Ok((CpuStorage::F32(out), (self.channels.batch(), 3).into()))
    }

    fn bwd(&self, w: &Tensor, f: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (rx, tx) = (2 * self.channels.receive_elements(), 2 * self.channels.transmit_elements());
        let [from_w, from_f, grad] = [w, f, grad].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
        let (from_w, from_f, grad) = (from_w?, from_f?, grad?);
        let (mut dw, mut df) = (vec![0.0; from_w.len()], vec![0.0; from_f.len()]);
        let rows = from_w.par_chunks_exact(rx).zip(from_f.par_chunks_exact(tx)).zip(grad.par_chunks_exact(3));
        let out = dw.par_chunks_exact_mut(rx).zip(df.par_chunks_exact_mut(tx));
        rows.zip(out).enumerate().with_min_len(TASK).for_each(|(b, (((w, f), grad), (dw, df)))| {
            let link = self.channels.at(b, self.step);
            let (mut received, mut returned) = (vec![0.0; rx], vec![0.0; tx]);
            link.received(f, &mut received);
            link.returned(w, &mut returned);
            let [re, im] = inner(w, &received);
            let [gain, by_w, by_f] = [grad[0], grad[1], grad[2]].map(|g| 2.0 * g * inverse(link.power));
            // By w: 2 H f conj(s) with s = w^H H f, and 2 H H^H w. By f: 2 H^H w s, and 2 H^H H f.
            link.received(&returned, dw);
            link.returned(&received, df);
            combine([gain * re, -gain * im], &received, by_w, dw);
            combine([gain * re, gain * im], &returned, by_f, df);
        });
        Ok((Some(Tensor::from_vec(dw, w.shape(), w.device())?), Some(Tensor::from_vec(df, f.shape(), f.device())?)))
    }
}

/// `to = c x + factor to`.
fn combine([re, im]: [f32; 2], x: &[f32], factor: f32, to: &mut [f32]) {
    for (to, x) in to.chunks_exact_mut(2).zip(x.chunks_exact(2)) {
        to[0] = factor * to[0] + re * x[0] - im * x[1];
        to[1] = factor * to[1] + re * x[1] + im * x[0];
    }
}
