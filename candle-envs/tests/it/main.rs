//! Environments, one at a time and side by side.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

mod classic;
mod vector;
