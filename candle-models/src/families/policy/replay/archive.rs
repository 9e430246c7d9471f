//! Replays in archives (`.zip`, `.tar`, `.tar.gz`, `.tgz`), read into memory one by one.
//!
//! A member is named as if the archive were a folder: `games.zip/2024/a.slp`. Nothing is ever unpacked to the disk.

use super::{MAX_BYTES, is_replay};
use crate::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tar::Header;
use zip::ZipArchive;

/// Bytes that an archive may unpack to for each of its own, and beyond that. Replays shrink to an eighth.
const EXPANSION: u64 = 100;
const ALLOWANCE: u64 = 1 << 30;
/// The longest name of a member, and of what stands for one before it.
const NAME_BYTES: u64 = 64 << 10;
const BLOCK: u64 = 512;
/// The longest rest behind the last member that is looked at.
const PADDING: u64 = 1 << 20;

/// Whether a path is called as archives are.
pub(super) fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    [".zip", ".tar", ".tar.gz", ".tgz"].iter().any(|extension| name.ends_with(extension))
}

/// The file that a replay lies in: itself, or an archive.
pub fn file_of(path: &Path) -> &Path {
    path.ancestors().skip(1).find(|folder| is_archive(folder) && folder.is_file()).unwrap_or(path)
}

/// The replays of an archive, in its own order, as paths below it.
pub(super) fn list(archive: &Path) -> Result<Vec<PathBuf>> {
    let names = Opened::new(archive)?.list().map_err(|reason| Error::file(archive, reason))?;
    let mut seen = HashSet::new();
    let replays: Vec<PathBuf> = names.into_iter().filter(|name| seen.insert(name.clone())).map(|name| archive.join(name)).collect();
    if replays.is_empty() { Err(Error::file(archive, "the archive holds no .slp file")) } else { Ok(replays) }
}

/// The archive that was read last, and what it was: who reads one after the other reads on.
type Last = Option<(PathBuf, u64, SystemTime, Opened)>;

/// The bytes of a replay in an archive. Members of a compressed tar archive are best read in its order.
pub(super) fn read(archive: &Path, path: &Path) -> Result<Vec<u8>> {
    static LAST: Mutex<Last> = Mutex::new(None);
    let metadata = archive.metadata().map_err(Error::io(archive))?;
    let (length, modified) = (metadata.len(), metadata.modified().map_err(Error::io(archive))?);
    let name = path.strip_prefix(archive).unwrap_or(path);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut opened = match last.take() {
        Some((known, n, time, opened)) if (known.as_path(), n, time) == (archive, length, modified) => opened,
        _ => Opened::new(archive)?,
    };
    let bytes = opened.read(name).map_err(|reason| Error::file(path, reason));
    *last = Some((archive.to_owned(), length, modified, opened));
    bytes
}

/// An archive that is being read.
enum Opened {
    Zip { members: ZipArchive<BufReader<File>>, numbers: HashMap<PathBuf, usize>, size: u64 },
    Tar(Tar),
}

impl Opened {
    fn new(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        let size = file.metadata().map_err(Error::io(path))?.len();
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zip")) {
            return Ok(Self::Tar(Tar::new(path, file, size)?));
        }
        let wrong = |reason: String| Error::file(path, reason);
        let mut members = ZipArchive::new(BufReader::new(file)).map_err(|e| wrong(format!("not a zip archive: {e}")))?;
        if members.has_overlapping_files().map_err(|e| wrong(e.to_string()))? {
            return Err(wrong("members lie over each other: no archive that a program for it writes".to_owned()));
        }
        let mut numbers = HashMap::new();
        for i in 0..members.len() {
            let name = members.name_for_index(i).transpose().ok().flatten();
            if let Some(name) = name.and_then(|name| replay_name(name.as_bytes()).transpose()) {
                numbers.entry(name.map_err(wrong)?).or_insert(i);
            }
        }
        Ok(Self::Zip { members, numbers, size })
    }

    fn list(&mut self) -> Result<Vec<PathBuf>, String> {
        match self {
            Self::Zip { members, numbers, size } => {
                let mut unpacked = 0u64;
                for i in numbers.values() {
                    unpacked = unpacked.saturating_add(members.by_index_raw(*i).map_err(|e| e.to_string())?.size());
                }
                check_expansion(unpacked, *size)?;
                let mut names: Vec<(&usize, &PathBuf)> = numbers.iter().map(|(name, i)| (i, name)).collect();
                names.sort();
                Ok(names.into_iter().map(|(_, name)| name.clone()).collect())
            }
            Self::Tar(tar) => {
                let mut names = Vec::new();
                while let Some((name, _)) = tar.next_replay()? {
                    names.push(name);
                }
                Ok(names)
            }
        }
    }

    fn read(&mut self, name: &Path) -> Result<Vec<u8>, String> {
        match self {
            Self::Zip { members, numbers, .. } => {
                let number = numbers.get(name).ok_or("no such member of the archive")?;
                let mut member = members.by_index(*number).map_err(|e| e.to_string())?;
                let size = member.size();
                take(&mut member, size)
            }
            Self::Tar(tar) => tar.read(name),
        }
    }
}

fn check_expansion(unpacked: u64, size: u64) -> Result<(), String> {
    let limit = size.saturating_mul(EXPANSION).saturating_add(ALLOWANCE);
    if unpacked <= limit {
        return Ok(());
    }
    Err(format!("an archive of {size} bytes that unpacks to {unpacked} or more: no replays shrink like that"))
}

/// The bytes of a member that says to have `size`.
fn take(member: &mut dyn Read, size: u64) -> Result<Vec<u8>, String> {
    if size > MAX_BYTES {
        return Err(format!("{size} bytes are too many for a replay (at most {MAX_BYTES})"));
    }
    let mut bytes = Vec::new();
    member.take(size + 1).read_to_end(&mut bytes).map_err(|e| said(&e))?;
    if bytes.len() as u64 != size {
        return Err(format!("expected {size} bytes in the archive, found {}", bytes.len()));
    }
    Ok(bytes)
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the archive breaks off".to_owned(),
        _ => error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// The name of a member as a path, if it is that of a replay. What macOS notes beside a file is none.
fn replay_name(name: &[u8]) -> Result<Option<PathBuf>, String> {
    let text = String::from_utf8_lossy(name);
    let path = Path::new(&*text);
    if !is_replay(path) || path.starts_with("__MACOSX") {
        return Ok(None);
    }
    if text.contains(char::REPLACEMENT_CHARACTER) || text.contains(char::is_control) {
        return Err(format!("the name of a member is no text: {text:?}"));
    }
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            _ => return Err(format!("the member {text:?} names a place outside of the archive")),
        }
    }
    Ok(Some(inside))
}

/// A tar archive, read from front to back.
struct Tar {
    path: PathBuf,
    input: Input,
    size: u64,
    /// Bytes that were read or passed over.
    at: u64,
    /// Bytes before the next header.
    left: u64,
}

enum Input {
    Plain(BufReader<File>),
    Packed(Box<MultiGzDecoder<BufReader<File>>>),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buffer),
            Self::Packed(input) => input.read(buffer),
        }
    }
}

impl Tar {
    fn new(path: &Path, file: File, size: u64) -> Result<Self> {
        let plain = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tar"));
        let input = BufReader::with_capacity(64 << 10, file);
        let input = if plain { Input::Plain(input) } else { Input::Packed(Box::new(MultiGzDecoder::new(input))) };
        Ok(Self { path: path.to_owned(), input, size, at: 0, left: 0 })
    }

    /// Goes to the next replay: its name and size.
    fn next_replay(&mut self) -> Result<Option<(PathBuf, u64)>, String> {
        // A long name comes before the header that it belongs to.
        let mut long: Option<Vec<u8>> = None;
        loop {
            self.skip()?;
            let mut header = Header::new_old();
            if !self.fill(header.as_mut_bytes())? || header.as_bytes().iter().all(|byte| *byte == 0) {
                // A checksum of all that was unpacked stands behind the padding.
                io::copy(&mut (&mut self.input).take(PADDING), &mut io::sink()).map_err(|e| said(&e))?;
                return Ok(None);
            }
            let (kind, size) = (header.entry_type(), check_header(&header)?);
            self.left = size.checked_next_multiple_of(BLOCK).ok_or("a member without end")?;
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                let text = self.text(size)?;
                long = if kind.is_gnu_longname() { Some(text) } else { pax_path(&text).or(long) };
            } else if !kind.is_pax_global_extensions() && !kind.is_gnu_longlink() {
                let name = long.take().unwrap_or_else(|| header.path_bytes().into_owned());
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                if let Some(name) = replay_name(name)?.filter(|_| kind.is_file()) {
                    return Ok(Some((name, size)));
                }
            }
        }
    }

    fn read(&mut self, name: &Path) -> Result<Vec<u8>, String> {
        // On from where the last one ended; once more from the front.
        for front in [false, true] {
            if front {
                let file = File::open(&self.path).map_err(|e| said(&e))?;
                *self = Self::new(&self.path, file, self.size).map_err(|e| e.to_string())?;
            }
            while let Some((found, size)) = self.next_replay()? {
                if found == name {
                    let bytes = take(&mut (&mut self.input).take(size), size);
                    // Of a member that was too large nothing was read.
                    let read = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                    (self.left, self.at) = (self.left - read, self.at.saturating_add(read));
                    return bytes;
                }
            }
        }
        Err("no such member of the archive".to_owned())
    }

    /// Passes over what is left of a member.
    fn skip(&mut self) -> Result<(), String> {
        let left = std::mem::take(&mut self.left);
        self.at = self.at.saturating_add(left);
        match &mut self.input {
            Input::Plain(input) => input.seek_relative(i64::try_from(left).map_err(|e| e.to_string())?).map_err(|e| said(&e)),
            Input::Packed(input) => {
                check_expansion(self.at, self.size)?;
                let passed = io::copy(&mut input.take(left), &mut io::sink()).map_err(|e| said(&e))?;
                if passed == left { Ok(()) } else { Err("the archive breaks off".to_owned()) }
            }
        }
    }

    /// Reads a block; false at the end.
    fn fill(&mut self, block: &mut [u8; BLOCK as usize]) -> Result<bool, String> {
        let mut filled = 0;
        while filled < block.len() {
            match self.input.read(&mut block[filled..]).map_err(|e| said(&e))? {
                0 if filled == 0 => return Ok(false),
                0 => return Err("the archive breaks off".to_owned()),
                n => filled += n,
            }
        }
        self.at = self.at.saturating_add(BLOCK);
        Ok(true)
    }

    /// The content of a member that says something of the next one.
    fn text(&mut self, size: u64) -> Result<Vec<u8>, String> {
        if size > NAME_BYTES {
            return Err(format!("a name of {size} bytes"));
        }
        let text = take(&mut (&mut self.input).take(size), size)?;
        self.left -= size;
        self.at += size;
        Ok(text)
    }
}

/// The size of a member by its header.
fn check_header(header: &Header) -> Result<u64, String> {
    let bytes = header.as_bytes();
    let blank = 8 * u32::from(b' ');
    let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + blank;
    if header.cksum().ok() != Some(sum) {
        return Err("not a tar archive, or a damaged one: the checksum of a header is wrong".to_owned());
    }
    header.entry_size().map_err(|e| said(&e))
}

fn pax_path(text: &[u8]) -> Option<Vec<u8>> {
    tar::PaxExtensions::new(text).flatten().find(|extension| extension.key_bytes() == b"path").map(|path| path.value_bytes().to_owned())
}
