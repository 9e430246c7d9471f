//! The game policy: imitation of human players of Super Smash Bros. Melee, 60 frames a second.
pub mod game;

pub mod actions;
pub mod baselines;
pub mod embedding;
