//! Agents of a game of one's own: a network from a description of what it sees and what it does, with no line of code.
//!
//! [`AgentConfig`] is the description, which serde reads and writes; `candle-train` reads it from TOML. [`Agent`] is the network.
//!
//! ```
//! use candle_models::agent::{Agent, AgentConfig, Component, Observation};
//! use candle_models::nn::Params;
//! use candle_models::random::Random;
//! use candle_models::recurrent::Recurrent;
//!
//! # fn main() -> candle_models::Result<()> {
//! let position = Observation::Floats { name: "position".into(), shape: vec![4], low: None, high: None };
//! let unit = Observation::Ids { name: "unit".into(), below: vec![12, 12], embedding: 8 };
//! let steer = Component::Binned { name: "steer".into(), low: -1.0, high: 1.0, bins: 15 };
//! let config = AgentConfig { observation: vec![position, unit], action: vec![steer], ..AgentConfig::default() };
//! let agent = Agent::new(&config, &Params::init(Random::new(1), &candle_models::candle_core::Device::Cpu))?;
//! let outputs: Vec<&str> = agent.signature().outputs.iter().map(|spec| spec.name.as_str()).collect();
//! assert_eq!(outputs, ["logits", "action", "steer"]);
//! # Ok(())
//! # }
//! ```

mod action;
mod config;
mod family;
mod model;
mod observation;

pub use action::Component;
pub use config::AgentConfig;
pub use family::AgentFamily;
pub use model::{Agent, AgentLayers};
pub use observation::{ConvConfig, ConvSizes, Observation, PoolConfig, SequenceConvConfig, SequencePoolConfig};

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "agent";
