//! What most programs begin with: `use candle_models::prelude::*;`

pub use crate::bundle::Bundle;
pub use crate::engine::{Engine, Model, Options, Placement, Runner, Session};
pub use crate::families;
pub use crate::nn::Params;
pub use crate::recurrent::Recurrent;
pub use crate::signature::{Signature, TensorSpec};
pub use crate::tensors::NamedTensors;
pub use candle_core::{DType, Device, Tensor};
