//! Imitation of recorded players: replays to a policy bundle.
//!
//! [`shards`] encodes replays, [`split`] holds games out, [`dataset`] reads rows, [`plan`] orders them, [`loader`] makes
//! batches ahead, [`imitation`] is the task, [`teachers`] are policies to learn from, [`evaluate`] measures beside the count tables, [`calibrate`] makes a trained
//! policy as sure of itself as it may be, [`run`] puts it together, [`export`] writes the bundle.

pub mod calibrate;
pub mod config;
pub mod dataset;
pub mod evaluate;
pub mod export;
#[cfg(feature = "cli")]
mod family;
mod games;
pub mod imitation;
pub mod loader;
pub mod loss;
pub mod plan;
#[cfg(feature = "cli")]
mod replays;
pub mod run;
#[cfg_attr(not(feature = "slippi"), expect(dead_code, reason = "only encoded replays lie on disk"))]
pub mod shards;
pub mod split;
pub mod teachers;
