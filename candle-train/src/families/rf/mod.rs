//! Radio networks: a localiser, trained on fresh events.
//!
//! [`localisation`] is the task, [`config`] what a run is, [`run`] puts it together and writes the bundle.

pub mod config;
#[cfg(feature = "cli")]
mod family;
pub mod localisation;
pub mod run;
