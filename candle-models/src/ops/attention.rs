//! Sliding-window attention with a learned bias by distance (the relative positions of Raffel et al. 2020, one per distance).
//!
//! A frame attends to itself and to the `window - 1` frames before it, never across a reset:
//! `softmax_j(q[t] k[t-j] / sqrt(width) + bias[head, j]) v[t-j]`. The state holds the last `window - 1` keys and values, oldest
//! first, and how many of them are valid.

use super::Rows;
use super::simd::{self, kernel};
use candle_core::{D, DType, Device, Result, Tensor};

/// Heads and window of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Heads that share the width.
    pub heads: usize,
    /// Frames that a frame sees, itself included.
    pub window: usize,
}

/// Keys or values by time: what came before the sequence, then the sequence itself.
#[derive(Clone, Copy)]
pub(crate) struct Timeline<'a> {
    /// `window - 1` rows, oldest first.
    pub cache: Rows<'a>,
    pub new: Rows<'a>,
}

impl<'a> Timeline<'a> {
    /// The row `distance` frames before frame `t` of the sequence.
    #[inline(always)]
    fn row(&self, t: usize, distance: usize) -> &'a [f32] {
        match t.checked_sub(distance) {
            Some(i) => self.new.row(i),
            None => self.cache.row(self.cache.rows + t - distance),
        }
    }
}

#[inline(always)]
fn dot<S: pulp::Simd>(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0f32; 16];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for l in 0..16 {
            acc[l] = simd::fma::<S>(a[l], b[l], acc[l]);
        }
    }
    acc.iter().sum::<f32>() + a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum::<f32>()
}

kernel! {
    /// Frame `t` of a sequence: `q` and `out` `[width]`, `bias` `[heads, window]`, `scores` scratch of `available + 1`;
    /// `available` earlier frames are valid.
    pub(crate) fn attend_row<S>(
        shape: Attention, t: usize, available: usize, q: &'a [f32], memory: (Timeline<'a>, Timeline<'a>),
        bias: &'a [f32], scores: &'a mut [f32], out: &'a mut [f32],
    ) {
        let (keys, values) = memory;
        let width = q.len() / shape.heads;
        let scale = 1.0 / (width as f32).sqrt();
        let scores = &mut scores[..=available];
        for head in 0..shape.heads {
            let columns = head * width..(head + 1) * width;
            let mut most = f32::NEG_INFINITY;
            for (j, s) in scores.iter_mut().enumerate() {
                *s = dot::<S>(&q[columns.clone()], &keys.row(t, j)[columns.clone()]) * scale + bias[head * shape.window + j];
                most = most.max(*s);
            }
            let mut total = 0.0;
            for s in scores.iter_mut() {
                *s = simd::exp::<S>(*s - most);
                total += *s;
            }
            let out = &mut out[columns.clone()];
            out.fill(0.0);
            for (j, &s) in scores.iter().enumerate() {
                let weight = s / total;
                for (o, &v) in out.iter_mut().zip(&values.row(t, j)[columns.clone()]) {
                    *o = simd::fma::<S>(weight, v, *o);
                }
            }
        }
    }
}

/// How many earlier frames each frame may see, `[B * T]`, and how many the state holds afterwards, `[B]`.
pub(crate) fn availability(window: usize, before: &[f32], resets: &[bool]) -> (Vec<usize>, Vec<f32>) {
    let steps = resets.len() / before.len().max(1);
    let mut available = Vec::with_capacity(resets.len());
    let mut after = Vec::with_capacity(before.len());
    for (row, &count) in before.iter().enumerate() {
        let mut count = count as usize;
        for &reset in &resets[row * steps..(row + 1) * steps] {
            count = if reset { 0 } else { count.min(window - 1) };
            available.push(count);
            count += 1;
        }
        after.push(count.min(window - 1) as f32);
    }
    (available, after)
}

/// Keys, values and their count.
pub type AttentionState = (Tensor, Tensor, Tensor);

/// Attention over `B` sequences of `T` frames: `q`, `k`, `v` `[B * T, width]`, `bias` `[heads, window]`, state `([B, window - 1,
/// width], the same, [B, 1])`. Returns `[B * T, width]` and the state behind the sequence, which carries no gradient.
pub fn attention(
    shape: Attention,
    [q, k, v]: [&Tensor; 3],
    bias: &Tensor,
    state: &AttentionState,
    resets: &[bool],
) -> Result<(Tensor, AttentionState)> {
    let Attention { heads, window } = shape;
    super::check_sequence(q, &state.0, resets)?;
    let (batch, keep, width) = state.0.dims3()?;
    let (steps, device) = (q.dim(0)? / batch, q.device());
    let (available, after) = availability(window, &state.2.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?, resets);
    let timeline = |cache: &Tensor, new: &Tensor| Tensor::cat(&[cache, &new.reshape((batch, steps, width))?], 1);
    let (keys, values) = (timeline(&state.0, k)?, timeline(&state.1, v)?);
    let split = |x: &Tensor, rows: usize| x.reshape((batch, rows, heads, width / heads))?.transpose(1, 2)?.contiguous();
    let total = keep + steps;
    let (q, kh, vh) = (split(q, steps)?, split(&keys, total)?, split(&values, total)?);
    let scores = (q.matmul(&kh.t()?)? / ((width / heads) as f64).sqrt())?;
    let (distance, mask) = distances(window, batch, steps, &available, device)?;
    let bias = bias.t()?.contiguous()?.index_select(&distance, 0)?.reshape((steps, total, heads))?.permute((2, 0, 1))?;
    let scores = scores.broadcast_add(&bias)?.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let y = weights.matmul(&vh)?.transpose(1, 2)?.reshape((batch * steps, width))?;
    let last = |x: &Tensor| Ok::<_, candle_core::Error>(x.narrow(1, total - keep, keep)?.contiguous()?.detach());
    let count = Tensor::from_vec(after, (batch, 1), device)?.to_dtype(state.2.dtype())?;
    Ok((y, (last(&keys)?, last(&values)?, count)))
}

/// Distance from each frame to each key `[T * (window - 1 + T)]`, clamped into the window, and an additive mask
/// `[B, 1, T, window - 1 + T]`.
fn distances(window: usize, batch: usize, steps: usize, available: &[usize], device: &Device) -> Result<(Tensor, Tensor)> {
    let total = window - 1 + steps;
    let distance = |t: usize, key: usize| (window - 1 + t).checked_sub(key).filter(|d| *d < window);
    let index: Vec<u32> = (0..steps).flat_map(|t| (0..total).map(move |key| distance(t, key).unwrap_or(0) as u32)).collect();
    let mut mask = Vec::with_capacity(batch * steps * total);
    for (frame, &available) in available.iter().enumerate() {
        let t = frame % steps;
        mask.extend((0..total).map(|key| match distance(t, key) {
            Some(d) if d <= available => 0.0f32,
            _ => -1e9,
        }));
    }
    Ok((Tensor::from_vec(index, steps * total, device)?, Tensor::from_vec(mask, (batch, 1, steps, total), device)?))
}
