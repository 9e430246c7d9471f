//! Environments, one at a time and side by side.

mod board;
mod classic;
#[cfg(feature = "solver")]
mod solver;
mod minatar;
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod classic;
mod duel;
mod vector;
