//! What is trained: a policy on windows of games, or a beam controller on fresh channels, as the trainer's own task.

use crate::case::{Case, Pass};
use crate::network::{products, usual};
use anyhow::Result;
use candle_core::{Device, Var};
use candle_models::beam::{self, Beam, BeamConfig, Channels, Episodes, Products, Sensing, Tapes, alignment};
use candle_models::bundle::{Bundle, Role};
use candle_models::nn::Params;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{FAMILY, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_train::beam::config::RunConfig as BeamRun;
use candle_train::optim::ParameterGroup;
use candle_train::policy::config::RunConfig;
use candle_train::policy::dataset::Dataset;
use candle_train::policy::imitation::Imitation;
use candle_train::policy::loader::Batch;
use candle_train::policy::loader::{Loader, LoaderConfig, Order};
use candle_train::policy::plan::StepShape;
use candle_train::policy::shards::Shard;
use candle_train::task::{Context, Loss, Metric, StepDone, Task};
use candle_train::trainer::TrainerConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Frames and number of the simulated games that a policy is trained on.
const GAME_FRAMES: usize = 3000;
const GAMES: u64 = 3;

/// A model with the work of its training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trainee {
    /// Imitation of simulated games, windows of frames with state carried on.
    Policy {
        /// `mamba 2x256, autoregressive heads`.
        name: String,
        /// The network.
        config: PolicyConfig,
    },
    /// Alignment of both beams on channels drawn anew for every step; one sample is one episode.
    Beam {
        /// `beam c3 as published, gru 2x384`.
        name: String,
        /// The network.
        config: BeamConfig,
    },
}

impl Trainee {
    /// A policy with the usual sizes of a backbone.
    ///
    /// # Errors
    /// If there is no backbone of that name.
    pub fn policy(kind: &str, heads: Heads) -> Result<Self> {
        Ok(Self::of_policy(usual(kind, heads)?))
    }

    /// A policy by its configuration.
    pub fn of_policy(config: PolicyConfig) -> Self {
        Self::Policy { name: config.name(), config }
    }

    /// The published beam controller, its user's network so many units wide.
    pub fn published_beam(hidden: usize) -> Result<Self> {
        let config = BeamConfig { hidden, ..BeamRun::preset("paper")?.model };
        config.validate()?;
        Ok(Self::Beam { name: config.name(), config })
    }

    /// The architecture of a bundle of either family.
    pub fn open(bundle: &Path) -> Result<Self> {
        let opened = Bundle::open(bundle)?;
        opened.require_family(&[FAMILY, beam::FAMILY])?;
        if opened.manifest().family == beam::FAMILY {
            let config: BeamConfig = opened.config()?;
            return Ok(Self::Beam { name: config.name(), config });
        }
        Ok(Self::of_policy(opened.config()?))
    }

    /// What a sample is called.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Policy { .. } => "frames",
            Self::Beam { .. } => "episodes",
        }
    }

    /// A training case on the CPU; an episode has as many frames as it has measurements, whatever is asked for.
    pub fn case(&self, batch: usize, frames: usize, threads: usize) -> Case {
        let (name, frames) = match self {
            Self::Policy { name, .. } => (name, frames),
            Self::Beam { name, config } => (name, config.measurements),
        };
        Case::of(name, Pass::Train, [batch, frames, threads], "f32")
    }

    /// Samples of a step.
    pub fn samples(&self, case: &Case) -> usize {
        match self {
            Self::Policy { .. } => case.batch * case.frames,
            Self::Beam { .. } => case.batch,
        }
    }

    /// How often the forward pass of a step uses a weight of a matrix, all weights together.
    pub fn weight_uses(&self, case: &Case) -> Result<f64> {
        Ok(match self {
            Self::Policy { config, .. } => products(config)? as f64 * self.samples(case) as f64,
            Self::Beam { config, .. } => beam_weight_uses(config)? * case.batch as f64,
        })
    }

    /// Fresh parameters on a device.
    pub(crate) fn vars(&self, device: &Device) -> Result<BTreeMap<String, Var>> {
        let params = Params::init(Random::new(0), device);
        match self {
            Self::Policy { config, .. } => drop(Policy::new(config, &params)?),
            Self::Beam { config, .. } => drop(Beam::new(config, &params)?),
        }
        Ok(params.vars())
    }

    /// How the trainer is set up, as the presets have it.
    pub(crate) fn trainer(&self) -> Result<TrainerConfig> {
        Ok(match self {
            Self::Policy { .. } => RunConfig::preset("mamba")?.trainer,
            Self::Beam { .. } => BeamRun::preset("paper")?.trainer,
        })
    }

    /// Its task at the first batch. On the CPU a narrow dtype is one of products, as in the trainer.
    pub(crate) fn work(&self, case: &Case, device: &Device, products: Products) -> Result<Work> {
        Ok(match self {
            Self::Policy { config, .. } => {
                let run = policy_run(config, case)?;
                let loader = policy_loader(&run, Order::Epochs)?.on(device);
                Work::Policy(Box::new(Imitation::new(&run, device, loader, None)?))
            }
            Self::Beam { config, .. } => {
                Work::Beam(Box::new(Draws { config: config.clone(), batch: case.batch, tapes: Tapes::new(products) }))
            }
        })
    }
}

/// A run of this architecture as the trainer's preset has it, without regularisation.
pub(crate) fn policy_run(model: &PolicyConfig, case: &Case) -> Result<RunConfig> {
    let mut run = RunConfig::preset("mamba")?;
    run.model = model.clone();
    (run.data.batch, run.data.unroll, run.data.burn_in) = (case.batch, case.frames, 0);
    (run.noise.dropout, run.noise.drop_ids) = (0.0, 0.0);
    run.validate()?;
    Ok(run)
}

/// The trainer's loader over simulated games, on the CPU.
pub(crate) fn policy_loader(run: &RunConfig, order: Order) -> Result<Loader> {
    let shard = |seed| Ok(Arc::new(Shard::from_game(&simulate(seed, GAME_FRAMES), "simulated")?));
    let shards = (0..GAMES).map(shard).collect::<Result<Vec<_>>>()?;
    let data = Arc::new(Dataset::new(&shards, &run.model.names, run.model.delay)?);
    let shape = StepShape { lanes: run.data.batch, unroll: run.data.unroll };
    let (lanes, mirror, random) = (0..run.data.batch, run.data.mirror as f32, Random::new(run.seed).stream("data"));
    Ok(Loader::new(data, LoaderConfig { shape, lanes, mirror, burn_in: run.data.burn_in, order, random })?)
}

/// How often an episode uses a weight of a matrix: the user's network runs at every measurement, the others once.
pub(crate) fn beam_weight_uses(config: &BeamConfig) -> Result<f64> {
    let matrices = Beam::parameters(config)?.into_iter().filter(|p| p.role == Role::Matrix);
    let uses = |name: &str| if Beam::measures(name) { config.measurements } else { 1 };
    Ok(matrices.map(|p| (uses(&p.name) * p.shape.iter().product::<usize>()) as f64).sum())
}

/// Episodes `number * batch ..` of the measured run, of which everything depends on their number alone.
pub(crate) fn episodes(config: &BeamConfig, number: u64, batch: usize) -> candle_models::Result<Episodes> {
    let (random, first) = (Random::new(1), number * batch as u64);
    let channels = Channels::generate(&config.channel, random.stream("channels"), first, batch, config.measurements)?;
    Ok(Episodes {
        channels: Arc::new(channels),
        measurements: config.measurements,
        start: (first..first + batch as u64).map(|i| config.start(random, i)).collect(),
        snr_db: vec![10.0; batch],
        noise: random.stream("noise"),
        first,
        sensing: Sensing::Measurements,
    })
}

/// A beam controller on fresh channels, its loss the negative share of their power.
pub(crate) struct Draws {
    config: BeamConfig,
    batch: usize,
    tapes: Tapes,
}

impl Draws {
    fn loss(&self, parameters: &Params, episodes: &Episodes) -> candle_models::Result<Loss> {
        let decided = Beam::new(&self.config, parameters)?.align(episodes, &self.tapes)?;
        let shares = alignment(&episodes.channels, episodes.measurements - 1, &decided.receive, &decided.transmit)?;
        let value = shares.narrow(1, 0, 1)?.mean_all()?.neg()?;
        let metrics = vec![Metric::mean(&["gain", "receive", "transmit"], shares.detach().mean(0)?)];
        Ok(Loss { metrics, ..Loss::new(value, self.batch) })
    }
}

/// A task of either family: the trainer takes one whose type it knows.
pub(crate) enum Work {
    Policy(Box<Imitation>),
    Beam(Box<Draws>),
}

/// A batch of either family.
pub(crate) enum WorkBatch {
    Policy(Box<Batch>),
    Beam(Episodes),
}

impl Task for Work {
    type Batch = WorkBatch;

    fn next_batch(&mut self, context: &Context) -> candle_models::Result<WorkBatch> {
        Ok(match self {
            Self::Policy(task) => WorkBatch::Policy(Box::new(task.next_batch(context)?)),
            Self::Beam(task) => WorkBatch::Beam(episodes(&task.config, context.batch, task.batch)?),
        })
    }

    fn loss(&mut self, parameters: &Params, batch: &WorkBatch, context: &Context) -> candle_models::Result<Loss> {
        match (self, batch) {
            (Self::Policy(task), WorkBatch::Policy(batch)) => task.loss(parameters, batch, context),
            (Self::Beam(task), WorkBatch::Beam(episodes)) => task.loss(parameters, episodes),
            _ => Err(candle_models::Error::Input("a batch of another family".to_owned())),
        }
    }

    fn after_step(&mut self, step: &StepDone) -> candle_models::Result<()> {
        match self {
            Self::Policy(task) => task.after_step(step),
            Self::Beam(_) => Ok(()),
        }
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::with_mamba(name, shape.len())
    }
}
