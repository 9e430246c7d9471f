//! Integration tests, one binary: each links all of Candle.
mod bundle;
#[cfg(feature = "slippi")]
mod replay;
