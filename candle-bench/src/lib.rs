//! Measures the models of this workspace: latency by batch and backbone, and comparisons with PyTorch, ONNX Runtime
//! and JAX on the same weights and inputs.
//!
//! The command is a function of the families that a program registers, [`command::run`]. What it asks of a family stands in
//! [`family::BenchFamily`], what it asks of the training of one in [`trainee::Trainee`]; the suites are listed in [`run::suites`].

pub mod batch_size;
pub mod calls;
pub mod case;
pub mod command;
pub mod compare;
pub mod families;
pub mod family;
pub mod figure;
pub mod formulas;
pub mod graph;
pub mod harness;
pub mod host;
pub mod instructions;
pub mod interrupt;
pub mod latency;
pub mod lateness;
pub mod load;
pub mod memory;
pub mod network;
pub mod ops;
pub mod overlap;
pub mod peer;
pub mod peers;
pub mod precision;
pub mod ranks;
pub mod readme;
pub mod recommend;
pub mod report;
pub mod roofline;
pub mod run;
pub mod scaling;
pub mod self_check;
pub mod serve;
pub mod split;
pub mod startup;
pub mod stats;
pub mod suite;
pub mod table;
pub mod target;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trainee;
mod update;
