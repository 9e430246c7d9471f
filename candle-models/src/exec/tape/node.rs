//! The operations of a tape: each forward, backward, and the gradients of its parameters.

use super::mamba::{Conv, Scan};
use super::{Differentiable, Matrix, Parameters, Steps, Tape};
use crate::exec::host;
use crate::exec::program::{Op, Slot};
use crate::nn::{Linear, Norm};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::ops::amx;
use crate::ops::{self, Activation, Format, NormKind, Operand, OutPointer, PackedMatrix, Products, Rows, Target};
use crate::{Error, Result};
use candle_core::{CpuStorage, DType, Storage, Tensor};
use std::ops::Range;

/// Calls `f` with the values of a parameter, where they lie if they do so in order.
fn with_host<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => Ok(f(&values[start..end])),
        _ => Err(Error::Input("a tape's parameters lie on the host".to_owned())),
    }
}

/// A matrix packed for products from the right.
enum Packed {
    Floats(PackedMatrix),
    /// For the processor's tiles, where it has them.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tiles(amx::Tiles, Vec<f32>),
}

impl Packed {
    fn new(products: Products, [inputs, outputs]: [usize; 2], weight: &[f32], bias: &[f32]) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if amx::available() {
            return Self::Tiles(amx::Tiles::new(products, inputs, outputs, weight), bias.to_vec());
        }
        let _ = products;
        Self::Floats(PackedMatrix::new(inputs, outputs, weight, bias, &Format::F32))
    }

    fn transposed(products: Products, [inputs, outputs]: [usize; 2], weight: &[f32]) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if amx::available() {
            return Self::Tiles(amx::Tiles::transposed(products, inputs, outputs, weight), Vec::new());
        }
        let _ = products;
        Self::Floats(PackedMatrix::transposed(inputs, outputs, weight))
    }

    /// `out = x W + b`.
    fn multiply(&self, x: Rows, out: &mut [f32]) {
        match self {
            Self::Floats(matrix) => {
                assert!(out.len() >= x.rows * matrix.outputs);
                let pointer = OutPointer::rows(out, matrix.outputs);
                let (rows, panels) = (0..x.rows, 0..matrix.panel_count());
                // SAFETY: `out` has a row of the matrix's width for every row of `x` (asserted) and is borrowed alone.
                unsafe { ops::linear_block(matrix, Activation::None, (x.data, x.stride), rows, panels, pointer) };
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Tiles(tiles, bias) => amx::multiply(tiles, x, bias, out),
        }
    }
}

/// A weight packed for both directions, its bias, and where their gradients go.
pub(super) struct Weight {
    products: Products,
    forward: Packed,
    transposed: Packed,
    bias: Vec<f32>,
    outputs: usize,
    /// Among the parameters whose gradients are products.
    pub place: Range<usize>,
    /// Among those whose gradients are summed on the way.
    bias_place: Range<usize>,
}

impl Weight {
    fn new(layer: &Linear, parameters: &mut Parameters) -> Result<Self> {
        let (inputs, outputs) = layer.weight.dims2()?;
        let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
        let (shape, products) = ([inputs, outputs], parameters.products);
        let (forward, transposed) = with_host(&layer.weight, |values| {
            rayon::join(|| Packed::new(products, shape, values, &bias), || Packed::transposed(products, shape, values))
        })?;
        let bias_place = layer.bias.as_ref().map_or(0..0, |bias| parameters.summed.of(bias));
        Ok(Self { products, forward, transposed, bias, outputs, place: parameters.multiplied.of(&layer.weight), bias_place })
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Adds the bias's gradient, the sum of the rows of `dy`.
    fn add_bias_gradient(&self, dy: &[f32], sums: &mut [f32]) {
        if !self.bias_place.is_empty() {
            let sum = &mut sums[self.bias_place.clone()];
            dy.chunks_exact(self.outputs).for_each(|row| ops::add_into(sum, row));
        }
    }

    /// Adds `x^T dy`, a part of the weight's gradient, to `out`.
    ///
    /// # Safety
    /// `out` points at `x.width` rows of `dy.width` values that nobody else touches.
    pub unsafe fn add_gradient(&self, x: Rows, dy: Rows, out: OutPointer) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.forward {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                Packed::Tiles(..) => amx::multiply_transposed(self.products, x, dy, out),
                Packed::Floats(_) => ops::multiply(Operand::from(x).t(), dy.into(), out, Target::Sum),
            }
        }
    }
}

fn rows(data: &[f32], width: usize) -> Rows<'_> {
    Rows { data, rows: data.len() / width, width, stride: width }
}

/// An operation. `before` is what an activation was applied to.
pub(super) enum Node {
    Linear {
        x: Slot,
        out: Slot,
        act: Activation,
        before: Option<Slot>,
        weight: Weight,
    },
    Norm {
        x: Slot,
        out: Slot,
        norm: Normaliser,
    },
    Add {
        a: Slot,
        b: Slot,
        out: Slot,
    },
    Gate {
        a: Slot,
        z: Slot,
        out: Slot,
    },
    Join {
        parts: Vec<Slot>,
        out: Slot,
    },
    Conv(Conv),
    Scan(Scan),
    /// `kept` is what the gates leave for their backward, and its gradient's place takes that of the products.
    Gru {
        x: Slot,
        out: Slot,
        kept: Slot,
        products: Slot,
        weight: Weight,
    },
}

/// A normalisation with its parameters on the host.
pub(super) struct Normaliser {
    kind: NormKind,
    eps: f32,
    act: Activation,
    weight: Vec<f32>,
    bias: Vec<f32>,
    place: Range<usize>,
    bias_place: Range<usize>,
}

impl Normaliser {
    fn new(norm: &Norm, act: Activation, parameters: &mut Parameters) -> Result<Self> {
        let place = parameters.summed.of(&norm.weight);
        let (bias, bias_place) = match &norm.bias {
            Some(bias) => (host(bias)?, parameters.summed.of(bias)),
            None => (Vec::new(), 0..0),
        };
        Ok(Self { kind: norm.kind, eps: norm.eps as f32, act, weight: host(&norm.weight)?, bias, place, bias_place })
    }

    fn forward(&self, x: Rows, out: &mut [f32]) {
        let group = self.weight.len();
        for (r, out) in out.chunks_exact_mut(x.width).enumerate() {
            for (x, out) in x.row(r).chunks_exact(group).zip(out.chunks_exact_mut(group)) {
                ops::norm_row(self.kind, self.eps, self.act, x, &self.weight, &self.bias, out);
            }
        }
    }

    /// The gradient `dx` of what was read, and those of gain and offset, which are added to `sums`; `dy` is changed on the way.
    fn backward(&self, x: Rows, dy: &mut [f32], dx: &mut [f32], sums: &mut [f32]) {
        let group = self.weight.len();
        let (mut gain, mut offset, mut before) = (vec![0.0; group], vec![0.0; group], vec![0.0; group]);
        for (r, (dy, dx)) in dy.chunks_exact_mut(x.width).zip(dx.chunks_exact_mut(x.width)).enumerate() {
            let groups = dy.chunks_exact_mut(group).zip(dx.chunks_exact_mut(group));
            for (x, (dy, dx)) in x.row(r).chunks_exact(group).zip(groups) {
                if self.act != Activation::None {
                    ops::norm_row(self.kind, self.eps, Activation::None, x, &self.weight, &self.bias, &mut before);
                    ops::activate_backward(self.act, &before, dy);
                }
                ops::norm_row_backward(self.kind, self.eps, x, &self.weight, dy, dx, &mut gain, &mut offset);
            }
        }
        ops::add_into(&mut sums[self.place.clone()], &gain);
        if !self.bias.is_empty() {
            ops::add_into(&mut sums[self.bias_place.clone()], &offset);
        }
    }
}

/// A matrix of the tape's own.
pub(super) fn matrix(matrices: &mut Vec<Matrix>, width: usize) -> Slot {
    // Nobody adds to its gradient.
    matrices.push(Matrix::new(width, true));
    Slot { buffer: matrices.len() - 1, start: 0, width }
}

impl Node {
    pub fn new(op: &Op, matrices: &mut Vec<Matrix>, parameters: &mut Parameters) -> Result<Self> {
        Ok(match op {
            Op::Linear { x, layer, act, out } => {
                let before = matches!(act, Activation::Gelu | Activation::Silu).then(|| matrix(matrices, out.width));
                Self::Linear { x: *x, out: *out, act: *act, before, weight: Weight::new(layer, parameters)? }
            }
            Op::Norm { x, norm, act, out } => Self::Norm { x: *x, out: *out, norm: Normaliser::new(norm, *act, parameters)? },
            Op::Add { a, b, out } => Self::Add { a: *a, b: *b, out: *out },
            Op::Gate { a, z, out } => Self::Gate { a: *a, z: *z, out: *out },
            Op::Join { parts, out } => Self::Join { parts: parts.clone(), out: *out },
            Op::Gru { x, hidden, out, products, .. } => {
                // The recorder's scratch for one row of a sequence serves here for all of them.
                matrices[products.buffer].read_once = true;
                let (kept, weight) = (matrix(matrices, 4 * out.width), Weight::new(hidden, parameters)?);
                Self::Gru { x: *x, out: *out, kept, products: *products, weight }
            }
            Op::CausalConv { x, weight, bias, out, .. } => Self::Conv(Conv::new([*x, *out], [weight, bias], matrices, parameters)?),
            Op::SelectiveScan { u, dt, bc, a_log, skip, out, .. } => {
                Self::Scan(Scan::new([*u, *dt, *bc, *out], [a_log, skip], matrices, parameters)?)
            }
            other => return Err(Error::Input(format!("no derivative through time of the operation {}", other.name()))),
        })
    }

    /// Values a row of the state's gradient.
    pub fn carried(&self) -> usize {
        match self {
            Self::Gru { out, .. } => out.width,
            Self::Conv(conv) => conv.carried(),
            Self::Scan(scan) => scan.carried(),
            _ => 0,
        }
    }

    /// Values a row that a backward works in.
    pub fn scratch(&self) -> usize {
        match self {
            Self::Linear { x, .. } | Self::Norm { x, .. } => x.width,
            Self::Gate { a, .. } => 2 * a.width,
            Self::Join { parts, .. } => parts.iter().map(|p| p.width).max().unwrap_or(0),
            Self::Gru { x, out, .. } => x.width + out.width,
            Self::Add { .. } | Self::Conv(_) | Self::Scan(_) => 0,
        }
    }

    pub fn forward(&self, tape: &mut Tape, t: usize) {
        let out_slot = self.out();
        let mut matrix = std::mem::take(&mut tape.values[out_slot.buffer]);
        let range = matrix.range(t);
        let out = &mut matrix.data[range.clone()];
        match self {
            Self::Linear { x, act, before, weight, .. } => {
                weight.forward.multiply(tape.value(*x, t), out);
                if let Some(before) = before {
                    tape.values[before.buffer].at_mut(t).copy_from_slice(out);
                }
                ops::activate(*act, out);
            }
            Self::Norm { x, norm, .. } => norm.forward(tape.value(*x, t), out),
            Self::Add { a, b, .. } => {
                let (a, b) = (tape.value(*a, t), tape.value(*b, t));
                for (r, out) in out.chunks_exact_mut(a.width).enumerate() {
                    out.iter_mut().zip(a.row(r)).zip(b.row(r)).for_each(|((o, a), b)| *o = a + b);
                }
            }
            Self::Gate { a, z, .. } => {
                let (a, z) = (tape.value(*a, t), tape.value(*z, t));
                out.chunks_exact_mut(a.width).enumerate().for_each(|(r, out)| ops::gate_row(a.row(r), z.row(r), out));
            }
            Self::Join { parts, out: slot } => {
                for (r, mut row) in out.chunks_exact_mut(slot.width).enumerate() {
                    for part in parts {
                        let (to, rest) = row.split_at_mut(part.width);
                        to.copy_from_slice(tape.value(*part, t).row(r));
                        row = rest;
                    }
                }
            }
            Self::Conv(conv) => conv.forward(tape, t, out),
            Self::Scan(scan) => scan.forward(tape, t, out),
            Self::Gru { x, kept, products, weight, out: slot } => {
                let (before, out) = matrix.data.split_at_mut(range.start);
                let out = &mut out[..range.len()];
                let mut kept_matrix = std::mem::take(&mut tape.values[kept.buffer]);
                let mut products_matrix = std::mem::take(&mut tape.values[products.buffer]);
                let product = products_matrix.at_mut(t);
                if t == 0 {
                    product.chunks_exact_mut(products.width).for_each(|row| row.copy_from_slice(&weight.bias));
                    out.fill(0.0);
                } else {
                    let before = &before[range.start - range.len()..];
                    weight.forward.multiply(rows(before, slot.width), product);
                    out.copy_from_slice(before);
                }
                let x = tape.value(*x, t);
                let kept_rows = kept_matrix.at_mut(t).chunks_exact_mut(kept.width);
                for (r, ((out, product), kept)) in
                    out.chunks_exact_mut(slot.width).zip(product.chunks_exact(products.width)).zip(kept_rows).enumerate()
                {
                    ops::gru_row_kept(x.row(r), product, out, kept);
                }
                tape.values[kept.buffer] = kept_matrix;
                tape.values[products.buffer] = products_matrix;
            }
        }
        tape.values[out_slot.buffer] = matrix;
    }

    fn out(&self) -> Slot {
        match self {
            Self::Linear { out, .. }
            | Self::Norm { out, .. }
            | Self::Add { out, .. }
            | Self::Gate { out, .. }
            | Self::Join { out, .. }
            | Self::Gru { out, .. } => *out,
            Self::Conv(conv) => conv.out(),
            Self::Scan(scan) => scan.out(),
        }
    }

    /// Number `i` among the nodes says where its state's gradient lies.
    pub fn backward(&self, net: &Differentiable, tape: &mut Tape, i: usize, t: usize) {
        let out_slot = self.out();
        let mut matrix = std::mem::take(&mut tape.grads[out_slot.buffer]);
        let mut scratch = std::mem::take(&mut tape.scratch);
        let dy = matrix.at_mut(t);
        match self {
            Self::Linear { x, act, before, weight, out } => {
                if *act != Activation::None {
                    let before = before.as_ref().unwrap_or(out);
                    ops::activate_backward(*act, tape.values[before.buffer].at(t), dy);
                }
                weight.add_bias_gradient(dy, &mut tape.sums);
                let dx = &mut scratch[..tape.rows * x.width];
                if net.matrices[x.buffer].read_once {
                    weight.transposed.multiply(rows(dy, out.width), tape.grads[x.buffer].at_mut(t));
                } else {
                    weight.transposed.multiply(rows(dy, out.width), dx);
                    tape.deliver(net, *x, t, dx);
                }
            }
            Self::Norm { x, norm, .. } => {
                let dx = &mut scratch[..tape.rows * x.width];
                let mut sums = std::mem::take(&mut tape.sums);
                norm.backward(tape.value(*x, t), dy, dx, &mut sums);
                tape.sums = sums;
                tape.deliver(net, *x, t, dx);
            }
            Self::Add { a, b, .. } => {
                tape.deliver(net, *a, t, dy);
                tape.deliver(net, *b, t, dy);
            }
            Self::Gate { a, z, .. } => {
                let (da, dz) = scratch[..2 * tape.rows * a.width].split_at_mut(tape.rows * a.width);
                let (from, gate) = (tape.value(*a, t), tape.value(*z, t));
                for (r, dy) in dy.chunks_exact(a.width).enumerate() {
                    let row = r * a.width..(r + 1) * a.width;
                    ops::gate_row_backward(from.row(r), gate.row(r), dy, &mut da[row.clone()], &mut dz[row]);
                }
                tape.deliver(net, *a, t, da);
                tape.deliver(net, *z, t, dz);
            }
            Self::Join { parts, out } => {
                let mut start = 0;
                for part in parts {
                    let dx = &mut scratch[..tape.rows * part.width];
                    for (to, from) in dx.chunks_exact_mut(part.width).zip(dy.chunks_exact(out.width)) {
                        to.copy_from_slice(&from[start..start + part.width]);
                    }
                    tape.deliver(net, *part, t, dx);
                    start += part.width;
                }
            }
            Self::Conv(conv) => {
                let mut carry = std::mem::take(&mut tape.carries[i]);
                conv.backward(net, tape, t, dy, &mut carry);
                tape.carries[i] = carry;
            }
            Self::Scan(scan) => {
                let mut carry = std::mem::take(&mut tape.carries[i]);
                scan.backward(net, tape, t, dy, &mut carry);
                tape.carries[i] = carry;
            }
            Self::Gru { x, kept, products, weight, out } => {
                // What one operation alone reads has its gradient written in place.
                let in_place = net.matrices[x.buffer].read_once;
                let mut dx_matrix = if in_place { std::mem::take(&mut tape.grads[x.buffer]) } else { Steps::default() };
                let (dx, through) = scratch.split_at_mut(tape.rows * x.width);
                let dx = if in_place { dx_matrix.at_mut(t) } else { dx };
                let mut carry = std::mem::take(&mut tape.carries[i]);
                ops::add_into(&mut carry, dy);
                let mut dh_matrix = std::mem::take(&mut tape.grads[products.buffer]);
                let dh = dh_matrix.at_mut(t);
                let kept = tape.value(*kept, t);
                let before = (t > 0).then(|| tape.value(*out, t - 1));
                let zeros = vec![0.0; out.width];
                let gates = dx.chunks_exact_mut(x.width).zip(dh.chunks_exact_mut(products.width));
                for (r, (carry, (dx, dh))) in carry.chunks_exact_mut(out.width).zip(gates).enumerate() {
                    let before = before.as_ref().map_or(zeros.as_slice(), |rows| rows.row(r));
                    ops::gru_row_backward(kept.row(r), before, carry, dx, dh);
                }
                weight.add_bias_gradient(dh, &mut tape.sums);
                if t > 0 {
                    let through = &mut through[..tape.rows * out.width];
                    weight.transposed.multiply(rows(dh, products.width), through);
                    ops::add_into(&mut carry, through);
                }
                tape.grads[products.buffer] = dh_matrix;
                tape.carries[i] = carry;
                if in_place {
                    tape.grads[x.buffer] = dx_matrix;
                } else {
                    tape.deliver(net, *x, t, dx);
                }
            }
        }
        tape.scratch = scratch;
        tape.grads[out_slot.buffer] = matrix;
    }

    /// What its backward reads of all steps, and the gradients of all steps that make its weight's.
    pub fn reads_later(&self) -> (Vec<Slot>, Vec<Slot>) {
        match self {
            Self::Linear { x, out, act, before, .. } => {
                let output = (*act != Activation::None).then_some(before.unwrap_or(*out));
                (std::iter::once(*x).chain(output).collect(), vec![*out])
            }
            Self::Norm { x, .. } => (vec![*x], Vec::new()),
            Self::Gate { a, z, .. } => (vec![*a, *z], Vec::new()),
            Self::Add { .. } | Self::Join { .. } => (Vec::new(), Vec::new()),
            Self::Conv(conv) => (conv.reads_later(), Vec::new()),
            Self::Scan(scan) => (scan.reads_later(), Vec::new()),
            Self::Gru { out, kept, products, .. } => (vec![*out, *kept], vec![*products]),
        }
    }

    /// The weight that it multiplies by.
    pub fn weight(&self) -> Option<&Weight> {
        match self {
            Self::Linear { weight, .. } | Self::Gru { weight, .. } => Some(weight),
            _ => None,
        }
    }

    /// The weight, and all rows of a tape whose product `x^T dy` its gradient is.
    pub fn operands<'a>(&'a self, tape: &'a Tape) -> Option<(&'a Weight, [Rows<'a>; 2])> {
        match self {
            Self::Linear { x, out, weight, .. } => Some((weight, [tape.all(&tape.values, *x), tape.all(&tape.grads, *out)])),
            // The state that a step started from is the one that the step before it gave; before the first it was zero.
            Self::Gru { out, products, weight, .. } if tape.steps > 1 => {
                let (later, dh) = ((tape.steps - 1) * tape.rows, tape.all(&tape.grads, *products));
                let before = Rows { rows: later, ..tape.all(&tape.values, *out) };
                Some((weight, [before, Rows { data: &dh.data[tape.rows * dh.stride..], rows: later, ..dh }]))
            }
            _ => None,
        }
    }
}
