//! Choices one after the other over a residual stream: each reads the stream and its own class of the frame before, and adds
//! what was chosen to the stream that the next one reads.

use super::{Init, Linear, Params};
use crate::Result;
use crate::exec::{Choice, Executor};
use crate::ops::{Activation, ChoiceGroup, ChoiceWeights};
use candle_core::Tensor;

/// Logits for several components, each under those before it.
#[derive(Debug, Clone)]
pub struct Autoregressive {
    /// The trunk into the stream.
    pub(crate) stream: Linear,
    pub(crate) components: Vec<Component>,
}

/// One component of an action.
#[derive(Debug, Clone)]
pub(crate) struct Component {
    pub choice: Choice,
    /// The stream into the inner layer.
    pub hidden: Linear,
    /// The class of the frame before into the inner layer: one row per class of each column.
    pub previous: Tensor,
    pub out: Linear,
    /// What a chosen class adds to the stream; zero at the start.
    pub chosen: Option<Tensor>,
    /// Columns of this component inside the action, and the table row of each column's class 0.
    columns: Vec<(usize, usize)>,
    /// The same inside the component's own classes.
    own: Vec<(usize, usize)>,
}

impl Autoregressive {
    /// Over a trunk of `trunk` values; the stream and the layer inside each component have `width`. The components come with
    /// their names.
    pub fn new(trunk: usize, width: usize, components: &[(&str, Choice)], params: &Params) -> Result<Self> {
        let component = |g: usize| {
            let (name, choice @ Choice { column, columns, classes }) = components[g];
            let params = params.pp(name);
            let table = |name: &str, init: Init| params.get(name, &[columns * classes, width], init);
            Ok(Component {
                choice,
                hidden: Linear::new(width, width, &params.pp("hidden"))?,
                previous: table("previous", Init::Normal(0.1))?,
                out: Linear::new(width, choice.logits(), &params.pp("out"))?,
                // Nothing reads the stream behind the last component.
                chosen: (g + 1 < components.len()).then(|| table("chosen", Init::Constant(0.0))).transpose()?,
                columns: (0..columns).map(|i| (column + i, i * classes)).collect(),
                own: (0..columns).map(|i| (i, i * classes)).collect(),
            })
        };
        Ok(Self {
            stream: Linear::new(trunk, width, &params.pp("stream"))?,
            components: (0..components.len()).map(component).collect::<Result<_>>()?,
        })
    }

    /// `trunk` `[rows, trunk]`, the classes of the frame `previous` and those `wanted` of this one, and a random number for each
    /// column in `uniform`: the logits of all components side by side and the classes.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, [previous, wanted]: [&E::I; 2], uniform: &E::V) -> Result<(E::V, E::I)> {
        e.autoregressive(trunk, self, [previous, wanted], uniform)
    }

    /// The same, operation by operation.
    pub(crate) fn compose<E: Executor>(
        &self,
        e: &mut E,
        trunk: &E::V,
        [previous, wanted]: [&E::I; 2],
        uniform: &E::V,
    ) -> Result<(E::V, E::I)> {
        let mut stream = e.linear(trunk, &self.stream, Activation::None)?;
        let (mut logits, mut classes) = (Vec::new(), Vec::new());
        for part in &self.components {
            let h = e.linear(&stream, &part.hidden, Activation::None)?;
            let h = e.add_rows(&h, &part.previous, previous, &part.columns, Activation::Relu)?;
            let l = e.linear(&h, &part.out, Activation::None)?;
            let class = e.choose(&l, wanted, uniform, part.choice)?;
            if let Some(chosen) = &part.chosen {
                stream = e.add_rows(&stream, chosen, &class, &part.own, Activation::None)?;
            }
            logits.push(l);
            classes.push(class);
        }
        Ok((e.join(&logits)?, e.join_indices(&classes)?))
    }

    /// What is chosen, in its order.
    pub(crate) fn choices(&self) -> impl Iterator<Item = Choice> {
        self.components.iter().map(|c| c.choice)
    }

    /// Shapes and parameters, for all components as one operation.
    pub(crate) fn weights(&self) -> Result<(Vec<ChoiceGroup>, ChoiceWeights<'_>)> {
        let groups = self.choices().map(|c| ChoiceGroup { columns: c.columns, classes: c.classes, logits: c.logits() }).collect();
        let of = |layer: fn(&Component) -> &Linear| self.components.iter().map(layer).map(Linear::pair).collect::<Result<Vec<_>>>();
        let weights = ChoiceWeights {
            stream: self.stream.pair()?,
            hidden: of(|c| &c.hidden)?,
            previous: self.components.iter().map(|c| &c.previous).collect(),
            out: of(|c| &c.out)?,
            chosen: self.components.iter().filter_map(|c| c.chosen.as_ref()).collect(),
        };
        Ok((groups, weights))
    }
}
