//! Flash attention (Dao 2023) over the segments that resets cut a batch into: inference only, f16 and bf16, Ampere or newer.

use crate::ops::Attention;
use candle_core::{D, DType, Result, Tensor, bail};
use candle_flash_attn::flash_attn_varlen_alibi_windowed;

/// The tensor cores' alignment: a head has a multiple of this many values.
const ALIGN: usize = 8;

/// Runs of frames without a reset inside, and the keys that each sees: earlier frames of the state, then its own.
pub(crate) struct Segments {
    /// First query and their number, first key of the timelines (all sequences one behind the other) and their number.
    runs: Vec<[usize; 4]>,
}

impl Segments {
    /// `available` earlier frames for each of `batch * steps` frames, over timelines of `keep + steps` keys.
    pub fn new(available: &[usize], resets: &[bool], (batch, steps, keep): (usize, usize, usize)) -> Self {
        let mut runs = Vec::new();
        for b in 0..batch {
            let mut start = 0;
            while start < steps {
                let row = b * steps + start;
                let end = (start + 1..steps).find(|t| resets[b * steps + t]).unwrap_or(steps);
                let seen = available[row];
                runs.push([row, end - start, b * (keep + steps) + keep + start - seen, end - start + seen]);
                start = end;
            }
        }
        Self { runs }
    }

    /// Where each segment begins among `[row, count]` pairs, and the longest.
    fn lengths(&self, counts: usize, like: &Tensor) -> Result<(Tensor, usize)> {
        let ends = self.runs.iter().scan(0, |at, run| {
            *at += run[counts];
            Some(*at as u32)
        });
        let starts: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let longest = self.runs.iter().map(|run| run[counts]).max().unwrap_or(0);
        Ok((Tensor::new(starts, like.device())?, longest))
    }
}

/// [`attention`](crate::ops::attention) of `q` `[B * T, width]` over timelines of keys and values `[B, window - 1 + T, width]`, `slopes`
/// `[heads]`. Heads whose width is no multiple of eight are filled up with zeros, which costs their share.
///
/// # Errors
/// If a gradient is asked of an operand: there is no backward.
pub(crate) fn flash_attention(shape: Attention, [q, keys, values]: [&Tensor; 3], slopes: &Tensor, segments: &Segments) -> Result<Tensor> {
    if [q, keys, values].iter().any(|x| x.track_op()) {
        bail!("flash attention has no gradient: detach its operands, or train without the feature flash-attn");
    }
    let (rows, width) = q.dims2()?;
    let head = width / shape.heads;
    let fill = head.next_multiple_of(ALIGN) - head;
    let heads = |x: &Tensor| x.reshape(((), shape.heads, head))?.pad_with_zeros(D::Minus1, 0, fill)?.contiguous();
    let gather = |x: &Tensor| {
        let all = heads(x)?;
        let parts: Vec<Tensor> = segments.runs.iter().map(|run| all.narrow(0, run[2], run[3])).collect::<Result<_>>()?;
        Tensor::cat(&parts, 0)
    };
    let ((query_starts, most_queries), (key_starts, most_keys)) = (segments.lengths(1, q)?, segments.lengths(3, q)?);
    let y = flash_attn_varlen_alibi_windowed(
        &heads(q)?,
        &gather(keys)?,
        &gather(values)?,
        &slopes.to_dtype(DType::F32)?,
        &query_starts,
        &key_starts,
        most_queries,
        most_keys,
        1.0 / (head as f32).sqrt(),
        Some(shape.window - 1),
        Some(0),
    )?;
    y.narrow(D::Minus1, 0, head)?.reshape((rows, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_end_before_resets_and_see_the_state_before_the_first() {
        // Two sequences of three frames, two cached keys each; the second one is reset at its frame 1.
        let segments = Segments::new(&[1, 2, 2, 2, 0, 1], &[false, false, false, false, true, false], (2, 3, 2));
        assert_eq!(segments.runs, [[0, 3, 1, 4], [3, 1, 5, 3], [4, 2, 8, 2]]);
    }
}
