//! Many rows in step with each other.

use crate::bundle::Network;
use crate::convert;
use crate::errors::raised;
use crate::lend::Home;
use crate::memory::{Access, Rows};
use candle_models::engine;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMappingProxy};
use std::sync::Arc;

/// Many rows in step with each other, on the caller's thread. It works for one call at a time; another raises `BusyError`.
#[pyclass(frozen, module = "candle_models")]
pub struct Runner {
    home: Arc<Home<engine::Runner>>,
    network: Arc<Network>,
    /// Arrays `[batch, ...]`, of a runner of several steps `[batch, steps, ...]`, in the runner's own memory.
    #[pyo3(get)]
    inputs: Py<PyMappingProxy>,
    /// Likewise, read only; the next pass writes them anew.
    #[pyo3(get)]
    outputs: Py<PyMappingProxy>,
    /// Resets of a pass.
    resets: usize,
}

impl Runner {
    /// A runner with arrays over its memory.
    pub fn new(py: Python<'_>, network: &Arc<Network>, (batch, steps): (usize, Option<usize>), threads: usize) -> PyResult<Self> {
        let frames = steps.unwrap_or(1);
        let new = || engine::Runner::windowed(network.model.clone(), batch, frames, threads);
        let home = Home::new("runner", py.detach(new).map_err(raised)?);
        let mut loan = home.lend()?;
        let runner = loan.get();
        let leading: Vec<usize> = std::iter::once(batch).chain(steps).collect();
        let rows = |access| Rows { owner: home.clone(), leading: &leading, access };
        let (inputs, outputs) = (&network.specs().inputs, &network.specs().outputs);
        let inputs = rows(Access::Write).arrays(py, inputs, |spec, row| runner.input_bytes(spec, row))?;
        let outputs = rows(Access::Read).arrays(py, outputs, |spec, row| Ok(runner.output_bytes(spec, row)?.cast_mut()))?;
        drop(loan);
        Ok(Self { home, network: network.clone(), inputs, outputs, resets: batch * frames })
    }
}

#[pymethods]
impl Runner {
    /// What the network eats, gives and carries.
    #[getter]
    fn signature(&self, py: Python<'_>) -> Py<PyAny> {
        self.network.signature.clone_ref(py)
    }

    /// Makes one pass; `reset`, one for each row and frame, puts rows back to their initial state before their frame.
    #[pyo3(signature = (reset=None))]
    fn step(&self, py: Python<'_>, reset: Option<Vec<bool>>) -> PyResult<()> {
        let resets = reset.unwrap_or_else(|| vec![false; self.resets]);
        self.home.call(py, |runner| runner.step(&resets))
    }

    /// Copies the states of all rows out, arrays `[batch, ...]` by name.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        convert::arrays(py, &self.home.call(py, engine::Runner::save)?)
    }

    /// Goes on from states that `save` gave. Raises `InputError`, and keeps its own states, if they are not the model's.
    fn restore(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let tensors = convert::tensors(state)?;
        self.home.call(state.py(), |runner| runner.restore(&tensors))
    }
}
