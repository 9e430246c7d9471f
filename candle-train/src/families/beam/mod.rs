//! Beam controllers, trained end to end through the episodes that they will be used in: fresh channels every step.
//!
//! [`alignment`] is the task, [`config`] what a run is, [`run`] puts it together, [`export`] writes the bundle,
//! [`page`] measures bundles against each other and against baselines.

pub mod alignment;
pub mod config;
pub mod export;
#[cfg(feature = "cli")]
mod family;
#[cfg(feature = "cli")]
pub mod page;
pub mod run;
