//! The temporal part of a policy: a list of blocks over the encoded observation.

use super::config::{BackboneConfig, PolicyConfig};
use crate::Result;
use crate::exec::Executor;
use crate::nn::{Dense, FeedForward, Gru, Mamba, Norm, Params, SlidingAttention};
use crate::ops::{Activation, Attention};
use crate::signature::TensorSpec;

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
pub(super) struct Backbone {
    blocks: Vec<Block>,
    norm: Option<Norm>,
}

impl Backbone {
    /// Width of what it reads.
    pub fn inputs(config: &PolicyConfig) -> usize {
        match &config.backbone {
            BackboneConfig::Mlp { layers } => layers.first().copied().unwrap_or(config.hidden),
            _ => config.hidden,
        }
    }

    /// Blocks `blocks.0`, `blocks.1` ...; their states are registered in `states`.
    pub fn new(config: &PolicyConfig, params: &Params, states: &mut Vec<TensorSpec>) -> Result<Self> {
        let width = config.hidden;
        let mut blocks = Vec::new();
        match &config.backbone {
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

    /// `x` `[rows, inputs]` to `[rows, trunk]`.
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
