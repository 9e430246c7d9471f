//! Proximal policy optimisation (Schulman et al. 2017): an agent learns from what it does in environments.
//!
//! A rollout is `lanes` environments over `steps` steps, played by the engine with the present parameters. Several epochs of minibatches over it
//! raise the probability of actions that were better than the critic expected, within a clipped distance of the policy that played. Networks
//! without memory learn from single steps in any order; recurrent ones from whole lanes, from the state in which the rollout found them.
//!
//! [`config`] says what a run is, [`acting`] plays, [`rollout`] is what was played, [`advantage`] says how much better than expected an action was,
//! [`task`] is the loss, [`evaluate`] measures on episodes of other seeds, [`run`] puts it together.

pub mod acting;
pub mod advantage;
#[cfg(feature = "cli")]
mod command;
pub mod config;
pub mod evaluate;
pub mod rollout;
pub mod run;
pub mod task;

#[cfg(feature = "cli")]
pub use command::PpoTraining;
