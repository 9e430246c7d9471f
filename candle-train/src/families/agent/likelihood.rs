//! How likely recorded actions are: to an agent that sees each episode from its first frame to its last, and by frequencies counted on the
//! training episodes.

use super::episodes::Episodes;
use super::loader::{Specs, side_by_side};
use crate::parallel::{Communicator, gather};
use candle_core::{Device, Tensor};
use candle_models::agent::{Agent, AgentConfig};
use candle_models::ops::{self, LossGroup};
use candle_models::recurrent::Recurrent;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Episodes side by side, and frames of each in one pass.
const LANES: usize = 8;
const FRAMES: usize = 120;
/// Frames that the frequencies behind all actions count for among those behind one of them.
const PRIOR: f64 = 1.0;

/// Nats and hits, summed over frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Frames.
    pub frames: u64,
    /// Negative log-likelihood of each component, in nats.
    nats: Vec<f64>,
    /// Frames in which every column of a component had its most likely class.
    hits: Vec<u64>,
}

impl Likelihood {
    /// Of no frame.
    fn none(components: usize) -> Self {
        Self { frames: 0, nats: vec![0.0; components], hits: vec![0; components] }
    }

    /// Of the frames of both.
    fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.nats.iter_mut().zip(&other.nats).for_each(|(sum, x)| *sum += x);
        self.hits.iter_mut().zip(&other.hits).for_each(|(sum, x)| *sum += x);
    }

    /// Nats per frame of each component.
    pub fn nats(&self) -> impl Iterator<Item = f64> {
        self.nats.iter().map(|sum| sum / self.frames.max(1) as f64)
    }

    /// Nats per frame of the whole action.
    pub fn total(&self) -> f64 {
        self.nats().sum()
    }

    /// Share of the frames in which a component's most likely classes were taken.
    pub fn accuracy(&self) -> impl Iterator<Item = f64> {
        self.hits.iter().map(|hits| *hits as f64 / self.frames.max(1) as f64)
    }
}

/// The components of an action as parts of a loss.
pub fn groups(config: &AgentConfig) -> Vec<LossGroup> {
    let mut logit = 0;
    let group = |(column, component): (usize, &candle_models::agent::Component)| {
        let choice = component.choice(column);
        logit += choice.logits();
        LossGroup { logit: logit - choice.logits(), column, columns: choice.columns, classes: choice.classes }
    };
    config.components().map(group).collect()
}

/// How likely the agent finds the recorded actions, with state carried through each episode. Every rank measures some of the episodes; all get
/// the sum, to the bit what one rank alone would find.
///
/// # Errors
/// If the device or the other ranks fail.
pub fn agent(agent: &Agent, config: &AgentConfig, episodes: &Episodes, ranks: &dyn Communicator) -> Result<Likelihood> {
    let lengths = episodes.lengths();
    let mut order: Vec<usize> = (0..episodes.len()).collect();
    // Episodes of like length side by side: the shorter ones of a group wait for the longest.
    order.sort_by_key(|episode| std::cmp::Reverse(lengths[*episode]));
    let all: Vec<&[usize]> = order.chunks(LANES).collect();
    let own = all.iter().skip(ranks.rank()).step_by(ranks.size());
    let own: Vec<Likelihood> = own.map(|group| of_group(agent, config, (episodes, group, &lengths))).collect::<Result<_>>()?;
    let found = gather(ranks, &own)?;
    let mut sum = Likelihood::none(config.action.len());
    (0..all.len()).for_each(|group| sum.merge(&found[group % ranks.size()][group / ranks.size()]));
    Ok(sum)
}

fn of_group(agent: &Agent, config: &AgentConfig, (episodes, group, lengths): (&Episodes, &[usize], &[usize])) -> Result<Likelihood> {
    let (specs, groups) = (Specs::new(config), groups(config));
    let longest = group.iter().map(|episode| lengths[*episode]).max().unwrap_or(0);
    let mut state = agent.initial_state(group.len())?;
    let mut sum = Likelihood::none(groups.len());
    for start in (0..longest).step_by(FRAMES) {
        let frames = FRAMES.min(longest - start);
        let rows = |episode: &usize| (*episode, start.min(lengths[*episode])..(start + frames).min(lengths[*episode]));
        let lanes: Vec<_> = group.iter().map(rows).collect();
        let inputs = side_by_side(episodes, &specs, &lanes, frames)?;
        let (outputs, next) = agent.unroll(&inputs, &vec![false; group.len() * frames], &state)?;
        state = next.map(|_, tensor| Ok(tensor.detach()))?;
        let n = group.len() * frames;
        let logits = outputs.get("logits")?.to_device(&Device::Cpu)?.reshape((n, config.logits()))?.detach();
        let action = inputs.get("action")?.reshape((n, config.columns()))?;
        let counted = lanes.iter().enumerate().flat_map(|(lane, (_, rows))| lane * frames..lane * frames + rows.len());
        sum.add(&logits, &action, &groups, counted)?;
    }
    Ok(sum)
}

impl Likelihood {
    /// Counts some rows of `logits` `[n, width]` and the actions `[n, columns]` that were taken.
    fn add(&mut self, logits: &Tensor, action: &Tensor, groups: &[LossGroup], rows: impl Iterator<Item = usize>) -> Result<()> {
        let nats = ops::cross_entropy(logits, action, groups, 0.0)?.to_vec2::<f32>()?;
        let (logits, action) = (logits.to_vec2::<f32>()?, action.to_vec2::<u32>()?);
        for row in rows {
            self.frames += 1;
            for (g, group) in groups.iter().enumerate() {
                self.nats[g] += f64::from(nats[row][g]);
                let width = if group.classes == 2 { 1 } else { group.classes };
                let logits = logits[row][group.logit..][..group.columns * width].chunks(width);
                let hit = logits.zip(&action[row][group.column..]).all(|(logits, class)| most_likely(logits) == *class);
                self.hits[g] += u64::from(hit);
            }
        }
        Ok(())
    }
}

/// The most likely class of a column; one logit is that of class 1 against class 0.
fn most_likely(logits: &[f32]) -> u32 {
    match logits {
        [logit] => u32::from(*logit > 0.0),
        _ => logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |most, (i, x)| if *x > most.1 { (i as u32, *x) } else { most }).0,
    }
}

/// Frequencies of each column of an action.
#[derive(Debug, Clone)]
pub struct Frequencies {
    columns: Vec<Counts>,
    /// Columns of each component.
    components: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
struct Counts {
    classes: usize,
    frames: f64,
    of: BTreeMap<u32, f64>,
    /// Behind a class in the frame before.
    behind: BTreeMap<u32, (f64, BTreeMap<u32, f64>)>,
}

impl Counts {
    fn marginal(&self, class: u32) -> f64 {
        (self.of.get(&class).unwrap_or(&0.0) + 1.0) / (self.frames + self.classes as f64)
    }

    fn markov(&self, previous: u32, class: u32) -> f64 {
        let (frames, count) = self.behind.get(&previous).map_or((0.0, 0.0), |(frames, of)| (*frames, *of.get(&class).unwrap_or(&0.0)));
        (count + PRIOR * self.marginal(class)) / (frames + PRIOR)
    }
}

/// The most frequent of some classes.
fn most_frequent(of: &BTreeMap<u32, f64>) -> u32 {
    of.iter().fold((0, 0.0), |most, (class, count)| if *count > most.1 { (*class, *count) } else { most }).0
}

impl Frequencies {
    /// Those of some episodes.
    ///
    /// # Errors
    /// As [`Episodes::read`].
    pub fn count(config: &AgentConfig, episodes: &Episodes) -> Result<Self> {
        let mut columns: Vec<Counts> = config.classes().iter().map(|n| Counts { classes: *n as usize, ..Counts::default() }).collect();
        for_actions(episodes, |previous, action| {
            for ((counts, &previous), &class) in columns.iter_mut().zip(previous).zip(action) {
                counts.frames += 1.0;
                *counts.of.entry(class).or_default() += 1.0;
                let (frames, of) = counts.behind.entry(previous).or_default();
                *frames += 1.0;
                *of.entry(class).or_default() += 1.0;
            }
        })?;
        Ok(Self { columns, components: config.action.iter().map(|component| component.columns()).collect() })
    }

    /// How likely the actions of some episodes are by the frequencies alone, and by those behind the action before (a Markov chain of first
    /// order in every column).
    ///
    /// # Errors
    /// As [`Episodes::read`].
    pub fn measure(&self, episodes: &Episodes) -> Result<[Likelihood; 2]> {
        // What each rule says of a column: the probability of a class, and the class that it finds the most likely.
        let marginal = |counts: &Counts, _: u32, class: u32| (counts.marginal(class), most_frequent(&counts.of));
        let markov = |counts: &Counts, previous: u32, class: u32| {
            let of = counts.behind.get(&previous).map_or(&counts.of, |(_, of)| of);
            (counts.markov(previous, class), most_frequent(of))
        };
        Ok([self.measure_by(episodes, marginal)?, self.measure_by(episodes, markov)?])
    }

    fn measure_by(&self, episodes: &Episodes, rule: impl Fn(&Counts, u32, u32) -> (f64, u32)) -> Result<Likelihood> {
        let mut sum = Likelihood::none(self.components.len());
        for_actions(episodes, |previous, action| {
            let (mut column, mut hit) = (0, true);
            sum.frames += 1;
            for (component, columns) in self.components.iter().enumerate() {
                for at in column..column + columns {
                    let (probability, likely) = rule(&self.columns[at], previous[at], action[at]);
                    sum.nats[component] -= probability.ln();
                    hit &= likely == action[at];
                }
                sum.hits[component] += u64::from(std::mem::replace(&mut hit, true));
                column += columns;
            }
        })?;
        Ok(sum)
    }
}

/// Calls `f` with the action before and the action of every frame.
fn for_actions(episodes: &Episodes, mut f: impl FnMut(&[u32], &[u32])) -> Result<()> {
    for episode in 0..episodes.len() {
        let (mut previous, actions) = (episodes.neutral(), episodes.actions(episode)?);
        for action in actions.chunks(previous.len()) {
            f(previous, action);
            previous = action;
        }
    }
    Ok(())
}

/// What was measured on the same episodes, as a table in Markdown: a row for each component.
pub fn table(config: &AgentConfig, measured: &[(&str, &Likelihood)]) -> String {
    let mut text = String::new();
    let head: String = measured.iter().map(|(name, _)| format!(" {name} |")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| component |{head}\n|---|{}", "---:|".repeat(measured.len()));
    for (g, component) in config.action.iter().enumerate() {
        let _ = write!(text, "| {} |", component.name());
        for (_, likelihood) in measured {
            let (nats, share) = (likelihood.nats().nth(g).unwrap_or(f64::NAN), likelihood.accuracy().nth(g).unwrap_or(f64::NAN));
            let _ = write!(text, " {nats:.3} ({:.1} %) |", 100.0 * share);
        }
        text.push('\n');
    }
    let totals: String = measured.iter().map(|(_, likelihood)| format!(" {:.3} |", likelihood.total())).collect();
    let _ = writeln!(text, "| all |{totals}");
    text
}

/// What the figures of the agent are called in metrics and reports: nats and accuracy of each component.
///
/// # Errors
/// If another agent was measured.
pub fn figures(config: &AgentConfig, likelihood: &Likelihood) -> Result<Vec<(String, f64)>> {
    if likelihood.nats.len() != config.action.len() {
        return Err(Error::Input(format!("{} components measured of {}", likelihood.nats.len(), config.action.len())));
    }
    let named = |what: &str, values: Vec<f64>| {
        let name = |(component, x): (&candle_models::agent::Component, f64)| (format!("{what}_{}", component.name()), x);
        config.action.iter().zip(values).map(name).collect::<Vec<_>>()
    };
    Ok([named("nats", likelihood.nats().collect()), named("accuracy", likelihood.accuracy().collect())].concat())
}
