//! Small networks for agents and radio on Candle that answer in microseconds.
//!
//! A model says what it eats and gives in a [`Signature`](signature::Signature) of named tensors; state is a value that can be
//! cloned, reset by row and forked; a model is a directory ([`bundle`]) of a registered family ([`registry`]); one engine runs it.
//!
//! ```
//! use candle_models::bundle::Bundle;
//! use candle_models::engine::{Engine, Options};
//! use candle_models::families;
//!
//! # fn main() -> candle_models::Result<()> {
//! let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
//! let engine = Engine::start(model, &Options::default())?;
//! // One agent; others open sessions of their own. With a game at hand `policy::embedding` makes `features` and `ids` of it; the other
//! // inputs have defaults, and the policy chooses the most likely action.
//! let mut agent = engine.open()?;
//! agent.floats_mut("features")?.fill(0.1);
//! agent.indices_mut("ids")?.fill(14);
//! for _ in 0..60 {
//!     agent.step()?; // the state stays in the session; `reset` begins another game
//!     let action = agent.indices("action")?;
//!     assert_eq!(action.len(), 13);
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(target_endian = "big")]
compile_error!("numbers of files and messages are little-endian, and are read and written as they lie in memory");

pub mod bundle;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod engine;
mod error;
pub mod exec;
pub mod families;
pub mod files;
pub mod html;
#[cfg(feature = "cli")]
pub mod infer;
pub mod interval;
pub mod network;
pub mod nn;
#[cfg(feature = "nvml")]
pub mod nvml;
pub mod ops;
pub mod prelude;
pub mod processors;
pub mod random;
pub mod recurrent;
pub mod registry;
pub mod search;
pub mod signature;
mod stored;
pub mod tensors;

pub use candle_core;
pub use error::{Error, Result, hex, one_line};
pub use families::{agent, beam, fno, muzero, policy, rf};

/// Compiles the program of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
