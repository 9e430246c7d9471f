//! A training step of the game policy as a subject: forward, backward, AdamW over one batch of windows.

use crate::harness::Subject;
use crate::policy::{Answers, Inputs, Network};
use crate::table::Case;
use anyhow::{Context, Result};
use candle_core::{Device, Tensor, Var};
use candle_models::nn::Params;
use candle_models::policy::Policy;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_train::gradients::Gradients;
use candle_train::optim::{Optimiser, OptimiserConfig};
use candle_train::policy::loss;
use std::collections::BTreeMap;

/// As in the peer's program; without decay and clipping, for the two sides treat these differently.
const LEARNING_RATE: f64 = 1e-3;
/// Candle walks and drops the graph of an unroll by recursion. Reserved, not resident.
pub(crate) const STACK_BYTES: usize = 1 << 30;

/// Every call is one update of the parameters on the same batch.
pub struct TrainCalls {
    policy: Policy,
    vars: BTreeMap<String, Var>,
    inputs: NamedTensors,
    actions: Tensor,
    state: NamedTensors,
    resets: Vec<bool>,
    gradients: Gradients,
    optimiser: Optimiser,
    pool: rayon::ThreadPool,
}

impl TrainCalls {
    /// The network of the case with its weights as variables.
    pub fn new(network: &Network, case: &Case, inputs: &Inputs) -> Result<Self> {
        let params = Params::init(Random::new(0), &Device::Cpu);
        let policy = Policy::new(&network.config, &params)?;
        let vars = params.vars();
        let tensors = network.tensors()?;
        for (name, var) in &vars {
            var.set(tensors.get(name).with_context(|| format!("{name}: not in the bundle"))?)?;
        }
        let inputs = inputs.tensors()?;
        let config = OptimiserConfig { weight_decay: 0.0, clip: 0.0, ..OptimiserConfig::default() };
        Ok(Self {
            actions: inputs.get("action")?.flatten(0, 1)?,
            state: policy.initial_state(case.batch)?,
            resets: vec![false; case.batch * case.frames],
            gradients: Gradients::zeros(&vars)?,
            optimiser: Optimiser::new(config, &vars)?,
            pool: rayon::ThreadPoolBuilder::new().num_threads(case.threads).stack_size(STACK_BYTES).build()?,
            policy,
            vars,
            inputs,
        })
    }

    /// The loss before and after the first update, in nats a frame.
    pub fn answers(&mut self) -> Result<Answers> {
        let losses = vec![f64::from(self.update()?), f64::from(self.update()?)];
        Ok(Answers::from([("loss".to_owned(), losses)]))
    }

    fn update(&mut self) -> Result<f32> {
        let Self { policy, vars, inputs, actions, state, resets, gradients, optimiser, pool } = self;
        pool.install(|| {
            let (outputs, _) = policy.unroll(inputs, resets, state)?;
            let logits = outputs.get("logits")?.flatten(0, 1)?;
            let loss = loss::components(&logits, actions, 0.0)?.sum(1)?.mean_all()?;
            gradients.clear();
            gradients.add(vars, &loss.backward()?)?;
            let step = optimiser.step(gradients, &loss.detach().reshape(1)?, LEARNING_RATE)?;
            step.figures.first().copied().context("no loss came back")
        })
    }
}

impl Subject for TrainCalls {
    fn run(&mut self) -> Result<()> {
        self.update().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Pass;
    use candle_models::policy::Heads;

    #[test]
    fn updates_lower_the_loss_of_their_batch() {
        let directory = tempfile::tempdir().unwrap();
        let network = Network::random("mlp", Heads::Autoregressive, directory.path()).unwrap();
        let case = network.case(Pass::Train, 2, 5, 1);
        let mut calls = TrainCalls::new(&network, &case, &Inputs::random(&case)).unwrap();
        let losses = calls.answers().unwrap().remove("loss").unwrap();
        assert!(losses[0] > 1.0 && losses[1] < losses[0] - 0.01, "{losses:?}");
    }
}
