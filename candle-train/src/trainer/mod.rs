//! The training loop. A [`Task`] gives batches and losses; the trainer turns them into parameters.
//!
//! One step: gradients of `accumulate` micro batches, their sum over the ranks, norm, clipping, update, moving average; then one
//! look at the device for the loss, the metrics and the norm. A gradient that is not finite skips the step; `patience` such steps in a row end
//! the run with the tensor's name. Around it: metrics, evaluation with the averaged parameters, checkpoints, stopping on a signal
//! or a time limit. With several ranks all of them do the same; rank 0 alone writes.
//!
//! ```
//! use candle_train::run::{Outcome, Resources, TrainerConfig};
//! use candle_train::trainer::Weights;
//!
//! let rounded = TrainerConfig { weights: Weights::Q8, ..TrainerConfig::default() }; // trained for 8 bits
//! assert!(rounded.validate().is_ok());
//! assert_eq!(Resources::default().ranks.size(), 1);
//! assert!(Outcome::Finished.done());
//! ```

mod config;
mod figures;
mod recovery;

pub use config::{Resources, TrainerConfig, Weights};

use crate::budget::{Budget, Spent};
use crate::callback::{self, Callbacks, Flow};
use crate::checkpoint::Writer;
use crate::early_stop::Plateau;
use crate::gradients::Gradients;
use crate::identity::{agree, check_replicas};
use crate::metrics::{Reporter, StepFigures};
use crate::optim::Optimiser;
use crate::overlap::PendingReduction;
use crate::replica::{self, Shared};
use crate::scale::LossScale;
use crate::stop::{Reason, Stop};
use crate::task::{Context, Evaluation, Loss, Score, StepDone, Task};
use candle_core::{Tensor, Var};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use figures::Figures;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// It stopped before the last step.
    Stopped(Reason),
}

impl Outcome {
    /// Whether the run has done what it was for: there is nothing to resume.
    pub fn done(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped(Reason::NoImprovement))
    }
}

/// Parameters in training.
///
/// ```
/// # use candle_models::Result;
/// # use candle_models::candle_core::{Device, Tensor};
/// # use candle_models::nn::{Init, Params};
/// # use candle_models::random::Random;
/// # use candle_train::optim::OptimiserConfig;
/// # use candle_train::schedule::Schedule;
/// # use candle_train::task::{Context, Loss, Task};
/// use candle_train::metrics::Reporter;
/// use candle_train::run::{Outcome, Resources, Stop, TrainerConfig};
/// use candle_train::trainer::Trainer;
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
/// # let params = Params::init(Random::new(1), &Device::Cpu);
/// # line(&params, &Tensor::new(&[0f32], &Device::Cpu)?)?; // asking for a parameter makes it
/// # let schedule = Schedule { peak: 0.1, warmup: 0, ..Schedule::default() };
/// # let optimiser = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::default() };
/// # let config = TrainerConfig { schedule, optimiser, ..TrainerConfig::default() };
/// // What `Run` does, by hand: nothing is written.
/// let identity = serde_json::json!({ "task": "slope" });
/// let mut trainer = Trainer::new(config, params.vars(), 50, identity, Resources::default())?.with_seed(7);
/// let outcome = trainer.run(&mut Slope, &mut Reporter::silent()?, &Stop::after(None))?;
/// assert_eq!((outcome, trainer.step()), (Outcome::Finished, 50));
/// assert!(trainer.average()?.contains_key("slope"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Trainer {
    config: TrainerConfig,
    vars: BTreeMap<String, Var>,
    resources: Resources,
    optimiser: Optimiser,
    gradients: Gradients,
    budget: Budget,
    /// Address of the noise of all micro batches.
    noise: Random,
    counters: Counters,
    step: u64,
    time: Duration,
    loss: f64,
    /// Whether the checkpoint that was resumed still lacks its evaluation.
    evaluation_pending: bool,
    /// Where the run's checkpoints are, on all ranks.
    directory: Option<PathBuf>,
    /// What writes them, on the first rank.
    saves: Option<Writer>,
    /// What is called on the first rank.
    callbacks: Callbacks,
    /// Of a run without checkpoints that may stop early, the averaged parameters with the best score so far.
    best: Option<Best>,
    /// What the checkpoint must agree on to be resumed.
    identity: serde_json::Value,
}

/// Parameters with the best score of a run.
#[derive(Debug, Clone)]
pub struct Best {
    /// The step that they are of.
    pub step: u64,
    /// Their score as a [cost](Score::cost).
    pub cost: f64,
    /// Their moving average, on the host.
    pub average: NamedTensors,
}

/// What changes from step to step beside tensors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counters {
    skipped: u64,
    skipped_in_row: u64,
    scale: LossScale,
    plateau: Plateau,
    /// Of a run whose budget is not one of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Spent>,
}

impl Trainer {
    /// A trainer of `vars` for a budget: a number of steps, or another [`Budget`]. `identity` is the resolved configuration without the
    /// budget: a checkpoint with another one is refused, while a run can be extended. Nothing is written before [`Self::save_to`].
    ///
    /// # Errors
    /// If a field is out of range, or another rank has another identity: all ranks have to call this.
    pub fn new(
        config: TrainerConfig,
        vars: BTreeMap<String, Var>,
        budget: impl Into<Budget>,
        identity: serde_json::Value,
        resources: Resources,
    ) -> Result<Self> {
        let budget = budget.into();
        config.validate()?;
        budget.validate()?;
        let mut everywhere = identity.clone();
        if let (Some(keys), Ok(budget)) = (everywhere.as_object_mut(), serde_json::to_value(budget)) {
            keys.insert("length".to_owned(), budget);
        }
        agree(&*resources.ranks, &everywhere)?;
        let optimiser = Optimiser::new(config.optimiser.clone(), &vars)?;
        let gradients = Gradients::in_buckets(&vars, (config.bucket_mb * 1e6 / 4.0) as usize)?;
        let spent = if matches!(budget, Budget::Steps(_)) { None } else { Some(Spent::default()) };
        let (scale, plateau) = (LossScale::of(resources.dtype), Plateau::default());
        Ok(Self {
            config,
            vars,
            resources,
            optimiser,
            gradients,
            budget,
            noise: Random::new(0).stream("noise"),
            counters: Counters { skipped: 0, skipped_in_row: 0, scale, plateau, spent },
            step: 0,
            time: Duration::ZERO,
            loss: f64::NAN,
            evaluation_pending: false,
            directory: None,
            saves: None,
            callbacks: Callbacks::default(),
            best: None,
            identity,
        })
    }

    /// The same trainer with noise that depends on this seed: see [`Context::noise`].
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { noise: Random::new(seed).stream("noise"), ..self }
    }

    /// The same trainer that calls these as it goes.
    #[must_use]
    pub fn with_callbacks(self, callbacks: Callbacks) -> Self {
        Self { callbacks, ..self }
    }

    /// Whether this is the rank that writes.
    fn is_first_rank(&self) -> bool {
        self.resources.ranks.rank() == 0
    }

    /// Time that the steps took since the trainer was made or resumed: a checkpoint holds nothing that two equal runs would differ in.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// How it trains.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// What it computes with.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// What the run may spend.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Steps of the run; where its budget is not one of steps, what it comes to at the pace so far, and before the first step the largest
    /// number.
    pub fn total(&self) -> u64 {
        self.budget.steps(self.step, self.counters.spent.unwrap_or_default())
    }

    /// Whether the budget is spent.
    fn is_done(&self) -> bool {
        self.budget.is_spent(self.step, self.counters.spent.unwrap_or_default())
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The loss of the last step; not a number before the first.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// A copy of the parameters without gradients, on their device.
    pub(crate) fn copy_of_parameters(&self) -> Result<BTreeMap<String, Tensor>> {
        self.vars.iter().map(|(name, var)| Ok((name.clone(), var.as_detached_tensor().copy()?))).collect()
    }

    /// The moving average of the parameters: what is evaluated and shipped.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        Ok(self.optimiser.average()?.into_iter().collect())
    }

    /// Parameters as losses see them.
    pub fn parameters(&self, tensors: BTreeMap<String, Tensor>) -> Params {
        self.config.weights.view(Params::given(tensors, &self.resources.device))
    }

    /// Trains until the budget is spent, or until `stop` of any rank says so. A checkpoint that cannot be saved is a warning while there are
    /// others to come, and an error at the end.
    pub fn run<T: Task>(&mut self, task: &mut T, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        replica::broadcast_parameters(&*self.resources.ranks, &self.vars)?;
        self.compare()?;
        self.optimiser.set_groups(|name, shape| task.group(name, shape))?;
        let outcome = self.steps(task, reporter, stop)?;
        self.saves.as_mut().map_or(Ok(()), Writer::finish)?;
        if self.is_first_rank() {
            let step = self.step;
            self.callbacks.tell(|callback| callback.on_end(step, outcome))?;
        }
        Ok(outcome)
    }

    fn steps<T: Task>(&mut self, task: &mut T, reporter: &mut Reporter, stop: &Stop) -> Result<Outcome> {
        let (start, before) = (Instant::now(), self.counters.spent.map_or(0.0, |spent| spent.seconds));
        if std::mem::take(&mut self.evaluation_pending) && self.evaluate(task, reporter)? == Flow::Stop && !self.is_done() {
            return Ok(Outcome::Stopped(Reason::Callback));
        }
        while !self.is_done() {
            if self.config.early_stop.gives_up(&self.counters.plateau) {
                return Ok(Outcome::Stopped(Reason::NoImprovement));
            }
            let seconds = || before + start.elapsed().as_secs_f64();
            let (figures, stopped) = self.train_step(task, stop, &seconds)?;
            if self.is_first_rank() {
                reporter.expect(self.total());
                reporter.step(&figures)?;
            }
            if self.due(self.config.compare_every) {
                self.compare()?;
            }
            let (evaluate, save) = (self.due(self.config.evaluate_every) && stopped.is_none(), self.due(self.config.save_every));
            if save || evaluate || stopped.is_some() {
                self.save(task, reporter)?;
            }
            let asked = evaluate && self.evaluate(task, reporter)? == Flow::Stop;
            let stopped = stopped.or(asked.then_some(Reason::Callback));
            if let Some(reason) = stopped.filter(|_| !self.is_done()) {
                return Ok(Outcome::Stopped(reason));
            }
        }
        Ok(Outcome::Finished)
    }

    /// Whether something that happens every so many steps, and at the end, happens after this one.
    fn due(&self, every: u64) -> bool {
        self.is_done() || (every > 0 && self.step.is_multiple_of(every))
    }

    /// `seconds`: what the run has taken so far.
    fn train_step<T: Task>(&mut self, task: &mut T, stop: &Stop, seconds: &dyn Fn() -> f64) -> Result<(StepFigures, Option<Reason>)> {
        let start = Instant::now();
        let learning_rate = self.config.schedule.at(self.step, self.total());
        let mut step = StepFigures { step: self.step + 1, learning_rate, ..StepFigures::default() };
        self.gradients.clear();
        let (mut figures, mut weight, mut outputs) = (Figures::default(), 0.0, Vec::new());
        for micro in 0..self.config.accumulate {
            let loss = self.micro_batch(task, micro, &mut step)?;
            weight += loss.weight;
            figures.add(&loss)?;
            outputs.push(loss.outputs.map(|_, tensor| Ok(tensor.detach()))?);
        }
        let waiting = Instant::now();
        let mine = Shared { figures: figures.to_sum()?, weight, samples: step.samples, seconds: seconds(), stop: stop.now() };
        let shared = replica::share_figures(&*self.resources.ranks, &mut self.gradients, mine)?;
        step.communicated += waiting.elapsed();
        // A batch in which nothing counts has gradients of zero, not of zero over zero.
        let weight = if shared.weight > 0.0 { shared.weight } else { 1.0 };
        self.gradients.divide_by(weight * self.counters.scale.factor());
        let done = self.optimiser.step(&self.gradients, &figures.to_read(&shared.figures, weight)?, learning_rate)?;
        (step.norm, step.samples) = (done.norm, shared.samples);
        step.operations = task.operations() * shared.samples as f64;
        figures.name(done.figures, &*self.resources.ranks, &mut step)?;
        step.scale = Some(self.counters.scale.factor());
        let halved = self.counters.scale.after(done.updated);
        self.step += 1;
        self.loss = step.loss;
        if let Some(spent) = &mut self.counters.spent {
            // Checkpoints of two equal runs are equal: a time is kept where it decides.
            let seconds = if matches!(self.budget, Budget::Time(_)) { shared.seconds } else { 0.0 };
            *spent = Spent { samples: spent.samples + shared.samples as u64, seconds };
        }
        let (updated, loss) = (done.updated, step.loss);
        let mut callbacks = std::mem::take(&mut self.callbacks);
        let (mut more, mut flow) = (callback::Figures::new(), Flow::Continue);
        let of_step = StepDone { trainer: self, step: self.step, updated, loss, metrics: &step.parts, outputs: &outputs };
        task.after_step(&of_step)?;
        if self.is_first_rank() {
            flow = callbacks.ask(|callback| callback.on_step(&of_step, &mut more))?;
        }
        self.callbacks = callbacks;
        for (name, x) in more {
            step.parts.entry(name).or_insert(x);
        }
        let asked = self.all_hear(flow)? == Flow::Stop;
        if updated {
            self.counters.skipped_in_row = 0;
        } else {
            self.skip(loss, halved)?;
        }
        (step.skipped, step.ranks) = (self.counters.skipped, self.resources.ranks.size());
        step.time = start.elapsed();
        self.time += step.time;
        Ok((step, shared.stop.or(asked.then_some(Reason::Callback))))
    }

    /// What the callbacks of rank 0 want, on every rank.
    fn all_hear(&self, flow: Flow) -> Result<Flow> {
        if self.callbacks.is_empty() || self.resources.ranks.size() == 1 {
            return Ok(flow);
        }
        let mut stops = [u8::from(flow == Flow::Stop)];
        self.resources.ranks.broadcast(&mut stops, 0)?;
        Ok(if stops == [1] { Flow::Stop } else { Flow::Continue })
    }

    /// Forward and backward of one micro batch, from 0. After the last one the gradients are the sum over all ranks.
    fn micro_batch<T: Task>(&mut self, task: &mut T, micro: usize, figures: &mut StepFigures) -> Result<Loss> {
        let (ranks, last) = (self.resources.ranks.clone(), micro + 1 == self.config.accumulate && self.resources.ranks.size() > 1);
        let context = Context::of(self.step, [micro, self.config.accumulate], self.noise, &*ranks, self.resources.dtype);
        let waiting = Instant::now();
        let batch = task.next_batch(&context)?;
        figures.waited += waiting.elapsed();
        let pending = if last && self.config.overlap { PendingReduction::start(&mut self.gradients, &self.vars, &ranks)? } else { None };
        let tensors = || self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
        let (pending, tensors) = pending.map_or_else(|| (None, tensors()), |(pending, hooked)| (Some(pending), hooked));
        let parameters = self.parameters(tensors).computing_in(self.resources.dtype);
        let loss = self.resources.products.within(|| task.loss(&parameters, &batch, &context))?;
        // What the backward pass needs of it is in the graph.
        drop(batch);
        figures.samples += loss.samples;
        let gradients = (&loss.value * (loss.weight * self.counters.scale.factor()))?.backward()?;
        let waiting = Instant::now();
        match pending {
            Some(pending) => pending.finish(&mut self.gradients)?,
            None => {
                self.gradients.add(&self.vars, &gradients)?;
                if last {
                    self.gradients.reduce(&*ranks)?;
                }
            }
        }
        if last {
            figures.communicated += waiting.elapsed();
        }
        Ok(loss)
    }

    /// Notes a step that was not finite. Where the loss scale was to blame for it, it is not one of those that end a run.
    fn skip(&mut self, loss: f64, scale_halved: bool) -> Result<()> {
        self.counters.skipped += 1;
        if scale_halved {
            return Ok(());
        }
        self.counters.skipped_in_row += 1;
        let culprit =
            self.gradients.not_finite()?.map_or(format!("the loss is {loss}"), |name| format!("the gradient of {name} is not finite"));
        if self.counters.skipped_in_row >= self.config.patience {
            let (step, in_row) = (self.step, self.counters.skipped_in_row);
            return Err(Error::Input(format!("training stopped at step {step}: {culprit}, {in_row} steps in a row")));
        }
        if self.is_first_rank() {
            eprintln!("warning: step {} skipped: {culprit}", self.step);
        }
        Ok(())
    }

    /// Checks that all ranks have the same parameters.
    fn compare(&self) -> Result<()> {
        match self.resources.ranks.size() {
            1 => Ok(()),
            _ => check_replicas(&*self.resources.ranks, self.step, replica::checksum(&self.vars)?),
        }
    }

    /// After the step is saved: whatever happens here, no training is lost.
    fn evaluate<T: Task>(&mut self, task: &mut T, reporter: &mut Reporter) -> Result<Flow> {
        let average = self.average()?;
        let evaluation = task.evaluate(&self.parameters(average.clone()), &*self.resources.ranks)?;
        if evaluation.is_empty() {
            return Ok(Flow::Continue);
        }
        let mut flow = Flow::Continue;
        if self.is_first_rank() {
            let (step, mut more) = (self.step, callback::Figures::new());
            flow = self.callbacks.ask(|callback| callback.on_evaluation(step, &evaluation, &mut more))?;
            let mut all = evaluation.clone();
            for (name, x) in more {
                all.figures.entry(name.to_owned()).or_insert(x);
            }
            reporter.evaluation(step, &all)?;
        }
        self.note(&evaluation, average)?;
        self.all_hear(flow)
    }

    /// Keeps the score of parameters with that average, where it decides.
    fn note(&mut self, evaluation: &Evaluation, average: BTreeMap<String, Tensor>) -> Result<()> {
        let Some(cost) = evaluation.score.map(Score::cost) else { return Ok(()) };
        self.counters.plateau = self.counters.plateau.after(cost, &self.config.early_stop);
        let better = cost.is_finite() && self.best.as_ref().is_none_or(|best| cost < best.cost);
        if better && self.directory.is_none() && self.config.early_stop.patience > 0 {
            self.best = Some(Best { step: self.step, cost, average: average.into_iter().collect() });
        }
        self.saves.as_mut().map_or(Ok(()), |saves| saves.set_score(self.step, cost))
    }

    /// The averaged parameters to ship: those with the best score where the run has stopped because scores no longer improved, else those
    /// of the last step. Gives their step, too. All ranks have to call this.
    pub fn shipped(&self, outcome: Outcome) -> Result<(u64, BTreeMap<String, Tensor>)> {
        let best = match outcome {
            Outcome::Stopped(Reason::NoImprovement) => self.best()?,
            _ => None,
        };
        match best {
            Some(best) => Ok((best.step, best.average.into_iter().collect())),
            None => Ok((self.step, self.average()?)),
        }
    }
}

/// Runs `f` on a thread of a Rayon pool with as many threads as there are, whose stacks are for deep graphs: Candle walks and drops the graph of an unroll by
/// recursion, and a thread of the pool shares its own work without handing it to another first. A thread of a pool already runs it itself: whoever made
/// that pool chose its stack.
pub fn with_large_stack<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    const STACK_BYTES: usize = 1 << 30; // Reserved, not resident: pages are taken as the recursion reaches them.
    if rayon::current_thread_index().is_some() {
        return f();
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(rayon::current_num_threads())
        .stack_size(STACK_BYTES)
        .thread_name(|number| format!("training-{number}"))
        .build()
        .map_err(|e| Error::Input(format!("cannot start the threads of the training: {e}")))?;
    pool.install(f)
}

#[cfg(test)]
mod tests;
