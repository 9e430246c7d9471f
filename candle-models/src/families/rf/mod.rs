//! Radio: recordings of IQ samples, their spectra and features.
//!
//! A signal is complex samples ([`Complex32`]) at a rate in hertz around a centre frequency; the square of a sample's magnitude is its power, in
//! watts where a scale is known.

pub mod arrival;
pub mod classifier;
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

pub use classifier::{Classifier, ClassifierConfig};
pub use family::RfFamily;
pub use localiser::{Localiser, LocaliserConfig};
pub use rustfft::num_complex::{Complex32, Complex64};

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "rf";

/// A radio network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "network", rename_all = "snake_case")]
pub enum RfConfig {
    /// Where an emitter is.
    Localiser(LocaliserConfig),
    /// What kind a signal is.
    Classifier(ClassifierConfig),
}

/// The mean power of a signal: 0 of no samples.
pub fn power(signal: &[Complex32]) -> f64 {
    signal.iter().map(|x| wide(*x).norm_sqr()).sum::<f64>() / signal.len().max(1) as f64
}

/// A sample in double precision.
pub fn wide(x: Complex32) -> Complex64 {
    Complex64::new(f64::from(x.re), f64::from(x.im))
}

/// A sample in single precision.
pub fn narrow(x: Complex64) -> Complex32 {
    Complex32::new(x.re as f32, x.im as f32)
}

/// Refuses a value that is outside of a range, or no number.
///
/// # Errors
/// A [`Error::Config`] that names the field.
pub fn within(field: &str, value: f64, range: RangeInclusive<f64>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(field, format!("expected from {} to {}, found {value}", range.start(), range.end())))
}
