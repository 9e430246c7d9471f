//! Selective scan (Gu and Dao 2023, equation 2 with the zero-order hold of section 2): for every channel d and state n
//!
//! `h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t]`, `y[t] = sum_n C[t] h[t] + D u[t]`, `dt = softplus(raw)`.
//!
//! Channels are the vector axis: the state lies as `[N, width]`, so 16 channels share one B and one C and no sum crosses
//! lanes. The backward recomputes the states of one group of 16 channels at a time into scratch that stays in the cache.

use super::simd::{self, kernel};
use super::{Rows, contiguous, is_fused, rows_of, sum_in_order, with_rows};
use candle_core::{CpuStorage, CustomOp3, D, IndexOp, Layout, Result, Shape, Tensor};
use pulp::Simd;
use rayon::prelude::*;
use std::sync::{Arc, Mutex};

/// Channels of a group: one AVX-512 register.
const LANES: usize = 16;

/// Sizes of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct ScanShape {
    pub steps: usize,
    pub width: usize,
    pub states: usize,
}

/// What a sequence reads, frame by frame.
#[derive(Clone, Copy)]
pub(crate) struct ScanInput<'a> {
    /// `[steps, width]`.
    pub u: Rows<'a>,
    /// Step size before softplus, `[steps, width]`.
    pub dt: Rows<'a>,
    /// `[steps, states]`.
    pub b: Rows<'a>,
    /// `[steps, states]`.
    pub c: Rows<'a>,
    /// `[states, width]`, negative.
    pub a: &'a [f32],
    /// `[width]`.
    pub skip: &'a [f32],
}

#[inline(always)]
fn group<const L: usize>(x: &[f32], at: usize) -> &[f32; L] {
    x[at..].first_chunk().expect("a group of channels lies inside its row")
}

#[inline(always)]
fn group_mut<const L: usize>(x: &mut [f32], at: usize) -> &mut [f32; L] {
    x[at..].first_chunk_mut().expect("a group of channels lies inside its row")
}

#[inline(always)]
fn forward_group<S: Simd, const L: usize>(shape: ScanShape, resets: &[bool], x: ScanInput, d: usize, state: &mut [f32], out: &mut [f32]) {
    let ScanShape { steps, width, states } = shape;
    let skip = *group::<L>(x.skip, d);
    for (t, &reset) in resets.iter().enumerate().take(steps) {
        if reset {
            (0..states).for_each(|n| group_mut::<L>(state, n * width + d).fill(0.0));
        }
        let (u, raw) = (group::<L>(x.u.row(t), d), group::<L>(x.dt.row(t), d));
        let (mut dt, mut du, mut y) = ([0.0; L], [0.0; L], [0.0; L]);
        for l in 0..L {
            dt[l] = simd::softplus::<S>(raw[l]);
            du[l] = dt[l] * u[l];
            y[l] = skip[l] * u[l];
        }
        let (b, c) = (x.b.row(t), x.c.row(t));
        for n in 0..states {
            let (a, h) = (group::<L>(x.a, n * width + d), group_mut::<L>(state, n * width + d));
            let (b, c) = (b[n], c[n]);
            for l in 0..L {
                h[l] = simd::fma::<S>(simd::exp::<S>(dt[l] * a[l]), h[l], du[l] * b);
                y[l] = simd::fma::<S>(c, h[l], y[l]);
            }
        }
        *group_mut::<L>(out, t * width + d) = y;
    }
}

kernel! {
    /// One sequence: `state` `[states, width]` is updated in place, `out` is `[steps, width]`. `resets`: one per step.
    pub(crate) fn scan_sequence<S>(shape: ScanShape, resets: &'a [bool], x: ScanInput<'a>, state: &'a mut [f32], out: &'a mut [f32]) {
        let whole = shape.width / LANES * LANES;
        (0..whole).step_by(LANES).for_each(|d| forward_group::<S, LANES>(shape, resets, x, d, state, out));
        (whole..shape.width).for_each(|d| forward_group::<S, 1>(shape, resets, x, d, state, out));
    }
}

/// Gradients of one sequence and the scratch of one group.
struct Backward<'a> {
    grad: Rows<'a>,
    /// State before the sequence.
    before: &'a [f32],
    /// `[steps, width]`.
    du: &'a mut [f32],
    /// `[steps, width + 2 states]`: dt, B, C as they come in.
    dpacked: &'a mut [f32],
    /// `[states + 1, width]`: A, then the skip.
    dparams: &'a mut [f32],
    /// Decay and state of every step, `[steps, states, LANES]` each.
    decay: &'a mut [f32],
    history: &'a mut [f32],
    /// Sums over channels, still by lane: `[steps, states, LANES]` for B and for C.
    db: &'a mut [f32],
    dc: &'a mut [f32],
}

#[inline(always)]
fn backward_group<S: Simd, const L: usize>(shape: ScanShape, resets: &[bool], x: ScanInput, d: usize, g: &mut Backward) {
    let ScanShape { steps, width, states } = shape;
    let at = |t: usize, n: usize| (t * states + n) * LANES;
    for (t, &reset) in resets.iter().enumerate().take(steps) {
        let (u, raw) = (group::<L>(x.u.row(t), d), group::<L>(x.dt.row(t), d));
        let (mut dt, mut du) = ([0.0; L], [0.0; L]);
        for l in 0..L {
            dt[l] = simd::softplus::<S>(raw[l]);
            du[l] = dt[l] * u[l];
        }
        for n in 0..states {
            let a = group::<L>(x.a, n * width + d);
            let previous = match t {
                _ if reset => [0.0; L],
                0 => *group::<L>(g.before, n * width + d),
                _ => *group::<L>(g.history, at(t - 1, n)),
            };
            let (decay, h, b) = (group_mut::<L>(g.decay, at(t, n)), group_mut::<L>(g.history, at(t, n)), x.b.row(t)[n]);
            for l in 0..L {
                decay[l] = simd::exp::<S>(dt[l] * a[l]);
                h[l] = simd::fma::<S>(decay[l], previous[l], du[l] * b);
            }
        }
    }
    // The gradient of the state, carried backwards in time; on the heap-free path it would need a constant N.
    let mut carry = vec![[0.0f32; L]; states];
    let skip = *group::<L>(x.skip, d);
    let mut dskip = [0.0; L];
    for t in (0..steps).rev() {
        let (u, raw, gy) = (group::<L>(x.u.row(t), d), group::<L>(x.dt.row(t), d), group::<L>(g.grad.row(t), d));
        let (mut dt, mut ddt, mut du) = ([0.0; L], [0.0; L], [0.0; L]);
        for l in 0..L {
            dt[l] = simd::softplus::<S>(raw[l]);
            dskip[l] += gy[l] * u[l];
            du[l] = gy[l] * skip[l];
        }
        for n in 0..states {
            let (a, decay, h) = (group::<L>(x.a, n * width + d), group::<L>(g.decay, at(t, n)), group::<L>(g.history, at(t, n)));
            let previous = match t {
                _ if resets[t] => [0.0; L],
                0 => *group::<L>(g.before, n * width + d),
                _ => *group::<L>(g.history, at(t - 1, n)),
            };
            let (b, c) = (x.b.row(t)[n], x.c.row(t)[n]);
            let carry = &mut carry[n];
            let (da, dc) = (group_mut::<L>(g.dparams, n * width + d), group_mut::<L>(g.dc, at(t, n)));
            let db = group_mut::<L>(g.db, at(t, n));
            let keep = if resets[t] { 0.0 } else { 1.0 };
            for l in 0..L {
                let gh = carry[l] + gy[l] * c;
                dc[l] += gy[l] * h[l];
                let gdecay = gh * previous[l] * decay[l];
                da[l] += gdecay * dt[l];
                ddt[l] += gdecay * a[l] + gh * b * u[l];
                db[l] += gh * dt[l] * u[l];
                du[l] += gh * dt[l] * b;
                carry[l] = keep * gh * decay[l];
            }
        }
        *group_mut::<L>(g.du, t * width + d) = du;
        let ddt_out = group_mut::<L>(g.dpacked, t * (width + 2 * states) + d);
        for l in 0..L {
            ddt_out[l] = ddt[l] * simd::sigmoid::<S>(raw[l]);
        }
    }
    let out = group_mut::<L>(g.dparams, states * width + d);
    for l in 0..L {
        out[l] += dskip[l];
    }
}

kernel! {
    fn backward_sequence<S>(shape: ScanShape, resets: &'a [bool], x: ScanInput<'a>, g: &'a mut Backward<'a>) {
        let ScanShape { steps, width, states } = shape;
        let whole = width / LANES * LANES;
        (0..whole).step_by(LANES).for_each(|d| backward_group::<S, LANES>(shape, resets, x, d, g));
        (whole..width).for_each(|d| backward_group::<S, 1>(shape, resets, x, d, g));
        for t in 0..steps {
            let row = &mut g.dpacked[t * (width + 2 * states) + width..][..2 * states];
            for n in 0..states {
                let at = (t * states + n) * LANES;
                row[n] = g.db[at..at + LANES].iter().sum();
                row[states + n] = g.dc[at..at + LANES].iter().sum();
            }
        }
    }
}

struct ScanOp {
    shape: ScanShape,
    resets: Vec<bool>,
    /// `[B, states, width]` before the sequence.
    before: Tensor,
    /// The state behind the sequence; it carries no gradient.
    after: Arc<Mutex<Vec<f32>>>,
}

impl ScanOp {
    /// The part of the packed inputs that belongs to one sequence.
    fn input<'a>(&self, u: Rows<'a>, packed: Rows<'a>, params: &'a [f32], row: usize) -> ScanInput<'a> {
        let ScanShape { steps, width, states } = self.shape;
        let columns = |start: usize, len: usize| Rows {
            data: &packed.data[row * steps * packed.stride + start..],
            rows: steps,
            width: len,
            ..packed
        };
        ScanInput {
            u: Rows { data: &u.data[row * steps * u.stride..], rows: steps, ..u },
            dt: columns(0, width),
            b: columns(width, states),
            c: columns(width + states, states),
            a: &params[..states * width],
            skip: &params[states * width..],
        }
    }
}

impl CustomOp3 for ScanOp {
    fn name(&self) -> &'static str {
        "selective-scan"
    }

    fn cpu_fwd(
        &self,
        u: &CpuStorage,
        ul: &Layout,
        x: &CpuStorage,
        xl: &Layout,
        p: &CpuStorage,
        pl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ScanShape { steps, width, states } = self.shape;
        let (u, packed, params) = (rows_of(u, ul)?, rows_of(x, xl)?, contiguous(p, pl)?);
        let mut state = self.before.flatten_all()?.to_vec1::<f32>()?;
        let mut out = vec![0.0; u.rows * width];
        out.par_chunks_mut(steps * width).zip(state.par_chunks_mut(states * width)).enumerate().for_each(|(row, (out, state))| {
            scan_sequence(self.shape, &self.resets[row * steps..][..steps], self.input(u, packed, params, row), state, out);
        });
        if let Ok(mut after) = self.after.lock() {
            *after = state;
        }
        Ok((CpuStorage::F32(out), ul.shape().clone()))
    }

    fn bwd(
        &self,
        u: &Tensor,
        x: &Tensor,
        p: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let ScanShape { steps, width, states } = self.shape;
        let (packed_width, all) = (width + 2 * states, steps * states * LANES);
        let before = self.before.flatten_all()?.to_vec1::<f32>()?;
        let grad = grad.contiguous()?;
        let mut du = vec![0.0; u.elem_count()];
        let mut dpacked = vec![0.0; x.elem_count()];
        let dparams = with_rows(&[u, x, p, &grad], |inputs| {
            let [u, packed, params, grad]: [Rows; 4] = [inputs[0], inputs[1], inputs[2], inputs[3]];
            let partial: Vec<Vec<f32>> = du
                .par_chunks_mut(steps * width)
                .zip(dpacked.par_chunks_mut(steps * packed_width))
                .enumerate()
                .map_init(
                    || vec![0.0; 4 * all],
                    |scratch, (row, (du, dpacked))| {
                        scratch.fill(0.0);
                        let (decay, rest) = scratch.split_at_mut(all);
                        let (history, rest) = rest.split_at_mut(all);
                        let (db, dc) = rest.split_at_mut(all);
                        let mut dparams = vec![0.0; (states + 1) * width];
                        let grad = Rows { data: &grad.data[row * steps * grad.stride..], rows: steps, ..grad };
                        let before = &before[row * states * width..][..states * width];
                        let mut g = Backward { grad, before, du, dpacked, dparams: &mut dparams, decay, history, db, dc };
                        backward_sequence(
                            self.shape,
                            &self.resets[row * steps..][..steps],
                            self.input(u, packed, params.data, row),
                            &mut g,
                        );
                        dparams
                    },
                )
                .collect();
            Ok(sum_in_order(partial))
        })?;
        let device = u.device();
        let dparams = Tensor::from_vec(dparams, p.shape(), device)?;
        Ok((Some(Tensor::from_vec(du, u.shape(), device)?), Some(Tensor::from_vec(dpacked, x.shape(), device)?), Some(dparams)))
    }
}

/// The scan over `B` sequences of `T` frames, their rows one behind the other.
///
/// `u` `[B * T, width]`; `packed` `[B * T, width + 2 N]` holds the raw step size, B and C; `params` `[N + 1, width]` holds A
/// (negative) and, as its last row, D; `state` `[B, N, width]`. Returns y `[B * T, width]` and the state behind the
/// sequence, which carries no gradient.
pub fn selective_scan(u: &Tensor, packed: &Tensor, params: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    super::check_sequence(u, state, resets)?;
    if !is_fused(u) {
        return selective_scan_reference(u, packed, params, state, resets);
    }
    let (batch, states, width) = state.dims3()?;
    let shape = ScanShape { steps: u.dim(0)? / batch, width, states };
    let after = Arc::new(Mutex::new(Vec::new()));
    let op = ScanOp { shape, resets: resets.to_vec(), before: state.detach(), after: after.clone() };
    let y = u.apply_op3(packed, &params.contiguous()?, op)?;
    let after = std::mem::take(&mut *after.lock().map_err(|e| candle_core::Error::Msg(e.to_string()))?);
    Ok((y, Tensor::from_vec(after, state.shape(), u.device())?))
}

/// [`selective_scan`] in plain tensor operations, one frame after the other.
pub fn selective_scan_reference(u: &Tensor, packed: &Tensor, params: &Tensor, state: &Tensor, resets: &[bool]) -> Result<(Tensor, Tensor)> {
    let (batch, states, width) = state.dims3()?;
    let steps = u.dim(0)? / batch;
    let u = u.reshape((batch, steps, 1, width))?;
    let packed = packed.reshape((batch, steps, width + 2 * states))?;
    let raw = packed.narrow(D::Minus1, 0, width)?.unsqueeze(2)?;
    // softplus without overflow: max(x, 0) + ln(1 + e^-|x|)
    let dt = (raw.relu()? + (raw.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    let b = packed.narrow(D::Minus1, width, states)?.unsqueeze(D::Minus1)?;
    let c = packed.narrow(D::Minus1, width + states, states)?.unsqueeze(D::Minus1)?;
    let (a, skip) = (params.narrow(0, 0, states)?, params.i(states)?);
    let mut h = state.clone();
    let mut outputs = Vec::with_capacity(steps);
    for t in 0..steps {
        let keep: Vec<f32> = (0..batch).map(|row| if resets[row * steps + t] { 0.0 } else { 1.0 }).collect();
        let keep = Tensor::from_vec(keep, (batch, 1, 1), u.device())?.to_dtype(u.dtype())?;
        let (dt, u, b, c) = (dt.i((.., t))?, u.i((.., t))?, b.i((.., t))?, c.i((.., t))?);
        let decay = dt.broadcast_mul(&a)?.exp()?;
        h = ((decay * h.broadcast_mul(&keep)?)? + b.broadcast_mul(&(&dt * &u)?)?)?;
        let y = h.broadcast_mul(&c)?.sum(1)?;
        outputs.push((y + u.squeeze(1)?.broadcast_mul(&skip)?)?);
    }
    Ok((Tensor::stack(&outputs, 1)?.reshape((batch * steps, width))?, h.detach()))
}
