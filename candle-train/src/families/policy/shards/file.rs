//! Files of many games.

use super::{Bytes, END, Info, OPEN, Shard, VERSION};
use candle_models::files::AtomicFile;
use candle_models::{Error, Result};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The extension of the files.
pub(super) const EXTENSION: &str = "safetensors";
/// The one key of their metadata.
const KEY: &str = "shard";
/// The longest header that is read: a thousand times that of a full file.
const HEADER_LIMIT: u64 = 64 << 20;
/// Games are copied in pieces of this size.
const PIECE: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    games: Vec<Info>,
}

/// What every version's header has.
#[derive(PartialEq, Deserialize)]
struct Version {
    version: u32,
}

/// A file of games. It is opened when it is read, and closed again when many others were read since.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// Which one it is among all that this process has seen.
    number: u64,
}

/// The files that were read last by their numbers, the latest one first.
type Latest = VecDeque<(u64, Arc<fs::File>)>;
static OPENED: Mutex<Latest> = Mutex::new(VecDeque::new());

impl File {
    fn new(path: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { path: path.to_owned(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn opened(&self) -> Result<Arc<fs::File>> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match opened.iter().position(|(number, _)| *number == self.number).and_then(|i| opened.remove(i)) {
            Some((_, file)) => file,
            None => Arc::new(fs::File::open(&self.path).map_err(Error::io(&self.path))?),
        };
        opened.truncate(OPEN - 1);
        opened.push_front((self.number, found.clone()));
        Ok(found)
    }

    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self.opened()?.read_exact_at(&mut bytes, at) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("cut off")),
            Err(error) => Err(Error::io(&self.path)(error)),
        }
    }

    pub fn damaged(&self, reason: &str) -> Error {
        Error::file(&self.path, format!("{reason}: remove the file, and the next start encodes its games again"))
    }

    /// Advice is no more than that: what the system makes of it is not our concern.
    pub fn expect(&self, at: u64, length: usize) {
        #[cfg(target_os = "linux")]
        if let Ok(file) = self.opened() {
            use std::os::fd::AsRawFd;
            // SAFETY: a call without memory, on a file that is open.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), at as i64, length as i64, libc::POSIX_FADV_WILLNEED) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (at, length);
    }
}

/// The games of a file: its header is read, and nothing behind it.
///
/// # Errors
/// If it is no file of games of this version, or not as long as its header says.
pub(super) fn open(path: &Path) -> Result<Vec<Shard>> {
    let damaged = |reason: &dyn std::fmt::Display| Error::file(path, format!("damaged shard: {reason}"));
    let mut input = fs::File::open(path).map_err(Error::io(path))?;
    let length = input.metadata().map_err(Error::io(path))?.len();
    let mut prefix = [0; 8];
    input.read_exact(&mut prefix).map_err(|e| damaged(&e))?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > HEADER_LIMIT.min(length - 8) {
        return Err(damaged(&format!("a header of {header_length} bytes in a file of {length}")));
    }
    let mut text = vec![0; header_length as usize];
    input.read_exact(&mut text).map_err(|e| damaged(&e))?;
    let tensors: Metadata = serde_json::from_slice(&text).map_err(|e| damaged(&e))?;
    let start = 8 + header_length;
    if length - start != tensors.data_len() as u64 {
        return Err(damaged(&format!("expected {} bytes behind its header, found {}", tensors.data_len(), length - start)));
    }
    let header = tensors.metadata().as_ref().and_then(|m| m.get(KEY)).ok_or_else(|| damaged(&"not a shard of this version"))?;
    if serde_json::from_str::<Version>(header).ok() != Some(Version { version: VERSION }) {
        return Err(damaged(&format!("not a shard of version {VERSION}")));
    }
    let header: Header = serde_json::from_str(header).map_err(|e| damaged(&e))?;
    let file = Arc::new(File::new(path));
    let game = |(i, info): (usize, Info)| {
        let tensor = tensors.info(&i.to_string()).filter(|tensor| tensor.dtype == Dtype::U8);
        let (at, end) = tensor.ok_or_else(|| damaged(&format!("no bytes of {}", info.source)))?.data_offsets;
        if info.frames < 2 || info.frames >= (end - at) / END {
            return Err(damaged(&format!("{} has {} frames in {} bytes", info.source, info.frames, end - at)));
        }
        Ok(Shard::new(info, Bytes::File(file.clone(), start + at as u64..start + end as u64)))
    };
    header.games.into_iter().enumerate().map(game).collect()
}

/// A file that is being made. Games lie in a nameless file until the header can be written: a process that is killed leaves nothing.
pub(super) struct Writer {
    spool: fs::File,
    directory: PathBuf,
    written: u64,
    games: Vec<(Info, Body)>,
}

enum Body {
    New(Range<u64>),
    /// In another file, with the same bytes.
    Kept(Box<Shard>),
}

impl Writer {
    pub fn new(directory: &Path) -> Result<Self> {
        let spool = tempfile::tempfile_in(directory).map_err(Error::io(directory))?;
        Ok(Self { spool, directory: directory.to_owned(), written: 0, games: Vec::new() })
    }

    pub fn add(&mut self, info: Info, bytes: &[u8]) -> Result<()> {
        self.spool.write_all(bytes).map_err(Error::io(&self.directory))?;
        let place = self.written..self.written + bytes.len() as u64;
        self.written = place.end;
        self.games.push((info, Body::New(place)));
        Ok(())
    }

    /// A game that is encoded already, and was checked.
    pub fn keep(&mut self, info: Info, shard: Shard) {
        self.games.push((info, Body::Kept(Box::new(shard))));
    }

    /// What the games are.
    pub fn infos(&self) -> impl Iterator<Item = &Info> {
        self.games.iter().map(|(info, _)| info)
    }

    /// Writes the file, complete or not at all.
    ///
    /// # Errors
    /// If the disk is full, or a game that lies in another file cannot be read there.
    pub fn finish(mut self, path: &Path) -> Result<()> {
        let wrong = |e: &dyn std::fmt::Display| Error::file(path, e);
        let (mut at, mut tensors) = (0, Vec::with_capacity(self.games.len()));
        for (i, (_, body)) in self.games.iter().enumerate() {
            let length = match body {
                Body::New(place) => (place.end - place.start) as usize,
                Body::Kept(shard) => shard.bytes(),
            };
            tensors.push((i.to_string(), TensorInfo { dtype: Dtype::U8, shape: vec![length], data_offsets: (at, at + length) }));
            at += length;
        }
        let header = Header { version: VERSION, games: self.infos().cloned().collect() };
        let header = serde_json::to_string(&header).map_err(|e| wrong(&e))?;
        let header = Metadata::new(Some(HashMap::from([(KEY.to_owned(), header)])), tensors).map_err(|e| wrong(&e))?;
        let header = serde_json::to_vec(&header).map_err(|e| wrong(&e))?;
        let mut out = AtomicFile::create(path)?;
        out.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write_all(&header)).map_err(Error::io(path))?;
        for (_, body) in &self.games {
            match body {
                Body::New(place) => {
                    self.spool.seek(SeekFrom::Start(place.start)).map_err(Error::io(path))?;
                    let mut part = io::BufReader::with_capacity(PIECE, (&self.spool).take(place.end - place.start));
                    io::copy(&mut part, &mut out).map_err(Error::io(path))?;
                }
                Body::Kept(shard) => out.write_all(&shard.read(0..shard.bytes())?).map_err(Error::io(path))?,
            }
        }
        out.commit()
    }
}
