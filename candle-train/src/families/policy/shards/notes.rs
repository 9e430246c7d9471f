//! What earlier starts found in replays, so that the next one need not read them.
//!
//! There is a file for each group of replays, whoever encodes it. A replay is known by its [`Stamp`]; one with another is read again. What no
//! stamp tells: bits that decay on the disk, writes past the file system, a write within the clock's tick (4 ms at most) of the one that was seen.

use super::VERSION;
use crate::stamp::Stamp;
use candle_models::files::write_atomic;
use candle_models::policy::replay;
use candle_models::{Error, Result, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The folder beside the shards.
const FOLDER: &str = "replays";

/// What is known of a group of replays.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// The name of the file that they are encoded in; none where none can be used.
    pub shard: Option<String>,
    /// In the group's order.
    pub replays: Vec<Seen>,
}

/// What is known of a replay.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seen {
    pub stamp: Stamp,
    /// SHA-256 of its bytes, or why it cannot be used.
    pub content: std::result::Result<String, String>,
}

impl Note {
    /// What is known of replays none of which has changed since.
    pub fn read(cache: &Path, replays: &[PathBuf]) -> Option<Self> {
        let note: Self = serde_json::from_slice(&fs::read(place(cache, replays)).ok()?).ok()?;
        let same = |(seen, path): (&Seen, &PathBuf)| stamp(path).is_ok_and(|stamp| stamp == seen.stamp);
        (note.replays.len() == replays.len() && note.replays.iter().zip(replays).all(same)).then_some(note)
    }

    pub fn write(&self, cache: &Path, replays: &[PathBuf]) -> Result<()> {
        let path = place(cache, replays);
        let folder = cache.join(FOLDER);
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        write_atomic(&path, &serde_json::to_vec(self).map_err(|e| Error::file(&path, e))?)
    }
}

/// The state of the file that a replay lies in.
pub(super) fn stamp(path: &Path) -> Result<Stamp> {
    Ok(Stamp::of(&fs::metadata(replay::file_of(path)).map_err(Error::io(path))?))
}

fn place(cache: &Path, replays: &[PathBuf]) -> PathBuf {
    let mut hash = Sha256::new_with_prefix(VERSION.to_le_bytes());
    for path in replays {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        hash.update(path.as_os_str().as_encoded_bytes());
        hash.update([0]);
    }
    cache.join(FOLDER).join(format!("{}.json", &hex(hash.finalize())[..32]))
}
