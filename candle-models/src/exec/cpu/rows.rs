//! Steps that make every row of their results from the same row of their operands: all that an operation of another crate needs.

use super::frame::Frame;
use super::steps::{Packer, Run};
use crate::exec::program::{IndexSlot, Slot};
use crate::{Error, Result};
use std::sync::{Mutex, PoisonError};

/// What an operation reads of one row.
pub struct Row<'a> {
    frame: &'a Frame<'a>,
    x: &'a [Slot],
    ids: &'a [IndexSlot],
    r: usize,
}

impl<'a> Row<'a> {
    /// Its values of operand `i` of floats.
    pub fn x(&self, i: usize) -> &'a [f32] {
        self.frame.row(self.x[i], self.r)
    }

    /// Its values of operand `i` of indices.
    pub fn ids(&self, i: usize) -> &'a [u32] {
        self.frame.ids(self.ids[i], self.r)
    }
}

/// What an operation writes of one row.
pub struct RowOut<'a> {
    frame: &'a Frame<'a>,
    out: &'a [Slot],
    ids: &'a [IndexSlot],
    r: usize,
}

impl RowOut<'_> {
    /// Its values of result `i` of floats.
    pub fn floats(&mut self, i: usize) -> &mut [f32] {
        // SAFETY: results share no memory with operands or with each other, every row belongs to one part, and this borrow of `self` is
        // the only way to the row.
        unsafe { self.frame.row_mut(self.out[i], self.r) }
    }

    /// Its values of result `i` of indices.
    pub fn ids(&mut self, i: usize) -> &mut [u32] {
        // SAFETY: as above; every index matrix has a place of its own.
        unsafe { self.frame.ids_mut(self.ids[i], self.r) }
    }
}

impl Packer {
    /// A step that runs `f` for every row of the operation that is being compiled, shared among the threads where its `micros` a row make
    /// that worth it. It allocates nothing.
    pub fn for_rows(&self, micros: f32, f: impl Fn(&Row, &mut RowOut) -> Result<()> + Send + Sync + 'static) -> Run {
        let (x, ids, out, out_ids) = (self.wires.x.clone(), self.wires.ids.clone(), self.wires.out.clone(), self.wires.out_ids.clone());
        Box::new(move |frame, threads| {
            let failed: Mutex<Option<Error>> = Mutex::new(None);
            threads.share(frame.rows as f32 * micros, |part, parts| {
                for r in super::steps::share(frame.rows, part, parts) {
                    let done = f(&Row { frame, x: &x, ids: &ids, r }, &mut RowOut { frame, out: &out, ids: &out_ids, r });
                    if let Err(error) = done {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            });
            failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
        })
    }
}
