//! Selective scan (Gu and Dao 2023, equation 2 with the zero-order hold of section 2): for every channel d and state n
//!
//! `h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t]`, `y[t] = sum_n C[t] h[t] + D u[t]`, `dt = softplus(raw)`.
//!
//! On the CPU the backward recomputes the states of one group of 16 channels at a time into scratch that stays in the cache; on CUDA
//! those of 16 frames at a time, from states kept by a forward pass before it.

use super::backward::ScanBackward;
use super::forward::{ScanInput, ScanShape, scan_sequence};
use crate::ops::{After, OutPointer, Rows, contiguous, is_fused, rows_of, sum_in_order, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, D, DType, IndexOp, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

struct ScanOp {
    shape: ScanShape,
    resets: Vec<bool>,
    /// `[B, states, width]` before the sequence.
    before: Tensor,
    after: After,
}

impl ScanOp {
    /// The part of the packed inputs that belongs to one sequence.
    fn input<'a>(&self, u: Rows<'a>, packed: Rows<'a>, (a, skip): (&'a [f32], &'a [f32]), row: usize) -> ScanInput<'a> {
        let ScanShape { steps, width, states } = self.shape;
        let packed = packed.rows_from(row * steps);
        ScanInput {
            u: u.rows_from(row * steps),
            dt: packed.columns(0, width),
            b: packed.columns(width, states),
            c: packed.columns(width + states, states),
            a,
            skip,
        }
    }

    /// A in the form of [`ScanInput`], and the skip.
    fn scaled<'a>(&self, params: &'a [f32]) -> (Vec<f32>, &'a [f32]) {
        let (a, skip) = params.split_at(self.shape.states * self.shape.width);
        (a.iter().map(|a| a * std::f32::consts::LOG2_E).collect(), skip)
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
        let (a, skip) = self.scaled(params);
        let mut out = vec![0.0; u.rows * width];
        out.par_chunks_mut(steps * width).zip(state.par_chunks_mut(states * width)).enumerate().for_each(|(row, (out, state))| {
            let (resets, input) = (&self.resets[row * steps..][..steps], self.input(u, packed, (&a, skip), row));
            let (state, out) = (OutPointer::rows(state, width), OutPointer::rows(out, width));
            // SAFETY: state and output of this sequence belong to this task and have its shape.
            unsafe { scan_sequence(self.shape, 0..width, resets, input, (state, state.data), out) };
        });
        self.after.put(Tensor::from_vec(state, self.before.shape(), self.before.device())?);
        Ok((CpuStorage::F32(out), ul.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        u: &CudaStorage,
        ul: &Layout,
        x: &CudaStorage,
        xl: &Layout,
        p: &CudaStorage,
        pl: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (out, shape, after) = super::cuda::forward(self.shape, &self.resets, &self.before, (u, ul), (x, xl), (p, pl))?;
        self.after.put(after);
        Ok((out, shape))
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
        let packed_width = width + 2 * states;
        let grad = grad.contiguous()?;
        #[cfg(feature = "cuda")]
        if u.device().is_cuda() {
            let [du, dx, dp] = super::cuda::backward(self.shape, &self.resets, &self.before, [u, x, p, &grad])?;
            return Ok((Some(du), Some(dx), Some(dp)));
        }
        let before = self.before.flatten_all()?.to_vec1::<f32>()?;
        let mut du = vec![0.0; u.elem_count()];
        let mut dpacked = vec![0.0; x.elem_count()];
        let dparams = with_rows(&[u, x, p, &grad], |inputs| {
            let [u, packed, params, grad]: [Rows; 4] = [inputs[0], inputs[1], inputs[2], inputs[3]];
            let (a, skip) = self.scaled(&params.data[..(states + 1) * width]);
            let task = |scratch: &mut Vec<f32>, (row, (du, dpacked)): (usize, (&mut [f32], &mut [f32]))| {
                let mut dparams = vec![0.0; (states + 1) * width];
                let dpacked = OutPointer::rows(dpacked, packed_width);
                let backward = ScanBackward {
                    shape: self.shape,
                    resets: &self.resets[row * steps..][..steps],
                    x: self.input(u, packed, (&a, skip), row),
                    grad: grad.rows_from(row * steps),
                    before: &before[row * states * width..][..states * width],
                    du: OutPointer::rows(du, width),
                    ddt: dpacked,
                    dbc: dpacked.columns(width),
                    dparams: &mut dparams,
                    scratch,
                };
                // SAFETY: this task owns the rows of its sequence.
                unsafe { backward.run() };
                dparams
            };
            let rows = du.par_chunks_mut(steps * width).zip(dpacked.par_chunks_mut(steps * packed_width));
            Ok(sum_in_order(rows.enumerate().map_init(Vec::new, task).collect()))
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
    crate::ops::check_sequence(u, state, resets)?;
    if !is_fused(u) {
        let (y, after) = selective_scan_reference(u, packed, params, &state.detach(), resets)?;
        return Ok((y, after.detach()));
    }
    let (batch, states, width) = state.dims3()?;
    let shape = ScanShape { steps: u.dim(0)? / batch, width, states };
    if u.dim(1)? != width || packed.dims() != [u.dim(0)?, width + 2 * states] || params.dims() != [states + 1, width] {
        bail!("selective-scan: rows {:?}, packed {:?}, parameters {:?}, state {:?}", u.dims(), packed.dims(), params.dims(), state.dims());
    }
    let after = After::default();
    let op = ScanOp { shape, resets: resets.to_vec(), before: state.detach(), after: after.clone() };
    let y = u.apply_op3(packed, &params.contiguous()?.to_dtype(DType::F32)?, op)?;
    Ok((y, after.take()?))
}

/// [`selective_scan`] in plain tensor operations, one frame after the other. Here the states do carry gradients.
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
    Ok((Tensor::stack(&outputs, 1)?.reshape((batch * steps, width))?, h))
}
