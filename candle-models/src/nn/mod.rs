//! Layers: each a few lines over [`Executor`](crate::exec::Executor), so that training and inference run the same code.

mod attention;
mod autoregressive;
mod backbone;
mod gru;
mod heads;
mod linear;
mod mamba;
mod mlp;
mod norm;
mod params;

pub use attention::SlidingAttention;
pub use autoregressive::Autoregressive;
pub(crate) use backbone::within;
pub use backbone::{Backbone, BackboneConfig};
pub use gru::Gru;
pub use heads::{ActionHeads, Decision, Head, Heads, IndependentHeads};
pub use linear::Linear;
pub use mamba::{Mamba, MambaConfig};
pub use mlp::{Dense, FeedForward};
pub use norm::Norm;
pub use params::{Init, Params};
