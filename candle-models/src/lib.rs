//! Small networks for agents and radio on Candle that answer in microseconds.
//!
//! A model says what it eats and gives in a [`Signature`](tensors::Signature) of named tensors; state is a value that can be
//! cloned, reset by row and forked; a model is a directory ([`bundle`]); one engine runs it.
//!
//! ```
//! use candle_models::bundle::Bundle;
//! use candle_models::engine::{self, Runner};
//! use candle_models::exec::SAMPLE;
//!
//! # fn main() -> candle_models::Result<()> {
//! let model = engine::load(&Bundle::open("../weights/policy-mlp")?)?;
//! // One agent, one thread. An agent with a game at hand fills `features` and `ids` through `policy::embedding`.
//! let mut runner = Runner::new(model, 1, 1)?;
//! runner.floats_mut("features", 0)?.fill(0.1);
//! runner.indices_mut("action", 0)?.fill(SAMPLE);
//! runner.floats_mut("uniform", 0)?.fill(-1.0); // greedy
//! for frame in 0..60 {
//!     runner.step(&[frame == 0])?; // a reset at the first frame of a game
//!     let action = runner.indices("action", 0)?;
//!     assert_eq!(action.len(), 13);
//! }
//! # Ok(())
//! # }
//! ```

pub mod bundle;
#[cfg(feature = "cli")]
pub mod cli;
pub mod device;
pub mod engine;
mod error;
pub mod exec;
pub mod files;
pub mod nn;
pub mod ops;
pub mod policy;
pub mod random;
pub mod recurrent;
mod stored;
pub mod tensors;

pub use error::{Error, Result};
