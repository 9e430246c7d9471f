//! Behaviour cloning as a [`Task`]: batches in, negative log-likelihood of the recorded actions out, state carried from step to step.

use super::config::RunConfig;
use super::episodes::Episodes;
use super::likelihood;
use super::loader::{Batch, Loader};
use crate::carried::Carried;
use crate::checkpoint::{SavedFiles, StateFiles};
use crate::optim::ParameterGroup;
use crate::parallel::Communicator;
use crate::summary::Summary;
use crate::task::{Context, Evaluation, Loss, Score, StepDone, Task, TaskState};
use candle_core::Device;
use candle_models::Result;
use candle_models::agent::{Agent, AgentConfig};
use candle_models::exec::tensors::Regularisation;
use candle_models::nn::Params;
use candle_models::recurrent::Recurrent;
use std::sync::Arc;

/// Held-out episodes and what a Markov chain says of them.
#[derive(Debug, Clone)]
pub struct HeldOut {
    /// The episodes.
    pub episodes: Arc<Episodes>,
    /// The chain's nats per frame.
    pub markov: f64,
}

/// An agent learning to act as recorded.
pub struct Imitation {
    config: AgentConfig,
    dropout: f32,
    loader: Loader,
    carried: Carried,
    held_out: Option<HeldOut>,
    /// Floating-point operations of a frame, forward and backward.
    operations: f64,
}

impl Imitation {
    /// A task at the first batch of a loader.
    ///
    /// # Errors
    /// If the description is out of range.
    pub fn new(run: &RunConfig, device: &Device, loader: Loader, held_out: Option<HeldOut>) -> Result<Self> {
        let (config, dropout) = (run.model.clone(), run.dropout as f32);
        // The backward pass has two products for each of the forward pass.
        let operations = 3.0 * Summary::new(&Agent::parameters(&config)?).operations as f64;
        let carried = Carried::new(Agent::new(&config, &Params::description())?.signature(), loader.lanes().len(), device)?;
        Ok(Self { config, dropout, loader, carried, held_out, operations })
    }
}

impl Task for Imitation {
    type Batch = Batch;

    fn unit(&self) -> &'static str {
        "frames"
    }

    fn next_batch(&mut self, context: &Context) -> Result<Batch> {
        self.loader.get(context.batch)
    }

    /// Nats per frame, the sum over the components.
    fn loss(&mut self, parameters: &Params, batch: &Batch, context: &Context) -> Result<Loss> {
        let (shape, lanes) = (self.loader.shape(), self.loader.lanes());
        let n = batch.resets.len();
        let noise = Regularisation { dropout: self.dropout, drop_ids: 0.0, random: context.noise, first_row: lanes.start * shape.unroll };
        let outputs = self.carried.unroll(&Agent::new(&self.config, parameters)?, &batch.inputs, &batch.resets, &noise)?;
        let nats = likelihood::nats(&self.config, &outputs, (&batch.inputs, batch.numbers.as_ref()))?;
        let value = nats.mean(0)?.sum_all()?;
        Ok(Loss { weight: n as f64 / shape.rows() as f64, ..Loss::new(value, n) })
    }

    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        self.carried.after_step(step)
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::with_mamba(name, shape.len())
    }

    fn operations(&self) -> f64 {
        self.operations
    }

    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        let Some(held_out) = &self.held_out else { return Ok(Evaluation::default()) };
        let found = likelihood::agent(&Agent::new(&self.config, parameters)?, &self.config, &held_out.episodes, ranks)?;
        let figures = likelihood::figures(&self.config, &found)?;
        // Nats of a density may be below zero, where a ratio says nothing.
        let over = match self.config.numbers() {
            0 => ("over_markov", found.total() / held_out.markov),
            _ => ("below_markov", held_out.markov - found.total()),
        };
        Ok(Evaluation::new(Score::minimise(found.total()), figures.iter().map(|(name, x)| (name.as_str(), *x)).chain([over])))
    }

    /// Batches follow from their numbers: what is carried is all that there is to keep.
    fn save(&mut self, _: &mut StateFiles) -> Result<TaskState> {
        Ok(TaskState { rows: self.carried.rows().clone(), ..TaskState::default() })
    }

    fn restore(&mut self, state: &TaskState, _: &SavedFiles) -> Result<()> {
        self.carried.restore(&state.rows)
    }
}
