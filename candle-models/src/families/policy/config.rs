//! What a policy is made of, as plain data.

use super::embedding::NAMES;
use crate::nn::MambaConfig;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The temporal part of a policy.
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
}

/// How the components of an action depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Heads {
    /// Each component from the trunk alone.
    Independent,
    /// Each component from the trunk and the components before it.
    #[default]
    Autoregressive,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Width of the trunk (the MLP's layers say their own).
    pub hidden: usize,
    /// The temporal part.
    pub backbone: BackboneConfig,
    /// The action heads.
    pub heads: Heads,
    /// Frames between the last state that is seen and the action that is chosen, 0 to 18.
    pub delay: usize,
    /// Player tags that the policy was conditioned on, most frequent first, at most 112.
    pub names: Vec<String>,
    /// Width of the learned tables of action states and characters.
    pub embedding: usize,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        let backbone = BackboneConfig::Mamba { layers: 2, block: MambaConfig::default() };
        Self { hidden: 256, backbone, heads: Heads::default(), delay: 0, names: Vec::new(), embedding: 64 }
    }
}

fn within(field: &str, value: usize, range: std::ops::RangeInclusive<usize>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(field, format!("{value} is outside {}..={}", range.start(), range.end())))
}

impl PolicyConfig {
    /// Width of what the heads read.
    pub fn trunk(&self) -> usize {
        match &self.backbone {
            BackboneConfig::Mlp { layers } => layers.last().copied().unwrap_or(self.hidden),
            _ => self.hidden,
        }
    }

    /// `mamba 2x256 state 16, autoregressive heads`.
    pub fn name(&self) -> String {
        let width = self.hidden;
        let backbone = match &self.backbone {
            BackboneConfig::Mlp { layers } => format!("mlp {}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join("-")),
            BackboneConfig::Mamba { layers, block } => format!("mamba {layers}x{width} state {}", block.state),
            BackboneConfig::Gru { layers } => format!("gru {layers}x{width}"),
            BackboneConfig::Attention { layers, window, .. } => format!("attention {layers}x{width} window {window}"),
            BackboneConfig::Hybrid { layers, window, .. } => format!("hybrid {layers}x{width} window {window}"),
        };
        let heads = match self.heads {
            Heads::Independent => "independent",
            Heads::Autoregressive => "autoregressive",
        };
        format!("{backbone}, {heads} heads")
    }

    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    pub fn validate(&self) -> Result<()> {
        within("hidden", self.hidden, 8..=4096)?;
        within("embedding", self.embedding, 1..=512)?;
        within("delay", self.delay, 0..=18)?;
        within("names", self.names.len(), 0..=NAMES)?;
        match &self.backbone {
            BackboneConfig::Mlp { layers } => {
                within("backbone.layers", layers.len(), 1..=16)?;
                layers.iter().try_for_each(|w| within("backbone.layers", *w, 8..=8192))
            }
            BackboneConfig::Mamba { layers, block } => within("backbone.layers", *layers, 1..=64).and(block.validate()),
            BackboneConfig::Gru { layers } => within("backbone.layers", *layers, 1..=16),
            BackboneConfig::Attention { layers, heads, window } => {
                within("backbone.layers", *layers, 1..=64)?;
                self.validate_attention(*heads, *window)
            }
            BackboneConfig::Hybrid { layers, block, heads, window } => {
                within("backbone.layers", *layers, 1..=64)?;
                block.validate()?;
                self.validate_attention(*heads, *window)
            }
        }
    }

    fn validate_attention(&self, heads: usize, window: usize) -> Result<()> {
        within("backbone.heads", heads, 1..=64)?;
        within("backbone.window", window, 2..=4096)?;
        if !self.hidden.is_multiple_of(heads) {
            return Err(Error::config("backbone.heads", format!("{heads} does not divide hidden {}", self.hidden)));
        }
        Ok(())
    }
}
