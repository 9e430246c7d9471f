//! Saving a trainer and continuing one.

use super::{Counters, Trainer};
use crate::checkpoint::{Checkpoint, Store, Writer, host_copy};
use crate::identity::{Difference, difference};
use crate::metrics::Reporter;
use crate::replica;
use crate::task::Task;
use candle_core::Var;
use candle_models::tensors::TensorSpec;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

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
}

impl Trainer {
    /// Saves checkpoints below `directory`, on rank 0.
    pub fn save_to(&mut self, directory: &Path) -> Result<()> {
        if self.leads() {
            self.saves = Some(Writer::new(Store::open(directory.join("checkpoints"), self.config.keep)?)?);
        }
        Ok(())
    }

    /// Whether there is a checkpoint to continue from.
    pub fn has_checkpoint(&self) -> bool {
        self.saves.as_ref().is_some_and(|saves| saves.store().latest_name().is_some())
    }

    /// Continues from the newest complete checkpoint that rank 0 finds. Returns the warnings about damaged ones, or `None` when
    /// there is nothing to continue from.
    ///
    /// # Errors
    /// If the checkpoint is of another run or of another model: then nothing has changed.
    pub fn resume(&mut self, task: &mut impl Task) -> Result<Option<Vec<String>>> {
        let ranks = self.with.ranks.clone();
        let (found, damaged) = match &self.saves {
            Some(saves) => saves.store().latest()?,
            None => (None, Vec::new()),
        };
        let Some(checkpoint) = replica::broadcast_checkpoint(&*ranks, found)? else { return Ok(None) };
        let saved: Saved = serde_json::from_value(checkpoint.state.clone())
            .map_err(|e| Error::Input(format!("checkpoint of step {}: {e}", checkpoint.step)))?;
        self.check(&checkpoint, &saved)?;
        self.optimiser.restore(saved.updates, checkpoint.group("moments")?, checkpoint.group("average")?)?;
        task.restore(&replica::own_rows(&*ranks, checkpoint.group("carried")?)?, &saved.cursor)?;
        for (name, var) in &self.vars {
            var.set(&checkpoint.group("parameters")?.get(name)?.to_device(var.device())?)?;
        }
        let scale = self.counters.scale.continued(saved.counters.scale);
        (self.step, self.counters) = (checkpoint.step, Counters { scale, ..saved.counters });
        if let Some(score) = checkpoint.score {
            self.counters.plateau = self.counters.plateau.after(score, &self.config.early_stop);
        }
        self.owes_evaluation = checkpoint.score.is_none() && self.due(self.config.evaluate_every);
        Ok(Some(damaged.iter().map(|e| format!("passed over a checkpoint: {e}")).collect()))
    }

    /// Whether the checkpoint is of this run and this model.
    fn check(&self, checkpoint: &Checkpoint, saved: &Saved) -> Result<()> {
        let specs: Vec<TensorSpec> = self.vars.iter().map(|(name, var)| TensorSpec::f32(name, var.dims())).collect();
        let of_this_model = checkpoint.check("parameters", &specs).and_then(|()| checkpoint.check("average", &specs));
        if let Some(Difference { path, values: [then, now] }) = difference(&saved.identity, &self.identity) {
            let what = format!("{path}: {then} in the checkpoint, {now} now");
            let tensor = of_this_model.err().map_or(String::new(), |error| format!("; {error}"));
            return Err(Error::Input(format!("this run cannot continue the checkpoint of step {}: {what}{tensor}", checkpoint.step)));
        }
        of_this_model
    }

    /// Starts to save. The tensors are copied; what goes wrong with the disk is a warning, now or at the next save.
    pub(super) fn save(&mut self, task: &impl Task, reporter: &Reporter) -> Result<()> {
        let (carried, cursor) = task.save()?;
        let carried = replica::all_rows(&*self.with.ranks, carried)?;
        let Some(saves) = &mut self.saves else { return Ok(()) };
        let parameter = |(name, var): (&String, &Var)| Ok((name.clone(), host_copy(var)?));
        let parameters = self.vars.iter().map(parameter).collect::<Result<_>>()?;
        let (moments, average) = (self.optimiser.moments()?, self.optimiser.average()?);
        let groups = [("parameters", parameters), ("moments", moments), ("average", average), ("carried", carried)];
        let (updates, counters, ranks) = (self.optimiser.updates(), self.counters, self.with.ranks.size());
        let state = serde_json::to_value(Saved { updates, counters, ranks, cursor, identity: self.identity.clone() })
            .map_err(|e| Error::Input(format!("checkpoint: {e}")))?;
        let tensors = groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect();
        if let Err(error) = saves.save(Checkpoint { step: self.step, tensors, state, score: None }) {
            reporter.say(&format!("warning: {error}; training goes on"));
        }
        Ok(())
    }
}
