//! A run of a task from its first step, or from its last checkpoint, to its end.

use crate::metrics::Reporter;
use crate::stop::Stop;
use crate::task::Task;
use crate::trainer::{Outcome, Trainer};
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

/// Trains until the last step, or until `stop` says so. `config` is the resolved configuration as text, kept beside the metrics.
/// An error of one rank ends all of them.
///
/// # Errors
/// If the place already holds a run, or one of another configuration; if gradients stay non-finite; if the disk is full.
pub fn train(trainer: &mut Trainer, task: &mut impl Task, place: &Place, config: &str, stop: &Stop) -> Result<Outcome> {
    let ranks = trainer.resources().ranks.clone();
    let outcome = begin(trainer, task, place, config).and_then(|()| {
        let directory = place.directory().filter(|_| ranks.rank() == 0);
        let mut reporter = Reporter::new(directory, trainer.step(), trainer.total(), trainer.config().log_every, task.unit())?
            .watching(&trainer.resources().device);
        trainer.run(task, &mut reporter, stop)
    });
    if let Err(error) = &outcome {
        ranks.abandon(&error.to_string());
    }
    outcome
}

fn begin(trainer: &mut Trainer, task: &mut impl Task, place: &Place, config: &str) -> Result<()> {
    let Some(directory) = place.directory() else { return Ok(()) };
    let leads = trainer.resources().ranks.rank() == 0;
    trainer.save_to(directory)?;
    if trainer.has_checkpoint() && matches!(place, Place::New(_)) {
        return Err(Error::file(directory, "holds a run already; --resume continues it"));
    }
    if let Some(warnings) = trainer.resume(task)?.filter(|_| leads) {
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        eprintln!("continued from step {}", trainer.step());
    }
    if leads { write_atomic(directory.join("config.toml"), config.as_bytes()) } else { Ok(()) }
}
