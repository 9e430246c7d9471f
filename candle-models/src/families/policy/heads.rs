//! From the trunk to an action: six components in order (buttons, main stick x and y, c-stick x and y, shoulder).

use super::actions::{BUTTONS, COMPONENTS, GROUPS};
use super::config::Heads as Kind;
use crate::Result;
use crate::exec::{Choice, Executor};
use crate::nn::{Autoregressive, Linear, Params};
use crate::ops::Activation;

/// Width of the autoregressive stream and of the layer inside each component.
const STREAM: usize = 128;

/// Logits and classes of a pass.
pub(super) struct Chosen<E: Executor> {
    /// `[rows, 81]`.
    pub logits: E::V,
    /// `[rows, 13]`.
    pub action: E::I,
}

pub(super) enum ActionHeads {
    Independent(Independent),
    Autoregressive(Autoregressive),
}

impl ActionHeads {
    pub fn new(kind: Kind, trunk: usize, params: &Params) -> Result<Self> {
        Ok(match kind {
            Kind::Independent => Self::Independent(Independent::new(trunk, params)?),
            Kind::Autoregressive => Self::Autoregressive(Autoregressive::new(
                trunk,
                STREAM,
                &std::array::from_fn::<_, GROUPS, _>(|g| (KEYS[g], choice(g))),
                params,
            )?),
        })
    }

    /// `trunk` `[rows, width]`; the classes wanted, the classes of the frame before and the random numbers are inputs of the pass.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V) -> Result<Chosen<E>> {
        let (wanted, uniform) = (e.indices("action")?, e.input("uniform")?);
        match self {
            Self::Independent(h) => h.forward(e, trunk, &wanted, &uniform),
            Self::Autoregressive(h) => {
                let previous = e.indices("previous_action")?;
                let (logits, action) = h.forward(e, trunk, [&previous, &wanted], &uniform)?;
                Ok(Chosen { logits, action })
            }
        }
    }
}

/// Names of the groups in parameter names.
const KEYS: [&str; GROUPS] = ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"];

/// The columns of the action that group `g` holds: the eight buttons together, then one column each.
fn choice(g: usize) -> Choice {
    let (column, columns) = if g == 0 { (0, BUTTONS) } else { (BUTTONS + g - 1, 1) };
    Choice { column, columns, classes: COMPONENTS[column].classes as usize }
}

/// Each component: a layer of 64 (shoulder 32) with ReLU, then its logits. The six first layers are one product.
pub(super) struct Independent {
    hidden: Linear,
    out: Vec<Linear>,
}

impl Independent {
    const WIDTHS: [usize; 6] = [64, 64, 64, 64, 64, 32];

    fn new(trunk: usize, params: &Params) -> Result<Self> {
        let hidden = Linear::new(trunk, Self::WIDTHS.iter().sum(), &params.pp("hidden"))?;
        let out = (0..GROUPS).map(|g| Linear::new(Self::WIDTHS[g], choice(g).logits(), &params.pp(KEYS[g])));
        Ok(Self { hidden, out: out.collect::<Result<_>>()? })
    }

    fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, wanted: &E::I, uniform: &E::V) -> Result<Chosen<E>> {
        let hidden = e.linear(trunk, &self.hidden, Activation::Relu)?;
        let (mut logits, mut classes, mut start) = (Vec::with_capacity(6), Vec::with_capacity(6), 0);
        for (g, (out, width)) in self.out.iter().zip(Self::WIDTHS).enumerate() {
            let x = e.columns(&hidden, start, width)?;
            start += width;
            let l = e.linear(&x, out, Activation::None)?;
            classes.push(e.choose(&l, wanted, uniform, choice(g))?);
            logits.push(l);
        }
        Ok(Chosen { logits: e.join(&logits)?, action: e.join_indices(&classes)? })
    }
}
