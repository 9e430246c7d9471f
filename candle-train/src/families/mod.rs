//! The families that this crate trains, each a folder of its name and its place in the list.

pub mod agent;
pub mod beam;
pub mod fno;
pub mod muzero;
pub mod policy;
pub mod rf;

#[cfg(feature = "cli")]
use crate::command::TrainFamily;
#[cfg(feature = "cli")]
use candle_models::registry::Registry;
#[cfg(feature = "cli")]
use candle_models::{agent::AgentFamily, beam::BeamFamily, fno::FnoFamily, muzero::MuZeroFamily, policy::PolicyFamily, rf::RfFamily};

/// All of them, as the command `candle-train` knows them.
#[cfg(feature = "cli")]
pub fn shipped() -> Registry<dyn TrainFamily> {
    Registry::new([&PolicyFamily, &BeamFamily, &AgentFamily, &MuZeroFamily, &RfFamily, &FnoFamily])
}
