//! The game policy: imitation of human players of Super Smash Bros. Melee, 60 frames a second.
//!
//! Replay or live game to [`game`] types, [`embedding`] to an observation, [`Policy`] to an [`actions::Action`].

pub mod actions;
pub mod baselines;
mod config;
pub mod embedding;
mod family;
pub mod game;
mod heads;
#[cfg(feature = "cli")]
mod infer;
mod model;
#[cfg(feature = "slippi")]
pub mod replay;
pub mod simulation;

pub use config::{BackboneConfig, Heads, PolicyConfig};
pub use family::PolicyFamily;
pub use model::{Policy, PolicyLayers};

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "policy";
/// A file of a bundle: the action vocabulary.
pub const TOKENIZER: &str = "tokenizer.json";
/// A file of a bundle: likelihood baselines as named tensors.
pub const BASELINES: &str = "baselines.safetensors";
