//! The training step of a policy: imitation of simulated games, windows of frames with the state carried on.

use super::prefetched::Loop;
use crate::case::Case;
use crate::network::Place;
use crate::trainee::{Prefetched, Trainee, Work};
use anyhow::Result;
use candle_core::{Device, Var};
use candle_models::bundle::{Manifest, Role};
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{FAMILY, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_train::policy::config::RunConfig;
use candle_train::policy::dataset::Dataset;
use candle_train::policy::imitation::Imitation;
use candle_train::policy::loader::{Loader, LoaderConfig, Order};
use candle_train::policy::plan::StepShape;
use candle_train::policy::shards::Shard;
use candle_train::trainer::TrainerConfig;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Frames and number of the simulated games that a policy is trained on.
const GAME_FRAMES: usize = 3000;
const GAMES: u64 = 3;
/// What the configuration of a run begins with.
const PRESET: &str = "mamba";

/// A policy that is trained.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Imitated(pub PolicyConfig);

impl Trainee for Imitated {
    fn manifest(&self) -> Result<Manifest> {
        Ok(Manifest::new(FAMILY, &self.0)?)
    }

    fn training(&self) -> &'static str {
        FAMILY
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn weight_uses(&self, case: &Case) -> Result<f64> {
        let matrices = Policy::parameters(&self.0)?.into_iter().filter(|p| p.role == Role::Matrix);
        let weights: usize = matrices.map(|p| p.shape.iter().product::<usize>()).sum();
        Ok(weights as f64 * self.samples(case) as f64)
    }

    fn vars(&self, device: &Device) -> Result<BTreeMap<String, Var>> {
        let params = Params::init(Random::new(0), device);
        Policy::new(&self.0, &params)?;
        Ok(params.vars())
    }

    fn trainer(&self) -> Result<TrainerConfig> {
        Ok(RunConfig::preset(PRESET)?.trainer)
    }

    fn work(&self, case: &Case, device: &Device, _products: Products) -> Result<Work> {
        let run = run(&self.0, case)?;
        let loader = loader(&run, Order::Epochs)?.on(device);
        Ok(Work::new(Imitation::new(&run, device, loader, None, Vec::new())?))
    }

    fn program(&self, case: &Case) -> Result<(&'static str, String)> {
        let mut run = run(&self.0, case)?;
        (run.epochs, run.data.held_out) = (1_000_000, 0.0);
        Ok((PRESET, run.to_toml()?))
    }

    fn prefetched(&self, case: &Case, place: &Place) -> Result<Option<Box<dyn Prefetched>>> {
        Ok(Some(Box::new(Loop::new(&self.0, case, place)?)))
    }
}

/// A run of this architecture as the trainer's preset has it, without regularisation.
pub(super) fn run(model: &PolicyConfig, case: &Case) -> Result<RunConfig> {
    let mut run = RunConfig::preset(PRESET)?;
    run.model = model.clone();
    (run.data.batch, run.data.unroll, run.data.burn_in) = (case.batch, case.frames, 0);
    (run.noise.dropout, run.noise.drop_ids) = (0.0, 0.0);
    run.validate()?;
    Ok(run)
}

/// The trainer's loader over simulated games, on the CPU.
pub(super) fn loader(run: &RunConfig, order: Order) -> Result<Loader> {
    let data = Arc::new(Dataset::new(&games()?, &run.model.names, run.model.delay)?);
    let shape = StepShape { lanes: run.data.batch, unroll: run.data.unroll };
    let (lanes, mirror, random) = (0..run.data.batch, run.data.mirror as f32, Random::new(run.seed).stream("data"));
    Ok(Loader::new(data, LoaderConfig { shape, lanes, mirror, burn_in: run.data.burn_in, order, random })?)
}

/// The simulated games.
pub(super) fn games() -> Result<Vec<Arc<Shard>>> {
    (0..GAMES).map(|seed| Ok(Arc::new(Shard::from_game(&simulate(seed, GAME_FRAMES), "simulated")?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::config;

    #[test]
    fn what_a_weight_is_used_for_is_counted() {
        let mlp = Imitated(config("mlp"));
        let at = |batch, frames| mlp.weight_uses(&mlp.case(batch, frames, 1)).unwrap();
        assert!(at(1, 1) > 0.0);
        assert_eq!(at(3, 5), 15.0 * at(1, 1));
    }

    #[test]
    fn the_other_program_trains_the_same_model() {
        let mamba = Imitated(config("mamba"));
        let (preset, text) = mamba.program(&mamba.case(8, 6, 1)).unwrap();
        let run = RunConfig::resolve(preset, Some(&text), &[]).unwrap();
        assert_eq!((&run.model, run.data.batch, run.data.unroll), (&mamba.0, 8, 6));
    }
}
