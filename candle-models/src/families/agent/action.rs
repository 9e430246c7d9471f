//! What an agent does in a frame: components, each of one or several columns of classes, or of numbers.

use super::observation::{range, validate_range};
use crate::exec::Choice;
use crate::nn::within;
use crate::ops::gaussian::Gaussian;
use crate::signature::TensorSpec;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A component of an action, under a name of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Component {
    /// One of several classes.
    Discrete {
        /// The name.
        name: String,
        /// How many, 2 to 65536.
        classes: usize,
    },
    /// One of several classes in each of several columns, independent of each other.
    MultiDiscrete {
        /// The name.
        name: String,
        /// How many in each column, 2 to 65536.
        classes: usize,
        /// Columns, 1 to 256.
        columns: usize,
    },
    /// Switches that are on (1) or off (0), independent of each other.
    Binary {
        /// The name.
        name: String,
        /// Switches, 1 to 256.
        count: usize,
    },
    /// A number, as the class of one of several bins of equal width. The network also gives the number at the centre of the bin, in an output
    /// of the component's name.
    Binned {
        /// The name.
        name: String,
        /// Where the first bin begins.
        low: f64,
        /// Where the last bin ends.
        high: f64,
        /// How many, 2 to 65536.
        bins: usize,
    },
    /// Numbers, each from a normal distribution whose mean and deviation the network says. They have no class: the network gives them in an
    /// output of the component's name.
    Gaussian {
        /// The name.
        name: String,
        /// How many numbers, 1 to 256. Default: 1.
        #[serde(default = "one")]
        columns: usize,
        /// The smallest number that is recorded and given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        low: Option<f64>,
        /// The largest number that is recorded and given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        high: Option<f64>,
    },
}

fn one() -> usize {
    1
}

impl Component {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Discrete { name, .. }
            | Self::MultiDiscrete { name, .. }
            | Self::Binary { name, .. }
            | Self::Binned { name, .. }
            | Self::Gaussian { name, .. } => name,
        }
    }

    /// Columns of the action that it has: a class each.
    pub fn columns(&self) -> usize {
        match self {
            Self::Discrete { .. } | Self::Binned { .. } => 1,
            Self::MultiDiscrete { columns, .. } => *columns,
            Self::Binary { count, .. } => *count,
            Self::Gaussian { .. } => 0,
        }
    }

    /// Numbers that it gives from normal distributions.
    pub fn numbers(&self) -> usize {
        if let Self::Gaussian { columns, .. } = self { *columns } else { 0 }
    }

    /// How its numbers are recorded and given; `None` where it has classes.
    pub fn recorded(&self) -> Option<TensorSpec> {
        let Self::Gaussian { name, columns, low, high } = self else { return None };
        Some(TensorSpec::f32(name, &[*columns]).within(range(*low, *high)))
    }

    /// How its numbers are drawn; `None` where it has classes.
    pub fn gaussian(&self) -> Option<Gaussian> {
        let Self::Gaussian { low, high, .. } = self else { return None };
        let bound = |bound: &Option<f64>, none: f32| bound.map_or(none, |bound| bound as f32);
        Some(Gaussian { low: bound(low, f32::NEG_INFINITY), high: bound(high, f32::INFINITY) })
    }

    /// Classes of each of its columns. Two classes have one logit, that of class 1 against class 0.
    pub fn classes(&self) -> usize {
        match self {
            Self::Discrete { classes, .. } | Self::MultiDiscrete { classes, .. } => *classes,
            Self::Binary { .. } => 2,
            Self::Binned { bins, .. } => *bins,
            Self::Gaussian { .. } => 0,
        }
    }

    /// The class that stands for the action before the first frame: the bin in the middle, the first class otherwise.
    pub fn neutral(&self) -> u32 {
        match self {
            Self::Binned { bins, .. } => *bins as u32 / 2,
            _ => 0,
        }
    }

    /// The numbers at the centres of the bins; `None` where classes are no numbers.
    pub fn centres(&self) -> Option<Vec<f32>> {
        let Self::Binned { low, high, bins, .. } = self else { return None };
        let width = (high - low) / *bins as f64;
        Some((0..*bins).map(|bin| (low + (bin as f64 + 0.5) * width) as f32).collect())
    }

    /// How it is chosen, from the action's column `column` on.
    pub fn choice(&self, column: usize) -> Choice {
        Choice { column, columns: self.columns(), classes: self.classes() }
    }

    /// Names the field that is out of range, as a part of `action.NAME`.
    pub(super) fn validate(&self) -> Result<()> {
        let place = |field: &str| format!("action.{}.{field}", self.name());
        if let Self::Gaussian { columns, low, high, .. } = self {
            within(&place("columns"), *columns, 1..=256)?;
            return validate_range(&place("low"), (*low, *high));
        }
        let number = if matches!(self, Self::Binned { .. }) { "bins" } else { "classes" };
        within(&place(number), self.classes(), 2..=65536)?;
        within(&place(if matches!(self, Self::Binary { .. }) { "count" } else { "columns" }), self.columns(), 1..=256)?;
        if let Self::Binned { low, high, .. } = self {
            // As f32, in which the network gives them.
            let (low, high) = (*low as f32, *high as f32);
            if !(low < high && (high - low).is_finite()) {
                return Err(Error::config(place("low"), format!("expected a number below high {high}, found {low}")));
            }
        }
        Ok(())
    }
}
