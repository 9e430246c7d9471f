//! A training step of a policy on given inputs, as a subject: forward, backward, AdamW over one batch of windows.

use crate::calls::{Answers, Inputs};
use crate::case::Case;
use crate::harness::{Subject, pool};
use crate::network::Network;
use crate::ops::Form;
use crate::update::Update;
use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_models::nn::Params;
use candle_models::policy::Policy;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_train::policy::loss;
use std::sync::Arc;

/// A policy and the batch of windows that it is trained on.
pub(super) struct Windows {
    policy: Policy,
    inputs: NamedTensors,
    actions: Tensor,
    resets: Vec<bool>,
}

impl Windows {
    /// Random windows of the case.
    pub fn new(policy: Policy, case: &Case, inputs: &Inputs) -> Result<Self> {
        let inputs = inputs.tensors()?;
        let (actions, resets) = (inputs.get("action")?.flatten(0, 1)?, vec![false; case.batch * case.frames]);
        Ok(Self { policy, inputs, actions, resets })
    }

    /// The state before any frame.
    pub fn initial_state(&self, case: &Case) -> Result<NamedTensors> {
        Ok(self.policy.initial_state(case.batch)?)
    }

    /// The outputs, the state behind the last frame, and the cross-entropy of the actions in nats a frame.
    pub fn pass(&self, state: &NamedTensors, smoothing: f64) -> Result<(NamedTensors, NamedTensors, Tensor)> {
        let (outputs, state) = self.policy.unroll(&self.inputs, &self.resets, state)?;
        let logits = outputs.get("logits")?.flatten(0, 1)?;
        let imitation = loss::components(&logits, &self.actions, smoothing)?.sum(1)?.mean_all()?;
        Ok((outputs, state, imitation))
    }
}

/// Every call is one update of the parameters on the same batch.
pub(super) struct TrainCalls {
    windows: Windows,
    state: NamedTensors,
    update: Update,
    pool: Arc<rayon::ThreadPool>,
}

impl TrainCalls {
    /// The network of the case with its weights as variables.
    pub fn new(network: &Network, case: &Case, inputs: &Inputs) -> Result<Self> {
        let params = Params::init(Random::new(0), &Device::Cpu);
        let policy = Policy::new(&network.config()?, &params)?;
        let vars = params.vars();
        let tensors = network.tensors()?;
        for (name, var) in &vars {
            var.set(tensors.get(name).with_context(|| format!("{name}: not in the bundle"))?)?;
        }
        let windows = Windows::new(policy, case, inputs)?;
        let pool = pool(case.threads)?;
        Ok(Self { state: windows.initial_state(case)?, update: Update::like_the_peer(vars)?, windows, pool })
    }

    fn update(&mut self) -> Result<f32> {
        let Self { windows, state, update, pool } = self;
        pool.install(|| update.by(&windows.pass(state, 0.0)?.2))
    }
}

impl Subject for TrainCalls {
    fn run(&mut self) -> Result<()> {
        self.update().map(drop)
    }
}

impl Form for TrainCalls {
    /// The loss before and after the first update, in nats a frame.
    fn answers(&mut self) -> Result<Answers> {
        let losses = vec![f64::from(self.update()?), f64::from(self.update()?)];
        Ok(Answers::from([("loss".to_owned(), losses)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Pass;
    use crate::testing;

    #[test]
    fn updates_lower_the_loss_of_their_batch() {
        let directory = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", directory.path());
        let case = network.case(Pass::Train, 2, 5, 1);
        let inputs = Inputs::random(&*network.load().unwrap(), &case);
        let mut calls = TrainCalls::new(&network, &case, &inputs).unwrap();
        let losses = calls.answers().unwrap().remove("loss").unwrap();
        assert!(losses[0] > 1.0 && losses[1] < losses[0] - 0.01, "{losses:?}");
    }
}
