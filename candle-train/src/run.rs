//! A run of a task from its first step, or from its last checkpoint, to its end.
//!
//! ```
//! use candle_train::run::{Budget, Place, Run, TrainerConfig};
//! # fn main() -> candle_models::Result<()> {
//! let run = Run::new(TrainerConfig::default(), 1000, 7)?; // `train` takes the parameters and a task
//! assert_eq!((run.budget, run.seed), (Budget::Steps(1000), 7));
//! assert!(Place::memory().directory().is_none()); // nothing is written
//! # Ok(())
//! # }
//! ```

pub use crate::budget::Budget;
use crate::callback::{Callback, Callbacks};
use crate::export::Skeleton;
use crate::host::Host;
use crate::metrics::Reporter;
use crate::report::{self, About};
pub use crate::stop::Stop;
use crate::task::Task;
pub use crate::trainer::{Outcome, Resources, TrainerConfig};
use crate::trainer::{Trainer, Weights, with_large_stack};
use candle_core::{Device, Tensor, Var};
use candle_models::files::write_atomic;
use candle_models::nn::Params;
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a run keeps its files, and where it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    directory: Option<PathBuf>,
    resumes: bool,
    /// Files that are written to the directory when the run begins, by name.
    notes: Vec<(&'static str, Vec<u8>)>,
}

impl Place {
    /// Nothing is written.
    pub fn memory() -> Self {
        Self { directory: None, resumes: false, notes: Vec::new() }
    }

    /// `config.toml`, metrics and checkpoints go here; the directory must not hold a run.
    pub fn create(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..Self::memory() }
    }

    /// The same, and a run that is there is continued.
    pub fn resume(directory: impl Into<PathBuf>) -> Self {
        Self { resumes: true, ..Self::create(directory) }
    }

    /// The same with a file more that is written to the directory when the run begins.
    #[cfg(feature = "cli")]
    pub(crate) fn noting(mut self, name: &'static str, content: Vec<u8>) -> Self {
        self.notes.push((name, content));
        self
    }

    /// The run's directory.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

/// What a run is, whatever it trains.
///
/// ```
/// # use candle_models::Result;
/// # use candle_models::candle_core::{Device, Tensor};
/// # use candle_models::nn::{Init, Params};
/// # use candle_models::random::Random;
/// # use candle_train::optim::OptimiserConfig;
/// # use candle_train::schedule::Schedule;
/// # use candle_train::task::{Context, Loss, Task};
/// use candle_train::run::{Outcome, Place, Run, Stop, TrainerConfig};
///
/// # /// Learns y = 2 x: batch b depends on its number alone.
/// # struct Slope;
/// # fn line(parameters: &Params, x: &Tensor) -> Result<Tensor> {
/// #     Ok(x.broadcast_mul(&parameters.get("slope", &[1], Init::Constant(0.0))?)?)
/// # }
/// # impl Task for Slope {
/// #     type Batch = Tensor;
/// #     fn next_batch(&mut self, context: &Context) -> Result<Tensor> {
/// #         let mut x = [0f32; 16];
/// #         context.noise.fill_normal(0, &mut x);
/// #         Ok(Tensor::new(&x, &Device::Cpu)?)
/// #     }
/// #     fn loss(&mut self, parameters: &Params, x: &Tensor, _: &Context) -> Result<Loss> {
/// #         let error = (line(parameters, x)? - (x * 2.0)?)?;
/// #         Ok(Loss::new(error.sqr()?.mean_all()?, x.dim(0)?))
/// #     }
/// # }
/// # fn main() -> Result<()> {
/// # let schedule = Schedule { peak: 0.1, warmup: 0, ..Schedule::default() };
/// # let optimiser = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::default() };
/// # let config = TrainerConfig { schedule, optimiser, ..TrainerConfig::default() };
/// # let folder = std::env::temp_dir().join(format!("candle-train-run-{}", std::process::id()));
/// # let train = |steps: u64| {
/// #     let params = Params::init(Random::new(1), &Device::Cpu);
/// #     line(&params, &Tensor::new(&[0f32], &Device::Cpu)?)?;
/// let place = Place::resume(&folder); // a new run, or the one that is there
/// let run = Run::new(config.clone(), steps, 7)?;
/// let ended = run.train(params.vars(), &mut Slope, &place, &Stop::after(None))?;
/// #     Ok::<_, candle_models::Error>(ended)
/// # };
/// # train(20)?;
/// # let ended = train(40)?; // extended
/// assert_eq!((ended.outcome, ended.step), (Outcome::Finished, 40));
/// assert!(folder.join("metrics.jsonl").is_file() && folder.join("checkpoints/latest").is_file());
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Run {
    /// Address of the noise of its micro batches.
    pub seed: u64,
    /// How it trains.
    pub trainer: TrainerConfig,
    /// How long.
    pub budget: Budget,
    /// The resolved configuration, without the budget, and the data: a checkpoint of another identity is refused.
    pub identity: serde_json::Value,
    /// What it computes with.
    pub resources: Resources,
    /// What its report says of it.
    pub about: About,
    /// What its bundle holds beside the parameters: with it every checkpoint in its directory can become one.
    pub skeleton: Option<Skeleton>,
    /// Files that are written to its directory when it begins, by name.
    pub notes: Vec<(&'static str, Vec<u8>)>,
    /// What is added to the reason why it cannot begin.
    pub hint: Option<String>,
    /// What is called as it goes: see [`Self::with`].
    pub callbacks: Callbacks,
}

/// What a run gave.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// Steps done.
    pub step: u64,
    /// The last step's loss.
    pub loss: f64,
    /// Wall time of the steps of this process.
    pub time: Duration,
    /// The moving average of the parameters: of the best evaluated step where the run stopped early because scores no longer improved,
    /// else of the last one.
    pub parameters: BTreeMap<String, Tensor>,
    /// The step that they are of.
    pub shipped: u64,
    weights: Weights,
    device: Device,
}

impl Ended {
    /// The parameters as losses saw them: rounded where the run trained for 8 bits.
    pub fn params(&self) -> Params {
        self.weights.view(Params::given(self.parameters.clone(), &self.device))
    }
}

impl Run {
    /// A run of 1 rank on the CPU in f32 whose identity is the trainer's configuration and the seed.
    ///
    /// # Errors
    /// If the configuration cannot be written as JSON.
    pub fn new(trainer: TrainerConfig, budget: impl Into<Budget>, seed: u64) -> Result<Self> {
        let budget = budget.into();
        let json = |value| serde_json::to_value(value).map_err(|e| Error::config("trainer", e));
        let identity = serde_json::json!({ "trainer": json(trainer.identity())?, "seed": seed });
        let text = toml::to_string_pretty(&trainer).map_err(|e| Error::config("trainer", e))?;
        let about = About { configuration: text, ..About::default() };
        let (resources, notes) = (Resources::default(), Vec::new());
        let callbacks = Callbacks::default();
        Ok(Self { seed, trainer, budget, identity, resources, about, skeleton: None, notes, hint: None, callbacks })
    }

    /// The same with a callback more. Every rank has to add the same.
    #[must_use]
    pub fn with(mut self, callback: impl Callback + Send + 'static) -> Self {
        self.callbacks.add(callback);
        self
    }

    /// Trains a task on a thread with a large stack until the budget is spent or `stop` says so. In a directory it continues the run that is
    /// there, or starts a new one, and writes metrics, checkpoints and a report. An error of one rank ends all of them.
    ///
    /// # Errors
    /// If the place already holds a run that was not to be continued, or one of another identity; if gradients stay non-finite; if the
    /// last checkpoint cannot be saved; if a callback fails.
    pub fn train<T: Task + Send>(self, vars: BTreeMap<String, Var>, task: &mut T, place: &Place, stop: &Stop) -> Result<Ended> {
        if let Err(error) = self.about.configuration.parse::<toml::Table>() {
            return Err(Error::config("about.configuration", format!("expected TOML: {}", error.message())));
        }
        with_large_stack(|| {
            let (weights, device, ranks) = (self.trainer.weights, self.resources.device.clone(), self.resources.ranks.clone());
            let trainer = Trainer::new(self.trainer, vars, self.budget, self.identity, self.resources)?;
            let mut trainer = trainer.with_seed(self.seed).with_callbacks(self.callbacks);
            let train = || {
                begin(&mut trainer, task, place).map_err(|error| match &self.hint {
                    Some(hint) => Error::Input(format!("{error}; {hint}")),
                    None => error,
                })?;
                let outcome = reporter(&trainer, place, self.about, (&self.notes, self.skeleton.as_ref()), task.unit())
                    .and_then(|mut reporter| trainer.run(task, &mut reporter, stop));
                if let Some(Err(error)) = place.directory().filter(|_| ranks.rank() == 0).map(report::write) {
                    eprintln!("warning: no report: {error}");
                }
                let outcome = outcome?;
                Ok((outcome, trainer.shipped(outcome)?))
            };
            let (outcome, (shipped, parameters)) = train().inspect_err(|error: &Error| ranks.abandon(&error.to_string()))?;
            let (step, loss, time) = (trainer.step(), trainer.loss(), trainer.time());
            Ok(Ended { outcome, step, loss, time, parameters, shipped, weights, device })
        })
    }
}

impl Ended {
    /// What a card says of a run that did not go to its end.
    pub(crate) fn remark(&self) -> String {
        let Self { step, shipped, .. } = self;
        if !self.outcome.done() {
            return format!("The run was stopped at step {step}, before its end; the parameters are those of that step.\n\n");
        }
        if shipped == step {
            return String::new();
        }
        format!(
            "The parameters are those of step {shipped}, which had the best held-out score: training stopped when it no longer improved.\n\n"
        )
    }
}

/// Opens the place and continues the run that is there, if there is one.
fn begin<T: Task>(trainer: &mut Trainer, task: &mut T, place: &Place) -> Result<()> {
    let Some(directory) = place.directory() else { return Ok(()) };
    trainer.save_to(directory)?;
    if trainer.has_checkpoint() && !place.resumes {
        return Err(Error::file(directory, "holds a run already; --resume continues it"));
    }
    let resumed = trainer.resume(task)?;
    if let Some(warnings) = resumed.filter(|_| trainer.resources().ranks.rank() == 0) {
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        eprintln!("continued from step {}", trainer.step());
    }
    Ok(())
}

/// Says in the run's directory what it is, and starts to report on its steps.
fn reporter(
    trainer: &Trainer,
    place: &Place,
    about: About,
    (notes, skeleton): (&[(&str, Vec<u8>)], Option<&Skeleton>),
    unit: &'static str,
) -> Result<Reporter> {
    let Resources { device, dtype, ranks, .. } = trainer.resources();
    if ranks.rank() > 0 {
        return Reporter::silent();
    }
    let on = if device.is_cuda() { "CUDA" } else { "the CPU" };
    let on = format!("{} x {on}, in {}", ranks.size(), dtype.as_str());
    let steps = if let Budget::Steps(steps) = trainer.budget() { steps } else { 0 };
    let about = About { host: Host::detect().to_string(), device: on, steps, unit: unit.into(), ..about };
    if let Some(directory) = place.directory() {
        for (name, content) in notes.iter().chain(&place.notes) {
            write_atomic(directory.join(name), content)?;
        }
        if let Some(skeleton) = skeleton {
            skeleton.save(directory)?;
        }
        about.save(directory)?;
        write_atomic(directory.join("config.toml"), about.configuration.as_bytes())?;
    }
    let reporter = Reporter::new(place.directory(), trainer.step(), trainer.total(), trainer.config().log_every, unit)?;
    reporter.watching(device).describing(&about.configuration)
}
