//! What the registry knows of policies.

use super::{BASELINES, BackboneConfig, FAMILY, Heads, Policy, PolicyConfig, TOKENIZER};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::nn::{MambaConfig, Params};
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of game policies: one network, `policy`.
pub struct PolicyFamily;

impl Family for PolicyFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<PolicyConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        Ok(vec![("policy", Arc::new(Policy::new(&bundle.config()?, params)?))])
    }

    /// Every backbone with both heads, and two over count tables, small but with odd sizes where the architecture allows.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let block = MambaConfig { state: 5, expand: 2, conv: 4 };
        let backbones = [
            BackboneConfig::Mlp { layers: vec![40, 36] },
            BackboneConfig::Mamba { layers: 2, block: block.clone() },
            BackboneConfig::Gru { layers: 2 },
            BackboneConfig::Attention { layers: 2, heads: 3, window: 4 },
            BackboneConfig::Hybrid { layers: 3, block, heads: 3, window: 5 },
        ];
        let small = |backbone: &BackboneConfig, heads| PolicyConfig {
            hidden: 36,
            backbone: backbone.clone(),
            heads,
            embedding: 6,
            ..PolicyConfig::default()
        };
        let configs = backbones.iter().flat_map(|backbone| [Heads::Independent, Heads::Autoregressive].map(|heads| small(backbone, heads)));
        // With and without a memory of its own.
        let priors = backbones.iter().take(2).map(|backbone| PolicyConfig { prior: true, ..small(backbone, Heads::Autoregressive) });
        configs.chain(priors).map(|config| Manifest::new(FAMILY, &config)).collect()
    }

    fn files(&self) -> &'static [&'static str] {
        &[TOKENIZER, BASELINES]
    }
}
