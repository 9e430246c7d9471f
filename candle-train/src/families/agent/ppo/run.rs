//! A run from an environment to a model bundle.

use super::config::RunConfig;
use super::evaluate;
use super::rollout::Game;
use super::task::{Build, CRITIC, Ppo, critic};
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
use candle_core::{Device, Tensor};
use candle_envs::{Entry, Environments};
use candle_models::agent::{self, Agent, AgentConfig, Component};
use candle_models::bundle::{self, Bundle, CARD, Manifest};
use candle_models::engine::Model;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
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

/// What a run gave.
pub struct Trained {
    /// How it ended, and the parameters.
    pub ended: Ended,
    /// The configuration.
    pub config: RunConfig,
    /// Mean reward of the evaluation's episodes, and its standard error; `None` where the run was stopped.
    pub reward: Option<(f64, f64)>,
    actor: Actor,
    summary: Summary,
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
        let entry = *environments.get(&config.env).map_err(|error| Error::config("env", error))?;
        let spec = (entry.spec)();
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
        (actor.build)(&description)?;
        let summary = Summary::new(&description.specs());
        // What is wrong with the networks is said now.
        Ppo::new(&config, &entry, (actor.build.clone(), None), &with.device, &*with.ranks)?;
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
        let Self { config, entry, actor, summary, with, command } = self;
        let (device, ranks) = (with.device.clone(), with.ranks.clone());
        let random = Random::new(config.seed).stream("parameters");
        let params = Params::init(random, &device);
        (actor.build)(&params)?;
        let spec = Game::new((entry.spec)());
        Agent::new(&critic(&config, &spec), &params.pp(CRITIC))?;
        let vars = params.vars();
        for (name, tensor) in actor.start.iter().flatten() {
            let var = vars.get(name).ok_or_else(|| Error::tensor(name, "a parameter of the actor", "none"))?;
            var.set(&tensor.to_device(&device)?)?;
        }
        let teacher = if config.update.teacher > 0.0 { actor.as_teacher()? } else { None };
        let mut task = Ppo::new(&config, &entry, (actor.build.clone(), teacher), &device, &*ranks)?;
        // A run can be extended: its length is no part of what it is.
        let identity = RunConfig { trainer: config.trainer.identity(), frames: 0, ..config.clone() };
        let run = Run {
            seed: config.seed,
            trainer: config.trainer.clone(),
            budget: Budget::Steps(config.rollouts() * config.updates()),
            identity: serde_json::json!({ "config": identity, "model": actor.manifest }),
            resources: with,
            about,
            skeleton: Some(Skeleton { manifest: actor.manifest.clone(), files: actor.files.clone() }),
            notes: Vec::new(),
            hint: None,
            callbacks: Callbacks::default(),
        };
        let ended = run.train(vars, &mut task, place, stop)?;
        let reward = if ended.outcome.done() {
            let model = (actor.build)(&ended.params())?;
            Some(mean_and_error(&evaluate::play(model, &entry, &config.evaluation, &*ranks)?))
        } else {
            None
        };
        Ok(Trained { ended, config, reward, actor, summary, command })
    }
}

impl Trained {
    /// The mean reward in words.
    fn measured(&self) -> Option<String> {
        let (mean, error) = self.reward?;
        let episodes = self.config.evaluation.episodes;
        Some(format!("reward {mean:.2} with a standard error of {error:.2}, over {episodes} episodes from seeds of their own"))
    }

    fn card(&self) -> Result<String> {
        let Self { ended, config, .. } = self;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {}: trained by proximal policy optimisation\n", config.env);
        let _ = writeln!(text, "{} parameters.\n\n{EQUATIONS}\n## Training\n", self.summary.values);
        let minutes = ended.time.as_secs_f64() / 60.0;
        let (step, frames, seed) = (ended.step, config.frames, config.seed);
        let _ =
            writeln!(text, "{frames} steps of the environment, {step} updates, seed {seed}; {minutes:.1} minutes since the last start.\n");
        text.push_str(&ended.remark());
        let _ = writeln!(text, "```sh\n{}\n```\n\n```toml\n{}```\n", self.command, crate::overlay::to_toml(config)?);
        if let Some(measured) = self.measured() {
            let choice = serde_json::to_string(&config.evaluation.choice).unwrap_or_default();
            let _ = writeln!(text, "## Measured\n\n{measured}; actions: {}.", choice.trim_matches('"'));
        }
        Ok(text)
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    /// The actor's averaged parameters and the card.
    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "frames": self.config.frames, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let own = |name: &str| !name.starts_with(CRITIC);
        let parameters = self.ended.parameters.iter().filter(|(name, _)| own(name)).map(|(name, x)| (name.clone(), x.clone())).collect();
        let mut files = vec![(CARD, self.card()?.into_bytes())];
        files.extend(self.actor.files.clone());
        bundle::save(directory, &self.actor.manifest, &parameters, metadata, &files)?;
        Ok(self.measured().map_or_else(String::new, |measured| format!("{measured}\n")))
    }
}
