//! From the trunk of a network to an action of several components.

use super::{Autoregressive, Init, Linear, Params};
use crate::exec::{Choice, Executor};
use crate::ops::Activation;
use crate::ops::gaussian::Gaussian;
use crate::{Error, Result};
use candle_core::Tensor;
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
    /// Each component from the trunk and the components before it; numbers, which nothing else knows, from the trunk and all classes.
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

/// What a head gives.
#[derive(Debug, Clone, Copy)]
pub enum Head {
    /// A class in each of its columns.
    Classes(Choice),
    /// Numbers from normal distributions.
    Numbers {
        /// Its first random number in a row of them.
        column: usize,
        /// How many numbers.
        columns: usize,
        /// Their bounds.
        gaussian: Gaussian,
    },
}

impl Head {
    /// What its last layer gives: logits, or means and what deviations are made of.
    fn outputs(self) -> usize {
        match self {
            Self::Classes(choice) => choice.logits(),
            Self::Numbers { columns, .. } => 2 * columns,
        }
    }
}

/// What heads have decided, and how sure they were.
#[derive(Debug, Clone)]
pub struct Decision<V, I> {
    /// Logits of the components of classes side by side, and the classes; `None` where there are no such components.
    pub classes: Option<(V, I)>,
    /// The numbers of each component of numbers.
    pub numbers: Vec<V>,
    /// Of each component of numbers the means, and behind them the logarithms of the standard deviations.
    pub distributions: Vec<V>,
}

impl<V, I> Decision<V, I> {
    /// The logits of all components side by side and the classes.
    ///
    /// # Errors
    /// If there is no component of classes.
    pub fn into_classes(self) -> Result<(V, I)> {
        self.classes.ok_or_else(|| Error::Input("heads without a component of classes".to_owned()))
    }
}

/// Heads that choose every component from the trunk alone. Each: a layer with ReLU, then its logits, or its means and deviations. The first layers
/// are one product.
#[derive(Debug, Clone)]
pub struct IndependentHeads {
    hidden: Linear,
    components: Vec<(usize, Head, Linear)>,
}

impl IndependentHeads {
    /// Over a trunk of `trunk` values. The components come with their names and the widths of their first layers.
    pub fn new(trunk: usize, components: &[(&str, usize, Head)], params: &Params) -> Result<Self> {
        let hidden = Linear::new(trunk, components.iter().map(|(_, width, _)| width).sum(), &params.pp("hidden"))?;
        let out = |&(name, width, head): &(&str, usize, Head)| Ok((width, head, Linear::new(width, head.outputs(), &params.pp(name))?));
        Ok(Self { hidden, components: components.iter().map(out).collect::<Result<_>>()? })
    }

    /// From `trunk` `[rows, trunk]`. The classes wanted, where there are any, and a random number for each column and each number are the inputs
    /// `action` and `uniform` of the pass.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V) -> Result<Decision<E::V, E::I>> {
        let hidden = e.linear(trunk, &self.hidden, Activation::Relu)?;
        self.decide(e, &hidden)
    }

    /// From the first layers.
    fn decide<E: Executor>(&self, e: &mut E, hidden: &E::V) -> Result<Decision<E::V, E::I>> {
        let any = self.components.iter().any(|(_, head, _)| matches!(head, Head::Classes(_)));
        let wanted = any.then(|| e.indices("action")).transpose()?;
        let uniform = e.input("uniform")?;
        let (mut logits, mut classes, mut start) = (Vec::new(), Vec::new(), 0);
        let (mut numbers, mut distributions) = (Vec::new(), Vec::new());
        for (width, head, out) in &self.components {
            let x = e.columns(hidden, start, *width)?;
            start += width;
            let l = e.linear(&x, out, Activation::None)?;
            match (*head, &wanted) {
                (Head::Classes(choice), Some(wanted)) => {
                    classes.push(e.choose(&l, wanted, &uniform, choice)?);
                    logits.push(l);
                }
                (Head::Classes(_), None) => {}
                (Head::Numbers { column, columns, gaussian }, _) => {
                    let uniform = e.columns(&uniform, column, columns)?;
                    let drawn = e.apply(gaussian, &[&l, &uniform])?;
                    numbers.push(e.columns(&drawn, 0, columns)?);
                    distributions.push(e.columns(&drawn, columns, 2 * columns)?);
                }
            }
        }
        let classes = if any { Some((e.join(&logits)?, e.join_indices(&classes)?)) } else { None };
        Ok(Decision { classes, numbers, distributions })
    }
}

/// Heads of numbers that know what heads of classes have chosen: to the first layer's result comes a row of a table for each class.
#[derive(Debug, Clone)]
pub struct NumbersBehindClasses {
    chosen: Tensor,
    columns: Vec<(usize, usize)>,
    numbers: IndependentHeads,
}

impl NumbersBehindClasses {
    /// Behind those choices, in the order of their columns.
    fn new(trunk: usize, choices: &[(&str, Choice)], numbers: &[(&str, usize, Head)], params: &Params) -> Result<Self> {
        let (mut columns, mut rows) = (Vec::new(), 0);
        for (_, choice) in choices {
            for column in choice.column..choice.column + choice.columns {
                columns.push((column, rows));
                rows += choice.classes;
            }
        }
        let numbers = IndependentHeads::new(trunk, numbers, params)?;
        let chosen = params.get("chosen", &[rows, numbers.hidden.weight.dim(1)?], Init::Constant(0.0))?;
        Ok(Self { chosen, columns, numbers })
    }

    fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, classes: &E::I) -> Result<Decision<E::V, E::I>> {
        let hidden = e.linear(trunk, &self.numbers.hidden, Activation::None)?;
        let hidden = e.add_rows(&hidden, &self.chosen, classes, &self.columns, Activation::Relu)?;
        self.numbers.decide(e, &hidden)
    }
}

/// Heads of either kind, over the inputs `action`, `uniform` and, where they read the frame before, `previous_action`.
#[derive(Debug, Clone)]
pub enum ActionHeads {
    /// Each component from the trunk alone.
    Independent(IndependentHeads),
    /// Each component of classes from the trunk, the components before it and itself in the frame before; behind them the numbers, if there are
    /// some.
    Autoregressive(Autoregressive, Option<NumbersBehindClasses>),
}

impl ActionHeads {
    /// Over a trunk of `trunk` values. The components come in the order of their columns, with their names and the widths of the layers inside
    /// those that know no class before them; `stream` is the width of the autoregressive stream and of the layer inside each of its components.
    /// `given` as [`Autoregressive::new`] has it.
    ///
    /// # Errors
    /// If autoregressive heads have no component of classes, independent ones a prior, or a parameter is missing or has another shape.
    pub fn new(
        kind: Heads,
        [trunk, stream]: [usize; 2],
        components: &[(&str, usize, Head)],
        given: Option<&[&[usize]]>,
        params: &Params,
    ) -> Result<Self> {
        if kind == Heads::Independent {
            if given.is_some() {
                return Err(Error::config("heads", "a prior needs autoregressive heads"));
            }
            return Ok(Self::Independent(IndependentHeads::new(trunk, components, params)?));
        }
        let (mut choices, mut numbers) = (Vec::new(), Vec::new());
        for &(name, width, head) in components {
            match head {
                Head::Classes(choice) => choices.push((name, choice)),
                Head::Numbers { .. } => numbers.push((name, width, head)),
            }
        }
        if choices.is_empty() {
            return Err(Error::config("heads", "autoregressive heads need a component of classes"));
        }
        let behind = |numbers: &[_]| NumbersBehindClasses::new(trunk, &choices, numbers, params);
        let numbers = if numbers.is_empty() { None } else { Some(behind(&numbers)?) };
        Ok(Self::Autoregressive(Autoregressive::new(trunk, stream, &choices, given, params)?, numbers))
    }

    /// From `trunk` `[rows, width]`. The classes wanted, those of the frame before and the random numbers are inputs of the pass; a prior asks for
    /// the classes of the frame before the last.
    pub fn forward<E: Executor>(&self, e: &mut E, trunk: &E::V, before: Option<&E::I>) -> Result<Decision<E::V, E::I>> {
        match self {
            Self::Independent(heads) => heads.forward(e, trunk),
            Self::Autoregressive(heads, numbers) => {
                let (wanted, uniform, previous) = (e.indices("action")?, e.input("uniform")?, e.indices("previous_action")?);
                let ids: Vec<&E::I> = [&previous, &wanted].into_iter().chain(before).collect();
                let (logits, classes) = heads.forward(e, trunk, &ids, &uniform)?;
                let decision = match numbers {
                    Some(numbers) => numbers.forward(e, trunk, &classes)?,
                    None => Decision { classes: None, numbers: Vec::new(), distributions: Vec::new() },
                };
                Ok(Decision { classes: Some((logits, classes)), ..decision })
            }
        }
    }
}
