//! Integration tests, one binary: each links all of Candle.
#[cfg(feature = "slippi")]
mod replay;
