//! How likely recorded actions are: to an agent that sees each episode from its first frame to its last, and by frequencies counted on the
//! training episodes.

use super::distribution::{Distribution, Part};
use super::episodes::Episodes;
use super::loader::{Specs, side_by_side};
use super::numbers::{Normal, Series};
use crate::parallel::{Communicator, gather};
use candle_core::{Device, Tensor};
use candle_models::agent::{Agent, AgentConfig, Component};
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Episodes side by side, and frames of each in one pass.
const LANES: usize = 8;
const FRAMES: usize = 120;
/// Frames that the frequencies behind all actions count for among those behind one of them.
const PRIOR: f64 = 1.0;

/// Nats and hits or distances, summed over frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Frames.
    pub frames: u64,
    /// Negative log-likelihood of each component, in nats; of numbers that of the density.
    nats: Vec<f64>,
    /// Frames in which every column of a component had its most likely class; of numbers their mean distances from the most likely ones.
    hits: Vec<f64>,
}

impl Likelihood {
    /// Of no frame.
    fn none(components: usize) -> Self {
        Self { frames: 0, nats: vec![0.0; components], hits: vec![0.0; components] }
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

    /// Share of the frames in which a component's most likely classes were taken; of numbers how far the most likely ones were from them.
    pub fn accuracy(&self) -> impl Iterator<Item = f64> {
        self.hits.iter().map(|hits| hits / self.frames.max(1) as f64)
    }
}

/// Outputs and actions of a pass as matrices with a row for each frame.
struct Frames {
    distribution: Distribution,
    /// The recorded classes, where there are components of classes.
    classes: Option<Tensor>,
    /// The recorded numbers, where there are Gaussian components.
    numbers: Option<Tensor>,
}

impl Frames {
    fn new(config: &AgentConfig, outputs: &NamedTensors, (inputs, numbers): (&NamedTensors, Option<&Tensor>)) -> Result<Self> {
        let rows = |tensor: &Tensor| tensor.flatten(0, 1);
        let classes = if config.columns() == 0 { None } else { Some(rows(inputs.get("action")?)?) };
        let distribution = Distribution::new(&config.action, outputs)?;
        Ok(Self { distribution, classes, numbers: numbers.map(rows).transpose()? })
    }

    fn nats(&self) -> Result<Tensor> {
        self.distribution.nats(self.classes.as_ref(), self.numbers.as_ref())
    }
}

/// Negative log-likelihood of the recorded actions in nats, `[rows, components]`, with gradients: outputs `[B, T, ...]` of an agent, its
/// inputs and the recorded numbers `[B, T, numbers]`.
///
/// # Errors
/// If a tensor is missing or has another shape.
pub fn nats(config: &AgentConfig, outputs: &NamedTensors, taken: (&NamedTensors, Option<&Tensor>)) -> Result<Tensor> {
    Frames::new(config, outputs, taken)?.nats()
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
    let specs = Specs::new(config);
    let longest = group.iter().map(|episode| lengths[*episode]).max().unwrap_or(0);
    let mut state = agent.initial_state(group.len())?;
    let mut sum = Likelihood::none(config.action.len());
    for start in (0..longest).step_by(FRAMES) {
        let frames = FRAMES.min(longest - start);
        let rows = |episode: &usize| (*episode, start.min(lengths[*episode])..(start + frames).min(lengths[*episode]));
        let lanes: Vec<_> = group.iter().map(rows).collect();
        let (inputs, numbers) = side_by_side(episodes, &specs, &lanes, frames)?;
        let (outputs, next) = agent.unroll(&inputs, &vec![false; group.len() * frames], &state)?;
        state = next.map(|_, tensor| Ok(tensor.detach()))?;
        let outputs = outputs.map(|_, tensor| Ok(tensor.to_device(&Device::Cpu)?.detach()))?;
        let counted = lanes.iter().enumerate().flat_map(|(lane, (_, rows))| lane * frames..lane * frames + rows.len());
        sum.add(&Frames::new(config, &outputs, (&inputs, numbers.as_ref()))?, counted)?;
    }
    Ok(sum)
}

impl Likelihood {
    /// Counts some rows of a pass.
    fn add(&mut self, frames: &Frames, rows: impl Iterator<Item = usize>) -> Result<()> {
        let nats = frames.nats()?.to_vec2::<f32>()?;
        let floats = |tensor: &Option<Tensor>| tensor.as_ref().map_or(Ok(Vec::new()), Tensor::to_vec2::<f32>);
        let (logits, means, numbers) =
            (floats(&frames.distribution.logits)?, floats(&frames.distribution.gaussian)?, floats(&frames.numbers)?);
        let action = frames.classes.as_ref().map_or(Ok(Vec::new()), Tensor::to_vec2::<u32>)?;
        for row in rows {
            self.frames += 1;
            for (g, part) in frames.distribution.parts().iter().enumerate() {
                self.nats[g] += f64::from(nats[row][g]);
                self.hits[g] += match part {
                    Part::Classes(group) => {
                        let width = if group.classes == 2 { 1 } else { group.classes };
                        let logits = logits[row][group.logit..][..group.columns * width].chunks(width);
                        let hit = logits.zip(&action[row][group.column..]).all(|(logits, class)| most_likely(logits) == *class);
                        f64::from(u8::from(hit))
                    }
                    Part::Numbers(start, n) => distance(&means[row][2 * start..], &numbers[row][*start..][..*n]),
                };
            }
        }
        Ok(())
    }
}

/// How far numbers are from others in the mean.
fn distance(others: &[f32], numbers: &[f32]) -> f64 {
    numbers.iter().zip(others).map(|(x, other)| f64::from((x - other).abs())).sum::<f64>() / numbers.len() as f64
}

/// The most likely class of a column; one logit is that of class 1 against class 0.
fn most_likely(logits: &[f32]) -> u32 {
    match logits {
        [logit] => u32::from(*logit > 0.0),
        _ => logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |most, (i, x)| if *x > most.1 { (i as u32, *x) } else { most }).0,
    }
}

/// Frequencies of each column of an action, and of each Gaussian number what a normal distribution and a line from the number before say.
#[derive(Debug, Clone)]
pub struct Frequencies {
    columns: Vec<Counts>,
    series: Vec<Series>,
    /// Columns and numbers of each component.
    components: Vec<[usize; 2]>,
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
        let mut series = vec![Series::default(); config.numbers()];
        for_actions(episodes, |Taken { previous, action, before, numbers }| {
            for (i, (series, x)) in series.iter_mut().zip(numbers).enumerate() {
                series.add(before.map(|before| before[i]), *x);
            }
            for ((counts, &previous), &class) in columns.iter_mut().zip(previous).zip(action) {
                counts.frames += 1.0;
                *counts.of.entry(class).or_default() += 1.0;
                let (frames, of) = counts.behind.entry(previous).or_default();
                *frames += 1.0;
                *of.entry(class).or_default() += 1.0;
            }
        })?;
        let components = config.action.iter().map(|component| [component.columns(), component.numbers()]).collect();
        Ok(Self { columns, series, components })
    }

    /// How likely the actions of some episodes are by the frequencies alone, and by those behind the action before (a Markov chain of first
    /// order in every column; of a number a normal distribution about a line from the number before).
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
        Ok([self.measure_by(episodes, marginal, |series, _| series.marginal())?, self.measure_by(episodes, markov, Series::behind)?])
    }

    fn measure_by(
        &self,
        episodes: &Episodes,
        rule: impl Fn(&Counts, u32, u32) -> (f64, u32),
        normal: fn(&Series, Option<f32>) -> Normal,
    ) -> Result<Likelihood> {
        let mut sum = Likelihood::none(self.components.len());
        for_actions(episodes, |Taken { previous, action, before, numbers }| {
            let (mut column, mut number) = (0, 0);
            sum.frames += 1;
            for (component, &[columns, count]) in self.components.iter().enumerate() {
                let (mut hit, mut far) = (true, 0.0);
                for at in column..column + columns {
                    let (probability, likely) = rule(&self.columns[at], previous[at], action[at]);
                    sum.nats[component] -= probability.ln();
                    hit &= likely == action[at];
                }
                for at in number..number + count {
                    let normal = normal(&self.series[at], before.map(|before| before[at]));
                    sum.nats[component] += normal.nats(numbers[at]);
                    far += (f64::from(numbers[at]) - normal.mean).abs() / count as f64;
                }
                sum.hits[component] += if count > 0 { far } else { f64::from(u8::from(hit)) };
                (column, number) = (column + columns, number + count);
            }
        })?;
        Ok(sum)
    }
}

/// The action of a frame and the one before.
struct Taken<'a> {
    previous: &'a [u32],
    action: &'a [u32],
    /// `None` in the first frame of an episode.
    before: Option<&'a [f32]>,
    numbers: &'a [f32],
}

/// Calls `f` with every frame.
fn for_actions(episodes: &Episodes, mut f: impl FnMut(Taken)) -> Result<()> {
    let (lengths, columns, width) = (episodes.lengths(), episodes.neutral().len(), episodes.numbers());
    for (episode, frames) in lengths.into_iter().enumerate() {
        let (classes, all) = episodes.actions(episode)?;
        let (mut previous, mut before) = (episodes.neutral(), None);
        for t in 0..frames {
            let (action, numbers) = (&classes[t * columns..][..columns], &all[t * width..][..width]);
            f(Taken { previous, action, before, numbers });
            (previous, before) = (action, Some(numbers));
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
            let _ = match component.numbers() {
                0 => write!(text, " {nats:.3} ({:.1} %) |", 100.0 * share),
                _ => write!(text, " {nats:.3} (± {share:.3}) |"),
            };
        }
        text.push('\n');
    }
    let totals: String = measured.iter().map(|(_, likelihood)| format!(" {:.3} |", likelihood.total())).collect();
    let _ = writeln!(text, "| all |{totals}");
    text
}

/// What the figures of the agent are called in metrics and reports: nats and accuracy of each component, or `error`, the mean distance of
/// numbers from the most likely ones.
///
/// # Errors
/// If another agent was measured.
pub fn figures(config: &AgentConfig, likelihood: &Likelihood) -> Result<Vec<(String, f64)>> {
    if likelihood.nats.len() != config.action.len() {
        return Err(Error::Input(format!("{} components measured of {}", likelihood.nats.len(), config.action.len())));
    }
    let named = |[classes, numbers]: [&str; 2], values: Vec<f64>| {
        let name = |(component, x): (&Component, f64)| {
            (format!("{}_{}", if component.numbers() > 0 { numbers } else { classes }, component.name()), x)
        };
        config.action.iter().zip(values).map(name).collect::<Vec<_>>()
    };
    Ok([named(["nats"; 2], likelihood.nats().collect()), named(["accuracy", "error"], likelihood.accuracy().collect())].concat())
}
