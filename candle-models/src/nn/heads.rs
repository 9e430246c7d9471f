//! From the trunk of a network to an action of several components.

use super::{Autoregressive, Linear, Params};
use crate::Result;
use crate::exec::{Choice, Executor};
use crate::ops::Activation;
use serde::{Deserialize, Serialize};

/// How the components of an action depend on each other.
///
/// ```
/// use candle_models::nn::Heads;
///
/// assert_eq!(Heads::Autoregressive.name(), "autoregressive");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Heads {
    /// Each component from the trunk alone.
    Independent,
    /// Each component from the trunk and the components before it.
    #[default]
    Autoregressive,
}

impl Heads {
    /// `independent` or `autoregressive`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent",
            Self::Autoregressive => "autoregressive",
        }
    }
}

/// Heads that choose every component from the trunk alone. Each: a layer with ReLU, then its logits. The first layers are one product.
#[derive(Debug, Clone)]
pub struct IndependentHeads {
    hidden: Linear,
    components: Vec<(usize, Choice, Linear)>,
}

impl IndependentHeads {
    /// Over a trunk of `trunk` values. The components come with their names and the widths of their first layers.
    pub fn new(trunk: usize, components: &[(&str, usize, Choice)], params: &Params) -> Result<Self> {
        let hidden = Linear::new(trunk, components.iter().map(|(_, width, _)| width).sum(), &params.pp("hidden"))?;
        let out =
            |&(name, width, choice): &(&str, usize, Choice)| Ok((width, choice, Linear::new(width, choice.logits(), &params.pp(name))?));
        Ok(Self { hidden, components: components.iter().map(out).collect::<Result<_>>()? })
    }

    /// `trunk` `[rows, trunk]`, the classes `wanted` and a random number for each column in `uniform`: the logits of all components side by
    /// side and the classes.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, wanted: &E::I, uniform: &E::V) -> Result<(E::V, E::I)> {
        let hidden = e.linear(trunk, &self.hidden, Activation::Relu)?;
        let (mut logits, mut classes, mut start) = (Vec::new(), Vec::new(), 0);
        for (width, choice, out) in &self.components {
            let x = e.columns(&hidden, start, *width)?;
            start += width;
            let l = e.linear(&x, out, Activation::None)?;
            classes.push(e.choose(&l, wanted, uniform, *choice)?);
            logits.push(l);
        }
        Ok((e.join(&logits)?, e.join_indices(&classes)?))
    }
}

/// Heads of either kind, over the inputs `action`, `uniform` and, where they read the frame before, `previous_action`.
#[derive(Debug, Clone)]
pub enum ActionHeads {
    /// Each component from the trunk alone.
    Independent(IndependentHeads),
    /// Each component from the trunk, the components before it and itself in the frame before.
    Autoregressive(Autoregressive),
}

impl ActionHeads {
    /// `trunk` `[rows, width]` to the logits of all components side by side and the classes `[rows, columns]`. The classes wanted, those of the frame
    /// before and the random numbers are inputs of the pass.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V) -> Result<(E::V, E::I)> {
        let (wanted, uniform) = (e.indices("action")?, e.input("uniform")?);
        match self {
            Self::Independent(heads) => heads.forward(e, trunk, &wanted, &uniform),
            Self::Autoregressive(heads) => {
                let previous = e.indices("previous_action")?;
                heads.forward(e, trunk, [&previous, &wanted], &uniform)
            }
        }
    }
}
