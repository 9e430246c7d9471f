//! What a policy is made of, as plain data.

use super::actions::GROUPS;
use super::embedding::NAMES;
use super::heads::KEYS;
pub use crate::nn::{BackboneConfig, Heads};
use crate::nn::{MambaConfig, within};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A policy.
///
/// ```
/// use candle_models::policy::{BackboneConfig, PolicyConfig};
///
/// let config = PolicyConfig { backbone: BackboneConfig::Gru { layers: 2 }, ..PolicyConfig::default() };
/// assert!(config.validate().is_ok());
/// let refused = PolicyConfig { delay: 19, ..config }.validate().unwrap_err();
/// assert_eq!(refused.to_string(), "config: delay: 19 is outside 0..=18");
/// ```
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
    /// Whether the logits begin with what count tables say after the last two actions ([`prior`](super::prior)). Autoregressive heads only.
    pub prior: bool,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        let backbone = BackboneConfig::Mamba { layers: 2, block: MambaConfig::default() };
        Self { hidden: 256, backbone, heads: Heads::default(), delay: 0, names: Vec::new(), embedding: 64, prior: false }
    }
}

impl PolicyConfig {
    /// Width of what the heads read.
    pub fn trunk(&self) -> usize {
        self.backbone.outputs(self.hidden)
    }

    /// `mamba 2x256 state 16, autoregressive heads`.
    pub fn name(&self) -> String {
        let prior = if self.prior { " over count tables" } else { "" };
        format!("{}, {} heads{prior}", self.backbone.name(self.hidden), self.heads.name())
    }

    /// What the layer of each component is called whose outputs, added to what a prior says, are the component's logits: `heads.buttons.out`.
    pub fn last_layers(&self) -> [String; GROUPS] {
        KEYS.map(|key| match self.heads {
            Heads::Autoregressive => format!("heads.{key}.out"),
            Heads::Independent => format!("heads.{key}"),
        })
    }

    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    pub fn validate(&self) -> Result<()> {
        within("hidden", self.hidden, 8..=4096)?;
        within("embedding", self.embedding, 1..=512)?;
        within("delay", self.delay, 0..=18)?;
        within("names", self.names.len(), 0..=NAMES)?;
        if self.prior && self.heads == Heads::Independent {
            return Err(Error::config("prior", "expected false with independent heads, found true"));
        }
        self.backbone.validate(self.hidden)
    }
}
