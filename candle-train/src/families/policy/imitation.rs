//! Behaviour cloning as a [`Task`]: batches in, negative log-likelihood out, state carried from step to step.

use super::config::{LossConfig, NoiseConfig, RunConfig};
use super::dataset::Dataset;
use super::evaluate::{self, Evaluated};
use super::loader::{Batch, Cursor, Loader};
use super::loss::imitation;
use super::teachers::Teachers;
use crate::carried::Carried;
use crate::checkpoint::{SavedFiles, StateFiles};
use crate::optim::ParameterGroup;
use crate::parallel::Communicator;
use crate::summary::Summary;
use crate::task::{Context, Evaluation, Loss, Metric, Score, StepDone, Task, TaskState};
use candle_core::Device;
use candle_models::exec::tensors::Regularisation;
use candle_models::nn::Params;
use candle_models::policy::actions::GROUP_NAMES;
use candle_models::policy::calibration::expected_error;
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::recurrent::Recurrent;
use candle_models::{Error, Result};
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
    loader: Loader,
    carried: Carried,
    loss: LossConfig,
    noise: NoiseConfig,
    held_out: Option<HeldOut>,
    teachers: Teachers,
    /// Floating-point operations of a frame, forward and backward.
    operations: f64,
}

impl Imitation {
    /// A task at the loader's first batch.
    pub fn new(run: &RunConfig, device: &Device, loader: Loader, held_out: Option<HeldOut>, teachers: Vec<Policy>) -> Result<Self> {
        let (config, loss, noise) = (run.model.clone(), run.loss.clone(), run.noise.clone());
        // The backward pass has two products for each of the forward pass.
        let operations = 3.0 * Summary::new(&Policy::parameters(&config)?).operations as f64;
        let carried = Carried::new(Policy::new(&config, &Params::description())?.signature(), loader.lanes().len(), device)?;
        let teachers = Teachers::new(teachers, loader.lanes().len(), device)?;
        Ok(Self { config, loader, carried, loss, noise, held_out, teachers, operations })
    }
}

impl Task for Imitation {
    type Batch = Batch;

    fn unit(&self) -> &'static str {
        "frames"
    }

    fn next_batch(&mut self, _: &Context) -> Result<Batch> {
        Ok(self.loader.next()?.0)
    }

    fn loss(&mut self, parameters: &Params, batch: &Batch, context: &Context) -> Result<Loss> {
        if self.loader.repeats() {
            self.carried.forget()?;
            self.teachers.forget()?;
        }
        let (dropout, drop_ids) = (self.noise.dropout as f32, self.noise.drop_ids as f32);
        let noise = Regularisation { dropout, drop_ids, random: context.noise, first_row: batch.first_row };
        let outputs = self.carried.unroll(&Policy::new(&self.config, parameters)?, &batch.inputs, &batch.resets, &noise)?;
        let surprise = self.teachers.surprise(batch)?;
        let (value, parts) = imitation(&outputs, batch, &self.loss, surprise.as_ref())?;
        let weight = f64::from(batch.weight) / self.loader.rows() as f64;
        Ok(Loss { weight, metrics: vec![Metric::mean(&PARTS, parts)], ..Loss::new(value, batch.resets.len()) })
    }

    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        self.teachers.after_step(step)?;
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
        let Evaluated { likelihood, calibration } = evaluate::policy(&Policy::new(&self.config, parameters)?, &held_out.data, ranks)?;
        let all = likelihood.all();
        let figures = [
            ("over_markov", all.total() / held_out.markov),
            ("change", likelihood.changed.total()),
            ("hold", likelihood.held.total()),
            ("accuracy", all.accuracy()),
            ("calibration_error", expected_error(&calibration.all())),
        ];
        let parts = GROUP_NAMES.into_iter().zip(all.per_frame());
        let bins = calibration.all().into_iter().filter(|bin| bin.frames > 0);
        let reliability = bins.map(|bin| [bin.probability, bin.pressed as f64].map(|sum| sum / bin.frames as f64)).collect();
        Ok(Evaluation { reliability, ..Evaluation::new(Score::minimise(all.total()), figures.into_iter().chain(parts)) })
    }

    fn save(&mut self, _: &mut StateFiles) -> Result<TaskState> {
        let cursor = serde_json::to_value(self.loader.cursor()).map_err(|e| Error::Input(format!("cursor: {e}")))?;
        let mut rows = self.carried.rows().clone();
        self.teachers.save(&mut rows);
        Ok(TaskState { rows, cursor, ..TaskState::default() })
    }

    fn restore(&mut self, state: &TaskState, _: &SavedFiles) -> Result<()> {
        let cursor: Cursor = state.cursor()?;
        self.carried.restore(&self.teachers.restore(&state.rows)?)?;
        self.loader.seek(cursor)
    }
}
