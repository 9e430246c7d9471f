//! What an agent sees in a frame: named inputs.

use crate::nn::within;
use crate::ops::conv2d::Conv2dShape;
use crate::signature::{ANY, TensorSpec};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Values of an input at most, and of the patches of a convolution: a description from elsewhere must not ask for absurd memory.
const VALUES: usize = 1 << 22;

/// An input of every frame, under a name of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Observation {
    /// Numbers. They should be of the order of one: a network learns slowly from others.
    Floats {
        /// The name.
        name: String,
        /// The shape of a frame.
        shape: Vec<usize>,
        /// The smallest number that is taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        low: Option<f64>,
        /// The largest number that is taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        high: Option<f64>,
    },
    /// Indices, each looked up in a learned table of its column.
    Ids {
        /// The name.
        name: String,
        /// For each column how many values its index can take.
        below: Vec<u32>,
        /// Width of a row of the tables, 1 to 512.
        embedding: usize,
    },
    /// A grid of numbers, channels last, through convolutions, each with layer norm over the channels and GELU.
    Grid {
        /// The name.
        name: String,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Numbers in each place.
        channels: usize,
        /// The convolutions, at most 16; without one the numbers are taken as they are.
        layers: Vec<ConvConfig>,
    },
}

/// A convolution; pairs are down and across.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvConfig {
    /// Channels that it gives, 4 to 1024.
    pub channels: usize,
    /// Height and width of a patch.
    pub kernel: [usize; 2],
    /// From a patch to the next.
    #[serde(default = "one")]
    pub stride: [usize; 2],
    /// Zeros around the input, on every side.
    #[serde(default)]
    pub padding: [usize; 2],
}

fn one() -> [usize; 2] {
    [1, 1]
}

impl Observation {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Floats { name, .. } | Self::Ids { name, .. } | Self::Grid { name, .. } => name,
        }
    }

    /// What the signature says of it.
    pub fn spec(&self) -> TensorSpec {
        match self {
            Self::Floats { name, shape, low, high } => {
                let spec = TensorSpec::f32(name, shape).says("numbers");
                if low.is_none() && high.is_none() { spec } else { spec.within(range(*low, *high)) }
            }
            Self::Ids { name, below, .. } => TensorSpec::u32(name, &[below.len()]).below(below).says("indices into learned tables"),
            Self::Grid { name, height, width, channels, .. } => {
                TensorSpec::f32(name, &[*height, *width, *channels]).says("a grid of numbers, channels last")
            }
        }
    }

    /// The sizes of the convolutions of a grid, with the channels that each gives; none for other kinds.
    ///
    /// # Errors
    /// If a patch is larger than what it is taken from, in words that name the layer.
    pub fn convolutions(&self) -> Result<Vec<(Conv2dShape, usize)>> {
        let Self::Grid { name, height, width, channels, layers } = self else { return Ok(Vec::new()) };
        let (mut input, mut before, mut shapes) = ([*height, *width], *channels, Vec::new());
        for (i, ConvConfig { channels, kernel, stride, padding }) in layers.iter().enumerate() {
            let shape = Conv2dShape { input, channels: before, kernel: *kernel, stride: *stride, padding: *padding };
            input = shape.output().map_err(|_| {
                let [height, width] = input;
                Error::config(
                    place(name, i, "kernel"),
                    format!("no patch of {kernel:?} fits into {height} x {width} with padding {padding:?}"),
                )
            })?;
            shapes.push((shape, *channels));
            before = *channels;
        }
        Ok(shapes)
    }

    /// Numbers that it brings to the first layer, looked up or not.
    ///
    /// # Errors
    /// As [`Self::convolutions`].
    pub fn width(&self) -> Result<usize> {
        Ok(match self {
            Self::Ids { below, embedding, .. } => below.len() * embedding,
            _ => match self.convolutions()?.last() {
                Some((shape, channels)) => shape.output()?.iter().product::<usize>() * channels,
                None => self.spec().width(),
            },
        })
    }

    /// Names the field that is out of range, as a part of `observation.NAME`.
    pub(super) fn validate(&self) -> Result<()> {
        let place = |field: &str| format!("observation.{}.{field}", self.name());
        match self {
            Self::Floats { shape, low, high, .. } => {
                within(&place("shape"), shape.len(), 1..=4)?;
                shape.iter().try_for_each(|side| within(&place("shape"), *side, 1..=VALUES))?;
                within(&place("shape"), shape.iter().fold(1, |product: usize, side| product.saturating_mul(*side)), 1..=VALUES)?;
                validate_range(&place("low"), (*low, *high))
            }
            Self::Ids { below, embedding, .. } => {
                within(&place("below"), below.len(), 1..=4096)?;
                below.iter().try_for_each(|below| within(&place("below"), *below as usize, 1..=VALUES))?;
                within(&place("embedding"), *embedding, 1..=512)?;
                within(&place("below"), below.iter().map(|below| *below as usize * embedding).sum(), 1..=1 << 27)
            }
            Self::Grid { height, width, channels, layers, .. } => {
                for (field, side) in [("height", height), ("width", width), ("channels", channels)] {
                    within(&place(field), *side, 1..=4096)?;
                }
                within(&place("height"), height * width * channels, 1..=VALUES)?;
                within(&place("layers"), layers.len(), 0..=16)?;
                self.validate_layers(layers)
            }
        }
    }

    fn validate_layers(&self, layers: &[ConvConfig]) -> Result<()> {
        for (i, ConvConfig { channels, kernel, stride, padding }) in layers.iter().enumerate() {
            // The norm over the channels leaves nothing of one and only a sign of two.
            within(&place(self.name(), i, "channels"), *channels, 4..=1024)?;
            for axis in 0..2 {
                within(&place(self.name(), i, "kernel"), kernel[axis], 1..=64)?;
                within(&place(self.name(), i, "stride"), stride[axis], 1..=64)?;
                within(&place(self.name(), i, "padding"), padding[axis], 0..=kernel[axis] - 1)?;
            }
        }
        for (i, (shape, channels)) in self.convolutions()?.into_iter().enumerate() {
            let (places, patch) = (shape.output()?.iter().product::<usize>(), shape.kernel.iter().product::<usize>() * shape.channels);
            within(&place(self.name(), i, "kernel"), places * patch.max(channels), 1..=VALUES)?;
        }
        Ok(())
    }
}

fn place(name: &str, layer: usize, field: &str) -> String {
    format!("observation.{name}.layers.{layer}.{field}")
}

/// Refuses limits that are no numbers or have nothing between them, by the name of the field.
pub(super) fn validate_range(field: &str, (low, high): (Option<f64>, Option<f64>)) -> Result<()> {
    let number = |limit: Option<f64>| limit.is_none_or(|limit| (limit as f32).is_finite());
    let Range { start, end } = range(low, high);
    if !number(low) || !number(high) || start >= end {
        let found = |limit: Option<f64>| limit.map_or("nothing".to_owned(), |limit| limit.to_string());
        return Err(Error::config(field, format!("expected numbers, low below high, found {} and {}", found(low), found(high))));
    }
    Ok(())
}

/// The numbers from `low` to `high`, both of them included.
pub(super) fn range(low: Option<f64>, high: Option<f64>) -> Range<f32> {
    low.map_or(ANY.start, |low| low as f32)..high.map_or(ANY.end, |high| (high as f32).next_up())
}
