//! Neural operators, trained on pairs of fields: of files, or made by a solver.
//!
//! [`fields`] are pairs, [`source`] is what solvers make of them, [`operator`] the task, [`loss`] what it minimises, [`config`] what a run is, [`run`] puts it together and writes
//! the bundle.

pub mod config;
#[cfg(feature = "cli")]
mod data;
#[cfg(feature = "cli")]
mod ensemble;
#[cfg(feature = "cli")]
mod family;
pub mod fields;
pub mod loss;
pub mod operator;
#[cfg(feature = "cli")]
mod page;
pub mod run;
pub mod source;
#[cfg(feature = "cli")]
mod stored;
