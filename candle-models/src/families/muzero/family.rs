//! What the registry and the command know of MuZero.

use super::{Dynamics, FAMILY, MuZero, MuZeroConfig, NetworkConfig, Support};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::families::agent::Observation;
use crate::nn::Params;
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of networks to plan with: `initial` and `recurrent`.
pub struct MuZeroFamily;

impl Family for MuZeroFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<MuZeroConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        let MuZero { initial, recurrent } = MuZero::new(&bundle.config()?, params)?;
        let mut networks: Networks = vec![("initial", Arc::new(initial))];
        networks.extend(recurrent.map(|recurrent| ("recurrent", Arc::new(recurrent) as _)));
        Ok(networks)
    }

    /// Both kinds of layers, both kinds of atoms, one and two players, learnt dynamics and known rules.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let grid = |height, width| Observation::Grid { name: "board".to_owned(), height, width, channels: 2, layers: Vec::new() };
        let board = MuZeroConfig {
            observation: vec![grid(3, 4)],
            actions: 5,
            players: 2,
            discount: 1.0,
            support: Support::Plain { size: 1 },
            network: NetworkConfig::Board { channels: 6, blocks: 1 },
            dynamics: Dynamics::Learnt,
        };
        let rules = MuZeroConfig { dynamics: Dynamics::Rules, ..board.clone() };
        let numbers = MuZeroConfig {
            observation: [MuZeroConfig::default().observation, vec![grid(2, 2)]].concat(),
            actions: 3,
            support: Support::Transformed { size: 4 },
            network: NetworkConfig::Mlp { width: 12, layers: 2 },
            ..MuZeroConfig::default()
        };
        [board, numbers, rules].iter().map(|config| Manifest::new(FAMILY, config)).collect()
    }
}

/// Tensors by the signature are all that it is run on.
#[cfg(feature = "cli")]
impl crate::infer::InferFamily for MuZeroFamily {}
