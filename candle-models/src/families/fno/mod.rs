//! Neural operators: networks that read a field on a grid and answer with another one, on any grid.
//!
//! [`Fno`] is the Fourier neural operator. Fields are channels last, `[n, m, C]`; a field over one axis is a grid of height 1.

pub mod burgers;
pub mod darcy;
mod family;
#[cfg(feature = "cli")]
mod infer;
pub mod metrics;
mod model;
pub mod navier_stokes;
pub mod physics;
#[cfg(test)]
mod tests;

pub use family::FnoFamily;
pub use model::{Ensemble, Fno, FnoConfig, FnoLayers, Normaliser};

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "fno";
