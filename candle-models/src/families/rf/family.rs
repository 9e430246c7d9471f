//! What the registry knows of radio networks.

use super::classifier::{Classifier, ClassifierConfig, Scale};
use super::localiser::{Localiser, LocaliserConfig};
use super::{FAMILY, RfConfig};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::nn::Params;
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of radio networks.
pub struct RfFamily;

impl Family for RfFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<RfConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        bundle.config::<RfConfig>()?.networks(params)
    }

    /// With attention between receivers and without; convolutions that step over samples, and such that see one.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let small = LocaliserConfig { receivers: 5, hidden: 12, heads: 3, layers: 1, components: 2 };
        let none = LocaliserConfig { receivers: 3, layers: 0, components: 1, ..small.clone() };
        let time = ClassifierConfig { samples: 21, channels: 8, kernel: 5, blocks: 2, ..ClassifierConfig::new(["BPSK", "QPSK", "FM"]) };
        let symbols = ClassifierConfig { samples: 6, kernel: 1, stride: 1, scale: Scale::Given, ..time.clone() };
        let localisers = [small, none].map(RfConfig::Localiser);
        localisers.iter().chain(&[time, symbols].map(RfConfig::Classifier)).map(|config| Manifest::new(FAMILY, config)).collect()
    }
}

impl RfConfig {
    /// What tells it from others.
    pub fn name(&self) -> String {
        match self {
            Self::Localiser(config) => config.name(),
            Self::Classifier(config) => config.name(),
        }
    }

    /// The network with parameters from `params`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or a parameter is missing or has another shape.
    pub fn networks(&self, params: &Params) -> Result<Networks> {
        Ok(match self {
            Self::Localiser(config) => vec![("localiser", Arc::new(Localiser::new(config, params)?))],
            Self::Classifier(config) => vec![("classifier", Arc::new(Classifier::new(config, params)?))],
        })
    }
}
