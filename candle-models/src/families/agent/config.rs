//! What an agent is made of, as plain data.

use super::{Component, Observation};
use crate::nn::{BackboneConfig, Heads, within};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Names of inputs that every agent has, and of what stands beside the inputs in a file of episodes.
const RESERVED_INPUTS: [&str; 4] = ["action", "previous_action", "uniform", "reset"];
/// Names of outputs that agents have.
const RESERVED_OUTPUTS: [&str; 3] = ["logits", "action", "gaussian"];

/// A description of an agent: what it sees, what it does, and the network between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Width of the first layer and of the trunk (an MLP's layers say their own), 8 to 4096. Default: 64.
    #[serde(default = "hidden")]
    pub hidden: usize,
    /// Width of the learned tables in which the columns of the last action are looked up, 0 to 512; 0: the network does not see it. Default: 0.
    #[serde(default)]
    pub previous_action: usize,
    /// How the components of an action depend on each other. Autoregressive heads read the last action, too, and need a component of classes; their
    /// Gaussian components know the classes. Default: independent.
    #[serde(default = "heads")]
    pub heads: Heads,
    /// The temporal part. Default: one gated recurrent unit.
    #[serde(default = "backbone")]
    pub backbone: BackboneConfig,
    /// The inputs of a frame, at least one.
    pub observation: Vec<Observation>,
    /// The components of an action, at least one, in the order of their columns.
    pub action: Vec<Component>,
}

fn hidden() -> usize {
    64
}

fn heads() -> Heads {
    Heads::Independent
}

fn backbone() -> BackboneConfig {
    BackboneConfig::Gru { layers: 1 }
}

impl Default for AgentConfig {
    /// Four numbers to one of three classes.
    fn default() -> Self {
        let observation = Observation::Floats { name: "features".to_owned(), shape: vec![4], low: None, high: None };
        let action = Component::Discrete { name: "choice".to_owned(), classes: 3 };
        Self {
            hidden: hidden(),
            previous_action: 0,
            heads: heads(),
            backbone: backbone(),
            observation: vec![observation],
            action: vec![action],
        }
    }
}

impl AgentConfig {
    /// Columns of an action: a class each.
    pub fn columns(&self) -> usize {
        self.action.iter().map(Component::columns).sum()
    }

    /// Numbers of an action from normal distributions.
    pub fn numbers(&self) -> usize {
        self.action.iter().map(Component::numbers).sum()
    }

    /// Logits of an action.
    pub fn logits(&self) -> usize {
        self.action.iter().map(|component| component.choice(0).logits()).sum()
    }

    /// The components with their first columns.
    pub fn components(&self) -> impl Iterator<Item = (usize, &Component)> {
        self.action.iter().scan(0, |next, component| {
            *next += component.columns();
            Some((*next - component.columns(), component))
        })
    }

    /// Of each column how many classes it has.
    pub fn classes(&self) -> Vec<u32> {
        self.action.iter().flat_map(|component| vec![component.classes() as u32; component.columns()]).collect()
    }

    /// The action before the first frame: [`Component::neutral`] in every column.
    pub fn neutral(&self) -> Vec<u32> {
        self.action.iter().flat_map(|component| vec![component.neutral(); component.columns()]).collect()
    }

    /// Numbers that the first layer reads: floats with what becomes of grids, and those that are looked up.
    ///
    /// # Errors
    /// As [`Observation::width`].
    pub fn widths(&self) -> Result<[usize; 2]> {
        let mut widths = [0, self.columns() * self.previous_action];
        for input in &self.observation {
            widths[usize::from(matches!(input, Observation::Ids { .. }))] += input.width()?;
        }
        Ok(widths)
    }

    /// `gru 1x64, independent heads, 2 inputs, 3 components`.
    pub fn name(&self) -> String {
        let (inputs, components) = (self.observation.len(), self.action.len());
        let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let backbone = self.backbone.name(self.hidden);
        format!("{backbone}, {} heads, {}, {}", self.heads.name(), many(inputs, "input"), many(components, "component"))
    }

    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    ///
    /// # Errors
    /// If there is one.
    pub fn validate(&self) -> Result<()> {
        within("hidden", self.hidden, 8..=4096)?;
        within("previous_action", self.previous_action, 0..=512)?;
        if self.heads == Heads::Autoregressive && self.previous_action == 0 {
            return Err(Error::config("previous_action", "expected at least 1, found 0: autoregressive heads read the last action"));
        }
        self.backbone.validate(self.hidden)?;
        within("observation", self.observation.len(), 1..=256)?;
        within("action", self.action.len(), 1..=256)?;
        names("observation", self.observation.iter().map(Observation::name), &RESERVED_INPUTS)?;
        names("action", self.action.iter().map(Component::name), &RESERVED_OUTPUTS)?;
        // Recordings hold them beside the inputs.
        let beside: Vec<&str> = self.observation.iter().map(Observation::name).chain(RESERVED_INPUTS).collect();
        names("action", self.action.iter().filter(|component| component.numbers() > 0).map(Component::name), &beside)?;
        self.observation.iter().try_for_each(Observation::validate)?;
        self.action.iter().try_for_each(Component::validate)?;
        within("action", self.logits() + self.numbers(), 1..=1 << 20)?;
        if self.previous_action > 0 && self.columns() == 0 {
            let reason = format!("expected 0, found {}: no component has classes to look up", self.previous_action);
            return Err(Error::config("previous_action", reason));
        }
        within("observation", self.widths()?.iter().sum::<usize>() * self.backbone.inputs(self.hidden), 1..=1 << 28)
    }
}

/// Refuses names that are no names of tensors, that stand twice, or that mean something else.
fn names<'a>(field: &str, names: impl Iterator<Item = &'a str>, reserved: &[&str]) -> Result<()> {
    let mut known = BTreeSet::new();
    for name in names {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= 64
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let reason = match name {
            _ if !is_name => "expected a letter and at most 63 letters, digits, - and _",
            _ if reserved.contains(&name) => "the name has another meaning",
            _ if !known.insert(name) => "the name stands twice",
            _ => continue,
        };
        return Err(Error::config(format!("{field}.name"), format!("{name:?}: {reason}")));
    }
    Ok(())
}
