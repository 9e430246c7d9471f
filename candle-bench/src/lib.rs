//! Measures the models of this workspace: latency by batch and backbone, and comparisons with PyTorch and ONNX Runtime
//! on the same weights and inputs.

pub mod beam;
pub mod compare;
pub mod formulas;
pub mod gpu;
pub mod harness;
pub mod host;
pub mod interrupt;
pub mod load;
pub mod ops;
pub mod peer;
pub mod policy;
pub mod ranks;
pub mod stats;
pub mod suites;
pub mod table;
pub mod targets;
pub mod train;
pub mod training;
mod update;
