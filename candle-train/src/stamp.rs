//! Which state of a file was seen.

use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Size, inode, and the times of its last change of content and of status. The second time is the system's own, which no program sets: a
/// file that was written, replaced, copied or restored has another one, even if its size and its modification time are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    bytes: u64,
    inode: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of a file, to be taken before it is read.
    pub fn of(file: &Metadata) -> Self {
        let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
        Self { bytes: file.len(), inode: file.ino(), modified, changed }
    }
}
