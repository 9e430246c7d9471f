//! The operations as recorded steps: weights are packed here, kernels over slices run later.

use super::pool::Threads;
use super::program::{IndexSlot, Output, Recorder, Slot};
use super::{Choice, Executor, IndexColumns, SAMPLE, pick};
use crate::nn::{Linear, Norm};
use crate::ops::{self, Activation, Attention, ConvShape, OutPointer, PackedMatrix, Rows, ScanInput, ScanShape, Timeline};
use crate::{Error, Result};
use candle_core::{DType, Tensor};

/// Rough time of a product: a few rows wait for the weights to come from memory (60 GB/s), many for the multiply-adds (100 G/s).
fn product_micros(rows: usize, matrix: &PackedMatrix) -> f32 {
    (matrix.inputs * matrix.outputs) as f32 * (4.0 / 60e3f32).max(rows as f32 / 100e3)
}

/// `out = act(x W + b)`; shared by rows where there are many, by panels otherwise.
fn product(threads: &mut Threads, matrix: &PackedMatrix, act: Activation, x: Rows, (data, stride): (*mut f32, usize)) {
    let (rows, panels) = (x.rows, matrix.panel_count());
    let out = OutPointer { data, stride };
    threads.share(product_micros(rows, matrix), |part, parts| {
        let by_rows = rows >= 24 * parts;
        let (r, p) = if by_rows { (share(rows, part, parts), 0..panels) } else { (0..rows, share(panels, part, parts)) };
        // SAFETY: `out` is a buffer of `rows` rows of the product's width; the parts are disjoint in rows or in panels.
        unsafe { ops::linear_block(matrix, act, (x.data, x.stride), r, p, out) };
    });
}

/// Runs `f(row)` for every row, shared among the threads where a row's `width` values make it worth it.
fn for_rows(threads: &mut Threads, rows: usize, width: usize, f: impl Fn(usize) + Sync) {
    // An activation takes about a nanosecond for two values.
    threads.share((rows * width) as f32 * 5e-4, |part, parts| share(rows, part, parts).for_each(&f));
}

/// Runs `f(channels)` for all channels in ranges of whole vectors, shared among the threads if `micros` make it worth it.
fn for_channels(threads: &mut Threads, (width, micros): (usize, f32), f: impl Fn(std::ops::Range<usize>) + Sync) {
    const VECTOR: usize = 16;
    threads.share(micros, |part, parts| {
        let vectors = share(width.div_ceil(VECTOR), part, parts);
        f(vectors.start * VECTOR..(vectors.end * VECTOR).min(width));
    });
}

/// Part `part` of `parts` of `n` things.
fn share(n: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    n * part / parts..n * (part + 1) / parts
}

/// The values of a weight on the host as f32.
fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?)
}

fn same_width(operation: &str, a: usize, b: usize) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::Input(format!("{operation}: {a} and {b} values a row"))) }
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

impl Recorder {
    /// A weight's values for a step to hold.
    fn values(&mut self, tensor: &Tensor) -> Result<Vec<f32>> {
        let values = host(tensor)?;
        self.hold(4 * values.len());
        Ok(values)
    }

    /// The first `inputs` rows of a layer's weight, packed.
    fn pack(&mut self, layer: &Linear, inputs: usize) -> Result<PackedMatrix> {
        let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
        let matrix = PackedMatrix::new(inputs, layer.weight.dim(1)?, &host(&layer.weight.narrow(0, 0, inputs)?)?, &bias, &layer.format);
        self.hold(matrix.bytes());
        Ok(matrix)
    }

    /// For each table its product with the layer's columns behind the first `floats`: looking up is adding a row.
    fn fold(&mut self, floats: usize, tables: &[&Tensor], layer: &Linear) -> Result<Vec<Vec<f32>>> {
        let mut at = floats;
        let folded = tables.iter().map(|table| {
            let width = table.dim(1)?;
            at += width;
            self.values(&table.matmul(&layer.weight.narrow(0, at - width, width)?)?)
        });
        folded.collect()
    }
}

impl Executor for Recorder {
    type V = Slot;
    type I = IndexSlot;

    fn input(&mut self, name: &str) -> Result<Slot> {
        match self.find(name, DType::F32)? {
            Output::Floats(slot) => Ok(slot),
            Output::Indices(_) => Err(Error::tensor(name, "floats", "indices")),
        }
    }

    fn indices(&mut self, name: &str) -> Result<IndexSlot> {
        match self.find(name, DType::U32)? {
            Output::Indices(slot) => Ok(slot),
            Output::Floats(_) => Err(Error::tensor(name, "indices", "floats")),
        }
    }

    fn linear(&mut self, x: &Slot, layer: &Linear, act: Activation) -> Result<Slot> {
        let x = *x;
        same_width("linear", x.width, layer.weight.dim(0)?)?;
        let matrix = self.pack(layer, x.width)?;
        let out = self.slot(matrix.outputs);
        self.record("linear", &[x], move |frame, threads| {
            product(threads, &matrix, act, frame.rows(x), frame.output(out));
            Ok(())
        });
        Ok(out)
    }

    fn lookup_linear(&mut self, x: &Slot, ids: &IndexSlot, tables: &[&Tensor], layer: &Linear) -> Result<Slot> {
        let (x, ids) = (*x, *ids);
        let matrix = self.pack(layer, x.width)?;
        let limits = tables.iter().map(|t| Ok(t.dim(0)?)).collect::<Result<Vec<_>>>()?;
        let tables = self.fold(x.width, tables, layer)?;
        let out = self.slot(matrix.outputs);
        self.record("lookup-linear", &[x], move |frame, threads| {
            for r in 0..frame.rows {
                if let Some((id, limit)) = frame.ids(ids, r).iter().zip(&limits).find(|(id, limit)| **id as usize >= **limit) {
                    return Err(Error::Input(format!("id {id} in a table of {limit} rows")));
                }
            }
            product(threads, &matrix, Activation::None, frame.rows(x), frame.output(out));
            for_rows(threads, frame.rows, tables.len() * out.width, |r| {
                // SAFETY: every row belongs to one part.
                let row = unsafe { frame.row_mut(out, r) };
                for (table, &id) in tables.iter().zip(frame.ids(ids, r)) {
                    ops::add_into(row, &table[id as usize * out.width..][..out.width]);
                }
            });
            Ok(())
        });
        Ok(out)
    }

    fn norm(&mut self, x: &Slot, norm: &Norm, act: Activation) -> Result<Slot> {
        let (x, kind, eps) = (*x, norm.kind, norm.eps as f32);
        let weight = self.values(&norm.weight)?;
        let bias = norm.bias.as_ref().map(|b| self.values(b)).transpose()?.unwrap_or_default();
        let out = self.slot(x.width);
        self.record("norm", &[x], move |frame, threads| {
            let group = weight.len();
            for_rows(threads, frame.rows, x.width, |r| {
                // SAFETY: every row belongs to one part.
                let out = unsafe { frame.row_mut(out, r) };
                for (x, out) in frame.row(x, r).chunks(group).zip(out.chunks_mut(group)) {
                    ops::norm_row(kind, eps, act, x, &weight, &bias, out);
                }
            });
            Ok(())
        });
        Ok(out)
    }

    fn add_rows(&mut self, x: &Slot, table: &Tensor, ids: &IndexSlot, columns: &IndexColumns, act: Activation) -> Result<Slot> {
        let (x, ids, columns) = (*x, *ids, columns.to_vec());
        let table = self.values(table)?;
        let out = self.slot(x.width);
        self.record("add-rows", &[x], move |frame, _| {
            for r in 0..frame.rows {
                // SAFETY: this step has one part.
                let row = unsafe { frame.row_mut(out, r) };
                row.copy_from_slice(frame.row(x, r));
                for &(column, base) in &columns {
                    let id = frame.ids(ids, r)[column] as usize;
                    let Some(found) = table.get((base + id) * out.width..(base + id + 1) * out.width) else {
                        return Err(Error::Input(format!("class {id} of column {column} is outside its table")));
                    };
                    ops::add_into(row, found);
                }
                ops::activate(act, row);
            }
            Ok(())
        });
        Ok(out)
    }

    fn add(&mut self, a: &Slot, b: &Slot) -> Result<Slot> {
        let (a, b) = (*a, *b);
        same_width("add", a.width, b.width)?;
        let out = self.slot(a.width);
        self.record("add", &[a, b], move |frame, threads| {
            for_rows(threads, frame.rows, out.width, |r| {
                // SAFETY: every row belongs to one part.
                let out = unsafe { frame.row_mut(out, r) };
                out.iter_mut().zip(frame.row(a, r)).zip(frame.row(b, r)).for_each(|((o, a), b)| *o = a + b);
            });
            Ok(())
        });
        Ok(out)
    }

    fn gate(&mut self, a: &Slot, z: &Slot) -> Result<Slot> {
        let (a, z) = (*a, *z);
        same_width("gate", a.width, z.width)?;
        let out = self.slot(a.width);
        self.record("gate", &[a, z], move |frame, threads| {
            for_rows(threads, frame.rows, out.width, |r| {
                // SAFETY: every row belongs to one part.
                ops::gate_row(frame.row(a, r), frame.row(z, r), unsafe { frame.row_mut(out, r) });
            });
            Ok(())
        });
        Ok(out)
    }

    fn columns(&mut self, x: &Slot, start: usize, len: usize) -> Result<Slot> {
        Ok(x.columns(start, len))
    }

    fn join(&mut self, parts: &[Slot]) -> Result<Slot> {
        let parts = parts.to_vec();
        let out = self.slot(parts.iter().map(|p| p.width).sum());
        self.record("join", &parts.clone(), move |frame, _| {
            for r in 0..frame.rows {
                // SAFETY: this step has one part.
                let mut row = unsafe { frame.row_mut(out, r) };
                for part in &parts {
                    let (to, rest) = row.split_at_mut(part.width);
                    to.copy_from_slice(frame.row(*part, r));
                    row = rest;
                }
            }
            Ok(())
        });
        Ok(out)
    }

    fn join_indices(&mut self, parts: &[IndexSlot]) -> Result<IndexSlot> {
        let parts = parts.to_vec();
        let out = self.index_slot(parts.iter().map(|p| p.columns).sum());
        self.record("join-indices", &[], move |frame, _| {
            for r in 0..frame.rows {
                // SAFETY: this step has one part, and every index matrix has a place of its own.
                let mut row = unsafe { frame.ids_mut(out, r) };
                for part in &parts {
                    let (to, rest) = row.split_at_mut(part.columns);
                    to.copy_from_slice(frame.ids(*part, r));
                    row = rest;
                }
            }
            Ok(())
        });
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
        let (x, state) = (*x, self.state(state)?);
        let (taps, width) = weight.dims2()?;
        let (weight, bias) = (self.values(weight)?, self.values(bias)?);
        let out = self.slot(width);
        self.record("causal-conv", &[x], move |frame, threads| {
            let shape = ConvShape { steps: frame.steps, width, taps };
            for_channels(threads, (width, (frame.rows * width) as f32 * 3e-4), |channels| {
                for b in 0..frame.batch() {
                    let (state, out) = (OutPointer { data: frame.state_at(b, state), stride: width }, frame.sequence_at(out, b));
                    // SAFETY: every channel of state and output belongs to one part.
                    unsafe {
                        ops::conv_sequence(shape, channels.clone(), frame.resets(b), frame.sequence(x, b), (&weight, &bias), state, out)
                    };
                }
            });
            Ok(())
        });
        Ok(out)
    }

    fn selective_scan(&mut self, [u, dt, bc]: [&Slot; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Slot> {
        let (u, dt, bc, state) = (*u, *dt, *bc, self.state(state)?);
        let (width, states) = a_log.dims2()?;
        let a = self.values(&(a_log.t()?.contiguous()?.exp()? * -std::f64::consts::LOG2_E)?)?;
        let skip = self.values(skip)?;
        let out = self.slot(width);
        self.record("selective-scan", &[u, dt, bc], move |frame, threads| {
            let shape = ScanShape { steps: frame.steps, width, states };
            for_channels(threads, (width, (frame.rows * width * states) as f32 * 2e-4), |channels| {
                for b in 0..frame.batch() {
                    let input = ScanInput {
                        u: frame.sequence(u, b),
                        dt: frame.sequence(dt, b),
                        b: frame.sequence(bc.columns(0, states), b),
                        c: frame.sequence(bc.columns(states, states), b),
                        a: &a,
                        skip: &skip,
                    };
                    let (state, out) = (OutPointer { data: frame.state_at(b, state), stride: width }, frame.sequence_at(out, b));
                    // SAFETY: every channel of state and output belongs to one part.
                    unsafe { ops::scan_sequence(shape, channels.clone(), frame.resets(b), input, state, out) };
                }
            });
            Ok(())
        });
        Ok(out)
    }

    fn gru(&mut self, x: &Slot, hidden: &Linear, state: usize) -> Result<Slot> {
        let (x, state) = (*x, self.state(state)?);
        let width = hidden.weight.dim(0)?;
        let matrix = self.pack(hidden, width)?;
        let (h, products, out) = (self.slot(width), self.slot(3 * width), self.slot(width));
        self.record("gru", &[x], move |frame, threads| {
            let (batch, steps) = (frame.batch(), frame.steps);
            // The states of all sequences side by side in the first rows of `h`, so that a frame is one product.
            // SAFETY: outside the product this step has one part; the product reads `h` and writes `products`.
            let state = |b: usize| unsafe { frame.state(b, state) };
            for t in 0..steps {
                for b in 0..batch {
                    if frame.resets(b)[t] {
                        state(b).fill(0.0);
                    }
                    // SAFETY: as above.
                    unsafe { frame.row_mut(h, b) }.copy_from_slice(state(b));
                }
                product(threads, &matrix, Activation::None, Rows { rows: batch, ..frame.rows(h) }, frame.output(products));
                for b in 0..batch {
                    ops::gru_row(frame.row(x, b * steps + t), frame.row(products, b), state(b));
                    // SAFETY: as above.
                    unsafe { frame.row_mut(out, b * steps + t) }.copy_from_slice(state(b));
                }
            }
            Ok(())
        });
        Ok(out)
    }

    fn attention(&mut self, shape: Attention, [q, k, v]: [&Slot; 3], bias: &Tensor, state: usize) -> Result<Slot> {
        let (q, k, v) = (*q, *k, *v);
        let places = [self.state(state)?, self.state(state + 1)?, self.state(state + 2)?];
        let bias = self.values(bias)?;
        let (scores, out) = (self.slot(shape.window), self.slot(q.width));
        self.record("attention", &[q, k, v], move |frame, _| {
            let (steps, keep) = (frame.steps, shape.window - 1);
            for b in 0..frame.batch() {
                // SAFETY: this step has one part, and the three states lie apart.
                let [keys, values, count] = places.map(|place| unsafe { frame.state(b, place) });
                let mut available = count[0] as usize;
                let (new_keys, new_values) = (frame.sequence(k, b), frame.sequence(v, b));
                let memory = (
                    Timeline { cache: Rows { data: keys, rows: keep, width: q.width, stride: q.width }, new: new_keys },
                    Timeline { cache: Rows { data: values, rows: keep, width: q.width, stride: q.width }, new: new_values },
                );
                for (t, &reset) in frame.resets(b).iter().enumerate() {
                    available = if reset { 0 } else { available.min(keep) };
                    let r = b * steps + t;
                    // SAFETY: as above.
                    let (scores, out) = unsafe { (frame.row_mut(scores, 0), frame.row_mut(out, r)) };
                    ops::attend_row(shape, t, available, frame.row(q, r), memory, &bias, scores, out);
                    available += 1;
                }
                count[0] = available.min(keep) as f32;
                shift(keys, new_keys);
                shift(values, new_values);
            }
            Ok(())
        });
        Ok(out)
    }

    fn choose(&mut self, logits: &Slot, wanted: &IndexSlot, uniform: &Slot, choice: Choice) -> Result<IndexSlot> {
        let (logits, wanted, uniform) = (*logits, *wanted, *uniform);
        let Choice { column, columns, classes } = choice;
        let out = self.index_slot(columns);
        let per = logits.width / columns;
        self.record("choose", &[logits, uniform], move |frame, _| {
            for r in 0..frame.rows {
                let (wanted, uniform) = (&frame.ids(wanted, r)[column..][..columns], &frame.row(uniform, r)[column..][..columns]);
                let logits = frame.row(logits, r).chunks(per);
                // SAFETY: this step has one part, and every index matrix has a place of its own.
                let chosen = unsafe { frame.ids_mut(out, r) };
                for (i, ((&want, &u), logits)) in wanted.iter().zip(uniform).zip(logits).enumerate() {
                    chosen[i] = match want {
                        SAMPLE => pick(logits, u),
                        class if (class as usize) < classes => class,
                        class => return Err(Error::Input(format!("action column {}: class {class} of {classes}", column + i))),
                    };
                }
            }
            Ok(())
        });
        Ok(out)
    }
}
