//! MuZero (Schrittwieser et al. 2020): a network that learns what comes of its actions, to plan with.
//!
//! Two networks share their heads. `initial` makes an embedding of an observation, `recurrent` one of an embedding and an action, with the reward of
//! that action; both say the prior policy and the value of where they are. A [`Planner`](crate::search::Planner) searches with them. Where the rules of a
//! game are known ([`Dynamics::Rules`]), there is `initial` alone, and a planner goes [by the rules](crate::search::Planner::by_rules).
//!
//! Not included: frames stacked over time (an observation is all that is seen), a chance player.
//!
//! ```
//! use candle_models::muzero::{MuZero, MuZeroConfig};
//! use candle_models::nn::Params;
//! use candle_models::random::Random;
//! use candle_models::engine::Placement;
//! use candle_models::search::{Gumbel, Noise, Planner, PlannerOptions, Method, Settings};
//! use std::sync::Arc;
//!
//! # fn main() -> candle_models::Result<()> {
//! let config = MuZeroConfig::default(); // four numbers, two actions
//! let MuZero { initial, recurrent: Some(recurrent) } = MuZero::new(&config, &Params::init(Random::new(1), &candle_models::candle_core::Device::Cpu))? else { unreachable!() };
//! let search = Settings { method: Method::Gumbel(Gumbel::default()), simulations: 8, max_depth: None };
//! let options = PlannerOptions { batch: 1, search, discount: config.discount(), place: Placement::cpu(1) };
//! let mut planner = Planner::new(Arc::new(initial), Arc::new(recurrent), &options)?;
//! planner.floats_mut("state", 0)?.copy_from_slice(&[0.0, 0.1, -0.1, 0.0]);
//! let plan = planner.plan(Noise::None)?;
//! assert_eq!(plan.visits(0).iter().sum::<u32>() , 8);
//! # Ok(())
//! # }
//! ```

mod config;
mod family;
mod model;
pub mod values;

pub use config::{Dynamics, MuZeroConfig, NetworkConfig, Support};
pub use family::MuZeroFamily;
pub use model::{Initial, MuZero, Recurrent};

/// The family's name in a bundle's `config.json`.
pub const FAMILY: &str = "muzero";
