//! Imitation of recorded players.
pub mod dataset;
pub mod loader;
pub mod loss;
pub mod plan;
pub mod shards;
pub mod split;
