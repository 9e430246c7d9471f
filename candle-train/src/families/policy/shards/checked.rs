//! What earlier starts found in a cache's files, so that the next one need not read them all.
//!
//! A file is known by its [`Stamp`]; one with another is read and checked again. What no stamp tells: bits that decay on the disk, writes
//! past the file system, a write within the clock's tick (4 ms at most) of the one that was checked, and files that change while a run
//! reads them. Without `checked.json` the next start checks everything.

use crate::stamp::Stamp;
use candle_models::files::write_atomic;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FILE: &str = "checked.json";

/// The files of a cache that were checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Checked {
    /// By path: the SHA-256 of a replay's bytes.
    replays: BTreeMap<String, (Stamp, String)>,
    /// By name: shards whose content has its hash and no number that is not finite.
    shards: BTreeMap<String, Stamp>,
}

impl Checked {
    /// What is known of a cache: nothing, if nobody can read it.
    pub fn read(cache: &Path) -> Self {
        let bytes = fs::read(cache.join(FILE)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// The hash of a replay that has not changed since.
    pub fn replay(&self, path: &Path, stamp: Stamp) -> Option<&str> {
        let (known, hash) = self.replays.get(&name(path)?)?;
        (*known == stamp).then_some(hash)
    }

    /// Whether a shard is as it was when it was checked.
    pub fn knows(&self, shard: &Path, stamp: Stamp) -> bool {
        file_name(shard).is_some_and(|name| self.shards.get(name) == Some(&stamp))
    }

    /// Notes a replay and its shard.
    pub fn note(&mut self, (replay, stamp, hash): (&Path, Stamp, &str), (shard, checked): (&Path, Stamp)) {
        // A path that is no text is read at every start.
        if let (Some(replay), Some(shard)) = (name(replay), file_name(shard)) {
            self.replays.insert(replay, (stamp, hash.to_owned()));
            self.shards.insert(shard.to_owned(), checked);
        }
    }

    /// Adds what is new to the cache's file. Of two that write at the same time one is forgotten: its files are checked again.
    pub fn add_to(self, cache: &Path) -> Result<()> {
        let before = Self::read(cache);
        let mut all = before.clone();
        all.replays.extend(self.replays);
        all.shards.extend(self.shards);
        if all == before {
            return Ok(());
        }
        let path = cache.join(FILE);
        let text = serde_json::to_vec(&all).map_err(|e| Error::file(&path, e))?;
        write_atomic(&path, &text)
    }
}

fn name(path: &Path) -> Option<String> {
    Some(std::path::absolute(path).ok()?.to_str()?.to_owned())
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
