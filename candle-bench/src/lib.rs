//! Measures the models of this workspace: latency by batch and backbone, and comparisons with PyTorch, ONNX Runtime
//! and JAX on the same weights and inputs.

pub mod batch_size;
pub mod beam;
pub mod calls;
pub mod case;
pub mod compare;
pub mod formulas;
pub mod gpu;
pub mod graph;
pub mod harness;
pub mod host;
pub mod instructions;
pub mod interrupt;
pub mod load;
pub mod memory;
pub mod network;
pub mod ops;
pub mod overlap;
pub mod peer;
pub mod precision;
pub mod ranks;
pub mod readme;
pub mod recommend;
pub mod report;
pub mod roofline;
pub mod run;
pub mod scaling;
pub mod split;
pub mod startup;
pub mod stats;
pub mod suites;
pub mod table;
pub mod targets;
pub mod text;
pub mod train;
pub mod training;
mod update;
