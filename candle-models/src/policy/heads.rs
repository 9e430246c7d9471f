//! From the trunk to an action: six components in order (buttons, main stick x and y, c-stick x and y, shoulder).

use super::actions::{BUTTONS, COMPONENTS, GROUPS};
use super::config::Heads as Kind;
use crate::Result;
use crate::exec::{Choice, Executor};
use crate::nn::{Init, Linear, Params};
use crate::ops::Activation;
use candle_core::Tensor;

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
            Kind::Autoregressive => Self::Autoregressive(Autoregressive::new(trunk, params)?),
        })
    }

    /// `trunk` `[rows, width]`; the classes wanted, the classes of the frame before and the random numbers are inputs of the pass.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V) -> Result<Chosen<E>> {
        let (wanted, uniform) = (e.indices("action")?, e.input("uniform")?);
        match self {
            Self::Independent(h) => h.forward(e, trunk, &wanted, &uniform),
            Self::Autoregressive(h) => h.forward(e, trunk, &wanted, &uniform),
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

/// Logits of group `g`.
fn logits(g: usize) -> usize {
    let Choice { column, columns, .. } = choice(g);
    columns * COMPONENTS[column].logits()
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
        let out = (0..GROUPS).map(|g| Linear::new(Self::WIDTHS[g], logits(g), &params.pp(KEYS[g])));
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

/// A residual stream: each component reads the stream and its own class of the frame before, and adds what was chosen.
pub(super) struct Autoregressive {
    stream: Linear,
    components: Vec<Component>,
}

struct Component {
    /// The stream into the inner layer.
    hidden: Linear,
    /// The class of the frame before into the inner layer: one row per class of each column.
    previous: Tensor,
    out: Linear,
    /// What a chosen class adds to the stream; zero at the start.
    chosen: Option<Tensor>,
    /// Columns of this component inside the action, and the table row of each column's class 0.
    columns: Vec<(usize, usize)>,
    /// The same inside the component's own classes.
    own: Vec<(usize, usize)>,
}

impl Autoregressive {
    fn new(trunk: usize, params: &Params) -> Result<Self> {
        let component = |g: usize| {
            let (params, Choice { column, columns, classes }) = (params.pp(KEYS[g]), choice(g));
            let table = |name: &str, init: Init| params.get(name, &[columns * classes, STREAM], init);
            Ok(Component {
                hidden: Linear::new(STREAM, STREAM, &params.pp("hidden"))?,
                previous: table("previous", Init::Normal(0.1))?,
                out: Linear::new(STREAM, logits(g), &params.pp("out"))?,
                // Nothing reads the stream behind the last group.
                chosen: (g + 1 < GROUPS).then(|| table("chosen", Init::Constant(0.0))).transpose()?,
                columns: (0..columns).map(|i| (column + i, i * classes)).collect(),
                own: (0..columns).map(|i| (i, i * classes)).collect(),
            })
        };
        Ok(Self {
            stream: Linear::new(trunk, STREAM, &params.pp("stream"))?,
            components: (0..GROUPS).map(component).collect::<Result<_>>()?,
        })
    }

    fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, wanted: &E::I, uniform: &E::V) -> Result<Chosen<E>> {
        let previous = e.indices("previous_action")?;
        let mut stream = e.linear(trunk, &self.stream, Activation::None)?;
        let (mut logits, mut classes) = (Vec::with_capacity(6), Vec::with_capacity(6));
        for (g, part) in self.components.iter().enumerate() {
            let h = e.linear(&stream, &part.hidden, Activation::None)?;
            let h = e.add_rows(&h, &part.previous, &previous, &part.columns, Activation::Relu)?;
            let l = e.linear(&h, &part.out, Activation::None)?;
            let class = e.choose(&l, wanted, uniform, choice(g))?;
            if let Some(chosen) = &part.chosen {
                stream = e.add_rows(&stream, chosen, &class, &part.own, Activation::None)?;
            }
            logits.push(l);
            classes.push(class);
        }
        Ok(Chosen { logits: e.join(&logits)?, action: e.join_indices(&classes)? })
    }
}
