//! Beam alignment: which beams two antenna arrays should use, found in a few measurements.
//!
//! A base station with `N_TX` antennas and a user with `N_RX` see each other through a channel matrix H of few paths. A
//! measurement is `y = w^H H f + n` with unit-norm beams `f` (transmit) and `w` (receive) and `n ~ CN(0, 1 / SNR)`; what the
//! link gains in the end is `G = |w^H H f|^2`.
//!
//! Complex vectors lie as interleaved pairs `[N, 2]` (real, imaginary) in f32; a leading axis is the batch.
//!
//! ```
//! use candle_models::beam::{BeamConfig, Channels, Codebook};
//! use candle_models::random::Random;
//! # fn main() -> candle_models::Result<()> {
//! let config = BeamConfig::default().channel;
//! let channels = Channels::generate(&config, Random::new(1).stream("channels"), 0, 1, 1)?;
//! let link = channels.at(0, 0);
//! let transmit = Codebook::dft(&config.transmit, 1, 32)?;
//! let receive = Codebook::dft(&config.receive, 1, 16)?;
//! let pairs = (0..transmit.count()).flat_map(|f| (0..receive.count()).map(move |w| (f, w)));
//! let best = pairs.map(|(f, w)| link.gain(receive.beam(w), transmit.beam(f))).fold(0.0, f32::max);
//! assert!(best > 0.0 && best <= 32.0 * 16.0 * link.paths() as f32 * 10.0);
//! # Ok(())
//! # }
//! ```

mod alignment;
pub mod array;
pub mod baselines;
pub mod cdl;
pub mod channel;
pub mod codebook;
pub mod complex;
mod config;
#[cfg(feature = "cuda")]
mod cuda;
mod decision;
mod draw;
mod episode;
mod evaluate;
mod family;
#[cfg(feature = "cli")]
mod infer;
pub mod metrics;
mod model;
mod plain;
mod setting;
mod sounder;
mod sparse;
mod steering;
#[cfg(test)]
mod tests;
mod user;
mod weighting;

pub use crate::network::Tapes;
pub use crate::ops::Products;
pub use alignment::alignment;
pub use array::Array;
pub use baselines::{Baseline, Beams, Trial};
pub use cdl::Profile;
pub use channel::{Cdl, ChannelConfig, ChannelModel, Channels, Geometric, Link, Mobility, PathParameters};
pub use codebook::{Codebook, CodebookConfig};
pub use config::{BeamConfig, DecisionConfig, Feedback, MemoryConfig, Scheme, Sweep, View, Weighting};
pub use decision::{BaseStation, Decision};
pub use episode::{Episodes, Sensing, measurement_noise};
pub use evaluate::{Evaluation, Gains};
pub use family::BeamFamily;
pub use metrics::Summary;
pub use model::{Beam, Decided};
pub use sounder::Sounder;
pub use sparse::{Pursuit, SparseChannel};
pub use steering::SteeredBeam;
pub use user::UserEquipment;

use crate::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "beam";

/// An error that names `field` unless `value` lies in `range`; NaN lies in none.
fn within<T: PartialOrd + Display>(field: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(field, format!("{value} is outside {}..={}", range.start(), range.end())))
}
