//! What a session's caller has to tell apart.

use crate::Error;
use std::sync::Arc;

/// Why a session was not opened, or a step not made.
///
/// After [`Panicked`](Self::Panicked) and [`Failed`](Self::Failed) the state is lost; after every other error the state is
/// the one before the step, and the same step can be tried again.
///
/// ```
/// use candle_models::engine::EngineError;
/// use candle_models::prelude::*;
/// use std::time::{Duration, Instant};
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options { sessions: 1, ..Options::default() })?;
/// let mut agent = engine.open()?;
/// assert!(matches!(engine.open(), Err(EngineError::Capacity { sessions: 1 })));
/// agent.floats_mut("features")?.fill(0.1);
/// agent.indices_mut("ids")?.fill(14);
/// let over = Instant::now() - Duration::from_millis(1);
/// assert!(matches!(agent.step_before(over), Err(EngineError::DeadlineExceeded)));
/// agent.step()?; // the state is the one before: the same step can be tried again
/// engine.close();
/// assert!(matches!(agent.step(), Err(EngineError::Closed)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Every session of [`Options::sessions`](super::Options::sessions) is open.
    #[error("all {sessions} sessions of the engine are open")]
    Capacity {
        /// How many there are.
        sessions: usize,
    },
    /// As many requests wait as [`Options::queue`](super::Options::queue) allows.
    #[error("the engine is overloaded: {queue} requests wait")]
    Overloaded {
        /// How many may wait.
        queue: usize,
    },
    /// The deadline was over before the step began.
    #[error("the deadline was over before the step began")]
    DeadlineExceeded,
    /// The model panicked: the sessions of that batch lose their state.
    #[error("the model panicked: {0}")]
    Panicked(Arc<str>),
    /// The model returned an error: the sessions of that batch lose their state.
    #[error("the model failed: {0}")]
    Failed(Arc<Error>),
    /// A step failed after it had begun: the session has to be reset or restored first.
    #[error("the state was lost in a failed step: reset or restore the session")]
    StateLost,
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
    /// An input that the model does not allow, or a state that is not the model's.
    #[error(transparent)]
    Input(Box<Error>),
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(error) => error,
            other => Self::Input(Box::new(other)),
        }
    }
}
