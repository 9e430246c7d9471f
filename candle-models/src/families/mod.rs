//! The families of this crate, each a folder of its name and its place in the list.

pub mod agent;
pub mod beam;
pub mod fno;
pub mod muzero;
pub mod policy;
pub mod rf;

#[cfg(feature = "cli")]
use crate::infer::InferFamily;
use crate::registry::{Family, Registry};

macro_rules! list {
    () => {
        Registry::new([
            &policy::PolicyFamily,
            &beam::BeamFamily,
            &agent::AgentFamily,
            &muzero::MuZeroFamily,
            &rf::RfFamily,
            &fno::FnoFamily,
        ])
    };
}

/// All of them.
pub fn shipped() -> Registry<dyn Family> {
    list!()
}

/// The same, as the command `candle-infer` knows them.
#[cfg(feature = "cli")]
pub fn commands() -> Registry<dyn InferFamily> {
    list!()
}
