//! What the repository ships: the bundle and the input that are used where none is named, and a bundle that plays.

use super::family::InferFamily;
use super::options::Options;
use super::output::line;
use super::{play, run};
use crate::cli::Usage;
use crate::registry::Registry;
use anyhow::{Result, anyhow};
use clap::{ArgMatches, Command};
use std::path::{Path, PathBuf};

/// What is shipped of a family. Paths are those in the repository.
#[derive(Debug, Clone, Copy)]
pub struct Demo {
    /// The bundle.
    pub bundle: &'static str,
    /// The input.
    pub input: &'static str,
    /// What the bundle is called in the help.
    pub model: &'static str,
    /// What the input is called in the help.
    pub name: &'static str,
    /// What the input is, for the first line of a run on it.
    pub remark: &'static str,
    /// What `demo` shows after that, if anything plays.
    pub player: Option<Player>,
}

/// A shipped bundle that plays.
#[derive(Debug, Clone, Copy)]
pub struct Player {
    /// The bundle: its path in the repository.
    pub bundle: &'static str,
    /// How it plays: options of `play`.
    pub options: &'static [&'static str],
    /// What it is and does, for the help.
    pub about: &'static str,
}

/// The first that a family of the registry has.
pub fn first(registry: &Registry<dyn InferFamily>) -> Option<Demo> {
    registry.iter().find_map(|family| family.demo())
}

/// The command with what it shows.
pub fn describe(command: Command, registry: &Registry<dyn InferFamily>) -> Command {
    match first(registry) {
        Some(demo) => {
            let shown = format!("Shows {} on {}: `run` without bundle and inputs", demo.model, demo.name);
            let plays = demo.player.map(|player| format!("; then {}: `play`", player.about));
            command.about(shown + &plays.unwrap_or_default())
        }
        None => command.hide(true),
    }
}

/// Shows the shipped bundle on the shipped input, and then the one that plays.
pub fn show(registry: &Registry<dyn InferFamily>, options: Options, typed: &ArgMatches) -> Result<()> {
    let demo = first(registry).ok_or_else(|| Usage::error("no bundle: name a model directory"))?;
    // What is not there is said before anything is shown.
    let bundle = find_shipped(demo.bundle)?;
    let player = demo.player.map(|player| Ok::<_, anyhow::Error>((find_shipped(player.bundle)?, player))).transpose()?;
    run::run(registry, run::Arguments::shipped(bundle, options.clone()), typed)?;
    let Some((bundle, player)) = player else { return Ok(()) };
    line("")?;
    play::shipped(registry, &bundle, player.options, options)
}

/// Looks for a file or folder of the repository in the current folder and those above it, then in the program's and those above.
///
/// # Errors
/// If it is in none of them.
pub fn find_shipped(name: &str) -> Result<PathBuf> {
    let current = std::env::current_dir().ok();
    let program = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
    let places = || current.iter().chain(&program);
    let found = places().flat_map(|place| place.ancestors()).map(|folder| folder.join(name)).find(|path| path.exists());
    // Short where it can be: the folder itself is not of interest.
    let short = |path: PathBuf| current.as_ref().and_then(|c| path.strip_prefix(c).ok().map(Path::to_owned)).unwrap_or(path);
    found.map(short).ok_or_else(|| anyhow!("{name} is neither in the current folder nor above it or the program's folder: name one"))
}
