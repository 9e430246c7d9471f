//! A session that plans: two networks, or one and the rules, run by the engine, and a search between them.

#[cfg(test)]
mod tests;

use super::rules::{ByRules, Rules};
use super::{Branch, Dynamics, Expansion, Noise, Roots, Search, Settings, Sizes};
use crate::device::DeviceChoice;
use crate::engine::{Model, Placement, Runner};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::DType;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Rows for which another thread is worth its start.
const ROWS_OF_A_THREAD: usize = 8;

/// How a planner is set up. Everything is allocated at the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannerOptions {
    /// Games side by side, B: all of them are planned for in every call.
    pub batch: usize,
    /// How every plan is searched for.
    pub search: Settings,
    /// What the value behind an action counts: -1 between two players who move in turn, some 0.997 otherwise.
    pub discount: f32,
    /// Where the networks run. Threads of the CPU take games of their own, with trees and network, so that they meet once
    /// a plan. A plan is the same on any number of them but for the rounding of the networks' products.
    pub place: Placement,
}

/// Plans with two networks.
///
/// - `initial` reads an observation and gives `embedding` `[E]`, `logits` `[A]` and `value` `[1]`. It may carry a state from move to move.
/// - `recurrent`, for [`new`](Self::new), reads `embedding` `[E]` and the indices `action` `[1]`, and gives `embedding` `[E]`,
///   `reward` `[1]`, `logits` `[A]` and `value` `[1]`: rewards and values as numbers, whatever they were learnt as.
///
/// ```
/// use candle_models::candle_core::Device;
/// use candle_models::exec::{Executor, program::Output};
/// use candle_models::network::{Layers, Network};
/// use candle_models::nn::{Linear, Params};
/// use candle_models::ops::Activation;
/// use candle_models::prelude::*;
/// use candle_models::random::Random;
/// use candle_models::search::{Gumbel, Noise, Planner, PlannerOptions, Method, Settings};
/// use std::sync::Arc;
///
/// /// Four values of a board to eight of an embedding; three actions.
/// struct Initial([Linear; 3]);
///
/// impl Layers for Initial {
///     fn pass<E: Executor>(&self, e: &mut E) -> candle_models::Result<Vec<Output<E::V, E::I>>> {
///         let board = e.input("board")?;
///         let embedding = e.linear(&board, &self.0[0], Activation::Relu)?;
///         let logits = e.linear(&embedding, &self.0[1], Activation::None)?;
///         let value = e.linear(&embedding, &self.0[2], Activation::None)?;
///         Ok([embedding, logits, value].map(Output::Floats).into())
///     }
/// }
///
/// struct Recurrent(Tensor, [Linear; 4]);
///
/// impl Layers for Recurrent {
///     fn pass<E: Executor>(&self, e: &mut E) -> candle_models::Result<Vec<Output<E::V, E::I>>> {
///         let (embedding, action) = (e.input("embedding")?, e.indices("action")?);
///         let embedding = e.lookup_linear(&embedding, &action, &[&self.0], &self.1[0])?; // an action is a column of its own
///         let reward = e.linear(&embedding, &self.1[1], Activation::None)?;
///         let logits = e.linear(&embedding, &self.1[2], Activation::None)?;
///         let value = e.linear(&embedding, &self.1[3], Activation::None)?;
///         Ok([embedding, reward, logits, value].map(Output::Floats).into())
///     }
/// }
///
/// # fn main() -> candle_models::Result<()> {
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// let linear = |name, inputs, outputs| Linear::new(inputs, outputs, &params.pp(name));
/// let floats = |name: &str, width| TensorSpec::f32(name, &[width]);
/// let [embedding, logits, reward, value] = [("embedding", 8), ("logits", 3), ("reward", 1), ("value", 1)].map(|(n, w)| floats(n, w));
///
/// let inputs = vec![floats("board", 4)];
/// let signature = Signature { inputs, outputs: vec![embedding.clone(), logits.clone(), value.clone()], state: vec![] };
/// let layers = Initial([linear("encoder", 4, 8)?, linear("logits", 8, 3)?, linear("value", 8, 1)?]);
/// let initial = Arc::new(Network::of(("initial", &()), signature, &Device::Cpu, layers)?);
///
/// let inputs = vec![embedding.clone(), TensorSpec::u32("action", &[1]).below(&[3])];
/// let signature = Signature { inputs, outputs: vec![embedding, reward, logits, value], state: vec![] };
/// let one_hot = Tensor::eye(3, DType::F32, &Device::Cpu)?;
/// let heads = [linear("dynamics", 11, 8)?, linear("reward", 8, 1)?, linear("next.logits", 8, 3)?, linear("next.value", 8, 1)?];
/// let recurrent = Arc::new(Network::of(("recurrent", &()), signature, &Device::Cpu, Recurrent(one_hot, heads))?);
///
/// let search = Settings { method: Method::Gumbel(Gumbel::default()), simulations: 20, max_depth: None };
/// let options = PlannerOptions { batch: 2, search, discount: -1.0, place: Placement::cpu(1) };
/// let mut planner = Planner::new(initial, recurrent, &options)?;
/// planner.floats_mut("board", 0)?.copy_from_slice(&[1.0, 0.0, 0.0, 0.0]);
/// planner.floats_mut("board", 1)?.copy_from_slice(&[0.0, 0.0, 0.5, 0.0]);
/// planner.legal_mut(1)?[2] = false;
/// let games = Random::new(7);
/// let plan = planner.plan(Noise::Rows(&[games.at(0), games.at(1)]))?;
/// assert_eq!(plan.visits(0).iter().sum::<u32>(), 20);
/// assert_eq!(plan.visits(1)[2], 0);
/// let drawing = plan.tree(0).svg();
/// # assert!(drawing.starts_with("<svg"));
/// # Ok(())
/// # }
/// ```
pub struct Planner {
    lanes: Vec<Lane>,
    /// Rows of every lane but the last.
    rows_each: usize,
    search: Settings,
}

/// Games of one thread.
struct Lane {
    initial: Runner,
    outputs: Outputs,
    ahead: Ahead,
    search: Search,
    /// Games that begin anew with the next plan.
    resets: Vec<bool>,
    legal: Vec<bool>,
    logits: Vec<f32>,
    values: Vec<f32>,
    embeddings: Vec<f32>,
}

/// What says what comes of an action.
enum Ahead {
    Learnt(Recurrent),
    Known(ByRules),
}

impl Dynamics for Ahead {
    fn expand(&mut self, expansion: &mut Expansion) -> Result<()> {
        match self {
            Self::Learnt(recurrent) => recurrent.expand(expansion),
            Self::Known(rules) => rules.expand(expansion),
        }
    }

    fn bounds(&self) -> [f32; 2] {
        match self {
            Self::Learnt(recurrent) => recurrent.bounds(),
            Self::Known(rules) => rules.bounds(),
        }
    }
}

/// The network of the dynamics, at its place.
struct Recurrent {
    runner: Runner,
    /// Among a row's inputs of floats, and of indices.
    embedding: Range<usize>,
    action: usize,
    outputs: Outputs,
    reward: usize,
    discount: f32,
    resets: Vec<bool>,
}

/// Where outputs lie among all of a row.
pub(super) struct Outputs {
    embedding: Range<usize>,
    pub(super) logits: Range<usize>,
    pub(super) value: usize,
}

impl Outputs {
    pub(super) fn of(runner: &Runner) -> Result<Self> {
        let place = |name| runner.output_place(name, DType::F32);
        Ok(Self { embedding: place("embedding")?, logits: place("logits")?, value: place("value")?.start })
    }
}

impl Planner {
    /// Prepares both networks for all games.
    ///
    /// # Errors
    /// If an option is out of range, or the networks do not fit the description or each other; what it takes to make a
    /// [`Runner`] of each.
    pub fn new(initial: Arc<dyn Model>, recurrent: Arc<dyn Model>, options: &PlannerOptions) -> Result<Self> {
        let discount = options.discount;
        let sizes = check(initial.signature(), recurrent.signature())?;
        Self::with(&initial, sizes, options, |rows, place| {
            let runner = Runner::on(recurrent.clone(), (rows, 1), place)?;
            Ok(Ahead::Learnt(Recurrent {
                embedding: runner.input_place("embedding", DType::F32)?,
                action: runner.input_place("action", DType::U32)?.start,
                outputs: Outputs::of(&runner)?,
                reward: runner.output_place("reward", DType::F32)?.start,
                discount,
                resets: vec![false; rows],
                runner,
            }))
        })
    }

    /// Prepares one network for all games, which reads what a game of those rules shows as its only input, and remembers nothing.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the network reads something else.
    pub fn by_rules(initial: Arc<dyn Model>, rules: &Arc<dyn Rules>, options: &PlannerOptions) -> Result<Self> {
        let sizes = (actions(initial.signature())?, sole(initial.signature())?.width());
        Self::with(&initial, sizes, options, |rows, place| {
            Ok(Ahead::Known(ByRules::new(&initial, rules, (rows, place), options.discount)?))
        })
    }

    fn with(
        initial: &Arc<dyn Model>,
        (actions, embedding): (usize, usize),
        options: &PlannerOptions,
        ahead: impl Fn(usize, &Placement) -> Result<Ahead>,
    ) -> Result<Self> {
        let PlannerOptions { batch, search, discount, place } = *options;
        search.validate()?;
        if batch == 0 {
            return Err(Error::config("batch", "expected at least 1, found 0"));
        }
        if !discount.is_finite() {
            return Err(Error::config("discount", format!("expected a finite number, found {discount}")));
        }
        let most = if place.device == DeviceChoice::Cpu { place.threads } else { 1 };
        let rows_each = batch.div_ceil(most.min(batch.div_ceil(ROWS_OF_A_THREAD)).max(1));
        let place = if rows_each < batch { Placement { threads: 1, ..place } } else { place };
        let lane = |first: usize| {
            let rows = rows_each.min(batch - first);
            let initial = Runner::on(initial.clone(), (rows, 1), &place)?;
            Ok(Lane {
                outputs: Outputs::of(&initial)?,
                initial,
                ahead: ahead(rows, &place)?,
                search: Search::new(Sizes { batch: rows, simulations: search.simulations, actions, embedding })?.counting_from(first),
                resets: vec![true; rows],
                legal: vec![true; rows * actions],
                logits: vec![0.0; rows * actions],
                values: vec![0.0; rows],
                embeddings: vec![0.0; rows * embedding],
            })
        };
        let lanes = (0..batch).step_by(rows_each).map(lane).collect::<Result<_>>()?;
        Ok(Self { lanes, rows_each, search })
    }

    /// An input of floats of the observation of a game, to be filled before a plan. It keeps its values.
    ///
    /// # Errors
    /// If there is no such input or game.
    pub fn floats_mut(&mut self, name: &str, row: usize) -> Result<&mut [f32]> {
        let (lane, row) = self.lane_mut(row)?;
        lane.initial.floats_mut(name, row)
    }

    /// An input of indices, likewise.
    ///
    /// # Errors
    /// If there is no such input or game.
    pub fn indices_mut(&mut self, name: &str, row: usize) -> Result<&mut [u32]> {
        let (lane, row) = self.lane_mut(row)?;
        lane.initial.indices_mut(name, row)
    }

    /// Which actions of a game may be taken now, `[A]`: all of them until it is set. It keeps its values.
    ///
    /// # Errors
    /// If there is no such game.
    pub fn legal_mut(&mut self, row: usize) -> Result<&mut [bool]> {
        let (lane, row) = self.lane_mut(row)?;
        let actions = lane.search.sizes().actions;
        Ok(&mut lane.legal[row * actions..(row + 1) * actions])
    }

    /// Begins a game anew: the next plan's observation is its first. It matters to a network with memory.
    ///
    /// # Errors
    /// If there is no such game.
    pub fn reset(&mut self, row: usize) -> Result<()> {
        let (lane, row) = self.lane_mut(row)?;
        lane.resets[row] = true;
        Ok(())
    }

    /// Plans for all games, one move on: with an address for each, or as in evaluation.
    ///
    /// # Errors
    /// If an input was not set or is out of range, and as [`Search::run`].
    pub fn plan(&mut self, noise: Noise) -> Result<Plan<'_>> {
        let Self { lanes, rows_each, search } = self;
        let batch = lanes.iter().map(|lane| lane.resets.len()).sum();
        noise.check(batch, lanes[0].search.sizes().actions)?;
        let each = |(number, lane): (usize, &mut Lane)| {
            let first = number * *rows_each;
            let noise = noise.part(first..first + lane.resets.len(), batch);
            lane.plan(search, noise)
        };
        match &mut lanes[..] {
            [lane] => each((0, lane))?,
            lanes => lanes.par_iter_mut().enumerate().try_for_each(each)?,
        }
        Ok(Plan { planner: self })
    }

    fn lane_mut(&mut self, row: usize) -> Result<(&mut Lane, usize)> {
        let rows_each = self.rows_each;
        let lane = self.lanes.get_mut(row / rows_each).filter(|lane| row % rows_each < lane.resets.len());
        lane.map(|lane| (lane, row % rows_each)).ok_or_else(|| Error::Input(format!("there is no game {row}")))
    }
}

impl Lane {
    fn plan(&mut self, settings: &Settings, noise: Noise) -> Result<()> {
        self.initial.step(&self.resets)?;
        self.resets.fill(false);
        let (actions, width) = (self.outputs.logits.len(), self.search.sizes().embedding);
        for row in 0..self.resets.len() {
            let found = self.initial.outputs(row);
            self.logits[row * actions..][..actions].copy_from_slice(&found[self.outputs.logits.clone()]);
            self.values[row] = found[self.outputs.value];
            let embedding = match &self.ahead {
                Ahead::Learnt(_) => &found[self.outputs.embedding.clone()],
                Ahead::Known(rules) => &self.initial.inputs_mut(row).0[rules.seen.clone()],
            };
            self.embeddings[row * width..][..width].copy_from_slice(embedding);
        }
        let Self { logits, values, embeddings, legal, .. } = self;
        let roots = Roots { logits, values, embeddings, legal };
        self.search.run(&roots, settings, noise, &mut self.ahead).map(|_| ())
    }
}

impl Dynamics for Recurrent {
    fn expand(&mut self, e: &mut Expansion) -> Result<()> {
        for row in 0..e.rows() {
            let (floats, indices) = self.runner.inputs_mut(row);
            floats[self.embedding.clone()].copy_from_slice(e.embeddings(row).0);
            indices[self.action] = e.actions()[row];
        }
        self.runner.step(&self.resets)?;
        e.discounts.fill(self.discount);
        let actions = self.outputs.logits.len();
        for row in 0..e.rows() {
            let found = self.runner.outputs(row);
            e.embeddings(row).1.copy_from_slice(&found[self.outputs.embedding.clone()]);
            e.logits[row * actions..][..actions].copy_from_slice(&found[self.outputs.logits.clone()]);
            (e.rewards[row], e.values[row]) = (found[self.reward], found[self.outputs.value]);
        }
        Ok(())
    }
}

/// The actions of an initial network.
fn actions(initial: &Signature) -> Result<usize> {
    let width = |name: &str| {
        let found = initial.outputs.iter().find(|spec| spec.name == name && spec.dtype() == DType::F32);
        found.map(TensorSpec::width).ok_or_else(|| Error::tensor(name, "floats among the outputs of the network", "none of that name"))
    };
    match width("value")? {
        1 => width("logits"),
        found => Err(Error::tensor("value", "1 value", found)),
    }
}

/// The only input of a network without memory, of floats.
pub(super) fn sole(initial: &Signature) -> Result<&TensorSpec> {
    match (&initial.inputs[..], initial.state.first()) {
        ([seen], None) if seen.dtype() == DType::F32 => Ok(seen),
        (_, Some(state)) => Err(Error::tensor(&state.name, "no state where the rules are known: what is seen says all", "one")),
        (inputs, None) => {
            let names: Vec<&str> = inputs.iter().map(|spec| spec.name.as_str()).collect();
            Err(Error::Input(format!("where the rules are known, expected one input of floats, found {names:?}")))
        }
    }
}

/// Actions and the embedding's values of two networks that plan together.
fn check(initial: &Signature, recurrent: &Signature) -> Result<(usize, usize)> {
    let width = |specs: &[TensorSpec], dtype, name: &str, of: &str| {
        let found = specs.iter().find(|spec| spec.name == name && spec.dtype() == dtype);
        found.map(TensorSpec::width).ok_or_else(|| Error::tensor(name, format!("{dtype:?} {of}"), "none of that name"))
    };
    let fits = |name, expected: usize, found: usize, of: &str| {
        if found == expected { Ok(()) } else { Err(Error::tensor(name, format!("{expected} values {of}"), found)) }
    };
    let of = "among the outputs of the initial network";
    let embedding = width(&initial.outputs, DType::F32, "embedding", of)?;
    let actions = width(&initial.outputs, DType::F32, "logits", of)?;
    fits("value", 1, width(&initial.outputs, DType::F32, "value", of)?, of)?;
    let of = "among the inputs of the recurrent network";
    fits("embedding", embedding, width(&recurrent.inputs, DType::F32, "embedding", of)?, of)?;
    fits("action", 1, width(&recurrent.inputs, DType::U32, "action", of)?, of)?;
    let of = "among the outputs of the recurrent network";
    for (name, expected) in [("embedding", embedding), ("logits", actions), ("reward", 1), ("value", 1)] {
        fits(name, expected, width(&recurrent.outputs, DType::F32, name, of)?, of)?;
    }
    match recurrent.state.first() {
        Some(state) => Err(Error::tensor(&state.name, "no state in the recurrent network: its embedding is all that it knows", "one")),
        None => Ok((actions, embedding)),
    }
}

/// What was planned. Rows are the games.
pub struct Plan<'a> {
    planner: &'a Planner,
}

impl<'a> Plan<'a> {
    fn search(&self, row: usize) -> (&'a Search, usize) {
        (&self.planner.lanes[row / self.planner.rows_each].search, row % self.planner.rows_each)
    }

    /// The action to take in a game.
    ///
    /// # Panics
    /// If there is no such game, here and below.
    pub fn action(&self, row: usize) -> u32 {
        let (search, row) = self.search(row);
        search.found().actions()[row]
    }

    /// The value of where the game stands.
    pub fn value(&self, row: usize) -> f32 {
        let (search, row) = self.search(row);
        search.found().values()[row]
    }

    /// How often each action was taken, `[A]`.
    pub fn visits(&self, row: usize) -> &'a [u32] {
        let (search, row) = self.search(row);
        search.found().visits(row)
    }

    /// What a network is to learn as its prior, `[A]`.
    pub fn weights(&self, row: usize) -> &'a [f32] {
        let (search, row) = self.search(row);
        search.found().weights(row)
    }

    /// What each action is worth, `[A]`; 0 where it was not taken.
    pub fn q(&self, row: usize) -> &'a [f32] {
        let (search, row) = self.search(row);
        search.found().q(row)
    }

    /// The tree, to be looked at.
    pub fn tree(&self, row: usize) -> Branch {
        let (search, row) = self.search(row);
        search.found().tree(row)
    }
}
