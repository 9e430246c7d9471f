//! Files that are complete or absent: written beside their target under another name, flushed to the disk, then renamed.
//!
//! A failure (a full disk) removes what was written and leaves the old content. A killed process cannot clean up: it
//! leaves a sibling `.NAME.tmp-*`, which [`remove_partial`] takes away.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`: afterwards the file holds all of them, or an error is returned and nothing has changed.
pub fn write_atomic(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(&path)?;
    file.write_all(bytes).map_err(Error::io(path))?;
    file.commit()
}

/// A file being written in pieces, which takes its name only when [`AtomicFile::commit`] is called; dropped before that,
/// it leaves nothing.
///
/// Something that cannot be replaced by a rename (a pipe, `/dev/null`) is written directly.
///
/// ```
/// use candle_models::files::AtomicFile;
/// use std::io::Write;
/// # fn main() -> candle_models::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("atomic-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let path = folder.join("answers.txt");
/// let mut file = AtomicFile::create(&path)?;
/// file.write_all(b"42").unwrap();
/// assert!(!path.exists()); // not before it is complete
/// file.commit()?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"42");
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    // `None` for a target that is written directly.
    temporary: Option<Temporary>,
    writer: BufWriter<File>,
}

impl AtomicFile {
    /// Starts writing. The parent directory must exist; a directory at `path` is an error.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let target = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(Error::io(path)(io::ErrorKind::IsADirectory.into())),
            // A link stays a link: what it points to is replaced.
            Ok(found) if found.is_file() => fs::canonicalize(path).map_err(Error::io(path))?,
            Ok(_) => {
                let file = OpenOptions::new().write(true).open(path).map_err(Error::io(path))?;
                return Ok(Self { path: path.to_owned(), temporary: None, writer: BufWriter::new(file) });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(Error::io(path)(e)),
        };
        let (temporary, file) = Temporary::beside(&target, |p| OpenOptions::new().write(true).create_new(true).open(p))?;
        Ok(Self { path: target, temporary: Some(temporary), writer: BufWriter::with_capacity(1 << 16, file) })
    }

    /// Flushes to the disk and puts the file in its place.
    pub fn commit(mut self) -> Result<()> {
        self.writer.flush().map_err(Error::io(&self.path))?;
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        self.writer.get_ref().sync_all().map_err(Error::io(&self.path))?;
        temporary.rename_to(&self.path)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// For formats whose parts become known in another order than they lie in the file.
impl Seek for AtomicFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.writer.seek(position)
    }
}

/// Writes a directory as a whole: `write` fills an empty one, which then takes the place of `dir`.
///
/// `dir` may exist if it holds nothing but entries named in `replaces`; the old one stays until the new one is complete.
/// Between two renames, for some microseconds, `dir` does not exist.
pub fn write_directory(dir: impl AsRef<Path>, replaces: &[&str], write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let dir = dir.as_ref();
    let exists = dir.try_exists().map_err(Error::io(dir))?;
    let dir = if exists { fs::canonicalize(dir).map_err(Error::io(dir))? } else { dir.to_owned() };
    if exists {
        for entry in fs::read_dir(&dir).map_err(Error::io(&dir))? {
            let name = entry.map_err(Error::io(&dir))?.file_name();
            if !replaces.iter().any(|own| name == *own) {
                let reason = format!("the directory also holds {name:?}, which would be lost: choose another");
                return Err(Error::file(&dir, reason));
            }
        }
    }
    let (new, ()) = Temporary::beside(&dir, |p| fs::create_dir(p))?;
    write(&new.0)?;
    sync_directory(&new.0)?;
    if !exists {
        return new.rename_to(&dir);
    }
    // The old content moves into a temporary directory of its own, which goes when the new one is in place.
    let (old, ()) = Temporary::beside(&dir, |p| fs::create_dir(p))?;
    let aside = old.0.join("old");
    fs::rename(&dir, &aside).map_err(Error::io(&dir))?;
    let placed = new.rename_to(&dir);
    if placed.is_err() && !dir.exists() && fs::rename(&aside, &dir).is_err() {
        // Neither name can be given: the old content must not go with its temporary directory.
        std::mem::forget(old);
        return Err(Error::file(&dir, format!("cannot be replaced; its content is now in {}", aside.display())));
    }
    placed
}

/// Removes what killed writers of `path` left beside it. Only for the one process that writes there.
pub fn remove_partial(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let (parent, prefix) = (parent(path), temporary_prefix(path)?);
    for entry in fs::read_dir(parent).map_err(Error::io(parent))? {
        let entry = entry.map_err(Error::io(parent))?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            drop(Temporary(entry.path()));
        }
    }
    Ok(())
}

/// The content of a regular file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, length) = open_limited(path, limit)?;
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow while it is read: the limit holds all the same.
    file.take(limit).read_to_end(&mut bytes).map_err(Error::io(path))?;
    Ok(bytes)
}

/// Opens a regular file of at most `limit` bytes and tells its length. (Opening a pipe would wait for a writer.)
pub(crate) fn open_limited(path: &Path, limit: u64) -> Result<(File, u64)> {
    let found = fs::metadata(path).map_err(Error::io(path))?;
    if !found.is_file() {
        return Err(Error::file(path, "expected a file, found a directory or a device"));
    }
    if found.len() > limit {
        return Err(Error::file(path, format!("expected at most {limit} bytes, found {}", found.len())));
    }
    Ok((File::open(path).map_err(Error::io(path))?, found.len()))
}

/// A file or directory that is removed when this is dropped.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Temporary {
    /// A new sibling of `target`, so that the rename stays within one file system.
    fn beside<T>(target: &Path, create: impl Fn(&Path) -> io::Result<T>) -> Result<(Self, T)> {
        let prefix = format!("{}{}", temporary_prefix(target)?, std::process::id());
        let mut number = 0;
        loop {
            let path = parent(target).join(format!("{prefix}-{number}"));
            match create(&path) {
                Ok(created) => return Ok((Self(path), created)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 10_000 => number += 1,
                // The user knows the target, not the temporary name.
                Err(e) => return Err(Error::io(target)(e)),
            }
        }
    }

    fn rename_to(self, target: &Path) -> Result<()> {
        fs::rename(&self.0, target).map_err(Error::io(target))?;
        std::mem::forget(self);
        sync_directory(parent(target))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and the error that led here matters more.
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

fn temporary_prefix(path: &Path) -> Result<String> {
    let name = path.file_name().ok_or_else(|| Error::file(path, "expected a path that ends in a name"))?;
    Ok(format!(".{}.tmp-", name.to_string_lossy()))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names in a directory durable. Elsewhere than on Unix a directory cannot be opened for this.
fn sync_directory(dir: &Path) -> Result<()> {
    if cfg!(unix) { File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io(dir)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomic(&path, b"first").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(&[0; 1 << 17]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(file);
        assert_eq!((fs::read(&path).unwrap(), names(dir.path())), (b"first".to_vec(), vec!["a".to_owned()]));
        write_atomic(&path, b"second").unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(dir.path())), (b"second".to_vec(), vec!["a".to_owned()]));
    }

    #[test]
    fn errors_name_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let error = write_atomic(dir.path().join("no/such"), b"").unwrap_err().to_string();
        assert!(error.contains("no/such: ") && !error.contains(".tmp-"), "{error}");
        let error = write_atomic(dir.path(), b"").unwrap_err().to_string();
        assert!(error.contains("directory"), "{error}");
        assert!(write_atomic("..", b"").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_are_written_directly() {
        write_atomic("/dev/null", b"gone").unwrap();
        let error = write_atomic("/dev/full", b"too much").unwrap_err().to_string();
        assert!(error.contains("/dev/full: No space left"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        write_atomic(dir.path().join("real"), b"old").unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        write_atomic(dir.path().join("link"), b"new").unwrap();
        assert_eq!(fs::read(dir.path().join("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
    }

    #[test]
    fn a_directory_is_replaced_whole() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        for content in ["one", "two"] {
            write_directory(&dir, &["f", "g"], |d| write_atomic(d.join("f"), content.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), content);
        }
        let failed = write_directory(&dir, &["f"], |d| {
            write_atomic(d.join("f"), b"three")?;
            Err(Error::Input("stop".into()))
        });
        assert!(failed.is_err());
        assert_eq!((fs::read_to_string(dir.join("f")).unwrap(), names(root.path())), ("two".to_owned(), vec!["d".to_owned()]));
    }

    #[test]
    fn foreign_files_are_not_lost() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("thesis.txt"), "years of work").unwrap();
        let error = write_directory(root.path(), &["f"], |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("thesis.txt"), "{error}");
        assert_eq!(names(root.path()), ["thesis.txt"]);
        assert!(write_directory(root.path().join("thesis.txt"), &[], |_| Ok(())).is_err());
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step-1");
        std::mem::forget(AtomicFile::create(&path).unwrap());
        write_directory(dir.path().join("step-10"), &[], |_| Ok(())).unwrap();
        let leftover = Temporary::beside(&path, |p| fs::create_dir(p)).unwrap();
        fs::write(leftover.0.0.join("x"), "x").unwrap();
        std::mem::forget(leftover);
        assert_eq!(names(dir.path()).len(), 3);
        remove_partial(&path).unwrap();
        assert_eq!(names(dir.path()), ["step-10"]);
    }
}
