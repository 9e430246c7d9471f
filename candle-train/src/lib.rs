//! Training for `candle-models`: one loop, and beside it the parts that it is made of.
//!
//! A [`Run`](run::Run) of a [`Task`](task::Task) is all that a program needs; [`trainer`] is its loop. [`schedule`], [`gradients`],
//! [`scale`] and [`optim`] are a step's parts, [`checkpoint`], [`metrics`], [`stop`] and [`budget`] what stands around it, [`callback`] what
//! a program adds to that, [`dataset`] reads named tensors on disk, [`shards`] are data sets that are made, [`prefetch`] makes batches ahead, [`carried`] is what recurrent networks
//! remember between them, [`parallel`] is what several ranks say to each other. [`families`] trains the models of
//! `candle-models`, [`command`] is the program around them.
//!
//! ```
//! use candle_models::policy::{BackboneConfig, simulation::simulate};
//! use candle_train::policy::{config::RunConfig, loader::Order, run::{Games, Plan}, shards::Shard};
//! use candle_train::{run::Place, stop::Stop};
//! use std::sync::Arc;
//!
//! # fn main() -> candle_models::Result<()> {
//! let game = |seed| Ok::<_, candle_models::Error>(Arc::new(Shard::from_game(&simulate(seed, 600), "simulated")?));
//! let games = Games { train: vec![game(1)?, game(2)?], held_out: vec![game(3)?.into()] };
//! let mut config = RunConfig::preset("quick")?;
//! config.model.backbone = BackboneConfig::Mlp { layers: vec![32] };
//! (config.data.batch, config.data.unroll) = (4, 32);
//! let trained = Plan::new(config, &games, Order::Epochs)?.train(&Place::memory(), &Stop::after(None))?;
//! for (name, likelihood) in &trained.table {
//!     println!("{name}: {:.3} nats a frame", likelihood.all().total());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Everything random is addressed by (seed, purpose, index), so a resumed run gives the parameters of an uninterrupted one
//! bit for bit, on any number of threads.

pub mod budget;
pub mod callback;
pub mod carried;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod command;
pub mod dataset;
pub mod early_stop;
pub mod episodes;
pub mod export;
pub mod families;
mod feed;
#[cfg(feature = "cuda")]
mod flat;
pub mod gradients;
pub mod host;
pub mod identity;
mod known;
pub mod lanes;
pub mod launch;
pub mod metrics;
pub mod optim;
mod overlap;
pub mod overlay;
pub mod parallel;
pub mod plan;
pub mod prefetch;
mod replica;
pub mod report;
pub mod run;
pub mod scale;
pub mod schedule;
pub mod shards;
mod stamp;
pub mod stop;
pub mod summary;
pub mod task;
pub mod trainer;

pub use families::{agent, beam, fno, muzero, policy, rf};
