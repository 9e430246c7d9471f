//! Replays encoded once: a memory-mapped file per game with both players' views.
//!
//! A shard is a safetensors file in the cache directory, named by the hash of the replay's bytes and of the encoder. For a
//! game of F frames it holds F - 1 rows per player; row r is what is known when the action of frame r + 1 is chosen.
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | `features.0`, `features.1` | F16 | `[F - 1, 288]`, without the player's name |
//! | `ids.0`, `ids.1` | U16 | `[F - 1, 6]` |
//! | `actions.0`, `actions.1` | U8 | `[F, 13]`, the action of every frame |
//! | `returns.0`, `returns.1` | F32 | `[F - 1]`, discounted, from the row's frame on |
//!
//! Half precision halves the size; features lie in [-10, 10], where its error is below 0.004 (0.08 game units in position).
//! Delay, player names and mirroring are not in the shard: they are applied when rows are read.

use candle_models::files::write_atomic;
use candle_models::policy::actions::{ACTION, Action, COMPONENTS};
use candle_models::policy::embedding::{ACTION_STATES, CHARACTERS, Embedding, IDS, SCHEMA, WIDTH};
use candle_models::policy::game::{Fighter, Game};
use candle_models::policy::replay;
use candle_models::{Error, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

/// Raised when the encoding of the same schema changes.
const VERSION: u32 = 1;
/// Half-life of a reward, in frames: four seconds.
const HALF_LIFE: f64 = 240.0;
/// Frames encoded at a time.
const BLOCK: usize = 1024;
const INFO: &str = "shard";

/// What is known of a game beside its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The replay's file name.
    pub source: String,
    /// SHA-256 of the replay's bytes, in hexadecimal.
    pub replay: String,
    /// Name tags of both players; empty where there is none.
    pub names: [String; 2],
    /// Why the recording is incomplete, if it is.
    pub incomplete: Option<String>,
    /// SHA-256 of the tensors, in hexadecimal.
    content: String,
}

#[cfg(test)]
impl Info {
    pub(crate) fn named(source: &str, replay: &str) -> Self {
        let (names, content) = Default::default();
        Self { source: source.to_owned(), replay: replay.to_owned(), names, incomplete: None, content }
    }
}

/// One game.
#[derive(Debug)]
pub struct Shard {
    bytes: Bytes,
    info: Info,
    rows: usize,
    views: [View; 2],
}

/// A shard's file, mapped or in memory.
#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Where a player's tensors lie in the file.
#[derive(Debug, Clone, Default)]
struct View {
    features: Range<usize>,
    ids: Range<usize>,
    actions: Range<usize>,
    returns: Range<usize>,
}

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
/// # Errors
/// If the cache cannot be written, or no replay can be used.
pub fn prepare(replays: &[PathBuf], cache: &Path) -> Result<Prepared> {
    fs::create_dir_all(cache).map_err(Error::io(cache))?;
    let prepared: Vec<Result<One>> = replays.par_iter().map(|path| prepare_one(path, cache)).collect();
    let mut all = Prepared::default();
    let mut seen = HashSet::new();
    for (path, one) in replays.iter().zip(prepared) {
        match one? {
            One::Unusable(reason) => all.warnings.push(format!("passed over: {reason}")),
            One::Ready { shard, encoded, warning } => {
                all.encoded += usize::from(encoded);
                all.warnings.extend(warning);
                if !seen.insert(shard.info.replay.clone()) {
                    all.warnings.push(format!("passed over: {}: the same content as another replay", path.display()));
                    continue;
                }
                all.shards.push(*shard);
            }
        }
    }
    if all.shards.is_empty() {
        let first = all.warnings.first().map_or("the list is empty", String::as_str);
        return Err(Error::Input(format!("none of {} replays can be used; {first}", replays.len())));
    }
    Ok(all)
}

enum One {
    Unusable(Error),
    Ready { shard: Box<Shard>, encoded: bool, warning: Option<String> },
}

/// Errors of the replay are values: only the cache's own failures end the preparation.
fn prepare_one(path: &Path, cache: &Path) -> Result<One> {
    let bytes = match read_limited(path) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(One::Unusable(error)),
    };
    let hash = hex(Sha256::digest(&bytes));
    let file = cache.join(format!("{}.safetensors", key(&hash)));
    let mut warning = None;
    if file.exists() {
        match Shard::open(&file) {
            Ok(shard) => {
                warning = incomplete(path, &shard.info);
                return Ok(One::Ready { shard: Box::new(shard), encoded: false, warning });
            }
            Err(error) => warning = Some(format!("encoded again: {error}")),
        }
    }
    let game = replay::read_bytes(&bytes, path).and_then(|game| check(path, game));
    let game = match game {
        Ok(game) => game,
        Err(error) => return Ok(One::Unusable(error)),
    };
    let source = path.file_name().unwrap_or_default().to_string_lossy();
    let encoded = match encode(&game, &source, &hash) {
        Ok(encoded) => encoded,
        Err(error) => return Ok(One::Unusable(error)),
    };
    write_atomic(&file, &encoded)?;
    let shard = Shard::open(&file)?;
    warning = warning.or_else(|| incomplete(path, &shard.info));
    Ok(One::Ready { shard: Box::new(shard), encoded: true, warning })
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

/// The cache key: another replay, encoder version or schema is another shard.
fn key(replay: &str) -> String {
    let encoder = format!("{VERSION} {HALF_LIFE} {WIDTH} {ACTION_STATES} {CHARACTERS} {SCHEMA:?} {COMPONENTS:?}");
    hex(Sha256::digest(format!("{replay} {encoder}")))[..32].to_owned()
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// A shard's bytes.
fn encode(game: &Game, source: &str, replay: &str) -> Result<Vec<u8>> {
    let frames = game.frames.len();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::with_capacity(8);
    for player in 0..2 {
        let (features, ids) = encode_rows(game, player)?;
        let returns = returns(game, player).iter().flat_map(|r| r.to_le_bytes()).collect::<Vec<u8>>();
        check_finite(source, player, &features, &returns)?;
        let actions = game.frames.iter().flat_map(|f| Action::from_controller(&f.players[player].controller).classes()).collect();
        tensors.push((format!("features.{player}"), Dtype::F16, vec![frames - 1, WIDTH], features));
        tensors.push((format!("ids.{player}"), Dtype::U16, vec![frames - 1, IDS], ids));
        tensors.push((format!("actions.{player}"), Dtype::U8, vec![frames, ACTION], actions));
        tensors.push((format!("returns.{player}"), Dtype::F32, vec![frames - 1], returns));
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let info = Info {
        source: source.to_owned(),
        replay: replay.to_owned(),
        names: [0, 1].map(|p| game.players[p].name.clone()),
        incomplete: game.incomplete.clone(),
        content: content(tensors.iter().map(|t| t.3.as_slice())),
    };
    let info = serde_json::to_string(&info).map_err(|e| Error::Input(format!("shard of {source}: {e}")))?;
    let failed = |e: safetensors::SafeTensorError| Error::Input(format!("shard of {source}: {e}"));
    let mut views = Vec::with_capacity(tensors.len());
    for (name, dtype, shape, bytes) in &tensors {
        views.push((name.clone(), TensorView::new(*dtype, shape.clone(), bytes).map_err(failed)?));
    }
    safetensors::serialize(views, Some(HashMap::from([(INFO.to_owned(), info)]))).map_err(failed)
}

fn encode_rows(game: &Game, player: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    let (embedding, rows) = (Embedding::default(), game.frames.len() - 1);
    let (mut features, mut ids) = (vec![0f32; BLOCK * WIDTH], vec![0u32; BLOCK * IDS]);
    let mut halves = vec![f16::ZERO; BLOCK * WIDTH];
    let (mut feature_bytes, mut id_bytes) = (Vec::with_capacity(rows * WIDTH * 2), Vec::with_capacity(rows * IDS * 2));
    for start in (0..rows).step_by(BLOCK) {
        let n = BLOCK.min(rows - start);
        let (features, ids, halves) = (&mut features[..n * WIDTH], &mut ids[..n * IDS], &mut halves[..n * WIDTH]);
        embedding.encode_game(game, start + 1..start + 1 + n, player, None, features, ids)?;
        halves.convert_from_f32_slice(features);
        feature_bytes.extend(halves.iter().flat_map(|h| h.to_le_bytes()));
        id_bytes.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes()));
    }
    Ok((feature_bytes, id_bytes))
}

/// Refuses numbers that are not finite: one of them in a batch makes the gradient of every parameter so.
fn check_finite(source: &str, player: usize, features: &[u8], returns: &[u8]) -> Result<()> {
    let half = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).is_finite();
    let float = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
    let refused =
        |row: usize, what: &str| Err(Error::Input(format!("{source}: player {player}, row {row}: {what} is not a finite number")));
    for (row, bytes) in features.chunks_exact(WIDTH * 2).enumerate() {
        let row_of = bytes.as_chunks::<2>().0;
        // Without an early end, so that the compiler makes vectors of it: this runs over all data at every start.
        if !row_of.iter().fold(true, |finite, bytes| finite & half(bytes)) {
            let column = row_of.iter().position(|bytes| !half(bytes)).unwrap_or_default();
            let field = SCHEMA.iter().rfind(|field| field.offset <= column).map_or("", |field| field.name);
            return refused(row, &format!("feature {column} ({field})"));
        }
    }
    match returns.as_chunks::<4>().0.iter().position(|bytes| !float(bytes)) {
        Some(row) => refused(row, "the return"),
        None => Ok(()),
    }
}

/// Per row, the discounted sum of rewards from its frame on: +1 when the opponent loses a stock, -1 when the player does,
/// 0.01 for each percent of damage dealt, minus that for each taken.
fn returns(game: &Game, player: usize) -> Vec<f32> {
    let discount = 0.5f64.powf(1.0 / HALF_LIFE);
    let loss = |before: &Fighter, after: &Fighter| {
        let stocks = f64::from(before.stocks.saturating_sub(after.stocks));
        stocks + 0.01 * f64::from(after.percent - before.percent).clamp(0.0, 999.0)
    };
    let mut value = 0.0;
    let mut returns: Vec<f32> = game
        .frames
        .windows(2)
        .rev()
        .map(|pair| {
            let of = |p: usize| loss(&pair[0].players[p].fighter, &pair[1].players[p].fighter);
            value = of(1 - player) - of(player) + discount * value;
            value as f32
        })
        .collect();
    returns.reverse();
    returns
}

fn content<'a>(tensors: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    tensors.for_each(|bytes| hash.update(bytes));
    hex(hash.finalize())
}

impl Shard {
    /// Maps a shard and checks that it is what was written.
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: the cache's files are replaced by renames and never changed in place; a foreign process that does so anyway
        // can change values under us, which reading tolerates: every byte pattern is a valid number.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        Self::parse(Bytes::Mapped(map), path)
    }

    /// A game in memory, without a file. `source` stands for the replay's name.
    ///
    /// # Errors
    /// If the game has fewer than two frames.
    pub fn from_game(game: &Game, source: &str) -> Result<Self> {
        if game.frames.len() < 2 {
            return Err(Error::Input(format!("{source}: expected at least 2 frames, found {}", game.frames.len())));
        }
        Self::parse(Bytes::Owned(encode(game, source, &hex(Sha256::digest(source)))?), Path::new(source))
    }

    fn parse(bytes: Bytes, path: &Path) -> Result<Self> {
        let map: &[u8] = &bytes;
        let damaged = |reason: &dyn std::fmt::Display| Error::file(path, format!("damaged shard: {reason}"));
        let (_, header) = SafeTensors::read_metadata(map).map_err(|e| damaged(&e))?;
        let info = header.metadata().as_ref().and_then(|m| m.get(INFO)).ok_or_else(|| damaged(&"no description"))?;
        let info: Info = serde_json::from_str(info).map_err(|e| damaged(&e))?;
        let tensors = SafeTensors::deserialize(map).map_err(|e| damaged(&e))?;
        let mut names = tensors.names();
        names.sort_unstable();
        let data = names.iter().map(|n| tensors.tensor(n).map(|t| t.data())).collect::<Result<Vec<_>, _>>().map_err(|e| damaged(&e))?;
        if content(data.into_iter()) != info.content {
            return Err(damaged(&"its content does not have the hash that was written"));
        }
        let place = |name: String, dtype: Dtype, shape: &[usize]| -> Result<Range<usize>> {
            let view = tensors.tensor(&name).map_err(|e| damaged(&e))?;
            if view.dtype() != dtype || view.shape() != shape {
                return Err(damaged(&format!("{name}: expected {dtype:?} {shape:?}, found {:?} {:?}", view.dtype(), view.shape())));
            }
            let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
            Ok(start..start + view.data().len())
        };
        let rows = tensors.tensor("returns.0").map_err(|e| damaged(&e))?.shape().first().copied().unwrap_or(0);
        let view = |p: usize| -> Result<View> {
            Ok(View {
                features: place(format!("features.{p}"), Dtype::F16, &[rows, WIDTH])?,
                ids: place(format!("ids.{p}"), Dtype::U16, &[rows, IDS])?,
                actions: place(format!("actions.{p}"), Dtype::U8, &[rows + 1, ACTION])?,
                returns: place(format!("returns.{p}"), Dtype::F32, &[rows])?,
            })
        };
        let views = [view(0)?, view(1)?];
        for (player, view) in views.iter().enumerate() {
            check_finite(&info.source, player, &map[view.features.clone()], &map[view.returns.clone()])
                .map_err(|e| Error::file(path, e))?;
        }
        Ok(Self { info, rows, views, bytes })
    }

    /// What is known of the game.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Rows of a view: one fewer than the game has frames.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The actions of a player, frame by frame: row r's action is the one of frame r + 1.
    pub fn action(&self, player: usize, frame: usize) -> [u8; ACTION] {
        let bytes = &self.bytes[self.views[player].actions.clone()][frame * ACTION..(frame + 1) * ACTION];
        std::array::from_fn(|i| bytes[i])
    }

    /// Writes the features `[n, 288]` and ids `[n, 6]` of some rows.
    pub fn observations(&self, player: usize, rows: Range<usize>, features: &mut [f32], ids: &mut [u32]) {
        let view = &self.views[player];
        let bytes = &self.bytes[view.features.clone()][rows.start * WIDTH * 2..rows.end * WIDTH * 2];
        // Widening by hand keeps the bytes free of alignment; the compiler turns the loop into vector conversions.
        let mut block = [f16::ZERO; WIDTH];
        for (row, bytes) in features.chunks_exact_mut(WIDTH).zip(bytes.chunks_exact(WIDTH * 2)) {
            block.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(h, b)| *h = f16::from_le_bytes([b[0], b[1]]));
            block.convert_to_f32_slice(row);
        }
        let bytes = &self.bytes[view.ids.clone()][rows.start * IDS * 2..rows.end * IDS * 2];
        ids.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(id, b)| *id = u16::from_le_bytes([b[0], b[1]]).into());
    }

    /// Writes the returns of some rows.
    pub fn returns(&self, player: usize, rows: Range<usize>, out: &mut [f32]) {
        let bytes = &self.bytes[self.views[player].returns.clone()][rows.start * 4..rows.end * 4];
        out.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(r, b)| *r = f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Games of random numbers: nothing in them follows from anything else.
    use super::*;
    use candle_models::policy::game::{Controller, Frame, Player, PlayerFrame};
    use candle_models::random::Random;
    use std::sync::Arc;

    pub fn game(seed: u64, frames: usize) -> Game {
        let player = |random: Random| {
            let u = |i: u64| random.uniform(i);
            let controller = Controller {
                buttons: (random.bits(0) & 0x1ff0) as u16,
                main_stick: [2.0 * u(1) - 1.0, 2.0 * u(2) - 1.0],
                c_stick: [2.0 * u(3) - 1.0, 2.0 * u(4) - 1.0],
                shoulder: u(5),
            };
            let fighter = Fighter {
                character: 1,
                action_state: random.below(6, 380) as u16,
                position: [u(7) * 200.0 - 100.0, u(8) * 100.0],
                facing: if u(9) < 0.5 { -1.0 } else { 1.0 },
                percent: u(10) * 150.0,
                stocks: 4,
                ..Fighter::default()
            };
            PlayerFrame { controller, fighter, nana: None }
        };
        let frame = |t: usize| {
            let random = Random::new(seed).at(t as u64);
            Frame { id: t as i32 - 123, players: [player(random.at(0)), player(random.at(1))], ..Frame::default() }
        };
        let names = [format!("P{}", seed % 3), String::new()];
        let players = names.map(|name| Player { name, character: 2, ..Player::default() });
        let [mut first, second] = players;
        first.port = 0;
        let second = Player { port: 1, ..second };
        Game { stage: 31, version: (3, 14, 0), players: [first, second], frames: (0..frames).map(frame).collect(), ..Game::default() }
    }

    /// A shard per length.
    pub fn shards(lengths: &[usize]) -> Vec<Arc<Shard>> {
        let shard = |(i, &frames): (usize, &usize)| Arc::new(Shard::from_game(&game(i as u64, frames), &format!("game{i}")).unwrap());
        lengths.iter().enumerate().map(shard).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_replays(dir: &Path, frames: &[usize]) -> Vec<PathBuf> {
        let write = |(i, &n): (usize, &usize)| {
            let path = dir.join(format!("g{i}.slp"));
            fs::write(&path, replay::to_bytes(&testing::game(i as u64, n)).unwrap()).unwrap();
            path
        };
        frames.iter().enumerate().map(write).collect()
    }

    #[test]
    fn rows_are_what_the_encoder_gives() {
        let game = testing::game(1, BLOCK + 100);
        let shard = Shard::from_game(&game, "g").unwrap();
        assert_eq!(shard.rows(), BLOCK + 99);
        for player in 0..2 {
            let rows = BLOCK - 5..BLOCK + 99; // Across the border of two blocks.
            let (mut features, mut ids) = (vec![0.0; rows.len() * WIDTH], vec![0; rows.len() * IDS]);
            shard.observations(player, rows.clone(), &mut features, &mut ids);
            let (mut expected, mut expected_ids) = ([0.0; WIDTH], [0; IDS]);
            for (i, row) in rows.enumerate() {
                Embedding::default().encode(&game, row + 1, player, None, &mut expected, &mut expected_ids).unwrap();
                assert_eq!(ids[i * IDS..][..IDS], expected_ids);
                for (k, (found, expected)) in features[i * WIDTH..].iter().zip(expected).enumerate() {
                    // Half precision: 11 significant bits.
                    assert!((found - expected).abs() <= 0.0005 * expected.abs(), "column {k}: expected {expected}, found {found}");
                }
                let action = Action::from_controller(&game.frames[row + 1].players[player].controller);
                assert_eq!(shard.action(player, row + 1), action.classes());
            }
        }
    }

    #[test]
    fn every_limit_of_the_schema_survives_half_precision() {
        for field in &SCHEMA {
            for limit in field.clip {
                assert!(limit.abs() <= 10.0 && f16::from_f32(limit).to_f32() == limit, "{}: {limit}", field.name);
            }
        }
        const { assert!(ACTION_STATES < 1 << 16 && CHARACTERS < 1 << 16) };
    }

    #[test]
    fn returns_are_discounted_rewards() {
        let mut game = testing::game(1, 500);
        for frame in &mut game.frames {
            frame.players.iter_mut().for_each(|p| (p.fighter.percent, p.fighter.stocks) = (0.0, 4));
        }
        for frame in &mut game.frames[10..] {
            frame.players[1].fighter.percent = 20.0; // Player 0 hits in frame 10.
        }
        for frame in &mut game.frames[250..] {
            (frame.players[1].fighter.stocks, frame.players[1].fighter.percent) = (3, 0.0);
        }
        let (ours, theirs) = (returns(&game, 0), returns(&game, 1));
        let close = |found: f32, expected: f64| assert!((f64::from(found) - expected).abs() < 1e-6, "expected {expected}, found {found}");
        close(ours[249], 1.0);
        close(ours[9], 0.2 + 0.5); // The stock falls one half-life later.
        close(ours[250], 0.0);
        assert!(ours.iter().zip(&theirs).all(|(a, b)| *a == -b));
    }

    #[test]
    fn the_second_run_reads_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let replays = write_replays(dir.path(), &[30, 50]);
        let cache = dir.path().join("cache");
        let first = prepare(&replays, &cache).unwrap();
        assert_eq!((first.encoded, first.shards.len(), first.shards[1].rows()), (2, 2, 49));
        let second = prepare(&replays, &cache).unwrap();
        assert_eq!((second.encoded, second.shards.len()), (0, 2));
        assert_eq!(second.shards[0].info(), first.shards[0].info());
    }

    #[test]
    fn broken_and_repeated_replays_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut replays = write_replays(dir.path(), &[30]);
        for (name, content) in [("empty.slp", vec![]), ("noise.slp", vec![7; 1000]), ("same.slp", fs::read(&replays[0]).unwrap())] {
            fs::write(dir.path().join(name), content).unwrap();
            replays.push(dir.path().join(name));
        }
        replays.push(dir.path().join("missing.slp"));
        let all = prepare(&replays, &dir.path().join("cache")).unwrap();
        assert_eq!(all.shards.len(), 1);
        for name in ["empty.slp", "noise.slp", "same.slp", "missing.slp"] {
            assert!(all.warnings.iter().any(|w| w.contains(name)), "{name} in {:?}", all.warnings);
        }
        let error = prepare(&replays[1..3], &dir.path().join("cache")).unwrap_err().to_string();
        assert!(error.starts_with("none of 2 replays can be used"), "{error}");
    }

    #[test]
    fn a_damaged_shard_is_found_and_built_again() {
        let dir = tempfile::tempdir().unwrap();
        let replays = write_replays(dir.path(), &[200]);
        let cache = dir.path().join("cache");
        prepare(&replays, &cache).unwrap();
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let good = fs::read(&file).unwrap();
        let damage: [fn(&mut Vec<u8>); 4] = [|b| b.truncate(5000), |b| b.clear(), |b| b[100_000] ^= 4, |b| b[20] ^= 1];
        for (i, damage) in damage.iter().enumerate() {
            let mut bytes = good.clone();
            damage(&mut bytes);
            fs::write(&file, bytes).unwrap();
            let all = prepare(&replays, &cache).unwrap();
            assert_eq!(all.encoded, 1, "damage {i}");
            assert!(all.warnings[0].starts_with("encoded again: "), "{:?}", all.warnings);
            assert_eq!(fs::read(&file).unwrap(), good);
        }
    }

    #[test]
    fn what_is_not_a_number_is_refused_by_game_player_and_row() {
        // Of a game, the encoder takes what is not finite for zero; the return of a game in memory is the way past it.
        let mut game = testing::game(1, 50);
        game.frames[20].players[1].fighter.percent = f32::NAN;
        let error = Shard::from_game(&game, "g1").map(drop).unwrap_err().to_string();
        assert_eq!(error, "g1: player 0, row 0: the return is not a finite number");

        // In a shard that somebody else wrote, hash and all.
        let mut bytes = encode(&testing::game(1, 50), "g1", "").unwrap();
        let good = Shard::parse(Bytes::Owned(bytes.clone()), Path::new("x")).unwrap();
        let place = good.views[1].features.start + (5 * WIDTH + 3) * 2;
        bytes[place..place + 2].copy_from_slice(&f16::NAN.to_le_bytes());
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut names = tensors.names();
        names.sort_unstable();
        let hash = content(names.iter().map(|name| tensors.tensor(name).unwrap().data()));
        let (at, old) = (bytes.windows(64).position(|w| w == good.info.content.as_bytes()).unwrap(), good.info.content.len());
        bytes[at..at + old].copy_from_slice(hash.as_bytes());
        let error = Shard::parse(Bytes::Owned(bytes.clone()), Path::new("x")).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("x: g1: player 1, row 5: feature 3 (") && error.ends_with(") is not a finite number"), "{error}");

        // In the cache: it is built again, and the reason is told.
        let dir = tempfile::tempdir().unwrap();
        let (replays, cache) = (write_replays(dir.path(), &[50]), dir.path().join("cache"));
        prepare(&replays, &cache).unwrap();
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, bytes).unwrap();
        let all = prepare(&replays, &cache).unwrap();
        assert_eq!((all.encoded, all.shards.len()), (1, 1));
        assert!(all.warnings[0].contains("player 1, row 5"), "{:?}", all.warnings);
    }
}
