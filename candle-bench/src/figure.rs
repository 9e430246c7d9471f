//! The numbers of a row that two runs are compared by, and what tells a row from the others.

use crate::stats::{Interval, Summary};
use serde::{Serialize, Serializer};

/// What a figure says, and so which way is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sense {
    /// A time: less is faster.
    Time,
    /// A rate or a ratio of speeds: more is faster.
    Rate,
    /// Anything else of which less is better, such as memory.
    Cost,
    /// Anything else of which more is better, such as a share of a peak.
    Yield,
}

/// A number of a row that two runs are compared by.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it is, `mean latency`.
    pub name: &'static str,
    /// Its unit, `us`.
    pub unit: String,
    /// Which way is the better one.
    pub sense: Sense,
    /// The number; not a number where it could not be measured.
    pub value: f64,
    /// Its 95% interval, where there is one.
    pub interval: Option<Interval>,
    /// Whether the measurement that it comes from was steady.
    pub steady: bool,
    /// Whether it keeps its limit, where it has one.
    pub kept: Option<bool>,
}

impl Figure {
    /// A figure without an interval and without a limit.
    pub fn new(name: &'static str, unit: &str, sense: Sense, value: f64) -> Self {
        Self { name, unit: unit.to_owned(), sense, value, interval: None, steady: true, kept: None }
    }

    /// The mean of times in microseconds.
    pub fn mean(name: &'static str, latency_us: &Summary) -> Self {
        Self { interval: Some(latency_us.mean_ci), ..Self::new(name, "us", Sense::Time, latency_us.mean) }
    }
}

/// The columns that tell a row of a suite from the others, with their cells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(Vec<(&'static str, String)>);

impl Identity {
    /// Of columns and their cells.
    pub fn new(columns: Vec<(&'static str, String)>) -> Self {
        Self(columns)
    }

    /// The cells.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, cell)| cell.as_str())
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(column, cell)| (column, cell)))
    }
}

impl std::fmt::Display for Identity {
    /// `mlp 512-512, step, batch 8, threads 2, cpu, f32`: a number goes with the name of its column.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (column, cell)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match cell.parse::<f64>() {
                Ok(_) => write!(f, "{comma}{} {cell}", column.to_lowercase())?,
                Err(_) => write!(f, "{comma}{cell}")?,
            }
        }
        Ok(())
    }
}
