//! What the registry knows of radio networks.

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
        let RfConfig::Localiser(config) = bundle.config()?;
        Ok(config.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        let RfConfig::Localiser(config) = bundle.config()?;
        Ok(vec![("localiser", Arc::new(Localiser::new(&config, params)?))])
    }

    /// With attention between receivers and without.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let small = LocaliserConfig { receivers: 5, hidden: 12, heads: 3, layers: 1, components: 2 };
        let none = LocaliserConfig { receivers: 3, layers: 0, components: 1, ..small.clone() };
        [small, none].into_iter().map(|config| Manifest::new(FAMILY, &RfConfig::Localiser(config))).collect()
    }
}
