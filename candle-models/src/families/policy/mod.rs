//! The game policy: imitation of human players of Super Smash Bros. Melee, 60 frames a second.
//!
//! Replay or live game to [`game`] types, [`embedding`] to an observation, [`Policy`] to an [`actions::Action`].
//!
//! ```
//! use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
//! use candle_models::policy::{PolicyConfig, actions::Action, simulation::simulate};
//! use candle_models::prelude::*;
//! # fn main() -> candle_models::Result<()> {
//! let bundle = Bundle::open("../weights/policy-mlp")?;
//! let embedding = Embedding::new(&bundle.config::<PolicyConfig>()?.names)?;
//! let engine = Engine::start(families::shipped().load(&bundle)?, &Options::default())?;
//! let mut agent = engine.open()?;
//! let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
//! let seen = Observation::of(&simulate(1, 200), 130, 0)?; // what player 0 has seen before frame 130
//! embedding.observe(&seen, None, &mut features, &mut ids)?;
//! agent.set_f32("features", &features)?;
//! agent.set_u32("ids", &ids)?;
//! agent.step()?;
//! let pressed = Action::from_ids(agent.indices("action")?)?.to_controller();
//! assert!(pressed.main_stick.iter().all(|x| x.abs() <= 1.0));
//! # Ok(())
//! # }
//! ```

pub mod actions;
pub mod baselines;
pub mod calibration;
mod config;
pub mod embedding;
mod family;
pub mod game;
mod heads;
#[cfg(feature = "cli")]
mod infer;
mod model;
pub mod prior;
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
