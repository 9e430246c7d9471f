//! MuZero: a network learns to plan in an environment by playing with its own plans.
//!
//! [`config`] says what a run is, [`play`] plays many environments with a search, [`actors`] do so beside the learner, [`replay`] remembers what was played and says what a network is to say
//! of it, [`task`] is the loss of an unrolled model, [`run`] puts it together.

pub mod actors;
pub mod config;
mod consistency;
#[cfg(feature = "cli")]
mod family;
pub mod play;
pub mod replay;
pub mod run;
pub mod task;
