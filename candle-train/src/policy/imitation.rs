//! Behaviour cloning as a [`Task`]: batches in, negative log-likelihood out, state carried from step to step.

use super::config::{LossConfig, NoiseConfig, RunConfig};
use super::dataset::Dataset;
use super::evaluate;
use super::loader::{Cursor, Loader};
use super::loss::{components, weighted_mean};
use crate::parallel::Communicator;
use crate::task::{Loss, Task};
use candle_core::{D, Device, Tensor};
use candle_models::exec::tensors::Regularisation;
use candle_models::nn::Params;
use candle_models::policy::actions::{ACTION, GROUP_NAMES, LOGITS};
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::{NamedTensors, TensorSpec};
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
    config: PolicyConfig,
    device: Device,
    loader: Loader,
    /// What is carried from batch to batch, of every lane.
    states: Vec<TensorSpec>,
    carried: NamedTensors,
    loss: LossConfig,
    noise: NoiseConfig,
    random: Random,
    held_out: Option<HeldOut>,
}

impl Imitation {
    /// A task at the loader's first batch.
    pub fn new(run: &RunConfig, device: &Device, loader: Loader, held_out: Option<HeldOut>) -> Result<Self> {
        let (config, device, loss, noise) = (run.model.clone(), device.clone(), run.loss.clone(), run.noise.clone());
        let random = Random::new(run.seed).stream("noise");
        let states = Policy::new(&config, &Params::description())?.signature().state.clone();
        let mut task = Self { config, device, loader, states, carried: NamedTensors::new(), loss, noise, random, held_out };
        task.forget()?;
        Ok(task)
    }
}

impl Task for Imitation {
    fn unit(&self) -> &'static str {
        "frames"
    }

    fn loss(&mut self, parameters: &Params) -> Result<Loss> {
        let (batch, waited) = self.loader.next()?;
        if self.loader.repeats() {
            self.forget()?;
        }
        let (dropout, drop_ids) = (self.noise.dropout as f32, self.noise.drop_ids as f32);
        let noise = Regularisation { dropout, drop_ids, random: self.random.at(batch.number), first_row: batch.first_row };
        let policy = Policy::new(&self.config, parameters)?;
        let (outputs, state) = policy.train_unroll(&batch.inputs, &batch.resets, &self.carried, &noise)?;
        self.carried = state.map(|_, t| Ok(t.detach()))?;

        let n = batch.resets.len();
        let logits = outputs.get("logits")?.reshape((n, LOGITS))?;
        let actions = batch.inputs.get("action")?.reshape((n, ACTION))?;
        let (components, weights) = (components(&logits, &actions, self.loss.smoothing)?, &batch.weights);
        let groups = weighted_mean(&components, weights, batch.weight)?;
        let returns = batch.returns.to_device(logits.device())?;
        let error = (outputs.get("value")?.reshape((n, 1))? - returns.unsqueeze(D::Minus1)?)?.sqr()?;
        let error = weighted_mean(&error, weights, batch.weight)?;
        let parts = Tensor::cat(&[groups.detach(), error.detach()], 0)?;
        let value = (groups.sum_all()? + (error.sum_all()? * self.loss.value)?)?;
        let weight = f64::from(batch.weight) / self.loader.rows() as f64;
        Ok(Loss { value, parts, names: &PARTS, weight, samples: n, waited })
    }

    fn forget(&mut self) -> Result<()> {
        self.carried = NamedTensors::zeros(&self.states, self.loader.lanes().len(), &self.device)?;
        Ok(())
    }

    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<BTreeMap<String, f64>> {
        let Some(held_out) = &self.held_out else { return Ok(BTreeMap::new()) };
        let likelihood = evaluate::policy(&Policy::new(&self.config, parameters)?, &held_out.data, ranks)?;
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
        carried.check(&self.states, &[self.loader.lanes().len()])?;
        self.loader.seek(cursor)?;
        self.carried = carried.clone();
        Ok(())
    }
}
