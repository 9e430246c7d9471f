//! Environments, one at a time and side by side.

mod board;
mod classic;
#[cfg(feature = "solver")]
mod solver;
mod minatar;
mod vector;
