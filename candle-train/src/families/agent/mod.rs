//! Imitation in a game of one's own: a description in TOML and recorded episodes to a bundle.
//!
//! [`episodes`] reads recordings, [`loader`] makes batches of them ahead, [`imitation`] is the task, [`distribution`] says how likely actions are,
//! [`likelihood`] measures beside frequencies of the recorded ones, [`run`] puts it together, [`example`] is a made-up game to try all of it on. [`ppo`]
//! learns in environments in place of recordings.

pub mod config;
pub mod distribution;
pub mod episodes;
pub mod example;
#[cfg(feature = "cli")]
mod family;
pub mod imitation;
pub mod likelihood;
pub mod loader;
mod numbers;
pub mod ppo;
pub mod run;
