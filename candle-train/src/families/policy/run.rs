//! A training run from games to a model bundle.

use super::config::RunConfig;
use super::dataset::{Dataset, Measured, frequent_names};
use super::export::Provenance;
use super::imitation::{HeldOut, Imitation};
use super::loader::{Loader, LoaderConfig, Order};
use super::plan::StepShape;
use super::shards::Shard;
use super::{evaluate, export, games};
use crate::budget::Budget;
use crate::callback::Callbacks;
use crate::known::Known;
use crate::parallel::share;
use crate::plan::TrainingPlan;
use crate::report::About;
use crate::run::{Ended, Place, Run};
use crate::stop::Stop;
use crate::summary::Summary;
use crate::trainer::Resources;
use candle_models::bundle::Bundle;
use candle_models::nn::Params;
use candle_models::policy::baselines::{Baselines, FIRST_ORDER, Likelihood};
use candle_models::policy::calibration::Calibration;
use candle_models::policy::{FAMILY, Policy, PolicyConfig, prior};
use candle_models::random::Random;
use candle_models::{Error, Result, hex};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The games of a run.
#[derive(Debug, Clone, Default)]
pub struct Games {
    /// To train on.
    pub train: Vec<Arc<Shard>>,
    /// To measure on; may be empty.
    pub held_out: Vec<Measured>,
}

/// A run that is ready to start: everything that can be wrong with it has been checked.
#[derive(Debug)]
pub struct Plan {
    /// The configuration, names filled in.
    pub config: RunConfig,
    train: Arc<Dataset>,
    held_out: Arc<Dataset>,
    order: Order,
    with: Resources,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Steps of the run.
    pub steps: u64,
    /// What the network consists of.
    pub summary: Summary,
    /// The command that asked for the run, for its report and its card.
    pub command: String,
    /// Whether the games are simulated ones, for its card.
    pub simulated: bool,
    /// Hash of the training games' content, in hexadecimal.
    pub data: String,
    /// Parameters to begin with in place of random ones.
    start: Option<Known<PolicyConfig>>,
    /// Policies to learn from.
    teachers: Vec<Known<PolicyConfig>>,
}

/// What a run gave.
#[derive(Debug)]
pub struct Trained {
    /// How it ended, and the parameters. The loss is in nats per frame.
    pub ended: Ended,
    /// The configuration, names filled in.
    pub config: RunConfig,
    /// What it was made of.
    pub provenance: Provenance,
    /// Count tables of the training games.
    pub baselines: Baselines,
    /// Held-out games: the count tables, then the policy. Empty without such games, or when the run was stopped.
    pub table: Vec<(String, Likelihood)>,
    /// Of the policy's buttons in those games.
    pub calibration: Calibration,
}

fn known(bundle: &Bundle, model: PolicyConfig) -> Result<Known<PolicyConfig>> {
    let parameters = Policy::parameters(&model)?;
    Known::read(bundle, model, &parameters)
}

impl Plan {
    /// Checks a configuration against its games. `order` other than epochs is for trying whether a batch can be learnt.
    ///
    /// # Errors
    /// If a field is out of range, or the games do not fill a step.
    pub fn new(mut config: RunConfig, games: &Games, order: Order) -> Result<Self> {
        if config.data.files > 0 && config.data.files < games.train.len() {
            return Self::new(config.clone(), &Games { train: games.train[..config.data.files].to_vec(), ..games.clone() }, order);
        }
        if config.model.names.is_empty() {
            config.model.names = frequent_names(&games.train, config.data.names);
        }
        config.validate()?;
        if order == Order::FirstBatch {
            (config.noise.dropout, config.noise.drop_ids, config.loss.value) = (0.0, 0.0, 0.0);
            config.trainer.optimiser.weight_decay = 0.0;
        }
        let (names, delay) = (&config.model.names, config.model.delay);
        let train = Arc::new(Dataset::new(&games.train, names, delay)?);
        let held_out = Arc::new(Dataset::measured(&games.held_out, names, delay)?);
        let summary = Summary::new(&Policy::parameters(&config.model)?);
        let mut hash = Sha256::new();
        games.train.iter().for_each(|shard| hash.update(&shard.info().replay));
        let data = hex(&hash.finalize()[..8]);
        let (steps_per_epoch, steps, command, simulated, start, teachers) = (0, 0, String::new(), false, None, Vec::new());
        let with = Resources::default();
        let mut plan =
            Self { config, train, held_out, order, with, steps_per_epoch, steps, summary, command, simulated, data, start, teachers };
        let micro = plan.loader()?.steps_per_epoch();
        plan.steps_per_epoch = micro / plan.config.trainer.accumulate as u64;
        plan.steps = (micro * plan.config.epochs / plan.config.trainer.accumulate as u64).max(1);
        Ok(plan)
    }

    /// The same run with other resources.
    ///
    /// # Errors
    /// If a rank is left without a lane of the batch.
    pub fn on(self, with: Resources) -> Result<Self> {
        let (lanes, ranks) = (self.config.data.batch, with.ranks.size());
        if lanes < ranks {
            return Err(Error::config("data.batch", format!("{lanes} sequences cannot be shared by {ranks} ranks")));
        }
        Ok(Self { with, ..self })
    }

    /// The same run from the parameters of a policy in place of random ones: fine-tuning.
    ///
    /// # Errors
    /// If the bundle holds another family or another architecture.
    pub fn start_from(self, bundle: &Bundle) -> Result<Self> {
        bundle.require_family(&[FAMILY])?;
        let start = Some(known(bundle, self.config.model.clone())?);
        Ok(Self { start, ..self })
    }

    /// The same run with policies that it learns from beside what was recorded ([`teachers`](super::teachers)); `loss.teachers` says how much.
    ///
    /// # Errors
    /// If a bundle holds another family, or a policy that sees something else: with other names or another delay; if their share is 0.
    pub fn learn_from(self, bundles: &[Bundle]) -> Result<Self> {
        if !bundles.is_empty() && self.config.loss.teachers == 0.0 {
            return Err(Error::config("loss.teachers", "expected a share above 0, found 0: the teachers would teach nothing"));
        }
        let own = &self.config.model;
        let teacher = |bundle: &Bundle| {
            bundle.require_family(&[FAMILY])?;
            let model: PolicyConfig = bundle.config()?;
            if (&model.names, model.delay) != (&own.names, own.delay) {
                let found = format!("{}: a policy with other names or another delay sees something else", bundle.dir().display());
                return Err(Error::config("--teachers", found));
            }
            known(bundle, model)
        };
        let teachers = bundles.iter().map(teacher).collect::<Result<_>>()?;
        Ok(Self { teachers, ..self })
    }

    fn loader(&self) -> Result<Loader> {
        let data = &self.config.data;
        let shape = StepShape { lanes: data.batch, unroll: data.unroll };
        let lanes = share(data.batch, self.with.ranks.rank(), self.with.ranks.size());
        let random = Random::new(self.config.seed).stream("data");
        let (mirror, burn_in, order) = (data.mirror as f32, data.burn_in, self.order);
        Loader::new(self.train.clone(), LoaderConfig { shape, lanes, mirror, burn_in, order, random })
    }

    fn provenance(&self) -> Provenance {
        let [train, held_out] = [&self.train, &self.held_out].map(|data| data.describe());
        let teacher = |known: &Known<PolicyConfig>| format!("{} (parameters {})", known.model.name(), known.hash);
        let teachers = self.teachers.iter().map(teacher).collect();
        Provenance { command: self.command.clone(), train, held_out, teachers, simulated: self.simulated }
    }

    /// Trains until the last step, or until `stop` says so.
    ///
    /// # Errors
    /// If the place already holds a run, or one of another configuration; if gradients stay non-finite; if the disk is full.
    pub fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        let (device, ranks) = (self.with.device.clone(), self.with.ranks.clone());
        let baselines = evaluate::fit_tables(&self.train, &*ranks)?;
        let tables = evaluate::tables(&baselines, &self.held_out, &*ranks)?;
        let measured = !self.held_out.shards().is_empty();
        let markov = tables[FIRST_ORDER].1.all().total();
        let held_out = (measured && self.order == Order::Epochs).then(|| HeldOut { data: self.held_out.clone(), markov });

        let params = Params::init(Random::new(self.config.seed).stream("parameters"), &device);
        Policy::new(&self.config.model, &params)?;
        let prior = if self.config.model.prior { prior::of(&baselines)? } else { Vec::new() };
        params.set(prior.iter().map(|(name, table)| (name, table)))?;
        params.set(self.start.iter().flat_map(|start| &start.parameters))?;
        let teacher = |known: &Known<PolicyConfig>| Policy::new(&known.model, &Params::given(known.parameters.clone(), &device));
        let teachers = self.teachers.iter().map(teacher).collect::<Result<_>>()?;
        let mut task = Imitation::new(&self.config, &device, self.loader()?.on(&device), held_out, teachers)?;
        // A run can be extended: its length is no part of what it is.
        let config = RunConfig { trainer: self.config.trainer.identity(), epochs: 0, ..self.config.clone() };
        let start = self.start.as_ref().map(|start| &start.hash);
        let teachers: Vec<&String> = self.teachers.iter().map(|teacher| &teacher.hash).collect();
        let identity = serde_json::json!({ "config": config, "data": self.data, "start": start, "teachers": teachers });
        let infos = || self.train.shards().iter().map(|shard| shard.info());
        let run = Run {
            seed: self.config.seed,
            trainer: self.config.trainer.clone(),
            budget: Budget::Steps(self.steps),
            identity,
            resources: self.with.clone(),
            about: self.about()?,
            skeleton: Some(export::skeleton(&self.config, &baselines)?),
            notes: vec![(games::FILE, games::list_as_json(infos())?)],
            hint: place.directory().and_then(|directory| games::difference(directory, infos())),
            callbacks: Callbacks::default(),
        };
        let ended = run.train(params.vars(), &mut task, place, stop)?;
        let (mut table, mut calibration) = (Vec::new(), Calibration::default());
        if measured && ended.outcome.done() {
            let policy = Policy::new(&self.config.model, &ended.params())?;
            table = tables.into_iter().map(|(name, likelihood)| (name.to_owned(), likelihood)).collect();
            let found = evaluate::policy(&policy, &self.held_out, &*ranks)?;
            table.push((policy_name(&self.config), found.likelihood));
            calibration = found.calibration;
        }
        let provenance = self.provenance();
        Ok(Trained { ended, config: self.config, provenance, baselines, table, calibration })
    }
}

impl TrainingPlan for Plan {
    type Trained = Trained;

    fn resources(&self) -> &Resources {
        &self.with
    }

    fn about(&self) -> Result<About> {
        let games = |what: &str, data: &Dataset| {
            let names: Vec<&str> = data.shards().iter().map(|shard| shard.info().source.as_str()).collect();
            let shown = names.iter().take(50).copied().collect::<Vec<_>>().join(", ");
            format!("{what}: {} games, {shown}{}", names.len(), if names.len() > 50 { " and others" } else { "" })
        };
        let data = vec![games("trained on", &self.train), games("held out", &self.held_out)];
        Ok(About::new(self.command.clone(), data, &self.summary, self.config.to_toml()?))
    }

    fn describe(&self) -> String {
        // The rows of both players.
        let games = |data: &Dataset| (data.shards().len(), data.passes().iter().map(|pass| data.rows(pass.game)).sum::<usize>());
        let [(train, rows), (held, held_rows)] = [&self.train, &self.held_out].map(|data| games(data));
        let (values, steps, epoch) = (self.summary.values, self.steps, self.steps_per_epoch);
        format!(
            "{train} games ({rows} rows) to train on, {held} ({held_rows} rows) held out\n{values} parameters, {steps} steps, {epoch} an epoch"
        )
    }

    fn train(self, place: &Place, stop: &Stop) -> Result<Trained> {
        self.train(place, stop)
    }
}

/// The policy's row in a table: `mamba, autoregressive`.
pub fn policy_name(config: &RunConfig) -> String {
    let heads = serde_json::to_value(config.model.heads).ok();
    let heads = heads.as_ref().and_then(|v| v.as_str()).unwrap_or_default();
    format!("{}, {heads} heads", config.model.backbone.kind())
}
