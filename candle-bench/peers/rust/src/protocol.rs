//! Requests and answers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    Hello,
    Prepare(Case),
    Round { calls: usize },
    Peak,
}

/// The work to do, of which this program needs these.
#[derive(Deserialize)]
pub struct Case {
    pub library: String,
    pub device: String,
    pub bundle: PathBuf,
    /// The step as candle-models exports it.
    pub onnx: Option<PathBuf>,
    pub pass: String,
    pub batch: usize,
    pub threads: usize,
    pub inputs: PathBuf,
    pub outputs: PathBuf,
}

/// A case that cannot be had here, for this reason. The others can.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    Ok(serde_json::Value),
    Error(String),
    Unavailable(String),
}

impl Reply {
    pub fn of(found: anyhow::Result<serde_json::Value>) -> Self {
        match found {
            Ok(value) => Self::Ok(value),
            Err(error) => match error.downcast_ref::<Unavailable>() {
                Some(Unavailable(reason)) => Self::Unavailable(reason.clone()),
                None => Self::Error(format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")),
            },
        }
    }
}

/// Versions by library, those of this crate's lock file.
pub fn versions() -> BTreeMap<&'static str, String> {
    const LOCK: &str = include_str!("../Cargo.lock");
    let version = |package: &str| {
        let (_, rest) = LOCK.split_once(&format!("name = \"{package}\"\nversion = \""))?;
        rest.split('"').next().map(str::to_owned)
    };
    [("tract", "tract-onnx"), ("candle", "candle-core"), ("burn", "burn")]
        .into_iter()
        .filter_map(|(library, package)| Some((library, version(package)?)))
        .collect()
}
