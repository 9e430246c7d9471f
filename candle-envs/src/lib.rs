//! Environments for planning and reinforcement learning: classic control, board games, MinAtar's games and a duel of two fighters.
//!
//! An [`Env`] is one of them, plain data with rules; a [`Vector`] steps thousands side by side on all cores, with the automatic resets that
//! Gymnasium defines. [`shipped`] lists those of this crate by name, which a program extends with its own; [`gym`] has
//! those of Python's Gymnasium.
//!
//! ```
//! use candle_envs::classic::CartPole;
//! use candle_envs::{Actions, Autoreset, Vector, VectorEnv};
//!
//! # fn main() -> candle_envs::Result<()> {
//! let mut poles = Vector::<CartPole>::new(64, Autoreset::SameStep)?;
//! poles.reset(42)?;
//! let mut steps = 0.0;
//! for t in 0..100 {
//!     let frame = poles.step(&Actions::classes(vec![t % 2; 64]))?;
//!     steps += frame.rewards.iter().sum::<f32>();
//! }
//! assert_eq!(steps, 6400.0);
//! # Ok(())
//! # }
//! ```

pub mod board;
pub mod classic;
pub mod duel;
mod env;
mod error;
#[cfg(unix)]
pub mod gym;
pub mod minatar;
mod random;
mod registry;
mod scene;
mod vector;

pub use candle_models::interval::wilson;
pub use env::{Action, Env, Input, Spec, Step, Symmetry, View};
pub use error::{EnvError, Result};
pub use random::Pcg64;
pub use registry::{Entry, Environments, shipped};
pub use scene::{Color, Scene, Shape};
pub use vector::{Actions, Autoreset, Episode, Frame, Resumable, Vector, VectorEnv, any_legal};
