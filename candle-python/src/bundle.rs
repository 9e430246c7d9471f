//! A bundle whose network has been loaded.

use crate::convert::{self, duration};
use crate::engine::Engine;
use crate::errors::{raised, wrong_input};
use crate::runner::Runner;
use candle_models::engine::{Model, Options, Placement};
use candle_models::families;
use candle_models::signature::Signature;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;
use std::sync::Arc;

/// A network as its engines, sessions and runners know it.
pub struct Network {
    pub model: Arc<dyn Model>,
    pub signature: Py<PyAny>,
}

impl Network {
    /// The signature in Rust.
    pub fn specs(&self) -> &Signature {
        self.model.signature()
    }
}

/// A model directory with one of its networks in memory: what engines and runners are made of. `network` is one of `networks`, by default
/// the one that is stepped frame by frame. Raises `FileError`, `BundleError` or `InputError`: the directory is missing or damaged, or holds
/// no such network.
#[pyclass(frozen, module = "candle_models")]
pub struct Bundle {
    network: Arc<Network>,
    /// The kind of model.
    #[pyo3(get)]
    family: String,
    /// The model's configuration, as it stands in `config.json`.
    #[pyo3(get)]
    config: Py<PyAny>,
    /// The networks of the bundle, the one that is stepped frame by frame first.
    #[pyo3(get)]
    networks: Py<PyTuple>,
}

#[pymethods]
impl Bundle {
    #[new]
    #[pyo3(signature = (path, network=None))]
    fn new(py: Python<'_>, path: PathBuf, network: Option<&str>) -> PyResult<Self> {
        let read = || {
            let bundle = candle_models::bundle::Bundle::open(path)?;
            Ok((families::shipped().networks(&bundle)?, bundle))
        };
        let (networks, bundle) = py.detach(read).map_err(|error: candle_models::Error| raised(error))?;
        let names: Vec<&str> = networks.iter().map(|(name, _)| *name).collect();
        let place = network.map_or(Some(0), |wanted| names.iter().position(|name| *name == wanted));
        let found = place.and_then(|place| networks.get(place));
        let (_, model) = found.ok_or_else(|| {
            let wanted = network.unwrap_or("a network");
            wrong_input(format!("network: expected one of [{}], found {wanted}", names.join(", ")))
        })?;
        let manifest = bundle.manifest();
        Ok(Self {
            network: Arc::new(Network { model: model.clone(), signature: convert::signature(py, model.signature())? }),
            family: manifest.family.clone(),
            config: py.import("json")?.call_method1("loads", (manifest.model.to_string(),))?.unbind(),
            networks: PyTuple::new(py, names)?.unbind(),
        })
    }

    /// What the network eats, gives and carries.
    #[getter]
    fn signature(&self, py: Python<'_>) -> Py<PyAny> {
        self.network.signature.clone_ref(py)
    }

    /// Starts an engine for many agents; `Options` says what the arguments mean. Raises `InputError` if one is out of range.
    #[pyo3(signature = (*, threads=1, sessions=256, queue=256, max_batch=32, max_wait=None))]
    fn engine(
        &self,
        py: Python<'_>,
        threads: usize,
        sessions: usize,
        queue: usize,
        max_batch: usize,
        max_wait: Option<f64>,
    ) -> PyResult<Engine> {
        let max_wait = max_wait.map(|seconds| duration("max_wait", seconds)).transpose()?;
        let options = Options { place: Placement::cpu(threads), sessions, queue, max_batch, max_wait };
        Engine::start(py, &self.network, &options)
    }

    /// Makes a runner of `batch` rows in step with each other, of one frame or of `steps` frames a pass.
    #[pyo3(signature = (batch, steps=None, *, threads=1))]
    fn runner(&self, py: Python<'_>, batch: usize, steps: Option<usize>, threads: usize) -> PyResult<Runner> {
        Runner::new(py, &self.network, (batch, steps), threads)
    }
}
