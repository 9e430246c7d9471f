//! What the registry knows of neural operators.

use super::{Ensemble, FAMILY, Fno, FnoConfig};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::nn::Params;
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of neural operators.
pub struct FnoFamily;

impl Family for FnoFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<FnoConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        Ok(vec![("operator", Arc::new(Fno::new(&bundle.config()?, params)?))])
    }

    /// Over a plane and over a line, with padding and without, with weights that are products; on a grid that has fewer waves than there are weights;
    /// with a variance of its own; one that says a change on a periodic grid; several that answer together, without a variance, with, and as a change.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let plane = FnoConfig { grid: [6, 5], modes: [4, 4], hidden: 6, layers: 2, ..FnoConfig::default() };
        let padded = FnoConfig { grid: [4, 4], padding: 0.25, channels: [2, 3], ..plane.clone() };
        let line = FnoConfig { grid: [1, 9], modes: [1, 4], layers: 1, ..plane.clone() };
        let tucker = FnoConfig { rank: Some(0.5), ..plane.clone() };
        let coarse = FnoConfig { grid: [4, 4], modes: [8, 8], ..plane.clone() };
        let ensemble = FnoConfig { ensemble: Some(Ensemble { members: 3, noise: 0.1, scale: 1.5 }), layers: 1, ..padded.clone() };
        let sure = FnoConfig { variance: true, channels: [1, 2], layers: 1, ..plane.clone() };
        let both = FnoConfig { variance: true, ..ensemble.clone() };
        let change = FnoConfig { grid: [2, 4], residual: true, periodic: true, layers: 1, ..plane.clone() };
        let changes = FnoConfig { residual: true, channels: [2, 2], ..both.clone() };
        [plane, padded, line, tucker, coarse, ensemble, sure, both, change, changes]
            .iter()
            .map(|config| Manifest::new(FAMILY, config))
            .collect()
    }
}
