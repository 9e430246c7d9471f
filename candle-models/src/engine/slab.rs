//! The memory of all sessions: one row each, allocated at once.

use super::check::{blank_floats, blank_indices};
use super::layout::Layout;
use crate::exec::program::Sequence;
use crate::signature::TensorSpec;
use crate::{Error, Result};
use candle_core::DType;
use std::alloc::{self, alloc_zeroed};
use std::ops::Range;
use std::ptr::{NonNull, slice_from_raw_parts_mut};

/// Values of a cache line: every part of a row begins on one, so that two sessions never share one.
const LINE: usize = 16;
const ALIGNMENT: usize = LINE * size_of::<f32>();

/// Rows of [inputs of floats | inputs of indices | state | outputs of floats | outputs of indices | reset]. A row is zero until it is
/// [cleared](Slab::clear) for its user.
///
/// Floats and indices have the same size and any bits are valid for both, so one block serves.
#[derive(Debug)]
pub(super) struct Slab {
    memory: NonNull<f32>,
    allocation: alloc::Layout,
    /// Where the parts of a row begin, and how many values each has.
    parts: [(usize, usize); 6],
    stride: usize,
    rows: usize,
    /// The inputs of a row before they are set.
    floats: Vec<f32>,
    indices: Vec<u32>,
}

// SAFETY: the slab hands out raw pointers only; who follows them has to own the row.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// A session's memory. No reference: who makes one has to own the row for as long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Its number.
    pub number: u32,
    pub floats: *mut [f32],
    pub indices: *mut [u32],
    pub state: *mut [f32],
    pub out_floats: *mut [f32],
    pub out_indices: *mut [u32],
    /// Whether the next frame begins in the initial state.
    reset: *mut [bool],
}

impl Row {
    /// The row as a sequence of one frame.
    pub fn sequence(self) -> Sequence {
        let Self { number: slot, floats, indices, state, out_floats, out_indices, reset } = self;
        Sequence { slot, floats, indices, resets: reset, state, out_floats, out_indices }
    }

    /// Says whether the next frame begins in the initial state.
    ///
    /// # Safety
    /// The caller owns the row.
    pub unsafe fn set_reset(self, reset: bool) {
        // SAFETY: the caller's promise; the slice has one value.
        unsafe { (&mut *self.reset)[0] = reset };
    }

    /// Whether the next frame begins in the initial state.
    ///
    /// # Safety
    /// The caller owns the row.
    pub unsafe fn is_reset(self) -> bool {
        // SAFETY: as above.
        unsafe { (&*self.reset)[0] }
    }

    /// The bytes of an input of the signature that the slab was made for.
    pub fn input(self, layout: &Layout, spec: &TensorSpec) -> Result<*mut [u8]> {
        let range = layout.input(&spec.name, spec.dtype())?;
        Ok(bytes(if spec.dtype() == DType::U32 { self.indices.cast() } else { self.floats.cast() }, range))
    }

    /// The bytes of an output, likewise.
    pub fn output(self, layout: &Layout, spec: &TensorSpec) -> Result<*mut [u8]> {
        let range = layout.output(&spec.name, spec.dtype())?;
        Ok(bytes(if spec.dtype() == DType::U32 { self.out_indices.cast() } else { self.out_floats.cast() }, range))
    }
}

/// The bytes of some values behind `start`.
fn bytes(start: *mut f32, range: Range<usize>) -> *mut [u8] {
    slice_from_raw_parts_mut(start.wrapping_add(range.start).cast(), range.len() * size_of::<f32>())
}

impl Slab {
    /// `rows` rows of that layout. Memory that nobody touches is not taken from the system.
    pub fn new(layout: &Layout, rows: usize) -> Result<Self> {
        let mut stride = 0;
        let parts = [layout.floats, layout.indices, layout.state, layout.out_floats, layout.out_indices, 1].map(|len| {
            let at = stride;
            stride += len.next_multiple_of(LINE);
            (at, len)
        });
        let stride = stride.max(LINE);
        let too_large = || Error::config("sessions", format!("{rows} rows of {} bytes are not to be had", stride * size_of::<f32>()));
        let bytes = stride.checked_mul(rows).and_then(|n| n.checked_mul(size_of::<f32>())).ok_or_else(too_large)?;
        let allocation = alloc::Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| too_large())?;
        // SAFETY: the size is not zero: a stride is at least a line, and an engine has at least one session.
        let memory = unsafe { alloc_zeroed(allocation) };
        let memory = NonNull::new(memory.cast::<f32>()).ok_or_else(too_large)?;
        let inputs = |dtype| layout.inputs.iter().map(|field| &field.spec).filter(move |spec| spec.dtype() == dtype);
        let floats = inputs(DType::F32).flat_map(|spec| blank_floats(spec).repeat(layout.frames)).collect();
        let indices = inputs(DType::U32).flat_map(|spec| blank_indices(spec).repeat(layout.frames)).collect();
        Ok(Self { memory, allocation, parts, stride, rows, floats, indices })
    }

    fn part(&self, row: u32, part: usize) -> (*mut f32, usize) {
        let (row, (at, len)) = (row as usize, self.parts[part]);
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: row and part lie inside the allocation.
        (unsafe { self.memory.as_ptr().add(row * self.stride + at) }, len)
    }

    /// The memory of a row.
    pub fn row(&self, row: u32) -> Row {
        let part = |i| self.part(row, i);
        let floats = |(at, len)| slice_from_raw_parts_mut(at, len);
        let indices = |(at, len): (*mut f32, usize)| slice_from_raw_parts_mut(at.cast::<u32>(), len);
        Row {
            number: row,
            floats: floats(part(0)),
            indices: indices(part(1)),
            state: floats(part(2)),
            out_floats: floats(part(3)),
            out_indices: indices(part(4)),
            // A whole word is taken for it; zeros are `false`.
            reset: slice_from_raw_parts_mut(part(5).0.cast::<bool>(), 1),
        }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.allocation.size()
    }

    /// Fills a row with zeros, and its inputs with what they hold until they are set.
    ///
    /// # Safety
    /// The caller owns the row.
    pub unsafe fn clear(&self, row: u32) {
        let (at, _) = self.part(row, 0);
        // SAFETY: a row has `stride` values, and the caller owns it.
        unsafe { at.write_bytes(0, self.stride) };
        let row = self.row(row);
        // SAFETY: as above; every bit pattern is a float and an index.
        unsafe {
            (&mut *row.floats).copy_from_slice(&self.floats);
            (&mut *row.indices).copy_from_slice(&self.indices);
        }
    }

    /// Copies a whole row.
    ///
    /// # Safety
    /// The caller owns both rows.
    pub unsafe fn copy(&self, from: u32, to: u32) {
        let (from, to) = (self.part(from, 0).0, self.part(to, 0).0);
        // SAFETY: rows have `stride` values and do not overlap; the caller owns both.
        unsafe { from.copy_to(to, self.stride) };
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { alloc::dealloc(self.memory.as_ptr().cast(), self.allocation) };
    }
}
