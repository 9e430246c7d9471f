//! Gated recurrent unit (Cho et al. 2014), gates in PyTorch's order: reset, update, candidate.

use super::{Linear, Params};
use crate::Result;
use crate::exec::Executor;
use crate::ops::Activation;
use crate::signature::TensorSpec;

/// One layer: the product of the inputs is taken for all frames at once, the product of the state frame by frame.
#[derive(Debug, Clone)]
pub struct Gru {
    input: Linear,
    hidden: Linear,
    state: usize,
}

impl Gru {
    /// Registers its state in `states` and remembers its number.
    pub fn new(inputs: usize, width: usize, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let state = states.len();
        states.push(TensorSpec::f32(format!("{state:02}.gru"), &[width]));
        Ok(Self {
            input: Linear::new(inputs, 3 * width, &params.pp("input"))?,
            hidden: Linear::new(width, 3 * width, &params.pp("hidden"))?,
            state,
        })
    }

    /// `x` `[rows, inputs]` to `[rows, width]`.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let x = e.linear(x, &self.input, Activation::None)?;
        e.gru(&x, &self.hidden, self.state)
    }
}
