//! NumPy arrays that lie in a session's or runner's own memory.

use candle_models::Result;
use candle_models::candle_core::DType;
use candle_models::signature::TensorSpec;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMappingProxy};
use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// Bytes of a float or an index.
const WIDTH: usize = 4;

/// Exports the memory of one input or output by the buffer protocol, and keeps its owner alive as long as anybody looks at it.
#[pyclass(frozen, module = "candle_models._native")]
pub struct Memory {
    /// Never read: it is there to be kept.
    _owner: Arc<dyn Any + Send + Sync>,
    address: Address,
    shape: Vec<isize>,
    strides: Vec<isize>,
    format: &'static CStr,
    access: Access,
}

struct Address(*mut c_void);

// SAFETY: an address alone; who follows it holds the buffer, and with it the owner.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// What Python may do with memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Inputs.
    Write,
    /// Outputs.
    Read,
}

/// Where the tensors of a kind lie: of a number of rows, each with some frames.
pub struct Rows<'a> {
    /// Who keeps the memory.
    pub owner: Arc<dyn Any + Send + Sync>,
    /// The axes before those of the tensor; the first counts the rows, where there are several.
    pub leading: &'a [usize],
    pub access: Access,
}

impl Rows<'_> {
    /// NumPy arrays by name; `bytes` says where a row of a tensor lies, rows at equal distances.
    pub fn arrays(
        &self,
        py: Python<'_>,
        specs: &[TensorSpec],
        mut bytes: impl FnMut(&TensorSpec, usize) -> Result<*mut [u8]>,
    ) -> PyResult<Py<PyMappingProxy>> {
        let arrays = PyDict::new(py);
        for spec in specs {
            let first = bytes(spec, 0).map_err(crate::errors::raised)?;
            let distance = match self.leading.first() {
                Some(rows) if *rows > 1 => bytes(spec, 1).map_err(crate::errors::raised)?.addr() - first.addr(),
                _ => first.len(),
            };
            arrays.set_item(&spec.name, numpy(py)?.call_method1("asarray", (self.memory(spec, first.cast(), distance),))?)?;
        }
        Ok(PyMappingProxy::new(py, arrays.as_mapping()).unbind())
    }

    fn memory(&self, spec: &TensorSpec, first: *mut c_void, distance: usize) -> Memory {
        let shape: Vec<usize> = self.leading.iter().chain(&spec.shape).copied().collect();
        let inner = |axis: usize| WIDTH * shape[axis + 1..].iter().product::<usize>();
        let stride = |axis: usize| if axis == 0 && !self.leading.is_empty() { distance } else { inner(axis) };
        Memory {
            _owner: self.owner.clone(),
            address: Address(first),
            strides: (0..shape.len()).map(|axis| stride(axis) as isize).collect(),
            shape: shape.iter().map(|&axis| axis as isize).collect(),
            format: if spec.dtype() == DType::U32 { c"I" } else { c"f" },
            access: self.access,
        }
    }
}

/// The module.
pub fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("numpy")
}

#[pymethods]
impl Memory {
    // SAFETY: Python calls it with a buffer to be filled in. What it points to lies in this object, which the buffer keeps, and in the
    // owner, which this object keeps.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        let asks = |flag: c_int| flags & flag == flag;
        if asks(ffi::PyBUF_WRITABLE) && memory.access == Access::Read {
            return Err(PyBufferError::new_err("outputs are read only"));
        }
        if !asks(ffi::PyBUF_STRIDES) || !asks(ffi::PyBUF_FORMAT) {
            return Err(PyBufferError::new_err("the rows lie apart from each other: ask for strides and format"));
        }
        let values: isize = memory.shape.iter().product();
        // SAFETY: Python hands in a buffer to be filled in. The slices live as long as the object that it keeps.
        unsafe {
            *view = ffi::Py_buffer {
                buf: memory.address.0,
                len: values * WIDTH as isize,
                itemsize: WIDTH as isize,
                readonly: (memory.access == Access::Read).into(),
                ndim: memory.shape.len() as c_int,
                format: memory.format.as_ptr().cast_mut(),
                shape: memory.shape.as_ptr().cast_mut(),
                strides: memory.strides.as_ptr().cast_mut(),
                suboffsets: std::ptr::null_mut(),
                internal: std::ptr::null_mut(),
                obj: slf.into_any().into_ptr(),
            };
        }
        Ok(())
    }
}
