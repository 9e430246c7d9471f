//! What is trained: batches and losses over parameters that the [`Trainer`] updates.
//!
//! A [`Task`] says where batches come from and what their loss is. Everything else of it has a default: what happens after a step
//! (actors, priorities, target networks), what is measured on held-out data, which parameters decay, what a checkpoint keeps.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_train::task::{Evaluation, Loss, Metric, Score};
//! # fn main() -> candle_models::Result<()> {
//! let error = Tensor::new(&[0.5f32, -0.5], &Device::Cpu)?;
//! let metrics = vec![Metric::mean(&["absolute"], error.abs()?.mean_all()?.reshape(1)?)];
//! let loss = Loss { metrics, ..Loss::new(error.sqr()?.mean_all()?, 2) };
//! assert_eq!(loss.value.to_scalar::<f32>()?, 0.25);
//! assert_eq!(Evaluation::new(Score::maximise(0.9), []).results()["score"], 0.9);
//! # Ok(())
//! # }
//! ```

pub use crate::checkpoint::{SavedFiles, StateFiles};
pub use crate::optim::ParameterGroup;
pub use crate::parallel::Communicator;
use crate::trainer::Trainer;
use candle_core::{DType, Tensor};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::collections::BTreeMap;

/// The seed of what evaluations draw, for tasks that draw their cases: that of every run, so that runs of different seeds are compared on the same ones.
pub const EVALUATION_SEED: u64 = 1;

/// Where in a run a micro batch is, and what it is computed with.
///
/// ```
/// use candle_models::candle_core::DType;
/// use candle_models::random::Random;
/// use candle_train::parallel::Single;
/// use candle_train::task::Context;
///
/// // Micro batch 1 of 2 in the step after 10 others.
/// let context = Context::of(10, [1, 2], Random::new(7), &Single, DType::F32);
/// assert_eq!((context.step, context.batch), (10, 21));
/// assert_eq!(context.noise, Random::new(7).at(21));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Steps done before this one.
    pub step: u64,
    /// Number of the micro batch since the run began, from 0: the same after a resume. A task whose batches are a function of it has
    /// no cursor to save.
    pub batch: u64,
    /// Who trains together. Each rank takes its [`share`](crate::parallel::share) of every micro batch.
    pub ranks: &'a dyn Communicator,
    /// Address of this micro batch's random numbers, the same on every rank: dropout, exploration, augmentation.
    pub noise: Random,
    /// What matrices are computed in.
    pub dtype: DType,
}

impl<'a> Context<'a> {
    /// Of micro batch `micro`, from 0, of `accumulate` in a step. `noise` is the run's address of noise.
    pub fn of(step: u64, [micro, accumulate]: [usize; 2], noise: Random, ranks: &'a dyn Communicator, dtype: DType) -> Self {
        let batch = step * accumulate as u64 + micro as u64;
        Self { step, batch, ranks, noise: noise.at(batch), dtype }
    }
}

/// How a figure of several micro batches and ranks becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The mean over samples: with the weights of the losses.
    Mean,
    /// The sum: counts.
    Sum,
    /// The largest.
    Max,
}

/// Figures of one loss that are reduced alike. They are read after the step, together with the loss.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_train::task::{Loss, Metric, Reduction};
/// # fn main() -> candle_models::Result<()> {
/// let error = Tensor::new(&[1f32, -3.0], &Device::Cpu)?;
/// let largest = Metric::max(&["largest"], error.abs()?.max_all()?.reshape(1)?);
/// assert_eq!(largest.reduction, Reduction::Max);
/// let loss = Loss { metrics: vec![largest], ..Loss::new(error.sqr()?.mean_all()?, 2) };
/// assert_eq!(loss.value.to_scalar::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Metric {
    /// Their names, under `parts` in the metrics.
    pub names: &'static [&'static str],
    /// Their values `[k]` in f32, without gradient.
    pub values: Tensor,
    /// How they are reduced.
    pub reduction: Reduction,
}

impl Metric {
    /// Means over the samples of the loss.
    pub fn mean(names: &'static [&'static str], values: Tensor) -> Self {
        Self { names, values, reduction: Reduction::Mean }
    }

    /// Sums over the samples of the loss.
    pub fn sum(names: &'static [&'static str], values: Tensor) -> Self {
        Self { names, values, reduction: Reduction::Sum }
    }

    /// The largest values over the samples of the loss.
    pub fn max(names: &'static [&'static str], values: Tensor) -> Self {
        Self { names, values, reduction: Reduction::Max }
    }
}

/// The loss of this rank's share of one micro batch.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_train::task::Loss;
/// # fn main() -> candle_models::Result<()> {
/// // 2 of the 8 samples of a micro batch, on one of several ranks.
/// let loss = Loss { weight: 2.0 / 8.0, ..Loss::new(Tensor::new(0.5f32, &Device::Cpu)?, 2) };
/// assert_eq!((loss.samples, loss.weight), (2, 0.25));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loss {
    /// The scalar to differentiate: a mean over the samples.
    pub value: Tensor,
    /// How much it counts: its samples over those of the whole micro batch, samples without weight left out. 1 for a run of one
    /// rank whose samples all count.
    pub weight: f64,
    /// Samples in it.
    pub samples: usize,
    /// What else is reported.
    pub metrics: Vec<Metric>,
    /// Tensors with a row for each sample, without gradient, that [`Task::after_step`] gets back: errors that become priorities.
    pub outputs: NamedTensors,
}

impl Loss {
    /// A loss of weight 1 without metrics.
    pub fn new(value: Tensor, samples: usize) -> Self {
        Self { value, weight: 1.0, samples, metrics: Vec::new(), outputs: NamedTensors::new() }
    }
}

/// Which scores are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Lower ones.
    Minimise,
    /// Higher ones.
    Maximise,
}

/// The figure of an evaluation that decides which checkpoint is best and when to stop early.
///
/// ```
/// use candle_train::task::Score;
///
/// assert_eq!(Score::minimise(0.3).cost(), 0.3);
/// assert_eq!(Score::maximise(0.9).cost(), -0.9); // lower costs are better
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The figure.
    pub value: f64,
    /// Which scores are better.
    pub direction: Direction,
}

impl Score {
    /// A score of which lower values are better.
    pub fn minimise(value: f64) -> Self {
        Self { value, direction: Direction::Minimise }
    }

    /// A score of which higher values are better.
    pub fn maximise(value: f64) -> Self {
        Self { value, direction: Direction::Maximise }
    }

    /// The score as a number of which lower values are better.
    pub fn cost(self) -> f64 {
        match self.direction {
            Direction::Minimise => self.value,
            Direction::Maximise => -self.value,
        }
    }
}

/// Results on held-out data.
///
/// ```
/// use candle_train::task::{Evaluation, Score};
///
/// let evaluation = Evaluation::new(Score::minimise(0.3), [("accuracy", 0.9)]);
/// assert_eq!(evaluation.results().into_iter().collect::<Vec<_>>(), [("accuracy".to_owned(), 0.9), ("score".to_owned(), 0.3)]);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// What decides.
    pub score: Option<Score>,
    /// Other figures by name.
    pub figures: BTreeMap<String, f64>,
    /// A reliability diagram: of predictions that were about equally likely the mean probability and the share that came true. The report draws the
    /// last one.
    pub reliability: Vec<[f64; 2]>,
}

impl Evaluation {
    /// A score and other figures.
    pub fn new<'a>(score: Score, figures: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        let figures = figures.into_iter().map(|(name, x)| (name.to_owned(), x)).collect();
        Self { score: Some(score), figures, ..Self::default() }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.score.is_none() && self.figures.is_empty() && self.reliability.is_empty()
    }

    /// All figures, the score's value as `score`.
    pub fn results(&self) -> BTreeMap<String, f64> {
        let score = self.score.map(|score| ("score".to_owned(), score.value));
        self.figures.clone().into_iter().chain(score).collect()
    }
}

/// A step that is over, as its task sees it.
#[derive(Debug)]
pub struct StepDone<'a> {
    pub(crate) trainer: &'a Trainer,
    /// Steps done, this one included.
    pub step: u64,
    /// Whether the parameters were updated: not where the loss or a gradient was not finite. What a task carries from such a batch to the
    /// next one may not be finite either.
    pub updated: bool,
    /// The loss.
    pub loss: f64,
    /// The metrics of all micro batches and ranks.
    pub metrics: &'a BTreeMap<&'static str, f64>,
    /// [`Loss::outputs`] of this rank's micro batches, in their order.
    pub outputs: &'a [NamedTensors],
}

impl StepDone<'_> {
    /// A copy of the parameters without gradients, on their device: for actors, or as a target network.
    pub fn parameters(&self) -> Result<BTreeMap<String, Tensor>> {
        self.trainer.copy_of_parameters()
    }

    /// A copy of the parameters' moving average, on the host.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        self.trainer.average()
    }

    /// Who trains together.
    pub fn ranks(&self) -> &dyn Communicator {
        &*self.trainer.resources().ranks
    }
}

/// What a checkpoint keeps of a task beside its files.
///
/// ```
/// use candle_train::task::TaskState;
/// # fn main() -> candle_models::Result<()> {
/// let state = TaskState { cursor: serde_json::json!([3, 128]), ..TaskState::default() };
/// let [epoch, row]: [u64; 2] = state.cursor()?;
/// assert_eq!((epoch, row), (3, 128));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct TaskState {
    /// Tensors that are the same on every rank: normalisers, target networks. Those of rank 0 are kept, and every rank gets them.
    pub replicated: NamedTensors,
    /// Tensors with this rank's share of the batch as their first axis: recurrent state. All ranks' rows are kept, one after the other, and
    /// each rank gets its share of them, also where their number is another one.
    pub rows: NamedTensors,
    /// Anything else, the same on every rank.
    pub cursor: serde_json::Value,
}

impl TaskState {
    /// The cursor as a task's own type.
    ///
    /// # Errors
    /// If the checkpoint holds another kind of cursor.
    pub fn cursor<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_value(self.cursor.clone()).map_err(|e| Error::Input(format!("checkpoint's cursor: {e}")))
    }
}

/// A source of batches and losses. Ranks call the same functions in the same order.
///
/// ```
/// use candle_models::Result;
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::nn::{Init, Params};
/// use candle_models::random::Random;
/// use candle_train::optim::OptimiserConfig;
/// use candle_train::run::{Outcome, Place, Run, Stop, TrainerConfig};
/// use candle_train::schedule::Schedule;
/// use candle_train::task::{Context, Loss, Task};
///
/// /// Learns y = 2 x: batch b depends on its number alone.
/// struct Slope;
///
/// fn line(parameters: &Params, x: &Tensor) -> Result<Tensor> {
///     Ok(x.broadcast_mul(&parameters.get("slope", &[1], Init::Constant(0.0))?)?)
/// }
///
/// impl Task for Slope {
///     type Batch = Tensor;
///
///     fn next_batch(&mut self, context: &Context) -> Result<Tensor> {
///         let mut x = [0f32; 16];
///         context.noise.fill_normal(0, &mut x);
///         Ok(Tensor::new(&x, &Device::Cpu)?)
///     }
///
///     fn loss(&mut self, parameters: &Params, x: &Tensor, _: &Context) -> Result<Loss> {
///         let error = (line(parameters, x)? - (x * 2.0)?)?;
///         Ok(Loss::new(error.sqr()?.mean_all()?, x.dim(0)?))
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// line(&params, &Tensor::new(&[0f32], &Device::Cpu)?)?; // asking for a parameter makes it
/// let schedule = Schedule { peak: 0.1, warmup: 0, ..Schedule::default() };
/// let optimiser = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::default() };
/// let config = TrainerConfig { schedule, optimiser, ..TrainerConfig::default() };
/// let ended = Run::new(config, 100, 7)?.train(params.vars(), &mut Slope, &Place::memory(), &Stop::after(None))?;
/// let slope = ended.parameters["slope"].to_vec1::<f32>()?[0];
/// assert!(ended.outcome == Outcome::Finished && (slope - 2.0).abs() < 0.1, "{slope}");
/// # Ok(())
/// # }
/// ```
pub trait Task {
    /// A micro batch, or a rank's share of it.
    type Batch;

    /// What a sample is called: `frames`.
    fn unit(&self) -> &'static str {
        "samples"
    }

    /// The next micro batch. The time that this takes counts as waiting for data.
    fn next_batch(&mut self, context: &Context) -> Result<Self::Batch>;

    /// The loss of a micro batch. `parameters` are this step's: in the dtype to compute in, rounded where the run trains for 8 bits;
    /// gradients flow through them to what the trainer updates.
    fn loss(&mut self, parameters: &Params, batch: &Self::Batch, context: &Context) -> Result<Loss>;

    /// Called after every step, also after one that was skipped because something in it was not finite, and before a checkpoint of it
    /// is saved.
    fn after_step(&mut self, _step: &StepDone) -> Result<()> {
        Ok(())
    }

    /// Results of these parameters (the moving average) on held-out data, none without such data. Each rank measures a share, and all
    /// return the same. What is drawn for it is drawn from [`EVALUATION_SEED`].
    fn evaluate(&mut self, _parameters: &Params, _ranks: &dyn Communicator) -> Result<Evaluation> {
        Ok(Evaluation::default())
    }

    /// How a parameter of that name and shape is updated. A complex parameter is a pair of real ones.
    fn group(&self, _name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::by_rank(shape.len())
    }

    /// Floating-point operations of a sample in a step, forward and backward; 0 where nobody counted.
    fn operations(&self) -> f64 {
        0.0
    }

    /// What a run needs to go on from here. Tensors in it are not changed any more. What is too large for memory a second time, as a
    /// replay buffer, is written to `files`.
    fn save(&mut self, _files: &mut StateFiles) -> Result<TaskState> {
        Ok(TaskState::default())
    }

    /// Continues from what [`Self::save`] gave.
    fn restore(&mut self, _state: &TaskState, _files: &SavedFiles) -> Result<()> {
        Ok(())
    }
}
