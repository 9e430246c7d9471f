//! Planning by Monte-Carlo tree search with a learned model: MuZero and Gumbel MuZero, for many roots at once.
//!
//! A [`Search`] owns the trees of a batch in arrays that are allocated once. In every simulation each tree walks down to an action that has
//! not been tried, the model answers for all of them in one call, and the values go back up. A row's result depends on its own root and on
//! its own random address alone.
//!
//! ```
//! use candle_models::search::{Expansion, Gumbel, Noise, Method, Roots, Search, Settings, Sizes};
//!
//! # fn main() -> candle_models::Result<()> {
//! // A walk along 0, 1, 2, ... : the second of two actions goes on and earns 1, the first goes back.
//! let mut walk = |e: &mut Expansion| {
//!     for row in 0..e.rows() {
//!         let right = e.actions()[row] == 1;
//!         let (from, to) = e.embeddings(row);
//!         to[0] = if right { from[0] + 1.0 } else { from[0] - 1.0 };
//!         e.rewards[row] = if right { 1.0 } else { 0.0 };
//!         e.discounts[row] = 0.9;
//!         e.values[row] = 0.0;
//!         e.logits[2 * row..2 * row + 2].fill(0.0);
//!     }
//!     Ok(())
//! };
//! let mut search = Search::new(Sizes { batch: 1, simulations: 16, actions: 2, embedding: 1 })?;
//! let settings = Settings { method: Method::Gumbel(Gumbel::default()), simulations: 16, max_depth: None };
//! let roots = Roots { logits: &[0.0, 0.0], values: &[0.0], embeddings: &[5.0], legal: &[true, true] };
//! let found = search.run(&roots, &settings, Noise::None, &mut walk)?;
//! assert_eq!(found.actions(), [1]);
//! assert_eq!(found.visits(0).iter().sum::<u32>(), 16);
//! # Ok(())
//! # }
//! ```

mod inspect;
mod method;
mod noise;
mod planner;
mod rules;
#[cfg(test)]
mod tests;
mod tile;
mod tree;

pub use inspect::Branch;
pub use method::{Gumbel, Method, Puct, Settings};
pub use noise::Noise;
pub use planner::{Plan, Planner, PlannerOptions};
pub use rules::{Outcome, Rules};

use crate::{Error, Result};
use method::sequential_halving;
use std::ops::Range;
use tile::{Known, Tile, spread};
use tree::{Edge, Evaluation, Node, Trees};

/// How much a search can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Roots at once, B.
    pub batch: usize,
    /// Simulations from every root, S.
    pub simulations: usize,
    /// Actions of every state, A.
    pub actions: usize,
    /// Values of the model's embedding of a state, E; 0 for a model that remembers nothing.
    pub embedding: usize,
}

/// Where searches begin: n roots, at most as many as the search was made for.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'a> {
    /// The prior, `[n, A]`.
    pub logits: &'a [f32],
    /// `[n]`.
    pub values: &'a [f32],
    /// `[n, E]`.
    pub embeddings: &'a [f32],
    /// Which actions may be taken, `[n, A]`: at least one of each root. Below the root it is the model's logits that tell.
    pub legal: &'a [bool],
}

/// A model that says what comes of an action: the recurrent inference of MuZero. A closure over an [`Expansion`] is one.
pub trait Dynamics {
    /// Evaluates an action of every row: reads embeddings of parents and actions, and writes everything else.
    ///
    /// # Errors
    /// Whatever the model cannot do; the search ends with it.
    fn expand(&mut self, expansion: &mut Expansion) -> Result<()>;

    /// What all that comes can add up to in any state, for the one who moves: at least, and at most. Where a model says for certain
    /// [what a state can be worth](Expansion::bounds), moves that win or lose by force are known for what they are.
    fn bounds(&self) -> [f32; 2] {
        tree::UNBOUNDED
    }
}

impl<F: FnMut(&mut Expansion) -> Result<()>> Dynamics for F {
    fn expand(&mut self, expansion: &mut Expansion) -> Result<()> {
        self(expansion)
    }
}

/// One action of every row, to be evaluated.
pub struct Expansion<'a> {
    /// To be written: what the action earns, for the one who moves, `[n]`.
    pub rewards: &'a mut [f32],
    /// To be written: what the value behind it counts, `[n]`. Between two players it is -1, behind the end of a game 0.
    pub discounts: &'a mut [f32],
    /// To be written: the value of the state behind it, `[n]`, for the one who moves there.
    pub values: &'a mut [f32],
    /// To be written: the prior there, `[n, A]`. Of an action that cannot be taken it is `f32::MIN`, not an infinity.
    pub logits: &'a mut [f32],
    /// To be written where it is certain, and not just what the model believes: what all that comes behind the action can add up to at least and at most, for
    /// the one who moves there, `[n]`. It is nothing where a game is over, and what [`Dynamics::bounds`] says before it is written.
    pub bounds: &'a mut [[f32; 2]],
    actions: &'a [u32],
    edges: &'a [Edge],
    embeddings: &'a mut [f32],
    width: usize,
    nodes_each: usize,
}

impl Expansion<'_> {
    /// How many rows there are, n.
    pub fn rows(&self) -> usize {
        self.actions.len()
    }

    /// The actions, `[n]`.
    pub fn actions(&self) -> &[u32] {
        self.actions
    }

    /// The embedding of a row's state, `[E]`, and where that of the state behind the action is to be written.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn embeddings(&mut self, row: usize) -> (&[f32], &mut [f32]) {
        let Edge { parent, child, .. } = self.edges[row];
        // A child has a greater number than its parent.
        let (parents, children) = self.embeddings[row * self.nodes_each * self.width..].split_at_mut(child as usize * self.width);
        (&parents[parent as usize * self.width..][..self.width], &mut children[..self.width])
    }
}

/// Trees of a batch of roots, and what a search works in.
pub struct Search {
    sizes: Sizes,
    /// The number of its first root, where it searches for a part of more: messages count from there.
    first: usize,
    /// Roots of the last run.
    rows: usize,
    trees: Trees,
    /// `[B, S + 1, E]`.
    embeddings: Vec<f32>,
    edges: Vec<Edge>,
    actions: Vec<u32>,
    rewards: Vec<f32>,
    discounts: Vec<f32>,
    values: Vec<f32>,
    logits: Vec<f32>,
    bounds: Vec<[f32; 2]>,
    /// `[B, A]`: what is added to the score of a root's actions, negative infinity where they are not legal.
    extra: Vec<f32>,
    /// `[B]`: what breaks ties in a row.
    ties: Vec<u32>,
    /// `[B]`: how many actions a root considers.
    considered: Vec<usize>,
    /// Visits that sequential halving asks for, `[1 + most considered, simulations]`.
    halving: Vec<u32>,
    /// PUCT's factor for a number of visits.
    factors: Vec<f32>,
    inside: Tile,
    roots: Tile,
    visits: Vec<u32>,
    q: Vec<f32>,
    weights: Vec<f32>,
}

impl Search {
    /// Allocates everything.
    ///
    /// # Errors
    /// If a size but that of the embedding is 0, or all together are beyond what memory can address.
    pub fn new(sizes: Sizes) -> Result<Self> {
        let Sizes { batch, simulations, actions, embedding } = sizes;
        for (field, size) in [("batch", batch), ("simulations", simulations), ("actions", actions)] {
            if size == 0 {
                return Err(Error::config(field, "expected at least 1, found 0"));
            }
        }
        let values = actions.checked_mul(3).map(|edges| edges.max(embedding));
        let bytes =
            [batch, simulations.saturating_add(1), size_of::<f32>()].into_iter().try_fold(values.unwrap_or(usize::MAX), usize::checked_mul);
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize)
            || simulations >= u32::MAX as usize
            || batch * (simulations + 1) > u32::MAX as usize
        {
            return Err(Error::config("search", format!("{sizes:?} do not fit the memory")));
        }
        let floats = |count| vec![0.0; count];
        Ok(Self {
            sizes,
            first: 0,
            rows: 0,
            trees: Trees::new(&sizes),
            embeddings: floats(batch * (simulations + 1) * embedding),
            edges: vec![Edge { parent: 0, action: 0, child: 0 }; batch],
            actions: vec![0; batch],
            rewards: floats(batch),
            discounts: floats(batch),
            values: floats(batch),
            logits: floats(batch * actions),
            bounds: vec![tree::UNBOUNDED; batch],
            extra: floats(batch * actions),
            ties: vec![0; batch],
            considered: vec![0; batch],
            halving: Vec::with_capacity((actions + 1) * simulations),
            factors: Vec::with_capacity(simulations + 2),
            inside: Tile::new(actions),
            roots: Tile::new(actions),
            visits: vec![0; batch * actions],
            q: floats(batch * actions),
            weights: floats(batch * actions),
        })
    }

    /// How much it can hold.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Searches from every root. Nothing is allocated.
    ///
    /// # Errors
    /// If the settings are out of range or ask for more simulations than there is room for; if a root has a wrong shape, a number that is not
    /// finite or no legal action; if the model fails or gives a number that is not finite.
    pub fn run(&mut self, roots: &Roots, settings: &Settings, noise: Noise, model: &mut impl Dynamics) -> Result<Found<'_>> {
        let rows = self.check(roots, settings, noise)?;
        self.trees.bounds = model.bounds();
        self.begin(roots, settings, noise);
        for simulation in 1..=settings.simulations {
            self.choose_at_roots(rows, settings, simulation - 1);
            self.simulate(rows, settings, simulation, model)?;
        }
        self.conclude(rows, settings, noise);
        self.rows = rows;
        Ok(self.found())
    }

    /// The same for a part of more roots, of which it has those from `first` on.
    fn counting_from(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// What the last run has found, if it has not failed.
    fn found(&self) -> Found<'_> {
        Found { search: self, rows: self.rows }
    }

    /// The number of roots.
    fn check(&self, roots: &Roots, settings: &Settings, noise: Noise) -> Result<usize> {
        settings.validate()?;
        let Sizes { batch, simulations, actions, embedding } = self.sizes;
        if settings.simulations > simulations {
            return Err(Error::config("simulations", format!("expected at most {simulations}, found {}", settings.simulations)));
        }
        let rows = roots.values.len();
        if rows == 0 || rows > batch {
            return Err(Error::tensor("value", format!("from 1 to {batch} roots"), rows));
        }
        let shape = |name, width, found| {
            if found == rows * width { Ok(()) } else { Err(Error::tensor(name, format!("[{rows}, {width}]"), format!("{found} values"))) }
        };
        shape("logits", actions, roots.logits.len())?;
        shape("embedding", embedding, roots.embeddings.len())?;
        shape("legal", actions, roots.legal.len())?;
        noise.check(rows, actions)?;
        if let Noise::Given(numbers) = noise {
            self.finite("noise", numbers, actions, 0)?;
        }
        for (name, values, width) in
            [("logits", roots.logits, actions), ("value", roots.values, 1), ("embedding", roots.embeddings, embedding)]
        {
            self.finite(name, values, width, 0)?;
        }
        match roots.legal.chunks_exact(actions).position(|legal| !legal.contains(&true)) {
            Some(row) => Err(Error::Input(format!("root {}: no action is legal", self.first + row))),
            None => Ok(rows),
        }
    }

    /// Refuses numbers that are not finite, of rows of that width; simulation 0 is the root.
    fn finite(&self, name: &str, values: &[f32], width: usize, simulation: usize) -> Result<()> {
        // Without a branch per value: this runs in every simulation.
        if values.iter().fold(true, |all, x| all & x.is_finite()) {
            return Ok(());
        }
        let at = values.iter().position(|x| !x.is_finite()).unwrap_or_default();
        let found = format!("{} of row {} in simulation {simulation}", values[at], self.first + at / width);
        Err(Error::tensor(name, "finite numbers", found))
    }

    /// Plants the trees.
    fn begin(&mut self, roots: &Roots, settings: &Settings, noise: Noise) {
        let Sizes { simulations, actions, embedding, .. } = self.sizes;
        self.prepare(settings);
        for (row, value) in roots.values.iter().enumerate() {
            let all = row * actions..(row + 1) * actions;
            let (legal, logits, extra) = (&roots.legal[all.clone()], &mut self.logits[all.clone()], &mut self.extra[all.clone()]);
            logits.copy_from_slice(&roots.logits[all]);
            noise.draw(&settings.method, row, extra);
            self.ties[row] = 0;
            if let Method::Puct(puct) = &settings.method {
                stir(logits, extra, noise.fraction(puct));
                extra.fill(0.0);
                self.ties[row] = noise.ties(row);
            }
            let most = logits.iter().zip(legal).filter(|(_, legal)| **legal).map(|(logit, _)| *logit).fold(f32::MIN, f32::max);
            for ((logit, extra), legal) in logits.iter_mut().zip(extra).zip(legal) {
                *logit = if *legal { (*logit - most).max(f32::MIN) } else { f32::MIN };
                *extra = if *legal { *extra } else { f32::NEG_INFINITY };
            }
            self.considered[row] = legal.iter().filter(|legal| **legal).count();
            self.trees.plant(row, *value, logits);
            self.embeddings[row * (simulations + 1) * embedding..][..embedding]
                .copy_from_slice(&roots.embeddings[row * embedding..][..embedding]);
        }
    }

    /// Tables of what depends on counts alone.
    fn prepare(&mut self, settings: &Settings) {
        self.halving.clear();
        self.factors.clear();
        match &settings.method {
            Method::Gumbel(gumbel) => {
                let most = gumbel.max_considered.min(self.sizes.actions);
                (0..=most).for_each(|considered| sequential_halving(considered, settings.simulations, &mut self.halving));
            }
            Method::Puct(puct) => self.factors.extend((0..settings.simulations + 2).map(|visits| puct.factor(visits))),
        }
    }

    /// Finds what every root does next, `done` simulations behind it.
    fn choose_at_roots(&mut self, rows: usize, settings: &Settings, done: usize) {
        let mut first = 0;
        while first < rows {
            let considered = |search: &Self, row: usize| match &settings.method {
                Method::Gumbel(gumbel) => {
                    let considered = search.considered[row].min(gumbel.max_considered);
                    search.halving[considered * settings.simulations + done]
                }
                Method::Puct(_) => 0,
            };
            first = self.take_roots(first..rows, considered);
            match &settings.method {
                Method::Puct(_) => self.roots.choose_by_puct(),
                Method::Gumbel(gumbel) => self.roots.choose_at_root(gumbel),
            }
            self.roots.choices().for_each(|(place, action)| self.trees.set_next(place as usize, action));
        }
    }

    /// Fills a tile with roots, which consider actions with so many visits; returns the first row that is left.
    fn take_roots(&mut self, mut rows: Range<usize>, considered: impl Fn(&Self, usize) -> u32) -> usize {
        let actions = self.sizes.actions;
        self.roots.clear();
        while !rows.is_empty() && !self.roots.is_full() {
            let (row, place) = (rows.start, self.trees.place(rows.start, 0));
            let considered = considered(self, row) as f32;
            let known = Known { considered, ..known(&self.trees.nodes[place], place, &self.factors, self.ties[row]) };
            self.roots.push(known, self.trees.edges(place));
            self.roots.add_extra(&self.extra[row * actions..][..actions]);
            rows.start += 1;
        }
        rows.start
    }

    /// One simulation of every row.
    fn simulate(&mut self, rows: usize, settings: &Settings, simulation: usize, model: &mut impl Dynamics) -> Result<()> {
        let max_depth = settings.max_depth.unwrap_or(settings.simulations);
        for row in 0..rows {
            let edge = self.trees.descend(row, simulation as u32, max_depth);
            (self.edges[row], self.actions[row]) = (edge, edge.action);
        }
        let actions = self.sizes.actions;
        self.bounds[..rows].fill(self.trees.bounds);
        let mut expansion = Expansion {
            rewards: &mut self.rewards[..rows],
            discounts: &mut self.discounts[..rows],
            values: &mut self.values[..rows],
            logits: &mut self.logits[..rows * actions],
            bounds: &mut self.bounds[..rows],
            actions: &self.actions[..rows],
            edges: &self.edges[..rows],
            embeddings: &mut self.embeddings,
            width: self.sizes.embedding,
            nodes_each: self.trees.nodes_each,
        };
        model.expand(&mut expansion)?;
        let all =
            [("reward", &self.rewards, 1), ("discount", &self.discounts, 1), ("value", &self.values, 1), ("logits", &self.logits, actions)];
        for (name, values, width) in all {
            self.finite(name, &values[..rows * width], width, simulation)?;
        }
        self.learn(rows, settings);
        Ok(())
    }

    /// Takes the model's answers up every tree, and finds what the nodes on the way do next.
    fn learn(&mut self, rows: usize, settings: &Settings) {
        let actions = self.sizes.actions;
        self.inside.clear();
        for row in 0..rows {
            let evaluation = Evaluation {
                reward: self.rewards[row],
                discount: self.discounts[row],
                value: self.values[row],
                bounds: self.bounds[row],
                logits: &self.logits[row * actions..][..actions],
            };
            let root = self.trees.place(row, 0);
            let mut place = self.trees.evaluate(row, self.edges[row], &evaluation);
            let node = &self.trees.nodes[place];
            let (mut found, mut narrowed) = (node.within(evaluation.value), node.visits == 1 && node.bounds != self.trees.bounds);
            // With no visits below it, Gumbel's method takes the most likely action of the new node, as the tree has noted; PUCT draws among
            // equal ones.
            if matches!(settings.method, Method::Puct(_)) {
                self.renew(settings, row, place);
            }
            loop {
                place = self.trees.carry_up(row, place, &mut found, &mut narrowed);
                if place == root {
                    break;
                }
                self.renew(settings, row, place);
            }
        }
        self.choose_inside(settings);
    }

    /// Has a node's next action found, with those of others.
    fn renew(&mut self, settings: &Settings, row: usize, place: usize) {
        let ties =
            if self.ties[row] == 0 { 0 } else { spread(self.ties[row].wrapping_add(place as u32 - self.trees.place(row, 0) as u32)) | 1 };
        let node = &self.trees.nodes[place];
        self.inside.push(known(node, place, &self.factors, ties), self.trees.edges(place));
        if node.closed {
            (0..self.sizes.actions).filter(|action| self.trees.is_closed(row, place, *action)).for_each(|action| self.inside.close(action));
        }
        if self.inside.is_full() {
            self.choose_inside(settings);
        }
    }

    fn choose_inside(&mut self, settings: &Settings) {
        match &settings.method {
            Method::Puct(_) => self.inside.choose_by_puct(),
            Method::Gumbel(gumbel) => self.inside.choose_inside(gumbel),
        }
        self.inside.choices().for_each(|(place, action)| self.trees.set_next(place as usize, action));
        self.inside.clear();
    }

    /// Writes what was found: visits, values, what the prior is to become and the action to take.
    fn conclude(&mut self, rows: usize, settings: &Settings, noise: Noise) {
        let actions = self.sizes.actions;
        for row in 0..rows {
            let place = self.trees.place(row, 0);
            self.values[row] = self.trees.nodes[place].value;
            let (visits, q) = self.trees.edges(place).split_at(actions);
            let all = row * actions..(row + 1) * actions;
            self.q[all.clone()].copy_from_slice(&q[..actions]);
            let to = &mut self.visits[all.clone()];
            to.iter_mut().zip(visits).for_each(|(to, n)| *to = *n as u32);
            self.rule_out(row);
            if let Method::Puct(puct) = &settings.method {
                let (visits, extra) = (&self.visits[all.clone()], &self.extra[all.clone()]);
                let left = visits.iter().zip(extra).map(|(n, extra)| if *extra > f32::NEG_INFINITY { *n } else { 0 });
                // Where no simulation took what is left, all of it is as good.
                let none = u32::from(left.clone().all(|n| n == 0));
                let left = left.zip(extra).map(|(n, extra)| n + if *extra > f32::NEG_INFINITY { none } else { 0 });
                self.actions[row] = noise.act(puct, row, left.clone()) as u32;
                let sum = left.clone().sum::<u32>() as f32;
                self.weights[all].iter_mut().zip(left).for_each(|(to, n)| *to = n as f32 / sum);
            }
        }
        if let Method::Gumbel(gumbel) = &settings.method {
            self.conclude_gumbel(rows, gumbel);
        }
    }

    /// Takes actions of a root out of the choice that are certainly no better than another one, and perhaps worse.
    fn rule_out(&mut self, row: usize) {
        let (place, actions) = (self.trees.place(row, 0), self.sizes.actions);
        if !self.trees.nodes[place].closed {
            return;
        }
        let bounds = |action: usize| self.trees.bounds_of(row, place, action);
        for action in 0..actions {
            let Some([low, high]) = bounds(action) else { continue };
            let better = |[least, most]: [f32; 2]| least >= high && most > low;
            if (0..actions).filter_map(bounds).any(better) {
                self.extra[row * actions + action] = f32::NEG_INFINITY;
            }
        }
    }

    /// The best of the most visited actions, and the improved prior.
    fn conclude_gumbel(&mut self, rows: usize, gumbel: &Gumbel) {
        let actions = self.sizes.actions;
        let mut first = 0;
        while first < rows {
            let most = |search: &Self, row: usize| {
                let all = row * actions..(row + 1) * actions;
                let left = search.visits[all.clone()].iter().zip(&search.extra[all]).filter(|(_, extra)| **extra > f32::NEG_INFINITY);
                left.map(|(n, _)| *n).max().unwrap_or(0)
            };
            let end = self.take_roots(first..rows, most);
            self.roots.choose_at_root(gumbel);
            for (lane, (row, (_, action))) in (first..end).zip(self.roots.choices()).enumerate() {
                self.actions[row] = action;
                let all = row * actions..(row + 1) * actions;
                let (weights, legal) = (&mut self.weights[all.clone()], self.extra[all].iter().map(|extra| *extra > f32::NEG_INFINITY));
                let logits = self.roots.improved(lane);
                let most = logits.clone().zip(legal.clone()).filter(|(_, legal)| *legal).map(|(logit, _)| logit).fold(f32::MIN, f32::max);
                weights
                    .iter_mut()
                    .zip(logits.zip(legal))
                    .for_each(|(to, (logit, legal))| *to = if legal { (logit - most).exp() } else { 0.0 });
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            first = end;
        }
    }
}

fn known(node: &Node, place: usize, factors: &[f32], ties: u32) -> Known {
    let factor = factors.get(node.visits as usize).copied().unwrap_or_default();
    Known { place: place as u32, raw: node.raw, value: node.value, factor, considered: 0.0, ties }
}

/// Mixes noise into a prior that is given by its logits.
fn stir(logits: &mut [f32], noise: &[f32], fraction: f32) {
    if fraction == 0.0 {
        return;
    }
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - most).exp());
    let sum: f32 = logits.iter().sum();
    for (logit, noise) in logits.iter_mut().zip(noise) {
        let stirred = (1.0 - fraction) * (*logit / sum) + fraction * noise;
        *logit = stirred.max(f32::MIN_POSITIVE).ln();
    }
}

/// What a search has found. Rows are the roots.
pub struct Found<'a> {
    search: &'a Search,
    rows: usize,
}

impl<'a> Found<'a> {
    /// How many rows there are, n.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The actions to take, `[n]`.
    pub fn actions(&self) -> &'a [u32] {
        &self.search.actions[..self.rows]
    }

    /// The values of the roots: the means of what the simulations found, `[n]`.
    pub fn values(&self) -> &'a [f32] {
        &self.search.values[..self.rows]
    }

    /// How often each action of a root was taken, `[A]`.
    ///
    /// # Panics
    /// If there is no such row, here and below.
    pub fn visits(&self, row: usize) -> &'a [u32] {
        &self.search.visits[self.range(row)]
    }

    /// What a network is to learn as its prior, `[A]`: PUCT's shares of visits, or Gumbel's improved prior.
    pub fn weights(&self, row: usize) -> &'a [f32] {
        &self.search.weights[self.range(row)]
    }

    /// What each action of a root is worth, `[A]`: its reward and the discounted value behind it. 0 where it was not taken.
    pub fn q(&self, row: usize) -> &'a [f32] {
        &self.search.q[self.range(row)]
    }

    /// The tree of a row, to be looked at.
    pub fn tree(&self, row: usize) -> Branch {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        Branch::root(&self.search.trees, row)
    }

    fn range(&self, row: usize) -> Range<usize> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        row * self.search.sizes.actions..(row + 1) * self.search.sizes.actions
    }
}
