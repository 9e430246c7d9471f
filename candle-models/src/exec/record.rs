//! The recorder's operations: each is noted with its parameters, and checked as far as widths go.

use super::program::{IndexSlot, Op, Output, Recorder, Slot};
use super::{Choice, Executor, IndexColumns};
use crate::nn::{Autoregressive, Linear, Mamba, Norm};
use crate::ops::{Activation, Attention};
use crate::{Error, Result};
use candle_core::{DType, Tensor};

fn same_width(operation: &str, a: usize, b: usize) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::Input(format!("{operation}: {a} and {b} values a row"))) }
}

impl Recorder {
    /// Notes an operation with one new matrix of `width` columns.
    fn value(&mut self, width: usize, op: impl FnOnce(Slot) -> Op) -> Slot {
        let out = self.slot(width);
        self.push(op(out));
        out
    }

    /// Notes an operation with one new index matrix.
    fn index(&mut self, columns: usize, op: impl FnOnce(IndexSlot) -> Op) -> IndexSlot {
        let out = self.index_slot(columns);
        self.push(op(out));
        out
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
        let (inputs, outputs) = layer.weight.dims2()?;
        same_width("linear", x.width, inputs)?;
        Ok(self.value(outputs, |out| Op::Linear { x: *x, layer: layer.clone(), act, out }))
    }

    fn lookup_linear(&mut self, x: &Slot, ids: &IndexSlot, tables: &[&Tensor], layer: &Linear) -> Result<Slot> {
        let (inputs, outputs) = layer.weight.dims2()?;
        let tables: Vec<Tensor> = tables.iter().map(|t| (*t).clone()).collect();
        let looked_up = tables.iter().map(|t| t.dim(1)).sum::<candle_core::Result<usize>>()?;
        same_width("lookup-linear", x.width + looked_up, inputs)?;
        same_width("the tables and ids of lookup-linear", tables.len(), ids.columns)?;
        Ok(self.value(outputs, |out| Op::LookupLinear { x: *x, ids: *ids, tables, layer: layer.clone(), out }))
    }

    fn norm(&mut self, x: &Slot, norm: &Norm, act: Activation) -> Result<Slot> {
        Ok(self.value(x.width, |out| Op::Norm { x: *x, norm: norm.clone(), act, out }))
    }

    fn add_rows(&mut self, x: &Slot, table: &Tensor, ids: &IndexSlot, columns: &IndexColumns, act: Activation) -> Result<Slot> {
        same_width("add-rows", x.width, table.dim(1)?)?;
        Ok(self.value(x.width, |out| Op::AddRows { x: *x, table: table.clone(), ids: *ids, columns: columns.to_vec(), act, out }))
    }

    fn add(&mut self, a: &Slot, b: &Slot) -> Result<Slot> {
        same_width("add", a.width, b.width)?;
        Ok(self.value(a.width, |out| Op::Add { a: *a, b: *b, out }))
    }

    fn gate(&mut self, a: &Slot, z: &Slot) -> Result<Slot> {
        same_width("gate", a.width, z.width)?;
        Ok(self.value(a.width, |out| Op::Gate { a: *a, z: *z, out }))
    }

    fn columns(&mut self, x: &Slot, start: usize, len: usize) -> Result<Slot> {
        Ok(x.columns(start, len))
    }

    fn join(&mut self, parts: &[Slot]) -> Result<Slot> {
        Ok(self.value(parts.iter().map(|p| p.width).sum(), |out| Op::Join { parts: parts.to_vec(), out }))
    }

    fn join_indices(&mut self, parts: &[IndexSlot]) -> Result<IndexSlot> {
        Ok(self.index(parts.iter().map(|p| p.columns).sum(), |out| Op::JoinIndices { parts: parts.to_vec(), out }))
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
        let (state, (weight, bias)) = (self.state(state)?, (weight.clone(), bias.clone()));
        Ok(self.value(x.width, |out| Op::CausalConv { x: *x, weight, bias, state, out }))
    }

    fn selective_scan(&mut self, [u, dt, bc]: [&Slot; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Slot> {
        let (state, (a_log, skip)) = (self.state(state)?, (a_log.clone(), skip.clone()));
        Ok(self.value(u.width, |out| Op::SelectiveScan { u: *u, dt: *dt, bc: *bc, a_log, skip, state, out }))
    }

    fn gru(&mut self, x: &Slot, hidden: &Linear, state: usize) -> Result<Slot> {
        let (state, width) = (self.state(state)?, hidden.weight.dim(0)?);
        let (h, products, out) = (self.slot(width), self.slot(3 * width), self.slot(width));
        self.push(Op::Gru { x: *x, hidden: hidden.clone(), state, h, products, out });
        Ok(out)
    }

    fn mamba(&mut self, x: &Slot, block: &Mamba) -> Result<Slot> {
        if !self.whole.mamba {
            return block.compose(self, x);
        }
        let state = block.first_state();
        let states = [self.state(state)?, self.state(state + 1)?];
        Ok(self.value(x.width, |out| Op::Mamba { x: *x, block: block.clone(), states, out }))
    }

    fn attention(&mut self, shape: Attention, [q, k, v]: [&Slot; 3], slopes: &Tensor, state: usize) -> Result<Slot> {
        let states = [self.state(state)?, self.state(state + 1)?, self.state(state + 2)?];
        let (scores, out) = (self.slot(shape.window), self.slot(q.width));
        self.push(Op::Attention { shape, qkv: [*q, *k, *v], slopes: slopes.clone(), states, scores, out });
        Ok(out)
    }

    fn choose(&mut self, logits: &Slot, wanted: &IndexSlot, uniform: &Slot, choice: Choice) -> Result<IndexSlot> {
        Ok(self.index(choice.columns, |out| Op::Choose { logits: *logits, wanted: *wanted, uniform: *uniform, choice, out }))
    }

    fn autoregressive(
        &mut self,
        trunk: &Slot,
        heads: &Autoregressive,
        classes: [&IndexSlot; 2],
        uniform: &Slot,
    ) -> Result<(Slot, IndexSlot)> {
        if !self.whole.autoregressive {
            return heads.compose(self, trunk, classes, uniform);
        }
        let logits = self.slot(heads.choices().map(|c| c.logits()).sum());
        let out = self.index_slot(heads.choices().map(|c| c.columns).sum());
        let classes = classes.map(|c| *c);
        self.push(Op::Autoregressive { trunk: *trunk, heads: heads.clone(), classes, uniform: *uniform, logits, out });
        Ok((logits, out))
    }
}
