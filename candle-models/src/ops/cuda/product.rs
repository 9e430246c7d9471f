//! Launches of `product.cu`: the matrix product of inference with everything that follows it.
//!
//! A few rows take a kernel of our own that reads every weight once and adds bias, table rows, activation and residual on the way
//! out. So do many that a GPU moves for longer than it multiplies them, in tiles on the tensor cores; the others take cuBLAS, into f32, and then the epilogue
//! alone.

use super::activation_code;
use crate::cuda::{AT_ONCE, Gpu, Kernel, Matrix, Source};
use crate::ops::{Activation, Target};
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::{DType, Result, bail};
use std::ffi::c_void;

static SOURCE: Source = Source { name: "product", text: include_str!("product.cu") };
const PRODUCT: [(usize, Kernel); 3] = [
    (1, Kernel { source: &SOURCE, name: "product1" }),
    (4, Kernel { source: &SOURCE, name: "product4" }),
    (8, Kernel { source: &SOURCE, name: "product8" }),
];
const TILES: Kernel = Kernel { source: &SOURCE, name: "product_tiles" };
const FINISH: Kernel = Kernel { source: &SOURCE, name: "finish_rows" };
const COPY: Kernel = Kernel { source: &SOURCE, name: "copy_rows" };

/// Most rows of the kernel of our own: two times eight. Above, the tensor cores pay for the second launch.
pub(crate) const FEW: usize = 16;
/// Shared memory of a block, in bytes, from Ampere on.
const SHARED: usize = 96 << 10;
const WARPS: usize = 8;
const THREADS: usize = 256;

/// Rows and columns of a block of the kernel for many rows, inputs of a part, parts in its ring, and its threads.
const TILE: usize = 64;
const DEPTH: usize = 32;
const RING: usize = 4;
const TILE_THREADS: usize = 128;

/// Whether many rows take the kernel of our own: where moving them takes longer than multiplying, or where all is over so soon that a second launch counts.
fn in_tiles(dtype: DType, [rows, inputs, outputs]: [usize; 3]) -> bool {
    /// The shorter side of a weight up to which a GPU moves rows for longer than it multiplies them.
    const NARROW: usize = 128;
    /// Multiply-adds that take the tensor cores about as long as a launch.
    const SHORT: usize = 1 << 27;
    /// Rows whose tiles fill a large GPU.
    const FULL: usize = 4096;
    let narrow = inputs.min(outputs) <= NARROW;
    match dtype {
        DType::F32 => narrow && rows >= FULL && !candle_core::cuda_backend::gemm_reduced_precision_f32(),
        _ => narrow || rows * inputs * outputs <= SHORT,
    }
}

/// Bytes of a block's shared memory: parts of so many inputs, of which there are at most as many as the ring has, and in whose place comes a tile in f32.
fn ring(dtype: DType, inputs: usize) -> usize {
    let (size, parts) = (dtype.size_in_bytes(), inputs.div_ceil(DEPTH).clamp(1, RING));
    let piece = 16 / size;
    (parts * (TILE * (DEPTH + piece) + DEPTH * (TILE + piece)) * size).max(TILE * (TILE + 4) * size_of::<f32>())
}

/// A matrix in the dtype of a launch, or in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    pub matrix: Matrix,
    /// Whether it is f32.
    pub wide: bool,
}

impl Operand {
    /// No matrix.
    pub const NONE: Self = Self { matrix: Matrix::NONE, wide: false };

    /// Whether there is one in the dtype of the launch, whose rows begin at multiples of 16 bytes.
    fn in_pieces(self, dtype: DType) -> bool {
        let Matrix { data, stride, .. } = self.matrix;
        data != 0 && !self.wide && data.is_multiple_of(16) && (stride as usize * dtype.size_in_bytes()).is_multiple_of(16)
    }

    fn bit(self, bit: u32) -> u32 {
        if self.wide { bit } else { 0 }
    }
}

/// Table rows that are added: row `ids[row][column] + base` of `table` `[entries, outputs]` for every pair of column and base.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gather {
    pub table: u64,
    pub ids: Matrix,
    /// Address of the pairs, u32.
    pub pairs: u64,
    pub count: usize,
}

/// What follows a product, in this order: bias (f32, 0 for none), table rows, activation, residual times its gain (f32, 0 for 1), another activation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behind {
    pub bias: u64,
    pub gather: Gather,
    pub act: Activation,
    pub residual: Operand,
    pub gain: u64,
    pub then: Activation,
}

impl Behind {
    /// Nothing.
    pub const NOTHING: Self = Self {
        bias: 0,
        gather: Gather { table: 0, ids: Matrix::NONE, pairs: 0, count: 0 },
        act: Activation::None,
        residual: Operand::NONE,
        gain: 0,
        then: Activation::None,
    };
}

/// `Epilogue` in `product.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Epilogue {
    out: Matrix,
    residual: Matrix,
    bias: u64,
    gain: u64,
    table: u64,
    ids: Matrix,
    gathers: u64,
    gather_count: u32,
    act: u32,
    then: u32,
    wide: u32,
    rows: u32,
    _filled: u32,
}

const X_WIDE: u32 = 1;
const OUT_WIDE: u32 = 2;
const RESIDUAL_WIDE: u32 = 4;

impl Epilogue {
    fn new(out: Operand, rows: usize, behind: &Behind) -> Self {
        let Behind { bias, gather, act, residual, gain, then } = *behind;
        Self {
            out: out.matrix,
            residual: residual.matrix,
            bias,
            gain,
            table: gather.table,
            ids: gather.ids,
            gathers: gather.pairs,
            gather_count: gather.count as u32,
            act: activation_code(act),
            then: activation_code(then),
            wide: out.bit(OUT_WIDE) | residual.bit(RESIDUAL_WIDE),
            rows: rows as u32,
            _filled: 0,
        }
    }
}

/// `Product` in `product.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Product {
    epilogue: Epilogue,
    x: Matrix,
    weight: u64,
    residual_at: u32,
}

/// `Finish` in `product.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Finish {
    epilogue: Epilogue,
    x: Matrix,
}

/// `Copy` in `product.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyRows {
    from: Matrix,
    to: Matrix,
    rows: u32,
    wide: u32,
}

/// `rows` rows of `out = act(x W + ...)`, `weight` `[inputs, outputs]` in `dtype`. `scratch` holds f32 for `rows` rows of `x` and of
/// `out` where there are more than [`FEW`].
///
/// # Safety
/// All matrices have these rows, and the ids lie inside the table.
pub(crate) unsafe fn product(
    gpu: &Gpu,
    dtype: DType,
    (x, weight, out): (Operand, u64, Operand),
    rows: usize,
    behind: &Behind,
    scratch: u64,
) -> Result<()> {
    let (inputs, outputs) = (x.matrix.width as usize, out.matrix.width as usize);
    let mut epilogue = Epilogue::new(out, rows, behind);
    let tile = PRODUCT.iter().find(|(tile, _)| rows <= *tile).unwrap_or(&PRODUCT[2]);
    let shared = tile.0 * inputs * size_of::<f32>();
    if rows <= FEW && shared <= SHARED {
        epilogue.wide |= x.bit(X_WIDE);
        let args = Product { epilogue, x: x.matrix, weight, residual_at: 0 };
        let grid = (outputs.div_ceil(32), rows.div_ceil(tile.0), 1);
        // SAFETY: the caller's promise.
        return unsafe { gpu.launch(tile.1, Some(dtype), (grid, 32 * WARPS, shared), &args) };
    }
    if in_tiles(dtype, [rows, inputs, outputs]) {
        epilogue.wide |= x.bit(X_WIDE);
        let ring = ring(dtype, inputs);
        // The residual is brought ahead, behind the ring.
        let (residual_at, room) =
            if behind.residual.in_pieces(dtype) { (ring as u32, TILE * TILE * dtype.size_in_bytes()) } else { (0, 0) };
        let args = Product { epilogue, x: x.matrix, weight, residual_at };
        let grid = (rows.div_ceil(TILE), outputs.div_ceil(TILE), 1);
        // SAFETY: the caller's promise.
        return unsafe { gpu.launch(TILES, Some(dtype), (grid, TILE_THREADS, ring + room), &args) };
    }
    // SAFETY: the caller's promise.
    unsafe { many(gpu, dtype, (x, weight, out), rows, epilogue, scratch) }
}

/// By cuBLAS into f32, then the epilogue.
unsafe fn many(
    gpu: &Gpu,
    dtype: DType,
    (x, weight, out): (Operand, u64, Operand),
    rows: usize,
    epilogue: Epilogue,
    scratch: u64,
) -> Result<()> {
    let (inputs, outputs) = (x.matrix.width, out.matrix.width);
    let plain = Epilogue { wide: 0, ..epilogue };
    let nothing = plain.bias == 0 && plain.gather_count == 0 && plain.act == 0 && plain.residual.data == 0;
    let product = Matrix { data: scratch, stride: outputs, width: outputs };
    let mut narrow = x.matrix;
    if x.wide && dtype != DType::F32 {
        narrow = Matrix { data: scratch + 4 * u64::from(outputs) * rows as u64, stride: inputs, width: inputs };
        // SAFETY: the scratch has room behind the product.
        unsafe { copy(gpu, dtype, x, Operand { matrix: narrow, wide: false }, rows)? };
    }
    let to = if nothing { out } else { Operand { matrix: product, wide: true } };
    // SAFETY: the caller's promise.
    unsafe { gemm(gpu, dtype, narrow, Factor { data: weight, transposed: false }, (to, Target::Fresh), rows)? };
    if nothing {
        return Ok(());
    }
    let args = Finish { epilogue: Epilogue { wide: epilogue.wide | X_WIDE, ..epilogue }, x: product };
    // SAFETY: as above.
    unsafe { elementwise(gpu, FINISH, dtype, pieces(dtype, rows, outputs), &args) }
}

/// A weight `[inputs, outputs]`, or its transpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factor {
    pub data: u64,
    pub transposed: bool,
}

/// `out = x W` or `out += x W` by cuBLAS. It counts columns first: the transposed product of the transposed matrices, which lie there
/// as they are.
///
/// # Safety
/// `x` and `out` have these rows, and the weight their widths.
pub(crate) unsafe fn gemm(gpu: &Gpu, dtype: DType, x: Matrix, weight: Factor, (out, target): (Operand, Target), rows: usize) -> Result<()> {
    let kind = |dtype| match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        other => bail!("a product in {other:?} on CUDA"),
    };
    let (narrow, result_kind) = (kind(dtype)?, kind(if out.wide { DType::F32 } else { dtype })?);
    let tf32 = dtype == DType::F32 && candle_core::cuda_backend::gemm_reduced_precision_f32();
    let compute = if tf32 { sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32 } else { sys::cublasComputeType_t::CUBLAS_COMPUTE_32F };
    let (alpha, beta) = (1.0f32, if target == Target::Sum { 1.0f32 } else { 0.0 });
    let as_is = sys::cublasOperation_t::CUBLAS_OP_N;
    let (turned, stride) = if weight.transposed { (sys::cublasOperation_t::CUBLAS_OP_T, x.width) } else { (as_is, out.matrix.width) };
    // SAFETY: the caller's promise; alpha and beta are read before the call returns.
    unsafe {
        result::gemm_ex(
            *gpu.device().cublas_handle().handle(),
            turned,
            as_is,
            out.matrix.width as i32,
            rows as i32,
            x.width as i32,
            std::ptr::from_ref(&alpha).cast(),
            weight.data as *const c_void,
            narrow,
            stride as i32,
            x.data as *const c_void,
            narrow,
            x.stride as i32,
            std::ptr::from_ref(&beta).cast(),
            out.matrix.data as *mut c_void,
            result_kind,
            out.matrix.stride as i32,
            compute,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()
}

/// `out = act(x + ...)` without a product: bias, table rows, activation and residual over `x`.
///
/// # Safety
/// As for [`product`].
pub(crate) unsafe fn finish(gpu: &Gpu, dtype: DType, x: Operand, out: Operand, rows: usize, behind: &Behind) -> Result<()> {
    let mut epilogue = Epilogue::new(out, rows, behind);
    epilogue.wide |= x.bit(X_WIDE);
    let args = Finish { epilogue, x: x.matrix };
    // SAFETY: the caller's promise.
    unsafe { elementwise(gpu, FINISH, dtype, pieces(dtype, rows, out.matrix.width), &args) }
}

/// Copies `rows` rows, from f32 or `dtype` to either.
///
/// # Safety
/// Both have these rows of the same width.
pub(crate) unsafe fn copy(gpu: &Gpu, dtype: DType, from: Operand, to: Operand, rows: usize) -> Result<()> {
    let args = CopyRows { from: from.matrix, to: to.matrix, rows: rows as u32, wide: from.bit(X_WIDE) | to.bit(OUT_WIDE) };
    // SAFETY: the caller's promise.
    unsafe { elementwise(gpu, COPY, dtype, (rows * to.matrix.width as usize).div_ceil(AT_ONCE), &args) }
}

/// Pieces of 16 bytes in so many rows.
fn pieces(dtype: DType, rows: usize, width: u32) -> usize {
    rows * (width as usize).div_ceil(16 / dtype.size_in_bytes())
}

unsafe fn elementwise<A: Copy>(gpu: &Gpu, kernel: Kernel, dtype: DType, threads: usize, args: &A) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { gpu.launch(kernel, Some(dtype), ((threads.div_ceil(THREADS), 1, 1), THREADS, 0), args) }
}
