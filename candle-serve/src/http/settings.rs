//! Pages of settings that can be changed at run time.

use super::reply::{self, Answer};
use crate::fault::Fault;
use crate::log::{Log, LogChange};
use crate::trace::{TraceChange, Traces};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What is logged, after a change where there is one.
pub(super) fn log(log: &Log, change: Option<LogChange>) -> Result<Answer, Fault> {
    change.map_or(Ok(()), |change| log.change(&change))?;
    Ok(reply::json(&log.settings()))
}

/// A setting in JSON.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a number, a list of texts or null")]
pub(super) enum Setting {
    Text(String),
    Number(i64),
    List(Vec<String>),
}

/// Which requests are traced, of one model or of all, after a change where there is one.
pub(super) fn trace(traces: &Traces, model: Option<&str>, change: Option<BTreeMap<String, Option<Setting>>>) -> Result<Answer, Fault> {
    let texts = |setting| match setting {
        Setting::Text(text) => vec![text],
        Setting::Number(number) => vec![number.to_string()],
        Setting::List(list) => list,
    };
    if let Some(change) = change {
        let change: TraceChange = change.into_iter().map(|(name, setting)| (name, setting.map(texts))).collect();
        traces.change(model, &change)?;
    }
    Ok(reply::json(&traces.settings(model)))
}
