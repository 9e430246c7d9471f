//! Integration tests, one binary: each links all of Candle.
#[cfg(feature = "cli")]
mod infer;
mod policy;
#[cfg(feature = "slippi")]
mod replay;
