//! Environments, one at a time and side by side.

mod classic;
mod minatar;
mod vector;
