//! Behaviour cloning as a [`Task`]: batches in, negative log-likelihood out, state carried from step to step.

use super::config::{LossConfig, NoiseConfig, RunConfig};
use super::dataset::Dataset;
use super::evaluate;
use super::loader::{Cursor, Loader};
use super::loss::{components, weighted_mean};
use crate::trainer::{Loss, Task};
use candle_core::{D, Tensor};
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

/// A policy learning to act as recorded.
pub struct Imitation {
    policy: Policy,
    loader: Loader,
    carried: NamedTensors,
    loss: LossConfig,
    noise: NoiseConfig,
    random: Random,
    held_out: Option<HeldOut>,
    repeats: bool,
}

impl Imitation {
    /// A task at the loader's first batch.
    pub fn new(run: &RunConfig, policy: Policy, loader: Loader, held_out: Option<HeldOut>) -> Result<Self> {
        let carried = policy.initial_state(run.data.batch)?;
        let (loss, noise) = (run.loss.clone(), run.noise.clone());
        let random = Random::new(run.seed).stream("noise");
        let repeats = loader.repeats();
        Ok(Self { policy, loader, carried, loss, noise, random, held_out, repeats })
    }
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
        let (outputs, state) = self.policy.train_unroll(&batch.inputs, &batch.resets, &self.carried, &noise)?;
        self.carried = state.map(|_, t| Ok(t.detach()))?;

        let n = batch.resets.len();
        let logits = outputs.get("logits")?.reshape((n, LOGITS))?;
        let actions = batch.inputs.get("action")?.reshape((n, ACTION))?;
        let parts = weighted_mean(&components(&logits, &actions, self.loss.smoothing)?, &batch.weights)?;
        let error = (outputs.get("value")?.reshape((n, 1))? - batch.returns.unsqueeze(D::Minus1)?)?.sqr()?;
        let error = weighted_mean(&error, &batch.weights)?.sum_all()?;
        let mut shares: BTreeMap<&'static str, f64> =
            GROUP_NAMES.into_iter().zip(parts.to_vec1::<f32>()?.into_iter().map(f64::from)).collect();
        shares.insert("value", f64::from(error.to_scalar::<f32>()?));
        let value = (parts.sum_all()? + (error * self.loss.value)?)?;
        Ok(Loss { value, parts: shares, samples: n, waited })
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
        Ok((self.carried.clone(), cursor))
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
