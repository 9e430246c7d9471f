//! Behaviour cloning as a [`Task`]: batches in, negative log-likelihood out, state carried from step to step.

use super::config::{LossConfig, NoiseConfig, RunConfig};
use super::dataset::Dataset;
use super::evaluate;
use super::loader::{Cursor, Loader};
use super::loss::{components, weighted_mean};
use crate::trainer::{Loss, Task};
use candle_core::{D, DType, Device, Tensor, Var};
use candle_models::exec::tensors::Regularisation;
use candle_models::nn::Params;
use candle_models::policy::Policy;
use candle_models::policy::actions::{ACTION, GROUP_NAMES, LOGITS};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Held-out games and what the first-order Markov table says of them.
#[derive(Debug, Clone)]
pub struct HeldOut {
    /// The games.
    pub data: Arc<Dataset>,
    /// The table's nats per frame.
    pub markov: f64,
}

/// What the parts of the loss are called.
const PARTS: [&str; GROUP_NAMES.len() + 1] = {
    let mut names = ["value"; GROUP_NAMES.len() + 1];
    let mut i = 0;
    while i < GROUP_NAMES.len() {
        names[i] = GROUP_NAMES[i];
        i += 1;
    }
    names
};

/// A policy learning to act as recorded.
pub struct Imitation {
    /// Over the parameters in f32.
    policy: Policy,
    vars: BTreeMap<String, Var>,
    /// What losses are computed in.
    dtype: DType,
    loader: Loader,
    carried: NamedTensors,
    loss: LossConfig,
    noise: NoiseConfig,
    random: Random,
    held_out: Option<HeldOut>,
    repeats: bool,
}

impl Imitation {
    /// A task at the loader's first batch, over `vars` in f32 on their device. Matrices and activations of a loss are of `dtype`;
    /// gradients arrive in f32.
    pub fn new(run: &RunConfig, vars: BTreeMap<String, Var>, dtype: DType, loader: Loader, held_out: Option<HeldOut>) -> Result<Self> {
        let device = vars.values().next().map_or(Device::Cpu, |var| var.device().clone());
        let policy = Policy::new(&run.model, &Params::given(tensors(&vars), &device))?;
        let carried = policy.initial_state(run.data.batch)?;
        let (loss, noise) = (run.loss.clone(), run.noise.clone());
        let random = Random::new(run.seed).stream("noise");
        let repeats = loader.repeats();
        Ok(Self { policy, vars, dtype, loader, carried, loss, noise, random, held_out, repeats })
    }

    /// The policy whose graph begins with the casts of this step's parameters.
    fn computing(&self) -> Result<Policy> {
        let params = Params::given(tensors(&self.vars), self.policy.device()).computing_in(self.dtype);
        Policy::new(self.policy.config(), &params)
    }
}

fn tensors(vars: &BTreeMap<String, Var>) -> BTreeMap<String, Tensor> {
    vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect()
}

impl Task for Imitation {
    fn unit(&self) -> &'static str {
        "frames"
    }

    fn loss(&mut self) -> Result<Loss> {
        let (batch, waited) = self.loader.next()?;
        if self.repeats {
            self.forget()?;
        }
        let (dropout, drop_ids) = (self.noise.dropout as f32, self.noise.drop_ids as f32);
        let noise = Regularisation { dropout, drop_ids, random: self.random.at(batch.number) };
        let (outputs, state) = self.computing()?.train_unroll(&batch.inputs, &batch.resets, &self.carried, &noise)?;
        self.carried = state.map(|_, t| Ok(t.detach()))?;

        let n = batch.resets.len();
        let logits = outputs.get("logits")?.reshape((n, LOGITS))?;
        let actions = batch.inputs.get("action")?.reshape((n, ACTION))?;
        let groups = weighted_mean(&components(&logits, &actions, self.loss.smoothing)?, &batch.weights)?;
        let returns = batch.returns.to_device(logits.device())?;
        let error = (outputs.get("value")?.reshape((n, 1))? - returns.unsqueeze(D::Minus1)?)?.sqr()?;
        let error = weighted_mean(&error, &batch.weights)?;
        let parts = Tensor::cat(&[groups.detach(), error.detach()], 0)?;
        let value = (groups.sum_all()? + (error.sum_all()? * self.loss.value)?)?;
        Ok(Loss { value, parts, names: &PARTS, samples: n, waited })
    }

    fn forget(&mut self) -> Result<()> {
        let batch = self.carried.iter().next().map_or(0, |(_, t)| t.dims()[0]);
        self.carried = self.policy.initial_state(batch)?;
        Ok(())
    }

    fn evaluate(&mut self, parameters: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, f64>> {
        let Some(held_out) = &self.held_out else { return Ok(BTreeMap::new()) };
        let policy = Policy::new(self.policy.config(), &Params::given(parameters, self.policy.device()))?;
        let likelihood = evaluate::policy(&policy, &held_out.data)?;
        let all = likelihood.all();
        let figures = [
            ("score", all.total()),
            ("over_markov", all.total() / held_out.markov),
            ("change", likelihood.changed.total()),
            ("hold", likelihood.held.total()),
            ("accuracy", all.accuracy()),
        ];
        let parts = GROUP_NAMES.into_iter().zip(all.per_frame());
        Ok(figures.into_iter().chain(parts).map(|(name, x)| (name.to_owned(), x)).collect())
    }

    fn save(&self) -> Result<(NamedTensors, serde_json::Value)> {
        let cursor = serde_json::to_value(self.loader.cursor()).map_err(|e| Error::Input(format!("cursor: {e}")))?;
        Ok((self.carried.map(|_, t| Ok(t.to_device(&Device::Cpu)?))?, cursor))
    }

    fn restore(&mut self, carried: &NamedTensors, cursor: &serde_json::Value) -> Result<()> {
        let cursor: Cursor = serde_json::from_value(cursor.clone()).map_err(|e| Error::Input(format!("checkpoint's cursor: {e}")))?;
        let batch = self.carried.iter().next().map_or(0, |(_, t)| t.dims()[0]);
        carried.check(&self.policy.signature().state, &[batch])?;
        self.loader.seek(cursor)?;
        self.carried = carried.clone();
        Ok(())
    }
}
