//! The recorder as an executor: every operation is noted with its parameters, and checked as far as widths go.

use super::Executor;
use super::operation::{Block, Operation, Values, Widths};
use super::program::{IndexSlot, Output, Recorder, Slot, Wires};
use crate::{Error, Result};
use candle_core::DType;
use std::sync::Arc;

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

    fn run(&mut self, op: Arc<dyn Operation>, x: &[&Slot], ids: &[&IndexSlot], states: &[usize]) -> Result<Values<Slot, IndexSlot>> {
        let (x, ids): (Vec<Slot>, Vec<IndexSlot>) = (x.iter().map(|x| **x).collect(), ids.iter().map(|ids| **ids).collect());
        let (widths, columns): (Vec<usize>, Vec<usize>) = (x.iter().map(|x| x.width).collect(), ids.iter().map(|i| i.columns).collect());
        let Widths { out, out_ids, scratch } = op.widths(&widths, &columns)?;
        let states = states.iter().map(|state| self.state(*state)).collect::<Result<_>>()?;
        let out: Vec<Slot> = out.into_iter().map(|width| self.slot(width)).collect();
        let out_ids: Vec<IndexSlot> = out_ids.into_iter().map(|columns| self.index_slot(columns)).collect();
        let scratch = scratch.into_iter().map(|width| self.slot(width)).collect();
        self.push(op, Wires { x, ids, states, out: out.clone(), out_ids: out_ids.clone(), scratch });
        Ok(Values { floats: out, ids: out_ids })
    }

    fn block<B: Block>(&mut self, block: &B, x: &[&Slot], ids: &[&IndexSlot]) -> Result<Values<Slot, IndexSlot>> {
        if block.is_one(self.target) { self.run(Arc::new(block.clone()), x, ids, &block.states()) } else { block.compose(self, x, ids) }
    }

    fn columns(&mut self, x: &Slot, start: usize, len: usize) -> Result<Slot> {
        if start + len > x.width {
            return Err(Error::Input(format!("columns {start}..{} of {}", start + len, x.width)));
        }
        Ok(x.columns(start, len))
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
}
