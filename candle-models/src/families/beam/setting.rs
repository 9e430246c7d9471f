//! What channels are drawn from, as plain data.

use super::cdl::{Profile, RAY_OFFSETS};
use super::{Array, within};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Most paths of a channel.
const MAX_PATHS: usize = 1024;

/// Where channels come from. The default is 32 x 16 linear arrays and three paths within 90 degrees to either side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelConfig {
    /// The base station's array.
    pub transmit: Array,
    /// The user's array.
    pub receive: Array,
    /// How paths are drawn.
    pub model: ChannelModel,
    /// How the channel changes from step to step; nothing: it does not (block fading).
    pub mobility: Option<Mobility>,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            transmit: Array::Ula { elements: 32 },
            receive: Array::Ula { elements: 16 },
            model: ChannelModel::Geometric(Geometric::default()),
            mobility: None,
        }
    }
}

/// How paths are drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ChannelModel {
    /// Independent paths with complex normal gains.
    Geometric(Geometric),
    /// A clustered delay line of 3GPP TR 38.901.
    Cdl(Cdl),
}

/// Paths with gains `CN(0, 1)` and uniform angles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Geometric {
    /// Number of paths.
    pub paths: usize,
    /// Azimuths are uniform within so many degrees to either side.
    pub azimuth: f32,
    /// Elevations are uniform within so many degrees to either side. A linear array does not tell them from azimuths.
    pub elevation: f32,
    /// Rician factor in dB: the first path has a fixed amplitude and this ratio to the power of the others; the sum is that
    /// of the channel without it. Nothing: all paths are alike.
    pub rician_db: Option<f32>,
    /// Divides by the square root of the number of paths: `E ||H||_F^2 = N_RX N_TX`.
    pub normalise: bool,
}

impl Default for Geometric {
    fn default() -> Self {
        Self { paths: 3, azimuth: 90., elevation: 0., rician_db: None, normalise: false }
    }
}

/// A TR 38.901 profile as a narrowband channel sees it: every ray has the amplitude of the table, a random phase, and the
/// table's angles, turned by the same random azimuth on each side. The powers add up to one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cdl {
    /// The profile.
    pub profile: Profile,
    /// Rays of a cluster: 1 in its middle, or the 20 of table 7.5-3, coupled at random (the line of sight has one).
    #[serde(default = "one")]
    pub rays: usize,
    /// Each side's array is turned by a uniform azimuth within so many degrees to either side.
    #[serde(default = "half_turn")]
    pub rotation: f32,
}

fn one() -> usize {
    1
}

fn half_turn() -> f32 {
    180.
}

/// How a channel changes from one step to the next.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mobility {
    /// Largest Doppler shift in cycles per step: the shift of a path that the user moves straight towards. The direction
    /// of movement is uniform in azimuth, so that a gain's autocorrelation after s steps is `J0(2 pi doppler s)`.
    pub doppler: f32,
    /// Largest change of an azimuth in degrees per step: each path has a rate of its own at each end, uniform to either side.
    #[serde(default)]
    pub drift: f32,
}

impl ChannelConfig {
    /// The base station's array and the user's.
    pub fn arrays(&self) -> [Array; 2] {
        [self.transmit, self.receive]
    }

    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    pub fn validate(&self) -> Result<()> {
        self.transmit.validate("transmit")?;
        self.receive.validate("receive")?;
        match &self.model {
            ChannelModel::Geometric(geometric) => geometric.validate()?,
            ChannelModel::Cdl(cdl) => cdl.validate()?,
        }
        self.mobility.as_ref().map_or(Ok(()), Mobility::validate)
    }
}

impl Geometric {
    fn validate(&self) -> Result<()> {
        within("model.paths", self.paths, 1..=MAX_PATHS)?;
        within("model.azimuth", self.azimuth, 0. ..=180.)?;
        within("model.elevation", self.elevation, 0. ..=90.)?;
        self.rician_db.map_or(Ok(()), |k| within("model.rician_db", k, -100. ..=100.))
    }
}

impl Cdl {
    fn validate(&self) -> Result<()> {
        if self.rays != 1 && self.rays != RAY_OFFSETS.len() {
            return Err(Error::config("model.rays", format!("{} is neither 1 nor {}", self.rays, RAY_OFFSETS.len())));
        }
        within("model.rotation", self.rotation, 0. ..=180.)
    }
}

impl Mobility {
    fn validate(&self) -> Result<()> {
        within("mobility.doppler", self.doppler, 0. ..=1000.)?;
        within("mobility.drift", self.drift, 0. ..=180.)
    }
}
