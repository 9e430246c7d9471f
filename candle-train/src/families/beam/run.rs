//! A training run of a beam controller from fresh channels to a model bundle.

use super::alignment::Alignment;
use super::config::{Learns, RunConfig};
use crate::export::Skeleton;
use crate::known::Known;
use crate::plan::TrainingPlan;
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::task::Task;
use crate::trainer::Resources;
use candle_core::Tensor;
use candle_models::beam::{Beam, BeamConfig, FAMILY, Pursuit};
use candle_models::bundle::{Bundle, Manifest};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::collections::BTreeMap;

/// A run that is ready to start: everything that can be wrong with it has been checked.
#[derive(Debug)]
pub struct Plan {
    /// The configuration.
    pub config: RunConfig,
    /// What the run computes with.
    pub with: Resources,
    /// Steps of the run.
    pub steps: u64,
    /// What the networks consist of.
    pub summary: Summary,
    /// The command that asked for the run, for its report.
    pub command: String,
    /// What it begins with in place of random parameters.
    start: Option<Known<BeamConfig>>,
}

/// What a run gave.
#[derive(Debug)]
pub struct Trained {
    /// How it ended, and the parameters.
    pub ended: Ended,
    /// The configuration.
    pub config: RunConfig,
    /// The command that asked for the run.
    pub command: String,
    /// What the parameters reach on the channels of the evaluation; empty when the run was stopped.
    pub figures: BTreeMap<String, f64>,
}

impl Plan {
    /// Checks a configuration. The run begins with the parameters of `start` that have the same name and shape; with what decides anew where only one
    /// of both begins with an estimate, or with one of other paths.
    ///
    /// # Errors
    /// If a field is out of range, a rank is left without an episode of the batch, or a decision is to learn alone and what measures is not that
    /// of `start`.
    pub fn new(config: RunConfig, start: Option<&Bundle>, with: Resources) -> Result<Self> {
        config.validate()?;
        let start = start.map(|bundle| begins_with(bundle, &config)).transpose()?;
        if config.learns == Learns::Decision && start.is_none() {
            return Err(Error::config(
                "learns",
                "a decision can learn alone by the measurements of a controller that the run begins with: --start-from",
            ));
        }
        let (batch, ranks) = (config.episode.batch, with.ranks.size());
        if batch < ranks {
            return Err(Error::config("episode.batch", format!("{batch} episodes cannot be shared by {ranks} ranks")));
        }
        let summary = Summary::new(&Beam::parameters(&config.model)?);
        let steps = config.episodes.div_ceil((batch * config.trainer.accumulate) as u64).max(1);
        Ok(Self { config, with, steps, summary, command: String::new(), start })
    }

    /// Trains until the last step, or until `stop` says so.
    ///
    /// # Errors
    /// If the place already holds a run, or one of another configuration; if gradients stay non-finite; if the disk is full.
    pub fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let (device, ranks) = (self.with.device.clone(), self.with.ranks.clone());
        let params = Params::init(Random::new(self.config.seed).stream("parameters"), &device);
        Beam::new(&self.config.model, &params)?;
        params.set(self.start.iter().flat_map(|start| &start.parameters))?;
        let batches = self.steps * self.config.trainer.accumulate as u64;
        let mut task = Alignment::new(&self.config, batches, &*ranks, self.with.products)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: self.config.trainer.identity(), episodes: 0, ..self.config.clone() };
        let about = self.about()?;
        let run = Run {
            identity: serde_json::json!({ "config": identity, "start": self.start.map(|start| start.hash) }),
            resources: self.with,
            about,
            skeleton: Some(Skeleton { manifest: Manifest::new(FAMILY, &self.config.model)?, files: Vec::new() }),
            ..Run::new(self.config.trainer.clone(), self.steps, self.config.seed)?
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let figures = if ended.outcome.done() { task.evaluate(&ended.params(), &*ranks)?.results() } else { BTreeMap::new() };
        Ok(Trained { ended, figures, config: self.config, command: self.command })
    }
}

/// What a run begins with: the parameters of a controller that have the names and shapes of the run's.
///
/// # Errors
/// If the bundle holds no controller, or the run learns to decide alone and another part measures in it.
fn begins_with(bundle: &Bundle, run: &RunConfig) -> Result<Known<BeamConfig>> {
    bundle.require_family(&[FAMILY])?;
    let model: BeamConfig = bundle.config()?;
    let stored = Beam::parameters(&model)?;
    let mut start = Known::read(bundle, model, &stored)?;
    let own = Beam::parameters(&run.model)?;
    // What is learned beside an estimate adds to it: it means something else than what decided alone.
    let found = |model: &BeamConfig| model.pursuit().map(|pursuit| Pursuit { places: 0, unexplained: 0.0, ..pursuit });
    let anew = found(&run.model) != found(&start.model);
    let fits = |name: &str, tensor: &Tensor| own.iter().any(|own| own.name == name && own.shape == tensor.dims());
    start.parameters.retain(|name, tensor| fits(name, tensor) && !(anew && Beam::decides(name)));
    let missing = own.iter().find(|own| !Beam::decides(&own.name) && !start.parameters.contains_key(&own.name));
    match missing {
        Some(own) if run.learns == Learns::Decision => {
            let found = stored.iter().find(|stored| stored.name == own.name).map(|stored| format!("shape {:?}", stored.shape));
            Err(Error::tensor(&own.name, format!("shape {:?}", own.shape), found.unwrap_or_else(|| "nothing".to_owned())))
        }
        _ => Ok(start),
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let mut data = vec!["fresh channels in every step".to_owned()];
        if let Some(start) = &self.start {
            let (taken, all) = (start.parameters.len(), Beam::parameters(&self.config.model)?.len());
            data.push(format!("begins with {taken} of its {all} tensors from {} (parameters {})", start.model.name(), start.hash));
        }
        Ok(About::new(self.command.clone(), data, &self.summary, self.config.to_toml()?))
    }

    fn describe(&self) -> String {
        format!("{} parameters, {} steps of {} episodes", self.summary.values, self.steps, self.config.episode.batch)
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        self.train(place, stop)
    }
}
