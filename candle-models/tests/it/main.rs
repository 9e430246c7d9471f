//! Integration tests, one binary: each links all of Candle.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "slippi")]
mod archives;
mod beam;
mod bundle;
#[cfg(feature = "cli")]
mod doctor;
mod duel;
#[cfg(feature = "slippi")]
mod encoding;
mod engine;
mod families;
#[path = "../shared/family_names.rs"]
mod family_names;
#[cfg(feature = "cli")]
mod formats;
mod golden;
#[cfg(feature = "cli")]
mod infer;
#[cfg(feature = "cli")]
mod infer_beam;
mod interval;
mod ops;
#[cfg(feature = "cli")]
mod play;
mod policies;
mod policy;
#[cfg(feature = "cli")]
mod python;
#[cfg(feature = "slippi")]
mod replay;
#[cfg(feature = "sigmf")]
mod rf;
mod simd;
