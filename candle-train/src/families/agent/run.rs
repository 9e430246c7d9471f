//! A training run from episodes to a model bundle.

use super::config::RunConfig;
use super::episodes::{self, Episodes, Recording};
use super::imitation::{HeldOut, Imitation};
use super::likelihood::{self, Frequencies, Likelihood};
use super::loader::Loader;
use crate::export::{EQUATIONS, Skeleton};
use crate::lanes::StepShape;
use crate::parallel::share;
use crate::plan::{TrainingPlan, TrainingResult};
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_models::agent::{Agent, FAMILY};
use candle_models::bundle::{self, CARD, Manifest};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// The file in the run's directory that says which episodes it was trained and measured on.
const EPISODES: &str = "episodes.json";

/// How far from one the root mean square of an input may lie before it is worth a remark.
const ORDER: f64 = 20.0;

/// A run that is ready to start: everything that can be wrong with it has been checked.
pub struct Plan {
    /// The configuration.
    pub config: RunConfig,
    train: Arc<Episodes>,
    held_out: Arc<Episodes>,
    /// What is worth knowing about the files, a line each.
    remarks: Vec<String>,
    summary: Summary,
    steps_per_epoch: u64,
    steps: u64,
    with: Resources,
    command: String,
}

/// What a run gave.
pub struct Trained {
    /// How it ended, and the parameters. The loss is in nats per frame.
    pub ended: Ended,
    /// The configuration.
    pub config: RunConfig,
    /// Held-out episodes by frequencies alone and by a Markov chain, and by the agent. `None` without such episodes, or when the run was
    /// stopped.
    pub measured: Option<([Likelihood; 2], Likelihood)>,
    command: String,
    data: Vec<String>,
}

impl Plan {
    /// Checks a configuration against its episodes. `command` is what asked for the run, for its report and its card.
    ///
    /// # Errors
    /// If a field is out of range, the episodes do not fill a step, or a rank is left without a sequence.
    pub fn new(config: RunConfig, recordings: &[Arc<Recording>], with: Resources, command: String) -> Result<Self> {
        config.validate()?;
        let (sequences, ranks) = (config.data.batch, with.ranks.size());
        if sequences < ranks {
            return Err(Error::config("data.batch", format!("{sequences} sequences cannot be shared by {ranks} ranks")));
        }
        let random = Random::new(config.seed).stream("held out");
        let [train, held_out] = episodes::split(recordings, &config.model, config.data.held_out, random).map(Arc::new);
        let summary = Summary::new(&Agent::parameters(&config.model)?);
        let remarks = remarks(recordings, &config);
        let mut plan = Self { config, train, held_out, remarks, summary, steps_per_epoch: 0, steps: 0, with, command };
        let (micro, accumulate) = (plan.loader()?.steps_per_epoch(), plan.config.trainer.accumulate as u64);
        plan.steps_per_epoch = micro / accumulate;
        plan.steps = (micro * plan.config.epochs / accumulate).max(1);
        Ok(plan)
    }

    fn loader(&self) -> Result<Loader> {
        let (data, ranks) = (&self.config.data, &self.with.ranks);
        let shape = StepShape { lanes: data.batch, unroll: data.unroll };
        let lanes = share(data.batch, ranks.rank(), ranks.size());
        let random = Random::new(self.config.seed).stream("data");
        Loader::new(self.train.clone(), &self.config.model, (shape, lanes), random, &self.with.device)
    }

    fn skeleton(&self) -> Result<Skeleton> {
        Ok(Skeleton { manifest: Manifest::new(FAMILY, &self.config.model)?, files: Vec::new() })
    }

    /// What the report and the card say of the episodes, a line each.
    fn data(&self) -> Vec<String> {
        let line = |what: &str, episodes: &Episodes| {
            let files: BTreeSet<String> = episodes.list().into_iter().map(|listed| listed.file).collect();
            let shown = files.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
            let more = if files.len() > 20 { " and others" } else { "" };
            format!("{what}: {} episodes, {} frames, {shown}{more}", episodes.len(), episodes.frames())
        };
        vec![line("trained on", &self.train), line("held out", &self.held_out)]
    }
}

/// Tensors that are not read, and numbers of another order than one.
fn remarks(recordings: &[Arc<Recording>], config: &RunConfig) -> Vec<String> {
    let mut remarks = Vec::new();
    let unused: BTreeSet<&str> = recordings.iter().flat_map(|recording| &recording.unused).map(String::as_str).collect();
    if !unused.is_empty() {
        remarks.push(format!("not in the description and not read: {}", Vec::from_iter(unused).join(", ")));
    }
    for (name, size) in episodes::magnitudes(recordings, &config.model) {
        if size > 0.0 && !(1.0 / ORDER..ORDER).contains(&size) {
            remarks.push(format!("{name}: numbers of the order of {size:.1e}; networks learn faster from those of the order of 1"));
        }
    }
    remarks
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
        let count = |episodes: &Episodes| format!("{} episodes ({} frames)", episodes.len(), episodes.frames());
        let remarks: String = self.remarks.iter().map(|remark| format!("{remark}\n")).collect();
        let (train, held_out, values) = (count(&self.train), count(&self.held_out), self.summary.values);
        let (steps, epoch) = (self.steps, self.steps_per_epoch);
        format!("{remarks}{train} to train on, {held_out} held out\n{values} parameters, {steps} steps, {epoch} an epoch")
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let (about, data, skeleton) = (self.about()?, self.data(), self.skeleton()?);
        let (device, ranks) = (self.with.device.clone(), self.with.ranks.clone());
        let baselines = Frequencies::count(&self.config.model, &self.train)?.measure(&self.held_out)?;
        let measured = !self.held_out.is_empty();
        let held_out = measured.then(|| HeldOut { episodes: self.held_out.clone(), markov: baselines[1].total() });
        let params = Params::init(Random::new(self.config.seed).stream("parameters"), &device);
        Agent::new(&self.config.model, &params)?;
        let mut task = Imitation::new(&self.config, &device, self.loader()?, held_out)?;
        // A run can be extended: its length is no part of what it is.
        let config = RunConfig { trainer: self.config.trainer.identity(), epochs: 0, ..self.config.clone() };
        let lists = serde_json::json!({ "train": self.train.list(), "held_out": self.held_out.list() });
        let noted = serde_json::to_vec_pretty(&lists).map_err(|e| Error::file(EPISODES, e))?;
        let run = Run {
            identity: serde_json::json!({ "config": config, "data": lists }),
            resources: self.with,
            about,
            skeleton: Some(skeleton),
            notes: vec![(EPISODES, noted)],
            ..Run::new(self.config.trainer.clone(), self.steps, self.config.seed)?
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let measured = if measured && ended.outcome.done() {
            let agent = Agent::new(&self.config.model, &ended.params())?;
            Some((baselines, likelihood::agent(&agent, &self.config.model, &self.held_out, &*ranks)?))
        } else {
            None
        };
        Ok(Trained { ended, config: self.config, measured, command: self.command, data })
    }
}

impl Trained {
    /// What was measured, as Markdown; empty without held-out episodes.
    pub fn table(&self) -> String {
        let Some(([marginal, markov], agent)) = &self.measured else { return String::new() };
        likelihood::table(&self.config.model, &[("frequencies", marginal), ("Markov chain", markov), ("this agent", agent)])
    }

    fn card(&self) -> Result<String> {
        let Self { ended, config, .. } = self;
        let values: usize = ended.parameters.values().map(|tensor| tensor.elem_count()).sum();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# Agent: {}\n", config.model.name());
        let _ = writeln!(text, "Imitates recorded episodes, one action per frame. {values} parameters.\n\n{EQUATIONS}\n## Training\n");
        let minutes = ended.time.as_secs_f64() / 60.0;
        let (step, epochs, seed) = (ended.step, config.epochs, config.seed);
        let _ = writeln!(text, "{step} steps, {epochs} epochs, seed {seed}; {minutes:.1} minutes of steps since the last start.\n");
        text.push_str(&ended.remark());
        let _ = writeln!(text, "```sh\n{}\n```\n\n```toml\n{}```\n\n## Data\n", self.command, crate::overlay::to_toml(config)?);
        self.data.iter().for_each(|line| {
            let _ = writeln!(text, "- {line}");
        });
        let table = self.table();
        if !table.is_empty() {
            let _ = writeln!(text, "\n## Held-out episodes\n");
            let _ = writeln!(
                text,
                "Nats per frame, and how often the most likely classes were those that were taken. Frequencies and Markov chain were"
            );
            let _ = writeln!(text, "counted on the training episodes.\n\n{table}");
        }
        Ok(text)
    }
}

/// The averaged parameters and the card.
impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    fn save(&self, directory: &Path) -> Result<String> {
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "epochs": self.config.epochs, "seed": self.config.seed, "command": self.command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let manifest = Manifest::new(FAMILY, &self.config.model)?;
        bundle::save(directory, &manifest, &self.ended.parameters, metadata, &[(CARD, self.card()?.into_bytes())])?;
        let table = self.table();
        Ok(if table.is_empty() { String::new() } else { format!("\n{table}\n") })
    }
}
