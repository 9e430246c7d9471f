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
//!
//! Nothing of the data stays in memory but the pages that the system keeps, so that it may be larger than that. A shard is checked
//! when it is written or first seen, against its hash and for numbers that are not finite; `checked.json` beside the shards
//! remembers which state of each file that was, and a later start reads the headers only. Rows that are read soon are asked of the
//! disk ahead of time ([`Shard::expect`]).

mod checked;
mod encode;
#[cfg(feature = "slippi")]
mod prepare;

#[cfg(feature = "slippi")]
pub use prepare::{Prepared, prepare};

use crate::identity::hex;
use crate::stamp::Stamp;
use candle_models::policy::actions::{ACTION, COMPONENTS};
use candle_models::policy::embedding::{ACTION_STATES, CHARACTERS, IDS, SCHEMA, WIDTH};
use candle_models::policy::game::Game;
use candle_models::{Error, Result};
use encode::{check_finite, encode};
use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::{Advice, Mmap};
use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;

/// Raised when the encoding of the same schema changes.
const VERSION: u32 = 2;
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
    /// Netplay connect codes; empty where there is none.
    pub codes: [String; 2],
    /// Which of them is the computer.
    pub computers: [bool; 2],
    /// When the recording began, in seconds since 1970 by the recording machine's clock.
    pub recorded: Option<i64>,
    /// Why the recording is incomplete, if it is.
    pub incomplete: Option<String>,
    /// SHA-256 of the tensors, in hexadecimal.
    content: String,
}

#[cfg(test)]
impl Info {
    pub(crate) fn named(source: &str, replay: &str) -> Self {
        let (names, codes, computers, content) = Default::default();
        Self { source: source.to_owned(), replay: replay.to_owned(), names, codes, computers, recorded: None, incomplete: None, content }
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

/// The cache key: another replay, encoder version or schema is another shard.
fn key(replay: &str) -> String {
    let encoder = format!("{VERSION} {HALF_LIFE} {WIDTH} {ACTION_STATES} {CHARACTERS} {SCHEMA:?} {COMPONENTS:?}");
    hex(Sha256::digest(format!("{replay} {encoder}")))[..32].to_owned()
}

fn content_of(tensors: &SafeTensors) -> std::result::Result<String, safetensors::SafeTensorError> {
    let mut names = tensors.names();
    names.sort_unstable();
    let data = names.iter().map(|n| tensors.tensor(n).map(|t| t.data())).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(content(data.into_iter()))
}

fn content<'a>(tensors: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    tensors.for_each(|bytes| hash.update(bytes));
    hex(hash.finalize())
}

impl Shard {
    /// Maps a shard: its header is read. What is behind it is not, see [`Self::check`].
    fn map(path: &Path) -> Result<(Self, Stamp)> {
        let file = File::open(path).map_err(Error::io(path))?;
        let stamp = Stamp::of(&file.metadata().map_err(Error::io(path))?);
        // SAFETY: the cache's files are replaced by renames and never changed in place; a foreign process that does so anyway
        // can change values under us, which reading tolerates: every byte pattern is a valid number.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok((Self::parse(Bytes::Mapped(map), path)?, stamp))
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
        Ok(Self { info, rows, views, bytes })
    }

    /// Reads all of it: whether it is what was written, in finite numbers.
    fn check(&self, path: &Path) -> Result<()> {
        self.advise(Advice::Sequential, 0..self.bytes.len());
        let damaged = |reason: &dyn std::fmt::Display| Error::file(path, format!("damaged shard: {reason}"));
        let tensors = SafeTensors::deserialize(&self.bytes).map_err(|e| damaged(&e))?;
        if content_of(&tensors).map_err(|e| damaged(&e))? != self.info.content {
            return Err(damaged(&"its content does not have the hash that was written"));
        }
        for (player, view) in self.views.iter().enumerate() {
            let [features, returns] = [&view.features, &view.returns].map(|place| &self.bytes[place.clone()]);
            check_finite(&self.info.source, player, features, returns).map_err(|e| Error::file(path, e))?;
        }
        self.advise(Advice::Normal, 0..self.bytes.len());
        Ok(())
    }

    /// Advice is no more than that: what the system makes of it is not our concern.
    fn advise(&self, advice: Advice, place: Range<usize>) {
        if let Bytes::Mapped(map) = &self.bytes {
            let _ = map.advise_range(advice, place.start, place.len());
        }
    }

    /// Says that rows and actions of a player are read soon: the system may fetch them from the disk meanwhile.
    pub fn expect(&self, player: usize, rows: Range<usize>, frames: Range<usize>) {
        let view = &self.views[player];
        let parts =
            [(&view.features, WIDTH * 2, &rows), (&view.ids, IDS * 2, &rows), (&view.returns, 4, &rows), (&view.actions, ACTION, &frames)];
        for (tensor, width, part) in parts {
            self.advise(Advice::WillNeed, tensor.start + part.start * width..tensor.start + part.end * width);
        }
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
        // Bytes of a file have no alignment.
        let mut block = [f16::ZERO; WIDTH];
        for (row, bytes) in features.chunks_exact_mut(WIDTH).zip(bytes.chunks_exact(WIDTH * 2)) {
            bytemuck::cast_slice_mut(&mut block).copy_from_slice(bytes);
            block.convert_to_f32_slice(row);
        }
        let bytes = &self.bytes[view.ids.clone()][rows.start * IDS * 2..rows.end * IDS * 2];
        ids.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(id, b)| *id = u16::from_le_bytes([b[0], b[1]]).into());
    }

    /// Writes the returns of some rows.
    pub fn returns(&self, player: usize, rows: Range<usize>, out: &mut [f32]) {
        let bytes = &self.bytes[self.views[player].returns.clone()][rows.start * 4..rows.end * 4];
        bytemuck::cast_slice_mut(out).copy_from_slice(bytes);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Games of random numbers: nothing in them follows from anything else.
    use super::*;
    use candle_models::policy::game::{Controller, Fighter, Frame, Player, PlayerFrame};
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
mod tests;
