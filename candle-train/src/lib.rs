//! Training for `candle-models`.
pub mod checkpoint;
pub mod gradients;
pub mod metrics;
pub mod optim;
pub mod policy;
pub mod schedule;
pub mod stop;
pub mod trainer;
