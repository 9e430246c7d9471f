//! Signatures, states and times between Rust and Python.

use crate::errors::{raised, wrong_input};
use crate::memory::numpy;
use candle_models::Error;
use candle_models::candle_core::{DType, Device, Tensor};
use candle_models::signature::{ANY, Signature, TensorSpec, Values};
use candle_models::tensors::NamedTensors;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};
use std::time::{Duration, Instant};

/// Seconds as a time.
pub fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong_input(format!("{name}: expected seconds from 0 on, found {seconds}")))
}

/// The moment that many seconds from now; none where it is too far to be told. What is left of a budget may be less than nothing.
pub fn deadline(seconds: Option<f64>) -> PyResult<Option<Instant>> {
    let time = seconds
        .filter(|seconds| *seconds != f64::INFINITY)
        .map(|seconds| duration("deadline", if seconds < 0.0 { 0.0 } else { seconds }))
        .transpose()?;
    Ok(time.and_then(|time| Instant::now().checked_add(time)))
}

/// An instance of a record of `candle_models._records`.
pub fn record<'py>(py: Python<'py>, class: &str, fields: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    py.import("candle_models._records")?.getattr(class)?.call((), Some(fields))
}

/// A signature as its record.
pub fn signature(py: Python<'_>, signature: &Signature) -> PyResult<Py<PyAny>> {
    let fields = PyDict::new(py);
    for (name, specs) in [("inputs", &signature.inputs), ("outputs", &signature.outputs), ("states", &signature.state)] {
        let specs = specs.iter().map(|spec| tensor_spec(py, spec)).collect::<PyResult<Vec<_>>>()?;
        fields.set_item(name, PyTuple::new(py, specs)?)?;
    }
    Ok(record(py, "Signature", &fields)?.unbind())
}

fn tensor_spec<'py>(py: Python<'py>, spec: &TensorSpec) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("name", &spec.name)?;
    fields.set_item("dtype", numpy(py)?.call_method1("dtype", (dtype(spec.dtype()),))?)?;
    fields.set_item("shape", PyTuple::new(py, &spec.shape)?)?;
    fields.set_item("meaning", spec.meaning)?;
    fields.set_item("can_sample", spec.can_sample())?;
    let default = spec.default_row().map_err(raised)?;
    fields.set_item("default", default.map(|row| array(py, &row)).transpose()?)?;
    let (within, below) = match spec.values() {
        Values::Floats { within, .. } => ((*within != ANY).then_some((within.start, within.end)), None),
        Values::Indices { below, .. } => (None, (!below.is_empty()).then(|| PyTuple::new(py, below)).transpose()?),
    };
    fields.set_item("within", within)?;
    fields.set_item("below", below)?;
    record(py, "TensorSpec", &fields)
}

fn dtype(dtype: DType) -> &'static str {
    if dtype == DType::U32 { "<u4" } else { "<f4" }
}

/// A NumPy array with a tensor's values.
fn array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let flat = tensor.flatten_all().map_err(Error::from).map_err(raised)?;
    let bytes = match tensor.dtype() {
        DType::U32 => flat.to_vec1::<u32>().map(|values| PyByteArray::new(py, bytemuck::cast_slice(&values))),
        _ => flat.to_vec1::<f32>().map(|values| PyByteArray::new(py, bytemuck::cast_slice(&values))),
    };
    let bytes = bytes.map_err(Error::from).map_err(raised)?;
    let flat = numpy(py)?.call_method1("frombuffer", (bytes, dtype(tensor.dtype())))?;
    flat.call_method1("reshape", (PyTuple::new(py, tensor.dims())?,))
}

/// Named tensors as a dictionary of NumPy arrays.
pub fn arrays<'py>(py: Python<'py>, tensors: &NamedTensors) -> PyResult<Bound<'py, PyDict>> {
    let arrays = PyDict::new(py);
    tensors.iter().try_for_each(|(name, tensor)| arrays.set_item(name, array(py, tensor)?))?;
    Ok(arrays)
}

/// A dictionary of arrays as named tensors.
///
/// # Errors
/// If one is neither of 32-bit floats nor of 32-bit indices.
pub fn tensors(arrays: &Bound<'_, PyDict>) -> PyResult<NamedTensors> {
    let mut tensors = NamedTensors::new();
    for (name, value) in arrays {
        let name: String = name.extract()?;
        let array = numpy(arrays.py())?.call_method1("asarray", (value,))?;
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let (kind, found) = (array.getattr("dtype")?.getattr("str")?, array.getattr("dtype")?);
        let bytes = array.call_method0("tobytes")?.cast_into::<PyBytes>()?;
        let dtype = match kind.extract::<&str>()? {
            "<f4" => DType::F32,
            "<u4" => DType::U32,
            _ => return Err(raised(Error::tensor(name, "an array of float32 or uint32", found))),
        };
        let tensor = Tensor::from_raw_buffer(bytes.as_bytes(), dtype, &shape, &Device::Cpu);
        tensors.insert(name, tensor.map_err(Error::from).map_err(raised)?);
    }
    Ok(tensors)
}
