//! What the repository ships: the bundle and the game that are used where none is named.

use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

const BUNDLE: &str = "weights/policy-mamba";
const GAME: &str = "examples/data/simulated.slp";

/// The shipped bundle.
pub fn bundle() -> Result<PathBuf> {
    find(BUNDLE)
}

/// The shipped game: a simulation, not a recording.
pub fn game() -> Result<PathBuf> {
    find(GAME)
}

/// Looks in the current folder and those above it, then in the program's and those above.
fn find(name: &str) -> Result<PathBuf> {
    let current = std::env::current_dir().ok();
    let program = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
    let places = || current.iter().chain(&program);
    let found = places().flat_map(|place| place.ancestors()).map(|folder| folder.join(name)).find(|path| path.exists());
    // Short where it can be: the folder itself is not of interest.
    let short = |path: PathBuf| current.as_ref().and_then(|c| path.strip_prefix(c).ok().map(Path::to_owned)).unwrap_or(path);
    found.map(short).ok_or_else(|| anyhow!("{name} is neither in the current folder nor above it or the program's folder: name one"))
}
