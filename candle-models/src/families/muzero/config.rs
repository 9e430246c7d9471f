//! What a MuZero network is made of, as plain data.

use super::values::original;
use crate::families::agent::Observation;
use crate::nn::within;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A description of the two networks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MuZeroConfig {
    /// What is seen: of a board one grid, otherwise floats and grids as they are.
    pub observation: Vec<Observation>,
    /// Actions of every state, 2 to 65536.
    pub actions: usize,
    /// Who plays: 1, or 2 who move in turn.
    pub players: usize,
    /// What a reward is worth a step later, above 0 and at most 1.
    pub discount: f64,
    /// The numbers that values and rewards are distributions over.
    pub support: Support,
    /// The layers.
    pub network: NetworkConfig,
    /// What says what comes of an action.
    #[serde(default)]
    pub dynamics: Dynamics,
}

/// What says what comes of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dynamics {
    /// A network (MuZero).
    #[default]
    Learnt,
    /// The rules of the game, which whoever plans has (AlphaZero, Silver et al. 2018): there is no second network.
    Rules,
}

/// The numbers that values and rewards are distributions over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Support {
    /// From `-size` to `size`, each whole number.
    Plain {
        /// 1 to 1000.
        size: usize,
    },
    /// The same before the transform of [`values`](super::values): up to `h^-1(size)`, dense near zero.
    Transformed {
        /// 1 to 1000.
        size: usize,
    },
}

impl Support {
    fn size(self) -> usize {
        match self {
            Self::Plain { size } | Self::Transformed { size } => size,
        }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        2 * self.size() + 1
    }

    /// The numbers, ascending.
    pub fn atoms(self) -> Vec<f32> {
        let size = self.size() as i64;
        let atom = |i: i64| match self {
            Self::Plain { .. } => i as f32,
            Self::Transformed { .. } => original(i as f64) as f32,
        };
        (-size..=size).map(atom).collect()
    }
}

/// The layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum NetworkConfig {
    /// Dense layers with layer norm and GELU.
    Mlp {
        /// Width of every layer and of the embedding, 8 to 4096.
        width: usize,
        /// Layers of the encoder, and of the dynamics, 1 to 16.
        layers: usize,
    },
    /// Residual convolutions of three by three over a board, whose places the embedding keeps.
    Board {
        /// Channels, 4 to 1024.
        channels: usize,
        /// Residual blocks of the encoder, and of the dynamics, 1 to 64.
        blocks: usize,
    },
}

impl Default for MuZeroConfig {
    /// Four numbers, two actions.
    fn default() -> Self {
        Self {
            observation: vec![Observation::Floats { name: "state".to_owned(), shape: vec![4], low: None, high: None }],
            actions: 2,
            players: 1,
            discount: 0.997,
            support: Support::Transformed { size: 20 },
            network: NetworkConfig::Mlp { width: 128, layers: 2 },
            dynamics: Dynamics::Learnt,
        }
    }
}

impl MuZeroConfig {
    /// What the value behind an action counts for the one who takes it: between two players the other's value is a loss.
    pub fn discount(&self) -> f32 {
        (if self.players == 2 { -self.discount } else { self.discount }) as f32
    }

    /// Values of an embedding.
    pub fn embedding(&self) -> usize {
        match (&self.network, self.board()) {
            (NetworkConfig::Board { channels, .. }, Some([height, width, _])) => height * width * channels,
            (NetworkConfig::Mlp { width, .. }, _) => *width,
            (NetworkConfig::Board { .. }, None) => 0,
        }
    }

    /// Height, width and channels of the one grid that is seen.
    pub(super) fn board(&self) -> Option<[usize; 3]> {
        match &self.observation[..] {
            [Observation::Grid { height, width, channels, .. }] => Some([*height, *width, *channels]),
            _ => None,
        }
    }

    /// `board 6x7, 32 channels, 3 blocks, 7 actions`.
    pub fn name(&self) -> String {
        let players = if self.players == 2 { ", two players" } else { "" };
        let rules = if self.dynamics == Dynamics::Rules { ", plans by the rules" } else { "" };
        let actions = format!("{} actions{players}{rules}", self.actions);
        match (&self.network, self.board()) {
            (NetworkConfig::Board { channels, blocks }, Some([height, width, _])) => {
                format!("board {height}x{width}, {channels} channels, {blocks} blocks, {actions}")
            }
            (NetworkConfig::Mlp { width, layers }, _) => format!("mlp {layers}x{width}, {actions}"),
            (NetworkConfig::Board { .. }, None) => format!("board, {actions}"),
        }
    }

    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        within("actions", self.actions, 2..=65536)?;
        within("players", self.players, 1..=2)?;
        within("support.size", self.support.size(), 1..=1000)?;
        if self.dynamics == Dynamics::Rules && self.observation.len() != 1 {
            let reason = format!("expected one input, which says where a game of known rules stands, found {}", self.observation.len());
            return Err(Error::config("observation", reason));
        }
        if !(self.discount > 0.0 && self.discount <= 1.0) {
            return Err(Error::config("discount", format!("expected a number above 0 and at most 1, found {}", self.discount)));
        }
        within("observation", self.observation.len(), 1..=64)?;
        for input in &self.observation {
            input.validate()?;
            let plain = match input {
                Observation::Floats { .. } => true,
                Observation::Grid { layers, .. } => layers.is_empty(),
                Observation::Ids { .. } | Observation::Sequence { .. } => false,
            };
            if !plain {
                let reason = "expected floats, or a grid without layers of its own";
                return Err(Error::config(format!("observation.{}", input.name()), reason));
            }
        }
        match self.network {
            NetworkConfig::Mlp { width, layers } => {
                within("network.width", width, 8..=4096)?;
                within("network.layers", layers, 1..=16)?;
                within("network.width", width * self.actions, 1..=1 << 27)
            }
            NetworkConfig::Board { channels, blocks } => {
                within("network.channels", channels, 4..=1024)?;
                within("network.blocks", blocks, 1..=64)?;
                if self.board().is_none() {
                    return Err(Error::config("observation", "expected one grid, which a network over a board reads"));
                }
                // What the table of the actions holds, and the patches of a convolution.
                within("network.channels", self.embedding() * self.actions.max(9), 1..=1 << 27)
            }
        }
    }
}
