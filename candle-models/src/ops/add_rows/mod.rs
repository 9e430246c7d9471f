//! `act(x + sum over columns c of table[ids[c] + base_c])`: `x` `[rows, W]`, `table` `[entries, W]`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tape;
mod tensors;

pub(crate) use tensors::check_indices;
pub use tensors::{add_rows, add_rows_reference, join_rows, join_rows_reference};

use super::{Activation, sum_of_rows};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;

/// The operation: operands `x` and `ids`.
#[derive(Debug, Clone)]
pub struct AddRows {
    /// `[entries, W]`.
    pub table: Tensor,
    /// Columns of `ids`, and the table row that index 0 of each means.
    pub columns: Vec<(usize, usize)>,
    /// What follows the sum.
    pub act: Activation,
}

impl Operation for AddRows {
    fn name(&self) -> &'static str {
        "add-rows"
    }

    fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths> {
        let ([x], [ids]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        same_width("add-rows", x, self.table.dim(1)?)?;
        match self.columns.iter().find(|(column, _)| *column >= ids) {
            Some((column, _)) => Err(Error::Input(format!("add-rows: column {column} of {ids}"))),
            None => Ok(Widths::floats(x)),
        }
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], [ids]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        Ok(Values::floats(add_rows_reference(x, &self.table, &ids.shifted(&self.columns), self.columns.len(), self.act)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], ids: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([x], [ids]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        let (table, rows) = (graph.tensor(&self.table)?, graph.shifted(ids, &self.columns)?);
        let rows = graph.node(Operator::Gather, &[table, rows]);
        let sum = graph.of(Operator::ReduceSum { axis: 1 }, rows);
        let y = graph.add(x, sum);
        graph::floats(self.act.formula(graph, y))
    }

    fn tensors(&self, _: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], [ids]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        let index = ids.shifted(&self.columns);
        let y = emulated([x], |[x]| Ok(add_rows(x, &self.table, index, self.columns.len(), self.act)?))?;
        Ok(Values::floats(y))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, ids, out, act) = (wires.x[0], wires.ids[0], wires.out[0], self.act);
        let (table, columns) = (packer.values(&self.table)?, self.columns.clone());
        let entries = self.table.dim(0)?;
        Ok(Some(Box::new(move |frame, _| {
            for r in 0..frame.rows {
                let found = frame.ids(ids, r);
                if let Some((column, _)) = columns.iter().find(|(column, base)| base + found[*column] as usize >= entries) {
                    return Err(Error::Input(format!("class {} of column {column} is outside its table", found[*column])));
                }
                // SAFETY: this step has one part.
                let row = unsafe { frame.row_mut(out, r) };
                let starts = columns.iter().map(|(column, base)| (base + found[*column] as usize) * x.width);
                sum_of_rows(row, Some(frame.row(x, r)), &table, starts, act);
            }
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use super::cuda::product::{Behind, Gather, finish};
        let (x, ids, out, act) = (wires.x[0], wires.ids[0], wires.out[0], self.act);
        let (table, count) = (compiler.matrix(&self.table)?, self.columns.len());
        let pairs = compiler.words(self.columns.iter().flat_map(|(column, base)| [*column as u32, *base as u32]).collect())?;
        Ok(Some(Box::new(move |pass| {
            let gather = Gather { table, ids: pass.index(ids, 0, ids.columns), pairs, count };
            let behind = Behind { gather, act, ..Behind::NOTHING };
            // SAFETY: the plan gives every matrix of a pass its rows; who runs a pass promises ids inside the table.
            Ok(unsafe { finish(pass.gpu, pass.dtype, pass.operand(x), pass.operand(out), pass.rows(), &behind) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::OnTape::new(self, wires, tape)?)))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let (rows, width) = (size.rows(), wires.out[0].width as f64);
        let looked_up = self.columns.len() as f64 * width;
        let bytes = rows * size.value() * looked_up + size.floats(&wires.x) + size.floats(&wires.out);
        Ok(Work { name: self.name(), flop: rows * (looked_up + self.act.operations() * width), bytes, weights: None })
    }
}
