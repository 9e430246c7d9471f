//! Reading a recording.

use super::archive;
use super::datatype::Datatype;
use super::meta::Meta;
use crate::{Error, Result, hex};
use memmap2::Mmap;
use rustfft::num_complex::Complex32;
use sha2::{Digest, Sha512};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

/// A recording that is open: its metadata, and its samples where they lie.
#[derive(Debug)]
pub struct Recording {
    /// What it says of itself.
    pub meta: Meta,
    /// What was not as it should be, and did not keep it from being read.
    pub warnings: Vec<String>,
    path: PathBuf,
    map: Map,
    segments: Vec<Segment>,
    truncated: bool,
}

/// What a [check](Recording::check) has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The dataset is the one that the metadata was written for.
    Same,
    /// The metadata does not say.
    Unknown,
    /// The dataset is another one, and a part is missing.
    Truncated,
}

/// Where a dataset lies.
pub(super) struct Dataset {
    pub path: PathBuf,
    pub first: u64,
    pub bytes: u64,
}

/// Samples that lie one behind the other.
#[derive(Debug, Clone, Copy)]
struct Segment {
    /// The number of the first one, the dataset's first being 0.
    sample: u64,
    samples: u64,
    /// Where it lies in the dataset.
    byte: u64,
}

/// The bytes of a dataset.
#[derive(Debug)]
struct Map {
    /// None of an empty file.
    map: Option<Mmap>,
    first: usize,
    bytes: usize,
}

impl Map {
    fn open(dataset: &Dataset) -> Result<Self> {
        let Dataset { path, first, bytes } = dataset;
        let file = File::open(path).map_err(Error::io(path))?;
        let there = file.metadata().map_err(Error::io(path))?.len();
        // An archive that was cut off has less than it says.
        let bytes = (*bytes).min(there.saturating_sub(*first)) as usize;
        // SAFETY: nothing here writes to the file. As with every map of a file, whoever shortens it meanwhile ends this program.
        let map = if bytes == 0 { None } else { Some(unsafe { Mmap::map(&file) }.map_err(Error::io(path))?) };
        Ok(Self { map, first: *first as usize, bytes })
    }

    fn all(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[self.first..][..self.bytes])
    }
}

impl Recording {
    /// Opens a recording by the name of its metadata (`.sigmf-meta`), of its dataset (`.sigmf-data`), of both without an ending, or of an archive
    /// (`.sigmf`); one of several in an archive as `archive.sigmf/name`.
    ///
    /// A dataset that ends within a sample, or before a segment or an annotation, is used as far as it goes: see [`warnings`](Self::warnings).
    ///
    /// # Errors
    /// If a file cannot be read, or the metadata has no sense.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let is_archive = |path: &Path| path.extension().is_some_and(|ending| ending == "sigmf") && path.is_file();
        if is_archive(path) {
            return Self::in_archive(path, None);
        }
        let parts = path.parent().zip(path.file_name().and_then(|name| name.to_str()));
        if let Some((parent, name)) = parts.filter(|(parent, _)| is_archive(parent)) {
            return Self::in_archive(parent, Some(name));
        }
        let [meta_path, data_path] = names(path);
        let meta = Meta::read(&meta_path)?;
        let data_path = match &meta.global.dataset {
            None => data_path,
            Some(name) => {
                let mut parts = Path::new(name).components();
                // Metadata of others must not lead out of its folder.
                if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                    return Err(Error::file(
                        &meta_path,
                        format!("global.core:dataset: expected the name of a file beside it, found {name}"),
                    ));
                }
                meta_path.with_file_name(name)
            }
        };
        if meta.global.metadata_only == Some(true) {
            return Err(Error::file(&meta_path, "global.core:metadata_only: there is no dataset to read"));
        }
        let bytes = std::fs::metadata(&data_path).map_err(Error::io(&data_path))?.len();
        Self::new(meta, &meta_path, &Dataset { path: data_path, first: 0, bytes })
    }

    fn in_archive(path: &Path, name: Option<&str>) -> Result<Self> {
        let (json, dataset) = archive::find(path, name)?;
        let meta = Meta::parse(&json, path)?;
        let dataset = dataset.ok_or_else(|| Error::file(path, "the recording has no dataset"))?;
        Self::new(meta, path, &dataset)
    }

    fn new(meta: Meta, path: &Path, dataset: &Dataset) -> Result<Self> {
        let map = Map::open(dataset)?;
        let mut warnings = Vec::new();
        for needed in meta.global.extensions.iter().filter(|extension| !extension.optional) {
            warnings.push(format!("the extension {} {} is not optional, and nothing here knows it", needed.name, needed.version));
        }
        let (segments, truncated) =
            segments(&meta, map.bytes as u64).map_err(|(field, reason)| Error::file(path, format!("{field}: {reason}")))?;
        if let Some(how) = &truncated {
            warnings.push(format!("the dataset is cut off: {how}"));
        }
        Ok(Self { meta, warnings, path: path.to_owned(), map, segments, truncated: truncated.is_some() })
    }

    /// How many samples of each channel there are.
    pub fn len(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.sample + last.samples)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Samples a second.
    ///
    /// # Errors
    /// If the metadata does not say.
    pub fn sample_rate(&self) -> Result<f64> {
        self.meta.global.sample_rate.ok_or_else(|| Error::file(&self.path, "global.core:sample_rate: it is not said, and is needed"))
    }

    /// Reads samples of the first channel from number `first` on, the dataset's first being 0; returns how many there were.
    pub fn read(&self, first: u64, out: &mut [Complex32]) -> usize {
        self.read_channel(0, first, out)
    }

    /// The same of another channel.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn read_channel(&self, channel: u64, first: u64, out: &mut [Complex32]) -> usize {
        assert!(channel < self.meta.channels(), "channel {channel} of {}", self.meta.channels());
        let datatype: Datatype = self.meta.global.datatype;
        let stride = datatype.bytes() as u64 * self.meta.channels();
        let mut done = 0;
        let begin = self.segments.partition_point(|segment| segment.sample + segment.samples <= first);
        for segment in &self.segments[begin..] {
            let at = first + done as u64 - segment.sample;
            let count = (segment.samples - at).min((out.len() - done) as u64) as usize;
            let byte = (segment.byte + at * stride) as usize + channel as usize * datatype.bytes();
            datatype.read(&self.map.all()[byte..], stride as usize, &mut out[done..][..count]);
            done += count;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// Compares the dataset with the hash that the metadata has of it.
    ///
    /// # Errors
    /// If it is another one, and no part of it is missing.
    pub fn check(&self) -> Result<Checked> {
        let Some(expected) = &self.meta.global.sha512 else { return Ok(Checked::Unknown) };
        let found = hex(Sha512::digest(self.map.all()));
        match found.eq_ignore_ascii_case(expected) {
            true => Ok(Checked::Same),
            false if self.truncated => Ok(Checked::Truncated),
            false => Err(Error::file(&self.path, format!("global.core:sha512: expected {expected}, the dataset has {found}"))),
        }
    }
}

/// Metadata and dataset of a recording that is named by either or without an ending.
pub(super) fn names(path: &Path) -> [PathBuf; 2] {
    let known = path.extension().is_some_and(|ending| ending == "sigmf-meta" || ending == "sigmf-data");
    let stem = if known { path.with_extension("") } else { path.to_owned() };
    ["sigmf-meta", "sigmf-data"].map(|ending| {
        let mut name = stem.clone().into_os_string();
        name.push(".");
        name.push(ending);
        name.into()
    })
}

type Laid = (Vec<Segment>, Option<String>);

/// Where segments lie in a dataset of so many bytes, and what it lacks.
fn segments(meta: &Meta, bytes: u64) -> std::result::Result<Laid, (String, String)> {
    let frame = (meta.global.datatype.bytes() as u64).checked_mul(meta.channels()).filter(|frame| *frame <= 1 << 20);
    let frame = frame.ok_or_else(|| ("global.core:num_channels".to_owned(), format!("{} channels are too many", meta.channels())))?;
    let trailing = meta.global.trailing_bytes.unwrap_or(0);
    let end = bytes.checked_sub(trailing).ok_or_else(|| {
        ("global.core:trailing_bytes".to_owned(), format!("expected at most the dataset's {bytes} bytes, found {trailing}"))
    })?;
    let mut truncated = None;
    let mut segments: Vec<Segment> = Vec::new();
    let starts = meta.captures.iter().map(|capture| (capture.sample_start - meta.offset(), capture.header_bytes.unwrap_or(0)));
    // What lies before the first segment, or all of it where there is none.
    let mut starts: Vec<(u64, u64)> = starts.collect();
    if starts.first().is_none_or(|(start, _)| *start > 0) {
        starts.insert(0, (0, 0));
    }
    let mut byte = 0;
    for (i, (sample, header)) in starts.iter().copied().enumerate() {
        let absurd = || (format!("captures[{i}]"), "lies beyond what a file can hold".to_owned());
        let begin = u64::checked_add(byte, header).ok_or_else(absurd)?;
        if begin > end {
            truncated = Some(format!("a segment begins at byte {begin}, and samples end at {end}"));
            break;
        }
        let there = (end - begin) / frame;
        let wanted = starts.get(i + 1).map(|(next, _)| next - sample);
        let samples = wanted.map_or(there, |wanted| wanted.min(there));
        segments.push(Segment { sample, samples, byte: begin });
        if let Some(wanted) = wanted.filter(|wanted| *wanted > there) {
            truncated = Some(format!("a segment of {wanted} samples has {there}"));
            break;
        }
        byte = begin + samples * frame;
    }
    let last = segments.last().map_or(0, |last| last.byte + last.samples * frame);
    if truncated.is_none() && last < end {
        truncated = Some(format!("{} bytes are left behind the last whole sample", end - last));
    }
    let samples = segments.last().map_or(0, |last| last.sample + last.samples);
    let noted = |annotation: &super::Annotation| {
        annotation.sample_start.saturating_sub(meta.offset()).saturating_add(annotation.sample_count.unwrap_or(0))
    };
    let noted = meta.annotations.iter().map(noted).max().unwrap_or(0);
    if truncated.is_none() && noted > samples {
        truncated = Some(format!("annotations reach to sample {noted}, and there are {samples}"));
    }
    Ok((segments, truncated))
}
