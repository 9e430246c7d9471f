//! `(x joined with tables[ids]) W + b`: `x` `[rows, F]`, column i of `ids` a row of `tables[i]` `[entries, E_i]`, `W` `[F + sum of E_i, O]`.
//!
//! Each table's product with its part of the weight is a table of rows to add, made when the model is prepared. `x` may be left out: `F` is 0 then.

mod tensors;

pub use tensors::lookup_linear;

use super::{Activation, Format, Linear, add_rows_of, linear_reference};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Tables, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{Operation, Size, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;

/// The operation: operands `x`, if there are floats, and `ids`.
#[derive(Debug, Clone)]
pub struct LookupLinear {
    tables: Vec<Tensor>,
    layer: Linear,
}

impl LookupLinear {
    /// A layer behind tables, one for each column of ids. Columns may share a table.
    pub fn new(tables: &[&Tensor], layer: &Linear) -> Self {
        Self { tables: tables.iter().map(|t| (*t).clone()).collect(), layer: layer.clone() }
    }

    /// The floats among the operands.
    fn floats<T: Copy>(&self, x: &[T]) -> Result<Option<T>> {
        if x.is_empty() { Ok(None) } else { operands(self.name(), x).map(|[x]| Some(x)) }
    }

    /// Names an id outside its own table: behind the tables' joining it could fall into the next one.
    fn check(&self, ids: &Indices) -> Result<()> {
        for (column, table) in self.tables.iter().enumerate() {
            let entries = table.dim(0)?;
            if let Some(id) = ids.rows().map(|row| row[column]).find(|id| *id as usize >= entries) {
                return Err(Error::Input(format!("ids column {column}: {id} in a table of {entries} rows")));
            }
        }
        Ok(())
    }

    /// The formula with the product of each table in its place, all of them one below the other.
    fn folded(&self, graph: &mut Graph, x: Option<Value>, ids: Value) -> Result<Value> {
        let (floats, weight) = (x.map_or(Ok(0), |x| graph.width(x))?, &self.layer.weight);
        let (mut at, mut rows) = (floats, 0);
        let (mut products, mut columns) = (Vec::with_capacity(self.tables.len()), Vec::with_capacity(self.tables.len()));
        for (column, table) in self.tables.iter().enumerate() {
            let (entries, width) = table.dims2()?;
            products.push(table.matmul(&weight.narrow(0, at, width)?)?);
            columns.push((column, rows));
            (at, rows) = (at + width, rows + entries);
        }
        let (table, wanted) = (graph.constant(Tensor::cat(&products, 0)?), graph.shifted(ids, &columns)?);
        let found = graph.node(Operator::Gather, &[table, wanted]);
        let mut y = graph.of(Operator::ReduceSum { axis: 1 }, found);
        if let Some(x) = x {
            let weight = graph.constant(weight.narrow(0, 0, floats)?.contiguous()?);
            let product = graph.node(Operator::MatMul, &[x, weight]);
            y = graph.add(product, y);
        }
        graph.biased(y, &self.layer)
    }
}

impl Operation for LookupLinear {
    fn name(&self) -> &'static str {
        "lookup-linear"
    }

    fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths> {
        let (x, [ids]) = (self.floats(x)?.unwrap_or(0), operands(self.name(), ids)?);
        let (inputs, outputs) = self.layer.weight.dims2()?;
        let looked_up = self.tables.iter().map(|t| t.dim(1)).sum::<candle_core::Result<usize>>()?;
        same_width("lookup-linear", x + looked_up, inputs)?;
        same_width("the tables and ids of lookup-linear", self.tables.len(), ids)?;
        Ok(Widths::floats(outputs))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let (x, [ids]) = (self.floats(x)?, operands(self.name(), ids)?);
        self.check(ids)?;
        let mut parts = x.iter().map(|x| Ok(x.to_dtype(self.layer.weight.dtype())?)).collect::<Result<Vec<_>>>()?;
        for (column, table) in self.tables.iter().enumerate() {
            let index: Vec<u32> = ids.rows().map(|row| row[column]).collect();
            let rows = index.len();
            parts.push(table.index_select(&Tensor::from_vec(index, rows, table.device())?, 0)?.to_dtype(self.layer.weight.dtype())?);
        }
        let joined = Tensor::cat(&parts, 1)?;
        Ok(Values::floats(linear_reference(&joined, &self.layer.weight, self.layer.bias.as_ref(), Activation::None)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], ids: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let (x, [ids]) = (self.floats(x)?, operands(self.name(), ids)?);
        if graph.tables() == Tables::Folded && self.layer.format == Format::F32 {
            return graph::floats(self.folded(graph, x, ids)?);
        }
        let (mut parts, mut first) = (Vec::from_iter(x), 0);
        for columns in self.tables.chunk_by(|a, b| a.id() == b.id()) {
            let (table, wanted) = (graph.tensor(&columns[0])?, graph.columns(ids, first, columns.len()));
            let rows = graph.node(Operator::Gather, &[table, wanted]);
            parts.push(graph.by_row(rows, &[columns.len() * columns[0].dim(1)?]));
            first += columns.len();
        }
        let joined = graph.node(Operator::Concat { axis: 1 }, &parts);
        graph::floats(graph.linear(joined, &self.layer)?)
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let Some(floats) = self.floats(x)? else { return self.reference(pass, x, ids) };
        let (x, [ids]) = (floats, operands(self.name(), ids)?);
        // Tables that several columns share come once, one below the other.
        let mut distinct: Vec<(&Tensor, usize)> = Vec::new();
        let (mut columns, mut rows) = (Vec::with_capacity(self.tables.len()), 0);
        for table in &self.tables {
            let (known, entries) = (distinct.iter().find(|(t, _)| t.id() == table.id()).map(|(_, base)| *base), table.dim(0)?);
            if known.is_none() {
                distinct.push((table, rows));
                rows += entries;
            }
            let base = known.unwrap_or(rows - entries);
            columns.push(base..base + entries);
        }
        self.check(ids)?;
        let table = Tensor::cat(&distinct.iter().map(|(t, _)| *t).collect::<Vec<_>>(), 0)?;
        let bases: Vec<_> = columns.iter().map(|rows| rows.start).enumerate().collect();
        let Linear { weight, bias, .. } = &self.layer;
        let (index, x) = (ids.shifted(&bases), x.to_dtype(weight.dtype())?);
        let y = emulated([&x, weight], |[x, weight]| Ok(lookup_linear(x, &table, &columns, index, weight, bias.as_ref())?))?;
        Ok(Values::floats(y))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, ids, out) = (self.floats(&wires.x)?, wires.ids[0], wires.out[0]);
        let floats = x.map_or(0, |x| x.width);
        let matrix = x.map(|x| Ok::<_, Error>((x, packer.pack(&self.layer, floats)?))).transpose()?;
        let bias = self.layer.bias.as_ref().map_or(Ok(vec![0.0; out.width]), |bias| packer.values(bias))?;
        let limits = self.tables.iter().map(|t| Ok(t.dim(0)?)).collect::<Result<Vec<_>>>()?;
        let bases: Vec<usize> = limits.iter().scan(0, |next, limit| Some(std::mem::replace(next, *next + limit))).collect();
        let table = packer.fold(floats, &self.tables, &self.layer)?;
        Ok(Some(Box::new(move |frame, threads| {
            for r in 0..frame.rows {
                if let Some((id, limit)) = frame.ids(ids, r).iter().zip(&limits).find(|(id, limit)| **id as usize >= **limit) {
                    return Err(Error::Input(format!("id {id} in a table of {limit} rows")));
                }
            }
            if let Some((x, matrix)) = &matrix {
                cpu::product(threads, matrix, Activation::None, frame.rows(*x), frame.output(out));
            }
            cpu::share_rows(threads, frame.rows, bases.len() * out.width, |r| {
                // SAFETY: every row belongs to one part.
                let row = unsafe { frame.row_mut(out, r) };
                if matrix.is_none() {
                    row.copy_from_slice(&bias);
                }
                add_rows_of(row, &table, frame.ids(ids, r).iter().zip(&bases).map(|(id, base)| base + *id as usize));
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use super::cuda::product::{Behind, Gather, Operand, finish, product};
        use crate::cuda::Matrix;
        let (x, ids, out) = (self.floats(&wires.x)?, wires.ids[0], wires.out[0]);
        let floats = x.map_or(0, |x| x.width);
        let (mut at, mut base, mut folded, mut pairs) = (floats, 0, Vec::new(), Vec::new());
        for (column, table) in self.tables.iter().enumerate() {
            let (entries, width) = table.dims2()?;
            folded.push(table.matmul(&self.layer.weight.narrow(0, at, width)?)?);
            pairs.extend([column as u32, base as u32]);
            at += width;
            base += entries;
        }
        let table = compiler.matrix(&Tensor::cat(&folded, 0)?)?;
        let (pairs, count) = (compiler.words(pairs)?, self.tables.len());
        let gather = move |pass: &crate::exec::cuda::Pass| Gather { table, ids: pass.index(ids, 0, ids.columns), pairs, count };
        let Some(x) = x else {
            // Every row begins as the bias: a matrix whose rows are one row.
            let bias = Matrix { data: compiler.vector_or_zeros(&self.layer)?, stride: 0, width: out.width as u32 };
            return Ok(Some(Box::new(move |pass| {
                let (behind, rows) = (Behind { gather: gather(pass), ..Behind::NOTHING }, pass.rows());
                // SAFETY: the plan gives the result its rows, the bias has a value for each column, and who runs a pass promises ids inside the tables.
                Ok(unsafe { finish(pass.gpu, pass.dtype, Operand { matrix: bias, wide: true }, pass.operand(out), rows, &behind) }?)
            })));
        };
        let weight = compiler.matrix(&self.layer.weight.narrow(0, 0, floats)?)?;
        let bias = compiler.vector_or_none(self.layer.bias.as_ref())?;
        compiler.reserve(x, out.width);
        Ok(Some(Box::new(move |pass| {
            let behind = Behind { bias, gather: gather(pass), ..Behind::NOTHING };
            let operands = (pass.operand(x), weight, pass.operand(out));
            // SAFETY: the plan gives every matrix of a pass its rows; who runs a pass promises ids inside the tables.
            Ok(unsafe { product(pass.gpu, pass.dtype, operands, pass.rows(), &behind, pass.product) }?)
        })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let (inputs, outputs) = (wires.x.first().map_or(0, |x| x.width), wires.out[0].width);
        let (name, weights) = size.stored(&self.layer, inputs, outputs);
        let looked_up = (self.tables.len() * outputs) as f64;
        let each = 2.0 * (inputs * outputs) as f64 + looked_up;
        let bytes = weights + size.rows() * size.value() * looked_up + size.values(wires);
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes, weights: Some(name) })
    }
}
