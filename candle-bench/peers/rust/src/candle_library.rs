//! Plain Candle: the operations of candle-core and candle-nn, none of candle-models.

use crate::policy::{Affine, EPS, Library, SAMPLE, Selection};
use anyhow::Result;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops;
use std::ops::Range;

pub struct Candle {
    /// Rows of a call.
    pub batch: usize,
}

/// A layer with its weight `[in, out]`.
pub struct Layer {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Library for Candle {
    type V = Tensor;
    type X = Tensor;
    type S = Tensor;
    type I = Tensor;
    type Layer = Layer;

    fn vector(&self, values: &[f32]) -> Result<Tensor> {
        Ok(Tensor::from_slice(values, values.len(), &Device::Cpu)?)
    }

    fn matrix(&self, values: &[f32], shape: [usize; 2]) -> Result<Tensor> {
        Ok(Tensor::from_slice(values, &shape, &Device::Cpu)?)
    }

    fn zeros(&self, shape: [usize; 3]) -> Result<Tensor> {
        Ok(Tensor::zeros(&shape, DType::F32, &Device::Cpu)?)
    }

    fn indices(&self, values: &[u32], shape: [usize; 2]) -> Result<Tensor> {
        Ok(Tensor::from_slice(values, &shape, &Device::Cpu)?)
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        Ok(x.flatten_all()?.to_vec1()?)
    }

    fn read_indices(&self, x: &Tensor) -> Result<Vec<u32>> {
        Ok(x.flatten_all()?.to_vec1()?)
    }

    /// A product of one row is faster with the weight as `candle_nn::Linear` has it, `[out, in]` in memory; one of more rows without.
    fn layer(&self, weight: &[f32], shape: [usize; 2], bias: Option<&[f32]>) -> Result<Layer> {
        let weight = self.matrix(weight, shape)?;
        let weight = if self.batch == 1 { weight.t()?.contiguous()?.t()? } else { weight };
        Ok(Layer { weight, bias: bias.map(|bias| self.vector(bias)).transpose()? })
    }

    fn linear(&self, x: &Tensor, Layer { weight, bias }: &Layer) -> Result<Tensor> {
        let y = x.matmul(weight)?;
        Ok(match bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }

    fn layer_norm(&self, x: &Tensor, Affine { weight, bias }: &Affine<Tensor, Tensor>) -> Result<Tensor> {
        Ok(ops::layer_norm(x, weight, bias, EPS as f32)?)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm(x, weight, EPS as f32)?)
    }

    fn gelu(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.gelu_erf()?)
    }

    fn relu(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.relu()?)
    }

    fn silu(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.silu()?)
    }

    fn softplus(&self, x: &Tensor) -> Result<Tensor> {
        // ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|)), which does not overflow.
        Ok((x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok((a + b)?)
    }

    fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok((a * b)?)
    }

    fn columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        Ok(x.narrow(1, columns.start, columns.len())?.contiguous()?)
    }

    fn index_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        Ok(x.narrow(1, columns.start, columns.len())?)
    }

    fn join(&self, parts: Vec<Tensor>) -> Result<Tensor> {
        Ok(Tensor::cat(&parts, 1)?)
    }

    fn join_indices(&self, parts: Vec<Tensor>) -> Result<Tensor> {
        Ok(Tensor::cat(&parts, 1)?)
    }

    fn shift(&self, x: &Tensor, by: &Tensor) -> Result<Tensor> {
        Ok(if by.dim(1)? == 1 { x.clone() } else { x.broadcast_add(by)? })
    }

    fn look_up(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (rows, columns) = ids.dims2()?;
        let found = table.index_select(&ids.flatten_all()?, 0)?;
        Ok(if columns == 1 { found } else { found.reshape((rows, columns, ()))?.sum(1)? })
    }

    fn decide(&self, logits: &Tensor, uniform: &Tensor) -> Result<Tensor> {
        Ok(uniform.ge(&ops::sigmoid(logits)?.affine(-1.0, 1.0)?)?.to_dtype(DType::U32)?)
    }

    fn draw(&self, logits: &Tensor, uniform: &Tensor) -> Result<Tensor> {
        let classes = logits.dim(1)?;
        let below = ops::softmax_last_dim(logits)?.cumsum(1)?.broadcast_le(uniform)?;
        Ok(below.to_dtype(DType::U32)?.sum_keepdim(1)?.minimum(classes as u32 - 1)?)
    }

    fn or_wanted(&self, picked: Tensor, wanted: &Tensor) -> Result<Tensor> {
        Ok(wanted.eq(SAMPLE)?.where_cond(&picked, wanted)?)
    }

    fn convolve(&self, window: &Tensor, u: &Tensor, taps: &Affine<Tensor, Tensor>) -> Result<(Tensor, Tensor)> {
        let window = Tensor::cat(&[window, &u.unsqueeze(1)?], 1)?;
        let y = window.broadcast_mul(&taps.weight)?.sum(1)?.broadcast_add(&taps.bias)?;
        let frames = window.dim(1)?;
        Ok((y, window.narrow(1, 1, frames - 1)?))
    }

    fn scan(&self, h: &Tensor, u: &Tensor, selected: Selection<Tensor>, fixed: &Affine<Tensor, Tensor>) -> Result<(Tensor, Tensor)> {
        let Selection { dt, b, c } = selected;
        let decay = dt.unsqueeze(D::Minus1)?.broadcast_mul(&fixed.weight)?.exp()?;
        let drive = (dt * u)?.unsqueeze(D::Minus1)?.broadcast_mul(&b.unsqueeze(1)?)?;
        let h = ((decay * h)? + drive)?;
        let y = h.matmul(&c.unsqueeze(D::Minus1)?)?.squeeze(D::Minus1)?;
        Ok(((y + u.broadcast_mul(&fixed.bias)?)?, h))
    }
}
