//! A run of a task from its first step, or from its last checkpoint, to its end.

use crate::host::Host;
use crate::metrics::Reporter;
use crate::report::{self, About};
use crate::stop::Stop;
use crate::task::Task;
use crate::trainer::{Outcome, Resources, Trainer};
use candle_models::files::write_atomic;
use candle_models::{Error, Result};
use std::path::{Path, PathBuf};

/// Where a run keeps its files, and where it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nothing is written.
    Memory,
    /// `config.toml`, metrics and checkpoints go here; the directory must not hold a run.
    New(PathBuf),
    /// The same, and a run that is there is continued.
    Resume(PathBuf),
}

impl Place {
    /// The run's directory.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Memory => None,
            Self::New(path) | Self::Resume(path) => Some(path),
        }
    }
}

/// Opens the place and continues the run that is there, if there is one. An error of one rank ends all of them.
///
/// # Errors
/// If the place already holds a run that was not to be continued, or one of another configuration.
pub fn begin(trainer: &mut Trainer, task: &mut impl Task, place: &Place) -> Result<()> {
    let Some(directory) = place.directory() else { return Ok(()) };
    let ranks = trainer.resources().ranks.clone();
    let mut begin = || {
        trainer.save_to(directory)?;
        if trainer.has_checkpoint() && matches!(place, Place::New(_)) {
            return Err(Error::file(directory, "holds a run already; --resume continues it"));
        }
        let resumed = trainer.resume(task)?;
        if let Some(warnings) = resumed.filter(|_| ranks.rank() == 0) {
            warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            eprintln!("continued from step {}", trainer.step());
        }
        Ok(())
    };
    begin().inspect_err(|error: &Error| ranks.abandon(&error.to_string()))
}

/// Trains until the last step, or until `stop` says so; writes metrics on the way and a report at the end. An error of one rank ends
/// all of them.
///
/// # Errors
/// If gradients stay non-finite; if the last checkpoint cannot be saved.
pub fn train(trainer: &mut Trainer, task: &mut impl Task, place: &Place, about: About, stop: &Stop) -> Result<Outcome> {
    let ranks = trainer.resources().ranks.clone();
    let outcome = reporter(trainer, place, about, task.unit())
        .and_then(|mut reporter| trainer.run(task, &mut reporter, stop))
        .inspect_err(|error| ranks.abandon(&error.to_string()));
    if let Some(Err(error)) = place.directory().filter(|_| ranks.rank() == 0).map(report::write) {
        eprintln!("warning: no report: {error}");
    }
    outcome
}

/// Says in the run's directory what it is, and starts to report on its steps.
fn reporter(trainer: &Trainer, place: &Place, about: About, unit: &'static str) -> Result<Reporter> {
    let Resources { device, dtype, ranks } = trainer.resources();
    if ranks.rank() > 0 {
        return Reporter::silent();
    }
    let on = if device.is_cuda() { "CUDA" } else { "the CPU" };
    let on = format!("{} x {on}, in {}", ranks.size(), dtype.as_str());
    let about = About { host: Host::detect().to_string(), device: on, steps: trainer.total(), unit: unit.into(), ..about };
    if let Some(directory) = place.directory() {
        about.save(directory)?;
        write_atomic(directory.join("config.toml"), about.configuration.as_bytes())?;
    }
    let reporter = Reporter::new(place.directory(), trainer.step(), trainer.total(), trainer.config().log_every, unit)?;
    reporter.watching(device).counting(about.operations).describing(&about.configuration)
}
