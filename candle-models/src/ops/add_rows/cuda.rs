//! Launches of `rows.cu`, and rows of tables on tensors.

use crate::cuda::{self, Gpu, Grid, Kernel, Matrix, Source};
use crate::ops::Activation;
use crate::ops::cuda::activation_code;
use crate::ops::cuda::sums::Pieces;
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, D, DType, Device, Layout, Result, Shape, Tensor};

static SOURCE: Source = Source { name: "rows", text: include_str!("rows.cu") };
const ADD_ROWS: Kernel = Kernel { source: &SOURCE, name: "add_rows" };
const ADD_ROWS_BACKWARD: Kernel = Kernel { source: &SOURCE, name: "add_rows_backward" };
const JOIN_ROWS: Kernel = Kernel { source: &SOURCE, name: "join_rows" };

fn grid(rows: usize, width: u32) -> Grid {
    let threads = (width as usize).next_multiple_of(32).min(256);
    ((rows, (width as usize).div_ceil(threads), 1), threads, 0)
}

/// Which table rows belong to a row: those that its ids name. The ids have been checked on the host.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Lookup {
    /// u32 `[rows, stride]`.
    pub ids: u64,
    /// For each of the `columns` the column of its id and the table row that id 0 means, u32 `[columns, 2]`; 0 where id j is
    /// that of column j and names the table's row itself.
    pub map: u64,
    /// Ids from one row to the next.
    pub stride: u32,
    /// Table rows that each row takes.
    pub columns: u32,
}

/// `out = act(x + the table rows)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AddRows {
    pub x: Matrix,
    pub out: Matrix,
    /// f32.
    pub table: Matrix,
    pub lookup: Lookup,
    act: u32,
}

impl AddRows {
    /// All of it.
    pub fn new(x: Matrix, out: Matrix, table: Matrix, lookup: Lookup, act: Activation) -> Self {
        Self { x, out, table, lookup, act: activation_code(act) }
    }

    /// # Safety
    /// The matrices have `rows` rows of the table's width and that dtype, the table is f32, and every id is in it.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(ADD_ROWS, Some(dtype), grid(rows, self.x.width), self) }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddRowsBackward {
    x: Matrix,
    grad: Matrix,
    dx: Matrix,
    table: Matrix,
    lookup: Lookup,
    act: u32,
}

/// `out` is `x` and, next to it, the table rows; without any, a copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct JoinRows {
    pub x: Matrix,
    pub out: Matrix,
    /// f32.
    pub table: Matrix,
    pub lookup: Lookup,
}

impl JoinRows {
    /// # Safety
    /// `x` and `out` have `rows` rows and that dtype, a row of `out` the values of all its parts, and every id is in the table.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(JOIN_ROWS, Some(dtype), grid(rows, self.out.width), self) }
    }
}

/// The ids of every row on the device.
fn lookup(index: &[u32], columns: usize, device: &Device) -> Result<(Tensor, Lookup)> {
    let ids = Tensor::from_slice(index, index.len(), device)?;
    let lookup = Lookup { ids: cuda::address(&ids)?, map: 0, stride: columns as u32, columns: columns as u32 };
    Ok((ids, lookup))
}

type Operand<'a> = (&'a CudaStorage, &'a Layout);

/// A table is f32 whatever its rows are added or joined to: it keeps its bits in training, and a row is read once.
fn table_of((table, layout): Operand) -> Result<Matrix> {
    cuda::same(layout.shape(), DType::F32, (table, layout))?;
    cuda::storage_matrix(table, layout)
}

/// The custom operation [`add_rows`](crate::ops::add_rows), its index checked.
pub(crate) fn add(index: &[u32], columns: usize, act: Activation, (x, layout): Operand, table: Operand) -> Result<(CudaStorage, Shape)> {
    let (gpu, shape, dtype) = (Gpu::of(&x.device)?, layout.shape(), x.dtype());
    let (_ids, lookup) = lookup(index, columns, &Device::Cuda(gpu.device().clone()))?;
    let (storage, out) = cuda::result(shape, dtype, gpu.device())?;
    let args = AddRows::new(cuda::storage_matrix(x, layout)?, out, table_of(table)?, lookup, act);
    // SAFETY: the caller has checked index and widths.
    unsafe { args.launch(&gpu, dtype, shape.dims()[0])? };
    Ok((storage, shape.clone()))
}

/// Its gradients.
pub(crate) fn add_backward(index: &[u32], columns: usize, act: Activation, [x, table, grad]: [&Tensor; 3]) -> Result<[Tensor; 2]> {
    let ((rows, width), dtype) = (x.dims2()?, x.dtype());
    let dx = if act == Activation::None {
        grad.clone()
    } else {
        let gpu = Gpu::of(cuda::device_of(x)?)?;
        let (dx, (_ids, lookup)) = (cuda::empty((rows, width), dtype, gpu.device())?, lookup(index, columns, x.device())?);
        let act = activation_code(act);
        let args = AddRowsBackward {
            x: cuda::matrix(x)?,
            grad: cuda::matrix(grad)?,
            dx: cuda::matrix(&dx)?,
            table: cuda::matrix(table)?,
            lookup,
            act,
        };
        // SAFETY: the tensors are those of the forward.
        unsafe { gpu.launch(ADD_ROWS_BACKWARD, Some(dtype), grid(rows, width as u32), &args)? };
        dx
    };
    let dtable = Pieces::new(index, table.dim(0)?, x.device())?.sum(&dx, (0, width), (columns, 0))?;
    Ok([dx, dtable])
}

/// The custom operation [`join_rows`](crate::ops::join_rows), its index checked.
pub(crate) fn join(index: &[u32], columns: usize, (x, layout): Operand, table: Operand) -> Result<(CudaStorage, Shape)> {
    let (gpu, dtype) = (Gpu::of(&x.device)?, x.dtype());
    let table = table_of(table)?;
    let (_ids, lookup) = lookup(index, columns, &Device::Cuda(gpu.device().clone()))?;
    let rows = layout.dims()[0];
    let shape = Shape::from((rows, layout.dims()[1] + columns * table.width as usize));
    let (storage, out) = cuda::result(&shape, dtype, gpu.device())?;
    let args = JoinRows { x: cuda::storage_matrix(x, layout)?, out, table, lookup };
    // SAFETY: the caller has checked the index; `out` has the widths of all parts.
    unsafe { args.launch(&gpu, dtype, rows)? };
    Ok((storage, shape))
}

/// The gradient of its table.
pub(crate) fn join_backward(index: &[u32], columns: usize, table: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let (entries, width) = table.dims2()?;
    let floats = grad.dim(D::Minus1)? - columns * width;
    Pieces::new(index, entries, grad.device())?.sum(grad, (floats, width), (columns, width))
}
