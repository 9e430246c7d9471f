//! A training run of a localiser from fresh events to a model bundle.

use super::config::RunConfig;
use super::localisation::Localisation;
use crate::export::{EQUATIONS, Skeleton};
use crate::overlay;
use crate::plan::{TrainingPlan, TrainingResult};
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::task::Task;
use crate::trainer::Resources;
use candle_models::bundle::{self, CARD, Manifest};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::rf::{FAMILY, Localiser, RfConfig};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A run that is ready to start: everything that can be wrong with it has been checked.
#[derive(Debug)]
pub struct Plan {
    config: RunConfig,
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
    command: String,
    /// What the parameters reach on the events of the evaluation; empty when the run was stopped.
    figures: BTreeMap<String, f64>,
}

impl Plan {
    /// Checks a configuration. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If a field is out of range, or a rank is left without an event of the batch.
    pub fn new(config: RunConfig, with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        if config.batch < with.ranks.size() {
            return Err(Error::config("batch", format!("{} events cannot be shared by {} ranks", config.batch, with.ranks.size())));
        }
        Localisation::new(&config, &*with.ranks)?;
        let description = Params::description();
        Localiser::new(&config.model, &description)?;
        let steps = config.events.div_ceil((config.batch * config.trainer.accumulate) as u64).max(1);
        Ok(Self { summary: Summary::new(&description.specs()), config, with, steps, command })
    }

    fn manifest(config: &RunConfig) -> Result<Manifest> {
        Manifest::new(FAMILY, &RfConfig::Localiser(config.model.clone()))
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let data = vec!["fresh events in every step".to_owned()];
        Ok(About::new(self.command.clone(), data, &self.summary, overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        format!("{} parameters, {} steps of {} events", self.summary.values, self.steps, self.config.batch)
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, with, steps, command, .. } = self;
        let ranks = with.ranks.clone();
        let params = Params::init(Random::new(config.seed).stream("parameters"), &with.device);
        Localiser::new(&config.model, &params)?;
        let mut task = Localisation::new(&config, &*ranks)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), events: 0, ..config.clone() };
        let run = Run {
            identity: serde_json::json!({ "config": identity }),
            resources: with,
            about,
            skeleton: Some(Skeleton { manifest: Self::manifest(&config)?, files: Vec::new() }),
            ..Run::new(config.trainer.clone(), steps, config.seed)?
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let figures = if ended.outcome.done() { task.evaluate(&ended.params(), &*ranks)?.results() } else { BTreeMap::new() };
        Ok(Trained { ended, figures, config, command })
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "events": self.config.events, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let card = self.card()?.into_bytes();
        bundle::save(directory, &Plan::manifest(&self.config)?, &self.ended.parameters, metadata, &[(CARD, card)])?;
        Ok(self.figures.iter().map(|(name, figure)| format!("{name} {figure:.3}\n")).collect())
    }
}

impl Trained {
    fn card(&self) -> Result<String> {
        let Self { config, ended, command, figures } = self;
        let what = [
            ("rmse_km", "root mean square of the distance from the mixture's mean to the emitter, km"),
            ("p50_km", "half of all are nearer than, km"),
            ("p95_km", "95% of all are nearer than, km"),
            ("covered_50", "share of emitters in the region of highest density that should hold 50%"),
            ("covered_90", "the same of 90%"),
            ("score", "mean negative logarithm of the density at the emitter, in units of 100 km"),
        ];
        let figures: String =
            what.iter().filter_map(|(name, what)| figures.get(*name).map(|figure| format!("- {what}: {figure:.3}\n"))).collect();
        let minutes = ended.time.as_secs_f64() / 60.0;
        Ok(format!(
            "# Localiser\n\nWhere an emitter at 145 MHz is, from how strongly seven receivers hear it, as a mixture of normal distributions. {}.\n\n{EQUATIONS}\n\
             ## Figures\n\nOn {} events that training never saw (the published generator: seven receivers around Turin and Genoa):\n\n{figures}\n\
             ## Training\n\n{} steps of {} events, each event drawn once, seed {}; {minutes:.1} minutes of steps since the last start.\n\n{}```sh\n{command}\n```\n\n```toml\n{}```\n",
            config.model.name(),
            config.evaluated,
            ended.step,
            config.batch,
            config.seed,
            ended.remark(),
            overlay::to_toml(config)?
        ))
    }
}
