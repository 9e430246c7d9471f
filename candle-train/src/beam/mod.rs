//! Beam controllers, trained end to end through the episodes that they will be used in: fresh channels every step.
//!
//! [`alignment`] is the task, [`config`] what a run is, [`run`] puts it together, [`export`] writes the bundle.

pub mod alignment;
pub mod config;
pub mod export;
pub mod run;
