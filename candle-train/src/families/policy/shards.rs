//! Replays encoded once: games as they were recorded, many of them in a file, read frame by frame.
//!
//! A shard is a safetensors file. Its metadata has one key, `shard`: `version` and, for each game, an [`Info`]; the bytes of game i are the
//! tensor `i`, U8: where each of its frames begins and the last one ends, as u32, and then the frames, which `record.rs` describes. Values are
//! those of the recording in its own types, half of a replay's size or less; features, ids and actions are made of them when rows are read, and
//! are rounded to half precision (features lie in [-10, 10], where its error is below 0.004, or 0.08 game units in position).
//! Delay, player names and mirroring are not in the shard either.
//!
//! Which games lie together and what the file is called follows from the replays alone ([`prepare`]): programs that each encode a part of them, on
//! as many machines as there are, write the files that one of them would.
//!
//! A start reads the files' headers. Behind them nothing is read but the frames of the rows asked for, and every frame has a checksum:
//! a file that is damaged, cut, or of other content than its header says ends the run with its name, and gives no wrong row.
//! Nothing of the data stays in memory but the pages that the system keeps, and no more than 128 files are open. Rows that are read soon
//! are asked of the disk ahead of time ([`Shard::expect`]).

mod encode;
mod file;
#[cfg(feature = "slippi")]
mod notes;
#[cfg(feature = "slippi")]
mod prepare;
mod record;

#[cfg(feature = "slippi")]
pub use prepare::{Part, Prepared, collect, encode_part, prepare};

use candle_models::policy::actions::Action;
use candle_models::policy::embedding::{Embedding, IDS, WIDTH};
use candle_models::policy::game::{Frame, Game};
use candle_models::{Error, Result, hex};
use encode::encode;
use file::File;
use half::f16;
use half::slice::HalfFloatSliceExt;
use record::Record;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Raised when a game is encoded otherwise, or replays are read otherwise: what was encoded before is encoded anew.
const VERSION: u32 = 3;
/// Half-life of a reward, in frames: four seconds.
const HALF_LIFE: f64 = 240.0;
/// Files of shards that are open at a time: the lanes of a batch lie in fewer.
const OPEN: usize = 128;
/// Bytes of the place where a frame begins.
const END: usize = 4;

/// What is known of a game beside its frames.
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
    /// Stage id.
    stage: u16,
    frames: usize,
}

#[cfg(test)]
impl Info {
    pub(crate) fn named(source: &str, replay: &str) -> Self {
        let (names, codes, computers) = Default::default();
        let (recorded, incomplete, stage, frames) = (None, None, 31, 2);
        Self { source: source.to_owned(), replay: replay.to_owned(), names, codes, computers, recorded, incomplete, stage, frames }
    }
}

/// One game.
#[derive(Debug, Clone)]
pub struct Shard {
    info: Info,
    seed: u32,
    bytes: Bytes,
}

/// Where a game's bytes are.
#[derive(Debug, Clone)]
enum Bytes {
    Memory(Arc<[u8]>),
    File(Arc<File>, Range<u64>),
}

impl Shard {
    /// A game in memory, without a file. `source` stands for the replay's name.
    ///
    /// # Errors
    /// If the game has fewer than two frames, or a value that is not finite is rewarded.
    pub fn from_game(game: &Game, source: &str) -> Result<Self> {
        let (info, bytes) = encode(game, source, &hex(Sha256::digest(source)))?;
        Ok(Self::new(info, Bytes::Memory(bytes.into())))
    }

    fn new(info: Info, bytes: Bytes) -> Self {
        Self { seed: record::seed(&info.replay), info, bytes }
    }

    /// What is known of the game.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Rows of a view: one fewer than the game has frames. Row r is what is known when the action of frame r + 1 is chosen.
    pub fn rows(&self) -> usize {
        self.info.frames - 1
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.len(),
            Bytes::File(_, place) => (place.end - place.start) as usize,
        }
    }

    /// Consecutive frames, checked.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn frames(&self, frames: Range<usize>) -> Result<Frames<'_>> {
        let head = END * (self.info.frames + 1);
        let ends = self.read(END * frames.start..END * (frames.end + 1))?;
        let ends: Vec<usize> = ends.chunks_exact(END).map(|end| u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize).collect();
        let [first, last] = [ends.first(), ends.last()].map(|end| end.copied().unwrap_or_default());
        if !ends.is_sorted() || last > self.bytes() - head {
            return Err(self.damaged(frames.start));
        }
        let bytes = self.read(head + first..head + last)?;
        let found = Frames { shard: self, first: frames.start, bytes, ends };
        let damaged = frames.clone().find(|frame| !record::is_whole(found.bytes_of(*frame), self.seed, *frame));
        damaged.map_or(Ok(found), |frame| Err(self.damaged(frame)))
    }

    /// Bytes of the game.
    fn read(&self, place: Range<usize>) -> Result<Cow<'_, [u8]>> {
        match &self.bytes {
            Bytes::Memory(bytes) => Ok(Cow::Borrowed(&bytes[place])),
            Bytes::File(file, game) => Ok(Cow::Owned(file.read(game.start + place.start as u64, place.len())?)),
        }
    }

    fn damaged(&self, frame: usize) -> Error {
        let reason = format!("{}, frame {frame}: damaged", self.info.source);
        match &self.bytes {
            Bytes::Memory(_) => Error::Input(reason),
            Bytes::File(file, _) => file.damaged(&reason),
        }
    }

    /// Says that frames are read soon: the system may fetch them from the disk meanwhile.
    pub fn expect(&self, frames: Range<usize>) {
        let Bytes::File(file, game) = &self.bytes else { return };
        let head = END * (self.info.frames + 1);
        file.expect(game.start + (END * frames.start) as u64, END * (frames.len() + 1));
        // Where a frame lies stands in the bytes that are asked for just now; all are of about the same size.
        let place = |frame: usize| (self.bytes() - head) as u64 * frame as u64 / self.info.frames as u64;
        let [start, end] = [frames.start, frames.end].map(place);
        file.expect(game.start + head as u64 + start, (end - start) as usize);
    }
}

/// Consecutive frames of a game.
#[derive(Debug)]
pub struct Frames<'a> {
    shard: &'a Shard,
    first: usize,
    bytes: Cow<'a, [u8]>,
    ends: Vec<usize>,
}

impl Frames<'_> {
    fn bytes_of(&self, frame: usize) -> &[u8] {
        let at = frame - self.first;
        &self.bytes[self.ends[at] - self.ends[0]..self.ends[at + 1] - self.ends[0]]
    }

    /// A player's action in a frame.
    pub fn action(&self, player: usize, frame: usize) -> Action {
        Action::from_controller(&Record(self.bytes_of(frame)).controller(player))
    }

    /// Writes the features `[n, 288]`, without the player's name, the ids `[n, 6]` and the returns `[n]` of some rows.
    pub fn observe(&self, player: usize, rows: Range<usize>, features: &mut [f32], ids: &mut [u32], returns: &mut [f32]) -> Result<()> {
        let mut seen = Game { stage: self.shard.info.stage, frames: vec![Frame::default()], ..Game::default() };
        let (embedding, mut halves) = (Embedding::default(), [f16::ZERO; WIDTH]);
        let out = features.chunks_exact_mut(WIDTH).zip(ids.chunks_exact_mut(IDS)).zip(returns);
        for (row, ((features, ids), value)) in rows.zip(out) {
            let record = Record(self.bytes_of(row));
            (seen.frames[0], *value) = (record.frame(), record.value(player));
            embedding.encode(&seen, 1, player, None, features, ids)?;
            halves.convert_from_f32_slice(features);
            halves.convert_to_f32_slice(features);
        }
        Ok(())
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
