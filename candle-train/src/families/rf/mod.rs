//! Radio networks: a localiser, trained on fresh events.
//!
//! [`localisation`] is the task, [`config`] what a run is, [`run`] puts it together and writes the bundle; [`scenario`] is what a data set is made of.

pub mod config;
#[cfg(feature = "cli")]
mod data;
#[cfg(feature = "cli")]
mod family;
pub mod localisation;
pub mod run;
pub mod scenario;
