//! Integration tests, one binary: each links all of Candle.
mod policy;
#[cfg(feature = "slippi")]
mod replay;
