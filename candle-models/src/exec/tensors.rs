//! The executor on Candle tensors: gradients, any dtype, training noise from addressed random numbers.

use super::{Choice, Executor, IndexColumns, SAMPLE, pick};
use crate::nn::{Autoregressive, Linear, Mamba, Norm};
use crate::ops::{self, Activation, Attention};
use crate::random::Random;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
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
    states: Vec<Tensor>,
    noise: Option<Regularisation>,
    calls: u64,
    device: Device,
}

impl<'a> TensorExecutor<'a> {
    /// A pass over `inputs` `[B, T, ...]` with the states in the signature's order.
    pub fn new(inputs: &'a NamedTensors, resets: &'a [bool], states: Vec<Tensor>, device: &Device) -> Self {
        Self { inputs, resets, states, noise: None, calls: 0, device: device.clone() }
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

    fn matrix(&self, name: &str) -> Result<Tensor> {
        Ok(self.inputs.get(name)?.flatten(0, 1)?.flatten_from(1)?)
    }

    /// The factors of dropout on the next `n` values, if there is any.
    fn dropout_mask(&mut self, n: usize) -> Option<Vec<f32>> {
        let Regularisation { dropout, random, .. } = self.noise.filter(|noise| noise.dropout > 0.0)?;
        Some(self.mask(n, dropout, 1.0 / (1.0 - dropout), random.stream("dropout")))
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
        Ok(ops::linear(x, &layer.weight, layer.bias.as_ref(), act)?)
    }

    fn lookup_linear(&mut self, x: &Tensor, ids: &Tensor, tables: &[&Tensor], layer: &Linear) -> Result<Tensor> {
        // Tables that several columns share come once, one below the other.
        let mut distinct: Vec<(&Tensor, usize)> = Vec::new();
        let (mut columns, mut rows) = (Vec::with_capacity(tables.len()), 0);
        for table in tables {
            let (known, entries) = (distinct.iter().find(|(t, _)| t.id() == table.id()).map(|(_, base)| *base), table.dim(0)?);
            if known.is_none() {
                distinct.push((table, rows));
                rows += entries;
            }
            let base = known.unwrap_or(rows - entries);
            columns.push(base..base + entries);
        }
        check_ids(ids, tables)?;
        let table = Tensor::cat(&distinct.iter().map(|(t, _)| *t).collect::<Vec<_>>(), 0)?;
        let bases: Vec<_> = columns.iter().map(|rows| rows.start).enumerate().collect();
        Ok(ops::lookup_linear(x, &table, &columns, ops::shifted_indices(ids, &bases)?, &layer.weight, layer.bias.as_ref())?)
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm, act: Activation) -> Result<Tensor> {
        let (width, x) = (norm.weight.dim(0)?, x.contiguous()?);
        let rows = |x: &Tensor| ops::norm(x, norm.kind, norm.eps, &norm.weight, norm.bias.as_ref(), act);
        // A reshape is a node of the graph, whose gradient is cleared, added to and written once more.
        if x.dim(1)? == width {
            return Ok(rows(&x)?);
        }
        Ok(rows(&x.reshape(((), width))?)?.reshape(x.dims())?)
    }

    fn add_rows(&mut self, x: &Tensor, table: &Tensor, ids: &Tensor, columns: &IndexColumns, act: Activation) -> Result<Tensor> {
        Ok(ops::add_rows(x, table, ops::shifted_indices(ids, columns)?, columns.len(), act)?)
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
        match self.dropout_mask(x.elem_count()) {
            Some(mask) => Ok(ops::mask(x, mask)?),
            None => Ok(x.clone()),
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
        let bias = match &hidden.bias {
            Some(bias) => bias.clone(),
            None => Tensor::zeros(hidden.weight.dim(1)?, x.dtype(), &self.device)?,
        };
        let (y, after) = ops::gru(x, &hidden.weight, &bias, &self.states[state], self.resets)?;
        self.states[state] = after;
        Ok(y)
    }

    fn mamba(&mut self, x: &Tensor, block: &Mamba) -> Result<Tensor> {
        // One node of the graph is a gain where memory is the CPU's; on CUDA the operations are kernels of their own.
        if !ops::is_fused(x) || !x.device().is_cpu() {
            return block.compose(self, x);
        }
        let ((weights, eps), state) = (block.weights()?, block.first_state());
        let mask = self.dropout_mask(x.elem_count());
        let before = [&self.states[state], &self.states[state + 1]];
        let (y, after) = ops::mamba_block(x, &weights, eps, before, self.resets, mask)?;
        [self.states[state], self.states[state + 1]] = after;
        Ok(y)
    }

    fn attention(&mut self, shape: Attention, qkv: [&Tensor; 3], slopes: &Tensor, state: usize) -> Result<Tensor> {
        let before = (self.states[state].clone(), self.states[state + 1].clone(), self.states[state + 2].clone());
        let (y, after) = ops::attention(shape, qkv, slopes, &before, self.resets)?;
        [self.states[state], self.states[state + 1], self.states[state + 2]] = [after.0, after.1, after.2];
        Ok(y)
    }

    fn choose(&mut self, logits: &Tensor, wanted: &Tensor, uniform: &Tensor, choice: Choice) -> Result<Tensor> {
        let Choice { column, columns, .. } = choice;
        let (wanted, mut values) = classes_of(wanted, choice)?;
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

    fn autoregressive(
        &mut self,
        trunk: &Tensor,
        heads: &Autoregressive,
        classes @ [previous, wanted]: [&Tensor; 2],
        uniform: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (mut parts, mut columns, mut base, mut given) = (Vec::new(), Vec::new(), 0, ops::is_fused(trunk));
        for choice in heads.choices() {
            for ids in classes {
                given &= !classes_of(ids, choice)?.1.contains(&SAMPLE);
            }
            parts.push(classes_of(wanted, choice)?.0);
            columns.extend((0..choice.columns).map(|i| (choice.column + i, base + i * choice.classes)));
            base += choice.columns * choice.classes;
        }
        // A class that is to be chosen depends on the logits before it: one after the other.
        if !given {
            return heads.compose(self, trunk, classes, uniform);
        }
        let rows = [ops::shifted_indices(previous, &columns)?, ops::shifted_indices(wanted, &columns)?];
        let (groups, weights) = heads.weights()?;
        Ok((ops::choices(trunk, groups, &weights, rows)?, Tensor::cat(&parts, 1)?))
    }
}

/// The columns of a choice, checked: every class exists or is [`SAMPLE`].
fn classes_of(ids: &Tensor, Choice { column, columns, classes }: Choice) -> Result<(Tensor, Vec<u32>)> {
    let ids = ids.narrow(1, column, columns)?.contiguous()?;
    let values = ids.flatten_all()?.to_vec1::<u32>()?;
    match values.iter().find(|v| **v != SAMPLE && **v as usize >= classes) {
        Some(bad) => Err(Error::Input(format!("action column {column}: class {bad} of {classes}"))),
        None => Ok((ids, values)),
    }
}

/// Names an id outside its own table: behind the tables' joining it could fall into the next one.
fn check_ids(ids: &Tensor, tables: &[&Tensor]) -> Result<()> {
    for row in ids.to_vec2::<u32>()? {
        for (id, table) in row.iter().zip(tables) {
            let entries = table.dim(0)?;
            if *id as usize >= entries {
                return Err(Error::Input(format!("id {id} in a table of {entries} rows")));
            }
        }
    }
    Ok(())
}
