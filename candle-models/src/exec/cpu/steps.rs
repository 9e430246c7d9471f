//! What operations on the CPU are compiled with: weights are packed here, kernels over slices run later.

use super::frame::Frame;
use super::pool::Threads;
use crate::Result;
use crate::exec::host;
use crate::exec::program::Wires;
use crate::exec::reference::{Fallback, Operands, Results};
use crate::ops::{self, Activation, Format, Linear, OutPointer, PackedMatrix, Products, Rows};
use candle_core::Tensor;

/// Rough time of a product: a few rows wait for the weights to come from memory (60 GB/s in f32), many for the multiply-adds (100 G/s). Weights of 8 bits
/// that are multiplied as integers lie in a near cache: two threads that shared theirs took 1.1 to 1.4 times as long for a row of the usual networks as one.
fn product_micros(rows: usize, matrix: &PackedMatrix) -> f32 {
    let loading = if matrix.multiplies_integers() { 1.0 / 100e3 } else { 4.0 / 60e3f32 };
    (matrix.inputs * matrix.outputs) as f32 * loading.max(rows as f32 / 100e3)
}

/// `out = act(x W + b)`; shared by rows where there are many, by panels otherwise.
pub(crate) fn product(threads: &mut Threads, matrix: &PackedMatrix, act: Activation, x: Rows, (data, stride): (*mut f32, usize)) {
    let (rows, panels) = (x.rows, matrix.panel_count());
    let out = OutPointer { data, stride };
    threads.share(product_micros(rows, matrix), |part, parts| {
        let by_rows = rows >= 24 * parts;
        let (r, p) = if by_rows { (share(rows, part, parts), 0..panels) } else { (0..rows, share(panels, part, parts)) };
        // SAFETY: `out` is a buffer of `rows` rows of the product's width; the parts are disjoint in rows or in panels.
        unsafe { ops::linear_block(matrix, act, (x.data, x.stride), r, p, out) };
    });
}

/// The same at every one of some places of a row.
pub(crate) fn product_at_places(
    threads: &mut Threads,
    matrix: &PackedMatrix,
    act: Activation,
    places: usize,
    x: Rows,
    (data, stride): (*mut f32, usize),
) {
    let (width, outputs) = (x.width / places, matrix.outputs);
    if places == 1 {
        return product(threads, matrix, act, x, (data, stride));
    }
    if x.stride == x.width && stride == places * outputs {
        return product(threads, matrix, act, Rows { rows: x.rows * places, width, stride: width, ..x }, (data, outputs));
    }
    for r in 0..x.rows {
        let row = Rows { data: x.row(r), rows: places, width, stride: width };
        product(threads, matrix, act, row, (data.wrapping_add(r * stride), outputs));
    }
}

/// Runs `f(row)` for every row, shared among the threads where a row's `width` values make it worth it.
pub(crate) fn for_rows(threads: &mut Threads, rows: usize, width: usize, f: impl Fn(usize) + Sync) {
    // An activation takes about a nanosecond for two values.
    threads.share((rows * width) as f32 * 5e-4, |part, parts| share(rows, part, parts).for_each(&f));
}

/// Runs `f(channels)` for all channels in ranges of whole vectors, shared among the threads if `micros` make it worth it.
pub(crate) fn for_channels(threads: &mut Threads, (width, micros): (usize, f32), f: impl Fn(std::ops::Range<usize>) + Sync) {
    const VECTOR: usize = 16;
    threads.share(micros, |part, parts| {
        let vectors = share(width.div_ceil(VECTOR), part, parts);
        f(vectors.start * VECTOR..(vectors.end * VECTOR).min(width));
    });
}

/// Part `part` of `parts` of `n` things.
pub(super) fn share(n: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    n * part / parts..n * (part + 1) / parts
}

/// What an operation does in a pass.
pub type Run = Box<dyn Fn(&Frame, &mut Threads) -> Result<()> + Send + Sync>;

/// Gives operations their weights to hold, packed, and counts the bytes of these.
#[derive(Default)]
pub struct Packer {
    /// What the operands of products are rounded to.
    pub(super) products: Products,
    /// Bytes of all weights so far.
    pub(super) bytes: usize,
    /// Of the operation that is being compiled.
    pub(super) wires: Wires,
}

impl Packer {
    /// A weight's values for a step to hold.
    pub fn values(&mut self, tensor: &Tensor) -> Result<Vec<f32>> {
        let values = host(tensor)?;
        self.bytes += 4 * values.len();
        Ok(values)
    }

    /// The first `inputs` rows of a layer's weight, packed.
    pub(crate) fn pack(&mut self, layer: &Linear, inputs: usize) -> Result<PackedMatrix> {
        let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
        let (outputs, weight) = (layer.weight.dim(1)?, host(&layer.weight.narrow(0, 0, inputs)?)?);
        // Weights of 8 bits stay what they are.
        let rounds = self.products == Products::Bf16 && ops::has_bf16_products() && !matches!(layer.format, Format::Q8(_));
        let matrix = match rounds {
            true => PackedMatrix::new(inputs, outputs, &weight, &bias, &Format::Bf16).rounding_activations(),
            false => PackedMatrix::new(inputs, outputs, &weight, &bias, &layer.format),
        };
        self.bytes += matrix.bytes();
        Ok(matrix)
    }

    /// For each table its product with the layer's columns behind the first `floats`, one below the other: looking up is adding a row.
    pub(crate) fn fold(&mut self, floats: usize, tables: &[Tensor], layer: &Linear) -> Result<Vec<f32>> {
        let mut at = floats;
        let folded = tables.iter().map(|table| {
            let width = table.dim(1)?;
            at += width;
            self.values(&table.matmul(&layer.weight.narrow(0, at - width, width)?)?)
        });
        Ok(folded.collect::<Result<Vec<_>>>()?.concat())
    }
}

/// The step of an operation without a kernel: what it reads goes to tensors, and what they give comes back.
pub(super) fn on_tensors(fallback: Fallback) -> Run {
    Box::new(move |frame, _| {
        let (wires, batch) = (&fallback.wires, frame.batch());
        let all = |slot| (0..frame.rows).flat_map(|r| frame.row(slot, r)).copied().collect();
        // SAFETY: this step has one part, and states lie apart.
        let state = |b, place| unsafe { frame.state(b, place) };
        let operands = Operands {
            x: wires.x.iter().map(|slot| all(*slot)).collect(),
            ids: wires.ids.iter().map(|slot| (0..frame.rows).flat_map(|r| frame.ids(*slot, r)).copied().collect()).collect(),
            states: wires.states.iter().map(|place| (0..batch).flat_map(|b| state(b, *place).iter().copied()).collect()).collect(),
            resets: (0..batch).flat_map(|b| frame.resets(b)).copied().collect(),
        };
        let Results { out, out_ids, states } = fallback.run(operands, batch)?;
        for (slot, values) in wires.out.iter().zip(&out) {
            for (r, row) in values.chunks_exact(slot.width).enumerate() {
                // SAFETY: this step has one part, and its results lie apart from what it reads.
                unsafe { frame.row_mut(*slot, r) }.copy_from_slice(row);
            }
        }
        for (slot, values) in wires.out_ids.iter().zip(&out_ids) {
            for (r, row) in values.chunks_exact(slot.columns).enumerate() {
                // SAFETY: as above.
                unsafe { frame.ids_mut(*slot, r) }.copy_from_slice(row);
            }
        }
        for (place, values) in wires.states.iter().zip(&states) {
            values.chunks_exact(place.width).enumerate().for_each(|(b, values)| state(b, *place).copy_from_slice(values));
        }
        Ok(())
    })
}
