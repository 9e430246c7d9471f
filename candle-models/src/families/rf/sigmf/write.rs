//! Writing a recording.

use super::datatype::Datatype;
use super::meta::Meta;
use super::recording::names;
use crate::files::{AtomicFile, write_atomic};
use crate::hex;
use crate::{Error, Result};
use rustfft::num_complex::Complex32;
use sha2::{Digest, Sha512};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A recording that is being written. Both files take their names when it is finished; dropped before, it leaves nothing.
#[derive(Debug)]
pub struct Writer {
    /// What the recording will say of itself: to be added to until it is finished, but for the datatype.
    pub meta: Meta,
    datatype: Datatype,
    paths: [PathBuf; 2],
    dataset: AtomicFile,
    hash: Sha512,
    buffer: Vec<u8>,
    written: Written,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Samples.
    pub samples: u64,
    /// Numbers that integers could not hold: they are the nearest that integers can.
    pub clipped: u64,
}

impl Writer {
    /// Begins a recording by its name, without an ending or with one of its files'. Samples are `cf32_le`, or `ci16_le`: 1 is 32768 then.
    ///
    /// # Errors
    /// If the metadata has no sense or asks for another datatype or for more than a channel, or the file cannot be made.
    pub fn create(path: impl AsRef<Path>, meta: Meta) -> Result<Self> {
        let paths = names(path.as_ref());
        let refuse = |field: &str, reason: String| Err(Error::file(&paths[0], format!("{field}: {reason}")));
        if let Err((field, reason)) = meta.check() {
            return refuse(&field, reason);
        }
        let datatype = meta.global.datatype;
        if ![Datatype::CF32, Datatype::CI16].contains(&datatype) {
            return refuse("global.core:datatype", format!("expected cf32_le or ci16_le, found {datatype}"));
        }
        if meta.channels() != 1 {
            return refuse("global.core:num_channels", format!("expected 1, found {}", meta.channels()));
        }
        let dataset = AtomicFile::create(&paths[1])?;
        Ok(Self { meta, datatype, paths, dataset, hash: Sha512::new(), buffer: Vec::new(), written: Written::default() })
    }

    /// Appends samples.
    ///
    /// # Errors
    /// If one is not finite, or the disk is full.
    pub fn write(&mut self, samples: &[Complex32]) -> Result<()> {
        if let Some(at) = samples.iter().position(|sample| !sample.is_finite()) {
            let number = self.written.samples + at as u64;
            return Err(Error::file(&self.paths[1], format!("sample {number}: expected finite numbers, found {}", samples[at])));
        }
        for samples in samples.chunks(1 << 14) {
            self.buffer.clear();
            for x in samples.iter().flat_map(|sample| [sample.re, sample.im]) {
                if self.datatype == Datatype::CF32 {
                    self.buffer.extend(x.to_le_bytes());
                } else {
                    let scaled = (x * 32768.0).round();
                    self.written.clipped += u64::from(!(-32768.0..=32767.0).contains(&scaled));
                    self.buffer.extend((scaled as i16).to_le_bytes());
                }
            }
            self.hash.update(&self.buffer);
            self.dataset.write_all(&self.buffer).map_err(Error::io(&self.paths[1]))?;
            self.written.samples += samples.len() as u64;
        }
        Ok(())
    }

    /// Ends the recording: its dataset, then its metadata with the hash.
    ///
    /// # Errors
    /// If the metadata has no sense any more, or the disk is full.
    pub fn finish(mut self) -> Result<Written> {
        self.meta.global.sha512 = Some(hex(self.hash.finalize()));
        self.meta.global.datatype = self.datatype;
        self.meta.check().map_err(|(field, reason)| Error::file(&self.paths[0], format!("{field}: {reason}")))?;
        let json = serde_json::to_vec_pretty(&self.meta).map_err(|error| Error::file(&self.paths[0], error))?;
        self.dataset.commit()?;
        write_atomic(&self.paths[0], &json)?;
        Ok(self.written)
    }
}
