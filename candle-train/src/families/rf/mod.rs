//! Radio networks: a localiser, trained on fresh events, and classifiers, trained on fresh signals.
//!
//! [`localisation`] and [`classification`] are the tasks, [`signals`] what a classifier is shown, [`config`] what a run is, [`run`] puts it together and writes
//! the bundle; [`scenario`] is what a data set is made of.

pub mod classification;
pub mod config;
#[cfg(feature = "cli")]
mod data;
#[cfg(feature = "cli")]
mod family;
pub mod localisation;
#[cfg(feature = "cli")]
mod page;
pub mod run;
pub mod scenario;
pub mod signals;
