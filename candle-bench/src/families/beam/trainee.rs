//! The training step of a beam controller: alignment of both beams on channels drawn anew for every step; one sample is one episode.

use crate::case::Case;
use crate::harness::Subject;
use crate::trainee::{Trainee, Work};
use anyhow::Result;
use candle_core::{Device, Tensor, Var};
use candle_models::beam::{Beam, BeamConfig, Channels, Episodes, FAMILY, Sensing, Tapes, alignment};
use candle_models::bundle::{Manifest, Role};
use candle_models::device::Purpose;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::random::Random;
use candle_train::beam::config::RunConfig;
use candle_train::optim::ParameterGroup;
use candle_train::task::{Context, Loss, Metric, Task};
use candle_train::trainer::TrainerConfig;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the configuration of a run begins with: the published controller.
pub(super) const PRESET: &str = "paper";

/// A beam controller that is trained.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Aligned(pub BeamConfig);

impl Aligned {
    /// The published controller, its user's network so many units wide.
    pub fn published(hidden: usize) -> Result<Self> {
        let config = BeamConfig { hidden, ..RunConfig::preset(PRESET)?.model };
        config.validate()?;
        Ok(Self(config))
    }
}

impl Trainee for Aligned {
    fn manifest(&self) -> Result<Manifest> {
        Ok(Manifest::new(FAMILY, &self.0)?)
    }

    fn training(&self) -> &'static str {
        FAMILY
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn unit(&self) -> &'static str {
        "episodes"
    }

    /// An episode has as many frames as it has measurements.
    fn frames(&self, _asked: usize) -> usize {
        self.0.measurements
    }

    fn samples(&self, case: &Case) -> usize {
        case.batch
    }

    fn weight_uses(&self, case: &Case) -> Result<f64> {
        Ok(weight_uses(&self.0)? * case.batch as f64)
    }

    fn vars(&self, device: &Device) -> Result<BTreeMap<String, Var>> {
        let params = Params::init(Random::new(0), device);
        Beam::new(&self.0, &params)?;
        Ok(params.vars())
    }

    fn trainer(&self) -> Result<TrainerConfig> {
        Ok(RunConfig::preset(PRESET)?.trainer)
    }

    fn purpose(&self) -> Purpose {
        Purpose::Tapes
    }

    fn work(&self, case: &Case, _device: &Device, products: Products) -> Result<Work> {
        Ok(Work::new(Draws { config: self.0.clone(), batch: case.batch, tapes: Tapes::new(products) }))
    }

    fn program(&self, case: &Case) -> Result<(&'static str, String)> {
        let mut run = RunConfig { model: self.0.clone(), ..RunConfig::preset(PRESET)? };
        (run.episode.batch, run.episode.fewest) = (case.batch, self.0.measurements);
        Ok((PRESET, run.to_toml()?))
    }
}

/// How often an episode uses a weight of a matrix: the user's network runs at every measurement, the others once.
pub(super) fn weight_uses(config: &BeamConfig) -> Result<f64> {
    let matrices = Beam::parameters(config)?.into_iter().filter(|p| p.role == Role::Matrix);
    let uses = |name: &str| if Beam::measures(name) { config.measurements } else { 1 };
    Ok(matrices.map(|p| (uses(&p.name) * p.shape.iter().product::<usize>()) as f64).sum())
}

/// Episodes `number * batch ..` of the measured run, of which everything depends on their number alone.
pub(super) fn episodes(config: &BeamConfig, number: u64, batch: usize) -> candle_models::Result<Episodes> {
    let (random, first) = (Random::new(1), number * batch as u64);
    let channels = Channels::generate(&config.channel, random.stream("channels"), first, batch, config.measurements)?;
    Ok(Episodes {
        channels: Arc::new(channels),
        measurements: config.measurements,
        start: (first..first + batch as u64).map(|i| config.start(random, i)).collect(),
        snr_db: vec![10.0; batch],
        noise: random.stream("noise"),
        first,
        sensing: Sensing::Measurements,
    })
}

/// A beam controller on fresh channels, its loss the negative share of their power.
struct Draws {
    config: BeamConfig,
    batch: usize,
    tapes: Tapes,
}

impl Task for Draws {
    type Batch = Episodes;

    fn next_batch(&mut self, context: &Context) -> candle_models::Result<Episodes> {
        episodes(&self.config, context.batch, self.batch)
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::with_mamba(name, shape.len())
    }

    fn loss(&mut self, parameters: &Params, episodes: &Episodes, _context: &Context) -> candle_models::Result<Loss> {
        let decided = Beam::new(&self.config, parameters)?.align(episodes, &self.tapes)?;
        let shares = alignment(&episodes.channels, episodes.measurements - 1, &decided.receive, &decided.transmit)?;
        let value = shares.narrow(1, 0, 1)?.mean_all()?.neg()?;
        let metrics = vec![Metric::mean(&["gain", "receive", "transmit"], shares.detach().mean(0)?)];
        Ok(Loss { metrics, ..Loss::new(value, self.batch) })
    }
}

/// The same episodes of a beam controller again and again.
pub(super) struct Repeated {
    model: Beam,
    episodes: Episodes,
    tapes: Tapes,
}

impl Repeated {
    pub fn new(config: &BeamConfig, batch: usize) -> Result<Self> {
        let params = Params::init(Random::new(0), &Device::Cpu);
        Beam::new(config, &params)?;
        // Constants: no graph is kept.
        let tensors = params.vars().iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        let model = Beam::new(config, &Params::given(tensors, &Device::Cpu))?;
        Ok(Self { model, episodes: episodes(config, 0, batch)?, tapes: Tapes::new(Products::F32) })
    }
}

impl Subject for Repeated {
    fn run(&mut self) -> Result<()> {
        let decided = self.model.align(&self.episodes, &self.tapes)?;
        std::hint::black_box::<(Tensor, Tensor)>((decided.receive, decided.transmit));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::beam::tiny;

    #[test]
    fn what_a_weight_is_used_for_is_counted() {
        let config = tiny();
        let (once, thrice) = (BeamConfig { measurements: 1, ..config.clone() }, config);
        let uses = |config: &BeamConfig| weight_uses(config).unwrap();
        assert!(uses(&once) > 0.0 && uses(&thrice) > uses(&once) && uses(&thrice) < 3.0 * uses(&once), "others than the user's run once");
    }

    #[test]
    fn the_other_program_trains_the_same_model() {
        let trainee = Aligned(tiny());
        let (preset, text) = trainee.program(&trainee.case(8, 6, 1)).unwrap();
        let run = RunConfig::resolve(&RunConfig::preset(preset).unwrap(), Some(&text), &[]).unwrap();
        assert_eq!((&run.model, run.episode.batch), (&trainee.0, 8));
    }

    #[test]
    fn episodes_are_repeated_without_gradients() {
        let mut calls = Repeated::new(&tiny(), 2).unwrap();
        (0..2).for_each(|_| calls.run().unwrap());
        let decided = calls.model.align(&calls.episodes, &calls.tapes).unwrap();
        assert!(!decided.receive.track_op() && !decided.transmit.track_op());
    }
}
