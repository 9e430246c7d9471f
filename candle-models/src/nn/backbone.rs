//! The temporal part of a network: a list of blocks over the encoded observation.

use super::{Dense, FeedForward, Gru, Mamba, MambaConfig, Norm, Params, SlidingAttention};
use crate::exec::Executor;
use crate::ops::{Activation, Attention};
use crate::signature::TensorSpec;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The temporal part of a network, as plain data.
///
/// ```
/// use candle_models::nn::BackboneConfig;
///
/// let mlp = BackboneConfig::Mlp { layers: vec![128, 64] };
/// assert_eq!((mlp.kind(), mlp.inputs(256), mlp.outputs(256)), ("mlp", 128, 64));
/// assert_eq!(BackboneConfig::Gru { layers: 1 }.outputs(256), 256);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum BackboneConfig {
    /// Layers with layer norm and GELU; no memory. The last one's width is the trunk's.
    Mlp {
        /// Widths; the first layer reads the observation.
        layers: Vec<usize>,
    },
    /// Mamba blocks over the hidden width.
    Mamba {
        /// Blocks.
        layers: usize,
        /// Sizes of a block.
        #[serde(default)]
        block: MambaConfig,
    },
    /// Gated recurrent units over the hidden width.
    Gru {
        /// Layers.
        layers: usize,
    },
    /// Sliding-window attention, each followed by a feed-forward block.
    Attention {
        /// Pairs of blocks.
        layers: usize,
        /// Heads of a block.
        heads: usize,
        /// Frames that a frame sees, itself included.
        window: usize,
    },
    /// Mamba blocks with attention in every third place.
    Hybrid {
        /// Blocks in all.
        layers: usize,
        /// Sizes of a Mamba block.
        #[serde(default)]
        block: MambaConfig,
        /// Heads of an attention block.
        heads: usize,
        /// Frames that a frame sees, itself included.
        window: usize,
    },
}

impl BackboneConfig {
    /// The backbone of that kind with its usual sizes: `mlp`, `mamba`, `gru`, `attention` or `hybrid`.
    pub fn named(kind: &str) -> Option<Self> {
        Some(match kind {
            "mlp" => Self::Mlp { layers: vec![512, 512] },
            "mamba" => Self::Mamba { layers: 2, block: MambaConfig::default() },
            "gru" => Self::Gru { layers: 1 },
            "attention" => Self::Attention { layers: 2, heads: 4, window: 60 },
            "hybrid" => Self::Hybrid { layers: 6, block: MambaConfig::default(), heads: 4, window: 60 },
            _ => return None,
        })
    }

    /// The kinds that [`BackboneConfig::named`] knows.
    pub const KINDS: [&'static str; 5] = ["mlp", "mamba", "gru", "attention", "hybrid"];

    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mlp { .. } => "mlp",
            Self::Mamba { .. } => "mamba",
            Self::Gru { .. } => "gru",
            Self::Attention { .. } => "attention",
            Self::Hybrid { .. } => "hybrid",
        }
    }

    /// Width of what its first block reads, behind an encoder of `hidden` values.
    pub fn inputs(&self, hidden: usize) -> usize {
        match self {
            Self::Mlp { layers } => layers.first().copied().unwrap_or(hidden),
            _ => hidden,
        }
    }

    /// Width of what it gives.
    pub fn outputs(&self, hidden: usize) -> usize {
        match self {
            Self::Mlp { layers } => layers.last().copied().unwrap_or(hidden),
            _ => hidden,
        }
    }

    /// Frames that a frame sees, itself included, where it attends to a window of some.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Attention { window, .. } | Self::Hybrid { window, .. } => Some(*window),
            Self::Mlp { .. } | Self::Mamba { .. } | Self::Gru { .. } => None,
        }
    }

    /// `mamba 2x256 state 16`.
    pub fn name(&self, hidden: usize) -> String {
        match self {
            Self::Mlp { layers } => format!("mlp {}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join("-")),
            Self::Mamba { layers, block } => format!("mamba {layers}x{hidden} state {}", block.state),
            Self::Gru { layers } => format!("gru {layers}x{hidden}"),
            Self::Attention { layers, window, .. } => format!("attention {layers}x{hidden} window {window}"),
            Self::Hybrid { layers, window, .. } => format!("hybrid {layers}x{hidden} window {window}"),
        }
    }

    /// Names the field that is out of range, as a part of the configuration's `backbone`.
    ///
    /// # Errors
    /// If there is one. The limits keep a hostile file from asking for absurd memory.
    pub fn validate(&self, hidden: usize) -> Result<()> {
        match self {
            Self::Mlp { layers } => {
                within("backbone.layers", layers.len(), 1..=16)?;
                layers.iter().try_for_each(|w| within("backbone.layers", *w, 8..=8192))
            }
            Self::Mamba { layers, block } => within("backbone.layers", *layers, 1..=64).and(block.validate()),
            Self::Gru { layers } => within("backbone.layers", *layers, 1..=16),
            Self::Attention { layers, heads, window } => {
                within("backbone.layers", *layers, 1..=64)?;
                validate_attention(hidden, *heads, *window)
            }
            Self::Hybrid { layers, block, heads, window } => {
                within("backbone.layers", *layers, 1..=64)?;
                block.validate()?;
                validate_attention(hidden, *heads, *window)
            }
        }
    }
}

fn validate_attention(hidden: usize, heads: usize, window: usize) -> Result<()> {
    within("backbone.heads", heads, 1..=64)?;
    within("backbone.window", window, 2..=4096)?;
    if !hidden.is_multiple_of(heads) {
        return Err(Error::config("backbone.heads", format!("{heads} does not divide hidden {hidden}")));
    }
    Ok(())
}

/// Refuses a number outside a range, by the name of its field.
pub(crate) fn within(field: &str, value: usize, range: std::ops::RangeInclusive<usize>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(field, format!("{value} is outside {}..={}", range.start(), range.end())))
}

enum Block {
    Dense(Dense),
    Mamba(Mamba),
    Gru(Gru),
    Attention(SlidingAttention),
    FeedForward(FeedForward),
}

impl Block {
    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        match self {
            Self::Dense(b) => b.forward(e, x),
            Self::Mamba(b) => b.forward(e, x),
            Self::Gru(b) => b.forward(e, x),
            Self::Attention(b) => b.forward(e, x),
            Self::FeedForward(b) => b.forward(e, x),
        }
    }
}

/// Blocks in order and, for residual ones, the norm behind the last.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::tensors::TensorExecutor;
/// use candle_models::nn::{Backbone, BackboneConfig, MambaConfig, Params};
/// use candle_models::random::Random;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let (params, mut states) = (Params::init(Random::new(1), &Device::Cpu), Vec::new());
/// let config = BackboneConfig::Mamba { layers: 2, block: MambaConfig::default() };
/// let layer = Backbone::new(&config, 16, &params, &mut states)?;
/// let before = NamedTensors::zeros(&states, 1, &Device::Cpu)?; // of one sequence
/// let before = states.iter().map(|spec| before.get(&spec.name).cloned()).collect::<candle_models::Result<_>>()?;
/// let (inputs, resets) = (NamedTensors::new(), [true, false, false, false, false]); // five frames
/// let mut e = TensorExecutor::new(&inputs, &resets, before, &Device::Cpu);
/// let y = layer.forward(&mut e, &Tensor::ones((5, 16), DType::F32, &Device::Cpu)?)?;
/// assert_eq!((y.dims(), e.into_states().len()), (&[5, 16][..], states.len()));
/// # Ok(())
/// # }
/// ```
pub struct Backbone {
    blocks: Vec<Block>,
    norm: Option<Norm>,
}

impl Backbone {
    /// Blocks `blocks.0`, `blocks.1` ... over `width` values, but for an MLP, whose layers say their own; their states are registered in `states`.
    pub fn new(config: &BackboneConfig, width: usize, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let mut blocks = Vec::new();
        match config {
            BackboneConfig::Mlp { layers } => {
                for (i, pair) in layers.windows(2).enumerate() {
                    blocks.push(Block::Dense(Dense::new(pair[0], pair[1], &params.pp(format!("blocks.{i}")))?));
                }
                return Ok(Self { blocks, norm: None });
            }
            BackboneConfig::Gru { layers } => {
                for i in 0..*layers {
                    blocks.push(Block::Gru(Gru::new(width, width, &params.pp(format!("blocks.{i}")), states)?));
                }
                return Ok(Self { blocks, norm: None });
            }
            BackboneConfig::Mamba { layers, block } => {
                for i in 0..*layers {
                    blocks.push(Block::Mamba(Mamba::new(width, block, &params.pp(format!("blocks.{i}")), states)?));
                }
            }
            BackboneConfig::Attention { layers, heads, window } => {
                let shape = Attention { heads: *heads, window: *window };
                for i in 0..*layers {
                    let (attend, feed) = (params.pp(format!("blocks.{}", 2 * i)), params.pp(format!("blocks.{}", 2 * i + 1)));
                    blocks.push(Block::Attention(SlidingAttention::new(width, shape, &attend, states)?));
                    blocks.push(Block::FeedForward(FeedForward::new(width, 4 * width, &feed)?));
                }
            }
            BackboneConfig::Hybrid { layers, block, heads, window } => {
                let shape = Attention { heads: *heads, window: *window };
                for i in 0..*layers {
                    let params = params.pp(format!("blocks.{i}"));
                    blocks.push(if i % 3 == 2 {
                        Block::Attention(SlidingAttention::new(width, shape, &params, states)?)
                    } else {
                        Block::Mamba(Mamba::new(width, block, &params, states)?)
                    });
                }
            }
        }
        Ok(Self { blocks, norm: Some(Norm::rms(width, &params.pp("norm"))?) })
    }

    /// `x` `[rows, inputs]` to `[rows, outputs]`.
    pub fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let mut x = x.clone();
        for block in &self.blocks {
            x = block.forward(e, &x)?;
        }
        match &self.norm {
            Some(norm) => e.norm(&x, norm, Activation::None),
            None => Ok(x),
        }
    }
}
