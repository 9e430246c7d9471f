//! Launches of `sums.cu`, and sums of the rows of tensors.

use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use candle_core::{DType, Device, Result, Tensor};

static SOURCE: Source = Source { name: "sums", text: include_str!("sums.cu") };
const SUM_ROWS: Kernel = Kernel { source: &SOURCE, name: "sum_rows" };
const SUM_PARTS: Kernel = Kernel { source: &SOURCE, name: "sum_parts" };
const SUM_PIECES: Kernel = Kernel { source: &SOURCE, name: "sum_pieces" };

/// Row p of `out` (f32) is the sum of the rows `[p per, (p + 1) per)` of `x`, value by value times `by`, or [`Matrix::NONE`] for 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct SumRows {
    x: Matrix,
    by: Matrix,
    out: Matrix,
    rows: u32,
    per: u32,
}

impl SumRows {
    /// # Safety
    /// `x` and `by` have `rows` rows of that dtype and one width, `out` a row for every `per` of them.
    unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        let blocks = (self.x.width.div_ceil(32) as usize, self.rows.div_ceil(self.per) as usize, 1);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(SUM_ROWS, Some(dtype), (blocks, 256, 0), self) }
    }
}

/// `out` is the sum of `count` f32 matrices `[rows, out.width]`, one behind the other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SumParts {
    pub parts: u64,
    pub out: Matrix,
    pub count: u32,
    pub rows: u32,
}

impl SumParts {
    /// # Safety
    /// `out` has `rows` rows of that dtype, and the parts their sizes.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        let values = self.rows as usize * self.out.width as usize;
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(SUM_PARTS, Some(dtype), ((values.div_ceil(256), 1, 1), 256, 0), self) }
    }
}

/// Row s of `out` (f32) is the sum of the pieces of `x` whose numbers stand at `[starts[s], starts[s + 1])` of `pieces`; these
/// numbers themselves where it is 0. Piece i: the values from `i % columns * step` on of row `i / columns`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SumPieces {
    pub x: Matrix,
    pub out: Matrix,
    pub pieces: u64,
    pub starts: u64,
    pub columns: u32,
    pub step: u32,
}

impl SumPieces {
    /// # Safety
    /// Every number names a piece inside `x`, which is of that dtype, and `out` has `sums` rows.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, sums: usize) -> Result<()> {
        let blocks = (sums, self.out.width.div_ceil(128) as usize, 1);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(SUM_PIECES, Some(dtype), (blocks, 128, 0), self) }
    }
}

/// The sum over the rows of `x` `[rows, width]`, f32 `[width]`. In one order for every GPU.
pub(crate) fn column_sums(x: &Tensor) -> Result<Tensor> {
    sums(x, None)
}

/// Likewise of `x by`, value by value, both of one shape and dtype.
pub(crate) fn column_sums_of_products(x: &Tensor, by: &Tensor) -> Result<Tensor> {
    sums(x, Some(by))
}

fn sums(x: &Tensor, by: Option<&Tensor>) -> Result<Tensor> {
    /// Rows of a block where there are many, so that many blocks share them, and of the one that has the sums of the others.
    const PER: usize = 256;
    const LAST: usize = 1024;
    let gpu = Gpu::of(cuda::device_of(x)?)?;
    let (rows, width) = x.dims2()?;
    if rows == 0 {
        return Tensor::zeros(width, DType::F32, x.device());
    }
    let per = if rows <= LAST { rows } else { PER };
    let parts = rows.div_ceil(per);
    let out = cuda::empty((parts, width), DType::F32, gpu.device())?;
    let by = by.map_or(Ok(Matrix::NONE), cuda::matrix)?;
    let sum = SumRows { x: cuda::matrix(x)?, by, out: cuda::matrix(&out)?, rows: rows as u32, per: per as u32 };
    // SAFETY: `out` has a row for every `per` rows of `x`; the callers' `by` has its shape.
    unsafe { sum.launch(&gpu, x.dtype())? };
    if parts > 1 { column_sums(&out) } else { out.squeeze(0) }
}

/// Which pieces of a matrix belong to each of a table's rows: `index[i]` is that of piece i.
///
/// Long lists are summed in parts of [`Self::PART`] pieces, and the parts in their order.
pub(crate) struct Pieces {
    numbers: Tensor,
    /// Of the parts in `numbers`, and of the table's rows among the parts.
    starts: [Tensor; 2],
    parts: usize,
    entries: usize,
}

impl Pieces {
    const PART: usize = 256;

    /// On the host: the index came from there.
    pub fn new(index: &[u32], entries: usize, device: &Device) -> Result<Self> {
        let mut lists = vec![Vec::new(); entries];
        for (i, &entry) in index.iter().enumerate() {
            lists[entry as usize].push(i as u32);
        }
        let (mut numbers, mut part_starts, mut entry_starts) = (Vec::with_capacity(index.len()), vec![0u32], vec![0u32]);
        for list in &lists {
            for part in list.chunks(Self::PART) {
                numbers.extend_from_slice(part);
                part_starts.push(numbers.len() as u32);
            }
            entry_starts.push(part_starts.len() as u32 - 1);
        }
        let parts = part_starts.len() - 1;
        if numbers.is_empty() {
            numbers.push(0); // No allocation is empty.
        }
        let upload = |values: Vec<u32>| {
            let n = values.len();
            Tensor::from_vec(values, n, device)
        };
        Ok(Self { numbers: upload(numbers)?, starts: [upload(part_starts)?, upload(entry_starts)?], parts, entries })
    }

    /// The sums for every row of the table, f32 `[entries, width]`: piece i is the part of row `i / columns` of `x` that begins at
    /// value `first + i % columns * step`.
    pub fn sum(&self, x: &Tensor, (first, width): (usize, usize), (columns, step): (usize, usize)) -> Result<Tensor> {
        let gpu = Gpu::of(cuda::device_of(x)?)?;
        let new = |rows| cuda::empty((rows, width), DType::F32, gpu.device());
        let (parts, out) = (new(self.parts.max(1))?, new(self.entries)?);
        let x_matrix = cuda::matrix(x)?.columns(first, width, x.dtype().size_in_bytes());
        let (columns, step) = (columns as u32, step as u32);
        let of_parts = SumPieces {
            x: x_matrix,
            out: cuda::matrix(&parts)?,
            pieces: cuda::address(&self.numbers)?,
            starts: cuda::address(&self.starts[0])?,
            columns,
            step,
        };
        let of_entries = SumPieces {
            x: of_parts.out,
            out: cuda::matrix(&out)?,
            pieces: 0,
            starts: cuda::address(&self.starts[1])?,
            columns: 1,
            step: 0,
        };
        // SAFETY: the numbers are those of the index, which has `columns` of them for every row of `x`; the parts are numbered in order.
        unsafe {
            of_parts.launch(&gpu, x.dtype(), self.parts)?;
            of_entries.launch(&gpu, DType::F32, self.entries)?;
        }
        Ok(out)
    }
}
