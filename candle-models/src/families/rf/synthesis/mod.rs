//! Signals as receivers would have them, drawn from a seed.
//!
//! Every number has an address (seed, event, receiver, step): signals are the same bits on any number of threads and workers, in any order, and after
//! a restart.
//!
//! ```
//! use candle_models::random::Random;
//! use candle_models::rf::Complex32;
//! use candle_models::rf::synthesis::{Compatible, Reception};
//!
//! # fn main() -> candle_models::Result<()> {
//! let generator = Compatible { samples: 20_000, ..Compatible::default() };
//! let mut iq = vec![Complex32::default(); 20_000];
//! let reception = Reception { frequency_offset_hz: 25.0, power_dbm: -80.0, snr_db: 15.0 };
//! generator.generate(Random::new(7).at(0).at(0), &reception, &mut iq)?;
//! let power = iq.iter().map(|x| f64::from(x.norm_sqr())).sum::<f64>() / 20_000.0;
//! assert!((10.0 * power.log10() + 30.0 + 79.86).abs() < 0.1); // the signal's -80 dBm and the noise's -95
//! # Ok(())
//! # }
//! ```

mod compatible;
pub mod content;
#[cfg(feature = "cuda")]
mod cuda;
mod delay;
mod fading;
pub mod impairments;
mod physical;
#[cfg(test)]
mod tests;
mod turns;

pub use compatible::Compatible;
pub use content::{Content, Digital, Modulation, Sound};
pub use delay::Interpolator;
pub use fading::{Gain, Rayleigh};
pub use physical::{Fading, Physical, Truth};

use super::within;
use crate::random::Random;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The ends of a range that is drawn from evenly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range(pub f64, pub f64);

impl Range {
    /// The number at an address.
    pub fn draw(self, random: Random, index: u64) -> f64 {
        self.0 + (self.1 - self.0) * f64::from(random.uniform(index))
    }
}

/// How a receiver hears an event.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reception {
    /// The carrier's distance from the centre frequency, Hz.
    pub frequency_offset_hz: f64,
    /// The signal's power, dBm.
    pub power_dbm: f64,
    /// The signal's power over the noise's in the whole band, dB.
    pub snr_db: f64,
}

impl Reception {
    fn validate(&self, sample_rate: f64) -> Result<()> {
        within("frequency_offset_hz", self.frequency_offset_hz, -sample_rate / 2.0..=sample_rate / 2.0)?;
        within("power_dbm", self.power_dbm, -200.0..=100.0)?;
        within("snr_db", self.snr_db, -100.0..=200.0)
    }
}

/// Receivers of every event.
fn receivers(receptions: &[Vec<Reception>]) -> Result<usize> {
    let receivers = receptions.first().map_or(0, Vec::len);
    match receptions.iter().position(|event| event.len() != receivers) {
        None => Ok(receivers),
        Some(event) => {
            let found = receptions[event].len();
            Err(Error::Input(format!("event {event}: expected {receivers} receivers as in the first one, found {found}")))
        }
    }
}

/// What is true of a signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Labels {
    /// What was asked for.
    pub reception: Reception,
    /// How many echoes there are.
    pub echoes: usize,
    /// Amplitudes one after the other, before the signal was scaled.
    pub amplitudes: Vec<f32>,
}
