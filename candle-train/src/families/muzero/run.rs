//! A run from an environment to a model bundle.

use super::config::{EvaluationConfig, RunConfig};
use super::play::evaluate;
use super::task::MuZeroTask;
use crate::budget::Budget;
use crate::callback::Callbacks;
use crate::episodes::mean_and_error;
use crate::export::{EQUATIONS, Skeleton};
use crate::plan::{TrainingPlan, TrainingResult};
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_envs::{Entry, Environments};
use candle_models::bundle::{self, CARD, Manifest};
use candle_models::muzero::{FAMILY, MuZero, MuZeroConfig};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::fmt::Write;
use std::path::Path;

/// A run that is ready to start: everything that can be wrong with it has been checked.
pub struct Plan {
    /// The configuration.
    pub config: RunConfig,
    /// The networks.
    pub model: MuZeroConfig,
    entry: Entry,
    summary: Summary,
    with: Resources,
    command: String,
}

/// What a run gave.
pub struct Trained {
    /// How it ended, and the parameters.
    pub ended: Ended,
    /// The configuration.
    pub config: RunConfig,
    /// The networks.
    pub model: MuZeroConfig,
    /// Mean reward of the evaluation's episodes, and its standard error; `None` where the run was stopped.
    pub reward: Option<(f64, f64)>,
    command: String,
}

impl Plan {
    /// Checks a configuration against its environment. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If there is no such environment, its action is not one of several classes, a field is out of range, or a rank is left without a lane.
    pub fn new(config: RunConfig, environments: &Environments, with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        let entry = *environments.get(&config.env).map_err(|error| Error::config("env", error))?;
        let model = config.model(&(entry.spec)())?;
        let (lanes, ranks) = (config.play.lanes, with.ranks.size());
        if lanes < ranks {
            return Err(Error::config("play.lanes", format!("{lanes} environments cannot be shared by {ranks} ranks")));
        }
        let description = Params::description();
        MuZero::new(&model, &description)?;
        let summary = Summary::new(&description.specs());
        MuZeroTask::new(&config, &entry, &with.device, &*with.ranks)?;
        Ok(Self { config, model, entry, summary, with, command })
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let data = vec![format!("plays {}: {}", self.config.env, self.entry.about)];
        Ok(About::new(self.command.clone(), data, &self.summary, crate::overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        let RunConfig { play, learn, env, .. } = &self.config;
        let (rounds, lanes, steps, values) = (self.config.rounds(), play.lanes, play.steps, self.summary.values);
        let (updates, batch, unroll) = (learn.updates, learn.batch, learn.unroll);
        format!(
            "{lanes} x {env}, {rounds} rounds of {steps} steps, {updates} updates each of {batch} x {unroll} positions\n{values} parameters"
        )
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, model, entry, with, command, .. } = self;
        let (device, ranks) = (with.device.clone(), with.ranks.clone());
        let params = Params::init(Random::new(config.seed).stream("parameters"), &device);
        MuZero::new(&model, &params)?;
        let mut task = MuZeroTask::new(&config, &entry, &device, &*ranks)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), frames: 0, ..config.clone() };
        let run = Run {
            seed: config.seed,
            trainer: config.trainer.clone(),
            budget: Budget::Steps(config.updates()),
            identity: serde_json::json!({ "config": identity }),
            resources: with,
            about,
            skeleton: Some(Skeleton { manifest: Manifest::new(FAMILY, &model)?, files: Vec::new() }),
            notes: Vec::new(),
            hint: None,
            callbacks: Callbacks::default(),
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let reward = if ended.outcome.done() {
            let of_play = (config.play.search, &config.evaluation);
            Some(mean_and_error(&evaluate((&model, &ended.params()), &entry, of_play, &*ranks)?))
        } else {
            None
        };
        Ok(Trained { ended, config, model, reward, command })
    }
}

impl Trained {
    /// The mean reward in words.
    fn measured(&self) -> Option<String> {
        let (mean, error) = self.reward?;
        let EvaluationConfig { episodes, simulations } = self.config.evaluation;
        Some(format!(
            "reward {mean:.2} with a standard error of {error:.2}, over {episodes} episodes from seeds of their own, {simulations} simulations a step"
        ))
    }

    fn card(&self) -> Result<String> {
        let Self { ended, config, model, .. } = self;
        let values: usize = ended.parameters.values().map(|tensor| tensor.elem_count()).sum();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {}: MuZero\n", config.env);
        let _ = writeln!(text, "{}; {values} parameters.\n\n{EQUATIONS}\n## Training\n", model.name());
        let minutes = ended.time.as_secs_f64() / 60.0;
        let (step, frames, seed) = (ended.step, config.frames, config.seed);
        let _ =
            writeln!(text, "{frames} steps of the environment, {step} updates, seed {seed}; {minutes:.1} minutes since the last start.\n");
        text.push_str(&ended.remark());
        let _ = writeln!(text, "```sh\n{}\n```\n\n```toml\n{}```\n", self.command, crate::overlay::to_toml(config)?);
        if let Some(measured) = self.measured() {
            let _ = writeln!(text, "## Measured\n\n{measured}.");
        }
        Ok(text)
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    /// The averaged parameters and the card.
    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "frames": self.config.frames, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let manifest = Manifest::new(FAMILY, &self.model)?;
        bundle::save(directory, &manifest, &self.ended.parameters, metadata, &[(CARD, self.card()?.into_bytes())])?;
        Ok(self.measured().map_or_else(String::new, |measured| format!("{measured}\n")))
    }
}
