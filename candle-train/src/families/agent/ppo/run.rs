//! A run from an environment to a model bundle.

use super::acting::Game;
use super::config::{EvaluationConfig, RunConfig};
use super::evaluate;
use super::task::{Build, CRITIC, Ppo, critic};
pub use crate::episodes::Trained;
use crate::episodes::{Card, mean_and_error};
use crate::export::Skeleton;
use crate::plan::TrainingPlan;
use crate::report::About;
use crate::run::{Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_core::{Device, Tensor};
use candle_envs::{Entry, Environments};
use candle_models::agent::{self, Agent, AgentConfig, Component};
use candle_models::bundle::{Bundle, Manifest};
use candle_models::engine::Model;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The actor that a run trains: what it is, and where it begins.
#[derive(Clone)]
pub struct Actor {
    /// What its bundle says it is.
    manifest: Manifest,
    build: Build,
    /// The parameters that it begins with; none: new ones.
    start: Option<BTreeMap<String, Tensor>>,
    /// Files that its bundle holds beside.
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Actor {
    /// A new agent of that description.
    ///
    /// # Errors
    /// If the description is out of range.
    pub fn new(config: &AgentConfig) -> Result<Self> {
        config.validate()?;
        let unbounded = unbounded(config);
        let build: Build = Arc::new(move |params| Ok(Arc::new(Agent::new(&unbounded, params)?)));
        Ok(Self { manifest: Manifest::new(agent::FAMILY, config)?, build, start: None, files: Vec::new() })
    }

    /// What a bundle holds, of whichever family: the network that is stepped frame by frame.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn from_bundle<F: Family + ?Sized>(families: &Registry<F>, bundle: &Bundle) -> Result<Self> {
        let family: &'static F = families.family(bundle)?;
        let start = Some(bundle.read_tensors(&family.parameters(bundle)?)?);
        if family.name() == agent::FAMILY {
            return Ok(Self { start, ..Self::new(&bundle.config()?)? });
        }
        let mut files = Vec::new();
        for name in family.files() {
            files.extend(bundle.read_file(name)?.map(|bytes| (*name, bytes)));
        }
        let of = bundle.clone();
        let build: Build = Arc::new(move |params| {
            let first = family.networks(&of, params)?.into_iter().next();
            first.map(|(_, network)| network).ok_or_else(|| Error::file(of.dir(), "holds no network"))
        });
        Ok(Self { manifest: bundle.manifest().clone(), build, start, files })
    }

    /// Its network with the parameters that it begins with.
    fn as_teacher(&self) -> Result<Option<Arc<dyn Model>>> {
        let start = self.start.clone();
        start.map(|start| (self.build)(&Params::given(start, &Device::Cpu))).transpose()
    }
}

/// The same agent with numbers that have no bounds: the environments cut them, and how likely a number was is that of the number itself.
fn unbounded(config: &AgentConfig) -> AgentConfig {
    let mut config = config.clone();
    for component in &mut config.action {
        if let Component::Gaussian { low, high, .. } = component {
            (*low, *high) = (None, None);
        }
    }
    config
}

/// A run that is ready to start: everything that can be wrong with it has been checked.
pub struct Plan {
    /// The configuration.
    pub config: RunConfig,
    entry: Entry,
    actor: Actor,
    summary: Summary,
    with: Resources,
    command: String,
}

impl Plan {
    /// Checks a configuration against its environment. Without `actor` a new agent is trained, as the configuration describes it; one that begins
    /// from a bundle is its own teacher. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If there is no such environment, two play in it, a field is out of range, or a rank is left without a lane.
    pub fn new(config: RunConfig, environments: &Environments, actor: Option<Actor>, with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        let entry = environments.get(&config.env).map_err(|error| Error::config("env", error))?;
        let spec = entry.spec().clone();
        if spec.players != 1 {
            return Err(Error::config("env", format!("{}: expected one who plays, found {}", spec.name, spec.players)));
        }
        let (lanes, ranks) = (config.rollout.lanes, with.ranks.size());
        if lanes < ranks {
            return Err(Error::config("rollout.lanes", format!("{lanes} environments cannot be shared by {ranks} ranks")));
        }
        let actor = match actor {
            Some(actor) => actor,
            None => Actor::new(&config.actor.agent(&spec, spec.action.clone()))?,
        };
        let description = Params::description();
        // What is wrong with the networks is said now.
        Game::new(spec.clone()).check_actor(&*(actor.build)(&description)?)?;
        Agent::parameters(&critic(&config, &spec))?;
        let summary = Summary::new(&description.specs());
        Ok(Self { config, entry, actor, summary, with, command })
    }

    fn data(&self) -> Vec<String> {
        vec![format!("plays {}: {}", self.config.env, self.entry.about)]
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        Ok(About::new(self.command.clone(), self.data(), &self.summary, crate::overlay::to_toml(&self.config)?))
    }

    fn describe(&self) -> String {
        let RunConfig { rollout, env, .. } = &self.config;
        let (rollouts, updates) = (self.config.rollouts(), self.config.updates());
        let (lanes, steps, values) = (rollout.lanes, rollout.steps, self.summary.values);
        format!("{lanes} x {env}, {rollouts} rollouts of {steps} steps, {updates} updates each\n{values} parameters of the actor")
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let about = self.about()?;
        let Self { config, entry, actor, with, command, .. } = self;
        let (device, ranks) = (with.device.clone(), with.ranks.clone());
        let random = Random::new(config.seed).stream("parameters");
        let params = Params::init(random, &device);
        (actor.build)(&params)?;
        Agent::new(&critic(&config, entry.spec()), &params.pp(CRITIC))?;
        params.set(actor.start.iter().flatten())?;
        let teacher = if config.update.teacher > 0.0 { actor.as_teacher()? } else { None };
        let mut task = Ppo::new(&config, &entry, (actor.build.clone(), teacher), &device, &*ranks)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), frames: 0, ..config.clone() };
        let skeleton = Skeleton { manifest: actor.manifest.clone(), files: actor.files.clone() };
        let run = Run {
            identity: serde_json::json!({ "config": identity, "model": actor.manifest }),
            resources: with,
            about,
            skeleton: Some(skeleton.clone()),
            ..Run::new(config.trainer.clone(), config.rollouts() * config.updates(), config.seed)?
        };
        let mut ended = run.train(params.vars(), &mut task, place, stop)?;
        let EvaluationConfig { episodes, choice } = config.evaluation;
        let reward = if ended.outcome.done() {
            let model = (actor.build)(&ended.params())?;
            Some(mean_and_error(&evaluate::play(model, &entry, &config.evaluation, &*ranks)?))
        } else {
            None
        };
        // The critic is not part of the model.
        ended.parameters.retain(|name, _| !name.starts_with(CRITIC));
        let card = Card {
            title: format!("{}: trained by proximal policy optimisation", config.env),
            model: String::new(),
            frames: config.frames,
            seed: config.seed,
            command,
            configuration: crate::overlay::to_toml(&config)?,
            measured_on: format!("{episodes} episodes from seeds of their own; actions: {}", choice.name()),
        };
        Ok(Trained { ended, reward, skeleton, card })
    }
}
