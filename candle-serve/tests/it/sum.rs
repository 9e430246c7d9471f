//! A model that adds up what it is given, and waits or fails where a value says so.

use candle_models::bundle::{self, Bundle, Manifest};
use candle_models::engine::Model;
use candle_models::nn::Params;
use candle_models::prelude::*;
use candle_models::registry::{Networks, Registry};
use candle_models::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex};

/// Values from here on wait until the model's gate is open.
pub const WAITS: f32 = 1000.0;
/// A step with this value fails.
pub const FAILS: f32 = -1.0;

/// The gate of a model whose every step panics.
pub const PANICS: &str = "panics";
/// The gate of a bundle that has a second network of the same kind, `other`.
pub const TWO: &str = "two";

/// Holds steps back.
#[derive(Default)]
pub struct Gate {
    /// Whether it is open, and how many steps have come to it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Waits until so many steps have come.
    pub fn reached(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) = self.changed.wait_timeout_while(state, crate::client::PATIENCE, |(_, reached)| *reached < count).unwrap();
        assert!(!timeout.timed_out(), "no step has come");
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let _open = self.changed.wait_while(state, |(open, _)| !*open).unwrap();
    }
}

/// Gates by the names in bundles' configurations.
static GATES: LazyLock<Mutex<HashMap<String, Arc<Gate>>>> = LazyLock::new(Mutex::default);

fn find(name: &str) -> Arc<Gate> {
    GATES.lock().unwrap().entry(name.to_owned()).or_default().clone()
}

/// The gate of that name, which is open at the latest when this is dropped: an engine waits for its thread. So a test asks for it after
/// it has made its server.
pub fn gate(name: &str) -> Opens {
    Opens(find(name))
}

pub struct Opens(Arc<Gate>);

impl std::ops::Deref for Opens {
    type Target = Gate;
    fn deref(&self) -> &Gate {
        &self.0
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.open();
    }
}

struct Sum {
    signature: Signature,
    /// Whether every step panics.
    panics: bool,
    gate: Arc<Gate>,
}

impl Recurrent for Sum {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        let x = inputs.get("x")?;
        let values = x.flatten_all()?.to_vec1::<f32>()?;
        if values.iter().any(|x| *x >= WAITS) {
            self.gate.pass();
        }
        assert!(!self.panics, "asked to panic");
        if values.contains(&FAILS) {
            return Err(Error::Input("asked to fail".to_owned()));
        }
        let sum = state.reset_rows(resets)?.map(|_, sum| Ok((sum + x.squeeze(1)?)?))?;
        let y = sum.get("sum")?.unsqueeze(1)?;
        Ok((NamedTensors::from_iter([("y".to_owned(), y)]), sum))
    }
}

impl Model for Sum {
    fn family(&self) -> &'static str {
        "sum"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// The family of such models.
struct SumFamily;

impl candle_models::registry::Family for SumFamily {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn describe(&self, _: &Bundle) -> Result<String> {
        Ok("adds".to_owned())
    }

    fn networks(&self, bundle: &Bundle, _: &Params) -> Result<Networks> {
        let name: String = bundle.config()?;
        let spec = |name| vec![TensorSpec::f32(name, &[1])];
        let signature = Signature { inputs: vec![TensorSpec::f32("x", &[1]).or_f32(&[0.5])], outputs: spec("y"), state: spec("sum") };
        let sum = || Arc::new(Sum { signature: signature.clone(), panics: name == PANICS, gate: find(&name) });
        let mut networks: Networks = vec![("sum", sum())];
        if name == TWO {
            networks.push(("other", sum()));
        }
        Ok(networks)
    }

    fn examples(&self) -> Result<Vec<Manifest>> {
        Ok(vec![Manifest::new("sum", &"example")?])
    }
}

/// Options for this model: on the engine's thread alone. A short step runs where its request is served, and one that a gate holds up would hold up
/// a thread of the server's runtime.
pub fn options(folder: impl Into<std::path::PathBuf>) -> candle_serve::Options {
    let mut options = crate::client::options(folder);
    options.engine.max_wait = Some(std::time::Duration::from_micros(1));
    options
}

/// The shipped families and this one.
pub fn families() -> Registry<dyn candle_models::registry::Family> {
    candle_models::families::shipped().with(&SumFamily)
}

/// Writes a bundle of a model with the gate of that name.
pub fn save(folder: &Path, model: &str, gate: &str) {
    let manifest = Manifest::new("sum", &gate).unwrap();
    bundle::save(folder.join(model), &manifest, &BTreeMap::new(), serde_json::Value::Null, &[]).unwrap();
}
