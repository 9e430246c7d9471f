//! What the registry and the command know of agents.

use super::{Agent, AgentConfig, Component, ConvConfig, FAMILY, Observation, PoolConfig, SequenceConvConfig, SequencePoolConfig};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::nn::{BackboneConfig, Heads, MambaConfig, Params};
use crate::ops::pool2d::Pooling;
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of agents by description: one network, `agent`.
pub struct AgentFamily;

impl Family for AgentFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<AgentConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        Ok(vec![("agent", Arc::new(Agent::new(&bundle.config()?, params)?))])
    }

    /// Every kind of input and of component with the heads that it can have; inputs with and without floats, with and without the last action;
    /// numbers beside classes and alone.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let (floats, ids, grid) = (floats(), ids(), grid());
        let action = || {
            vec![
                Component::Discrete { name: "move".to_owned(), classes: 5 },
                Component::MultiDiscrete { name: "cards".to_owned(), classes: 3, columns: 2 },
                Component::Binary { name: "buttons".to_owned(), count: 3 },
                Component::Binned { name: "steer".to_owned(), low: -1.0, high: 2.0, bins: 7 },
            ]
        };
        let block = MambaConfig { state: 5, expand: 2, conv: 4 };
        let base = AgentConfig { hidden: 24, action: action(), ..AgentConfig::default() };
        let configs = [
            AgentConfig {
                backbone: BackboneConfig::Mlp { layers: vec![28, 20] },
                observation: vec![floats.clone(), ids.clone(), grid.clone()],
                action: [vec![gaussian("aim", 2, None)], action(), vec![gaussian("throttle", 1, Some(0.4))]].concat(),
                previous_action: 2,
                ..base.clone()
            },
            AgentConfig {
                heads: Heads::Autoregressive,
                previous_action: 3,
                observation: vec![grid, floats.clone(), ids.clone()],
                action: [vec![gaussian("aim", 2, Some(0.7))], action(), vec![gaussian("throttle", 1, None)]].concat(),
                ..base.clone()
            },
            AgentConfig {
                backbone: BackboneConfig::Mamba { layers: 1, block },
                heads: Heads::Autoregressive,
                previous_action: 2,
                observation: vec![ids],
                ..base.clone()
            },
            AgentConfig {
                backbone: BackboneConfig::Attention { layers: 1, heads: 3, window: 4 },
                observation: vec![floats.clone()],
                action: vec![Component::Discrete { name: "jump".to_owned(), classes: 2 }],
                ..base.clone()
            },
            AgentConfig { observation: vec![floats, sequence()], action: vec![gaussian("aim", 3, None)], ..base },
        ];
        configs.iter().map(|config| Manifest::new(FAMILY, config)).collect()
    }
}

/// Numbers from a normal distribution, between -`bound` and `bound`.
fn gaussian(name: &str, columns: usize, bound: Option<f64>) -> Component {
    Component::Gaussian { name: name.to_owned(), columns, low: bound.map(|bound| -bound), high: bound }
}

fn floats() -> Observation {
    Observation::Floats { name: "position".to_owned(), shape: vec![2, 3], low: Some(-2.0), high: Some(2.0) }
}

fn ids() -> Observation {
    Observation::Ids { name: "unit".to_owned(), below: vec![4, 9], embedding: 3 }
}

fn grid() -> Observation {
    let most = PoolConfig { kind: Pooling::Max, kernel: [2, 2], stride: Some([1, 1]) };
    let mean = PoolConfig { kind: Pooling::Average, kernel: [1, 2], stride: None };
    let layers = vec![
        ConvConfig { channels: 5, kernel: [3, 2], stride: [2, 1], padding: [1, 0], pool: Some(most) },
        ConvConfig { channels: 4, kernel: [2, 2], stride: [1, 1], padding: [0, 0], pool: Some(mean) },
    ];
    Observation::Grid { name: "map".to_owned(), height: 6, width: 5, channels: 2, layers }
}

fn sequence() -> Observation {
    let pool = SequencePoolConfig { kind: Pooling::Average, kernel: 2, stride: None };
    let layers = vec![
        SequenceConvConfig { channels: 5, kernel: 3, stride: 2, padding: 1, pool: Some(pool) },
        SequenceConvConfig { channels: 4, kernel: 2, stride: 1, padding: 0, pool: None },
    ];
    Observation::Sequence { name: "samples".to_owned(), length: 11, channels: 2, layers }
}

/// Tensors by the signature are all that it is run on.
#[cfg(feature = "cli")]
impl crate::infer::InferFamily for AgentFamily {}
