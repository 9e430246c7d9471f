//! System shared memory: objects of other programs on this machine, whose bytes are inputs, and outputs, of requests.
//!
//! Objects are read and written like files and never mapped: whoever owns one can make it shorter at any time, which would end this process
//! by a signal. What a client says of an object is compared with its length whenever it is used.

use crate::fault::{Fault, Kind, one_line};
use crate::places::is_name;
use crate::protocol::answer::Rows;
use crate::protocol::request::SharedRange;
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the objects lie.
const FOLDER: &str = "/dev/shm";
/// Regions at the same time: each keeps a file open.
const MOST: usize = 256;
/// Longest key: that of a file's name.
const KEY_LIMIT: usize = 255;

/// A part of a shared memory object under a name, as the protocol has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Description {
    /// The region's name in requests.
    pub name: String,
    /// The object's.
    pub key: String,
    /// Where the region begins in it, in bytes.
    pub offset: u64,
    /// How long the region is.
    pub byte_size: u64,
}

/// A region whose object is open.
#[derive(Debug)]
struct Region {
    description: Description,
    file: File,
}

/// The regions that clients have registered.
pub(crate) struct Regions {
    /// None where the server was started without them.
    table: Option<Mutex<BTreeMap<String, Arc<Region>>>>,
}

impl Regions {
    /// None yet.
    pub fn new(allowed: bool) -> Self {
        Self { table: allowed.then(Mutex::default) }
    }

    /// Whether the server was started with them.
    pub fn is_allowed(&self) -> bool {
        self.table.is_some()
    }

    fn table(&self) -> Result<MutexGuard<'_, BTreeMap<String, Arc<Region>>>, Fault> {
        let off = || Fault::new(Kind::Unsupported, "shared memory is not allowed: the server was started without --allow-shared-memory");
        Ok(self.table.as_ref().ok_or_else(off)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the object and keeps it under the region's name.
    pub fn register(&self, description: Description) -> Result<(), Fault> {
        let mut table = self.table()?;
        let name = &description.name;
        if !is_name(name) {
            let reason = format!("shared memory region: expected a name as models have it, found {}", one_line(name));
            return Err(Fault::input(reason));
        }
        if table.contains_key(name) {
            return Err(wrong(name, "is registered already"));
        }
        if table.len() >= MOST {
            return Err(Fault::new(Kind::Overloaded, format!("expected at most {MOST} shared memory regions, found one more")));
        }
        let file = open(Path::new(FOLDER), &description.key)
            .ok_or_else(|| wrong(name, "expected the key of a shared memory object that the server may read and write, found another"))?;
        let region = Region { description: description.clone(), file };
        if description.byte_size == 0 {
            return Err(wrong(name, "expected a byte_size above 0, found 0"));
        }
        region.check(0, description.byte_size)?;
        table.insert(description.name, Arc::new(region));
        Ok(())
    }

    /// Forgets a region, or all of them. One that is not there is none; requests that run keep theirs.
    pub fn unregister(&self, name: Option<&str>) -> Result<(), Fault> {
        let mut table = self.table()?;
        match name {
            Some(name) => drop(table.remove(name)),
            None => table.clear(),
        }
        Ok(())
    }

    /// The regions, or one of them.
    pub fn status(&self, name: Option<&str>) -> Result<Vec<Description>, Fault> {
        let table = self.table()?;
        match name.filter(|name| !name.is_empty()) {
            None => Ok(table.values().map(|region| region.description.clone()).collect()),
            Some(name) => match table.get(name) {
                Some(region) => Ok(vec![region.description.clone()]),
                None => Err(Fault::new(Kind::NotFound, format!("there is no shared memory region '{}'", one_line(name)))),
            },
        }
    }

    /// The part of a region that a request speaks of.
    pub fn window(&self, range: &SharedRange) -> Result<Window, Fault> {
        let unknown = || Fault::input(format!("there is no shared memory region '{}'", one_line(&range.region)));
        let region = self.table()?.get(&range.region).cloned().ok_or_else(unknown)?;
        region.check(range.offset, range.byte_size)?;
        Ok(Window { region, range: range.clone() })
    }
}

fn wrong(name: &str, reason: &str) -> Fault {
    Fault::input(format!("shared memory region '{}': {reason}", one_line(name)))
}

/// The object of that key, to be read and written: no link to one, and nothing that is no plain file. Why there is none is not told, as
/// that would say what else lies there.
fn open(folder: &Path, key: &str) -> Option<File> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let plain = !name.contains(['/', '\0']) && !["", ".", ".."].contains(&name) && name.len() <= KEY_LIMIT;
    // A pipe does not make the server wait.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = plain.then(|| OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder.join(name)).ok())??;
    file.metadata().is_ok_and(|found| found.is_file()).then_some(file)
}

impl Region {
    /// That so many bytes from there on belong to the region, and that the object still has them; where they are in the object.
    fn check(&self, offset: u64, size: u64) -> Result<u64, Fault> {
        let Description { name, offset: start, byte_size, .. } = &self.description;
        if offset.checked_add(size).is_none_or(|end| end > *byte_size) {
            return Err(wrong(name, &format!("expected at most {byte_size} bytes, found {size} from {offset} on")));
        }
        // The last of them is one that a file can have.
        let end = start.checked_add(*byte_size).filter(|end| i64::try_from(*end).is_ok());
        let length = self.file.metadata().map_err(|e| wrong(name, &e.to_string()))?.len();
        if end.is_none_or(|end| end > length) {
            return Err(wrong(name, &format!("expected a shared memory object of {byte_size} bytes from {start} on, found a shorter one")));
        }
        Ok(start + offset)
    }
}

/// The part of a region that a tensor of a request takes.
#[derive(Debug)]
pub(crate) struct Window {
    region: Arc<Region>,
    /// As it is said to the client.
    pub range: SharedRange,
}

impl Window {
    /// Its bytes.
    pub fn read(&self) -> Result<Bytes, Fault> {
        let start = self.region.check(self.range.offset, self.range.byte_size)?;
        // It is in the region, which is in the object: no more than this machine's memory has.
        let mut bytes = vec![0; self.range.byte_size as usize];
        self.region.file.read_exact_at(&mut bytes, start).map_err(|e| self.failed(&e))?;
        Ok(bytes.into())
    }

    /// The same window, cut to an output of that many bytes.
    pub fn for_output(mut self, output: &str, size: u64) -> Result<Self, Fault> {
        if self.range.byte_size < size {
            return Err(Fault::tensor(output, format!("a shared_memory_byte_size of at least {size}"), self.range.byte_size));
        }
        self.range.byte_size = size;
        Ok(self)
    }

    /// Writes an output of that many bytes there.
    pub fn write(&self, rows: &Rows<'_>) -> Result<(), Fault> {
        let start = self.region.check(self.range.offset, self.range.byte_size)?;
        let mut bytes = Vec::with_capacity(self.range.byte_size as usize);
        rows.append(&mut bytes);
        self.region.file.write_all_at(&bytes, start).map_err(|e| self.failed(&e))
    }

    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (&self.range, &other.range);
        Arc::ptr_eq(&self.region, &other.region) && a.offset < b.offset + b.byte_size && b.offset < a.offset + a.byte_size
    }

    fn failed(&self, error: &io::Error) -> Fault {
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "its shared memory object has become shorter".to_owned(),
            _ => error.to_string(),
        };
        wrong(&self.region.description.name, &reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_key_leads_to_a_plain_file_and_nowhere_else() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let inner = folder.path().join("shm");
        std::fs::create_dir_all(inner.join("folder"))?;
        std::fs::write(inner.join("object"), b"1")?;
        std::fs::write(folder.path().join("outside"), b"2")?;
        symlink("object", inner.join("link"))?;
        symlink(folder.path().join("outside"), inner.join("escape"))?;
        drop(std::os::unix::net::UnixListener::bind(inner.join("socket"))?);
        let pipe = std::process::Command::new("mkfifo").arg(inner.join("pipe")).status()?;
        assert!(pipe.success());
        for key in ["object", "/object"] {
            assert!(open(&inner, key).is_some(), "{key}");
        }
        let long = "k".repeat(KEY_LIMIT + 1);
        for key in [
            "",
            "/",
            "//object",
            ".",
            "..",
            "/..",
            "../outside",
            "/../outside",
            "folder",
            "folder/",
            "link",
            "escape",
            "socket",
            "pipe",
            "object/",
            "none",
            "a\0b",
            &long,
        ] {
            assert!(open(&inner, key).is_none(), "{key:?}");
        }
        Ok(())
    }

    #[test]
    fn regions_are_part_of_their_objects() -> Result<(), Fault> {
        let region = |offset, byte_size| {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(100).expect("a length");
            Region { description: Description { name: "r".to_owned(), key: "k".to_owned(), offset, byte_size }, file }
        };
        assert_eq!(region(40, 60).check(10, 50)?, 50);
        assert_eq!(region(40, 60).check(60, 0)?, 100);
        for (offset, size) in [(1, 60), (61, 0), (0, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            assert!(region(40, 60).check(offset, size).is_err(), "{size} from {offset} on");
        }
        for (offset, byte_size) in [(41, 60), (100, 1), (u64::MAX, 1), (u64::MAX - 10, 60), (0, u64::MAX)] {
            assert!(region(offset, byte_size).check(0, byte_size).is_err(), "a region of {byte_size} bytes from {offset} on");
        }
        // It was longer once.
        let shrunk = Arc::new(region(40, 60));
        let window = Window { region: shrunk.clone(), range: SharedRange { region: "r".to_owned(), offset: 0, byte_size: 4 } };
        window.write(&Rows::Floats(vec![&[1.5]]))?;
        assert_eq!(window.read()?, 1.5_f32.to_le_bytes()[..]);
        shrunk.file.set_len(42).expect("a length");
        assert!(window.read().is_err() && window.write(&Rows::Floats(vec![&[1.5]])).is_err());
        assert_eq!(shrunk.file.metadata().expect("a length").len(), 42, "it has been made longer again");
        Ok(())
    }
}
