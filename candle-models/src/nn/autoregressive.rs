//! Autoregressive heads: how they start. What they compute stands in `ops/heads`.

use super::{Init, Linear, Params};
use crate::exec::{Choice, Executor, Values};
pub use crate::ops::Autoregressive;
use crate::ops::HeadComponent;
use crate::{Error, Result};

impl Autoregressive {
    /// Over a trunk of `trunk` values; the stream and the layer inside each component have `width`. The components come with
    /// their names.
    pub fn new(trunk: usize, width: usize, components: &[(&str, Choice)], params: &Params) -> Result<Self> {
        let component = |g: usize| {
            let (name, choice @ Choice { column, columns, classes }) = components[g];
            let params = params.pp(name);
            let table = |name: &str, init: Init| params.get(name, &[columns * classes, width], init);
            Ok(HeadComponent {
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
        let Values { floats, ids } = e.block(self, &[trunk, uniform], &[previous, wanted])?;
        let (Some(logits), Some(classes)) = (floats.into_iter().next(), ids.into_iter().next()) else {
            return Err(Error::Input("heads without logits or classes".to_owned()));
        };
        Ok((logits, classes))
    }
}
