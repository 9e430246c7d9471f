//! Shards of many replays: from the cache, or encoded into it.

use super::checked::Checked;
use super::encode::encode;
use super::{Info, Shard, key};
use crate::identity::hex;
use crate::stamp::Stamp;
use candle_models::files::write_atomic;
use candle_models::policy::game::Game;
use candle_models::policy::replay;
use candle_models::{Error, Result};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What [`prepare`] made of a list of replays.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The games, in the order of the list.
    pub shards: Vec<Shard>,
    /// How many of them were encoded now; the others were in the cache.
    pub encoded: usize,
    /// Replays passed over, damaged shards built again, recordings that are not complete: one line each.
    pub warnings: Vec<String>,
}

/// Shards of all `replays`, from the cache directory or encoded into it, several at a time. A replay that cannot be read
/// is passed over with a warning, as is the second of two files with the same content.
///
/// What was checked and has not changed since is not read: a start costs the shards' headers, however large the data is.
///
/// # Errors
/// If the cache cannot be written, or no replay can be used.
pub fn prepare(replays: &[PathBuf], cache: &Path) -> Result<Prepared> {
    fs::create_dir_all(cache).map_err(Error::io(cache))?;
    let known = Checked::read(cache);
    let prepared: Vec<Result<One>> = replays.par_iter().map(|path| prepare_one(path, cache, &known)).collect();
    let (mut all, mut checked) = (Prepared::default(), Checked::default());
    let mut seen = HashSet::new();
    for (path, one) in replays.iter().zip(prepared) {
        match one? {
            One::Unusable(reason) => all.warnings.push(format!("passed over: {reason}")),
            One::Ready { shard, stamps: [replay, encoded_as], encoded, warning } => {
                let hash = shard.info.replay.clone();
                checked.note((path, replay, &hash), (&file_of(&hash, cache), encoded_as));
                all.encoded += usize::from(encoded);
                all.warnings.extend(warning);
                if !seen.insert(hash) {
                    all.warnings.push(format!("passed over: {}: the same content as another replay", path.display()));
                    continue;
                }
                all.shards.push(*shard);
            }
        }
    }
    // A cache that is complete may be read-only.
    all.warnings.extend(checked.add_to(cache).err().map(|error| format!("the next start checks all data again: {error}")));
    if all.shards.is_empty() {
        let first = all.warnings.first().map_or("the list is empty", String::as_str);
        return Err(Error::Input(format!("none of {} replays can be used; {first}", replays.len())));
    }
    Ok(all)
}

enum One {
    Unusable(Error),
    /// With the stamps of the replay and of the shard.
    Ready {
        shard: Box<Shard>,
        stamps: [Stamp; 2],
        encoded: bool,
        warning: Option<String>,
    },
}

fn file_of(hash: &str, cache: &Path) -> PathBuf {
    cache.join(format!("{}.safetensors", key(hash)))
}

/// Errors of the replay are values: only the cache's own failures end the preparation.
fn prepare_one(path: &Path, cache: &Path, known: &Checked) -> Result<One> {
    let (stamp, hash) = match hash_of(path, known) {
        Ok(found) => found,
        Err(error) => return Ok(One::Unusable(error)),
    };
    let file = file_of(&hash, cache);
    let mut warning = None;
    if file.exists() {
        match open(&file, known) {
            Ok((shard, checked)) => {
                warning = incomplete(path, &shard.info);
                return Ok(One::Ready { shard: Box::new(shard), stamps: [stamp, checked], encoded: false, warning });
            }
            Err(error) => warning = Some(format!("encoded again: {error}")),
        }
    }
    let (stamp, hash, bytes) = match encode_file(path) {
        Ok(encoded) => encoded,
        Err(error) => return Ok(One::Unusable(error)),
    };
    // Read once more, the replay may have become another one.
    let file = file_of(&hash, cache);
    write_atomic(&file, &bytes)?;
    let (shard, checked) = open(&file, &Checked::default())?;
    warning = warning.or_else(|| incomplete(path, &shard.info));
    Ok(One::Ready { shard: Box::new(shard), stamps: [stamp, checked], encoded: true, warning })
}

/// A shard that is what was written, as far as it is not known to be.
fn open(file: &Path, known: &Checked) -> Result<(Shard, Stamp)> {
    let (shard, stamp) = Shard::map(file)?;
    if !known.knows(file, stamp) {
        shard.check(file)?;
    }
    Ok((shard, stamp))
}

/// The hash of a replay.
fn hash_of(path: &Path, known: &Checked) -> Result<(Stamp, String)> {
    let stamp = Stamp::of(&fs::metadata(path).map_err(Error::io(path))?);
    match known.replay(path, stamp) {
        Some(hash) => Ok((stamp, hash.to_owned())),
        None => Ok((stamp, hex(Sha256::digest(read_limited(path)?)))),
    }
}

/// The shard of a replay, with the replay's hash.
fn encode_file(path: &Path) -> Result<(Stamp, String, Vec<u8>)> {
    let stamp = Stamp::of(&fs::metadata(path).map_err(Error::io(path))?);
    let bytes = read_limited(path)?;
    let hash = hex(Sha256::digest(&bytes));
    let game = replay::read_bytes(&bytes, path).and_then(|game| check(path, game))?;
    let source = path.file_name().unwrap_or_default().to_string_lossy();
    let encoded = encode(&game, &source, &hash)?;
    Ok((stamp, hash, encoded))
}

fn read_limited(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).map_err(Error::io(path))?.len();
    if size > replay::MAX_BYTES {
        return Err(Error::file(path, format!("expected at most {} bytes, found {size}", replay::MAX_BYTES)));
    }
    fs::read(path).map_err(Error::io(path))
}

fn check(path: &Path, game: Game) -> Result<Game> {
    game.check().map_err(|e| Error::file(path, e))?;
    if game.frames.len() < 2 {
        return Err(Error::file(path, format!("expected at least 2 frames, found {}", game.frames.len())));
    }
    Ok(game)
}

fn incomplete(path: &Path, info: &Info) -> Option<String> {
    info.incomplete.as_ref().map(|reason| format!("incomplete recording, used as far as it goes: {}: {reason}", path.display()))
}
