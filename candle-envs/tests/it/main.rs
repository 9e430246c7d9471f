//! Environments, one at a time and side by side.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod classic;
mod duel;
mod vector;
