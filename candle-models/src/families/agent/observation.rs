//! What an agent sees in a frame: named inputs.

use crate::nn::within;
use crate::ops::conv2d::Conv2dShape;
use crate::ops::pool2d::{Pool2d, Pooling};
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
    /// A grid of numbers, channels last, through convolutions, each with layer norm over the channels and GELU, and pooling if you like.
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
    /// A sequence of numbers within a frame, channels last: samples of a signal, a list of things in order. Through convolutions over its length, as a
    /// grid of height 1.
    Sequence {
        /// The name.
        name: String,
        /// Places.
        length: usize,
        /// Numbers in each place.
        channels: usize,
        /// The convolutions, at most 16; without one the numbers are taken as they are.
        layers: Vec<SequenceConvConfig>,
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
    /// What is left of its result. Default: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolConfig>,
}

fn one() -> [usize; 2] {
    [1, 1]
}

/// Pooling behind a convolution; pairs are down and across.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// `max` or `average`.
    pub kind: Pooling,
    /// Height and width of a patch.
    pub kernel: [usize; 2],
    /// From a patch to the next. Default: patches that touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<[usize; 2]>,
}

/// A convolution over the length of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceConvConfig {
    /// Channels that it gives, 4 to 1024.
    pub channels: usize,
    /// Length of a patch, 1 to 1024.
    pub kernel: usize,
    /// From a patch to the next.
    #[serde(default = "step")]
    pub stride: usize,
    /// Zeros before and behind the input.
    #[serde(default)]
    pub padding: usize,
    /// What is left of its result. Default: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<SequencePoolConfig>,
}

fn step() -> usize {
    1
}

/// Pooling over the length of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequencePoolConfig {
    /// `max` or `average`.
    pub kind: Pooling,
    /// Length of a patch.
    pub kernel: usize,
    /// From a patch to the next. Default: patches that touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<usize>,
}

impl From<SequenceConvConfig> for ConvConfig {
    fn from(SequenceConvConfig { channels, kernel, stride, padding, pool }: SequenceConvConfig) -> Self {
        let pool = pool.map(|SequencePoolConfig { kind, kernel, stride }| PoolConfig {
            kind,
            kernel: [1, kernel],
            stride: stride.map(|stride| [1, stride]),
        });
        Self { channels, kernel: [1, kernel], stride: [1, stride], padding: [0, padding], pool }
    }
}

/// The sizes of a convolution with what is behind it.
#[derive(Debug, Clone, Copy)]
pub struct ConvSizes {
    /// Of the convolution.
    pub convolution: Conv2dShape,
    /// Channels that it gives.
    pub channels: usize,
    /// What is left of its result.
    pub pool: Option<Pool2d>,
}

impl ConvSizes {
    /// Height and width of the result.
    ///
    /// # Errors
    /// Those of [`Conv2dShape::output`].
    pub fn output(&self) -> Result<[usize; 2]> {
        self.pool.map_or_else(|| self.convolution.output(), |pool| Ok(pool.output()))
    }
}

impl Observation {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Floats { name, .. } | Self::Ids { name, .. } | Self::Grid { name, .. } | Self::Sequence { name, .. } => name,
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
            Self::Sequence { name, length, channels, .. } => {
                TensorSpec::f32(name, &[*length, *channels]).says("a sequence of numbers, channels last")
            }
        }
    }

    /// Its convolutions, those of a sequence as over a grid of height 1.
    fn layers(&self) -> Vec<ConvConfig> {
        match self {
            Self::Grid { layers, .. } => layers.clone(),
            Self::Sequence { layers, .. } => layers.iter().copied().map(ConvConfig::from).collect(),
            Self::Floats { .. } | Self::Ids { .. } => Vec::new(),
        }
    }

    /// The sizes of the convolutions of a grid or a sequence; none for other kinds.
    ///
    /// # Errors
    /// If a patch is larger than what it is taken from, in words that name the layer.
    pub fn convolutions(&self) -> Result<Vec<ConvSizes>> {
        let (mut input, mut before) = match self {
            Self::Grid { height, width, channels, .. } => ([*height, *width], *channels),
            Self::Sequence { length, channels, .. } => ([1, *length], *channels),
            Self::Floats { .. } | Self::Ids { .. } => return Ok(Vec::new()),
        };
        let (name, mut sizes) = (self.name(), Vec::new());
        for (i, ConvConfig { channels, kernel, stride, padding, pool }) in self.layers().iter().enumerate() {
            let too_large = |field, [height, width]: [usize; 2], kernel: &[usize; 2], behind: String| {
                Error::config(place(name, i, field), format!("no patch of {kernel:?} fits into {height} x {width}{behind}"))
            };
            let convolution = Conv2dShape { input, channels: before, kernel: *kernel, stride: *stride, padding: *padding };
            let behind = convolution.output().map_err(|_| too_large("kernel", input, kernel, format!(" with padding {padding:?}")))?;
            let pooled = |pool: &PoolConfig| {
                let (kernel, stride) = (pool.kernel, pool.stride.unwrap_or(pool.kernel));
                let shape = Conv2dShape { input: behind, channels: *channels, kernel, stride, padding: [0, 0] };
                Pool2d::new(pool.kind, shape).map_err(|_| too_large("pool.kernel", behind, &kernel, String::new()))
            };
            let layer = ConvSizes { convolution, channels: *channels, pool: pool.as_ref().map(pooled).transpose()? };
            (input, before) = (layer.output()?, *channels);
            sizes.push(layer);
        }
        Ok(sizes)
    }

    /// Numbers that it brings to the first layer, looked up or not.
    ///
    /// # Errors
    /// As [`Self::convolutions`].
    pub fn width(&self) -> Result<usize> {
        Ok(match self {
            Self::Ids { below, embedding, .. } => below.len() * embedding,
            _ => match self.convolutions()?.last() {
                Some(last) => last.output()?.iter().product::<usize>() * last.channels,
                None => self.spec().width(),
            },
        })
    }

    /// Names the field that is out of range, as a part of `observation.NAME`.
    pub(crate) fn validate(&self) -> Result<()> {
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
                self.validate_layers(64)
            }
            Self::Sequence { length, channels, layers, .. } => {
                within(&place("channels"), *channels, 1..=4096)?;
                within(&place("length"), *length, 1..=VALUES / channels)?;
                within(&place("layers"), layers.len(), 0..=16)?;
                self.validate_layers(1024)
            }
        }
    }

    /// Sides of a patch and steps are at most `most`.
    fn validate_layers(&self, most: usize) -> Result<()> {
        for (i, ConvConfig { channels, kernel, stride, padding, pool }) in self.layers().iter().enumerate() {
            // The norm over the channels leaves nothing of one and only a sign of two.
            within(&place(self.name(), i, "channels"), *channels, 4..=1024)?;
            for axis in 0..2 {
                within(&place(self.name(), i, "kernel"), kernel[axis], 1..=most)?;
                within(&place(self.name(), i, "stride"), stride[axis], 1..=most)?;
                within(&place(self.name(), i, "padding"), padding[axis], 0..=kernel[axis] - 1)?;
                if let Some(PoolConfig { kernel, stride, .. }) = pool {
                    within(&place(self.name(), i, "pool.kernel"), kernel[axis], 1..=most)?;
                    within(&place(self.name(), i, "pool.stride"), stride.unwrap_or(*kernel)[axis], 1..=most)?;
                }
            }
        }
        for (i, ConvSizes { convolution: shape, channels, .. }) in self.convolutions()?.into_iter().enumerate() {
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
