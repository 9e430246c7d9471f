//! Small networks for agents and radio on Candle.

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
