//! Saving a trainer and continuing one.

use super::{Best, Counters, Trainer};
use crate::budget::Budget;
use crate::checkpoint::{AVERAGE, Checkpoint, SavedFiles, StateFiles, Store, Writer, host_copy, name_of};
use crate::identity::{Difference, difference};
use crate::metrics::Reporter;
use crate::replica;
use crate::task::{Task, TaskState};
use candle_core::{Device, Var};
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Files of a checkpoint: see [`Checkpoint::tensors`].
const ROWS: &str = "carried";
const REPLICATED: &str = "replicated";

/// A checkpoint beside its tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    updates: u64,
    /// Before this step's evaluation, whose score the manifest holds.
    counters: Counters,
    /// Ranks of the run that saved: another number may resume.
    ranks: usize,
    cursor: serde_json::Value,
    identity: serde_json::Value,
    budget: Budget,
}

impl Trainer {
    /// Saves checkpoints below `directory`, on rank 0; other ranks write files of their task there.
    pub fn save_to(&mut self, directory: &Path) -> Result<()> {
        let directory = directory.join("checkpoints");
        if self.is_first_rank() {
            self.saves = Some(Writer::new(Store::open(&directory, self.config.keep)?)?);
        }
        self.directory = Some(directory);
        Ok(())
    }

    /// Whether there is a checkpoint to continue from.
    pub fn has_checkpoint(&self) -> bool {
        self.saves.as_ref().is_some_and(|saves| saves.store().latest_name().is_some())
    }

    /// Continues from the newest complete checkpoint that rank 0 finds. Returns the warnings about damaged ones and about another budget, or
    /// `None` when there is nothing to continue from.
    ///
    /// # Errors
    /// If the checkpoint is of another run or of another model: then nothing has changed.
    pub fn resume<T: Task>(&mut self, task: &mut T) -> Result<Option<Vec<String>>> {
        let ranks = self.resources.ranks.clone();
        let (found, damaged) = match &self.saves {
            Some(saves) => saves.store().latest()?,
            None => (None, Vec::new()),
        };
        let Some(checkpoint) = replica::broadcast_checkpoint(&*ranks, found)? else { return Ok(None) };
        let saved: Saved = serde_json::from_value(checkpoint.state.clone())
            .map_err(|e| Error::Input(format!("checkpoint of step {}: {e}", checkpoint.step)))?;
        self.check(&checkpoint, &saved)?;
        self.optimiser.restore(saved.updates, checkpoint.group("moments")?, checkpoint.group(AVERAGE)?)?;
        let rows = replica::own_rows(&*ranks, checkpoint.group(ROWS)?)?;
        let state = TaskState { replicated: checkpoint.tensors.get(REPLICATED).cloned().unwrap_or_default(), rows, cursor: saved.cursor };
        task.restore(&state, &SavedFiles::new(checkpoint.files.clone(), ranks.rank(), [saved.ranks, ranks.size()]))?;
        for (name, var) in &self.vars {
            var.set(&checkpoint.group("parameters")?.get(name)?.to_device(var.device())?)?;
        }
        let scale = self.counters.scale.continued(saved.counters.scale);
        (self.step, self.counters) = (checkpoint.step, Counters { scale, ..saved.counters });
        if let Some(score) = checkpoint.score {
            self.counters.plateau = self.counters.plateau.after(score, &self.config.early_stop);
        }
        self.evaluation_pending = checkpoint.score.is_none() && self.due(self.config.evaluate_every);
        let damaged = damaged.iter().map(|e| format!("passed over a checkpoint: {e}"));
        let budget = (saved.budget != self.budget)
            .then(|| format!("the run has {} where it had {}: the schedule goes on at its place in it", self.budget, saved.budget));
        Ok(Some(damaged.chain(budget).collect()))
    }

    /// Whether the checkpoint is of this run and this model.
    fn check(&self, checkpoint: &Checkpoint, saved: &Saved) -> Result<()> {
        let specs: Vec<TensorSpec> = self.vars.iter().map(|(name, var)| TensorSpec::f32(name, var.dims())).collect();
        let of_this_model = checkpoint.check("parameters", &specs).and_then(|()| checkpoint.check(AVERAGE, &specs));
        if let Some(Difference { path, values: [then, now] }) = difference(&saved.identity, &self.identity) {
            let what = format!("{path}: {then} in the checkpoint, {now} now");
            let tensor = of_this_model.err().map_or(String::new(), |error| format!("; {error}"));
            return Err(Error::Input(format!("this run cannot continue the checkpoint of step {}: {what}{tensor}", checkpoint.step)));
        }
        of_this_model
    }

    /// Starts to save. The tensors are copied; what goes wrong with the disk is a warning, now or at the next save.
    pub(super) fn save<T: Task>(&mut self, task: &mut T, reporter: &Reporter) -> Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let ranks = self.resources.ranks.clone();
        let mut files = StateFiles::new(&directory, self.step, ranks.rank());
        let saved = task.save(&mut files);
        let hashes = replica::all_files(&*ranks, saved.as_ref().map(|_| files.hashes()).map_err(ToString::to_string))?;
        let (state, hashes) = match (saved, hashes) {
            (Ok(state), Ok(hashes)) => (state, hashes),
            (Err(error), _) | (_, Err(error)) => {
                files.discard();
                let step = self.step;
                return self.warn(reporter, |saves| saves.lose(step, error));
            }
        };
        let carried = replica::all_rows(&*ranks, state.rows.map(|_, tensor| Ok(tensor.to_device(&Device::Cpu)?))?)?;
        if self.saves.is_none() {
            return Ok(());
        }
        let parameter = |(name, var): (&String, &Var)| Ok((name.clone(), host_copy(var)?));
        let parameters = self.vars.iter().map(parameter).collect::<Result<_>>()?;
        let (moments, average) = (self.optimiser.moments()?, self.optimiser.average()?);
        let groups = [("parameters", parameters), ("moments", moments), (AVERAGE, average), (ROWS, carried)];
        let mut tensors: BTreeMap<String, NamedTensors> = groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect();
        if !state.replicated.is_empty() {
            tensors.insert(REPLICATED.to_owned(), state.replicated.map(|_, tensor| Ok(tensor.to_device(&Device::Cpu)?))?);
        }
        let (updates, counters, identity) = (self.optimiser.updates(), self.counters, self.identity.clone());
        let saved = Saved { updates, counters, ranks: ranks.size(), cursor: state.cursor, identity, budget: self.budget };
        let state = serde_json::to_value(saved).map_err(|e| Error::Input(format!("checkpoint: {e}")))?;
        let checkpoint = Checkpoint { step: self.step, tensors, state, files: files.of_all(hashes), ..Checkpoint::default() };
        self.warn(reporter, |saves| saves.save(checkpoint))?;
        if !self.callbacks.is_empty() && self.saves.as_mut().is_some_and(Writer::wait) {
            let (step, path) = (self.step, directory.join(name_of(self.step)));
            self.callbacks.tell(|callback| callback.on_checkpoint(step, &path))?;
        }
        Ok(())
    }

    /// What goes wrong in a save, said on rank 0.
    fn warn(&mut self, reporter: &Reporter, save: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        if let Some(Err(error)) = self.saves.as_mut().map(save) {
            reporter.say(&format!("warning: {error}; training goes on"));
        }
        Ok(())
    }

    /// The averaged parameters with the best score, as far as they were kept.
    pub(super) fn best(&self) -> Result<Option<Best>> {
        if self.directory.is_none() {
            return Ok(self.best.clone());
        }
        let found = match &self.saves {
            Some(saves) => saves.store().best()?,
            None => None,
        };
        // Of a checkpoint no more than is shipped goes to the other ranks.
        let found = found.map(|checkpoint| {
            let tensors = checkpoint.tensors.into_iter().filter(|(group, _)| group == AVERAGE).collect();
            Checkpoint { tensors, ..checkpoint }
        });
        let Some(checkpoint) = replica::broadcast_checkpoint(&*self.resources.ranks, found)? else { return Ok(None) };
        let cost = checkpoint.score.unwrap_or(f64::INFINITY);
        Ok(Some(Best { step: checkpoint.step, cost, average: checkpoint.group(AVERAGE)?.clone() }))
    }
}
