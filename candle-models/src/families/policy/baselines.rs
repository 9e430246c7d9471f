//! Count tables that a policy has to beat, and the table of likelihoods that shows whether it does.
//!
//! Most next actions equal the last one, so accuracy alone says nothing. Four tables, fitted on the actions of the training
//! games, set the scale. Each gives every component a distribution
//!
//! `P(class | context) = (n(context, class) + 0.1) / (n(context) + 0.1 * classes)`
//!
//! and they differ in the context:
//!
//! | table | button | stick axis | shoulder |
//! |---|---|---|---|
//! | [`MARGINAL`] | nothing | nothing | nothing |
//! | [`FIRST_ORDER`] | itself at t-1 | itself at t-1 | itself at t-1 |
//! | [`SECOND_ORDER`] | itself at t-1, t-2 | both axes of its stick at t-1, t-2 | itself at t-1, t-2 |
//! | [`CONDITIONED`] | as before | as before, and for y the x of frame t | as before, and L and R of frame t |
//!
//! At a game's second frame, the first that is predicted, t-2 counts as t-1. A policy that acts with a delay knows its own
//! queued actions, so the contexts stay the same. The last table is the rival of autoregressive heads, the one before it of
//! independent heads.
//!
//! Stored as named tensors, two per table: `NAME.keys` `[entries]` U32, rising, and `NAME.counts` `[entries]` U32. A key is a
//! number in mixed base: the component's first key, plus the context's classes in the order above, plus the class.
//!
//! ```
//! use candle_models::policy::actions::Action;
//! use candle_models::policy::baselines::{Baselines, FIRST_ORDER};
//!
//! let game = vec![Action::default(); 100]; // nobody touches anything
//! let tables = Baselines::fit([&game]);
//! let likelihood = tables.evaluate(&game)[FIRST_ORDER].all();
//! assert_eq!(likelihood.frames, 99);
//! assert_eq!(likelihood.accuracy(), 1.0);
//! ```

use super::actions::{ACTION, Action, BUTTONS, COMPONENTS, GROUP_NAMES, GROUPS, group};
use super::heads::GIVEN;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Tables that are fitted.
pub const TABLES: usize = 4;
/// Their names in printed tables.
pub const TABLE_NAMES: [&str; TABLES] = ["marginal", "first-order Markov", "second-order, joint stick", "second-order, conditioned"];
/// Index of the table of marginal frequencies.
pub const MARGINAL: usize = 0;
/// Index of the first-order Markov table, the unit of the column "over Markov".
pub const FIRST_ORDER: usize = 1;
/// Index of the second-order table with joint stick axes.
pub const SECOND_ORDER: usize = 2;
/// Index of the second-order table conditioned on the frame's earlier components.
pub const CONDITIONED: usize = 3;

const STORED_NAMES: [&str; TABLES] = ["marginal", "first_order", "second_order", "conditioned"];
/// Frames of every class that a table counts beside those it has seen.
pub(super) const SMOOTHING: f32 = 0.1;

/// Sums over some frames.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// How many frames.
    pub frames: u64,
    /// Negative log-likelihood in nats, per reported component.
    pub nll: [f64; GROUPS],
    /// Frames in which the most likely class was the right one; all eight of the buttons.
    pub correct: [u64; GROUPS],
}

impl Tally {
    /// Adds the frames of another tally.
    pub fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.nll.iter_mut().zip(other.nll).for_each(|(sum, x)| *sum += x);
        self.correct.iter_mut().zip(other.correct).for_each(|(sum, x)| *sum += x);
    }

    /// Nats per frame and component; not a number without frames.
    pub fn per_frame(&self) -> [f64; GROUPS] {
        self.nll.map(|nll| nll / self.frames as f64)
    }

    /// Nats per frame, all components together; not a number without frames.
    pub fn total(&self) -> f64 {
        self.nll.iter().sum::<f64>() / self.frames as f64
    }

    /// Mean share of right components; not a number without frames.
    pub fn accuracy(&self) -> f64 {
        self.correct.iter().sum::<u64>() as f64 / (self.frames * GROUPS as u64) as f64
    }
}

/// How likely the recorded actions are to a model or a table.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Likelihood {
    /// Frames whose action differs from the one before.
    pub changed: Tally,
    /// The other frames.
    pub held: Tally,
}

impl Likelihood {
    /// Counts one frame: the action before it, its action, what that action cost and what was thought most likely.
    pub fn add(&mut self, previous: &Action, action: &Action, nll: &[f32; GROUPS], predicted: &Action) {
        let tally = if previous == action { &mut self.held } else { &mut self.changed };
        tally.frames += 1;
        tally.nll.iter_mut().zip(nll).for_each(|(sum, x)| *sum += f64::from(*x));
        let mut right = [true; GROUPS];
        for (i, (a, b)) in action.classes().into_iter().zip(predicted.classes()).enumerate() {
            right[group(i)] &= a == b;
        }
        tally.correct.iter_mut().zip(right).for_each(|(sum, right)| *sum += u64::from(right));
    }

    /// Adds the frames of another.
    pub fn merge(&mut self, other: &Self) {
        self.changed.merge(&other.changed);
        self.held.merge(&other.held);
    }

    /// All frames.
    pub fn all(&self) -> Tally {
        let mut all = self.changed;
        all.merge(&self.held);
        all
    }
}

/// What a table says of one frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Negative log-likelihood of the action in nats, per reported component.
    pub nll: [f32; GROUPS],
    /// The most likely class of each component; the lowest where several are equal.
    pub likely: Action,
}

/// The four tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Baselines {
    tables: [Table; TABLES],
}

impl Baselines {
    /// Counts the actions of games, one sequence per game and player.
    pub fn fit<S: AsRef<[Action]>>(sequences: impl IntoIterator<Item = S>) -> Self {
        let mut tables: [Table; TABLES] = std::array::from_fn(Table::new);
        let mut counts: [HashMap<u32, u32>; TABLES] = Default::default();
        for sequence in sequences {
            for window in windows(sequence.as_ref()) {
                for (table, counts) in tables.iter().zip(&mut counts) {
                    for (i, class) in window[0].classes().into_iter().enumerate() {
                        let count = counts.entry(table.first_key(i, window) + u32::from(class)).or_insert(0);
                        *count = count.saturating_add(1);
                    }
                }
            }
        }
        for (table, counts) in tables.iter_mut().zip(counts) {
            let mut entries: Vec<(u32, u32)> = counts.into_iter().collect();
            entries.sort_unstable();
            (table.keys, table.counts) = entries.into_iter().unzip();
        }
        Self { tables }
    }

    /// Adds what was counted in other games.
    pub fn merge(&mut self, other: &Self) {
        for (table, other) in self.tables.iter_mut().zip(&other.tables) {
            let mut counts: BTreeMap<u32, u32> = table.keys.iter().copied().zip(table.counts.iter().copied()).collect();
            for (key, count) in other.keys.iter().zip(&other.counts) {
                let sum = counts.entry(*key).or_insert(0);
                *sum = sum.saturating_add(*count);
            }
            (table.keys, table.counts) = counts.into_iter().unzip();
        }
    }

    /// What each table says of `action` at frame t. `before` holds the actions of t-1 and t-2.
    pub fn score(&self, before: [&Action; 2], action: &Action) -> [Score; TABLES] {
        std::array::from_fn(|k| self.tables[k].score([action, before[0], before[1]]))
    }

    /// Scores a whole sequence, from its second frame on.
    pub fn evaluate(&self, sequence: &[Action]) -> [Likelihood; TABLES] {
        let mut likelihoods = [Likelihood::default(); TABLES];
        for [action, last, before] in windows(sequence) {
            for (likelihood, score) in likelihoods.iter_mut().zip(self.score([last, before], action)) {
                likelihood.add(last, action, &score.nll, &score.likely);
            }
        }
        likelihoods
    }

    /// What the table [`CONDITIONED`] has counted.
    pub(super) fn conditioned(&self) -> impl Iterator<Item = Counted<'_>> {
        let table = &self.tables[CONDITIONED];
        table.keys.iter().zip(&table.counts).map(|(key, count)| table.counted(*key, *count))
    }

    /// The tables as named tensors.
    pub fn to_tensors(&self) -> Result<NamedTensors> {
        let mut tensors = NamedTensors::new();
        for (name, table) in STORED_NAMES.iter().zip(&self.tables) {
            for (what, values) in [("keys", &table.keys), ("counts", &table.counts)] {
                tensors.insert(format!("{name}.{what}"), Tensor::new(values.as_slice(), &Device::Cpu)?);
            }
        }
        Ok(tensors)
    }

    /// Tables from named tensors: exactly those of [`Baselines::to_tensors`].
    ///
    /// # Errors
    /// If a tensor is missing, extra, not U32 `[entries]`, if keys do not rise or are out of range, or if the counts of the
    /// components do not all add up to the same number of frames.
    pub fn from_tensors(tensors: &NamedTensors) -> Result<Self> {
        let known = |name: &str| STORED_NAMES.iter().any(|n| name == format!("{n}.keys") || name == format!("{n}.counts"));
        if let Some((extra, _)) = tensors.iter().find(|(name, _)| !known(name)) {
            return Err(Error::tensor(extra, "no such tensor in the baselines", "one"));
        }
        let mut tables: [Table; TABLES] = std::array::from_fn(Table::new);
        let mut frames = None;
        for (name, table) in STORED_NAMES.iter().zip(&mut tables) {
            table.keys = vector(tensors, &format!("{name}.keys"))?;
            table.counts = vector(tensors, &format!("{name}.counts"))?;
            table.check(name)?;
            table.check_frames(name, *frames.get_or_insert_with(|| table.frames(0)))?;
        }
        Ok(Self { tables })
    }

    /// The tables as the content of a safetensors file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let tensors = self.to_tensors()?;
        let bytes = safetensors::serialize(tensors.iter(), None).map_err(candle_core::Error::from)?;
        Ok(bytes)
    }

    /// Tables from the content of a safetensors file, checked as in [`Baselines::from_tensors`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)
            .map_err(|e| Error::Input(format!("baselines: not a safetensors file: {e}")))?;
        Self::from_tensors(&tensors.into_iter().collect())
    }
}

fn vector(tensors: &NamedTensors, name: &str) -> Result<Vec<u32>> {
    let tensor = tensors.get(name)?;
    if tensor.dtype() != DType::U32 || tensor.rank() != 1 {
        return Err(Error::tensor(name, "U32 [entries]", format!("{:?} {:?}", tensor.dtype(), tensor.dims())));
    }
    Ok(tensor.to_vec1()?)
}

/// The actions of t, t-1 and t-2 for every frame from the second on.
fn windows(sequence: &[Action]) -> impl Iterator<Item = [&Action; 3]> {
    (1..sequence.len()).map(|t| [&sequence[t], &sequence[t - 1], &sequence[t.saturating_sub(2)]])
}

/// The context of component `i` in a table: (component, frames back).
fn context(table: usize, i: usize) -> Vec<(usize, usize)> {
    // The stick's x axis, for the two axes of either stick.
    let x = (BUTTONS..ACTION - 1).contains(&i).then(|| i - (i - BUTTONS) % 2);
    let mut context = match (table, x) {
        (MARGINAL, _) => vec![],
        (FIRST_ORDER, _) => vec![(i, 1)],
        (_, None) => vec![(i, 1), (i, 2)],
        (_, Some(x)) => vec![(x, 1), (x + 1, 1), (x, 2), (x + 1, 2)],
    };
    if table == CONDITIONED {
        context.extend(GIVEN[group(i)].iter().map(|column| (*column, 0)));
    }
    context
}

/// How often a component had a class in a context.
pub(super) struct Counted<'a> {
    pub component: usize,
    contexts: &'a [(usize, usize)],
    context: u32,
    pub class: usize,
    pub count: u32,
}

impl Counted<'_> {
    /// The class of that column so many frames back, if the context knows it.
    pub fn known(&self, column: usize, back: usize) -> Option<usize> {
        let mut context = self.context;
        for &(known, frames) in self.contexts.iter().rev() {
            let classes = u32::from(COMPONENTS[known].classes);
            if (known, frames) == (column, back) {
                return Some((context % classes) as usize);
            }
            context /= classes;
        }
        None
    }
}

/// Counts by key, sorted.
#[derive(Debug, Clone, PartialEq)]
struct Table {
    contexts: [Vec<(usize, usize)>; ACTION],
    /// Where the keys of each component start, and the end of the last.
    starts: [u32; ACTION + 1],
    keys: Vec<u32>,
    counts: Vec<u32>,
}

impl Table {
    /// Table number `table` without counts.
    fn new(table: usize) -> Self {
        let contexts: [Vec<(usize, usize)>; ACTION] = std::array::from_fn(|i| context(table, i));
        let mut starts = [0; ACTION + 1];
        for (i, context) in contexts.iter().enumerate() {
            let contexts: u32 = context.iter().map(|(j, _)| u32::from(COMPONENTS[*j].classes)).product();
            // At most 17^6 per component: a component's keys and their sum fit 32 bits.
            starts[i + 1] = starts[i] + contexts * u32::from(COMPONENTS[i].classes);
        }
        Self { contexts, starts, keys: vec![], counts: vec![] }
    }

    /// The key of class 0 of component `i` where the actions of t, t-1 and t-2 are `window`.
    fn first_key(&self, i: usize, window: [&Action; 3]) -> u32 {
        let digit = |key: u32, (j, back): &(usize, usize)| key * u32::from(COMPONENTS[*j].classes) + u32::from(window[*back].classes()[*j]);
        self.starts[i] + self.contexts[i].iter().fold(0, digit) * u32::from(COMPONENTS[i].classes)
    }

    /// What a key stands for.
    fn counted(&self, key: u32, count: u32) -> Counted<'_> {
        let i = self.starts.partition_point(|start| *start <= key) - 1;
        let classes = |column: usize| u32::from(COMPONENTS[column].classes);
        let (context, class) = ((key - self.starts[i]) / classes(i), (key - self.starts[i]) % classes(i));
        Counted { component: i, contexts: &self.contexts[i], context, class: class as usize, count }
    }

    fn score(&self, window: [&Action; 3]) -> Score {
        let mut nll = [0.0; GROUPS];
        let mut likely = [0; ACTION];
        for (i, class) in window[0].classes().into_iter().enumerate() {
            let classes = u32::from(COMPONENTS[i].classes);
            let first = self.first_key(i, window);
            let start = self.keys.partition_point(|key| *key < first);
            let entries = self.keys[start..].iter().zip(&self.counts[start..]).take_while(|(key, _)| **key < first + classes);
            let (mut all, mut own, mut most) = (0.0, 0.0, 0);
            for (key, count) in entries {
                all += *count as f32;
                if key - first == u32::from(class) {
                    own = *count as f32;
                }
                if *count > most {
                    (most, likely[i]) = (*count, key - first);
                }
            }
            nll[group(i)] -= ((own + SMOOTHING) / (all + SMOOTHING * classes as f32)).ln();
        }
        // Every class came from a key of its component, so it is in range.
        Score { nll, likely: Action::from_ids(&likely).unwrap_or_default() }
    }

    /// Sum of the counts of component `i`.
    fn frames(&self, i: usize) -> u64 {
        let [start, end] = [i, i + 1].map(|i| self.keys.partition_point(|key| *key < self.starts[i]));
        self.counts[start..end].iter().map(|count| u64::from(*count)).sum()
    }

    /// Checks that there are as many counts as keys and that the keys rise within their range.
    fn check(&self, name: &str) -> Result<()> {
        let wrong = |what, expected: String, found: String| Err(Error::tensor(format!("{name}.{what}"), expected, found));
        if self.keys.len() != self.counts.len() {
            return wrong("counts", format!("{} entries", self.keys.len()), self.counts.len().to_string());
        }
        if let Some(pair) = self.keys.windows(2).find(|pair| pair[0] >= pair[1]) {
            return wrong("keys", "rising keys".into(), format!("{} before {}", pair[0], pair[1]));
        }
        if let Some(key) = self.keys.last().filter(|key| **key >= self.starts[ACTION]) {
            return wrong("keys", format!("keys below {}", self.starts[ACTION]), key.to_string());
        }
        Ok(())
    }

    /// Checks that the counts of every component add up to `frames`.
    fn check_frames(&self, name: &str, frames: u64) -> Result<()> {
        match COMPONENTS.iter().enumerate().find(|(i, _)| self.frames(*i) != frames) {
            Some((i, component)) => {
                let expected = format!("{frames} frames of {}", component.name);
                Err(Error::tensor(format!("{name}.counts"), expected, self.frames(i)))
            }
            None => Ok(()),
        }
    }
}

/// The likelihoods of models and tables in one Markdown table: nats per frame by component and in total, the total over that of
/// the row called `first-order Markov`, the total of frames whose action changes and of the others, and the mean accuracy of the
/// components.
pub fn table(rows: &[(&str, Likelihood)]) -> String {
    let number = |x: f64, digits| if x.is_finite() { format!("{x:.digits$}") } else { "-".to_owned() };
    let markov = rows.iter().find(|(name, _)| *name == TABLE_NAMES[FIRST_ORDER]).map_or(f64::NAN, |(_, l)| l.all().total());
    let header = [""].into_iter().chain(GROUP_NAMES).chain(["total", "over Markov", "change", "hold", "accuracy"]);
    let mut lines = vec![header.map(str::to_owned).collect::<Vec<_>>()];
    for (name, likelihood) in rows {
        let all = likelihood.all();
        let mut cells = vec![(*name).to_owned()];
        cells.extend(all.per_frame().map(|x| number(x, 3)));
        cells.extend([all.total(), all.total() / markov, likelihood.changed.total(), likelihood.held.total()].map(|x| number(x, 3)));
        let accuracy = number(100.0 * all.accuracy(), 1);
        cells.push(if accuracy == "-" { accuracy } else { accuracy + "%" });
        lines.push(cells);
    }
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|k| lines.iter().map(|cells| cells[k].chars().count()).max().unwrap_or(0).max(3)).collect();
    let mut text = String::new();
    for (i, cells) in lines.iter().enumerate() {
        for (k, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Names stand left, numbers right. Writing to a string cannot fail.
            let _ = if k == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text.push_str("|\n");
        if i == 0 {
            text.push_str(&format!("|{}|", "-".repeat(widths[0] + 2)));
            widths[1..].iter().for_each(|width| text.push_str(&format!("{}:|", "-".repeat(width + 1))));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::heads::LEFT_TRIGGER;
    use crate::random::numbers;

    /// Sticks that go round a circle of 16 points, mostly onwards in the direction of the last step, with a press of L and the
    /// shoulder together now and then: each table's context holds something that the one before it lacks.
    fn source(seed: u64, frames: usize) -> Vec<Action> {
        let mut next = numbers(seed);
        let (mut angle, mut step, mut held) = (0i32, 1i32, false);
        (0..frames)
            .map(|_| {
                if next() < 0.1 {
                    step = -step;
                }
                if next() < 0.7 {
                    angle = (angle + step).rem_euclid(16);
                }
                if next() < 0.1 {
                    held = !held;
                }
                let radians = angle as f32 * std::f32::consts::TAU / 16.0;
                let mut classes = Action::default().classes();
                classes[8] = (8.0 + 8.0 * radians.cos()).round() as u8;
                classes[9] = (8.0 + 8.0 * radians.sin()).round() as u8;
                classes[LEFT_TRIGGER] = u8::from(held);
                classes[12] = if held { 4 } else { 0 };
                Action::new(classes).unwrap()
            })
            .collect()
    }

    fn total(likelihood: &Likelihood) -> f64 {
        likelihood.all().total()
    }

    #[test]
    fn more_context_is_less_surprise() {
        let baselines = Baselines::fit([source(1, 20_000), source(2, 20_000)]);
        let scores = baselines.evaluate(&source(3, 10_000));
        for (pair, names) in scores.windows(2).zip(TABLE_NAMES.windows(2)) {
            assert!(total(&pair[1]) < 0.98 * total(&pair[0]), "{names:?}: {} and {}", total(&pair[0]), total(&pair[1]));
        }
        let all = scores[CONDITIONED].all();
        assert_eq!(all.frames, 9999);
        assert_eq!(scores[CONDITIONED].changed.frames + scores[CONDITIONED].held.frames, 9999);
    }

    #[test]
    fn counts_give_the_smoothed_probability() {
        let mut pressed = Action::default().classes();
        pressed[0] = 1;
        let (up, down) = (Action::default(), Action::new(pressed).unwrap());
        let baselines = Baselines::fit([[up, up, down, down, up].as_slice()]);
        let a = |score: &Score, rest: f32| (rest - score.nll[0]).exp();
        // Seven other buttons, always up: (4 + 0.1) / (4 + 0.2) each, whatever their context is.
        let rest = |n: f32| -7.0 * ((n + 0.1) / (n + 0.2)).ln();
        let [marginal, first, second, _] = baselines.score([&up, &up], &down);
        assert!((a(&marginal, rest(4.0)) - 2.1 / 4.2).abs() < 1e-5);
        assert!((a(&first, rest(4.0)) - 1.1 / 2.2).abs() < 1e-5);
        // Up twice before: once then up (the first frame counts for both), once down.
        assert!((a(&second, rest(4.0)) - 1.1 / 2.2).abs() < 1e-5);
        assert_eq!((marginal.likely, second.likely), (up, up));
        let unseen = baselines.score([&down, &up], &up)[SECOND_ORDER];
        assert!((a(&unseen, rest(4.0)) - 0.1 / 1.2).abs() < 1e-5);
        let empty = Baselines::fit::<Vec<Action>>([]).score([&up, &up], &up)[FIRST_ORDER].nll;
        assert!((empty[1] - 17f32.ln()).abs() < 1e-5 && (empty[0] - 8.0 * 2f32.ln()).abs() < 1e-5);
    }

    #[test]
    fn probabilities_sum_to_one() {
        let baselines = Baselines::fit([source(5, 500)]);
        let sequence = source(6, 40);
        for window in windows(&sequence) {
            let mut sums = [[0.0; ACTION]; TABLES];
            for (i, component) in COMPONENTS.iter().enumerate().filter(|(i, _)| *i >= BUTTONS) {
                for class in 0..component.classes {
                    let mut classes = window[0].classes();
                    classes[i] = class;
                    let scores = baselines.score([window[1], window[2]], &Action::new(classes).unwrap());
                    sums.iter_mut().zip(scores).for_each(|(sums, score)| sums[i] += (-score.nll[group(i)]).exp());
                }
            }
            assert!(sums.iter().flat_map(|sums| &sums[BUTTONS..]).all(|sum| (sum - 1.0).abs() < 1e-4), "{sums:?}");
        }
    }

    #[test]
    fn tables_go_round_through_bytes() {
        for sequence in [source(7, 3000), vec![]] {
            let baselines = Baselines::fit([sequence]);
            assert_eq!(Baselines::from_bytes(&baselines.to_bytes().unwrap()).unwrap(), baselines);
        }
    }

    #[test]
    fn hostile_tables_are_refused() {
        let good = Baselines::fit([source(8, 300)]).to_tensors().unwrap();
        let refused = |name: &str, tensor: Tensor, part: &str| {
            let mut tensors = good.clone();
            tensors.insert(name, tensor);
            let error = Baselines::from_tensors(&tensors).unwrap_err().to_string();
            assert!(error.contains(part) && error.lines().count() == 1, "{name}: {error}");
        };
        let tensor = |values: Vec<u32>| Tensor::new(values, &Device::Cpu).unwrap();
        let values = |name: &str| good.get(name).unwrap().to_vec1::<u32>().unwrap();
        let change = |name: &str, change: &dyn Fn(&mut Vec<u32>)| {
            let mut values = values(name);
            change(&mut values);
            tensor(values)
        };
        refused("first_order.keys", change("first_order.keys", &|v| v.swap(0, 1)), "rising");
        refused("first_order.keys", change("first_order.keys", &|v| v[1] = v[0]), "rising");
        refused("conditioned.keys", change("conditioned.keys", &|v| *v.last_mut().unwrap() = u32::MAX), "keys below");
        refused("conditioned.keys", change("conditioned.keys", &|v| v.truncate(3)), "3 entries");
        refused("second_order.counts", change("second_order.counts", &|v| v[0] += 1), "frames of A");
        refused("marginal.counts", change("marginal.counts", &|v| *v.last_mut().unwrap() = u32::MAX), "frames of shoulder");
        refused("marginal.counts", tensor(vec![]), "entries");
        refused("marginal.keys", Tensor::new(&[0f32], &Device::Cpu).unwrap(), "U32 [entries]");
        refused("marginal.keys", Tensor::new(&[[0u32]], &Device::Cpu).unwrap(), "U32 [entries]");
        refused("third_order.keys", tensor(vec![]), "no such tensor");
        let missing = good.iter().filter(|(name, _)| *name != "marginal.keys").map(|(n, t)| (n.to_owned(), t.clone())).collect();
        assert!(Baselines::from_tensors(&missing).unwrap_err().to_string().contains("marginal.keys"));
        let bytes = Baselines::fit([source(8, 300)]).to_bytes().unwrap();
        for bytes in [&bytes[..0], &bytes[..bytes.len() / 2], &bytes[..bytes.len() - 1], b"{}", &[0xff; 64]] {
            assert!(Baselines::from_bytes(bytes).is_err());
        }
    }

    #[test]
    fn frames_count_as_changed_or_held() {
        let (rest, mut pressed) = (Action::default(), Action::default().classes());
        pressed[2] = 1;
        let pressed = Action::new(pressed).unwrap();
        let mut likelihood = Likelihood::default();
        likelihood.add(&rest, &rest, &[0.5; GROUPS], &rest);
        likelihood.add(&rest, &pressed, &[2.0; GROUPS], &rest);
        assert_eq!((likelihood.held.total(), likelihood.changed.total(), likelihood.all().total()), (3.0, 12.0, 7.5));
        assert_eq!((likelihood.held.correct, likelihood.changed.correct), ([1; GROUPS], [0, 1, 1, 1, 1, 1]));
        assert!((likelihood.all().accuracy() - 11.0 / 12.0).abs() < 1e-12);
    }

    #[test]
    fn likelihoods_add_up_and_print() {
        let sequence = source(9, 400);
        let baselines = Baselines::fit([&sequence]);
        let whole = baselines.evaluate(&sequence);
        let mut halves = baselines.evaluate(&sequence[..200])[FIRST_ORDER];
        halves.merge(&baselines.evaluate(&sequence[199..])[FIRST_ORDER]);
        assert_eq!(halves.all().frames, whole[FIRST_ORDER].all().frames);
        assert!((total(&halves) - total(&whole[FIRST_ORDER])).abs() < 1e-9);

        let mut rows: Vec<(&str, Likelihood)> = TABLE_NAMES.into_iter().zip(whole).collect();
        rows.push(("a model without frames", Likelihood::default()));
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + rows.len());
        assert!(lines.iter().all(|line| line.len() == lines[0].len() && line.matches('|').count() == 13), "{text}");
        let cells: Vec<&str> = lines[2 + FIRST_ORDER].split('|').map(str::trim).collect();
        assert_eq!((cells[1], cells[9]), (TABLE_NAMES[FIRST_ORDER], "1.000"));
        assert_eq!(cells[8], format!("{:.3}", total(&whole[FIRST_ORDER])));
        assert!(lines[6].contains(" - |") && !text.contains("NaN"), "{text}");
    }
}
