//! What a recording says of itself.

use super::datatype::Datatype;
use crate::files::read_limited;
use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::path::Path;

/// The version of the standard that is written.
pub const VERSION: &str = "1.2.6";

/// Largest metadata that is read.
const MAX_BYTES: u64 = 256 << 20;

/// The metadata of a recording. Fields of namespaces that nobody here knows are kept as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Of the whole dataset.
    pub global: Global,
    /// Segments of it, each from its first sample to the next one's. Nothing carries over from one to the next.
    pub captures: Vec<Capture>,
    /// What somebody noted of parts of it.
    pub annotations: Vec<Annotation>,
    /// Objects of extensions.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What holds for a whole dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Global {
    /// The type of samples.
    #[serde(rename = "core:datatype", serialize_with = "text", deserialize_with = "parsed")]
    pub datatype: Datatype,
    /// The version of the standard that the metadata was written for.
    #[serde(rename = "core:version")]
    pub version: String,
    /// Samples a second.
    #[serde(rename = "core:sample_rate", default, skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// Channels whose samples take turns; 1 where it is not said.
    #[serde(rename = "core:num_channels", default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u64>,
    /// The number of the dataset's first sample, where a recording is split; 0 where it is not said.
    #[serde(rename = "core:offset", default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// SHA-512 of the dataset in hexadecimal digits.
    #[serde(rename = "core:sha512", default, skip_serializing_if = "Option::is_none")]
    pub sha512: Option<String>,
    /// The name of a dataset that does not have the metadata's.
    #[serde(rename = "core:dataset", default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Bytes behind the last sample.
    #[serde(rename = "core:trailing_bytes", default, skip_serializing_if = "Option::is_none")]
    pub trailing_bytes: Option<u64>,
    /// Whether there is no dataset.
    #[serde(rename = "core:metadata_only", default, skip_serializing_if = "Option::is_none")]
    pub metadata_only: Option<bool>,
    /// What it is.
    #[serde(rename = "core:description", default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Who made it.
    #[serde(rename = "core:author", default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The program that made it.
    #[serde(rename = "core:recorder", default, skip_serializing_if = "Option::is_none")]
    pub recorder: Option<String>,
    /// What it was received with.
    #[serde(rename = "core:hw", default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// Where the licence is.
    #[serde(rename = "core:license", default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Where it was received, if no segment says so itself.
    #[serde(rename = "core:geolocation", default, skip_serializing_if = "Option::is_none")]
    pub geolocation: Option<Geolocation>,
    /// Namespaces that it uses.
    #[serde(rename = "core:extensions", default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A namespace beside `core`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// What its fields begin with.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether a recording can be read without it.
    pub optional: bool,
}

/// A segment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// The number of its first sample.
    #[serde(rename = "core:sample_start")]
    pub sample_start: u64,
    /// Bytes before it that are no samples.
    #[serde(rename = "core:header_bytes", default, skip_serializing_if = "Option::is_none")]
    pub header_bytes: Option<u64>,
    /// Centre frequency, Hz.
    #[serde(rename = "core:frequency", default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<f64>,
    /// When its first sample was taken, as RFC 3339 writes it.
    #[serde(rename = "core:datetime", default, skip_serializing_if = "Option::is_none")]
    pub datetime: Option<String>,
    /// Where it was received.
    #[serde(rename = "core:geolocation", default, skip_serializing_if = "Option::is_none")]
    pub geolocation: Option<Geolocation>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A note of a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Annotation {
    /// The number of its first sample.
    #[serde(rename = "core:sample_start")]
    pub sample_start: u64,
    /// How many samples it is about; to the end of its segment where it is not said.
    #[serde(rename = "core:sample_count", default, skip_serializing_if = "Option::is_none")]
    pub sample_count: Option<u64>,
    /// The lowest frequency of it, Hz.
    #[serde(rename = "core:freq_lower_edge", default, skip_serializing_if = "Option::is_none")]
    pub lower_frequency: Option<f64>,
    /// The highest frequency of it, Hz.
    #[serde(rename = "core:freq_upper_edge", default, skip_serializing_if = "Option::is_none")]
    pub upper_frequency: Option<f64>,
    /// What it is, in a word.
    #[serde(rename = "core:label", default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What there is to say of it.
    #[serde(rename = "core:comment", default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Who or what noted it.
    #[serde(rename = "core:generator", default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A point of GeoJSON (RFC 7946).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Geolocation {
    /// Always `Point`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Longitude and latitude in degrees, and perhaps the height above the ellipsoid in metres.
    pub coordinates: Vec<f64>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Geolocation {
    /// A point.
    pub fn new(longitude: f64, latitude: f64, height: Option<f64>) -> Self {
        let coordinates = [longitude, latitude].into_iter().chain(height).collect();
        Self { kind: "Point".to_owned(), coordinates, others: Map::new() }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match (self.kind.as_str(), self.coordinates.as_slice()) {
            ("Point", [longitude, latitude]) | ("Point", [longitude, latitude, _])
                if longitude.abs() <= 180.0 && latitude.abs() <= 90.0 =>
            {
                Ok(())
            }
            ("Point", found) => Err(format!("expected longitude and latitude in degrees, and perhaps a height, found {found:?}")),
            (found, _) => Err(format!("expected a Point, found {found}")),
        }
    }
}

impl Meta {
    /// That of an empty dataset.
    pub fn new(datatype: Datatype, sample_rate: f64) -> Self {
        let global = Global {
            datatype,
            version: VERSION.to_owned(),
            sample_rate: Some(sample_rate),
            channels: None,
            offset: None,
            sha512: None,
            dataset: None,
            trailing_bytes: None,
            metadata_only: None,
            description: None,
            author: None,
            recorder: None,
            hardware: None,
            license: None,
            geolocation: None,
            extensions: Vec::new(),
            others: Map::new(),
        };
        Self { global, captures: Vec::new(), annotations: Vec::new(), others: Map::new() }
    }

    /// Reads a file of metadata.
    ///
    /// # Errors
    /// If it cannot be read, is no JSON, or a field has no sense: the message names the field.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::parse(&read_limited(path, MAX_BYTES)?, path)
    }

    /// The same from memory; `path` stands for the file in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(json: &[u8], path: &Path) -> Result<Self> {
        let meta: Self = serde_json::from_slice(json).map_err(|error| Error::file(path, error))?;
        meta.check().map_err(|(field, reason)| Error::file(path, format!("{field}: {reason}")))?;
        Ok(meta)
    }

    /// The field that has no sense, and why.
    pub(super) fn check(&self) -> std::result::Result<(), (String, String)> {
        let named = |field: &str, reason: String| Err((format!("global.core:{field}"), reason));
        let Global { sample_rate, channels, .. } = &self.global;
        if let Some(rate) = sample_rate.filter(|rate| !(*rate > 0.0 && rate.is_finite() && *rate <= 1e12)) {
            return named("sample_rate", format!("expected samples a second, above 0 and at most 1e12, found {rate}"));
        }
        if *channels == Some(0) {
            return named("num_channels", "expected at least 1, found 0".to_owned());
        }
        let mut least = self.offset();
        for (i, capture) in self.captures.iter().enumerate() {
            if capture.sample_start < least {
                let reason = format!("expected at least {least}, the one before it or the dataset's first, found {}", capture.sample_start);
                return Err((format!("captures[{i}].core:sample_start"), reason));
            }
            least = capture.sample_start;
        }
        let of_captures = self.captures.iter().enumerate().map(|(i, capture)| (format!("captures[{i}]"), &capture.geolocation));
        for (of, geolocation) in std::iter::once(("global".to_owned(), &self.global.geolocation)).chain(of_captures) {
            geolocation.iter().try_for_each(Geolocation::check).map_err(|reason| (format!("{of}.core:geolocation"), reason))?;
        }
        Ok(())
    }

    /// The number of the dataset's first sample.
    pub fn offset(&self) -> u64 {
        self.global.offset.unwrap_or(0)
    }

    /// Channels whose samples take turns.
    pub fn channels(&self) -> u64 {
        self.global.channels.unwrap_or(1)
    }

    /// The segment that a sample lies in.
    pub fn capture(&self, sample: u64) -> Option<&Capture> {
        self.captures.iter().take_while(|capture| capture.sample_start <= sample).last()
    }

    /// Where a sample was received: as its segment says, or the whole.
    pub fn geolocation(&self, sample: u64) -> Option<&Geolocation> {
        self.capture(sample).and_then(|capture| capture.geolocation.as_ref()).or(self.global.geolocation.as_ref())
    }
}

fn text<S: Serializer>(datatype: &Datatype, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(datatype)
}

fn parsed<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Datatype, D::Error> {
    String::deserialize(from)?.parse().map_err(|reason| serde::de::Error::custom(format!("core:datatype: {reason}")))
}
