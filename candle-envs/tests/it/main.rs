//! Environments, one at a time and side by side.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod board;
mod classic;
mod duel;
#[cfg(unix)]
mod gym;
mod minatar;
#[cfg(feature = "solver")]
mod solver;
mod vector;
