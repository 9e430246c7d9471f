//! The families of this workspace, each a folder of its name and its place in the list.

pub mod agent;
pub mod beam;
pub mod fno;
pub mod policy;
pub mod rf;

use crate::family::Families;

/// All of them.
pub fn shipped() -> Families {
    Families::new([
        &candle_models::policy::PolicyFamily,
        &candle_models::beam::BeamFamily,
        &candle_models::agent::AgentFamily,
        &candle_models::rf::RfFamily,
        &candle_models::fno::FnoFamily,
    ])
}
