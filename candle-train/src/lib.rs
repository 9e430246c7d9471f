//! Training for `candle-models`.
pub mod checkpoint;
pub mod gradients;
pub mod optim;
pub mod schedule;
