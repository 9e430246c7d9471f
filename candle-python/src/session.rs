//! One agent.

use crate::asyncio::{Step, Wakeups};
use crate::bundle::Network;
use crate::convert::{self, deadline};
use crate::errors::exception;
use crate::lend::{Home, lock};
use crate::memory::{Access, Rows};
use candle_models::Error;
use candle_models::engine;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMappingProxy, PyTuple};
use std::sync::{Arc, Mutex};

/// One agent: its inputs, outputs and the model's state, which stay from step to step. It works for one call at a time; another raises
/// `BusyError`.
#[pyclass(frozen, module = "candle_models")]
pub struct Session {
    /// `None` once it is closed.
    parts: Mutex<Option<Parts>>,
    network: Arc<Network>,
}

struct Parts {
    home: Arc<Home<engine::Session>>,
    inputs: Py<PyMappingProxy>,
    outputs: Py<PyMappingProxy>,
}

impl Session {
    /// A session with arrays over its memory.
    pub fn new(py: Python<'_>, session: engine::Session, network: &Arc<Network>) -> PyResult<Self> {
        let home = Home::new("session", session);
        let mut loan = home.lend()?;
        let session = loan.get();
        let rows = |access| Rows { owner: home.clone(), leading: &[], access };
        let inputs = rows(Access::Write).arrays(py, &network.specs().inputs, |spec, _| session.input_bytes(spec))?;
        let outputs = rows(Access::Read).arrays(py, &network.specs().outputs, |spec, _| Ok(session.output_bytes(spec)?.cast_mut()))?;
        drop(loan);
        Ok(Self { parts: Mutex::new(Some(Parts { home, inputs, outputs })), network: network.clone() })
    }

    fn part<T>(&self, part: impl FnOnce(&Parts) -> T) -> PyResult<T> {
        lock(&self.parts).as_ref().map(part).ok_or_else(|| exception("ClosedError", "the session is closed".to_owned()))
    }

    fn home(&self) -> PyResult<Arc<Home<engine::Session>>> {
        self.part(|parts| parts.home.clone())
    }
}

#[pymethods]
impl Session {
    /// What the network eats, gives and carries.
    #[getter]
    fn signature(&self, py: Python<'_>) -> Py<PyAny> {
        self.network.signature.clone_ref(py)
    }

    /// Arrays by name in the session's own memory, to be written between steps. They keep their values.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        self.part(|parts| parts.inputs.clone_ref(py))
    }

    /// Arrays by name in the session's own memory, read only; the next step writes them anew.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        self.part(|parts| parts.outputs.clone_ref(py))
    }

    /// Makes one frame: the inputs to the outputs, the state to the one behind the frame. One that would begin
    /// more than `deadline` seconds from now raises `DeadlineExceeded`.
    #[pyo3(signature = (*, deadline=None))]
    fn step(&self, py: Python<'_>, deadline: Option<f64>) -> PyResult<()> {
        let deadline = self::deadline(deadline)?;
        self.home()?.call(py, |session| match deadline {
            Some(deadline) => session.step_before(deadline),
            None => session.step(),
        })
    }

    /// Makes one frame, to be awaited in an asyncio loop. A step that is cancelled before it runs is not made: `frames` tells.
    #[pyo3(signature = (*, deadline=None))]
    fn step_async<'py>(slf: Bound<'py, Self>, deadline: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("candle_models._asyncio")?.call_method1("step", (slf, deadline))
    }

    /// Begins a frame for an asyncio loop that listens to `wakeups` for `token`.
    fn _begin(&self, wakeups: &Wakeups, token: u64, deadline: Option<f64>) -> PyResult<Step> {
        Ok(Step::new(wakeups, token, self.home()?.lend()?, self::deadline(deadline)?))
    }

    /// Puts the state back to the initial one. Inputs stay.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.home()?.call(py, |session| {
            session.reset();
            Ok::<_, Error>(())
        })
    }

    /// How many frames the state has behind it, since the session was opened, reset or restored.
    #[getter]
    fn frames(&self, py: Python<'_>) -> PyResult<u64> {
        self.home()?.call(py, engine::Session::frames)
    }

    /// Copies the state out, arrays `[1, ...]` by name.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        convert::arrays(py, &self.home()?.call(py, engine::Session::save)?)
    }

    /// Goes on from a state that `save` gave. Raises `InputError`, and keeps its own state, if that is not the model's.
    fn restore(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let tensors = convert::tensors(state)?;
        self.home()?.call(state.py(), |session| session.restore(&tensors))
    }

    /// Opens a session with the same inputs, outputs and state, which goes its own way. Raises `CapacityError`.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        Self::new(py, self.home()?.call(py, engine::Session::fork)?, &self.network)
    }

    /// Makes room for another session as soon as nobody holds an array of this one.
    fn close(&self) {
        let parts = lock(&self.parts).take();
        drop(parts);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}
