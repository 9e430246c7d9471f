//! The trainer's loop over simulated games: a loader whose thread makes batches ahead, and a step on one of them.

use super::trainee::{loader, run};
use crate::case::Case;
use crate::network::Place;
use crate::trainee::Prefetched;
use crate::update::Update;
use anyhow::Result;
use candle_models::nn::Params;
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_train::policy::config::LossConfig;
use candle_train::policy::loader::{Batch, Loader, Order};
use candle_train::policy::loss::imitation;

/// A loader, the batch that it made last, and what a step on it needs.
pub(super) struct Loop {
    loader: Loader,
    kept: Batch,
    policy: Policy,
    state: NamedTensors,
    update: Update,
    loss: LossConfig,
}

impl Loop {
    pub fn new(config: &PolicyConfig, case: &Case, place: &Place) -> Result<Self> {
        let run = run(config, case)?;
        let mut loader = loader(&run, Order::Epochs)?.on(&place.device);
        let params = Params::init(Random::new(0), &place.device);
        let policy = Policy::new(config, &params)?;
        let state = policy.initial_state(case.batch)?;
        let update = Update::new(params.vars(), run.trainer.optimiser.clone(), run.trainer.schedule.peak)?;
        let kept = loader.next()?.0;
        Ok(Self { loader, kept, policy, state, update, loss: run.loss })
    }
}

impl Prefetched for Loop {
    fn next_batch(&mut self) -> Result<()> {
        self.kept = self.loader.next()?.0;
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        Ok(self.loader.seek(self.loader.cursor())?)
    }

    fn step(&mut self) -> Result<()> {
        let batch = &self.kept;
        let (outputs, state) = self.policy.unroll(&batch.inputs, &batch.resets, &self.state)?;
        self.state = state.map(|_, t| Ok(t.detach()))?;
        self.update.by(&imitation(&outputs, batch, &self.loss, None)?.0).map(drop)
    }

    fn floats(&self) -> usize {
        let features = self.kept.inputs.get("features").map_or(0, |features| features.elem_count());
        features + self.kept.returns.elem_count() + self.kept.weights.elem_count()
    }
}
