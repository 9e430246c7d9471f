//! From operations to launches: weights go to the device here, kernels are put on the stream later.

use super::plan::{Pass, Plan};
use crate::Result;
use crate::cuda::{Gpu, Matrix, address};
use crate::exec::Choice;
use crate::exec::program::{IndexSlot, Op, Program, Slot, StatePlace};
use crate::nn::{Autoregressive, Linear, Mamba, Norm};
use crate::ops::cuda::attention::Attend;
use crate::ops::cuda::heads::{Choose, HeadGroup, Heads};
use crate::ops::cuda::product::{Behind, Gather, Operand, copy, finish, product};
use crate::ops::cuda::{conv, elementwise, gru, mamba, norm, scan};
use crate::ops::{Activation, Attention, NormKind};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// What an operation does in a pass.
pub(super) type Run = Box<dyn Fn(&Pass) -> Result<()> + Send>;

/// What steps have on the device.
pub(super) struct Weights {
    /// Alive as long as the addresses in the steps.
    _tensors: Vec<Tensor>,
    pub bytes: usize,
    /// f32 values a row of scratch for products of many rows.
    pub product: usize,
}

/// Turns operations into steps.
pub(super) struct Compiler<'a> {
    gpu: Arc<Gpu>,
    dtype: DType,
    plan: &'a mut Plan,
    tensors: Vec<Tensor>,
    product: usize,
}

impl<'a> Compiler<'a> {
    pub fn new(gpu: Arc<Gpu>, dtype: DType, plan: &'a mut Plan) -> Self {
        Self { gpu, dtype, plan, tensors: Vec::new(), product: 0 }
    }

    pub fn finish(self) -> Weights {
        let bytes = self.tensors.iter().map(|t| t.elem_count() * t.dtype().size_in_bytes()).sum();
        Weights { _tensors: self.tensors, bytes, product: self.product }
    }

    /// All steps of a program in order.
    pub fn compile(&mut self, program: &Program) -> Result<Vec<(&'static str, Run)>> {
        let (mut steps, mut at) = (Vec::new(), 0);
        while let Some(op) = program.ops.get(at) {
            at += 1;
            // A sum right behind the product that only it reads is the product's residual.
            let sum = match (op, program.ops.get(at)) {
                (Op::Linear { out: product, .. }, Some(Op::Add { a, b, out })) if (a == product) != (b == product) => {
                    let readers = program.ops.iter().flat_map(Op::reads).filter(|s| s.buffer == product.buffer).count();
                    let is_output = self.plan.is_output(*product);
                    (readers == 1 && !is_output).then_some((if a == product { *b } else { *a }, *out))
                }
                _ => None,
            };
            match (op, sum) {
                (Op::Linear { x, layer, act, .. }, Some((residual, out))) => {
                    at += 1;
                    steps.push((op.name(), self.linear(*x, layer, *act, (Some(residual), out))?));
                }
                _ => {
                    if let Some(step) = self.step(op)? {
                        steps.push((op.name(), step));
                    }
                }
            }
        }
        for (from, to) in self.plan.copies.clone() {
            steps.push(("copy", Box::new(move |pass| copy_slot(pass, from, to))));
        }
        Ok(steps)
    }

    fn step(&mut self, op: &Op) -> Result<Option<Run>> {
        Ok(Some(match op {
            Op::Linear { x, layer, act, out } => self.linear(*x, layer, *act, (None, *out))?,
            Op::LookupLinear { x, ids, tables, layer, out } => self.lookup_linear(*x, *ids, tables, layer, *out)?,
            Op::Norm { x, norm, act, out } => self.norm(*x, norm, *act, *out)?,
            Op::AddRows { x, table, ids, columns, act, out } => self.add_rows(*x, table, (*ids, columns), *act, *out)?,
            Op::Add { a, b, out } => self.add(*a, *b, *out),
            Op::Gate { a, z, out } => self.gate(*a, *z, *out),
            Op::Join { parts, out } => return Ok(self.join(parts, *out)),
            // Its parts are written where they stand.
            Op::JoinIndices { .. } => return Ok(None),
            Op::CausalConv { x, weight, bias, state, out } => self.causal_conv(*x, [weight, bias], *state, *out)?,
            Op::SelectiveScan { u, dt, bc, a_log, skip, state, out } => self.selective_scan([*u, *dt, *bc], [a_log, skip], *state, *out)?,
            Op::Gru { x, hidden, state, h, products, out } => self.gru(*x, hidden, *state, [*h, *products], *out)?,
            Op::Attention { shape, qkv, slopes, states, out, .. } => self.attention(*shape, *qkv, slopes, *states, *out)?,
            Op::Choose { logits, wanted, uniform, choice, out } => choose(*logits, (*wanted, *uniform), *choice, *out),
            Op::Mamba { x, block, states, out } => self.mamba(*x, block, *states, *out)?,
            Op::Autoregressive { trunk, heads, classes, uniform, logits, out } => {
                self.heads(*trunk, heads, (*classes, *uniform), (*logits, *out))?
            }
        }))
    }

    /// A tensor on the device, contiguous, in that dtype.
    fn upload(&mut self, tensor: &Tensor, dtype: DType) -> Result<u64> {
        let device = Device::Cuda(self.gpu.device().clone());
        // Cast on the host: the device's stream is not asked before there is something to run.
        let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(dtype)?.contiguous()?.to_device(&device)?;
        let at = address(&tensor)?;
        self.tensors.push(tensor);
        Ok(at)
    }

    /// A matrix or table in the executor's dtype.
    fn matrix(&mut self, tensor: &Tensor) -> Result<u64> {
        self.upload(tensor, self.dtype)
    }

    /// A gain, offset or other vector in f32.
    fn vector(&mut self, tensor: &Tensor) -> Result<u64> {
        self.upload(tensor, DType::F32)
    }

    fn vector_or_none(&mut self, tensor: Option<&Tensor>) -> Result<u64> {
        tensor.map_or(Ok(0), |t| self.vector(t))
    }

    fn vector_or_zeros(&mut self, layer: &Linear) -> Result<u64> {
        match &layer.bias {
            Some(bias) => self.vector(bias),
            None => self.vector(&Tensor::zeros(layer.weight.dim(1)?, DType::F32, &Device::Cpu)?),
        }
    }

    fn words(&mut self, words: Vec<u32>) -> Result<u64> {
        let n = words.len();
        self.upload(&Tensor::from_vec(words, n, &Device::Cpu)?, DType::U32)
    }

    /// Room for the product of many rows, and behind it for its narrowed operand.
    fn reserve(&mut self, x: Slot, outputs: usize) {
        self.product = self.product.max(outputs + x.width);
    }

    /// A slot that kernels which know one dtype can read, with the copy that fills it.
    fn narrow(&mut self, slot: Slot) -> (Slot, Option<(Slot, Slot)>) {
        if self.dtype == DType::F32 || !self.plan.is_wide(slot) {
            return (slot, None);
        }
        let narrow = self.plan.scratch(slot.width);
        (narrow, Some((slot, narrow)))
    }

    /// Wraps a step whose operands `reads` and result `out` have to be of the executor's dtype: copies before and behind it.
    fn with_narrow<const N: usize>(
        &mut self,
        reads: [Slot; N],
        out: Slot,
        step: impl Fn(&Pass, [Slot; N], Slot) -> Result<()> + Send + 'static,
    ) -> Run {
        let reads = reads.map(|slot| self.narrow(slot));
        let (narrow_out, wide_out) = self.narrow(out);
        Box::new(move |pass| {
            for (from, to) in reads.iter().filter_map(|(_, copy)| *copy) {
                copy_slot(pass, from, to)?;
            }
            step(pass, reads.map(|(slot, _)| slot), narrow_out)?;
            wide_out.map_or(Ok(()), |(wide, narrow)| copy_slot(pass, narrow, wide))
        })
    }

    fn linear(&mut self, x: Slot, layer: &Linear, act: Activation, (residual, out): (Option<Slot>, Slot)) -> Result<Run> {
        let (weight, bias) = (self.matrix(&layer.weight)?, self.vector_or_none(layer.bias.as_ref())?);
        self.reserve(x, out.width);
        Ok(Box::new(move |pass| {
            let residual = residual.map_or(Operand::NONE, |r| pass.operand(r));
            let behind = Behind { bias, act, residual, ..Behind::NOTHING };
            let operands = (pass.operand(x), weight, pass.operand(out));
            // SAFETY: the plan gives every matrix of a pass its rows, and the weights live as long as the steps.
            Ok(unsafe { product(pass.gpu, pass.dtype, operands, pass.rows(), &behind, pass.product) }?)
        }))
    }

    /// Each table's product with its part of the weight is one table: looking up is adding a row of it.
    fn lookup_linear(&mut self, x: Slot, ids: IndexSlot, tables: &[Tensor], layer: &Linear, out: Slot) -> Result<Run> {
        let (mut at, mut base, mut folded, mut pairs) = (x.width, 0, Vec::new(), Vec::new());
        for (column, table) in tables.iter().enumerate() {
            let (entries, width) = table.dims2()?;
            folded.push(table.matmul(&layer.weight.narrow(0, at, width)?)?);
            pairs.extend([column as u32, base as u32]);
            at += width;
            base += entries;
        }
        let table = self.matrix(&Tensor::cat(&folded, 0)?)?;
        let (pairs, count) = (self.words(pairs)?, tables.len());
        let weight = self.matrix(&layer.weight.narrow(0, 0, x.width)?)?;
        let bias = self.vector_or_none(layer.bias.as_ref())?;
        self.reserve(x, out.width);
        Ok(Box::new(move |pass| {
            let gather = Gather { table, ids: pass.index(ids, 0, ids.columns), pairs, count };
            let behind = Behind { bias, gather, ..Behind::NOTHING };
            let operands = (pass.operand(x), weight, pass.operand(out));
            // SAFETY: as for `linear`; who runs a pass promises ids inside the tables.
            Ok(unsafe { product(pass.gpu, pass.dtype, operands, pass.rows(), &behind, pass.product) }?)
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
        let (table, count) = (self.matrix(table)?, columns.len());
        let pairs = self.words(columns.iter().flat_map(|(column, base)| [*column as u32, *base as u32]).collect())?;
        Ok(Box::new(move |pass| {
            let gather = Gather { table, ids: pass.index(ids, 0, ids.columns), pairs, count };
            let behind = Behind { gather, act, ..Behind::NOTHING };
            // SAFETY: as for `lookup_linear`.
            Ok(unsafe { finish(pass.gpu, pass.dtype, pass.operand(x), pass.operand(out), pass.rows(), &behind) }?)
        }))
    }

    fn norm(&mut self, x: Slot, layer: &Norm, act: Activation, out: Slot) -> Result<Run> {
        let (weight, bias) = (self.vector(&layer.weight)?, self.vector_or_none(layer.bias.as_ref())?);
        let (group, kind, eps) = (layer.weight.dim(0)?, layer.kind, layer.eps);
        Ok(self.with_narrow([x], out, move |pass, [x], out| {
            let args = norm::Norm::new([pass.matrix(x), pass.matrix(out)], [weight, bias], (pass.rows(), group), (kind, eps), act);
            // SAFETY: as for `linear`.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype) }?)
        }))
    }

    fn add(&mut self, a: Slot, b: Slot, out: Slot) -> Run {
        Box::new(move |pass| {
            let behind = Behind { residual: pass.operand(b), ..Behind::NOTHING };
            // SAFETY: as for `linear`.
            Ok(unsafe { finish(pass.gpu, pass.dtype, pass.operand(a), pass.operand(out), pass.rows(), &behind) }?)
        })
    }

    fn gate(&mut self, a: Slot, z: Slot, out: Slot) -> Run {
        self.with_narrow([a, z], out, |pass, [x, z], out| {
            let args = elementwise::Gate { x: pass.matrix(x), z: pass.matrix(z), out: pass.matrix(out) };
            // SAFETY: as for `linear`.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        })
    }

    /// Copies the parts that are not written in their place.
    fn join(&mut self, parts: &[Slot], out: Slot) -> Option<Run> {
        let mut start = 0;
        let mut copies = Vec::new();
        for part in parts {
            let to = out.columns(start, part.width);
            start += part.width;
            if !self.plan.same_place(*part, to) {
                copies.push((*part, to));
            }
        }
        (!copies.is_empty()).then(|| -> Run { Box::new(move |pass| copies.iter().try_for_each(|(from, to)| copy_slot(pass, *from, *to))) })
    }

    fn causal_conv(&mut self, x: Slot, [weight, bias]: [&Tensor; 2], state: StatePlace, out: Slot) -> Result<Run> {
        let taps = weight.dim(0)?;
        let (weight, bias) = (self.vector(weight)?, self.vector(bias)?);
        Ok(self.with_narrow([x], out, move |pass, [x], out| {
            let (x, out, state) = (pass.matrix(x), pass.matrix(out), pass.state(state));
            let args = conv::Conv { x, out, weight, bias, state, resets: pass.resets(), steps: pass.steps as u32, taps: taps as u32 };
            // SAFETY: as for `linear`; every sequence has a slot.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        }))
    }

    fn selective_scan(&mut self, x: [Slot; 3], [a_log, skip]: [&Tensor; 2], state: StatePlace, out: Slot) -> Result<Run> {
        let states = a_log.dim(1)?;
        let a = self.vector(&a_log.t()?.contiguous()?.exp()?.neg()?)?;
        let skip = self.vector(skip)?;
        Ok(self.with_narrow(x, out, move |pass, [u, dt, bc], out| {
            let (b, c) = (pass.matrix(bc.columns(0, states)), pass.matrix(bc.columns(states, states)));
            let inputs = [pass.matrix(u), pass.matrix(dt), b, c];
            let behind = scan::ScanOut { out: pass.matrix(out), state: pass.state(state) };
            let args = scan::Scan::new(inputs, [a, skip], pass.resets(), pass.steps, behind);
            // SAFETY: as for `causal_conv`.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        }))
    }

    /// A block of one frame: norm, product, convolution with its product, step size with scan and gate, product with the residual.
    fn mamba(&mut self, x: Slot, block: &Mamba, [conv_state, scan_state]: [StatePlace; 2], out: Slot) -> Result<Run> {
        let (w, eps) = block.weights()?;
        let ((inner, states), (taps, columns)) = (w.a_log.dims2()?, (w.conv_weight.dim(0)?, w.x_proj.dim(1)?));
        let (rank, slices) = (columns - 2 * states, mamba::slices(inner));
        let (gain, in_proj, out_proj) = (self.vector(w.norm)?, self.matrix(w.in_proj)?, self.matrix(w.out_proj)?);
        let (conv_weight, conv_bias) = (self.vector(w.conv_weight)?, self.vector(w.conv_bias)?);
        let (x_proj, dt_weight) = (self.matrix(w.x_proj)?, self.matrix(w.dt_weight)?);
        let (dt_bias, skip) = (self.vector(w.dt_bias)?, self.vector(w.skip)?);
        let a = self.vector(&w.a_log.t()?.contiguous()?.exp()?.neg()?)?;
        let [normed, xz, u, y] = [x.width, 2 * inner, inner, inner].map(|width| self.plan.scratch(width));
        let shares = self.plan.scratch(slices * columns);
        let (x, narrowed) = self.narrow(x);
        self.reserve(normed, 2 * inner);
        self.reserve(y, x.width);
        Ok(Box::new(move |pass| {
            narrowed.map_or(Ok(()), |(from, to)| copy_slot(pass, from, to))?;
            let (rows, dtype, resets) = (pass.rows(), pass.dtype, pass.resets());
            let matrix = |data, width: usize| Matrix { data, stride: width as u32, width: width as u32 };
            let shares = pass.matrix(shares).data;
            let norm =
                norm::Norm::new([pass.matrix(x), pass.matrix(normed)], [gain, 0], (rows, x.width), (NormKind::Rms, eps), Activation::None);
            let conv = mamba::MambaConv {
                x: pass.matrix(xz.columns(0, inner)),
                u: pass.matrix(u),
                projection: matrix(x_proj, columns),
                weight: conv_weight,
                bias: conv_bias,
                state: pass.state(conv_state),
                resets,
                shares,
                taps: taps as u32,
            };
            let scan = mamba::MambaScan {
                u: pass.matrix(u),
                z: pass.matrix(xz.columns(inner, inner)),
                out: pass.matrix(y),
                dt_weight: matrix(dt_weight, inner),
                dt_bias,
                a,
                skip,
                state: pass.state(scan_state),
                resets,
                shares,
                slices: slices as u32,
                rank: rank as u32,
                states: states as u32,
            };
            let residual = Behind { residual: pass.operand(x), ..Behind::NOTHING };
            let (into, out_of) = ((pass.operand(normed), in_proj, pass.operand(xz)), (pass.operand(y), out_proj, pass.operand(out)));
            // SAFETY: as for `causal_conv`.
            unsafe {
                norm.launch(pass.gpu, dtype)?;
                product(pass.gpu, dtype, into, rows, &Behind::NOTHING, pass.product)?;
                conv.launch(pass.gpu, dtype, rows)?;
                scan.launch(pass.gpu, dtype, rows)?;
                product(pass.gpu, dtype, out_of, rows, &residual, pass.product)?;
            }
            Ok(())
        }))
    }

    /// Frame by frame: the states' product for all sequences at once, then the gates.
    fn gru(&mut self, x: Slot, hidden: &Linear, state: StatePlace, [h, products]: [Slot; 2], out: Slot) -> Result<Run> {
        let (weight, bias) = (self.matrix(&hidden.weight)?, self.vector_or_zeros(hidden)?);
        self.reserve(h, products.width);
        Ok(self.with_narrow([x], out, move |pass, [x], out| {
            let (steps, dtype) = (pass.steps, pass.dtype);
            let frame = |slot: Slot, t: usize| {
                let m = pass.matrix(slot);
                Matrix { data: m.data + (t * m.stride as usize * dtype.size_in_bytes()) as u64, stride: m.stride * steps as u32, ..m }
            };
            let (state, hidden) = (pass.state(state), pass.matrix(h));
            let first = gru::GruHidden { state, hidden, resets: pass.resets(), reset_stride: steps as u32 };
            // SAFETY: as for `causal_conv`; the scratch of all rows holds that of all sequences.
            unsafe { first.launch(pass.gpu, dtype, pass.batch)? };
            for t in 0..steps {
                let gates = gru::GruGates {
                    x: frame(x, t),
                    product: pass.matrix(products),
                    out: frame(out, t),
                    hidden: if t + 1 < steps { hidden } else { Matrix::NONE },
                    bias,
                    state,
                    resets: pass.resets() + t as u64,
                    kept: 0,
                    before: 0,
                    reset_stride: steps as u32,
                };
                let operands = (pass.operand(h), weight, pass.operand(products));
                // SAFETY: as above.
                unsafe {
                    product(pass.gpu, dtype, operands, pass.batch, &Behind::NOTHING, pass.product)?;
                    gates.launch(pass.gpu, dtype, pass.batch)?;
                }
            }
            Ok(())
        }))
    }

    fn attention(&mut self, shape: Attention, qkv: [Slot; 3], slopes: &Tensor, states: [StatePlace; 3], out: Slot) -> Result<Run> {
        let slopes = self.vector(slopes)?;
        Ok(self.with_narrow(qkv, out, move |pass, qkv, out| {
            let (qkv, states) = (qkv.map(|s| pass.matrix(s)), states.map(|s| pass.state(s)));
            let args = Attend::new(shape, qkv, pass.matrix(out), states, (slopes, pass.resets()), pass.steps);
            // SAFETY: as for `causal_conv`.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        }))
    }

    fn heads(
        &mut self,
        trunk: Slot,
        heads: &Autoregressive,
        ([previous, wanted], uniform): ([IndexSlot; 2], Slot),
        (logits, out): (Slot, IndexSlot),
    ) -> Result<Run> {
        let (width, stream_bias) = (heads.stream.weight.dim(1)?, self.vector_or_none(heads.stream.bias.as_ref())?);
        let stream = self.matrix(&heads.stream.weight)?;
        let mut groups = Vec::new();
        for component in &heads.components {
            let Choice { column, columns, classes } = component.choice;
            groups.push(HeadGroup {
                hidden: self.matrix(&component.hidden.weight)?,
                hidden_bias: self.vector_or_none(component.hidden.bias.as_ref())?,
                previous: self.matrix(&component.previous)?,
                out: self.matrix(&component.out.weight)?,
                out_bias: self.vector_or_none(component.out.bias.as_ref())?,
                chosen: component.chosen.as_ref().map_or(Ok(0), |t| self.matrix(t))?,
                column: column as u32,
                columns: columns as u32,
                classes: classes as u32,
                logits: component.choice.logits() as u32,
            });
        }
        let count = groups.len() as u32;
        let groups = self.words(groups.iter().flat_map(HeadGroup::words).collect())?;
        let (trunk, narrowed) = self.narrow(trunk);
        Ok(Box::new(move |pass| {
            narrowed.map_or(Ok(()), |(from, to)| copy_slot(pass, from, to))?;
            let args = Heads {
                trunk: pass.matrix(trunk),
                logits: pass.matrix(logits),
                out: pass.index(out, 0, out.columns),
                previous: pass.index(previous, 0, previous.columns),
                wanted: pass.index(wanted, 0, wanted.columns),
                uniform: pass.matrix(uniform),
                stream,
                stream_bias,
                groups,
                width: width as u32,
                count,
            };
            // SAFETY: as for `linear`; who runs a pass promises classes inside their tables.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows()) }?)
        }))
    }
}

fn choose(logits: Slot, (wanted, uniform): (IndexSlot, Slot), choice: Choice, out: IndexSlot) -> Run {
    let Choice { column, columns, classes } = choice;
    Box::new(move |pass| {
        let args = Choose {
            logits: pass.matrix(logits),
            uniform: pass.matrix(uniform.columns(column, columns)),
            wanted: pass.index(wanted, column, columns),
            out: pass.index(out, 0, columns),
            rows: pass.rows() as u32,
            columns: columns as u32,
            classes: classes as u32,
        };
        // SAFETY: the plan gives every matrix of a pass its rows, and logits are f32.
        Ok(unsafe { args.launch(pass.gpu, DType::F32) }?)
    })
}

fn copy_slot(pass: &Pass, from: Slot, to: Slot) -> Result<()> {
    // SAFETY: the plan gives every matrix of a pass its rows.
    Ok(unsafe { copy(pass.gpu, pass.dtype, pass.operand(from), pass.operand(to), pass.rows()) }?)
}
