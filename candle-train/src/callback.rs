//! What a program does beside a run: looks at its steps, adds figures to its log, ends it early.
//!
//! A [`Callback`] is added to a [`Run`](crate::run::Run) and changes nothing of what is learnt, but for the step at which it ends the run.
//! With several ranks every rank adds the same ones, and those of rank 0 are called: what they say holds for all.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_models::nn::{Init, Params};
//! use candle_models::{Result, random::Random};
//! use candle_train::callback::{Callback, Figures, Flow};
//! use candle_train::run::{Place, Run, Stop, TrainerConfig};
//! use candle_train::task::{Context, Loss, StepDone, Task};
//!
//! /// Ends a run when the loss is small enough, and logs how far that is.
//! struct Until(f64);
//!
//! impl Callback for Until {
//!     fn on_step(&mut self, step: &StepDone, figures: &mut Figures) -> Result<Flow> {
//!         figures.insert("to go", step.loss - self.0);
//!         Ok(if step.loss < self.0 { Flow::Stop } else { Flow::Continue })
//!     }
//! }
//! # struct Square;
//! # impl Task for Square {
//! #     type Batch = ();
//! #     fn next_batch(&mut self, _: &Context) -> Result<()> {
//! #         Ok(())
//! #     }
//! #     fn loss(&mut self, parameters: &Params, (): &(), _: &Context) -> Result<Loss> {
//! #         Ok(Loss::new(parameters.get("w", &[1], Init::Constant(1.0))?.sqr()?.sum_all()?, 1))
//! #     }
//! # }
//! # fn main() -> Result<()> {
//! # let (mut task, params) = (Square, Params::init(Random::new(1), &Device::Cpu));
//! # params.get("w", &[1], Init::Constant(1.0))?;
//! let run = Run::new(TrainerConfig::default(), 100_000, 1)?.with(Until(0.5));
//! let ended = run.train(params.vars(), &mut task, &Place::memory(), &Stop::after(None))?;
//! assert!(!ended.outcome.done() && ended.loss < 0.5);
//! # Ok(())
//! # }
//! ```

use crate::task::{Evaluation, StepDone};
use crate::trainer::Outcome;
use candle_models::Result;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Figures by name. One that the task has too stays the task's.
pub type Figures = BTreeMap<&'static str, f64>;

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// It ends here as one that a signal stops: with a checkpoint, and to be resumed.
    Stop,
}

/// What is called in a run, on rank 0. All calls of a run come in the order of its steps, those of one step in the order of these methods.
/// An error ends the run with its text.
pub trait Callback {
    /// After a step and what its task makes of it; `figures` go into the step's line of the metrics, among `parts`. The steps behind the
    /// last checkpoint of a run that was killed are made again when it is resumed, and so are their calls.
    ///
    /// # Errors
    /// Whatever is to end the run.
    fn on_step(&mut self, _step: &StepDone, _figures: &mut Figures) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// When the checkpoint of a step is complete on the disk: a run with callbacks waits for that. Its directory is as
    /// [`checkpoint`](crate::checkpoint) says, and goes when newer ones take its place.
    ///
    /// # Errors
    /// As [`Self::on_step`].
    fn on_checkpoint(&mut self, _step: u64, _directory: &Path) -> Result<()> {
        Ok(())
    }

    /// After an evaluation on held-out data; `figures` go into its line.
    ///
    /// # Errors
    /// As [`Self::on_step`].
    fn on_evaluation(&mut self, _step: u64, _evaluation: &Evaluation, _figures: &mut Figures) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    /// When the run has ended, at its last step or before; not when it failed. Nothing is written after it but the report.
    ///
    /// # Errors
    /// As [`Self::on_step`].
    fn on_end(&mut self, _step: u64, _outcome: Outcome) -> Result<()> {
        Ok(())
    }
}

/// The callbacks of a run, called in the order in which they were added.
#[derive(Default)]
pub struct Callbacks(Vec<Box<dyn Callback + Send>>);

impl Callbacks {
    /// Adds one.
    pub fn add(&mut self, callback: impl Callback + Send + 'static) {
        self.0.push(Box::new(callback));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls all of them, and stops if one wants to.
    pub(crate) fn ask(&mut self, mut call: impl FnMut(&mut dyn Callback) -> Result<Flow>) -> Result<Flow> {
        self.0.iter_mut().try_fold(Flow::Continue, |flow, callback| {
            let wanted = call(&mut **callback)?;
            Ok(if wanted == Flow::Stop { wanted } else { flow })
        })
    }

    /// Calls all of them.
    pub(crate) fn tell(&mut self, mut call: impl FnMut(&mut dyn Callback) -> Result<()>) -> Result<()> {
        self.0.iter_mut().try_for_each(|callback| call(&mut **callback))
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} callbacks", self.0.len())
    }
}
