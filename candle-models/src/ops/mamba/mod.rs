//! Mamba block (Gu and Dao 2023, figure 3 and algorithm 2), pre-norm and residual: `x` `[rows, D]` to the same shape.
//!
//! `x + W_out (scan(silu(conv(x_in))) * silu(z))` with `x_in, z = W_in rms_norm(x)`. Shape letters: D model width, E = expand * D inner
//! width, N states per channel, R rank of the step size, K taps. The step size, B and C depend on the input; A and the skip
//! D are learned. Not included: the parallel scan over time (windows are short, the batch and the channels are the
//! parallel axes) and the normalisation of B and C of later work.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tensors;

pub(crate) use tensors::{MambaWeights, mamba_block};

use super::{Activation, Linear, Norm, dropout_factors, is_on_host};
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Block, Executor, Operation, Target, Values, Widths, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;

/// The block: operand `x`, two states (of the convolution and of the scan).
#[derive(Debug, Clone)]
pub struct Mamba {
    pub(crate) norm: Norm,
    pub(crate) in_proj: Linear,
    pub(crate) conv_weight: Tensor,
    pub(crate) conv_bias: Tensor,
    pub(crate) x_proj: Linear,
    pub(crate) dt_proj: Linear,
    pub(crate) a_log: Tensor,
    pub(crate) skip: Tensor,
    pub(crate) out_proj: Linear,
    pub(crate) sizes: MambaSizes,
    /// The number of its first state.
    pub(crate) state: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct MambaSizes {
    pub inner: usize,
    pub states: usize,
    pub rank: usize,
}

impl Mamba {
    /// The parameters and what is added to the norm's mean square: for the block as one operation.
    fn weights(&self) -> Result<(MambaWeights<'_>, f64)> {
        let Some(dt_bias) = &self.dt_proj.bias else { return Err(Error::tensor("dt_proj.bias", "a parameter", "nothing")) };
        let weights = MambaWeights {
            norm: &self.norm.weight,
            in_proj: &self.in_proj.weight,
            conv_weight: &self.conv_weight,
            conv_bias: &self.conv_bias,
            x_proj: &self.x_proj.weight,
            dt_weight: &self.dt_proj.weight,
            dt_bias,
            a_log: &self.a_log,
            skip: &self.skip,
            out_proj: &self.out_proj.weight,
        };
        Ok((weights, self.norm.eps))
    }
}

impl Operation for Mamba {
    fn name(&self) -> &'static str {
        "mamba"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let [x] = operands(self.name(), x)?;
        same_width("mamba", x, self.norm.weight.dim(0)?)?;
        Ok(Widths::floats(x))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        Self { state: pass.number(0)?, ..self.clone() }.compose(pass.executor(), x, ids)
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        if !self.is_one_on_tensors(pass, x, ids) {
            return self.reference(pass, x, ids);
        }
        let ([x], (weights, eps)) = (operands(self.name(), x)?, self.weights()?);
        let mask = pass.next_dropout(x.dim(1)?).map(|(probability, random)| dropout_factors(x.elem_count(), probability, random));
        let before = [pass.state(0)?, pass.state(1)?];
        let (y, [conv, scan]) = mamba_block(x, &weights, eps, before, pass.resets(), mask)?;
        pass.set_state(0, conv)?;
        pass.set_state(1, scan)?;
        Ok(Values::floats(y))
    }

    /// A block of one frame: norm, product, convolution with its product, step size with scan and gate, product with the residual.
    #[cfg(feature = "cuda")]
    fn launch(
        &self,
        wires: &crate::exec::program::Wires,
        compiler: &mut crate::exec::cuda::Compiler,
    ) -> Result<Option<crate::exec::cuda::Run>> {
        use super::cuda::product::{Behind, product};
        use super::{NormKind, SelectiveScan};
        use crate::cuda::Matrix;
        let (x, out, [conv_state, scan_state]) = (wires.x[0], wires.out[0], operands(self.name(), &wires.states)?);
        let (w, eps) = self.weights()?;
        let ((inner, states), (taps, columns)) = (w.a_log.dims2()?, (w.conv_weight.dim(0)?, w.x_proj.dim(1)?));
        let (rank, slices) = (columns - 2 * states, cuda::slices(inner));
        let (gain, in_proj, out_proj) = (compiler.vector(w.norm)?, compiler.matrix(w.in_proj)?, compiler.matrix(w.out_proj)?);
        let (conv_weight, conv_bias) = (compiler.vector(w.conv_weight)?, compiler.vector(w.conv_bias)?);
        let (x_proj, dt_weight) = (compiler.matrix(w.x_proj)?, compiler.matrix(w.dt_weight)?);
        let (dt_bias, skip) = (compiler.vector(w.dt_bias)?, compiler.vector(w.skip)?);
        let a = compiler.vector(&SelectiveScan::decay(w.a_log)?)?;
        let [normed, xz, u, y] = [x.width, 2 * inner, inner, inner].map(|width| compiler.scratch(width));
        let shares = compiler.scratch(slices * columns);
        let (x, narrowed) = compiler.narrow(x);
        compiler.reserve(normed, 2 * inner);
        compiler.reserve(y, x.width);
        Ok(Some(Box::new(move |pass| {
            narrowed.map_or(Ok(()), |(from, to)| pass.copy(from, to))?;
            let (rows, dtype, resets) = (pass.rows(), pass.dtype, pass.resets());
            let matrix = |data, width: usize| Matrix { data, stride: width as u32, width: width as u32 };
            let shares = pass.matrix(shares).data;
            let (groups, kind) = ((rows, x.width), (NormKind::Rms, eps));
            let norm = super::norm::cuda::Norm::new([pass.matrix(x), pass.matrix(normed)], [gain, 0], groups, kind, Activation::None);
            let conv = cuda::MambaConv {
                x: pass.matrix(xz.columns(0, inner)),
                u: pass.matrix(u),
                projection: matrix(x_proj, columns),
                weight: conv_weight,
                bias: conv_bias,
                state: pass.state(conv_state),
                resets,
                shares,
                taps: taps as u32,
            };
            let scan = cuda::MambaScan {
                u: pass.matrix(u),
                z: pass.matrix(xz.columns(inner, inner)),
                out: pass.matrix(y),
                dt_weight: matrix(dt_weight, inner),
                dt_bias,
                a,
                skip,
                state: pass.state(scan_state),
                resets,
                shares,
                slices: slices as u32,
                rank: rank as u32,
                states: states as u32,
            };
            let residual = Behind { residual: pass.operand(x), ..Behind::NOTHING };
            let (into, out_of) = ((pass.operand(normed), in_proj, pass.operand(xz)), (pass.operand(y), out_proj, pass.operand(out)));
            // SAFETY: the plan gives every matrix of a pass its rows; every sequence has a slot.
            unsafe {
                norm.launch(pass.gpu, dtype)?;
                product(pass.gpu, dtype, into, rows, &Behind::NOTHING, pass.product)?;
                conv.launch(pass.gpu, dtype, rows)?;
                scan.launch(pass.gpu, dtype, rows)?;
                product(pass.gpu, dtype, out_of, rows, &residual, pass.product)?;
            }
            Ok(())
        })))
    }
}

impl Block for Mamba {
    fn states(&self) -> Vec<usize> {
        vec![self.state, self.state + 1]
    }

    /// Its kernels on CUDA take one frame.
    fn is_one(&self, target: Target) -> bool {
        target == Target::Cuda { steps: 1 }
    }

    /// One node of the graph is a gain where memory is the CPU's; on CUDA the operations are kernels of their own.
    fn is_one_on_tensors(&self, pass: &TensorPass, x: &[&Tensor], _: &[&Indices]) -> bool {
        !pass.is_through_time() && x.first().is_some_and(|x| is_on_host(x))
    }

    fn compose<E: Executor>(&self, e: &mut E, x: &[&E::V], _: &[&E::I]) -> Result<Values<E::V, E::I>> {
        let (MambaSizes { inner, states, rank }, [x]) = (self.sizes, operands(self.name(), x)?);
        let y = e.norm(x, &self.norm, Activation::None)?;
        let xz = e.linear(&y, &self.in_proj, Activation::None)?;
        let (u, z) = (e.columns(&xz, 0, inner)?, e.columns(&xz, inner, inner)?);
        let u = e.causal_conv(&u, &self.conv_weight, &self.conv_bias, self.state)?;
        let selection = e.linear(&u, &self.x_proj, Activation::None)?;
        let (low, bc) = (e.columns(&selection, 0, rank)?, e.columns(&selection, rank, 2 * states)?);
        let dt = e.linear(&low, &self.dt_proj, Activation::None)?;
        let y = e.selective_scan([&u, &dt, &bc], &self.a_log, &self.skip, self.state + 1)?;
        let y = e.gate(&y, &z)?;
        let y = e.linear(&y, &self.out_proj, Activation::None)?;
        let y = e.dropout(&y)?;
        Ok(Values::floats(e.add(x, &y)?))
    }
}
