//! A run that goes on as it was asked for: what was typed lies in its directory.

use anyhow::{Context, Result};
use candle_models::Error;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Its file in the directory of a run.
pub(super) const FILE: &str = "command.json";
const OUT: &str = "--out";
const RESUME: &str = "--resume";

/// How a run was asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The folder that relative paths are of.
    folder: PathBuf,
    /// Behind the program's name, without the run's own directory.
    arguments: Vec<String>,
}

/// What the directory of a run keeps of what was typed for it; nothing where that is no text.
pub(super) fn note(typed: &[OsString]) -> Option<Vec<u8>> {
    let typed = typed.iter().map(|argument| argument.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
    let (mut arguments, mut rest) = (Vec::new(), typed.into_iter());
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            OUT => drop(rest.next()),
            RESUME => {}
            own if own.starts_with("--out=") => {}
            _ => arguments.push(argument),
        }
    }
    serde_json::to_vec_pretty(&Asked { folder: std::env::current_dir().ok()?, arguments }).ok()
}

/// The arguments of `PROGRAM resume RUN MORE...` as those of the run, `MORE` behind them, and the folder that it was started in, if that is not the
/// current one; other arguments as they are.
pub(super) fn expand(arguments: Vec<OsString>) -> Result<(Vec<OsString>, Option<PathBuf>)> {
    let [program, command, run, more @ ..] = &arguments[..] else { return Ok((arguments, None)) };
    if command != "resume" || run.to_string_lossy().starts_with('-') {
        return Ok((arguments, None));
    }
    let path = Path::new(run).join(FILE);
    let text = std::fs::read(&path).with_context(|| format!("{}: no run that can be resumed", path.display()))?;
    let asked: Asked = serde_json::from_slice(&text).map_err(|e| Error::file(&path, e))?;
    let own = [OUT.into(), run.clone(), RESUME.into()];
    let all = [program.clone()].into_iter().chain(asked.arguments.into_iter().map(Into::into)).chain(own).chain(more.iter().cloned());
    let elsewhere = std::env::current_dir().is_ok_and(|folder| folder != asked.folder);
    Ok((all.collect(), elsewhere.then_some(asked.folder)))
}
