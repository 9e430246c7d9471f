//! A training run of a radio network from fresh examples to a model bundle.

use super::classification::Classification;
use super::config::{RunConfig, TaskConfig};
use super::localisation::Localisation;
use crate::export::{EQUATIONS, Skeleton};
use crate::overlay;
use crate::parallel::Communicator;
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
use candle_models::rf::{FAMILY, RfConfig};
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
    /// Nothing when the run was stopped.
    figures: Figures,
}

/// What parameters reach on the examples of the evaluation.
#[derive(Debug, Default)]
pub struct Figures {
    /// By their names.
    pub results: BTreeMap<String, f64>,
    /// As a card shows them.
    pub text: String,
}

/// A task that can say what its parameters reach.
pub trait Presented: Task {
    /// That on the examples of the evaluation.
    ///
    /// # Errors
    /// If the network fails.
    fn figures(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Figures>;
}

impl Plan {
    /// Checks a configuration. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If a field is out of range, or a rank is left without an example of the batch.
    pub fn new(config: RunConfig, with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        if config.batch < with.ranks.size() {
            let unit = config.task.unit();
            return Err(Error::config("batch", format!("{} {unit} cannot be shared by {} ranks", config.batch, with.ranks.size())));
        }
        if let TaskConfig::Localisation { model } = &config.task {
            // Its network must have room for the receivers.
            Localisation::new(&config, model, &*with.ranks)?;
        }
        let description = Params::description();
        config.task.network().networks(&description)?;
        let steps = config.examples.div_ceil((config.batch * config.trainer.accumulate) as u64).max(1);
        Ok(Self { summary: Summary::new(&description.specs()), config, with, steps, command })
    }

    fn manifest(config: &RunConfig) -> Result<Manifest> {
        Manifest::new(FAMILY, &config.task.network())
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let data = vec![format!("fresh {} in every step", self.config.task.unit())];
        Ok(About::new(self.command.clone(), data, &self.summary, overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        let RunConfig { batch, task, .. } = &self.config;
        format!("{} parameters, {} steps of {batch} {}", self.summary.values, self.steps, task.unit())
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, with, steps, command, .. } = self;
        let (ranks, products) = (with.ranks.clone(), with.products);
        let params = Params::init(Random::new(config.seed).stream("parameters"), &with.device);
        config.task.network().networks(&params)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), examples: 0, ..config.clone() };
        let run = Run {
            identity: serde_json::json!({ "config": identity }),
            resources: with,
            about,
            skeleton: Some(Skeleton { manifest: Self::manifest(&config)?, files: Vec::new() }),
            ..Run::new(config.trainer.clone(), steps, config.seed)?
        };
        let (ended, figures) = match &config.task {
            TaskConfig::Localisation { model } => {
                learn(run, &params, Localisation::new(&config, model, &*ranks)?.with_products(products), (place, stop, &*ranks))
            }
            TaskConfig::Classification { model, signals } => {
                let task = Classification::new(&config, model, signals, &*ranks).with_products(products);
                learn(run, &params, task, (place, stop, &*ranks))
            }
        }?;
        Ok(Trained { ended, figures, config, command })
    }
}

fn learn<T: Presented + Send>(
    run: Run,
    params: &Params,
    mut task: T,
    (place, stop, ranks): (&Place, &Stop, &dyn Communicator),
) -> Result<(Ended, Figures)> {
    let ended = run.train(params.vars(), &mut task, place, stop)?;
    let figures = if ended.outcome.done() { task.figures(&ended.params(), ranks)? } else { Figures::default() };
    Ok((ended, figures))
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "examples": self.config.examples, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let card = self.card()?.into_bytes();
        bundle::save(directory, &Plan::manifest(&self.config)?, &self.ended.parameters, metadata, &[(CARD, card)])?;
        Ok(self.figures.results.iter().map(|(name, figure)| format!("{name} {figure:.3}\n")).collect())
    }
}

impl Trained {
    fn card(&self) -> Result<String> {
        let Self { config, ended, command, figures } = self;
        let network = config.task.network();
        let (title, does) = match &network {
            RfConfig::Localiser(_) => (
                "Localiser",
                "Where an emitter at 145 MHz is, from how strongly seven receivers around Turin and Genoa hear it, as a mixture of normal distributions.",
            ),
            RfConfig::Classifier(_) => {
                ("Classifier of modulations", "Which kind a signal is, from its samples, as a score of every class.")
            }
        };
        let minutes = ended.time.as_secs_f64() / 60.0;
        let unit = config.task.unit();
        Ok(format!(
            "# {title}\n\n{does} {}.\n\n{EQUATIONS}\n\
             ## Figures\n\nOn {} {unit} that training never drew:\n\n{}\n\
             ## Training\n\n{} steps of {} {unit}, each drawn once, seed {}; {minutes:.1} minutes of steps since the last start.\n\n\
             {}```sh\n{command}\n```\n\n```toml\n{}```\n",
            network.name(),
            config.evaluated,
            figures.text,
            ended.step,
            config.batch,
            config.seed,
            ended.remark(),
            overlay::to_toml(config)?
        ))
    }
}
