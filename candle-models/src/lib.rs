//! Small networks for agents and radio on Candle.

mod error;
pub mod ops;
pub mod policy;
pub mod random;
pub mod recurrent;
pub mod tensors;

pub use error::{Error, Result};
