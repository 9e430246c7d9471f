//! A training run of a neural operator from pairs of fields to a model bundle.

use super::config::RunConfig;
use super::fields::Fields;
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
    /// Those of a file; others are made when the run begins.
    pairs: Option<Fields>,
    /// Pairs that are looked at when the run is over, and what they are called.
    tests: Vec<(String, Fields)>,
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
    /// How many pairs of a name, their grid, and what answers are wrong by; nothing when the run was stopped.
    errors: Vec<(String, usize, [usize; 2], Errors)>,
}

impl Plan {
    /// Checks a configuration. `fields` is the file to learn from in place of pairs that are made, `tests` those to measure the end by. `command` is
    /// what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If a field is out of range, a file cannot be read or does not fit, or a rank is left without a pair of the batch.
    pub fn new(config: RunConfig, fields: Option<&Path>, tests: &[PathBuf], with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        if config.batch < with.ranks.size() {
            return Err(Error::config("batch", format!("{} pairs cannot be shared by {} ranks", config.batch, with.ranks.size())));
        }
        let pairs = fields.map(Fields::read).transpose()?;
        let (count, grid, channels) = match &pairs {
            Some(pairs) => (pairs.len(), pairs.grid, pairs.channels),
            None => (config.data.shape().0, config.data.shape().1, [1, 1]),
        };
        config.check((count, grid))?;
        let model = config.model.on(grid, channels, Normaliser { mean: 0.0, deviation: 1.0 })?;
        let test = |path: &PathBuf| {
            let fields = Fields::read(path)?;
            if fields.channels != channels {
                let found = fields.channels;
                return Err(Error::file(path, format!("expected {channels:?} channels as there are to learn from, found {found:?}")));
            }
            let name = path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
            Ok((name, fields))
        };
        let tests = tests.iter().map(test).collect::<Result<Vec<_>>>()?;
        let description = Params::description();
        Fno::new(&model, &description)?;
        let batches = config.epochs.saturating_mul(Operator::batches(&config, count - config.held_out));
        let steps = (batches / config.trainer.accumulate as u64).max(1);
        Ok(Self { summary: Summary::new(&description.specs()), config, model, pairs, tests, with, steps, command })
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let (count, held, [n, m]) =
            (self.pairs.as_ref().map_or(self.config.data.shape().0, Fields::len), self.config.held_out, self.model.grid);
        let mut data = vec![format!("{} pairs on {n} x {m} places to learn from, {held} held out", count - held)];
        data.extend(
            self.tests.iter().map(|(name, fields)| format!("{name}: {} pairs that are looked at when the run is over", fields.len())),
        );
        Ok(About::new(self.command.clone(), data, &self.summary, overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        format!("{} parameters, {} steps of {} pairs", self.summary.values, self.steps, self.config.batch)
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, model, pairs, tests, with, steps, command, .. } = self;
        let (ranks, device) = (with.ranks.clone(), with.device.clone());
        let pairs = pairs.map_or_else(|| config.generate(), Ok)?.split(config.held_out);
        let model = FnoConfig { output: Normaliser::of(&pairs[0].answers)?, ..model };
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
        let learnt = pairs[0].len();
        let held = (!pairs[1].is_empty()).then(|| ("held out".to_owned(), pairs[1].clone()));
        let mut task = Operator::new(&config, &model, pairs, &*ranks, &device)?;
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let mut found = Vec::new();
        if ended.outcome.done() {
            let parameters = ended.params();
            for (name, fields) in held.into_iter().chain(tests) {
                found.push((name, fields.len(), fields.grid, errors(&model, &parameters, &fields, &*ranks)?));
            }
        }
        Ok(Trained { ended, config, model, command, learnt, errors: found })
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
        let line = |(name, _, [n, m], Errors { l2, h1 }): &(String, usize, [usize; 2], Errors)| {
            format!("{name}, {n} x {m}: relative L2 {l2:.4}, H1 {h1:.4}\n")
        };
        Ok(self.errors.iter().map(line).collect())
    }
}

impl Trained {
    fn card(&self) -> Result<String> {
        let Self { ended, config, model, command, learnt, errors } = self;
        let row = |(name, count, [n, m], Errors { l2, h1 }): &(String, usize, [usize; 2], Errors)| {
            format!("| {name} | {count} | {n} x {m} | {l2:.4} | {h1:.4} |\n")
        };
        let rows: String = errors.iter().map(row).collect();
        let minutes = ended.time.as_secs_f64() / 60.0;
        Ok(format!(
            "# Neural operator\n\nA field to a field: {}.\n\n{EQUATIONS}\n\
             ## Figures\n\nMean errors relative to the truth, of values (L2), and of values and slopes (H1, one-sided at the edges):\n\n\
             | pairs | number | places | L2 | H1 |\n|---|---|---|---|---|\n{rows}\n\
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
