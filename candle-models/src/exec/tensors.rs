//! The executor on Candle tensors: gradients, any dtype, training noise from addressed random numbers.

use super::{Choice, Executor, IndexColumns, SAMPLE, pick};
use crate::nn::{Linear, Norm};
use crate::ops::{self, Activation, Attention};
use crate::random::Random;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{D, DType, Device, Tensor};
use rayon::prelude::*;

/// Noise that training adds. The random numbers are addressed by the call's place in the pass, so the same pass draws the same noise.
#[derive(Debug, Clone, Copy)]
pub struct Regularisation {
    /// Probability that a hidden value is dropped.
    pub dropout: f32,
    /// Probability that an id is replaced by "absent".
    pub drop_ids: f32,
    /// Address of this pass: the seed and the step.
    pub random: Random,
}

/// Runs a model on tensors. Made anew for every pass.
pub struct TensorExecutor<'a> {
    inputs: &'a NamedTensors,
    resets: &'a [bool],
    batch: usize,
    states: Vec<Tensor>,
    noise: Option<Regularisation>,
    calls: u64,
    device: Device,
}

impl<'a> TensorExecutor<'a> {
    /// A pass over `inputs` `[B, T, ...]` with the states in the signature's order.
    pub fn new(inputs: &'a NamedTensors, resets: &'a [bool], states: Vec<Tensor>, batch: usize, device: &Device) -> Self {
        Self { inputs, resets, batch, states, noise: None, calls: 0, device: device.clone() }
    }

    /// Adds training noise.
    pub fn with_noise(mut self, noise: Regularisation) -> Self {
        self.noise = Some(noise);
        self
    }

    /// The states behind the pass.
    pub fn into_states(self) -> Vec<Tensor> {
        self.states
    }

    fn steps(&self) -> usize {
        self.resets.len() / self.batch.max(1)
    }

    fn matrix(&self, name: &str) -> Result<Tensor> {
        Ok(self.inputs.get(name)?.flatten(0, 1)?.flatten_from(1)?)
    }

    /// A mask of zeros and `scale`s, one uniform number per value.
    fn mask(&mut self, n: usize, drop: f32, scale: f32, random: Random) -> Vec<f32> {
        self.calls += 1;
        let random = random.at(self.calls);
        let mut mask = vec![0.0; n];
        const CHUNK: usize = 1 << 14;
        mask.par_chunks_mut(CHUNK).enumerate().for_each(|(i, m)| {
            random.fill_uniform((i * CHUNK) as u64, m);
            m.iter_mut().for_each(|v| *v = if *v < drop { 0.0 } else { scale });
        });
        mask
    }
}

impl Executor for TensorExecutor<'_> {
    type V = Tensor;
    type I = Tensor;

    fn input(&mut self, name: &str) -> Result<Tensor> {
        self.matrix(name)
    }

    fn indices(&mut self, name: &str) -> Result<Tensor> {
        self.matrix(name)
    }

    fn linear(&mut self, x: &Tensor, layer: &Linear, act: Activation) -> Result<Tensor> {
        // Column slices come in strided; the product wants rows one behind the other.
        let y = x.contiguous()?.matmul(&layer.weight)?;
        Ok(match &layer.bias {
            Some(bias) => ops::bias_activation(&y, bias, act)?,
            None => ops::activation(&y, act)?,
        })
    }

    fn lookup_linear(&mut self, x: &Tensor, ids: &Tensor, tables: &[&Tensor], layer: &Linear) -> Result<Tensor> {
        let mut parts = vec![x.clone()];
        for (i, table) in tables.iter().enumerate() {
            parts.push(table.index_select(&ids.narrow(1, i, 1)?.flatten_all()?.contiguous()?, 0)?);
        }
        let joined = Tensor::cat(&parts, D::Minus1)?;
        self.linear(&joined, layer, Activation::None)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm, act: Activation) -> Result<Tensor> {
        let width = norm.weight.dim(0)?;
        let groups = x.contiguous()?.reshape(((), width))?;
        let y = ops::norm(&groups, norm.kind, norm.eps, &norm.weight, norm.bias.as_ref())?;
        Ok(ops::activation(&y, act)?.reshape(x.dims())?)
    }

    fn add_rows(&mut self, x: &Tensor, table: &Tensor, ids: &Tensor, columns: &IndexColumns, act: Activation) -> Result<Tensor> {
        let mut sum = x.clone();
        for &(column, base) in columns {
            let index = (ids.narrow(1, column, 1)?.flatten_all()?.to_dtype(DType::I64)? + base as f64)?.contiguous()?;
            sum = (sum + table.index_select(&index, 0)?)?;
        }
        Ok(ops::activation(&sum, act)?)
    }

    fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok((a + b)?)
    }

    fn gate(&mut self, a: &Tensor, z: &Tensor) -> Result<Tensor> {
        Ok(ops::gate(a, z)?)
    }

    fn columns(&mut self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(x.narrow(1, start, len)?)
    }

    fn join(&mut self, parts: &[Tensor]) -> Result<Tensor> {
        Ok(Tensor::cat(parts, 1)?)
    }

    fn join_indices(&mut self, parts: &[Tensor]) -> Result<Tensor> {
        Ok(Tensor::cat(parts, 1)?)
    }

    fn dropout(&mut self, x: &Tensor) -> Result<Tensor> {
        match self.noise {
            Some(Regularisation { dropout, random, .. }) if dropout > 0.0 => {
                let mask = self.mask(x.elem_count(), dropout, 1.0 / (1.0 - dropout), random.stream("dropout"));
                Ok((x * Tensor::from_vec(mask, x.shape(), &self.device)?.to_dtype(x.dtype())?)?)
            }
            _ => Ok(x.clone()),
        }
    }

    fn drop_indices(&mut self, ids: &Tensor, columns: usize, absent: u32) -> Result<Tensor> {
        match self.noise {
            Some(Regularisation { drop_ids, random, .. }) if drop_ids > 0.0 => {
                let (rows, width) = ids.dims2()?;
                let mask = self.mask(rows * columns, drop_ids, 1.0, random.stream("drop ids"));
                let mut values = ids.flatten_all()?.to_vec1::<u32>()?;
                for (row, mask) in values.chunks_mut(width).zip(mask.chunks(columns)) {
                    row.iter_mut().zip(mask).filter(|(_, m)| **m == 0.0).for_each(|(v, _)| *v = absent);
                }
                Ok(Tensor::from_vec(values, (rows, width), &self.device)?)
            }
            _ => Ok(ids.clone()),
        }
    }

    fn detach(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.detach())
    }

    fn causal_conv(&mut self, x: &Tensor, weight: &Tensor, bias: &Tensor, state: usize) -> Result<Tensor> {
        let (y, after) = ops::causal_conv(x, weight, bias, &self.states[state], self.resets)?;
        self.states[state] = after;
        Ok(y)
    }

    fn selective_scan(&mut self, [u, dt, bc]: [&Tensor; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Tensor> {
        let packed = Tensor::cat(&[dt, bc], 1)?;
        let a = a_log.t()?.contiguous()?.exp()?.neg()?;
        let params = Tensor::cat(&[a, skip.unsqueeze(0)?], 0)?;
        let (y, after) = ops::selective_scan(u, &packed, &params, &self.states[state], self.resets)?;
        self.states[state] = after;
        Ok(y)
    }

    fn gru(&mut self, x: &Tensor, hidden: &Linear, state: usize) -> Result<Tensor> {
        let (batch, steps) = (self.batch, self.steps());
        let x = x.reshape((batch, steps, ()))?;
        let mut h = self.states[state].clone();
        let mut outputs = Vec::with_capacity(steps);
        for t in 0..steps {
            if (0..batch).any(|row| self.resets[row * steps + t]) {
                // A selection, not a product with zero: a reset also clears what is not finite.
                let reset: Vec<u8> = (0..batch).map(|row| u8::from(self.resets[row * steps + t])).collect();
                let reset = Tensor::from_vec(reset, (batch, 1), &self.device)?.broadcast_as(h.shape())?;
                h = reset.where_cond(&h.zeros_like()?, &h)?;
            }
            let product = self.linear(&h, hidden, Activation::None)?;
            h = ops::gru_gates(&x.narrow(1, t, 1)?.squeeze(1)?, &product, &h)?;
            outputs.push(h.clone());
        }
        self.states[state] = h.detach();
        Ok(Tensor::stack(&outputs, 1)?.reshape((batch * steps, ()))?)
    }

    fn attention(&mut self, shape: Attention, qkv: [&Tensor; 3], bias: &Tensor, state: usize) -> Result<Tensor> {
        let before = (self.states[state].clone(), self.states[state + 1].clone(), self.states[state + 2].clone());
        let (y, after) = ops::attention(shape, qkv, bias, &before, self.resets)?;
        [self.states[state], self.states[state + 1], self.states[state + 2]] = [after.0, after.1, after.2];
        Ok(y)
    }

    fn choose(&mut self, logits: &Tensor, wanted: &Tensor, uniform: &Tensor, choice: Choice) -> Result<Tensor> {
        let Choice { column, columns, classes } = choice;
        let wanted = wanted.narrow(1, column, columns)?.contiguous()?;
        let mut values = wanted.flatten_all()?.to_vec1::<u32>()?;
        if let Some(bad) = values.iter().find(|v| **v != SAMPLE && **v as usize >= classes) {
            return Err(Error::Input(format!("action column {column}: class {bad} of {classes}")));
        }
        if values.contains(&SAMPLE) {
            let logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            let uniform = uniform.narrow(1, column, columns)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            for ((values, logits), uniform) in values.chunks_mut(columns).zip(&logits).zip(&uniform) {
                let per = logits.len() / columns;
                for ((v, l), u) in values.iter_mut().zip(logits.chunks(per)).zip(uniform) {
                    *v = if *v == SAMPLE { pick(l, *u) } else { *v };
                }
            }
        }
        Ok(Tensor::from_vec(values, wanted.dims(), &self.device)?)
    }
}
