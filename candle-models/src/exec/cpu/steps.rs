//! From operations to steps on the CPU: weights are packed here, kernels over slices run later.

use super::frame::Frame;
use super::pool::Threads;
use crate::exec::program::{IndexSlot, Op, Slot, StatePlace};
use crate::exec::{Choice, SAMPLE, host, pick};
use crate::nn::{Linear, Norm};
use crate::ops::{self, Activation, Attention, ConvShape, OutPointer, PackedMatrix, Rows, ScanInput, ScanShape, Timeline};
use crate::{Error, Result};
use candle_core::Tensor;

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

/// Leaves the last rows of `cache` and `new` in `cache`, oldest first.
fn shift(cache: &mut [f32], new: Rows) {
    let keep = cache.len() / new.width;
    let fresh = new.rows.min(keep);
    cache.copy_within(fresh * new.width.., 0);
    for (row, r) in cache[(keep - fresh) * new.width..].chunks_mut(new.width).zip(new.rows - fresh..) {
        row.copy_from_slice(new.row(r));
    }
}

/// What an operation does in a pass.
pub(super) type Run = Box<dyn Fn(&Frame, &mut Threads) -> Result<()> + Send + Sync>;

/// Turns operations into steps that hold their weights, and counts the bytes of these.
#[derive(Default)]
pub(super) struct Packer {
    /// Bytes of all weights so far.
    pub bytes: usize,
}

impl Packer {
    /// The step of an operation.
    pub fn step(&mut self, op: &Op) -> Result<Run> {
        match op {
            Op::Linear { x, layer, act, out } => self.linear(*x, layer, *act, *out),
            Op::LookupLinear { x, ids, tables, layer, out } => self.lookup_linear(*x, *ids, tables, layer, *out),
            Op::Norm { x, norm, act, out } => self.norm(*x, norm, *act, *out),
            Op::AddRows { x, table, ids, columns, act, out } => self.add_rows(*x, table, (*ids, columns), *act, *out),
            Op::Add { a, b, out } => Ok(add(*a, *b, *out)),
            Op::Gate { a, z, out } => Ok(gate(*a, *z, *out)),
            Op::Join { parts, out } => Ok(join(parts.clone(), *out)),
            Op::JoinIndices { parts, out } => Ok(join_indices(parts.clone(), *out)),
            Op::CausalConv { x, weight, bias, state, out } => self.causal_conv(*x, [weight, bias], *state, *out),
            Op::SelectiveScan { u, dt, bc, a_log, skip, state, out } => self.selective_scan([*u, *dt, *bc], [a_log, skip], *state, *out),
            Op::Gru { x, hidden, state, h, products, out } => self.gru(*x, hidden, *state, [*h, *products], *out),
            Op::Attention { shape, qkv, slopes, states, scores, out } => self.attention(*shape, *qkv, slopes, *states, [*scores, *out]),
            Op::Choose { logits, wanted, uniform, choice, out } => Ok(choose(*logits, (*wanted, *uniform), *choice, *out)),
            Op::Mamba { .. } | Op::Autoregressive { .. } => unreachable!("the CPU records blocks in their operations"),
        }
    }

    /// A weight's values for a step to hold.
    fn values(&mut self, tensor: &Tensor) -> Result<Vec<f32>> {
        let values = host(tensor)?;
        self.bytes += 4 * values.len();
        Ok(values)
    }

    /// The first `inputs` rows of a layer's weight, packed.
    fn pack(&mut self, layer: &Linear, inputs: usize) -> Result<PackedMatrix> {
        let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
        let matrix = PackedMatrix::new(inputs, layer.weight.dim(1)?, &host(&layer.weight.narrow(0, 0, inputs)?)?, &bias, &layer.format);
        self.bytes += matrix.bytes();
        Ok(matrix)
    }

    /// For each table its product with the layer's columns behind the first `floats`: looking up is adding a row.
    fn fold(&mut self, floats: usize, tables: &[Tensor], layer: &Linear) -> Result<Vec<Vec<f32>>> {
        let mut at = floats;
        let folded = tables.iter().map(|table| {
            let width = table.dim(1)?;
            at += width;
            self.values(&table.matmul(&layer.weight.narrow(0, at - width, width)?)?)
        });
        folded.collect()
    }

    fn linear(&mut self, x: Slot, layer: &Linear, act: Activation, out: Slot) -> Result<Run> {
        let matrix = self.pack(layer, x.width)?;
        Ok(Box::new(move |frame, threads| {
            product(threads, &matrix, act, frame.rows(x), frame.output(out));
            Ok(())
        }))
    }

    fn lookup_linear(&mut self, x: Slot, ids: IndexSlot, tables: &[Tensor], layer: &Linear, out: Slot) -> Result<Run> {
        let matrix = self.pack(layer, x.width)?;
        let limits = tables.iter().map(|t| Ok(t.dim(0)?)).collect::<Result<Vec<_>>>()?;
        let tables = self.fold(x.width, tables, layer)?;
        Ok(Box::new(move |frame, threads| {
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
        }))
    }

    fn norm(&mut self, x: Slot, norm: &Norm, act: Activation, out: Slot) -> Result<Run> {
        let (kind, eps, weight) = (norm.kind, norm.eps as f32, self.values(&norm.weight)?);
        let bias = norm.bias.as_ref().map(|b| self.values(b)).transpose()?.unwrap_or_default();
        Ok(Box::new(move |frame, threads| {
            let group = weight.len();
            for_rows(threads, frame.rows, x.width, |r| {
                // SAFETY: every row belongs to one part.
                let out = unsafe { frame.row_mut(out, r) };
                for (x, out) in frame.row(x, r).chunks(group).zip(out.chunks_mut(group)) {
                    ops::norm_row(kind, eps, act, x, &weight, &bias, out);
                }
            });
            Ok(())
        }))
    }

    fn add_rows(
        &mut self,
        x: Slot,
        table: &Tensor,
        (ids, columns): (IndexSlot, &[(usize, usize)]),
        act: Activation,
        out: Slot,
    ) -> Result<Run> {
        let (table, columns) = (self.values(table)?, columns.to_vec());
        Ok(Box::new(move |frame, _| {
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
        }))
    }

    fn causal_conv(&mut self, x: Slot, [weight, bias]: [&Tensor; 2], state: StatePlace, out: Slot) -> Result<Run> {
        let (taps, width) = weight.dims2()?;
        let (weight, bias) = (self.values(weight)?, self.values(bias)?);
        Ok(Box::new(move |frame, threads| {
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
        }))
    }

    fn selective_scan(&mut self, [u, dt, bc]: [Slot; 3], [a_log, skip]: [&Tensor; 2], state: StatePlace, out: Slot) -> Result<Run> {
        let (width, states) = a_log.dims2()?;
        let a = self.values(&(a_log.t()?.contiguous()?.exp()? * -std::f64::consts::LOG2_E)?)?;
        let skip = self.values(skip)?;
        Ok(Box::new(move |frame, threads| {
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
        }))
    }

    fn gru(&mut self, x: Slot, hidden: &Linear, state: StatePlace, [h, products]: [Slot; 2], out: Slot) -> Result<Run> {
        let matrix = self.pack(hidden, hidden.weight.dim(0)?)?;
        Ok(Box::new(move |frame, threads| {
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
        }))
    }

    fn attention(
        &mut self,
        shape: Attention,
        [q, k, v]: [Slot; 3],
        slopes: &Tensor,
        places: [StatePlace; 3],
        [scores, out]: [Slot; 2],
    ) -> Result<Run> {
        let slopes = self.values(slopes)?;
        Ok(Box::new(move |frame, _| {
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
                    ops::attend_row(shape, t, available, frame.row(q, r), memory, &slopes, scores, out);
                    available += 1;
                }
                count[0] = available.min(keep) as f32;
                shift(keys, new_keys);
                shift(values, new_values);
            }
            Ok(())
        }))
    }
}

fn add(a: Slot, b: Slot, out: Slot) -> Run {
    Box::new(move |frame, threads| {
        for_rows(threads, frame.rows, out.width, |r| {
            // SAFETY: every row belongs to one part.
            let out = unsafe { frame.row_mut(out, r) };
            out.iter_mut().zip(frame.row(a, r)).zip(frame.row(b, r)).for_each(|((o, a), b)| *o = a + b);
        });
        Ok(())
    })
}

fn gate(a: Slot, z: Slot, out: Slot) -> Run {
    Box::new(move |frame, threads| {
        for_rows(threads, frame.rows, out.width, |r| {
            // SAFETY: every row belongs to one part.
            ops::gate_row(frame.row(a, r), frame.row(z, r), unsafe { frame.row_mut(out, r) });
        });
        Ok(())
    })
}

fn join(parts: Vec<Slot>, out: Slot) -> Run {
    Box::new(move |frame, _| {
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
    })
}

fn join_indices(parts: Vec<IndexSlot>, out: IndexSlot) -> Run {
    Box::new(move |frame, _| {
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
    })
}

fn choose(logits: Slot, (wanted, uniform): (IndexSlot, Slot), choice: Choice, out: IndexSlot) -> Run {
    let Choice { column, columns, classes } = choice;
    let per = logits.width / columns;
    Box::new(move |frame, _| {
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
    })
}
