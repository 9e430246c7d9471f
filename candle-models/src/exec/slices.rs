//! The executor on prepared slices: CPU inference without allocation.
//!
//! Weights are packed at their first use; values live in one arena that grows in the first pass and is reused by every later one. Values of a pass
//! are allocated one behind the other, so an operation's output always lies behind its inputs and the arena splits there.

use super::pool::Pool;
use super::{Choice, Executor, IndexColumns, SAMPLE, pick};
use crate::nn::{Linear, Norm};
use crate::ops::{self, Activation, Attention, ConvShape, OutPointer, PackedMatrix, Rows, ScanInput, ScanShape, Timeline};
use crate::tensors::TensorSpec;
use crate::{Error, Result};
use candle_core::{DType, Tensor, TensorId};

/// A matrix in the arena.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    at: usize,
    width: usize,
    stride: usize,
}

/// An index matrix in the index arena, rows one behind the other.
#[derive(Debug, Clone, Copy)]
pub struct IndexSlot {
    at: usize,
    columns: usize,
}

/// A weight in the form that its kernel wants.
enum Prepared {
    Matrix(PackedMatrix),
    /// The columns of a layer that multiply floats, and for each table the product with its columns: looking up is adding a row.
    Lookup(PackedMatrix, Vec<Vec<f32>>),
    Values(Vec<f32>),
}

/// Time in microseconds below which an operation stays on one thread: handing out a part and waiting for it takes about one.
const WORTH_SHARING: f32 = 4.0;

/// Rough time of a product: a few rows wait for the weights to come from memory (60 GB/s), many for the multiply-adds (100 G/s).
fn product_micros(rows: usize, weights: usize) -> f32 {
    weights as f32 * (4.0 / 60e3f32).max(rows as f32 / 100e3)
}

/// Runs a model on slices. It prepares weights at their first use: give it a model whose weights stay as they are.
pub struct SliceExecutor {
    pool: Pool,
    batch: usize,
    steps: usize,
    resets: Vec<bool>,
    inputs: Vec<(TensorSpec, usize)>,
    arena: Vec<f32>,
    top: usize,
    indices: Vec<u32>,
    index_top: usize,
    reserved: usize,
    index_reserved: usize,
    states: Vec<Vec<f32>>,
    prepared: Vec<(TensorId, Prepared)>,
    cursor: usize,
}

impl SliceExecutor {
    /// An executor for passes of `batch` sequences by `steps` frames, with the inputs and states of a signature.
    pub fn new(inputs: &[TensorSpec], states: &[TensorSpec], (batch, steps): (usize, usize), threads: usize) -> Self {
        let rows = batch * steps;
        let (mut floats, mut ints) = (0, 0);
        let inputs: Vec<_> = inputs
            .iter()
            .map(|spec| {
                let top = if spec.dtype == DType::U32 { &mut ints } else { &mut floats };
                let at = *top;
                *top += rows * spec.width();
                (spec.clone(), at)
            })
            .collect();
        Self {
            pool: Pool::new(threads.max(1)),
            batch,
            steps,
            resets: vec![false; rows],
            inputs,
            arena: vec![0.0; floats],
            top: floats,
            indices: vec![0; ints],
            index_top: ints,
            reserved: floats,
            index_reserved: ints,
            states: states.iter().map(|s| vec![0.0; batch * s.width()]).collect(),
            prepared: Vec::new(),
            cursor: 0,
        }
    }

    /// Starts a pass: `resets` one per row.
    pub fn begin(&mut self, resets: &[bool]) -> Result<()> {
        if resets.len() != self.resets.len() {
            return Err(Error::Input(format!("{} resets for {} rows", resets.len(), self.resets.len())));
        }
        self.resets.copy_from_slice(resets);
        (self.top, self.index_top, self.cursor) = (self.reserved, self.index_reserved, 0);
        Ok(())
    }

    fn input_slot(&self, name: &str, dtype: DType) -> Result<(usize, usize)> {
        let found = self.inputs.iter().find(|(s, _)| s.name == name && s.dtype == dtype);
        found.map(|(s, at)| (*at, s.width())).ok_or_else(|| Error::tensor(name, format!("an input of {dtype:?}"), "none of that name"))
    }

    /// An input of floats, `[rows, width]`, to be filled before a pass.
    pub fn floats_mut(&mut self, name: &str) -> Result<&mut [f32]> {
        let (at, width) = self.input_slot(name, DType::F32)?;
        let rows = self.rows();
        Ok(&mut self.arena[at..at + rows * width])
    }

    /// An input of indices, `[rows, columns]`, to be filled before a pass.
    pub fn indices_mut(&mut self, name: &str) -> Result<&mut [u32]> {
        let (at, width) = self.input_slot(name, DType::U32)?;
        let rows = self.rows();
        Ok(&mut self.indices[at..at + rows * width])
    }

    /// A state of all rows, in the signature's order.
    pub fn state_mut(&mut self, state: usize) -> &mut [f32] {
        &mut self.states[state]
    }

    /// Row `r` of a value of the last pass.
    pub fn row(&self, slot: Slot, r: usize) -> &[f32] {
        &self.arena[slot.at + r * slot.stride..][..slot.width]
    }

    /// Row `r` of an index matrix of the last pass.
    pub fn index_row(&self, slot: IndexSlot, r: usize) -> &[u32] {
        &self.indices[slot.at + r * slot.columns..][..slot.columns]
    }

    /// Bytes held: arena, states and prepared weights.
    pub fn bytes(&self) -> usize {
        let prepared = self.prepared.iter().map(|(_, p)| match p {
            Prepared::Matrix(m) => m.bytes(),
            Prepared::Lookup(m, t) => m.bytes() + 4 * t.iter().map(Vec::len).sum::<usize>(),
            Prepared::Values(v) => 4 * v.len(),
        });
        prepared.sum::<usize>() + 4 * (self.arena.len() + self.indices.len() + self.states.iter().map(Vec::len).sum::<usize>())
    }

    fn rows(&self) -> usize {
        self.batch * self.steps
    }

    fn allocate(&mut self, width: usize) -> Slot {
        let slot = Slot { at: self.top, width, stride: width };
        self.top += self.rows() * width;
        if self.arena.len() < self.top {
            self.arena.resize(self.top, 0.0);
        }
        slot
    }

    fn allocate_indices(&mut self, columns: usize) -> IndexSlot {
        let slot = IndexSlot { at: self.index_top, columns };
        self.index_top += self.rows() * columns;
        if self.indices.len() < self.index_top {
            self.indices.resize(self.index_top, 0);
        }
        slot
    }

    /// The number of a prepared weight. Every pass asks in the same order, so the next one is nearly always the right one.
    fn prepare(&mut self, key: TensorId, make: impl FnOnce() -> Result<Prepared>) -> Result<usize> {
        let found = match self.prepared.get(self.cursor) {
            Some((k, _)) if *k == key => self.cursor,
            _ => match self.prepared.iter().position(|(k, _)| *k == key) {
                Some(i) => i,
                None => {
                    self.prepared.push((key, make()?));
                    self.prepared.len() - 1
                }
            },
        };
        self.cursor = found + 1;
        Ok(found)
    }

    fn values(&mut self, tensor: &Tensor) -> Result<usize> {
        self.prepare(tensor.id(), || Ok(Prepared::Values(host(tensor)?)))
    }

    /// Runs one product into `out`, shared among the threads by rows where there are many, by panels otherwise.
    fn product(&mut self, matrix: usize, x: Slot, out: Slot, act: Activation) {
        let rows = self.rows();
        let matrix = match &self.prepared[matrix].1 {
            Prepared::Matrix(m) | Prepared::Lookup(m, _) => m,
            Prepared::Values(_) => unreachable!("a weight is prepared by the operation that uses it"),
        };
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        run_product(&mut self.pool, matrix, act, (&inputs[x.at..], x.stride), rows, outputs);
    }
}

/// `out = act(x W + b)` for `rows` rows, `out` one row behind the other; shared by rows where there are many, by panels otherwise.
fn run_product(pool: &mut Pool, matrix: &PackedMatrix, act: Activation, x: (&[f32], usize), rows: usize, out: &mut [f32]) {
    let (panels, weights) = (matrix.panel_count(), matrix.inputs * matrix.outputs);
    assert!(out.len() >= rows * matrix.outputs, "{rows} rows of {} do not fit", matrix.outputs);
    let threads = if product_micros(rows, weights) < WORTH_SHARING { 1 } else { pool.threads() };
    let by_rows = rows >= 24 * threads;
    let out = OutPointer { data: out.as_mut_ptr(), stride: matrix.outputs };
    let task = |part: usize| {
        let (r, p) = if by_rows { (share(rows, part, threads), 0..panels) } else { (0..rows, share(panels, part, threads)) };
        // SAFETY: `out` has room for rows x outputs values (asserted above); the parts are disjoint in rows or in panels.
        unsafe { ops::linear_block(matrix, act, x, r, p, out) };
    };
    if threads == 1 { task(0) } else { pool.run(&task) }
}

/// Part `part` of `parts` of `n` things.
fn share(n: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    n * part / parts..n * (part + 1) / parts
}

/// Runs `f(row, out)` for every row of `width` values of `out`, shared among the threads where there are many values.
fn for_rows(pool: &mut Pool, rows: usize, width: usize, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    // An activation takes about a nanosecond for two values.
    let threads = if (rows * width) as f32 * 5e-4 < WORTH_SHARING { 1 } else { pool.threads() };
    let out = &mut out[..rows * width];
    if threads == 1 {
        return out.chunks_mut(width).enumerate().for_each(|(r, out)| f(r, out));
    }
    let to = OutPointer { data: out.as_mut_ptr(), stride: width };
    pool.run(&|part: usize| {
        let to = &to;
        for r in share(rows, part, threads) {
            // SAFETY: `out` holds rows x width values, and every row belongs to one part.
            f(r, unsafe { std::slice::from_raw_parts_mut(to.data.add(r * to.stride), width) });
        }
    });
}

/// The values of a weight on the host as f32.
fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?)
}

fn pack(layer: &Linear) -> Result<PackedMatrix> {
    let (inputs, outputs) = layer.weight.dims2()?;
    let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
    Ok(PackedMatrix::new(inputs, outputs, &host(&layer.weight)?, &bias, &layer.format))
}

/// Splits a layer over joined floats and table rows into the product of the floats and one folded table per lookup.
fn fold(floats: usize, tables: &[&Tensor], layer: &Linear) -> Result<Prepared> {
    let outputs = layer.weight.dim(1)?;
    let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
    let matrix = PackedMatrix::new(floats, outputs, &host(&layer.weight.narrow(0, 0, floats)?)?, &bias, &layer.format);
    let mut at = floats;
    let mut folded = Vec::with_capacity(tables.len());
    for table in tables {
        let width = table.dim(1)?;
        folded.push(host(&table.matmul(&layer.weight.narrow(0, at, width)?)?)?);
        at += width;
    }
    Ok(Prepared::Lookup(matrix, folded))
}

fn view(data: &[f32], slot: Slot, rows: usize) -> Rows<'_> {
    Rows { data: &data[slot.at..], rows, width: slot.width, stride: slot.stride }
}

fn add_into(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
}

impl Executor for SliceExecutor {
    type V = Slot;
    type I = IndexSlot;

    fn input(&mut self, name: &str) -> Result<Slot> {
        let (at, width) = self.input_slot(name, DType::F32)?;
        Ok(Slot { at, width, stride: width })
    }

    fn indices(&mut self, name: &str) -> Result<IndexSlot> {
        let (at, columns) = self.input_slot(name, DType::U32)?;
        Ok(IndexSlot { at, columns })
    }

    fn linear(&mut self, x: &Slot, layer: &Linear, act: Activation) -> Result<Slot> {
        same_width("linear", x.width, layer.weight.dim(0)?)?;
        let matrix = self.prepare(layer.weight.id(), || Ok(Prepared::Matrix(pack(layer)?)))?;
        let out = self.allocate(layer.weight.dim(1)?);
        self.product(matrix, *x, out, act);
        Ok(out)
    }

    fn lookup_linear(&mut self, x: &Slot, ids: &IndexSlot, tables: &[&Tensor], layer: &Linear) -> Result<Slot> {
        let lookup = self.prepare(layer.weight.id(), || fold(x.width, tables, layer))?;
        let out = self.allocate(layer.weight.dim(1)?);
        self.product(lookup, *x, out, Activation::None);
        let Prepared::Lookup(_, tables) = &self.prepared[lookup].1 else { unreachable!("prepared as a lookup above") };
        for r in 0..self.batch * self.steps {
            let row = &mut self.arena[out.at + r * out.stride..][..out.width];
            for (table, &id) in tables.iter().zip(&self.indices[ids.at + r * ids.columns..]) {
                let Some(found) = table.get(id as usize * out.width..(id as usize + 1) * out.width) else {
                    return Err(Error::Input(format!("id {id} in a table of {} rows", table.len() / out.width.max(1))));
                };
                add_into(row, found);
            }
        }
        Ok(out)
    }

    fn norm(&mut self, x: &Slot, norm: &Norm, act: Activation) -> Result<Slot> {
        let weight = self.values(&norm.weight)?;
        let bias = norm.bias.as_ref().map(|b| self.values(b)).transpose()?;
        let out = self.allocate(x.width);
        let (rows, eps) = (self.rows(), norm.eps as f32);
        let (weight, bias) = (value(&self.prepared, weight), bias.map_or(&[][..], |b| value(&self.prepared, b)));
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        let x = view(inputs, *x, rows);
        for_rows(&mut self.pool, rows, out.width, outputs, |r, out| {
            for (x, out) in x.row(r).chunks(weight.len()).zip(out.chunks_mut(weight.len())) {
                ops::norm_row(norm.kind, eps, act, x, weight, bias, out);
            }
        });
        Ok(out)
    }

    fn add_rows(&mut self, x: &Slot, table: &Tensor, ids: &IndexSlot, columns: &IndexColumns, act: Activation) -> Result<Slot> {
        let table = self.values(table)?;
        let (out, rows) = (self.allocate(x.width), self.rows());
        let table = value(&self.prepared, table);
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        for r in 0..rows {
            let row = &mut outputs[r * out.stride..][..out.width];
            row.copy_from_slice(view(inputs, *x, rows).row(r));
            for &(column, base) in columns {
                let id = self.indices[ids.at + r * ids.columns + column] as usize;
                let Some(found) = table.get((base + id) * out.width..(base + id + 1) * out.width) else {
                    return Err(Error::Input(format!("class {id} of column {column} is outside its table")));
                };
                add_into(row, found);
            }
        }
        ops::activate(act, &mut outputs[..rows * out.width]);
        Ok(out)
    }

    fn add(&mut self, a: &Slot, b: &Slot) -> Result<Slot> {
        same_width("add", a.width, b.width)?;
        let (out, rows) = (self.allocate(a.width), self.rows());
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        for r in 0..rows {
            let out = &mut outputs[r * out.stride..][..out.width];
            out.copy_from_slice(view(inputs, *a, rows).row(r));
            add_into(out, view(inputs, *b, rows).row(r));
        }
        Ok(out)
    }

    fn gate(&mut self, a: &Slot, z: &Slot) -> Result<Slot> {
        same_width("gate", a.width, z.width)?;
        let (out, rows) = (self.allocate(a.width), self.rows());
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        let (a, z) = (view(inputs, *a, rows), view(inputs, *z, rows));
        for_rows(&mut self.pool, rows, out.width, outputs, |r, out| ops::gate_row(a.row(r), z.row(r), out));
        Ok(out)
    }

    fn columns(&mut self, x: &Slot, start: usize, len: usize) -> Result<Slot> {
        Ok(Slot { at: x.at + start, width: len, ..*x })
    }

    fn join(&mut self, parts: &[Slot]) -> Result<Slot> {
        let (out, rows) = (self.allocate(parts.iter().map(|p| p.width).sum()), self.rows());
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        for r in 0..rows {
            let mut row = &mut outputs[r * out.stride..][..out.width];
            for part in parts {
                let (to, rest) = row.split_at_mut(part.width);
                to.copy_from_slice(view(inputs, *part, rows).row(r));
                row = rest;
            }
        }
        Ok(out)
    }

    fn join_indices(&mut self, parts: &[IndexSlot]) -> Result<IndexSlot> {
        let (out, rows) = (self.allocate_indices(parts.iter().map(|p| p.columns).sum()), self.rows());
        let (inputs, outputs) = self.indices.split_at_mut(out.at);
        for r in 0..rows {
            let mut row = &mut outputs[r * out.columns..][..out.columns];
            for part in parts {
                let (to, rest) = row.split_at_mut(part.columns);
                to.copy_from_slice(&inputs[part.at + r * part.columns..][..part.columns]);
                row = rest;
            }
        }
        Ok(out)
    }

    fn dropout(&mut self, x: &Slot) -> Result<Slot> {
        Ok(*x)
    }

    fn drop_indices(&mut self, ids: &IndexSlot, _: usize, _: u32) -> Result<IndexSlot> {
        Ok(*ids)
    }

    fn detach(&mut self, x: &Slot) -> Result<Slot> {
        Ok(*x)
    }

    fn causal_conv(&mut self, x: &Slot, weight: &Tensor, bias: &Tensor, state: usize) -> Result<Slot> {
        let (taps, width) = weight.dims2()?;
        let (weight, bias) = (self.values(weight)?, self.values(bias)?);
        let (out, steps) = (self.allocate(width), self.steps);
        let weights = (value(&self.prepared, weight), value(&self.prepared, bias));
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        let shape = ConvShape { steps, width, taps };
        for (b, state) in self.states[state].chunks_mut((taps - 1) * width).enumerate() {
            let (resets, out) = (&self.resets[b * steps..][..steps], &mut outputs[b * steps * width..][..steps * width]);
            ops::conv_sequence(shape, resets, sequence(inputs, *x, b, steps), weights, state, out);
        }
        Ok(out)
    }

    fn selective_scan(&mut self, [u, dt, bc]: [&Slot; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Slot> {
        let (width, states) = a_log.dims2()?;
        let a = self.prepare(a_log.id(), || Ok(Prepared::Values(host(&a_log.t()?.contiguous()?.exp()?.neg()?)?)))?;
        let skip = self.values(skip)?;
        let (out, steps) = (self.allocate(width), self.steps);
        let (a, skip) = (value(&self.prepared, a), value(&self.prepared, skip));
        let (inputs, outputs) = self.arena.split_at_mut(out.at);
        let part = |slot: &Slot, start: usize, width: usize| Slot { at: slot.at + start, width, ..*slot };
        for (row, state) in self.states[state].chunks_mut(states * width).enumerate() {
            let input = ScanInput {
                u: sequence(inputs, *u, row, steps),
                dt: sequence(inputs, *dt, row, steps),
                b: sequence(inputs, part(bc, 0, states), row, steps),
                c: sequence(inputs, part(bc, states, states), row, steps),
                a,
                skip,
            };
            let (resets, out) = (&self.resets[row * steps..][..steps], &mut outputs[row * steps * width..][..steps * width]);
            ops::scan_sequence(ScanShape { steps, width, states }, resets, input, state, out);
        }
        Ok(out)
    }

    fn gru(&mut self, x: &Slot, hidden: &Linear, state: usize) -> Result<Slot> {
        let width = hidden.weight.dim(0)?;
        let matrix = self.prepare(hidden.weight.id(), || Ok(Prepared::Matrix(pack(hidden)?)))?;
        let (product, out) = (self.allocate(3 * width), self.allocate(width));
        let (batch, steps) = (self.batch, self.steps);
        let Prepared::Matrix(matrix) = &self.prepared[matrix].1 else { unreachable!("prepared as a matrix above") };
        let (inputs, rest) = self.arena.split_at_mut(product.at);
        let (products, outputs) = rest.split_at_mut(out.at - product.at);
        let state = &mut self.states[state];
        for t in 0..steps {
            for (b, h) in state.chunks_mut(width).enumerate() {
                if self.resets[b * steps + t] {
                    h.fill(0.0);
                }
            }
            run_product(&mut self.pool, matrix, Activation::None, (state, width), batch, products);
            for (b, h) in state.chunks_mut(width).enumerate() {
                let frame = b * steps + t;
                ops::gru_row(&inputs[x.at + frame * x.stride..][..3 * width], &products[b * 3 * width..][..3 * width], h);
                outputs[frame * width..][..width].copy_from_slice(h);
            }
        }
        Ok(out)
    }

    fn attention(&mut self, shape: Attention, [q, k, v]: [&Slot; 3], bias: &Tensor, state: usize) -> Result<Slot> {
        let bias = self.values(bias)?;
        let (scores, out) = (self.allocate(shape.window), self.allocate(q.width));
        let (steps, keep, width) = (self.steps, shape.window - 1, q.width);
        let bias = value(&self.prepared, bias);
        let (inputs, rest) = self.arena.split_at_mut(scores.at);
        let (scores, outputs) = rest.split_at_mut(out.at - scores.at);
        let [keys, values, counts] = &mut self.states[state..state + 3] else { unreachable!("attention has three states") };
        for b in 0..self.batch {
            let resets = &self.resets[b * steps..][..steps];
            let mut count = counts[b] as usize;
            let key_rows = Timeline { cache: cache_rows(keys, b, keep, width), new: sequence(inputs, *k, b, steps) };
            let value_rows = Timeline { cache: cache_rows(values, b, keep, width), new: sequence(inputs, *v, b, steps) };
            for (t, &reset) in resets.iter().enumerate() {
                count = if reset { 0 } else { count.min(keep) };
                let frame = b * steps + t;
                let query = &inputs[q.at + frame * q.stride..][..width];
                ops::attend_row(shape, t, count, query, (key_rows, value_rows), bias, scores, &mut outputs[frame * width..][..width]);
                count += 1;
            }
            counts[b] = count.min(keep) as f32;
            for (cache, new) in [(&mut *keys, k), (&mut *values, v)] {
                shift(&mut cache[b * keep * width..][..keep * width], sequence(inputs, *new, b, steps));
            }
        }
        Ok(out)
    }

    fn choose(&mut self, logits: &Slot, wanted: &IndexSlot, uniform: &Slot, choice: Choice) -> Result<IndexSlot> {
        let Choice { column, columns, classes } = choice;
        let (out, rows) = (self.allocate_indices(columns), self.rows());
        let per = logits.width / columns;
        let (inputs, outputs) = self.indices.split_at_mut(out.at);
        for r in 0..rows {
            let wanted = &inputs[wanted.at + r * wanted.columns + column..][..columns];
            let uniform = &view(&self.arena, *uniform, rows).row(r)[column..][..columns];
            let logits = view(&self.arena, *logits, rows).row(r);
            for (i, (&want, &u)) in wanted.iter().zip(uniform).enumerate() {
                outputs[r * columns + i] = match want {
                    SAMPLE => pick(&logits[i * per..][..per], u),
                    class if (class as usize) < classes => class,
                    class => return Err(Error::Input(format!("action column {}: class {class} of {classes}", column + i))),
                };
            }
        }
        Ok(out)
    }
}

fn same_width(operation: &str, a: usize, b: usize) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::Input(format!("{operation}: {a} and {b} values a row"))) }
}

/// A prepared vector or table.
fn value(prepared: &[(TensorId, Prepared)], index: usize) -> &[f32] {
    match &prepared[index].1 {
        Prepared::Values(v) => v,
        // The key is the tensor's own id and each kind of weight is asked for by one operation only.
        _ => unreachable!("a weight is prepared by the operation that uses it"),
    }
}

/// The frames of sequence `b` of a value.
fn sequence(data: &[f32], slot: Slot, b: usize, steps: usize) -> Rows<'_> {
    view(data, Slot { at: slot.at + b * steps * slot.stride, ..slot }, steps)
}

fn cache_rows(all: &[f32], b: usize, keep: usize, width: usize) -> Rows<'_> {
    Rows { data: &all[b * keep * width..][..keep * width], rows: keep, width, stride: width }
}

/// Leaves the last rows of `cache` and `new` in `cache`, oldest first.
fn shift(cache: &mut [f32], new: Rows) {
    let keep = cache.len() / new.width;
    let fresh = new.rows.min(keep);
    cache.copy_within(fresh * new.width.., 0);
    for (row, r) in cache[(keep - fresh) * new.width..].chunks_mut(new.width).zip(new.rows - fresh..) {
        row.copy_from_slice(new.row(r));
    }
}
