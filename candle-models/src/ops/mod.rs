//! Operations: a folder each, with an implementation of [`Operation`](crate::exec::Operation) and one `mod` line here.
//!
//! A folder has the operation with what the executors ask of it in `mod.rs`, kernels over slices and custom operations on tensors around them in
//! `tensors.rs`, kernels for CUDA and their launches in `cuda.rs` beside the `.cu` files, the derivative on tapes in `tape.rs`. What is fused is so
//! because a measurement says that it matters; a reference in plain tensor operations stands beside it, and the tests hold both together. The
//! fused forms serve f32 on the CPU and f32, bf16 and f16 on CUDA, there with vectors of parameters and recurrent states in f32; any other
//! dtype takes the plain operations, and with them the gradients that finite differences in f64 check.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::ops::{multiply::Multiply, softmax::Softmax};
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let inputs = NamedTensors::new();
//! let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
//! let x = Tensor::new(&[[0f32, 0.0, 3.0, 3.0]], &Device::Cpu)?;
//! let shares = e.apply(Softmax { group: Some(2) }, &[&x])?;
//! assert_eq!(e.apply(Multiply, &[&shares, &x])?.to_vec2::<f32>()?, [[0.0, 0.0, 1.5, 1.5]]);
//! # Ok(())
//! # }
//! ```

mod add_rows;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod before;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod by_value;
mod causal_conv;
#[cfg(test)]
pub(crate) mod check;
pub mod conv2d;
mod cross_entropy;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod dropout;
mod elementwise;
mod fake_quantise;
pub mod gaussian;
pub mod grid;
mod gru;
mod heads;
mod join;
mod joint;
mod linear;
mod lookup_linear;
mod mamba;
mod matmul;
pub mod multiply;
mod norm;
mod outer_products;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "ways to multiply that only x86-64 has"))]
mod packed;
pub mod pool2d;
mod selective_scan;
pub mod set_attention;
pub mod sigmoid;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "ways to multiply that only x86-64 has"))]
pub(crate) mod simd;
pub mod skip;
pub mod slices;
pub mod softmax;
pub mod spectral_conv;
pub mod tanh;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use add_rows::*;
pub use attention::*;
pub use before::Before;
pub use causal_conv::*;
pub use cross_entropy::{LossGroup, cross_entropy, cross_entropy_reference};
pub(crate) use dropout::dropout_factors;
pub use dropout::{dropout, mask, uniform};
pub use elementwise::*;
pub use fake_quantise::fake_quantise;
pub use gru::*;
pub use heads::*;
pub use join::*;
pub use joint::{Digit, JointIndex};
pub use linear::*;
pub use lookup_linear::*;
pub use mamba::*;
pub(crate) use matmul::linear_block;
pub use norm::*;
pub use packed::Format;
pub(crate) use packed::PackedMatrix;
pub use selective_scan::*;

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, bail};
use rayon::prelude::*;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the fused form of an operation serves this tensor: f32 on the CPU; f32, bf16 and f16 on CUDA.
pub(crate) fn is_fused(x: &Tensor) -> bool {
    match x.dtype() {
        DType::F32 => x.device().is_cpu() || x.device().is_cuda(),
        DType::BF16 | DType::F16 => x.device().is_cuda(),
        _ => false,
    }
}

/// Whether the kernels over slices serve this tensor.
pub(crate) fn is_on_host(x: &Tensor) -> bool {
    is_fused(x) && x.device().is_cpu()
}

/// What the operands of products with weights are rounded to; sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// Not at all.
    #[default]
    F32,
    /// To bf16, where the processor multiplies those twice as fast or more (Intel AMX, AMD's AVX-512); elsewhere not at all.
    Bf16,
}

thread_local! {
    static CURRENT: Cell<Products> = const { Cell::new(Products::F32) };
}

impl Products {
    /// Runs `f`. Products of the tensors that it makes on this thread are taken so on the CPU, and those of their gradients, whenever these are asked for:
    /// in bf16 on the tiles of Intel's AMX, and elsewhere in f32.
    pub fn within<R>(self, f: impl FnOnce() -> R) -> R {
        struct Before(Products);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _before = Before(CURRENT.replace(self));
        f()
    }

    /// What [`within`](Self::within) says here.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }
}

/// Whether this processor has instructions for products in bf16 that are worth it.
pub(crate) fn has_bf16_products() -> bool {
    simd::has_tiles() || simd::has_fast_bf16()
}

impl Products {
    /// What packed weights are made of for them in training, where there are no tiles.
    pub(crate) fn format(self) -> Format {
        if self == Self::Bf16 && simd::has_fast_bf16() { Format::Bf16 } else { Format::F32 }
    }
}

/// `out += x^T dy` with `out` of `x.width` rows of `dy.width` values: the gradient of a weight, over the rows of both.
///
/// # Safety
/// `out` points at such rows that nobody else touches.
pub(crate) unsafe fn multiply_transposed(products: Products, x: Rows, dy: Rows, out: OutPointer) {
    // SAFETY: the caller's promise; a format of bf16 says that the instructions are there.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if products.format() == Format::Bf16 {
            return bf16::multiply_transposed(x, dy, out);
        }
        if outer_products::serves(&x, &dy) {
            return outer_products::add(x, dy, out);
        }
        multiply(products, Operand::from(x).t(), dy.into(), out, Target::Sum);
    }
}

/// Checks that the rows of `x` are whole sequences of the batch of `state`, with one reset each.
fn check_sequence(x: &Tensor, state: &Tensor, resets: &[bool]) -> Result<()> {
    let (rows, batch) = (x.dim(0)?, state.dim(0)?);
    if rows == 0 || batch == 0 || rows % batch != 0 || resets.len() != rows {
        bail!("{rows} rows with {} resets for a state of {batch} sequences", resets.len());
    }
    Ok(())
}

/// A matrix over borrowed memory: `rows` rows of `width` values, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

impl<'a> Rows<'a> {
    pub fn row(&self, r: usize) -> &'a [f32] {
        &self.data[r * self.stride..][..self.width]
    }

    /// The rows from `first` on.
    fn rows_from(self, first: usize) -> Self {
        Self { data: &self.data[first * self.stride..], rows: self.rows - first, ..self }
    }

    /// Some columns of every row.
    pub fn columns(self, start: usize, width: usize) -> Self {
        Self { data: &self.data[start..], width, ..self }
    }
}

/// Where the threads of one product write. Blocks are disjoint, which is why sharing the pointer is sound.
#[derive(Clone, Copy)]
pub(crate) struct OutPointer {
    pub data: *mut f32,
    /// Values between the starts of two rows.
    pub stride: usize,
}

// SAFETY: every task writes its own block of rows and columns, and the caller keeps the memory borrowed until all are done.
unsafe impl Send for OutPointer {}
// SAFETY: as above.
unsafe impl Sync for OutPointer {}

impl OutPointer {
    /// A whole matrix, its rows of `width` values one behind the other.
    pub fn rows(data: &mut [f32], width: usize) -> Self {
        Self { data: data.as_mut_ptr(), stride: width }
    }

    /// The columns from `start` on.
    fn columns(self, start: usize) -> Self {
        self.block(0, start)
    }

    /// The block that begins with that row and column.
    pub fn block(self, row: usize, column: usize) -> Self {
        Self { data: self.data.wrapping_add(row * self.stride + column), ..self }
    }
}

/// The values of a contiguous f32 tensor inside a custom op.
pub(crate) fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(v), Some((start, end))) => Ok(&v[start..end]),
        (CpuStorage::F32(_), None) => bail!("a fused operation asks for a contiguous tensor, got {layout:?}"),
        _ => bail!("a fused operation asks for f32"),
    }
}

/// A matrix whose rows may lie apart (a column slice of a wider one) inside a custom op.
fn rows_of<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<Rows<'a>> {
    let (CpuStorage::F32(v), [rows, width], [stride, 1]) = (storage, layout.dims(), layout.stride()) else {
        bail!("a fused operation asks for f32 rows, got {layout:?}");
    };
    Ok(Rows { data: &v[layout.start_offset()..], rows: *rows, width: *width, stride: *stride })
}

/// Runs `f` over the rows of several tensors, as a backward does.
fn with_rows<R>(tensors: &[&Tensor], f: impl FnOnce(&[Rows]) -> Result<R>) -> Result<R> {
    let guards: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let rows: Vec<Rows> = guards
        .iter()
        .map(|(storage, layout)| match &**storage {
            Storage::Cpu(s) => rows_of(s, layout),
            _ => bail!("a fused operation asks for a tensor on the CPU"),
        })
        .collect::<Result<_>>()?;
    f(&rows)
}

/// Where a custom op leaves the state behind its sequence: an op gives one tensor only, and the state carries no gradient.
#[derive(Clone, Default)]
struct After(Arc<Mutex<Option<Tensor>>>);

impl After {
    fn put(&self, state: Tensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// The state that the op left.
    fn take(&self) -> Result<Tensor> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        state.ok_or_else(|| candle_core::Error::Msg("an operation left no state".to_owned()))
    }
}

/// Runs `f(sequence, scratch, parts)` for every sequence of a batch and returns the `N` matrices whose parts it wrote, and what it
/// returned. A sequence has `rows[i]` rows of `widths[i]` values in matrix i; its parts come as zeros, cleared by the thread
/// that fills them just before it does, while they are in its cache. The scratch goes from one sequence of a thread to its next.
fn by_sequence<const N: usize, T: Default, R: Send>(
    batch: usize,
    rows: [usize; N],
    widths: [usize; N],
    f: impl Fn(usize, &mut T, [&mut [f32]; N]) -> R + Sync,
) -> ([Vec<f32>; N], Vec<R>) {
    let length: [usize; N] = std::array::from_fn(|i| rows[i] * widths[i]);
    let mut matrices: [Vec<f32>; N] = length.map(|n| Vec::with_capacity(batch * n));
    let parts: [OutPointer; N] = std::array::from_fn(|i| OutPointer { data: matrices[i].as_mut_ptr(), stride: length[i] });
    let task = |scratch: &mut T, sequence: usize| {
        let parts = std::array::from_fn(|i| {
            // SAFETY: the capacity holds `batch` parts, each belongs to one task, and zeros are valid values.
            unsafe {
                let part = parts[i].data.add(sequence * length[i]);
                part.write_bytes(0, length[i]);
                std::slice::from_raw_parts_mut(part, length[i])
            }
        });
        f(sequence, scratch, parts)
    };
    let results = (0..batch).into_par_iter().map_init(T::default, task).collect();
    for (matrix, n) in matrices.iter_mut().zip(length) {
        // SAFETY: every task has initialised its part.
        unsafe { matrix.set_len(batch * n) };
    }
    (matrices, results)
}

simd::kernel! {
    /// `to += from`.
    pub(crate) fn add_into<S>(to: &'a mut [f32], from: &'a [f32]) {
        to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
    }
}

simd::kernel! {
    /// Adds rows one behind the other, as wide as `sum`, to it: their columns side by side, four rows at a time.
    pub(crate) fn add_rows_into<S = simd>(sum: &'a mut [f32], rows: &'a [f32]) {
        let width = sum.len();
        for (column, sum) in sum.chunks_mut(S::F32_LANES).enumerate() {
            let columns = column * S::F32_LANES..column * S::F32_LANES + sum.len();
            let mut sums = [simd.splat_f32s(0.0); 4];
            let mut fours = rows.chunks_exact(4 * width);
            for rows in &mut fours {
                for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(width)) {
                    *sum = simd.add_f32s(*sum, simd.partial_load_f32s(&row[columns.clone()]));
                }
            }
            for row in fours.remainder().chunks_exact(width) {
                sums[0] = simd.add_f32s(sums[0], simd.partial_load_f32s(&row[columns.clone()]));
            }
            let [a, b, c, d] = sums;
            let total = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
            let total = simd.add_f32s(simd.partial_load_f32s(sum), total);
            simd.partial_store_f32s(sum, total);
        }
    }
}

/// Rows that [`add_each`] takes at once: it takes from each of them in turn.
const EACH: usize = 16;

/// `to += table[row]` for every one of `rows`, in their order. The table has rows as wide as `to`.
///
/// # Panics
/// If a row is outside the table.
pub(crate) fn add_rows_of(to: &mut [f32], table: &[f32], rows: impl Iterator<Item = usize>) {
    let width = to.len();
    sum_of_rows(to, None, table, rows.map(|row| row * width), Activation::None);
}

/// `to = act(from + table[start..] + ...)` over the starts of rows, in their order; without `from` the sum begins with what is in `to`.
///
/// # Panics
/// If a row goes beyond the table, or `from` is shorter than `to`.
pub(crate) fn sum_of_rows(
    to: &mut [f32],
    mut from: Option<&[f32]>,
    table: &[f32],
    mut starts: impl Iterator<Item = usize>,
    act: Activation,
) {
    let mut some = [0; EACH];
    loop {
        let mut count = 0;
        for (some, start) in some.iter_mut().zip(&mut starts) {
            (*some, count) = (start, count + 1);
        }
        // Behind a full round there may be another.
        let is_last = count < EACH;
        add_each(to, from.take(), table, &some[..count], if is_last { act } else { Activation::None });
        if is_last {
            return;
        }
    }
}

simd::kernel! {
    /// `to = act(from + table[start..] + ...)` for every start, in their order. Sums stay in registers, four at a time, while the rows go by.
    fn add_each<S = simd>(to: &'a mut [f32], from: Option<&'a [f32]>, table: &'a [f32], starts: &'a [usize], act: Activation) {
        let wide = 4 * S::F32_LANES;
        let whole = to.len() / wide * wide;
        for at in (0..whole).step_by(wide) {
            let to = &mut to[at..at + wide];
            let (first, _) = S::as_simd_f32s(from.map_or(&*to, |from| &from[at..at + wide]));
            let [mut a, mut b, mut c, mut d] = [first[0], first[1], first[2], first[3]];
            for start in starts {
                let (row, _) = S::as_simd_f32s(&table[start + at..][..wide]);
                a = simd.add_f32s(a, row[0]);
                b = simd.add_f32s(b, row[1]);
                c = simd.add_f32s(c, row[2]);
                d = simd.add_f32s(d, row[3]);
            }
            S::as_mut_simd_f32s(to).0.copy_from_slice(&[a, b, c, d]);
            act.apply::<S>(to);
        }
        for (at, to) in (whole..).step_by(S::F32_LANES).zip(to[whole..].chunks_mut(S::F32_LANES)) {
            let mut total = simd.partial_load_f32s(from.map_or(&*to, |from| &from[at..at + to.len()]));
            for start in starts {
                total = simd.add_f32s(total, simd.partial_load_f32s(&table[start + at..][..to.len()]));
            }
            simd.partial_store_f32s(to, total);
            act.apply::<S>(to);
        }
    }
}

/// Adds up partial sums in their order, so that the result does not depend on the number of threads.
fn sum_in_order(partial: Vec<Vec<f32>>) -> Vec<f32> {
    let sum = partial.into_iter().reduce(|mut a, b| {
        add_into(&mut a, &b);
        a
    });
    sum.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn rows_of_a_table_are_added_in_their_order() {
        let random = Random::new(5);
        for width in [1, 3, 16, 17, 64, 100, 130] {
            let table: Vec<f32> = (0..50 * width as u64).map(|i| random.normal(i)).collect();
            for count in [0, 1, EACH - 1, EACH, EACH + 1, 3 * EACH] {
                let rows: Vec<usize> = (0..count).map(|i| i * 7 % 50).collect();
                let (mut one_by_one, mut together) = (vec![0.5; width], vec![0.5; width]);
                rows.iter().for_each(|row| add_into(&mut one_by_one, &table[row * width..][..width]));
                add_rows_of(&mut together, &table, rows.iter().copied());
                assert_eq!(together, one_by_one, "{count} rows of {width}");
                let mut elsewhere = vec![f32::NAN; width];
                sum_of_rows(&mut elsewhere, Some(&vec![0.5; width]), &table, rows.into_iter().map(|row| row * width), Activation::Relu);
                activate(Activation::Relu, &mut one_by_one);
                assert_eq!(elsewhere, one_by_one, "{count} rows of {width} from elsewhere");
            }
        }
    }
}
