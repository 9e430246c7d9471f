//! `[x, tables[ids]] W + b` without the joined matrix.
//!
//! A row that the tables give takes part only through its product with the weight. So each table is multiplied by its own rows
//! of the weight once, and rows of the results are added to `x W`; backwards, the gradient is summed by id first and
//! multiplied then. For 1920 frames and tables of 399 rows and less that is a seventh of the joined matrix' work, and no
//! gradient of that matrix is written.

use crate::ops::check_indices;
use crate::ops::linear::{Operand, TASK_ROWS, Target, column_sums};
use crate::ops::{Activation, Products, Rows, add_into, add_rows_of, contiguous, is_on_host, join_rows, linear, rows_of, with_rows};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;
use std::ops::Range;

struct LookupOp {
    products: Products,
    /// `[rows, floats]`, without a gradient.
    x: Tensor,
    /// Rows of the table by row and column.
    index: Vec<u32>,
    /// Rows of the table that each column looks into.
    columns: Vec<Range<usize>>,
}

/// A column's part of the tables' product: its number, its rows of the table, and their product or gradient.
type Part<'a> = (usize, Range<usize>, &'a mut [f32]);

impl LookupOp {
    fn entries(&self) -> usize {
        self.columns.iter().map(Range::len).sum()
    }

    /// One chunk of `folded` `[entries, width]` per column.
    fn parts<'a>(&self, folded: &'a mut [f32], width: usize) -> Vec<Part<'a>> {
        let mut rest = folded;
        let part = |(i, rows): (usize, &Range<usize>)| (i, rows.clone(), rest.split_off_mut(..rows.len() * width).unwrap_or_default());
        self.columns.iter().enumerate().map(part).collect()
    }

    fn forward(&self, x: Rows, table: Rows, weight: Rows, bias: &[f32]) -> Vec<f32> {
        let (width, entry, columns) = (weight.width, table.width, self.columns.len());
        let mut folded = vec![0.0; self.entries() * width];
        self.parts(&mut folded, width).into_par_iter().for_each(|(i, rows, out)| {
            let (table, weight) = (part(table, rows), part(weight, x.width + i * entry..x.width + (i + 1) * entry));
            self.products.product_alone(table.into(), weight.into(), out, width, Target::Fresh);
        });
        let starts: Vec<usize> = self.starts().collect();
        let mut out = self.products.product_new(x.into(), part(weight, 0..x.width).into());
        out.par_chunks_mut(TASK_ROWS * width).enumerate().for_each(|(task, block)| {
            for (r, out) in block.chunks_mut(width).enumerate() {
                add_into(out, bias);
                let index = &self.index[(task * TASK_ROWS + r) * columns..][..columns];
                let columns = starts.iter().zip(&self.columns).zip(index);
                add_rows_of(out, &folded, columns.map(|((start, rows), row)| start + *row as usize - rows.start));
            }
        });
        out
    }

    /// First row of each column among the folded ones.
    fn starts(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().scan(0, |next, rows| {
            *next += rows.len();
            Some(*next - rows.len())
        })
    }

    /// The gradients of the table, of the weight and of the bias.
    fn backward(&self, x: Rows, table: Rows, weight: Rows, grad: Rows) -> [Vec<f32>; 3] {
        let (width, entry, columns) = (weight.width, table.width, self.columns.len());
        let mut dweight = vec![0.0; weight.rows * width];
        let (floats, looked_up) = dweight.split_at_mut(x.width * width);
        self.products.product(Operand::from(x).t(), grad.into(), floats, width, Target::Fresh);
        let mut sums = vec![0.0; self.entries() * width];
        let parts = self.parts(&mut sums, width).into_par_iter().zip(looked_up.par_chunks_mut(entry * width));
        let dtables: Vec<Vec<f32>> = parts
            .map(|((i, rows, sums), dweight)| {
                for (r, index) in self.index.chunks(columns).enumerate() {
                    add_into(&mut sums[(index[i] as usize - rows.start) * width..][..width], grad.row(r));
                }
                let weight = part(weight, x.width + i * entry..x.width + (i + 1) * entry);
                self.products.product_alone(Operand::from(part(table, rows)).t(), Operand::new(sums, width), dweight, width, Target::Fresh);
                let mut dtable = vec![0.0; sums.len() / width * entry];
                self.products.product_alone(Operand::new(sums, width), Operand::from(weight).t(), &mut dtable, entry, Target::Fresh);
                dtable
            })
            .collect();
        let mut dtable = vec![0.0; table.rows * entry];
        for (rows, part) in self.columns.iter().zip(dtables) {
            add_into(&mut dtable[rows.start * entry..rows.end * entry], &part);
        }
        [dtable, dweight, column_sums(grad)]
    }
}

/// Some rows.
fn part(x: Rows, rows: Range<usize>) -> Rows {
    Rows { rows: rows.len(), ..x.rows_from(rows.start) }
}

impl CustomOp3 for LookupOp {
    fn name(&self) -> &'static str {
        "lookup-linear"
    }

    fn cpu_fwd(
        &self,
        t: &CpuStorage,
        tl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (table, weight, bias) = (rows_of(t, tl)?, rows_of(w, wl)?, contiguous(b, bl)?);
        let out = with_rows(&[&self.x], |x| Ok(self.forward(x[0], table, weight, bias)))?;
        Ok((CpuStorage::F32(out), (self.x.dim(0)?, weight.width).into()))
    }

    fn bwd(
        &self,
        t: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = grad.contiguous()?;
        let [dt, dw, db] = with_rows(&[&self.x, t, w, &grad], |inputs| Ok(self.backward(inputs[0], inputs[1], inputs[2], inputs[3])))?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), t.device());
        Ok((Some(tensor(dt, t)?), Some(tensor(dw, w)?), Some(tensor(db, b)?)))
    }
}

/// `[x, table[index]] W + b`: `x` `[rows, floats]`, `table` `[entries, width]`, `index` `[rows, columns]` one row behind the other,
/// column i within the rows `columns[i]` of the table; `weight` `[floats + columns * width, outputs]`. With gradients.
pub fn lookup_linear(
    x: &Tensor,
    table: &Tensor,
    columns: &[Range<usize>],
    index: Vec<u32>,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    check_indices(&index, x.dim(0)?, columns.len(), table)?;
    if let Some((row, rows)) = index.iter().zip(columns.iter().cycle()).find(|(row, rows)| !rows.contains(&(**row as usize))) {
        bail!("index {row} for rows {rows:?} of a table");
    }
    if weight.dim(0)? != x.dim(1)? + columns.len() * table.dim(1)? {
        bail!("lookup: a weight {:?} for {} values and {} rows of {}", weight.dims(), x.dim(1)?, columns.len(), table.dim(1)?);
    }
    let entries: usize = columns.iter().map(Range::len).sum();
    match bias {
        // A short pass multiplies less by looking up first.
        Some(bias) if is_on_host(x) && !x.track_op() && index.len() > entries => {
            let op = LookupOp { products: Products::current(), x: x.contiguous()?, index, columns: columns.to_vec() };
            table.contiguous()?.apply_op3(&weight.contiguous()?, bias, op)
        }
        _ => linear(&join_rows(x, table, index, columns.len())?, weight, bias, Activation::None),
    }
}
