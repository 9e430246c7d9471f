//! A run from an environment to a model bundle.

use super::config::{EvaluationConfig, LearnConfig, PlayConfig, RunConfig};
use super::play::evaluate;
use super::task::{MuZeroTask, networks};
pub use crate::episodes::Trained;
use crate::episodes::{Card, mean_and_error};
use crate::export::Skeleton;
use crate::parallel::share;
use crate::plan::TrainingPlan;
use crate::report::About;
use crate::run::{Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_envs::{Entry, Environments};
use candle_models::bundle::Manifest;
use candle_models::muzero::{Dynamics, FAMILY, MuZeroConfig};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::{Error, Result};

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

impl Plan {
    /// Checks a configuration against its environment. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If there is no such environment, its action is not one of several classes, a field is out of range, or a rank is left without a lane.
    pub fn new(config: RunConfig, environments: &Environments, with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        let entry = environments.get(&config.env).map_err(|error| Error::config("env", error))?;
        let model = config.model(entry.spec())?;
        if model.dynamics == Dynamics::Rules && (entry.rules)().is_none() {
            return Err(Error::config("dynamics", format!("{} has no rules that a search could go by", config.env)));
        }
        let (lanes, ranks) = (config.play.lanes, with.ranks.size());
        if lanes < ranks {
            return Err(Error::config("play.lanes", format!("{lanes} environments cannot be shared by {ranks} ranks")));
        }
        let description = Params::description();
        networks(&config, &model, &description)?;
        let summary = Summary::new(&description.specs());
        MuZeroTask::sizes(&config, &entry, &share(lanes, with.ranks.rank(), ranks))?;
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
        networks(&config, &model, &params)?;
        let mut task = MuZeroTask::new(&config, &entry, &device, &*ranks)?;
        // A run can be extended, others can play in it, and it can move to another machine: none of that is part of what it is.
        let play = PlayConfig { actors: 0, queue: 1, ..config.play.clone() };
        let learn = LearnConfig { folder: String::new(), memory_mb: 0, ..config.learn.clone() };
        let identity = RunConfig { trainer: config.trainer.identity(), frames: 0, play, learn, ..config.clone() };
        let skeleton = Skeleton { manifest: Manifest::new(FAMILY, &model)?, files: Vec::new() };
        let run = Run {
            identity: serde_json::json!({ "config": identity }),
            resources: with,
            about,
            skeleton: Some(skeleton.clone()),
            ..Run::new(config.trainer.clone(), config.updates(), config.seed)?
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let EvaluationConfig { episodes, simulations } = config.evaluation;
        let reward = if ended.outcome.done() {
            let of_play = (config.play.search, &config.evaluation);
            Some(mean_and_error(&evaluate((&model, &ended.params()), &entry, of_play, &*ranks)?))
        } else {
            None
        };
        let card = Card {
            title: format!("{}: MuZero", config.env),
            model: format!("{}; ", model.name()),
            frames: config.frames,
            seed: config.seed,
            command,
            configuration: crate::overlay::to_toml(&config)?,
            measured_on: format!("{episodes} episodes from seeds of their own, {simulations} simulations a step"),
        };
        Ok(Trained { ended, reward, skeleton, card })
    }
}
