//! Memory of what was seen, or a file in its place.

use memmap2::MmapMut;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// Floats in memory, or in a file that nobody else sees and that is gone with them.
#[derive(Debug)]
pub enum Floats {
    Memory(Vec<f32>),
    Disk(MmapMut),
}

impl Floats {
    pub fn on_disk(folder: &Path, bytes: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        reserve(&file, bytes)?;
        // SAFETY: the file has no name, so nobody else can change or shorten it.
        Ok(Self::Disk(unsafe { MmapMut::map_mut(&file)? }))
    }
}

/// Makes a file so long, of zeros. A disk that is full is to say so now: writing to a map of a file that has no room would kill the process.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::fd::AsRawFd;
        let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the file is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
    #[cfg(not(unix))]
    file.set_len(bytes)
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Memory(floats) => floats,
            Self::Disk(map) => bytemuck::cast_slice(map),
        }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Memory(floats) => floats,
            Self::Disk(map) => bytemuck::cast_slice_mut(map),
        }
    }
}
