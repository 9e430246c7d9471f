//! A replay while it is written: a file, or each newest one of a folder.

use super::{After, Happening, Input};
use crate::Error;
use crate::families::policy::replay::{self, HEADER_BYTES, MAX_BYTES};
use anyhow::{Result, bail};
use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a file is looked at: what a frame waits on average is half of it.
const LOOK: Duration = Duration::from_millis(1);

/// How often a folder is looked at for another game, and a file that does not grow for its end.
const LOOK_AROUND: Duration = Duration::from_millis(250);

/// Follows a replay, or those of a folder one after the other.
pub struct Follow {
    path: PathBuf,
    folder: bool,
    timeout: Duration,
    open: Option<Open>,
    /// The replays of the folder that are over, or were there before the one that was the newest.
    done: HashSet<PathBuf>,
    looked: Option<Instant>,
}

/// The replay that is read.
struct Open {
    path: PathBuf,
    file: File,
    /// Which file it is on its disk.
    id: (u64, u64),
    read: u64,
    head: Vec<u8>,
    /// Bytes of events by the header; 0 while it is recorded.
    declared: u64,
    grown: Instant,
}

/// What became of a replay.
enum State {
    Grows,
    /// It has stopped, for the reason given; the same path may hold another one.
    Stopped(String),
    Replaced,
}

impl Follow {
    /// Follows a file or the newest one of a folder.
    ///
    /// # Errors
    /// If there is no such path.
    pub fn new(path: &Path, timeout: Duration) -> Result<Self> {
        let folder = path.metadata().map_err(Error::io(path))?.is_dir();
        Ok(Self { path: path.to_owned(), folder, timeout, open: None, done: HashSet::new(), looked: None })
    }

    /// Opens the file, or the newest of the folder that has not been played.
    fn find(&mut self) -> Result<Option<PathBuf>> {
        if !self.folder {
            return Ok(Some(self.path.clone()));
        }
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_AROUND) {
            return Ok(None);
        }
        self.looked = Some(Instant::now());
        // A folder without replays will have some.
        let files = replay::collect([&self.path]).unwrap_or_default();
        let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
        let new: Vec<PathBuf> = files.into_iter().filter(|path| !self.done.contains(path)).collect();
        let newest = new.iter().max_by_key(|path| (age(path), (*path).clone())).cloned();
        if newest.is_some() {
            self.done.extend(new);
        }
        Ok(newest)
    }

    /// Reads what has come since; tells when that was there to be read.
    fn read(&mut self, happened: &mut Vec<Happening>) -> Result<Instant> {
        let began = Instant::now();
        let Some(open) = &mut self.open else { return Ok(began) };
        let bytes = open.read_on()?;
        if !bytes.is_empty() {
            happened.push(Happening::Events(bytes));
        }
        match open.state(self.timeout)? {
            State::Grows => {}
            State::Replaced => {
                let (path, reason) = (open.path.clone(), "the file was begun anew".to_owned());
                happened.push(Happening::Breaks(Some(reason)));
                self.begin(path, happened)?;
            }
            State::Stopped(reason) if self.folder => {
                happened.push(Happening::Breaks(Some(reason)));
                self.open = None;
            }
            State::Stopped(reason) => bail!("{}: {reason}", open.path.display()),
        }
        Ok(began)
    }

    fn begin(&mut self, path: PathBuf, happened: &mut Vec<Happening>) -> Result<()> {
        happened.push(Happening::Begins(path.display().to_string()));
        self.open = Some(Open::new(path)?);
        Ok(())
    }
}

impl Open {
    fn new(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io(&path))?;
        let data = file.metadata().map_err(Error::io(&path))?;
        Ok(Self { path, file, id: id(&data), read: 0, head: Vec::new(), declared: 0, grown: Instant::now() })
    }

    /// The bytes of events that have come since.
    fn read_on(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(Error::io(&self.path))?;
        if bytes.is_empty() {
            return Ok(bytes);
        }
        self.grown = Instant::now();
        self.read += bytes.len() as u64;
        if let Some(missing) = HEADER_BYTES.checked_sub(self.head.len()).filter(|missing| *missing > 0) {
            let rest = bytes.split_off(missing.min(bytes.len()));
            self.head.append(&mut bytes);
            if self.head.len() == HEADER_BYTES {
                self.learn()?;
            }
            return Ok(rest);
        }
        Ok(bytes)
    }

    fn learn(&mut self) -> Result<()> {
        let head: &[u8; HEADER_BYTES] = self.head.as_slice().try_into()?;
        self.declared = replay::declared_bytes(head).map_err(|reason| Error::file(&self.path, reason))?;
        Ok(())
    }

    fn state(&mut self, timeout: Duration) -> Result<State> {
        let still = self.grown.elapsed();
        if still < LOOK {
            return Ok(State::Grows);
        }
        let data = match self.path.metadata() {
            Ok(data) => data,
            Err(error) => return Ok(State::Stopped(error.to_string())),
        };
        if id(&data) != self.id || data.len() < self.read {
            return Ok(State::Replaced);
        }
        if still >= LOOK_AROUND && self.head.len() == HEADER_BYTES {
            self.file.read_exact_at(&mut self.head, 0).map_err(Error::io(&self.path))?;
            self.learn()?;
            if self.declared > 0 && self.read >= self.declared + HEADER_BYTES as u64 {
                return Ok(State::Stopped("the recording has no game end".to_owned()));
            }
        }
        if still >= timeout {
            let seconds = timeout.as_secs();
            return Ok(State::Stopped(format!("has not grown for {seconds} s, and the game is not over (--timeout waits longer)")));
        }
        Ok(State::Grows)
    }
}

fn id(data: &Metadata) -> (u64, u64) {
    (data.dev(), data.ino())
}

impl Input for Follow {
    fn receive(&mut self, wait: Duration, happened: &mut Vec<Happening>) -> Result<Instant> {
        let deadline = Instant::now() + wait;
        loop {
            if self.open.is_none()
                && let Some(path) = self.find()?
            {
                self.begin(path, happened)?;
            }
            let began = self.read(happened)?;
            if !happened.is_empty() || began >= deadline {
                return Ok(began);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn game_over(&mut self) -> After {
        self.open = None;
        if self.folder { After::Another } else { After::Nothing }
    }
}
