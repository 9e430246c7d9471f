//! A program without memory as one differentiable operation: feed-forward networks at the price of their products.

use super::owed::Gradients;
use super::{Differentiable, Tape, Tapes};
use crate::Result;
use crate::exec::Target;
use crate::exec::program::{Output, Program, Recorder};
use crate::ops::contiguous;
use crate::signature::Signature;
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// All outputs side by side `[rows, ...]` for all inputs of floats and then those of indices side by side `[rows, ...]`, f32 on the host, with
/// gradients (of indices, zeros). Indices are in their tables: who calls has checked them.
pub(crate) fn feed(
    signature: &Signature,
    record: impl FnOnce(&mut Recorder) -> Result<Vec<Output>>,
    inputs: &Tensor,
    tapes: &Tapes,
) -> Result<Tensor> {
    let net = Differentiable::new(&Program::new(signature, Target::Tape, record)?, tapes.products())?;
    let (gradients, blocks) = (Gradients::default(), Mutex::default());
    let owed = gradients.owed_to(&net.parameters())?;
    let width = |specs: &[crate::signature::TensorSpec]| specs.iter().map(|spec| spec.width()).sum();
    let widths = [width(&signature.inputs), width(&signature.outputs)];
    Ok(inputs.contiguous()?.apply_op2(&owed, Feed { net, widths, tapes: tapes.clone(), blocks, gradients })?)
}

struct Feed {
    net: Differentiable,
    /// Of all inputs and of all outputs.
    widths: [usize; 2],
    tapes: Tapes,
    /// What the forward leaves for the backward.
    blocks: Mutex<Vec<Tape>>,
    gradients: Gradients,
}

impl Feed {
    fn forward(&self, inputs: &[f32], outputs: &mut [f32]) -> Tape {
        let [width, out_width] = self.widths;
        let mut tape = self.tapes.take(&self.net, inputs.len() / width, 1);
        let mut start = 0;
        for (i, slot) in self.net.inputs.iter().enumerate() {
            let rows = tape.input_mut(&self.net, i, 0).chunks_exact_mut(slot.width);
            rows.zip(inputs.chunks_exact(width)).for_each(|(to, from)| to.copy_from_slice(&from[start..start + slot.width]));
            start += slot.width;
        }
        for (i, slot) in self.net.indices.iter().enumerate() {
            for (r, from) in inputs.chunks_exact(width).enumerate() {
                let from = &from[start..start + slot.columns];
                tape.indices_mut(&self.net, i, (0, r)).iter_mut().zip(from).for_each(|(to, from)| *to = *from as u32);
            }
            start += slot.columns;
        }
        tape.forward(&self.net, 0);
        let mut start = 0;
        for (i, slot) in self.net.outputs.iter().enumerate() {
            let rows = tape.output(&self.net, i, 0);
            for (r, to) in outputs.chunks_exact_mut(out_width).enumerate() {
                to[start..start + slot.width].copy_from_slice(rows.row(r));
            }
            start += slot.width;
        }
        self.tapes.rest(&mut tape);
        tape
    }

    /// Runs a block backward; `inputs` are their gradients, where they have any.
    fn backward(&self, tape: &mut Tape, grad: &[f32], inputs: Option<&mut [f32]>) {
        let [width, out_width] = self.widths;
        self.tapes.wake(tape);
        tape.clear(&self.net, 0);
        let mut start = 0;
        for (i, slot) in self.net.outputs.iter().enumerate() {
            tape.add_output_grad(&self.net, i, 0, |r, to| crate::ops::add_into(to, &grad[r * out_width + start..][..slot.width]));
            start += slot.width;
        }
        if let Some(inputs) = inputs {
            tape.backward(&self.net, 0);
            let mut start = 0;
            for (i, slot) in self.net.inputs.iter().enumerate() {
                let rows = tape.input_grad(&self.net, i, 0);
                inputs.chunks_exact_mut(width).enumerate().for_each(|(r, to)| to[start..start + slot.width].copy_from_slice(rows.row(r)));
                start += slot.width;
            }
        } else {
            tape.backward_to_parameters(&self.net, 0);
        }
        self.tapes.rest(tape);
    }
}

impl CustomOp2 for Feed {
    fn name(&self) -> &'static str {
        "feed"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let [width, out_width] = self.widths;
        let x = contiguous(x, layout)?;
        if layout.dims().last() != Some(&width) {
            candle_core::bail!("feed: {width} inputs a row, found {:?}", layout.dims());
        }
        let rows = x.len() / width;
        let mut out = vec![0.0; rows * out_width];
        let block = self.net.block();
        let parts = x.par_chunks(block * width).zip(out.par_chunks_mut(block * out_width));
        let blocks = parts.map(|(x, out)| self.forward(x, out)).collect();
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
        Ok((CpuStorage::F32(out), (rows, out_width).into()))
    }

    fn bwd(&self, x: &Tensor, owed: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let [width, out_width] = self.widths;
        let grad = grad.flatten_all()?.to_vec1::<f32>()?;
        let mut blocks = std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        if blocks.is_empty() {
            candle_core::bail!("feed: a second backward");
        }
        let block = self.net.block();
        let mut dx = x.track_op().then(|| vec![0.0; x.elem_count()]);
        let inputs: Vec<Option<&mut [f32]>> = match &mut dx {
            Some(dx) => dx.chunks_mut(block * width).map(Some).collect(),
            None => blocks.iter().map(|_| None).collect(),
        };
        let parts = grad.par_chunks(block * out_width).zip(inputs);
        blocks.par_iter_mut().zip(parts).for_each(|(tape, (grad, inputs))| self.backward(tape, grad, inputs));
        let dx = dx.map(|dx| Tensor::from_vec(dx, x.shape(), x.device())).transpose()?;
        self.gradients.leave(self.net.gradients(&blocks.iter().collect::<Vec<_>>())?);
        blocks.into_iter().for_each(|tape| self.tapes.put(tape));
        Ok((dx, Some(owed.zeros_like()?)))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // A pass without a backward.
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        blocks.drain(..).for_each(|tape| self.tapes.put(tape));
    }
}
