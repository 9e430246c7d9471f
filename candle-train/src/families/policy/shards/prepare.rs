//! Shards of many replays: found, or encoded.

use super::encode::encode;
use super::file::{self, EXTENSION, Writer};
use super::notes::{Note, Seen, stamp};
use super::{HALF_LIFE, Info, Shard, VERSION};
use crate::stamp::Stamp;
use candle_models::policy::replay;
use candle_models::{Error, Result, hex};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

/// Games of a file at least and at most, and on the average behind the least.
const GROUP: Range<usize> = 16..256;
const BEHIND: u32 = 48;

/// What [`prepare`] made of a list of replays.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The games, by the names of their replays.
    pub shards: Vec<Shard>,
    /// How many of them were encoded now; the others had been.
    pub encoded: usize,
    /// Replays passed over, damaged shards built again, recordings that are not complete: one line each.
    pub warnings: Vec<String>,
}

/// One of several equal parts of the work: `0/8` to `7/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// All of it.
    pub const ALL: Self = Self { number: 0, of: 1 };
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if number < of => Ok(Self { number, of }),
            _ => Err("expected I/N with I from 0 to N - 1".to_owned()),
        }
    }
}

/// The files among paths that games are in: replays as [`replay::collect`] finds them, and of a folder of shards its files.
///
/// # Errors
/// Those of [`replay::collect`].
pub fn collect(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        match shards_in(path)? {
            shards if shards.is_empty() => files.extend(replay::collect([path])?),
            shards => files.extend(shards),
        }
    }
    Ok(files)
}

/// The shards directly in a folder, if nothing else of games is.
fn shards_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let files = folder.read_dir().and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
    let mut files = files.map_err(Error::io(folder))?;
    let replays = files.iter().any(|path| replay::is_replay(path));
    files.retain(|path| !replays && is_shard(path));
    files.sort();
    Ok(files)
}

fn is_shard(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// The games of all `replays`, some of which may be shards: from the cache directory or encoded into it, several at a time. A replay that cannot
/// be read is passed over with a warning, as is the second of two files with the same content.
///
/// What was seen and has not changed since is not read: a start costs the shards' headers, however large the data is.
///
/// # Errors
/// If the cache cannot be written, or no replay can be used.
pub fn prepare(replays: &[PathBuf], cache: &Path) -> Result<Prepared> {
    let (shards, replays): (Vec<PathBuf>, Vec<PathBuf>) = replays.iter().cloned().partition(|path| is_shard(path));
    let mut all = encode_part(&replays, cache, Part::ALL)?;
    for (path, opened) in shards.iter().zip(shards.par_iter().map(|path| file::open(path)).collect::<Vec<_>>()) {
        match opened {
            Ok(games) => all.shards.extend(games),
            Err(error) => all.warnings.push(format!("passed over: {}: {error}", path.display())),
        }
    }
    all.shards.sort_by(|a, b| (&a.info.source, &a.info.replay).cmp(&(&b.info.source, &b.info.replay)));
    let mut seen = HashSet::new();
    all.shards.retain(|shard| {
        let new = seen.insert(shard.info.replay.clone());
        if !new {
            all.warnings.push(format!("passed over: {}: the same content as another replay", shard.info.source));
        }
        new
    });
    if all.shards.is_empty() {
        let first = all.warnings.first().map_or("the list is empty", String::as_str);
        return Err(Error::Input(format!("none of {} replays can be used; {first}", replays.len() + shards.len())));
    }
    Ok(all)
}

/// Encodes a part of the replays into a directory, where they are not encoded yet. Programs that share the parts of the same list among them, one
/// after another or at once, on this machine or on others, write the same files as one that does all.
///
/// # Errors
/// If the directory cannot be written.
pub fn encode_part(replays: &[PathBuf], cache: &Path, part: Part) -> Result<Prepared> {
    fs::create_dir_all(cache).map_err(Error::io(cache))?;
    let own: Vec<&[PathBuf]> = groups(replays).into_iter().skip(part.number).step_by(part.of).collect();
    let known: Vec<Result<Group>> = own.par_iter().map(|group| known(group, cache)).collect();
    let (mut all, before) = (Prepared::default(), Before { cache, games: OnceLock::new() });
    for (replays, known) in own.into_iter().zip(known) {
        let group = match known {
            Ok(group) => group,
            Err(error) => {
                // Nothing is wrong with what nobody has encoded yet.
                let damaged = (!matches!(error, Error::Io { .. })).then(|| format!("encoded again: {error}"));
                let mut group = encode_group(replays, &before)?;
                group.warnings.splice(0..0, damaged);
                group
            }
        };
        all.shards.extend(group.shards);
        all.encoded += group.encoded;
        all.warnings.extend(group.warnings);
    }
    Ok(all)
}

/// Replays whose games lie in one file: some that follow each other in the list. Whether one is the last of its group follows from its own name, so
/// that a replay more changes its group alone.
fn groups(replays: &[PathBuf]) -> Vec<&[PathBuf]> {
    let (mut groups, mut start) = (Vec::new(), 0);
    for (i, path) in replays.iter().enumerate() {
        let size = i + 1 - start;
        let name: Vec<&[u8]> = path.iter().rev().take(2).map(|part| part.as_encoded_bytes()).collect();
        let hash = crc32c::crc32c(&name.concat());
        if size >= GROUP.end || (size >= GROUP.start && hash.is_multiple_of(BEHIND)) || i + 1 == replays.len() {
            groups.push(&replays[start..=i]);
            start = i + 1;
        }
    }
    groups
}

/// What became of a group of replays.
struct Group {
    shards: Vec<Shard>,
    encoded: usize,
    warnings: Vec<String>,
}

/// A group that was encoded and has not changed since. The error says why it is none.
fn known(replays: &[PathBuf], cache: &Path) -> Result<Group> {
    let nobody = || Error::io(cache)(std::io::ErrorKind::NotFound.into());
    let note = Note::read(cache, replays).ok_or_else(nobody)?;
    let shards = note.shard.as_ref().map_or(Ok(Vec::new()), |name| file::open(&cache.join(name)))?;
    let usable = note.replays.iter().filter_map(|seen| seen.content.as_ref().ok());
    if !shards.iter().map(|shard| &shard.info.replay).eq(usable) {
        return Err(nobody());
    }
    let unusable = note.replays.iter().map(|seen| seen.content.as_ref().err());
    Ok(Group { warnings: warnings(replays, unusable, &shards), shards, encoded: 0 })
}

/// What is to be said of a group, in its order: why replays cannot be used, and which of the games are not complete.
fn warnings<'a>(replays: &[PathBuf], unusable: impl Iterator<Item = Option<&'a String>>, shards: &[Shard]) -> Vec<String> {
    let mut games = shards.iter();
    let warning = |(path, unusable): (&PathBuf, Option<&String>)| match unusable {
        Some(reason) => Some(format!("passed over: {reason}")),
        None => {
            let reason = games.next()?.info.incomplete.as_ref()?;
            Some(format!("incomplete recording, used as far as it goes: {}: {reason}", path.display()))
        }
    };
    replays.iter().zip(unusable).filter_map(warning).collect()
}

/// Games that are encoded already, in whichever file. They are looked for only where there is something to encode.
struct Before<'a> {
    cache: &'a Path,
    games: OnceLock<HashMap<String, Shard>>,
}

impl Before<'_> {
    fn games(&self) -> &HashMap<String, Shard> {
        self.games.get_or_init(|| {
            // What cannot be read is nothing that was encoded.
            let files = shards_in(self.cache).unwrap_or_default();
            let games: Vec<Shard> = files.par_iter().flat_map_iter(|path| file::open(path).unwrap_or_default()).collect();
            games.into_iter().map(|shard| (shard.info.replay.clone(), shard)).collect()
        })
    }
}

/// What a replay was found to be.
enum Content {
    New(Info, Vec<u8>),
    Before(Info, Box<Shard>),
}

fn encode_group(replays: &[PathBuf], before: &Before) -> Result<Group> {
    let mut writer = Writer::new(before.cache)?;
    let (mut contents, mut stamps, mut encoded) = (Vec::with_capacity(replays.len()), Vec::with_capacity(replays.len()), 0);
    // No more than these are in memory.
    for window in replays.chunks(2 * rayon::current_num_threads()) {
        // An archive is read from its first member to the last.
        let in_order = window.iter().any(|path| replay::file_of(path) != path.as_path());
        let in_order: Vec<Option<_>> = window.iter().map(|path| in_order.then(|| read(path))).collect();
        let read = window.par_iter().zip(in_order).map(|(path, ready)| {
            let (stamp, bytes) = ready.unwrap_or_else(|| read(path));
            (stamp, bytes.and_then(|bytes| content(path, &bytes, before)))
        });
        for (stamp, content) in read.collect::<Vec<_>>() {
            stamps.push(stamp);
            contents.push(content.as_ref().map(Content::replay).map_err(Error::to_string));
            match content {
                Ok(Content::New(info, bytes)) => {
                    writer.add(info, &bytes)?;
                    encoded += 1;
                }
                Ok(Content::Before(info, shard)) => writer.keep(info, *shard),
                Err(_) => {}
            }
        }
    }
    let name = name(writer.infos());
    let shards = match &name {
        Some(name) => finish(writer, &before.cache.join(name))?,
        None => Vec::new(),
    };
    let mut warnings = warnings(replays, contents.iter().map(|content| content.as_ref().err()), &shards);
    let seen = stamps.into_iter().zip(contents).map(|(stamp, content)| Some(Seen { stamp: stamp?, content }));
    // A replay that could not be read today may be readable tomorrow.
    if let Some(seen) = seen.collect() {
        let note = Note { shard: name, replays: seen };
        // A cache that is complete may be read-only.
        let failed = note.write(before.cache, replays).err();
        warnings.extend(failed.map(|error| format!("the next start reads these replays again: {error}")));
    }
    Ok(Group { shards, encoded, warnings })
}

impl Content {
    fn replay(&self) -> String {
        match self {
            Self::New(info, _) | Self::Before(info, _) => info.replay.clone(),
        }
    }
}

/// What a file of these games is called; `None` without games.
fn name<'a>(games: impl Iterator<Item = &'a Info>) -> Option<String> {
    let (mut hash, mut any) = (Sha256::new_with_prefix(format!("{VERSION} {HALF_LIFE}")), false);
    for Info { source, replay, .. } in games {
        any = true;
        hash.update(format!(" {replay} {}:{source}", source.len()));
    }
    any.then(|| format!("{}.{EXTENSION}", &hex(hash.finalize())[..32]))
}

/// The games of the file, which another program may have written meanwhile.
fn finish(writer: Writer, path: &Path) -> Result<Vec<Shard>> {
    if let Some(games) = file::open(path).ok().filter(|games| games.iter().map(|shard| &shard.info).eq(writer.infos())) {
        return Ok(games);
    }
    writer.finish(path)?;
    file::open(path)
}

/// A replay's bytes, and the state of its file before they were read: none where it could not be read, and that says nothing of its content.
fn read(path: &Path) -> (Option<Stamp>, Result<Vec<u8>>) {
    let stamp = match stamp(path) {
        Ok(stamp) => stamp,
        Err(error) => return (None, Err(error)),
    };
    match replay::bytes(path) {
        Err(error @ Error::Io { .. }) => (None, Err(error)),
        bytes => (Some(stamp), bytes),
    }
}

fn content(path: &Path, bytes: &[u8], before: &Before) -> Result<Content> {
    let replay = hex(Sha256::digest(bytes));
    let source = path.file_name().unwrap_or_default().to_string_lossy();
    let known = before.games().get(&replay);
    if let Some(shard) = known.filter(|shard| shard.frames(0..shard.info.frames).is_ok()) {
        return Ok(Content::Before(Info { source: source.into_owned(), ..shard.info.clone() }, Box::new(shard.clone())));
    }
    let game = replay::read_bytes(bytes, path)?;
    game.check().map_err(|e| Error::file(path, e))?;
    let (info, bytes) = encode(&game, &source, &replay).map_err(|e| Error::file(path, e))?;
    Ok(Content::New(info, bytes))
}
