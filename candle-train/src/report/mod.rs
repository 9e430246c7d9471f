//! The report of a run: one HTML file with its figures as charts, which needs nothing beside itself.
//!
//! It is made from `metrics.jsonl`, `config.toml` and what [`About`] says, so that it can be made again for any run. Everything that
//! comes from a file is escaped.

pub mod chart;
mod comparison;
mod curves;
#[cfg(feature = "cli")]
pub(crate) mod figure;
mod page;
#[cfg(feature = "cli")]
pub(crate) mod sections;

use crate::summary::Summary;
use candle_models::files::write_atomic;
use candle_models::{Error, Result};
pub use comparison::compare;
use curves::Curves;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file of the report in a run's directory.
pub const REPORT: &str = "report.html";
const ABOUT: &str = "run.json";
const CONFIGURATION: &str = "config.toml";

/// What a report says of a run that its metrics do not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The command that started or resumed it.
    pub command: String,
    /// The machine.
    pub host: String,
    /// What it computes on, as `the CPU, in f32`.
    pub device: String,
    /// What was trained on and what was held out, a line each.
    pub data: Vec<String>,
    /// The model's table.
    pub model: String,
    /// Values to train.
    pub parameters: u64,
    /// Floating-point operations of a sample's forward pass; 0 where nobody counted.
    pub operations: u64,
    /// The resolved configuration as text, kept in a file of its own.
    #[serde(skip)]
    pub configuration: String,
    /// Steps that were planned.
    pub steps: u64,
    /// What a sample is called.
    pub unit: String,
}

impl About {
    /// Of a run that this command asked for.
    pub fn new(command: String, data: Vec<String>, model: &Summary, configuration: String) -> Self {
        let (parameters, operations, model) = (model.values, model.operations, model.to_string());
        Self { command, data, model, parameters, operations, configuration, ..Self::default() }
    }

    /// Writes it to the run's directory.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let path = directory.join(ABOUT);
        let json = serde_json::to_vec_pretty(self).map_err(|e| Error::file(&path, e))?;
        write_atomic(&path, &json)
    }

    fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(ABOUT);
        let Some(text) = read(&path)? else { return Ok(Self::default()) };
        serde_json::from_str(&text).map_err(|e| Error::file(&path, e))
    }
}

/// Makes the report of the run in `directory`, as [`REPORT`] there.
///
/// # Errors
/// If there are no metrics, or the file cannot be written.
pub fn write(directory: &Path) -> Result<PathBuf> {
    let curves = Curves::read(directory)?;
    let (about, configuration) = (About::read(directory)?, read(&directory.join(CONFIGURATION))?.unwrap_or_default());
    let path = directory.join(REPORT);
    write_atomic(&path, page::html(&name(directory)?, &about, &configuration, &curves)?.as_bytes())?;
    Ok(path)
}

/// What a run is called: its directory.
fn name(directory: &Path) -> Result<String> {
    let full = fs::canonicalize(directory).map_err(Error::io(directory))?;
    Ok(full.file_name().map_or("run".into(), |name| name.to_string_lossy().into_owned()))
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
    }
}
