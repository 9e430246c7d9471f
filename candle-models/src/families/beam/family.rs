//! What the registry knows of beam controllers.

use super::{Array, Beam, BeamConfig, DecisionConfig, FAMILY, Feedback, MemoryConfig, Mobility, Scheme, Sweep, View, Weighting};
use crate::Result;
use crate::bundle::{Bundle, Manifest};
use crate::nn::{MambaConfig, Params};
use crate::registry::{Family, Networks};
use std::sync::Arc;

/// The family of beam controllers: the networks `user`, which measures, and `decision` of the user, and but for scheme C1 `base` of the
/// base station. The parameters `first` and `codebook` are beams, not a network's.
pub struct BeamFamily;

impl Family for BeamFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(bundle.config::<BeamConfig>()?.name())
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        let Beam { user, decision, base, .. } = Beam::new(&bundle.config()?, params)?;
        let mut networks: Networks = vec![("user", Arc::new(user)), ("decision", Arc::new(decision))];
        if let Some(base) = base {
            networks.push(("base", Arc::new(base)));
        }
        Ok(networks)
    }

    /// Every scheme, memory, view and kind of feedback, small.
    fn examples(&self) -> Result<Vec<Manifest>> {
        let decision = DecisionConfig::measurements(32, 1);
        let small = BeamConfig { measurements: 6, hidden: 24, base: 16, decision, ..BeamConfig::default() };
        let with = |edit: &dyn Fn(&mut BeamConfig)| {
            let mut config = small.clone();
            edit(&mut config);
            Manifest::new(FAMILY, &config)
        };
        let mamba = MemoryConfig::Mamba { layers: 2, block: MambaConfig { state: 4, ..MambaConfig::default() } };
        [
            with(&|_| {}),
            with(&|c| c.memory = mamba.clone()),
            with(&|c| (c.scheme, c.feedback) = (Scheme::C1, Feedback::Index)),
            with(&|c| (c.sweep, c.view, c.decision) = (Sweep::Free, View::Scalars, DecisionConfig::State)),
            with(&|c| (c.receive_weights, c.transmit_weights) = (Weighting::QuantisedPhases { bits: 3 }, Weighting::Phases)),
            with(&|c| {
                c.feedback = Feedback::Quantised { values: 8, bits: 4 };
                c.channel.mobility = Some(Mobility { doppler: 0.01, drift: 0.5 });
            }),
            with(&|c| {
                // So few antennas that what an estimate compares with has no more numbers than a formula may write out.
                (c.channel.receive, c.channel.transmit) = (Array::Ula { elements: 4 }, Array::Ula { elements: 8 });
                c.decision =
                    DecisionConfig::Measurements { width: 24, layers: 1, paths: 2, again: 1, directions: 3, places: 0, unexplained: 0.0 };
            }),
            with(&|c| {
                (c.channel.receive, c.channel.transmit) = (Array::Ula { elements: 3 }, Array::Ula { elements: 5 });
                (c.scheme, c.feedback) = (Scheme::C1, Feedback::Index);
                c.decision =
                    DecisionConfig::Measurements { width: 24, layers: 1, paths: 1, again: 0, directions: 2, places: 2, unexplained: 0.05 };
            }),
        ]
        .into_iter()
        .collect()
    }
}
