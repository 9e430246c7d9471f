//! The executor on Candle tensors: gradients, any dtype, training noise from addressed random numbers.
//!
//! Values lie on the model's device, indices on the host: they are made and checked there, and asking a GPU for them would make
//! it wait. The weights say what is computed in: a product casts what it reads to the dtype of its weight. Narrow numbers
//! (bf16, f16) have kernels on a GPU that compute in f32 and round what they write; on the CPU the same is done by casting.

use super::{Choice, Executor, IndexColumns, SAMPLE, pick};
use crate::device;
use crate::nn::{Autoregressive, Linear, Mamba, Norm};
use crate::ops::{self, Activation, Attention};
use crate::random::Random;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// Noise that training adds. The random numbers are addressed by the call's place in the pass, so the same pass draws the same noise.
#[derive(Debug, Clone, Copy)]
pub struct Regularisation {
    /// Probability that a hidden value is dropped.
    pub dropout: f32,
    /// Probability that an id is replaced by "absent".
    pub drop_ids: f32,
    /// Address of this pass: the seed and the step.
    pub random: Random,
    /// Rows of the whole batch before this pass's first: where several processes share a batch, a row's noise does not depend on
    /// how it was divided.
    pub first_row: usize,
}

/// Indices of a pass, `[rows, width]`, on the host.
#[derive(Debug, Clone)]
pub struct Indices {
    values: Arc<[u32]>,
    width: usize,
}

impl Indices {
    /// Rows of `width` indices, one behind the other.
    pub fn new(values: Vec<u32>, width: usize) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        Self { values: values.into(), width }
    }

    fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let (_, width) = tensor.dims2()?;
        Ok(Self::new(tensor.to_dtype(DType::U32)?.flatten_all()?.to_vec1()?, width))
    }

    fn rows(&self) -> impl Iterator<Item = &[u32]> {
        self.values.chunks(self.width)
    }

    /// Some columns.
    fn columns(&self, start: usize, len: usize) -> Self {
        Self::new(self.rows().flat_map(|row| &row[start..start + len]).copied().collect(), len)
    }

    /// Some columns, each plus the table row that index 0 of it means.
    fn shifted(&self, columns: &IndexColumns) -> Vec<u32> {
        let row = |row: &[u32]| columns.iter().map(|&(column, base)| row[column].saturating_add(base as u32)).collect::<Vec<_>>();
        self.rows().flat_map(row).collect()
    }

    /// Matrices side by side.
    fn join(parts: &[Self]) -> Self {
        let width = parts.iter().map(|p| p.width).sum();
        let rows = parts.first().map_or(0, |p| p.values.len() / p.width);
        let row = |r: usize| parts.iter().flat_map(move |p| &p.values[r * p.width..][..p.width]);
        Self::new((0..rows).flat_map(row).copied().collect(), width)
    }

    /// As a tensor `[rows, width]` on the host.
    pub fn to_tensor(&self) -> Result<Tensor> {
        Ok(Tensor::from_slice(&self.values, (self.values.len() / self.width, self.width), &Device::Cpu)?)
    }

    /// The columns of a choice, checked: every class exists or is [`SAMPLE`].
    fn classes(&self, Choice { column, columns, classes }: Choice) -> Result<Self> {
        let found = self.columns(column, columns);
        match found.values.iter().find(|v| **v != SAMPLE && **v as usize >= classes) {
            Some(bad) => Err(Error::Input(format!("action column {column}: class {bad} of {classes}"))),
            None => Ok(found),
        }
    }
}

/// Runs a model on tensors. Made anew for every pass.
pub struct TensorExecutor<'a> {
    inputs: &'a NamedTensors,
    resets: &'a [bool],
    states: Vec<Tensor>,
    noise: Option<Regularisation>,
    calls: u64,
    /// Whether gradients flow through the states.
    through_time: bool,
    device: Device,
}

impl<'a> TensorExecutor<'a> {
    /// A pass over `inputs` `[B, T, ...]` with the states in the signature's order. Inputs may lie on the host: floats go to the
    /// device when they are asked for.
    pub fn new(inputs: &'a NamedTensors, resets: &'a [bool], states: Vec<Tensor>, device: &Device) -> Self {
        Self { inputs, resets, states, noise: None, calls: 0, through_time: false, device: device.clone() }
    }

    /// Adds training noise.
    pub fn with_noise(mut self, noise: Regularisation) -> Self {
        self.noise = Some(noise);
        self
    }

    /// Lets gradients flow through the states, from one pass to the pass before it: for closed loops, whose steps are passes of
    /// their own. In plain operations; on the host a tape does the same several times as fast.
    pub fn through_time(mut self) -> Self {
        self.through_time = true;
        self
    }

    /// The states behind the pass.
    pub fn into_states(self) -> Vec<Tensor> {
        self.states
    }

    /// Whether the operations with memory have kernels for narrow numbers: the plain forms, through time, have none.
    fn has_kernels(&self, x: &Tensor) -> bool {
        !self.through_time && !x.device().is_cpu()
    }

    fn matrix(&self, name: &str) -> Result<Tensor> {
        Ok(self.inputs.get(name)?.flatten(0, 1)?.flatten_from(1)?)
    }

    /// Probability and random numbers of the next dropout, on rows of `width` values, if there is any.
    fn next_dropout(&mut self, width: usize) -> Option<(f32, Random)> {
        let noise = self.noise.filter(|noise| noise.dropout > 0.0)?;
        Some((noise.dropout, self.next(noise, "dropout", width)))
    }

    /// The address of the next noise, on rows of `width` values.
    fn next(&mut self, noise: Regularisation, stream: &str, width: usize) -> Random {
        self.calls += 1;
        noise.random.stream(stream).at(self.calls).from_index((noise.first_row * width) as u64)
    }
}

/// Runs `f` in f32 where the tensors are narrow, and rounds its result as they are.
fn widened<const N: usize>(tensors: [&Tensor; N], f: impl FnOnce([&Tensor; N]) -> Result<Tensor>) -> Result<Tensor> {
    let dtype = tensors[0].dtype();
    if !device::is_narrow(dtype) {
        return f(tensors);
    }
    let mut wide = tensors.map(Tensor::clone);
    for tensor in &mut wide {
        *tensor = tensor.to_dtype(DType::F32)?;
    }
    Ok(f(wide.each_ref())?.to_dtype(dtype)?)
}

/// [`widened`] on the CPU only: a GPU has a kernel for narrow numbers.
fn emulated<const N: usize>(tensors: [&Tensor; N], f: impl FnOnce([&Tensor; N]) -> Result<Tensor>) -> Result<Tensor> {
    if tensors[0].device().is_cpu() { widened(tensors, f) } else { f(tensors) }
}

impl Executor for TensorExecutor<'_> {
    type V = Tensor;
    type I = Indices;

    fn input(&mut self, name: &str) -> Result<Tensor> {
        Ok(self.matrix(name)?.to_device(&self.device)?)
    }

    fn indices(&mut self, name: &str) -> Result<Indices> {
        Indices::from_tensor(&self.matrix(name)?)
    }

    fn linear(&mut self, x: &Tensor, layer: &Linear, act: Activation) -> Result<Tensor> {
        let x = x.to_dtype(layer.weight.dtype())?;
        emulated([&x, &layer.weight], |[x, weight]| Ok(ops::linear(x, weight, layer.bias.as_ref(), act)?))
    }

    fn lookup_linear(&mut self, x: &Tensor, ids: &Indices, tables: &[&Tensor], layer: &Linear) -> Result<Tensor> {
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
        let (index, x) = (ids.shifted(&bases), x.to_dtype(layer.weight.dtype())?);
        emulated([&x, &layer.weight], |[x, weight]| Ok(ops::lookup_linear(x, &table, &columns, index, weight, layer.bias.as_ref())?))
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm, act: Activation) -> Result<Tensor> {
        let (width, x) = (norm.weight.dim(0)?, x.contiguous()?);
        let rows = |x: &Tensor| emulated([x], |[x]| Ok(ops::norm(x, norm.kind, norm.eps, &norm.weight, norm.bias.as_ref(), act)?));
        // A reshape is a node of the graph, whose gradient is cleared, added to and written once more.
        if x.dim(1)? == width {
            return rows(&x);
        }
        Ok(rows(&x.reshape(((), width))?)?.reshape(x.dims())?)
    }

    fn add_rows(&mut self, x: &Tensor, table: &Tensor, ids: &Indices, columns: &IndexColumns, act: Activation) -> Result<Tensor> {
        let index = ids.shifted(columns);
        emulated([x], |[x]| Ok(ops::add_rows(x, table, index, columns.len(), act)?))
    }

    fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok((a + b)?)
    }

    fn gate(&mut self, a: &Tensor, z: &Tensor) -> Result<Tensor> {
        emulated([a, z], |[a, z]| Ok(ops::gate(a, z)?))
    }

    fn columns(&mut self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(x.narrow(1, start, len)?)
    }

    fn join(&mut self, parts: &[Tensor]) -> Result<Tensor> {
        Ok(Tensor::cat(parts, 1)?)
    }

    fn join_indices(&mut self, parts: &[Indices]) -> Result<Indices> {
        Ok(Indices::join(parts))
    }

    fn dropout(&mut self, x: &Tensor) -> Result<Tensor> {
        match self.next_dropout(x.dim(1)?) {
            Some((probability, random)) => emulated([x], |[x]| Ok(ops::dropout(x, probability, random)?)),
            None => Ok(x.clone()),
        }
    }

    fn drop_indices(&mut self, ids: &Indices, columns: usize, absent: u32) -> Result<Indices> {
        match self.noise {
            Some(noise) if noise.drop_ids > 0.0 => {
                let mut values = ids.values.to_vec();
                let mut uniform = vec![0.0; values.len() / ids.width * columns];
                self.next(noise, "drop ids", columns).fill_uniform(0, &mut uniform);
                for (row, uniform) in values.chunks_mut(ids.width).zip(uniform.chunks(columns)) {
                    row.iter_mut().zip(uniform).filter(|(_, u)| **u < noise.drop_ids).for_each(|(v, _)| *v = absent);
                }
                Ok(Indices::new(values, ids.width))
            }
            _ => Ok(ids.clone()),
        }
    }

    fn detach(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.detach())
    }

    fn causal_conv(&mut self, x: &Tensor, weight: &Tensor, bias: &Tensor, state: usize) -> Result<Tensor> {
        let kernels = self.has_kernels(x);
        let mut run = |[x]: [&Tensor; 1]| {
            let conv = if self.through_time { ops::causal_conv_reference } else { ops::causal_conv };
            let (y, after) = conv(x, weight, bias, &self.states[state], self.resets)?;
            self.states[state] = after;
            Ok(y)
        };
        if kernels { run([x]) } else { widened([x], run) }
    }

    fn selective_scan(&mut self, [u, dt, bc]: [&Tensor; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Tensor> {
        let packed = Tensor::cat(&[dt, bc], 1)?;
        let a = a_log.t()?.contiguous()?.exp()?.neg()?;
        let params = Tensor::cat(&[a, skip.unsqueeze(0)?], 0)?;
        let kernels = self.has_kernels(u);
        let mut run = |[u, packed]: [&Tensor; 2]| {
            let scan = if self.through_time { ops::selective_scan_reference } else { ops::selective_scan };
            let (y, after) = scan(u, packed, &params, &self.states[state], self.resets)?;
            self.states[state] = after;
            Ok(y)
        };
        if kernels { run([u, &packed]) } else { widened([u, &packed], run) }
    }

    fn gru(&mut self, x: &Tensor, hidden: &Linear, state: usize) -> Result<Tensor> {
        let bias = match &hidden.bias {
            Some(bias) => bias.clone(),
            None => Tensor::zeros(hidden.weight.dim(1)?, self.states[state].dtype(), &self.device)?,
        };
        let kernels = self.has_kernels(x);
        let mut run = |[x, weight]: [&Tensor; 2]| {
            let gru = if self.through_time { ops::gru_reference } else { ops::gru };
            let (y, after) = gru(x, weight, &bias, &self.states[state], self.resets)?;
            self.states[state] = after;
            Ok(y)
        };
        if kernels { run([x, &hidden.weight]) } else { widened([x, &hidden.weight], run) }
    }

    fn mamba(&mut self, x: &Tensor, block: &Mamba) -> Result<Tensor> {
        // One node of the graph is a gain where memory is the CPU's; on CUDA the operations are kernels of their own.
        if self.through_time || !ops::is_on_host(x) {
            return block.compose(self, x);
        }
        let ((weights, eps), state) = (block.weights()?, block.first_state());
        let mask = self.next_dropout(x.dim(1)?).map(|(probability, random)| ops::dropout_factors(x.elem_count(), probability, random));
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

    fn choose(&mut self, logits: &Tensor, wanted: &Indices, uniform: &Tensor, choice: Choice) -> Result<Indices> {
        let wanted = wanted.classes(choice)?;
        if !wanted.values.contains(&SAMPLE) {
            return Ok(wanted);
        }
        #[cfg(feature = "cuda")]
        if logits.device().is_cuda() {
            let values = ops::cuda::heads::choose(logits, &wanted.values, uniform, choice)?;
            return Ok(Indices::new(values, choice.columns));
        }
        let logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let uniform = uniform.narrow(1, choice.column, choice.columns)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let mut values = wanted.values.to_vec();
        for ((values, logits), uniform) in values.chunks_mut(choice.columns).zip(&logits).zip(&uniform) {
            let per = logits.len() / choice.columns;
            for ((v, l), u) in values.iter_mut().zip(logits.chunks(per)).zip(uniform) {
                *v = if *v == SAMPLE { pick(l, *u) } else { *v };
            }
        }
        Ok(Indices::new(values, choice.columns))
    }

    fn autoregressive(
        &mut self,
        trunk: &Tensor,
        heads: &Autoregressive,
        classes @ [previous, wanted]: [&Indices; 2],
        uniform: &Tensor,
    ) -> Result<(Tensor, Indices)> {
        // A class that is to be chosen depends on the logits before it: one after the other.
        let given = !wanted.values.contains(&SAMPLE);
        if !(given && ops::is_on_host(trunk)) {
            return heads.compose(self, trunk, classes, uniform);
        }
        let (mut parts, mut columns, mut base) = (Vec::new(), Vec::new(), 0);
        for choice in heads.choices() {
            previous.classes(choice)?;
            parts.push(wanted.classes(choice)?);
            columns.extend((0..choice.columns).map(|i| (choice.column + i, base + i * choice.classes)));
            base += choice.columns * choice.classes;
        }
        let (groups, weights) = heads.weights()?;
        let rows = [previous.shifted(&columns), wanted.shifted(&columns)];
        Ok((ops::choices(trunk, groups, &weights, rows)?, Indices::join(&parts)))
    }
}

/// Names an id outside its own table: behind the tables' joining it could fall into the next one.
fn check_ids(ids: &Indices, tables: &[&Tensor]) -> Result<()> {
    for (column, table) in tables.iter().enumerate() {
        let entries = table.dim(0)?;
        if let Some(id) = ids.rows().map(|row| row[column]).find(|id| *id as usize >= entries) {
            return Err(Error::Input(format!("ids column {column}: {id} in a table of {entries} rows")));
        }
    }
    Ok(())
}
