//! Rows of tables: added to a matrix, or joined to its columns.

use crate::ops::activate_backward;
use crate::ops::{Activation, Rows, add_into, is_fused, rows_of, sum_in_order, sum_of_rows, with_rows};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

/// Rows per task. Fixed, so that the sums over rows do not depend on the number of threads.
const TASK_ROWS: usize = 128;

/// Every index must lie in the table: `columns` of them for each row.
pub(crate) fn check_indices(index: &[u32], rows: usize, columns: usize, table: &Tensor) -> Result<()> {
    if index.len() != rows * columns {
        bail!("{} indices for {rows} rows of {columns}", index.len());
    }
    let (entries, first_bad) = (table.dim(0)?, |limit: usize| index.iter().find(|i| **i as usize >= limit));
    match first_bad(entries) {
        Some(bad) => bail!("index {bad} in a table of {entries} rows"),
        None => Ok(()),
    }
}

struct AddRowsOp {
    /// `[rows, columns]`.
    index: Vec<u32>,
    columns: usize,
    act: Activation,
}

impl AddRowsOp {
    /// Row `r` of `x` plus table rows, and what follows the sum.
    fn sum(&self, [x, table]: [Rows; 2], r: usize, act: Activation, out: &mut [f32]) {
        let starts = self.index[r * self.columns..][..self.columns].iter().map(|i| *i as usize * x.width);
        sum_of_rows(out, Some(x.row(r)), table.data, starts, act);
    }
}

impl CustomOp2 for AddRowsOp {
    fn name(&self) -> &'static str {
        "add-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, t: &CpuStorage, tl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, table) = (rows_of(x, xl)?, rows_of(t, tl)?);
        let mut out = vec![0.0; x.rows * x.width];
        out.par_chunks_mut(TASK_ROWS * x.width).enumerate().for_each(|(task, block)| {
            block.chunks_mut(x.width).enumerate().for_each(|(i, out)| self.sum([x, table], task * TASK_ROWS + i, self.act, out));
        });
        Ok((CpuStorage::F32(out), (x.rows, x.width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, xl: &Layout, t: &CudaStorage, tl: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::add(&self.index, self.columns, self.act, (x, xl), (t, tl))
    }

    fn bwd(&self, x: &Tensor, t: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let ((rows, width), entries, grad) = (x.dims2()?, t.dim(0)?, grad.contiguous()?);
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let [dx, dtable] = super::cuda::add_backward(&self.index, self.columns, self.act, [x, t, &grad])?;
            return Ok((Some(dx), Some(dtable)));
        }
        let mut dx = if self.act == Activation::None { Vec::new() } else { grad.flatten_all()?.to_vec1::<f32>()? };
        let dtable = with_rows(&[x, t, &grad], |inputs| {
            let [x, table, grad]: [Rows; 3] = [inputs[0], inputs[1], inputs[2]];
            if self.act != Activation::None {
                dx.par_chunks_mut(TASK_ROWS * width).enumerate().for_each(|(task, block)| {
                    let mut before = vec![0.0; width];
                    for (i, grad) in block.chunks_mut(width).enumerate() {
                        self.sum([x, table], task * TASK_ROWS + i, Activation::None, &mut before);
                        activate_backward(self.act, &before, grad);
                    }
                });
            }
            let through = if self.act == Activation::None { grad } else { Rows { data: &dx, ..grad } };
            let partial = (0..rows.div_ceil(TASK_ROWS)).into_par_iter().map(|task| {
                let mut sums = vec![0.0; entries * width];
                for r in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                    for &i in &self.index[r * self.columns..][..self.columns] {
                        add_into(&mut sums[i as usize * width..][..width], through.row(r));
                    }
                }
                sums
            });
            Ok(sum_in_order(partial.collect()))
        })?;
        let dx = if self.act == Activation::None { grad } else { Tensor::from_vec(dx, (rows, width), x.device())? };
        Ok((Some(dx), Some(Tensor::from_vec(dtable, (entries, width), x.device())?)))
    }
}

/// `act(x + sum of table rows)`: `x` `[rows, width]`, `table` `[entries, width]`, `index` `[rows, columns]` one row behind the
/// other, with gradients of `x` and of the table.
pub fn add_rows(x: &Tensor, table: &Tensor, index: Vec<u32>, columns: usize, act: Activation) -> Result<Tensor> {
    check_indices(&index, x.dim(0)?, columns, table)?;
    if !is_fused(x) {
        return add_rows_reference(x, table, &index, columns, act);
    }
    if x.dim(1)? != table.dim(1)? {
        bail!("rows of {} values and a table {:?}", x.dim(1)?, table.dims());
    }
    x.contiguous()?.apply_op2(&table.contiguous()?, AddRowsOp { index, columns, act })
}

/// [`add_rows`] in plain tensor operations.
pub fn add_rows_reference(x: &Tensor, table: &Tensor, index: &[u32], columns: usize, act: Activation) -> Result<Tensor> {
    let index = Tensor::from_slice(index, (x.dim(0)?, columns), x.device())?;
    let mut sum = x.clone();
    for column in 0..columns {
        sum = (sum + table.index_select(&index.narrow(1, column, 1)?.flatten_all()?.contiguous()?, 0)?)?;
    }
    act.reference(&sum)
}

struct JoinRowsOp {
    index: Vec<u32>,
    columns: usize,
}

impl CustomOp2 for JoinRowsOp {
    fn name(&self) -> &'static str {
        "join-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, t: &CpuStorage, tl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, table) = (rows_of(x, xl)?, rows_of(t, tl)?);
        let width = x.width + self.columns * table.width;
        let mut out = vec![0.0; x.rows * width];
        out.par_chunks_mut(width).enumerate().with_min_len(32).for_each(|(r, out)| {
            let (floats, parts) = out.split_at_mut(x.width);
            floats.copy_from_slice(x.row(r));
            let index = &self.index[r * self.columns..][..self.columns];
            parts.chunks_mut(table.width).zip(index).for_each(|(part, i)| part.copy_from_slice(table.row(*i as usize)));
        });
        Ok((CpuStorage::F32(out), (x.rows, width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, xl: &Layout, t: &CudaStorage, tl: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::join(&self.index, self.columns, (x, xl), (t, tl))
    }

    fn bwd(&self, x: &Tensor, t: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let ((rows, floats), (entries, width)) = (x.dims2()?, t.dims2()?);
        let grad = grad.contiguous()?;
        let dx = x.track_op().then(|| grad.narrow(D::Minus1, 0, floats)).transpose()?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return Ok((dx, Some(super::cuda::join_backward(&self.index, self.columns, t, &grad)?)));
        }
        let dtable = with_rows(&[&grad], |inputs| {
            // In the order of the rows, on one thread: the tables are larger than what a task adds to them.
            let mut sums = vec![0.0; entries * width];
            for (r, index) in self.index.chunks(self.columns).enumerate() {
                for (&i, part) in index.iter().zip(inputs[0].row(r)[floats..].chunks(width)) {
                    add_into(&mut sums[i as usize * width..][..width], part);
                }
            }
            Ok(sums)
        })?;
        debug_assert!(rows * self.columns == self.index.len());
        Ok((dx, Some(Tensor::from_vec(dtable, (entries, width), x.device())?)))
    }
}

/// The columns of `x` `[rows, floats]` and behind them one row of the table for each of the `columns` indices of a row:
/// `[rows, floats + columns * width]`, with gradients of `x` and of the table `[entries, width]`.
pub fn join_rows(x: &Tensor, table: &Tensor, index: Vec<u32>, columns: usize) -> Result<Tensor> {
    check_indices(&index, x.dim(0)?, columns, table)?;
    if !is_fused(x) {
        return join_rows_reference(x, table, &index, columns);
    }
    x.apply_op2(&table.contiguous()?, JoinRowsOp { index, columns })
}

/// [`join_rows`] in plain tensor operations.
pub fn join_rows_reference(x: &Tensor, table: &Tensor, index: &[u32], columns: usize) -> Result<Tensor> {
    let index = Tensor::from_slice(index, (x.dim(0)?, columns), x.device())?;
    let part = |column| table.index_select(&index.narrow(1, column, 1)?.flatten_all()?.contiguous()?, 0);
    let parts = std::iter::once(Ok(x.clone())).chain((0..columns).map(part)).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&parts, D::Minus1)
}
