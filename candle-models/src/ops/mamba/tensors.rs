//! A whole Mamba block as one node of the graph: norm, input product, convolution, selection, scan, gate, output product,
//! residual sum (`nn::Mamba` has the equations).
//!
//! As separate nodes, each intermediate result gets a gradient that Candle clears, writes and adds to, and the two halves of the
//! input product's gradient are padded with zeros to its full width and added. Here the sequences run one by one through
//! everything between the two large products, in the second-level cache, and the backward writes each half where it belongs.

use crate::ops::ConvBackward;
use crate::ops::ScanBackward;
use crate::ops::linear::{Operand, Target, column_sums};
use crate::ops::norm::{norm_rows, norm_rows_backward};
use crate::ops::{
    Activation, After, ConvShape, NormKind, OutPointer, Products, Rows, ScanInput, ScanShape, by_sequence, contiguous, rows_of, with_rows,
};
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use std::sync::OnceLock;

/// The parameters of a block, all but the largest one in the order in which they are packed: Candle clears, adds and writes
/// the gradient of every tensor on the way to a parameter, and a packed one has two more of them.
pub(crate) struct MambaWeights<'a> {
    /// Gain of the RMS norm, `[D]`.
    pub norm: &'a Tensor,
    /// `[D, 2 E]`.
    pub in_proj: &'a Tensor,
    /// `[K, E]`.
    pub conv_weight: &'a Tensor,
    /// `[E]`.
    pub conv_bias: &'a Tensor,
    /// `[E, R + 2 N]`.
    pub x_proj: &'a Tensor,
    /// `[R, E]`.
    pub dt_weight: &'a Tensor,
    /// `[E]`.
    pub dt_bias: &'a Tensor,
    /// `[E, N]`.
    pub a_log: &'a Tensor,
    /// `[E]`.
    pub skip: &'a Tensor,
    /// `[E, D]`.
    pub out_proj: &'a Tensor,
}

impl MambaWeights<'_> {
    fn packed(&self) -> [&Tensor; 9] {
        let Self { norm, in_proj: _, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, a_log, skip, out_proj } = self;
        [norm, conv_weight, conv_bias, x_proj, dt_weight, dt_bias, a_log, skip, out_proj]
    }
}

/// Sizes: sequences, frames, model width, inner width, states, rank of the step size, taps.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    steps: usize,
    width: usize,
    inner: usize,
    states: usize,
    rank: usize,
    taps: usize,
}

impl Sizes {
    fn selection(self) -> usize {
        self.rank + 2 * self.states
    }

    /// Lengths of the packed parameters.
    fn lengths(self) -> [usize; 9] {
        let Self { width, inner, states, rank, taps, .. } = self;
        [width, taps * inner, inner, inner * self.selection(), rank * inner, inner, inner * states, inner, inner * width]
    }

    fn split(self, packed: &[f32]) -> [&[f32]; 9] {
        let mut rest = packed;
        self.lengths().map(|n| rest.split_off(..n).unwrap_or_default())
    }

    fn split_mut(self, packed: &mut [f32]) -> [&mut [f32]; 9] {
        let mut rest = packed;
        self.lengths().map(|n| rest.split_off_mut(..n).unwrap_or_default())
    }

    fn scan(self) -> ScanShape {
        ScanShape { steps: self.steps, width: self.inner, states: self.states }
    }

    fn conv(self) -> ConvShape {
        ConvShape { steps: self.steps, width: self.inner, taps: self.taps }
    }
}

/// What the backward reads again.
struct Kept {
    /// Product of the input: the convolution's half and the gate's half, `[rows, 2 E]`.
    xz: Vec<f32>,
    /// Output of the convolution, `[rows, E]`.
    u: Vec<f32>,
    /// `[rows, R + 2 N]`.
    selection: Vec<f32>,
    /// Step sizes before softplus, `[rows, E]`.
    dt: Vec<f32>,
    /// Output of the scan, `[rows, E]`.
    y: Vec<f32>,
    /// The gated output, `[rows, E]`.
    gated: Vec<f32>,
}

/// What a thread works in, from sequence to sequence.
#[derive(Default)]
struct Scratch {
    dy: Vec<f32>,
    du: Vec<f32>,
    scan: Vec<f32>,
}

struct MambaOp {
    products: Products,
    sizes: Sizes,
    eps: f32,
    resets: Vec<bool>,
    /// States before the sequences, `[B, K - 1, E]` and `[B, N, E]`.
    before: [Vec<f32>; 2],
    after: [After; 2],
    /// Factors on the block's output, `[rows, D]`.
    mask: Option<Vec<f32>>,
    kept: OnceLock<Kept>,
}

fn matrix(data: &[f32], width: usize) -> Rows<'_> {
    Rows { data, rows: data.len() / width, width, stride: width }
}

impl MambaOp {
    /// A in the scan's form, `[N, E]` times log2(e), from `a_log` `[E, N]`.
    fn decay_rates(&self, a_log: &[f32]) -> Vec<f32> {
        let Sizes { inner, states, .. } = self.sizes;
        let rate = |i: usize| -a_log[i % inner * states + i / inner].exp() * std::f32::consts::LOG2_E;
        (0..states * inner).map(rate).collect()
    }

    fn selection<'a>(&self, selection: &'a [f32]) -> [Rows<'a>; 3] {
        let Sizes { rank, states, .. } = self.sizes;
        let all = matrix(selection, self.sizes.selection());
        [all.columns(0, rank), all.columns(rank, states), all.columns(rank + states, states)]
    }

    fn forward(&self, x: Rows, in_proj: &[f32], packed: &[f32]) -> Result<Vec<f32>> {
        let sizes @ Sizes { batch, steps, width, inner, states, taps, .. } = self.sizes;
        let [norm, conv, conv_bias, x_proj, dt_weight, dt_bias, a_log, skip, out_proj] = sizes.split(packed);
        let normalised = norm_rows(NormKind::Rms, self.eps, Activation::None, x, norm, &[]);
        let xz = self.products.product_new(Operand::new(&normalised, width), Operand::new(in_proj, 2 * inner));
        let a = self.decay_rates(a_log);
        let widths = [inner, sizes.selection(), inner, inner, inner, (taps - 1) * inner, states * inner];
        let rows = [steps, steps, steps, steps, steps, 1, 1];
        let (buffers, _) = by_sequence(batch, rows, widths, |b, _: &mut (), [u, selection, dt, y, gated, conv_state, state]| {
            let xz = matrix(&xz[b * steps * 2 * inner..][..steps * 2 * inner], 2 * inner);
            let resets = &self.resets[b * steps..][..steps];
            conv_state.copy_from_slice(&self.before[0][b * conv_state.len()..][..conv_state.len()]);
            state.copy_from_slice(&self.before[1][b * state.len()..][..state.len()]);
            let pointers = (OutPointer::rows(conv_state, inner), OutPointer::rows(u, inner));
            // SAFETY: state and output of this sequence belong to this task and have its shape.
            unsafe {
                crate::ops::conv_sequence(sizes.conv(), 0..inner, resets, xz.columns(0, inner), (conv, conv_bias), pointers.0, pointers.1)
            };
            self.products.product_alone(
                Operand::new(u, inner),
                Operand::new(x_proj, sizes.selection()),
                selection,
                sizes.selection(),
                Target::Fresh,
            );
            let [low, b, c] = self.selection(selection);
            dt.chunks_mut(inner).for_each(|row| row.copy_from_slice(dt_bias));
            self.products.product_alone(low.into(), Operand::new(dt_weight, inner), dt, inner, Target::Sum);
            let input = ScanInput { u: matrix(u, inner), dt: matrix(dt, inner), b, c, a: &a, skip };
            let state_at = OutPointer::rows(state, inner);
            // SAFETY: as above.
            unsafe {
                crate::ops::scan_sequence(sizes.scan(), 0..inner, resets, input, (state_at, state_at.data), OutPointer::rows(y, inner))
            };
            for (t, (y, gated)) in y.chunks(inner).zip(gated.chunks_mut(inner)).enumerate() {
                crate::ops::gate_row(y, &xz.row(t)[inner..], gated);
            }
        });
        let [u, selection, dt, y, gated, conv_state, state] = buffers;
        self.after[0].put(Tensor::from_vec(conv_state, (batch, taps - 1, inner), &Device::Cpu)?);
        self.after[1].put(Tensor::from_vec(state, (batch, states, inner), &Device::Cpu)?);
        let out = self.output(x, &gated, out_proj);
        self.kept.get_or_init(|| Kept { xz, u, selection, dt, y, gated });
        Ok(out)
    }

    /// `x + mask (gated W_out)`.
    fn output(&self, x: Rows, gated: &[f32], out_proj: &[f32]) -> Vec<f32> {
        let Sizes { width, inner, .. } = self.sizes;
        let product_of = (Operand::new(gated, inner), Operand::new(out_proj, width));
        let Some(mask) = &self.mask else {
            let mut out: Vec<f32> = Vec::with_capacity(x.rows * width);
            (0..x.rows).for_each(|r| out.extend_from_slice(x.row(r)));
            self.products.product(product_of.0, product_of.1, &mut out, width, Target::Sum);
            return out;
        };
        let mut out = self.products.product_new(product_of.0, product_of.1);
        out.par_chunks_mut(width).zip(mask.par_chunks(width)).enumerate().with_min_len(32).for_each(|(r, (out, mask))| {
            out.iter_mut().zip(mask).zip(x.row(r)).for_each(|((o, m), x)| *o = x + *o * m);
        });
        out
    }

    /// The gradients of the input, of its product's weight and of the packed parameters.
    fn backward(&self, x: Rows, (in_proj, packed): (&[f32], &[f32]), kept: &Kept, grad: Rows) -> [Vec<f32>; 3] {
        let sizes @ Sizes { batch, steps, width, inner, .. } = self.sizes;
        let selected = sizes.selection();
        let [norm, .., a_log, _, out_proj] = sizes.split(packed);
        let mut dpacked = vec![0.0; packed.len()];
        let [dnorm, dconv, dconv_bias, dx_proj, ddt_weight, ddt_bias, da_log, dskip, dout] = sizes.split_mut(&mut dpacked);
        let masked: Option<Vec<f32>> =
            self.mask.as_ref().map(|mask| grad.data[..mask.len()].par_iter().zip(mask).map(|(g, m)| g * m).collect());
        let projected = masked.as_ref().map_or(grad, |g| matrix(g, width));
        self.products.product(Operand::new(&kept.gated, inner).t(), projected.into(), dout, width, Target::Fresh);
        let dgated = self.products.product_new(projected.into(), Operand::new(out_proj, width).t());

        let rates = self.decay_rates(a_log);
        let ([dxz, dselection, ddt], sums) =
            by_sequence(batch, [steps; 3], [2 * inner, selected, inner], |b, scratch: &mut Scratch, [dxz, dselection, ddt]| {
                self.sequence_backward(b, (packed, &rates), (kept, &dgated[b * steps * inner..]), scratch, [dxz, dselection, ddt])
            });
        self.products.product(Operand::new(&kept.u, inner).t(), Operand::new(&dselection, selected), dx_proj, selected, Target::Fresh);
        let [low, ..] = self.selection(&kept.selection);
        self.products.product(Operand::from(low).t(), Operand::new(&ddt, inner), ddt_weight, inner, Target::Fresh);
        ddt_bias.copy_from_slice(&column_sums(matrix(&ddt, inner)));
        let normalised = norm_rows(NormKind::Rms, self.eps, Activation::None, x, norm, &[]);
        let din = self.products.product_new(Operand::new(&normalised, width).t(), Operand::new(&dxz, 2 * inner));

        let sums = crate::ops::sum_in_order(sums);
        let (conv, scan) = sums.split_at(dconv.len() + inner);
        dconv.copy_from_slice(&conv[..dconv.len()]);
        dconv_bias.copy_from_slice(&conv[dconv.len()..]);
        let (da, ds) = scan.split_at(da_log.len());
        dskip.copy_from_slice(ds);
        self.log_gradient(packed, da, da_log);

        let dnormalised = self.products.product_new(Operand::new(&dxz, 2 * inner), Operand::new(in_proj, 2 * inner).t());
        let (mut dx, gain, _) = norm_rows_backward(NormKind::Rms, self.eps, Activation::None, x, (norm, &[]), matrix(&dnormalised, width));
        dnorm.copy_from_slice(&gain);
        let block = 64 * width;
        dx.par_chunks_mut(block).enumerate().for_each(|(i, dx)| {
            for (r, dx) in dx.chunks_mut(width).enumerate() {
                crate::ops::add_into(dx, grad.row(i * 64 + r));
            }
        });
        [dx, din, dpacked]
    }

    /// The gradient of `a_log` `[E, N]` from that of A `[N, E]`, where A = -exp(a_log).
    fn log_gradient(&self, packed: &[f32], da: &[f32], da_log: &mut [f32]) {
        let Sizes { inner, states, .. } = self.sizes;
        let [.., a_log, _, _] = self.sizes.split(packed);
        for (i, (to, a)) in da_log.iter_mut().zip(a_log).enumerate() {
            *to = -a.exp() * da[i % states * inner + i / states];
        }
    }

    /// One sequence from the gated output back to the input product; returns the gradients of taps and bias, A and skip.
    fn sequence_backward(
        &self,
        sequence: usize,
        (packed, a): (&[f32], &[f32]),
        (kept, dgated): (&Kept, &[f32]),
        scratch: &mut Scratch,
        [dxz, dselection, ddt]: [&mut [f32]; 3],
    ) -> Vec<f32> {
        let sizes @ Sizes { steps, inner, states, rank, taps, .. } = self.sizes;
        let [_, conv, conv_bias, x_proj, dt_weight, _, _, skip, _] = sizes.split(packed);
        let part = |data, width| Rows { rows: steps, ..matrix(data, width).rows_from(sequence * steps) };
        let (xz, u, dt) = (part(&kept.xz, 2 * inner), part(&kept.u, inner), part(&kept.dt, inner));
        let (y, selection) = (part(&kept.y, inner), part(&kept.selection, sizes.selection()));
        let (resets, selected) = (&self.resets[sequence * steps..][..steps], sizes.selection());

        let Scratch { dy, du, scan } = scratch;
        dy.resize(steps * inner, 0.0);
        du.resize(steps * inner, 0.0);
        for (t, dy) in dy.chunks_mut(inner).enumerate() {
            let dz = &mut dxz[t * 2 * inner + inner..][..inner];
            crate::ops::gate_row_backward(y.row(t), &xz.row(t)[inner..], &dgated[t * inner..][..inner], dy, dz);
        }
        let mut sums = vec![0.0; (taps + 1) * inner + (states + 1) * inner];
        let (conv_sums, scan_sums) = sums.split_at_mut((taps + 1) * inner);
        let dbc = OutPointer::rows(dselection, selected).columns(rank);
        let backward = ScanBackward {
            shape: sizes.scan(),
            resets,
            x: ScanInput { u, dt, b: selection.columns(rank, states), c: selection.columns(rank + states, states), a, skip },
            grad: matrix(dy, inner),
            before: &self.before[1][sequence * states * inner..][..states * inner],
            du: OutPointer::rows(du, inner),
            ddt: OutPointer::rows(ddt, inner),
            dbc,
            dparams: scan_sums,
            scratch: scan,
        };
        // SAFETY: the three outputs are matrices of this sequence that this task alone holds.
        unsafe { backward.run() };
        self.products.product_alone(Operand::new(ddt, inner), Operand::new(dt_weight, inner).t(), dselection, selected, Target::Fresh);
        self.products.product_alone(Operand::new(dselection, selected), Operand::new(x_proj, selected).t(), du, inner, Target::Sum);
        let backward = ConvBackward {
            shape: sizes.conv(),
            resets,
            x: xz.columns(0, inner),
            state: &self.before[0][sequence * (taps - 1) * inner..][..(taps - 1) * inner],
            weight: conv,
            bias: conv_bias,
        };
        // SAFETY: the left half of this sequence's gradient, which is zero so far.
        unsafe { backward.run(matrix(du, inner), OutPointer::rows(dxz, 2 * inner), conv_sums) };
        sums
    }
}

impl CustomOp3 for MambaOp {
    fn name(&self) -> &'static str {
        "mamba"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        p: &CpuStorage,
        pl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, in_proj, packed) = (rows_of(x, xl)?, contiguous(w, wl)?, contiguous(p, pl)?);
        Ok((CpuStorage::F32(self.forward(x, in_proj, packed)?), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        p: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(kept) = self.kept.get() else { candle_core::bail!("mamba: a backward before the forward") };
        let flat = [w.flatten_all()?.unsqueeze(0)?, p.unsqueeze(0)?];
        let [dx, dw, dp] = with_rows(&[x, &flat[0], &flat[1], &grad.contiguous()?], |inputs| {
            Ok(self.backward(inputs[0], (inputs[1].row(0), inputs[2].row(0)), kept, inputs[3]))
        })?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), x.device());
        Ok((Some(tensor(dx, x)?), Some(tensor(dw, w)?), Some(tensor(dp, p)?)))
    }
}

/// The block over `B` sequences of `T` frames: `x` `[B * T, D]`, states `[B, K - 1, E]` and `[B, N, E]`, `mask` `[B * T, D]` factors
/// on what is added to `x`. Returns the output and the states behind the sequences, which carry no gradient. f32 on the CPU.
pub(crate) fn mamba_block(
    x: &Tensor,
    weights: &MambaWeights,
    eps: f64,
    states: [&Tensor; 2],
    resets: &[bool],
    mask: Option<Vec<f32>>,
) -> Result<(Tensor, [Tensor; 2])> {
    crate::ops::check_sequence(x, states[0], resets)?;
    let (batch, width) = (states[0].dim(0)?, x.dim(1)?);
    let ((inner, n), (rank, _)) = (weights.a_log.dims2()?, weights.dt_weight.dims2()?);
    let taps = weights.conv_weight.dim(0)?;
    let sizes = Sizes { batch, steps: x.dim(0)? / batch, width, inner, states: n, rank, taps };
    let flat = weights.packed().map(|t| t.flatten_all());
    let packed = Tensor::cat(&flat.into_iter().collect::<Result<Vec<_>>>()?, 0)?;
    if packed.elem_count() != sizes.lengths().iter().sum::<usize>() || weights.in_proj.dims() != [width, 2 * inner] {
        candle_core::bail!("mamba: {:?} and {} parameters for {:?}", weights.in_proj, packed.elem_count(), sizes.lengths());
    }
    let before = [states[0].flatten_all()?.to_vec1()?, states[1].flatten_all()?.to_vec1()?];
    let after = [After::default(), After::default()];
    let op = MambaOp {
        products: Products::current(),
        sizes,
        eps: eps as f32,
        resets: resets.to_vec(),
        before,
        after: after.clone(),
        mask,
        kept: OnceLock::new(),
    };
    let y = x.contiguous()?.apply_op3(&weights.in_proj.contiguous()?, &packed, op)?;
    Ok((y, [after[0].take()?, after[1].take()?]))
}
