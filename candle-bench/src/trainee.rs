//! What is trained: the training step of a family's model, as the trainer's own task.

use crate::case::{Case, Pass};
use crate::network::Place;
use anyhow::Result;
use candle_core::{Device, Var};
use candle_models::Error;
use candle_models::bundle::Manifest;
use candle_models::device::Purpose;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_train::optim::ParameterGroup;
use candle_train::task::{Context, Loss, StepDone, Task};
use candle_train::trainer::TrainerConfig;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// A model with the work of its training step.
pub trait Trainee: Debug + Send + Sync {
    /// The configuration, from which another process makes the same.
    ///
    /// # Errors
    /// If it has no JSON form.
    fn manifest(&self) -> Result<Manifest>;

    /// What `candle-train` calls its training.
    fn training(&self) -> &'static str;

    /// `mamba 2x256, autoregressive heads`.
    fn name(&self) -> String;

    /// What a sample is called.
    fn unit(&self) -> &'static str {
        "frames"
    }

    /// Frames of a sequence where so many are asked for.
    fn frames(&self, asked: usize) -> usize {
        asked
    }

    /// A training case on the CPU.
    fn case(&self, batch: usize, frames: usize, threads: usize) -> Case {
        Case::of(&self.name(), Pass::Train, [batch, self.frames(frames), threads], "f32")
    }

    /// Samples of a step.
    fn samples(&self, case: &Case) -> usize {
        case.batch * case.frames
    }

    /// How often the forward pass of a step uses a weight of a matrix, all weights together.
    ///
    /// # Errors
    /// If the configuration is out of range.
    fn weight_uses(&self, case: &Case) -> Result<f64>;

    /// Fresh parameters on a device.
    ///
    /// # Errors
    /// If the configuration is out of range.
    fn vars(&self, device: &Device) -> Result<BTreeMap<String, Var>>;

    /// How the trainer is set up.
    ///
    /// # Errors
    /// If the configuration is out of range.
    fn trainer(&self) -> Result<TrainerConfig>;

    /// What decides which dtypes its loss can be computed in.
    fn purpose(&self) -> Purpose {
        Purpose::Training
    }

    /// Its task at the first batch. On the CPU a narrow dtype is one of products, as in the trainer.
    ///
    /// # Errors
    /// If the configuration is out of range.
    fn work(&self, case: &Case, device: &Device, products: Products) -> Result<Work>;

    /// The preset and the configuration in TOML by which `candle-train` trains the same.
    ///
    /// # Errors
    /// If there is none.
    fn program(&self, case: &Case) -> Result<(&'static str, String)>;

    /// Its training loop, if a thread makes its batches ahead.
    ///
    /// # Errors
    /// If the configuration is out of range.
    fn prefetched(&self, _case: &Case, _place: &Place) -> Result<Option<Box<dyn Prefetched>>> {
        Ok(None)
    }
}

/// A training loop whose batches a thread makes ahead.
pub trait Prefetched {
    /// Waits for the next batch and keeps it in the place of the one before.
    ///
    /// # Errors
    /// If it cannot be made.
    fn next_batch(&mut self) -> Result<()>;

    /// Ends the thread until the next batch is asked for.
    ///
    /// # Errors
    /// If the loop cannot go on from here later.
    fn pause(&mut self) -> Result<()>;

    /// Forward, backward and update on the batch that is kept.
    ///
    /// # Errors
    /// If they fail.
    fn step(&mut self) -> Result<()>;

    /// Floats of a batch.
    fn floats(&self) -> usize;
}

/// A task of any family: the trainer takes one whose type it knows.
pub struct Work(Box<dyn AnyTask + Send>);

impl Work {
    /// A family's task.
    pub fn new<T: Task + Send + 'static>(task: T) -> Self {
        Self(Box::new(task))
    }
}

/// A task whose type of batches is not known.
trait AnyTask {
    fn next_batch(&mut self, context: &Context) -> candle_models::Result<Box<dyn Any>>;
    fn loss(&mut self, parameters: &Params, batch: &dyn Any, context: &Context) -> candle_models::Result<Loss>;
    fn after_step(&mut self, step: &StepDone) -> candle_models::Result<()>;
    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup;
}

impl<T: Task> AnyTask for T
where
    T::Batch: 'static,
{
    fn next_batch(&mut self, context: &Context) -> candle_models::Result<Box<dyn Any>> {
        Ok(Box::new(Task::next_batch(self, context)?))
    }

    fn loss(&mut self, parameters: &Params, batch: &dyn Any, context: &Context) -> candle_models::Result<Loss> {
        let batch = batch.downcast_ref().ok_or_else(|| Error::Input("a batch of another task".to_owned()))?;
        Task::loss(self, parameters, batch, context)
    }

    fn after_step(&mut self, step: &StepDone) -> candle_models::Result<()> {
        Task::after_step(self, step)
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        Task::group(self, name, shape)
    }
}

impl Task for Work {
    type Batch = Box<dyn Any>;

    fn next_batch(&mut self, context: &Context) -> candle_models::Result<Box<dyn Any>> {
        self.0.next_batch(context)
    }

    fn loss(&mut self, parameters: &Params, batch: &Box<dyn Any>, context: &Context) -> candle_models::Result<Loss> {
        self.0.loss(parameters, &**batch, context)
    }

    fn after_step(&mut self, step: &StepDone) -> candle_models::Result<()> {
        self.0.after_step(step)
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        self.0.group(name, shape)
    }
}
