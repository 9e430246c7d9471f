//! Sliding-window attention with positions as a slope per head over the distance (ALiBi, Press et al. 2022; here the slopes are learned).
//!
//! A frame attends to itself and to the `window - 1` frames before it, never across a reset:
//! `softmax_j(q[t] k[t-j] / sqrt(width) - slope[head] j) v[t-j]`. The state holds the last `window - 1` keys and values, oldest
//! first, and how many of them are valid.

use crate::ops::Rows;
use crate::ops::simd::{self, kernel};
use crate::ops::softmax;
use candle_core::{DType, Device, Result, Tensor};

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

kernel! {
    /// Frame `t` of a sequence: `q` and `out` `[width]`, `slopes` `[heads]`, `scores` scratch of `available + 1`;
    /// `available` earlier frames are valid.
    pub(crate) fn attend_row<S = simd>(
        shape: Attention, t: usize, available: usize, q: &'a [f32], memory: (Timeline<'a>, Timeline<'a>),
        slopes: &'a [f32], scores: &'a mut [f32], out: &'a mut [f32],
    ) {
        let (keys, values) = memory;
        let width = q.len() / shape.heads;
        let scale = 1.0 / (width as f32).sqrt();
        let scores = &mut scores[..=available];
        for (head, slope) in slopes.iter().enumerate() {
            let columns = head * width..(head + 1) * width;
            let mut most = f32::NEG_INFINITY;
            for (j, s) in scores.iter_mut().enumerate() {
                *s = simd::products(simd, &q[columns.clone()], 0.0, &keys.row(t, j)[columns.clone()], 0.0) * scale - slope * j as f32;
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

/// Attention over `B` sequences of `T` frames: `q`, `k`, `v` `[B * T, width]`, `slopes` `[heads]`, state `([B, window - 1,
/// width], the same, [B, 1])`. Returns `[B * T, width]` and the state behind the sequence, which carries no gradient.
///
/// With the feature `flash-attn`, half-width values on a GPU that no gradient is asked of take flash attention (`flash.rs`).
pub fn attention(
    shape: Attention,
    [q, k, v]: [&Tensor; 3],
    slopes: &Tensor,
    state: &AttentionState,
    resets: &[bool],
) -> Result<(Tensor, AttentionState)> {
    let Attention { heads, window } = shape;
    crate::ops::check_sequence(q, &state.0, resets)?;
    let (batch, keep, width) = state.0.dims3()?;
    let (steps, device) = (q.dim(0)? / batch, q.device());
    let (available, after) = availability(window, &state.2.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?, resets);
    let timeline = |cache: &Tensor, new: &Tensor| Tensor::cat(&[&cache.to_dtype(q.dtype())?, &new.reshape((batch, steps, width))?], 1);
    let (keys, values) = (timeline(&state.0, k)?, timeline(&state.1, v)?);
    let total = keep + steps;
    let last = |x: &Tensor| x.narrow(1, total - keep, keep)?.contiguous()?.detach().to_dtype(state.0.dtype());
    let count = Tensor::from_vec(after, (batch, 1), device)?.to_dtype(state.2.dtype())?;
    let after = (last(&keys)?, last(&values)?, count);
    #[cfg(feature = "flash-attn")]
    if device.is_cuda() && matches!(q.dtype(), DType::BF16 | DType::F16) && ![q, k, v].iter().any(|x| x.track_op()) {
        let segments = super::flash::Segments::new(&available, resets, (batch, steps, keep));
        return Ok((super::flash::flash_attention(shape, [q, &keys, &values], slopes, &segments)?, after));
    }
    let split = |x: &Tensor, rows: usize| x.reshape((batch, rows, heads, width / heads))?.transpose(1, 2)?.contiguous();
    let (q, kh, vh) = (split(q, steps)?, split(&keys, total)?, split(&values, total)?);
    let scores = (q.matmul(&kh.t()?)? / ((width / heads) as f64).sqrt())?;
    // Sums over a window in f32 at least.
    let wide = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let (distance, mask) = distances(window, batch, steps, &available, device)?;
    let bias = distance.to_dtype(wide)?.broadcast_mul(&slopes.to_dtype(wide)?.reshape((heads, 1, 1))?)?.neg()?;
    let scores = scores.to_dtype(wide)?.broadcast_add(&bias)?.broadcast_add(&mask.to_dtype(wide)?)?;
    let weights = softmax::reference(&scores)?.to_dtype(vh.dtype())?;
    let y = weights.matmul(&vh)?.transpose(1, 2)?.reshape((batch * steps, width))?;
    Ok((y, after))
}

/// Distance from each frame to each key `[1, T, window - 1 + T]`, 0 outside the window, and an additive mask
/// `[B, 1, T, window - 1 + T]`.
fn distances(window: usize, batch: usize, steps: usize, available: &[usize], device: &Device) -> Result<(Tensor, Tensor)> {
    let total = window - 1 + steps;
    let distance = |t: usize, key: usize| (window - 1 + t).checked_sub(key).filter(|d| *d < window);
    let index: Vec<f32> = (0..steps).flat_map(|t| (0..total).map(move |key| distance(t, key).unwrap_or(0) as f32)).collect();
    let mut mask = Vec::with_capacity(batch * steps * total);
    for (frame, &available) in available.iter().enumerate() {
        let t = frame % steps;
        mask.extend((0..total).map(|key| match distance(t, key) {
            Some(d) if d <= available => 0.0f32,
            _ => -1e9,
        }));
    }
    Ok((Tensor::from_vec(index, (1, steps, total), device)?, Tensor::from_vec(mask, (batch, 1, steps, total), device)?))
}
