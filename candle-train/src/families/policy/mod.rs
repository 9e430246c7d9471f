//! Imitation of recorded players: replays to a policy bundle.
//!
//! [`shards`] encodes replays, [`split`] holds games out, [`dataset`] reads rows, [`plan`] orders them, [`loader`] makes
//! batches ahead, [`imitation`] is the task, [`evaluate`] measures beside the count tables, [`run`] puts it together,
//! [`export`] writes the bundle.

pub mod config;
pub mod dataset;
pub mod evaluate;
pub mod export;
mod family;
mod games;
pub mod imitation;
pub mod loader;
pub mod loss;
pub mod plan;
mod replays;
pub mod run;
pub mod shards;
pub mod split;
