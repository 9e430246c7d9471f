//! The engine and what it has done.

use crate::bundle::Network;
use crate::convert::record;
use crate::errors::raised;
use crate::session::Session;
use candle_models::engine::{self, Histogram, Options};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};
use std::sync::Arc;

/// One model for many agents. It can be shared among threads.
#[pyclass(frozen, module = "candle_models")]
pub struct Engine {
    engine: engine::Engine,
    network: Arc<Network>,
}

impl Engine {
    /// An engine of that network.
    pub fn start(py: Python<'_>, network: &Arc<Network>, options: &Options) -> PyResult<Self> {
        let engine = py.detach(|| engine::Engine::start(network.model.clone(), options)).map_err(raised)?;
        Ok(Self { engine, network: network.clone() })
    }
}

#[pymethods]
impl Engine {
    /// What the network eats, gives and carries.
    #[getter]
    fn signature(&self, py: Python<'_>) -> Py<PyAny> {
        self.network.signature.clone_ref(py)
    }

    /// Opens a session in the initial state, its inputs at their defaults. Raises `CapacityError` or `ClosedError`.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        Session::new(py, self.engine.open().map_err(raised)?, &self.network)
    }

    /// What the engine has done since its start.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.engine.stats();
        let counts = [
            ("open", stats.open as u64),
            ("steps", stats.steps),
            ("lone_steps", stats.lone_steps),
            ("batches", stats.batches),
            ("overloaded", stats.overloaded),
            ("expired", stats.expired),
            ("late", stats.late),
            ("cancelled", stats.cancelled),
            ("failed", stats.failed),
        ];
        let fields = counts.into_py_dict(py)?;
        fields.set_item("batch_sizes", PyTuple::new(py, &stats.batch_sizes)?)?;
        for (name, histogram) in [("queue", &stats.queue), ("execute", &stats.execute), ("reply", &stats.reply), ("lone", &stats.lone)] {
            fields.set_item(name, times(py, histogram)?)?;
        }
        record(py, "Stats", &fields)
    }

    /// Closes the engine, whoever still has sessions: their steps raise `ClosedError`. What is being run is finished.
    fn close(&self) {
        self.engine.close();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}

/// A histogram as its record, in seconds.
fn times<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyAny>> {
    let seconds = |share: f64| histogram.percentile(share).as_secs_f64();
    let fields = [("mean", histogram.mean().as_secs_f64()), ("p50", seconds(0.5)), ("p99", seconds(0.99)), ("max", seconds(1.0))];
    let fields = fields.into_py_dict(py)?;
    fields.set_item("count", histogram.count())?;
    record(py, "Times", &fields)
}
