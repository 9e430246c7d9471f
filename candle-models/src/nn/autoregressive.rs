//! Autoregressive heads: how they start. What they compute stands in `ops/heads`.

use super::{Init, Linear, Params};
use crate::exec::{Choice, Executor, Values};
pub use crate::ops::Autoregressive;
use crate::ops::{HeadComponent, Prior};
use crate::{Error, Result};

impl Autoregressive {
    /// Over a trunk of `trunk` values; the stream and the layer inside each component have `width`. The components come with
    /// their names.
    ///
    /// `given`, if there is a prior, names for each component the columns of the same frame that its prior knows beside the component's own last
    /// two classes. Its logits then begin with a row of the table `prior` `[columns * contexts, logits]`, which training leaves as it is: zeros
    /// until somebody sets them.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape, or a prior knows a column that no component before holds.
    pub fn new(trunk: usize, width: usize, components: &[(&str, Choice)], given: Option<&[&[usize]]>, params: &Params) -> Result<Self> {
        let component = |g: usize| {
            let (name, choice @ Choice { column, columns, classes }) = components[g];
            let params = params.pp(name);
            let table = |name: &str, init: Init| params.get(name, &[columns * classes, width], init);
            let prior = |given: &&[usize]| {
                let before = |column: &usize| {
                    let holds = |(_, c): &&(&str, Choice)| (c.column..c.column + c.columns).contains(column);
                    let found = components[..g].iter().find(holds).map(|(_, c)| (*column, c.classes));
                    found.ok_or_else(|| Error::Input(format!("the prior of {name}: no component before it holds column {column}")))
                };
                let given = given.iter().map(before).collect::<Result<Vec<_>>>()?;
                let rows = columns * Prior::contexts(choice, &given);
                Ok::<_, Error>(Prior { table: params.frozen("prior", &[rows, choice.logits()], Init::Constant(0.0))?, given })
            };
            Ok(HeadComponent {
                prior: given.and_then(|given| given.get(g)).map(prior).transpose()?,
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

    /// `trunk` `[rows, trunk]`; in `ids` the classes of the frame before and those wanted of this one, with a prior also those of the frame before
    /// the last; and a random number for each column in `uniform`: the logits of all components side by side and the classes.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, ids: &[&E::I], uniform: &E::V) -> Result<(E::V, E::I)> {
        let Values { floats, ids } = e.block(self, &[trunk, uniform], ids)?;
        let (Some(logits), Some(classes)) = (floats.into_iter().next(), ids.into_iter().next()) else {
            return Err(Error::Input("heads without logits or classes".to_owned()));
        };
        Ok((logits, classes))
    }
}
