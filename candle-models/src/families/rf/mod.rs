//! Radio: recordings of IQ samples, their spectra and features.
//!
//! A signal is complex samples ([`Complex32`]) at a rate in hertz around a centre frequency; the square of a sample's magnitude is its power, in
//! watts where a scale is known.

pub mod arrival;
mod family;
pub mod features;
pub mod geometry;
#[cfg(feature = "cli")]
mod infer;
pub mod localiser;
#[cfg(feature = "sigmf")]
pub mod sigmf;
pub mod spectrum;
pub mod synthesis;

pub use family::RfFamily;
pub use localiser::{Localiser, LocaliserConfig};
pub use rustfft::num_complex::{Complex32, Complex64};

use serde::{Deserialize, Serialize};

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "rf";

/// A radio network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "network", rename_all = "snake_case")]
pub enum RfConfig {
    /// Where an emitter is.
    Localiser(LocaliserConfig),
}
