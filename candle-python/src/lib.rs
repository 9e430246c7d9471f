//! The Python wheel of candle-models: the module `candle_models._native`.
//!
//! A session or runner lends itself to one call at a time (`lend`), and the interpreter goes on while it works. Its inputs and outputs are
//! NumPy arrays that lie in its own memory (`memory`). An asyncio loop is woken through a pipe (`asyncio`), so that the engine's thread
//! never waits for the interpreter. Error classes and plain records are written in Python, in the package `candle_models`.

mod asyncio;
mod bundle;
mod convert;
mod engine;
mod errors;
mod lend;
mod memory;
mod runner;
mod session;

/// Everything that the package imports from here.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::asyncio::{Step, Wakeups};
    #[pymodule_export]
    use super::bundle::Bundle;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::runner::Runner;
    #[pymodule_export]
    use super::session::Session;
    /// The index that asks the model to choose.
    #[pymodule_export]
    const SAMPLE: u32 = candle_models::exec::SAMPLE;
}
