//! Which requests are traced: for all models, and for one.

use crate::fault::{Fault, Kind, one_line};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Settings that are to be changed, as texts: `None` takes the one of all models, or of the start.
pub(crate) type TraceChange = BTreeMap<String, Option<Vec<String>>>;

/// The settings, as the protocol has them.
#[derive(Debug, Serialize)]
pub(crate) struct TraceSettings {
    pub trace_file: String,
    pub trace_level: Vec<&'static str>,
    pub trace_rate: String,
    pub trace_count: String,
    pub log_frequency: String,
}

impl TraceSettings {
    /// Of traces to that file, with the count that is left.
    pub(super) fn new(file: Option<&Path>, values: &Values, left: Option<u64>) -> Self {
        Self {
            trace_file: file.map(|file| file.display().to_string()).unwrap_or_default(),
            trace_level: values.level.names(),
            trace_rate: values.rate.to_string(),
            trace_count: left.map_or_else(|| "-1".to_owned(), |left| left.to_string()),
            log_frequency: values.frequency.to_string(),
        }
    }
}

/// What of a request is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Level {
    /// When its stages began.
    pub timestamps: bool,
    /// The values of its inputs and outputs.
    pub tensors: bool,
}

impl Level {
    /// Nothing.
    const OFF: Self = Self { timestamps: false, tensors: false };

    fn names(self) -> Vec<&'static str> {
        if self == Self::OFF {
            return vec!["OFF"];
        }
        let names = [("TIMESTAMPS", self.timestamps), ("TENSORS", self.tensors)];
        names.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    }

    /// Whether that is anything.
    pub fn is_on(self) -> bool {
        self != Self::OFF
    }
}

/// Which requests are traced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values {
    pub level: Level,
    /// One of so many requests.
    pub rate: u64,
    /// How many more; `None` is without end.
    pub count: Option<u64>,
    /// Traces of a file before another one is begun; 0 is without end.
    pub frequency: u64,
}

/// Before anything is changed.
pub(super) const START: Values = Values { level: Level::OFF, rate: 1000, count: None, frequency: 0 };

/// What a model has that is not as for all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own {
    pub level: Option<Level>,
    pub rate: Option<u64>,
    pub count: Option<Option<u64>>,
    pub frequency: Option<u64>,
}

impl Own {
    pub fn over(&self, all: &Values) -> Values {
        Values {
            level: self.level.unwrap_or(all.level),
            rate: self.rate.unwrap_or(all.rate),
            count: self.count.unwrap_or(all.count),
            frequency: self.frequency.unwrap_or(all.frequency),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self { level: None, rate: None, count: None, frequency: None })
    }

    /// Reads a change. What it takes back is `None`, as is what it does not speak of: `given` tells them apart by name.
    pub fn read(change: &TraceChange, file: Option<&Path>) -> Result<Self, Fault> {
        let mut own = Self::default();
        for (name, values) in change {
            let Some(values) = values else {
                if !NAMES.contains(&name.as_str()) {
                    return Err(unknown(name));
                }
                continue;
            };
            if name == "trace_level" {
                own.level = Some(level(values, file)?);
                continue;
            }
            let one = match &values[..] {
                [one] => one.as_str(),
                _ => return Err(wrong(name, "one value", format_args!("{} values", values.len()))),
            };
            let number = || one.parse::<u64>().map_err(|_| wrong(name, "a number from 0 to 2^64 - 1", one_line(one)));
            match name.as_str() {
                "trace_rate" => own.rate = Some(number()?.max(1)),
                "trace_count" => own.count = Some(if one == "-1" { None } else { Some(number()?) }),
                "log_frequency" => own.frequency = Some(number()?),
                "trace_file" if Some(Path::new(one)) == file || (one.is_empty() && file.is_none()) => {}
                "trace_file" => {
                    return Err(Fault::input("trace_file: expected to be left as it is, which is set where the server is started"));
                }
                _ => return Err(unknown(name)),
            }
        }
        Ok(own)
    }
}

const NAMES: [&str; 5] = ["trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency"];

fn wrong(name: &str, expected: &str, found: impl std::fmt::Display) -> Fault {
    Fault::input(format!("{}: expected {expected}, found {found}", one_line(name)))
}

fn unknown(name: &str) -> Fault {
    Fault::input(format!("trace settings: expected [{}], found {}", NAMES.join(", "), one_line(name)))
}

/// `OFF`, or what is wanted of a request.
fn level(texts: &[String], file: Option<&Path>) -> Result<Level, Fault> {
    const EXPECTED: &str = "OFF, or TIMESTAMPS, TENSORS or both";
    let mut level = Level::OFF;
    for text in texts {
        match text.as_str() {
            "TIMESTAMPS" => level.timestamps = true,
            "TENSORS" => level.tensors = true,
            "OFF" if texts.len() == 1 => {}
            found => return Err(wrong("trace_level", EXPECTED, one_line(found))),
        }
    }
    match texts {
        [] => Err(wrong("trace_level", EXPECTED, "nothing")),
        _ if level.is_on() && file.is_none() => {
            Err(Fault::new(Kind::Unsupported, "trace_level: there is nowhere to write traces: the server was started without --trace-file"))
        }
        _ => Ok(level),
    }
}

/// Picks requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampler {
    pub seen: u64,
    pub left: Option<u64>,
}

impl Sampler {
    pub fn picks(&mut self, values: &Values) -> bool {
        if !values.level.is_on() || self.left == Some(0) {
            return false;
        }
        let picked = self.seen.is_multiple_of(values.rate);
        self.seen += 1;
        if picked {
            self.left = self.left.map(|left| left - 1);
        }
        picked
    }

    /// Begins to count anew where the setting that it counts for was given.
    pub fn restart(&mut self, values: &Values, given: &dyn Fn(&str) -> bool) {
        if given("trace_count") {
            self.left = values.count;
        }
        if given("trace_rate") {
            self.seen = 0;
        }
    }
}
