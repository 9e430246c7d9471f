//! The engine: one model for many agents.
//!
//! An [`Engine`] prepares a model, allocates everything that its sessions will need and hands out [`Session`]s. A session
//! is one agent: it fills its inputs in place, steps once a frame, reads its outputs and keeps the model's state in between.
//!
//! ```
//! use candle_models::bundle::Bundle;
//! use candle_models::engine::{Engine, Options};
//! use candle_models::families;
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> candle_models::Result<()> {
//! let model = families::shipped().load(&Bundle::open("../weights/policy-mamba")?)?;
//! let engine = Engine::start(model, &Options { sessions: 2, ..Options::default() })?;
//! let (mut a, mut b) = (engine.open()?, engine.open()?);
//! for agent in [&mut a, &mut b] {
//!     agent.floats_mut("features")?.fill(0.1);
//!     agent.indices_mut("ids")?.fill(14);
//! }
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| a.step());
//!     b.step_before(Instant::now() + Duration::from_millis(500))?;
//!     other.join().expect("no panic")
//! })?;
//! let mut what_if = { drop(b); a.fork()? };
//! what_if.step()?;
//! assert_eq!((a.frames()?, what_if.frames()?), (1, 2));
//! # Ok(())
//! # }
//! ```
//!
//! # How a step runs
//! A session that is the only one open runs its blocking steps on its own thread. Otherwise requests wait in a queue, in
//! order of arrival, and the engine's thread runs up to [`Options::max_batch`] of them together: those that wait when it
//! becomes free, and unless [`Options::max_wait`] says otherwise it never waits for more. A session has at most one request,
//! so none can starve another.
//!
//! # Who owns what
//! A session's inputs, state and outputs lie in one row of memory that belongs to the engine; on a GPU the state lies with the device,
//! and the row's is a copy that save, restore and fork bring up to date. The row belongs to the session
//! except between a request's place in a batch and its answer. Every method of a session that touches the row first takes
//! back a request that still waits in the queue, or waits for one that is being computed. Such requests are left over from
//! a dropped future only.
//!
//! [`Runner`] is the other way to run a model: many rows in step with each other, on the caller's thread.

mod check;
mod error;
mod execute;
mod layout;
mod options;
mod queue;
mod runner;
mod server;
mod session;
mod slab;
mod slot;
mod stats;
mod step;
mod sync;
#[cfg(test)]
pub(crate) mod tests;
mod turn;
mod unrolled;
mod warm;

pub use error::EngineError;
pub use options::{Options, Placement};
pub use runner::Runner;
pub use server::Engine;
pub use session::{Session, Timing};
pub use stats::{Histogram, Stats};
pub use step::{Step, Steps};

use crate::Result;
use crate::exec::Target;
use crate::exec::program::{Output, Program, Recorder};
use crate::exec::work::{self, Work};
use crate::recurrent::Recurrent;
use candle_core::DType;

/// A model that the engine, the exporter, the batch command and the benchmark can run without knowing its family.
///
/// ```
/// use candle_models::candle_core::Device;
/// use candle_models::prelude::*;
/// use std::sync::Arc;
///
/// /// In plain Candle: twice the input.
/// struct Twice(Signature);
///
/// impl Recurrent for Twice {
///     fn signature(&self) -> &Signature {
///         &self.0
///     }
///     fn device(&self) -> &Device {
///         &Device::Cpu
///     }
///     fn unroll(&self, x: &NamedTensors, _: &[bool], state: &NamedTensors) -> candle_models::Result<(NamedTensors, NamedTensors)> {
///         Ok((NamedTensors::from_iter([("y".to_owned(), (x.get("x")? * 2.0)?)]), state.clone()))
///     }
/// }
///
/// impl Model for Twice {
///     fn family(&self) -> &'static str {
///         "twice"
///     }
///     fn config(&self) -> serde_json::Value {
///         serde_json::Value::Null
///     }
/// }
///
/// # fn main() -> candle_models::Result<()> {
/// let [inputs, outputs] = ["x", "y"].map(|name| vec![TensorSpec::f32(name, &[2])]);
/// let twice = Twice(Signature { inputs, outputs, state: Vec::new() });
/// let engine = Engine::start(Arc::new(twice), &Options::default())?;
/// let mut agent = engine.open()?;
/// agent.set_f32("x", &[1.0, 4.0])?;
/// agent.step()?;
/// assert_eq!(agent.floats("y")?, [2.0, 8.0]);
/// assert_eq!(engine.on_tensors(), ["unroll"]); // without `record` every step allocates
/// # Ok(())
/// # }
/// ```
pub trait Model: Recurrent + Send + Sync {
    /// The family's name in a bundle's `config.json`.
    fn family(&self) -> &'static str;

    /// The architecture as it stands in `config.json`.
    fn config(&self) -> serde_json::Value;

    /// Writes one pass down; the outputs in the signature's order. A model that does not do so, one in plain Candle, is run by its
    /// [`unroll`](Recurrent::unroll) on tensors instead, where its parameters are: with sessions and batches as any other, but every pass
    /// allocates memory, and [`Engine::on_tensors`] says `unroll`.
    ///
    /// # Errors
    /// [`Error::NotRecorded`](crate::Error::NotRecorded) where it is not written down.
    fn record(&self, _recorder: &mut Recorder) -> Result<Vec<Output>> {
        Err(crate::Error::NotRecorded)
    }
}

/// What a pass over `batch` sequences of `steps` frames computes and moves at least, operation by operation as
/// [`Runner::profile`] names them on the CPU. Values between operations are of `dtype`: f32 on a CPU.
///
/// # Errors
/// If the model cannot be recorded.
pub fn work(model: &dyn Model, batch: usize, steps: usize, dtype: DType) -> Result<Vec<Work>> {
    let program = Program::new(model.signature(), Target::Cpu, |recorder| model.record(recorder))?;
    work::work(&program, batch, steps, dtype)
}
