//! Slippi replays (`.slp`): reading them into a [`Game`], whole or frame by frame, and writing one.
//!
//! The one module, with its parts, that knows the parsing library. It is driven event by event: every event appends one row to the
//! library's columns, and that row is converted at once. So a file that breaks off keeps all its complete frames, a
//! misplaced event cannot shift the rows of later frames, and memory does not grow with the game.
//!
//! Rollbacks: a frame id that comes again replaces the earlier frame. A panic of the library on a malformed file becomes
//! the reason of the error (or of [`Game::incomplete`]); that needs `panic = "unwind"`.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use peppi::game::{Game as _, NUM_PORTS};
use peppi::io::slippi::FILE_SIGNATURE;
use peppi::io::slippi::de;

use super::game::{Frame, Game};
use crate::files::read_limited;
use crate::{Error, Result};

mod archive;
mod arrivals;
mod parser;
mod write;
pub use archive::file_of;
pub use arrivals::{Arrival, Arrivals};
pub(super) use arrivals::{FRAME_END, GAME_END, GAME_START, PAYLOADS, Sizes};
use parser::{Parser, Progress};
pub use write::{FORMAT, to_bytes, write};

/// Largest file that is read: about an hour and a half of play, ten times the longest timed game.
pub const MAX_BYTES: u64 = 128 << 20;

/// Bytes of a replay before its events: the signature and how many bytes of events there are, 0 while it is being recorded.
pub const HEADER_BYTES: usize = FILE_SIGNATURE.len() + 4;

/// How many frames back a rollback may reach. The game itself rolls back at most 7.
pub const MAX_ROLLBACK: usize = 128;

/// The largest block of file metadata that is looked at, and the deepest nesting: the library reads it by recursion.
const MAX_METADATA: u64 = 64 << 10;
const MAX_METADATA_MAPS: usize = 64;

/// Reads a replay of two players, of whom one may be the computer.
///
/// Values that the format version does not have, and numbers that are not finite, are zero. Characters and stages are
/// not judged here: see [`Game::check`].
///
/// # Errors
/// [`Error::Io`] when the file cannot be opened; [`Error::File`] when it is no replay, is larger than [`MAX_BYTES`], has
/// other than two players or no human one, or holds no complete frame. A damaged or unfinished file with complete frames is no
/// error: see [`Game::incomplete`].
pub fn read(path: impl AsRef<Path>) -> Result<Game> {
    // Not generic inside: the parser is compiled here, once and optimised, whatever the crate that calls it is.
    fn read(path: &Path) -> Result<Game> {
        Reader::open(path).map(Reader::into_game)
    }
    read(path.as_ref())
}

/// [`read`] from memory; `name` stands for the path in errors.
pub fn read_bytes(bytes: &[u8], name: impl AsRef<Path>) -> Result<Game> {
    fn read_bytes(bytes: &[u8], name: &Path) -> Result<Game> {
        Reader::new(Cursor::new(bytes), name).map(Reader::into_game)
    }
    read_bytes(bytes, name.as_ref())
}

/// The replays among files, folders and archives: a file as it is named, a folder's `.slp` files (any depth) in sorted order, those of an archive
/// (`.zip`, `.tar`, `.tar.gz`, `.tgz`) in its own order and as paths below it: `games.zip/a.slp`, which [`read`] and its like take too. Archives in
/// a folder are not looked into.
///
/// # Errors
/// [`Error::Io`] for a path that does not exist or cannot be listed; [`Error::File`] for a folder or an archive without replays, and for an archive
/// that is damaged, unpacks to far more than replays would, or has a member that names a place outside of it.
pub fn collect<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if !file_of(path).metadata().map_err(Error::io(path))?.is_dir() {
            match archive::is_archive(path) {
                true => files.extend(archive::list(path)?),
                false => files.push(path.to_owned()),
            }
            continue;
        }
        let before = files.len();
        collect_folder(path, &mut files)?;
        if files.len() == before {
            return Err(Error::file(path, "the folder holds no .slp file (archives in it are to be named themselves)"));
        }
        files[before..].sort();
    }
    Ok(files)
}

/// Links to folders are not followed: they may form a circle.
fn collect_folder(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder.read_dir().map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io(&path))?;
        if kind.is_dir() {
            collect_folder(&path, files)?;
        } else if is_replay(&path) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether a path is called as replays are.
pub fn is_replay(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("slp"))
}

/// The bytes of a replay, which may lie in an archive.
///
/// # Errors
/// [`Error::Io`] when it cannot be read, [`Error::File`] when it is larger than [`MAX_BYTES`] or the archive is damaged.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    match file_of(path) {
        archive if archive != path => archive::read(archive, path),
        _ => read_limited(path, MAX_BYTES),
    }
}

/// Reads a replay frame by frame, in constant memory: an iterator over the frames that [`Game::frames`] would hold.
pub struct Reader<R> {
    input: Counted<R>,
    parser: Parser,
    /// Everything but the frames.
    game: Game,
    /// Frames that a rollback may still replace, by rising id without gaps.
    window: VecDeque<Frame>,
    /// Bytes of events by the file's header; 0 when the recording was never closed.
    declared: u64,
    done: bool,
}

/// A replay's file, or its bytes where it lies in an archive.
pub enum Input {
    /// A file.
    File(BufReader<File>),
    /// Bytes.
    Bytes(Cursor<Vec<u8>>),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Bytes(bytes) => bytes.read(buffer),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(position),
            Self::Bytes(bytes) => bytes.seek(position),
        }
    }
}

impl Reader<Input> {
    /// Opens a replay; the errors are those of [`read`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if file_of(path) != path {
            return Self::new(Input::Bytes(Cursor::new(bytes(path)?)), path);
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let data = file.metadata().map_err(Error::io(path))?;
        if data.is_dir() {
            return Err(Error::file(path, "is a directory, not a replay"));
        }
        if data.len() > MAX_BYTES {
            return Err(Error::file(path, format!("{} bytes are too many for a replay (at most {MAX_BYTES})", data.len())));
        }
        Self::new(Input::File(BufReader::with_capacity(64 << 10, file)), path)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads from any source that starts at a replay's first byte; `name` stands for the path in errors.
    pub fn new(input: R, name: impl AsRef<Path>) -> Result<Self> {
        Self::start(input).and_then(Self::first_frames).map_err(|reason| Error::file(name, reason))
    }

    fn start(mut input: R) -> Result<Self, String> {
        let mut head = [0; HEADER_BYTES];
        match input.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err("too short for a Slippi replay".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let declared = declared_bytes(&head)?;
        let mut input = Counted { inner: input, count: 0 };
        let mut parser = Parser::start(&mut input)?;
        let (players, recorded) = parser.players(|parser| read_metadata(&mut input, declared, parser))?;
        let game = Game { stage: parser.stage(), version: parser.version(), players, recorded, ..Game::default() };
        let window = VecDeque::with_capacity(MAX_ROLLBACK + 1);
        Ok(Self { input, parser, game, window, declared, done: false })
    }

    /// A file without a single complete frame is refused at once.
    fn first_frames(mut self) -> Result<Self, String> {
        self.fill();
        if self.window.is_empty() {
            let reason = self.game.incomplete.map_or(String::new(), |reason| format!(": {reason}"));
            return Err(format!("no complete frame{reason}"));
        }
        Ok(self)
    }

    /// Reads until a frame is out of a rollback's reach, or to the end.
    fn fill(&mut self) {
        while !self.done && self.window.len() <= MAX_ROLLBACK {
            match self.advance() {
                Ok(Progress::Frame(frame)) => {
                    if let Err(reason) = self.accept(frame) {
                        self.stop(Some(reason));
                    }
                }
                Ok(Progress::Event) => {}
                Ok(Progress::End) => self.stop_after_last(None),
                Err(reason) => self.stop_after_last(Some(reason)),
            }
        }
    }

    fn advance(&mut self) -> Result<Progress, String> {
        if self.declared > 0 && self.input.count >= self.declared {
            return Err("the recording has no game end".to_owned());
        }
        let at = self.input.count;
        self.parser.event(&mut self.input).map_err(|reason| {
            let total = if self.declared > 0 { format!(" of {}", self.declared) } else { String::new() };
            format!("{reason} (event byte {at}{total})")
        })
    }

    /// Ends the reading; before format 3.0 nothing but the next frame says that a frame is complete.
    fn stop_after_last(&mut self, reason: Option<String>) {
        let last = self.parser.last_frame().map_or(Ok(()), |frame| self.accept(frame));
        self.stop(reason.or(last.err()));
    }

    fn stop(&mut self, reason: Option<String>) {
        self.done = true;
        self.game.incomplete = reason;
    }

    fn accept(&mut self, frame: Frame) -> Result<(), String> {
        self.game.raw_frames += 1;
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            self.window.push_back(frame);
            return Ok(());
        };
        match place(first.id, last.id, frame.id)? {
            index if index == self.window.len() => self.window.push_back(frame),
            index => self.window[index] = frame,
        }
        Ok(())
    }

    /// What is known so far: everything of the game but its frames. `raw_frames` and `incomplete` are final when the
    /// iterator has ended.
    pub fn game(&self) -> &Game {
        &self.game
    }

    /// Reads the rest.
    pub fn into_game(mut self) -> Game {
        let frames = self.by_ref().collect();
        Game { frames, ..self.game }
    }
}

impl<R: Read + Seek> Iterator for Reader<R> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        self.fill();
        self.window.pop_front()
    }
}

/// How many bytes of events a file's header declares.
pub(super) fn declared_bytes(head: &[u8; HEADER_BYTES]) -> Result<u64, String> {
    match head.strip_prefix(&FILE_SIGNATURE) {
        Some(&[a, b, c, d]) => Ok(u64::from(u32::from_be_bytes([a, b, c, d]))),
        _ => Err("not a Slippi replay: the signature is missing".to_owned()),
    }
}

/// Where a frame belongs among the frames `first` to `last`, which a rollback may replace: on one of them, or right behind.
fn place(first: i32, last: i32, id: i32) -> Result<usize, String> {
    match usize::try_from(i64::from(id) - i64::from(first)) {
        Ok(index) if i64::from(id) <= i64::from(last) + 1 => Ok(index),
        Ok(_) => Err(format!("frame {id} follows frame {last}: frames are missing")),
        Err(_) => Err(format!("frame {id} after frame {last} is no rollback: it reaches back more than {MAX_ROLLBACK} frames")),
    }
}

/// What the block after the events knows.
#[derive(Default)]
struct Known {
    /// Netplay name and connect code by port; formats from 3.9 on have them among the events, too.
    players: [[String; 2]; NUM_PORTS],
    recorded: Option<i64>,
}

/// Whatever is wrong with the block costs only what it knows.
fn read_metadata<R: Read + Seek>(input: &mut Counted<R>, declared: u64, parser: &mut Parser) -> Known {
    let mut known = Known::default();
    if declared == 0 {
        return known;
    }
    let Ok(bytes) = input.peek(declared, MAX_METADATA) else { return known };
    let maps = bytes.iter().filter(|byte| **byte == b'{').count();
    if bytes.first() != Some(&b'U') || maps > MAX_METADATA_MAPS {
        return known;
    }
    if guarded(|| de::parse_metadata(&bytes[1..], &mut parser.state, None)).is_err() {
        return known;
    }
    let Some(map) = parser.state.metadata().as_ref() else { return known };
    for (port, texts) in known.players.iter_mut().enumerate() {
        let names = map.get("players").and_then(|players| players.get(port.to_string())?.get("names"));
        let text = |key: &str| names.and_then(|names| names.get(key)?.as_str()).unwrap_or_default().to_owned();
        *texts = [text("netplay"), text("code")];
    }
    known.recorded = map.get("startAt").and_then(|time| seconds(time.as_str()?));
    known
}

/// Seconds since 1970 of a date and time like `2022-12-28T01:34:58Z`. Fractions and time zones are not looked at.
fn seconds(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u16>().ok().map(i64::from);
    let [year, month, day] = [number(0..4)?, number(5..7)?, number(8..10)?];
    let [hour, minute, second] = [number(11..13)?, number(14..16)?, number(17..19)?];
    if !((1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60) {
        return None;
    }
    // Years from March on, so that the day that comes and goes is the last one (Hinnant's days_from_civil).
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// A source that knows how much of it was read.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        Ok(read)
    }
}

impl<R: Read + Seek> Counted<R> {
    /// At most `limit` bytes from `offset` (counted like `count`), without moving.
    fn peek(&mut self, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let here = self.inner.stream_position()?;
        let start = here - self.count;
        self.inner.seek(SeekFrom::Start(start + offset))?;
        let mut bytes = Vec::new();
        self.inner.by_ref().take(limit).read_to_end(&mut bytes)?;
        self.inner.seek(SeekFrom::Start(here))?;
        Ok(bytes)
    }
}

thread_local! {
    /// Whether this thread is inside the parsing library, whose panics are answers and not reports.
    static PARSING: Cell<bool> = const { Cell::new(false) };
}

/// Runs the library; errors and panics come back as one line of text.
fn guarded<T>(parse: impl FnOnce() -> peppi::io::Result<T>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PARSING.get() {
                previous(info);
            }
        }));
    });
    PARSING.set(true);
    // The state is thrown away after a panic: nothing half-changed is looked at.
    let outcome = catch_unwind(AssertUnwindSafe(parse));
    PARSING.set(false);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(peppi::io::Error::Io(error))) if error.kind() == io::ErrorKind::UnexpectedEof => Err("the file breaks off".to_owned()),
        Ok(Err(error)) => Err(one_line(&error.to_string())),
        Err(panic) => Err(format!("malformed event: {}", one_line(panic_text(panic.as_ref())))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
