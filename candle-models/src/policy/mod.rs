//! The game policy: imitation of human players of Super Smash Bros. Melee, 60 frames a second.
//!
//! Replay or live game to [`game`] types, [`embedding`] to an observation, [`Policy`] to an [`actions::Action`].

pub mod actions;
mod backbone;
pub mod baselines;
mod config;
pub mod embedding;
pub mod game;
mod heads;
mod model;
#[cfg(feature = "slippi")]
pub mod replay;
pub mod simulation;

pub use config::{BackboneConfig, Heads, PolicyConfig};
pub use model::Policy;

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "policy";
