//! A training run of a neural operator from pairs of fields to a model bundle.

use super::config::RunConfig;
use super::fields::{self, Fields};
use super::operator::{Errors, Operator, errors};
use crate::export::{EQUATIONS, Skeleton};
use crate::overlay;
use crate::plan::{TrainingPlan, TrainingResult};
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_models::bundle::{self, CARD, Manifest};
use candle_models::fno::{FAMILY, Fno, FnoConfig, Normaliser};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::path::{Path, PathBuf};

/// A run that is ready to start: everything that can be wrong with it has been checked.
#[derive(Debug)]
pub struct Plan {
    config: RunConfig,
    /// As far as it is known without looking at the pairs: their normalisation is not.
    model: FnoConfig,
    /// Those of files; where there are none, pairs are made when the run begins.
    files: Vec<Fields>,
    /// Pairs that are looked at when the run is over, and what they are called.
    tests: Vec<(String, Fields)>,
    /// What is learnt from, in words.
    data: String,
    with: Resources,
    steps: u64,
    summary: Summary,
    command: String,
}

/// What a run gave.
#[derive(Debug)]
pub struct Trained {
    ended: Ended,
    config: RunConfig,
    model: FnoConfig,
    command: String,
    /// Pairs that were learnt from.
    learnt: usize,
    /// Nothing when the run was stopped.
    measured: Vec<Measured>,
}

/// Pairs that were not learnt from.
#[derive(Debug)]
struct Measured {
    name: String,
    pairs: usize,
    grid: [usize; 2],
    errors: Errors,
}

impl Plan {
    /// Checks a configuration. `paths` are files and data sets to learn from in place of pairs that are made, each on its own grid; `tests` those to measure
    /// the end by. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If a field is out of range, a file cannot be read or does not fit, or a rank is left without a pair of the batch.
    pub fn new(mut config: RunConfig, paths: &[PathBuf], tests: &[PathBuf], with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        if config.batch < with.ranks.size() {
            return Err(Error::config("batch", format!("{} pairs cannot be shared by {} ranks", config.batch, with.ranks.size())));
        }
        let files = paths.iter().map(|path| Fields::read(path)).collect::<Result<Vec<_>>>()?;
        if !files.is_empty() {
            config.data = None;
        }
        let (shapes, states, channels) = match (&files[..], &config.data) {
            ([first, ..], _) => (files.iter().map(|pairs| (pairs.len(), pairs.grid)).collect(), first.states, first.channels),
            ([], Some(data)) => (vec![data.shape()], data.equation.states(), [1, 1]),
            ([], None) => return Err(Error::config("data", "expected pairs to make, or files to learn from")),
        };
        let fits = |path: &PathBuf, found: &Fields| match found.channels == channels {
            true => Ok(()),
            false => {
                Err(Error::file(path, format!("expected {channels:?} channels as there are to learn from, found {:?}", found.channels)))
            }
        };
        paths.iter().zip(&files).try_for_each(|(path, found)| fits(path, found))?;
        let learnt = learnt(&config, &shapes, states)?;
        let batches = config.epochs.saturating_mul(Operator::batches(&config, learnt.iter().copied()));
        let data: Vec<String> =
            shapes.iter().zip(&learnt).map(|((_, [n, m]), pairs)| format!("{pairs} pairs on {n} x {m} places")).collect();
        let model = config.model.on(shapes[0].1, channels, Normaliser { mean: 0.0, deviation: 1.0 })?;
        let test = |path: &PathBuf| {
            let pairs = Fields::read(path)?;
            fits(path, &pairs)?;
            Ok((fields::name(path), pairs))
        };
        let tests = tests.iter().map(test).collect::<Result<Vec<_>>>()?;
        let description = Params::description();
        Fno::new(&model, &description)?;
        let steps = (batches / config.trainer.accumulate as u64).max(1);
        let data = format!("{} to learn from, {} held out", data.join(", "), shapes[0].0 - learnt[0]);
        Ok(Self { summary: Summary::new(&description.specs()), config, model, files, tests, data, with, steps, command })
    }
}

/// How many pairs are learnt from of data with so many pairs on such grids; runs of the first are held out.
fn learnt(config: &RunConfig, shapes: &[(usize, [usize; 2])], states: usize) -> Result<Vec<usize>> {
    let held = config.held_out.saturating_mul(states);
    let mut counts: Vec<usize> = shapes.iter().map(|(pairs, _)| *pairs).collect();
    if counts[0] < held.saturating_add(config.batch) {
        let reason = format!("{} pairs do not make a batch of {} beside {held} held out", counts[0], config.batch);
        return Err(Error::config("batch", reason));
    }
    if let Some((_, [n, m])) = shapes.iter().find(|(_, [n, m])| config.transposed && n != m) {
        return Err(Error::config("transposed", format!("expected a square grid, found {n} x {m}")));
    }
    counts[0] -= held;
    Ok(counts)
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let mut data = vec![self.data.clone()];
        data.extend(
            self.tests.iter().map(|(name, fields)| format!("{name}: {} pairs that are looked at when the run is over", fields.len())),
        );
        Ok(About::new(self.command.clone(), data, &self.summary, overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        format!("{} parameters, {} steps of {} pairs: {}", self.summary.values, self.steps, self.config.batch, self.data)
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, model, files: mut sources, tests, with, steps, command, .. } = self;
        let (ranks, device, products) = (with.ranks.clone(), with.device.clone(), with.products);
        if let Some(data) = &config.data {
            sources.push(data.all()?);
        }
        let [first, held] = sources.remove(0).split(config.held_out);
        sources.insert(0, first);
        let learnt = sources.iter().map(Fields::len).sum();
        let output = if model.residual { Normaliser::of(&sources[0].changes())? } else { Normaliser::of(&sources[0].answers)? };
        let model = FnoConfig { output, ..model };
        let params = Params::init(Random::new(config.seed).stream("parameters"), &device);
        Fno::new(&model, &params)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), epochs: 0, ..config.clone() };
        let run = Run {
            identity: serde_json::json!({ "config": identity, "model": model }),
            resources: with,
            about,
            skeleton: Some(Skeleton { manifest: Manifest::new(FAMILY, &model)?, files: Vec::new() }),
            ..Run::new(config.trainer.clone(), steps, config.seed)?
        };
        let tests = std::iter::once(("held out".to_owned(), held.clone())).filter(|(_, held)| !held.is_empty()).chain(tests);
        let mut task = Operator::new(&config, &model, (sources, held), &*ranks)?.with_products(products);
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let mut measured = Vec::new();
        if ended.outcome.done() {
            let parameters = ended.params();
            for (name, fields) in tests {
                let errors = errors(&model, &parameters, &fields, &*ranks)?;
                measured.push(Measured { name, pairs: fields.len(), grid: fields.grid, errors });
            }
        }
        Ok(Trained { ended, config, model, command, learnt, measured })
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "pairs": self.learnt, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let card = self.card()?.into_bytes();
        bundle::save(directory, &Manifest::new(FAMILY, &self.model)?, &self.ended.parameters, metadata, &[(CARD, card)])?;
        Ok(self.measured.iter().map(Measured::line).collect())
    }
}

impl Measured {
    fn line(&self) -> String {
        let Self { name, grid: [n, m], errors: Errors { l2, h1, roll_out }, .. } = self;
        let roll_out = roll_out.map_or_else(String::new, |error| format!(", of roll-outs {error:.4}"));
        format!("{name}, {n} x {m}: relative L2 {l2:.4}, H1 {h1:.4}{roll_out}\n")
    }

    /// As a line of a Markdown table.
    fn row(&self) -> String {
        let Self { name, pairs, grid: [n, m], errors: Errors { l2, h1, roll_out } } = self;
        let roll_out = roll_out.map_or_else(|| "-".to_owned(), |error| format!("{error:.4}"));
        format!("| {name} | {pairs} | {n} x {m} | {l2:.4} | {h1:.4} | {roll_out} |\n")
    }
}

impl Trained {
    fn card(&self) -> Result<String> {
        let Self { ended, config, model, command, learnt, measured } = self;
        let rows: String = measured.iter().map(Measured::row).collect();
        let minutes = ended.time.as_secs_f64() / 60.0;
        Ok(format!(
            "# Neural operator\n\nA field to a field: {}.\n\n{EQUATIONS}\n\
             ## Figures\n\nMean errors relative to the truth, of values (L2), of values and slopes (H1, one-sided at the edges), and of all values of runs in which\nevery answer is read again (roll-outs, L2):\n\n\
             | pairs | number | places | L2 | H1 | roll-outs |\n|---|---|---|---|---|---|\n{rows}\n\
             ## Training\n\n{} steps of {} of {learnt} pairs, seed {}; {minutes:.1} minutes of steps since the last start.\n\n\
             {}```sh\n{command}\n```\n\n```toml\n{}```\n",
            model.name(),
            ended.step,
            config.batch,
            config.seed,
            ended.remark(),
            overlay::to_toml(config)?
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_are_held_out_are_whole_runs_and_too_few_are_refused() {
        let preset = RunConfig { batch: 5, held_out: 3, ..RunConfig::preset("darcy").unwrap() };
        let run = RunConfig { transposed: false, ..preset.clone() };
        assert_eq!(learnt(&run, &[(20, [4, 4]), (7, [4, 5])], 4).unwrap(), [8, 7]);
        for (config, shapes, message) in [
            (&run, [(16, [4, 4]); 1], "batch: 16 pairs do not make a batch of 5 beside 12 held out"),
            (&preset, [(20, [4, 5])], "transposed: expected a square grid, found 4 x 5"),
        ] {
            let error = learnt(config, &shapes, 4).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
