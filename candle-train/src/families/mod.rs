//! The families that this crate trains, each a folder of its name and its place in the list.

pub mod beam;
pub mod policy;

use crate::command::TrainFamily;
use candle_models::registry::Registry;
use candle_models::{beam::BeamFamily, policy::PolicyFamily};

/// All of them, as the command `candle-train` knows them.
pub fn shipped() -> Registry<dyn TrainFamily> {
    Registry::new([&PolicyFamily, &BeamFamily])
}
