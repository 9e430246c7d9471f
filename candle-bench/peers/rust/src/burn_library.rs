//! Burn on its backend flex, the CPU backend that it recommends for eager execution.

use crate::policy::{Affine, EPS, Library, SAMPLE, Selection};
use anyhow::Result;
use burn::tensor::module::{layer_norm, linear};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use std::ops::Range;

pub struct Burn {
    device: Device,
}

impl Default for Burn {
    fn default() -> Self {
        Self { device: Device::flex() }
    }
}

pub struct Layer {
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl Library for Burn {
    type V = Tensor<1>;
    type X = Tensor<2>;
    type S = Tensor<3>;
    type I = Tensor<2, Int>;
    type Layer = Layer;

    fn vector(&self, values: &[f32]) -> Result<Tensor<1>> {
        Ok(Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &self.device))
    }

    fn matrix(&self, values: &[f32], shape: [usize; 2]) -> Result<Tensor<2>> {
        Ok(Tensor::from_data(TensorData::new(values.to_vec(), shape), &self.device))
    }

    fn zeros(&self, shape: [usize; 3]) -> Result<Tensor<3>> {
        Ok(Tensor::zeros(shape, &self.device))
    }

    /// [`SAMPLE`] becomes -1.
    fn indices(&self, values: &[u32], shape: [usize; 2]) -> Result<Tensor<2, Int>> {
        let values: Vec<i64> = values.iter().map(|x| if *x == SAMPLE { -1 } else { i64::from(*x) }).collect();
        Ok(Tensor::from_data(TensorData::new(values, shape), &self.device))
    }

    fn read(&self, x: &Tensor<2>) -> Result<Vec<f32>> {
        Ok(x.to_data().iter().collect())
    }

    fn read_indices(&self, x: &Tensor<2, Int>) -> Result<Vec<u32>> {
        Ok(x.to_data().iter().collect())
    }

    fn layer(&self, weight: &[f32], shape: [usize; 2], bias: Option<&[f32]>) -> Result<Layer> {
        Ok(Layer { weight: self.matrix(weight, shape)?, bias: bias.map(|bias| self.vector(bias)).transpose()? })
    }

    fn linear(&self, x: &Tensor<2>, layer: &Layer) -> Result<Tensor<2>> {
        Ok(linear(x.clone(), layer.weight.clone(), layer.bias.clone()))
    }

    fn layer_norm(&self, x: &Tensor<2>, norm: &Affine<Tensor<1>, Tensor<1>>) -> Result<Tensor<2>> {
        Ok(layer_norm(x.clone(), norm.weight.clone(), Some(norm.bias.clone()), EPS))
    }

    fn rms_norm(&self, x: &Tensor<2>, weight: &Tensor<1>) -> Result<Tensor<2>> {
        let mean = x.clone().square().mean_dim(1);
        Ok(x.clone() / (mean + EPS).sqrt() * weight.clone().unsqueeze())
    }

    fn gelu(&self, x: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(activation::gelu(x.clone()))
    }

    fn relu(&self, x: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(activation::relu(x.clone()))
    }

    fn silu(&self, x: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(activation::silu(x.clone()))
    }

    fn softplus(&self, x: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(activation::softplus(x.clone(), 1.0))
    }

    fn add(&self, a: &Tensor<2>, b: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(a.clone() + b.clone())
    }

    fn mul(&self, a: &Tensor<2>, b: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(a.clone() * b.clone())
    }

    fn columns(&self, x: &Tensor<2>, columns: Range<usize>) -> Result<Tensor<2>> {
        Ok(x.clone().narrow(1, columns.start, columns.len()))
    }

    fn index_columns(&self, x: &Tensor<2, Int>, columns: Range<usize>) -> Result<Tensor<2, Int>> {
        Ok(x.clone().narrow(1, columns.start, columns.len()))
    }

    fn join(&self, parts: Vec<Tensor<2>>) -> Result<Tensor<2>> {
        Ok(Tensor::cat(parts, 1))
    }

    fn join_indices(&self, parts: Vec<Tensor<2, Int>>) -> Result<Tensor<2, Int>> {
        Ok(Tensor::cat(parts, 1))
    }

    fn shift(&self, x: &Tensor<2, Int>, by: &Tensor<2, Int>) -> Result<Tensor<2, Int>> {
        Ok(if by.dims()[1] == 1 { x.clone() } else { x.clone() + by.clone() })
    }

    fn look_up(&self, table: &Tensor<2>, ids: &Tensor<2, Int>) -> Result<Tensor<2>> {
        let ([rows, columns], [_, width]) = (ids.dims(), table.dims());
        let found = table.clone().select(0, ids.clone().reshape([rows * columns]));
        Ok(if columns == 1 { found } else { found.reshape([rows, columns, width]).sum_dim(1).reshape([rows, width]) })
    }

    fn decide(&self, logits: &Tensor<2>, uniform: &Tensor<2>) -> Result<Tensor<2, Int>> {
        let no = activation::sigmoid(logits.clone()).neg() + 1.0;
        Ok(uniform.clone().greater_equal(no).int())
    }

    fn draw(&self, logits: &Tensor<2>, uniform: &Tensor<2>) -> Result<Tensor<2, Int>> {
        let [rows, classes] = logits.dims();
        let below = activation::softmax(logits.clone(), 1).cumsum(1).lower_equal(uniform.clone().expand([rows, classes]));
        Ok(below.int().sum_dim(1).clamp_max(classes as i64 - 1))
    }

    fn or_wanted(&self, picked: Tensor<2, Int>, wanted: &Tensor<2, Int>) -> Result<Tensor<2, Int>> {
        Ok(wanted.clone().mask_where(wanted.clone().lower_elem(0), picked))
    }

    fn convolve(&self, window: &Tensor<3>, u: &Tensor<2>, taps: &Affine<Tensor<2>, Tensor<1>>) -> Result<(Tensor<2>, Tensor<3>)> {
        let ([rows, width], [_, kept, _]) = (u.dims(), window.dims());
        let window = Tensor::cat(vec![window.clone(), u.clone().reshape([rows, 1, width])], 1);
        let y = (window.clone() * taps.weight.clone().unsqueeze()).sum_dim(1).reshape([rows, width]) + taps.bias.clone().unsqueeze();
        Ok((y, window.narrow(1, 1, kept)))
    }

    fn scan(
        &self,
        h: &Tensor<3>,
        u: &Tensor<2>,
        selected: Selection<Tensor<2>>,
        fixed: &Affine<Tensor<2>, Tensor<1>>,
    ) -> Result<(Tensor<2>, Tensor<3>)> {
        let (Selection { dt, b, c }, [rows, inner, states]) = (selected, h.dims());
        let decay = (dt.clone().reshape([rows, inner, 1]) * fixed.weight.clone().unsqueeze()).exp();
        let drive = (dt * u.clone()).reshape([rows, inner, 1]) * b.reshape([rows, 1, states]);
        let h = decay * h.clone() + drive;
        let y = h.clone().matmul(c.reshape([rows, states, 1])).reshape([rows, inner]);
        Ok((y + u.clone() * fixed.bias.clone().unsqueeze(), h))
    }
}
