//! Layers: each a few lines over [`Executor`](crate::exec::Executor), so that training and inference run the same code.
//!
//! ```
//! use candle_models::candle_core::{DType, Device, Tensor};
//! use candle_models::exec::{Choice, tensors::TensorExecutor};
//! use candle_models::nn::{Backbone, BackboneConfig, Head, IndependentHeads, Params};
//! use candle_models::random::Random;
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let params = Params::init(Random::new(1), &Device::Cpu);
//! let trunk = Backbone::new(&BackboneConfig::Mlp { layers: vec![4, 32] }, 0, &params.pp("trunk"), &mut Vec::new())?;
//! let jump = Choice { column: 0, columns: 1, classes: 2 };
//! let steer = Choice { column: 1, columns: 1, classes: 3 };
//! let heads = IndependentHeads::new(32, &[("jump", 16, Head::Classes(jump)), ("steer", 16, Head::Classes(steer))], &params.pp("heads"))?;
//!
//! // These actions were taken: how likely were they?
//! let action = Tensor::new(&[[[0u32, 2]]; 5], &Device::Cpu)?;
//! let uniform = Tensor::zeros((5, 1, 2), DType::F32, &Device::Cpu)?;
//! let inputs = NamedTensors::from_iter([("action".to_owned(), action), ("uniform".to_owned(), uniform)]);
//! let mut e = TensorExecutor::new(&inputs, &[false; 5], Vec::new(), &Device::Cpu);
//! let x = trunk.forward(&mut e, &Tensor::ones((5, 4), DType::F32, &Device::Cpu)?)?;
//! let (logits, classes) = heads.forward(&mut e, &x)?.into_classes()?;
//! assert_eq!((logits.dims(), classes.values()), (&[5, 4][..], &[0, 2, 0, 2, 0, 2, 0, 2, 0, 2][..]));
//! # Ok(())
//! # }
//! ```

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
pub use heads::{ActionHeads, Decision, Head, Heads, IndependentHeads, NumbersBehindClasses};
pub use linear::Linear;
pub use mamba::{Mamba, MambaConfig};
pub use mlp::{Dense, FeedForward};
pub use norm::Norm;
pub use params::{Init, Params};
