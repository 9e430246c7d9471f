//! Bodies of requests, read and decompressed within limits, and of answers, compressed where a client asks for that.

use crate::fault::{Fault, Kind, one_line};
pub(super) use crate::operations::work;
use crate::options::Limits;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use std::io::{Read, Write};

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Of a request.
    fn of(headers: &HeaderMap) -> Result<Option<Self>, Fault> {
        let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(None) };
        match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "deflate" => Ok(Some(Self::Deflate)),
            other => {
                let reason = format!("Content-Encoding: expected gzip, deflate or identity, found {}", one_line(other));
                Err(Fault::new(Kind::Encoding, reason))
            }
        }
    }

    /// That an answer is wanted in: the first of the list that is known here and not refused.
    pub fn wanted(headers: &HeaderMap) -> Option<Self> {
        let list = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
        let choice = |item: &str| {
            let (name, quality) = item.split_once(';').unwrap_or((item, "q=1"));
            let quality = quality.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()).unwrap_or(1.0);
            match name.trim().to_ascii_lowercase().as_str() {
                _ if quality <= 0.0 => None,
                "gzip" => Some(Self::Gzip),
                "deflate" => Some(Self::Deflate),
                _ => None,
            }
        };
        list.flat_map(|list| list.split(',')).find_map(choice)
    }
}

/// The whole body of a request, decompressed.
pub(super) async fn read(headers: &HeaderMap, body: Incoming, limits: &Limits) -> Result<Bytes, Fault> {
    let encoding = Encoding::of(headers)?;
    let late = |_| Fault::new(Kind::Slow, format!("the body did not come within {:?}", limits.body_time));
    let bytes = tokio::time::timeout(limits.body_time, collect(body, limits.body)).await.map_err(late)??;
    let limit = limits.body;
    match encoding {
        None => Ok(bytes),
        // A small body can become a large one, which takes its time.
        Some(encoding) => work(move || decompress(encoding, &bytes, limit)).await?,
    }
}

fn too_large(limit: usize) -> Fault {
    Fault::new(Kind::TooLarge, format!("expected a body of at most {limit} bytes, found more"))
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, Fault> {
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    // Most bodies come in one piece, which stays as it is.
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Fault::input(format!("the body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + all.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

fn decompress(encoding: Encoding, bytes: &[u8], limit: usize) -> Result<Bytes, Fault> {
    let mut all = Vec::new();
    // One byte more than allowed tells a body that is too large.
    let most = limit as u64 + 1;
    let read = match encoding {
        Encoding::Gzip => MultiGzDecoder::new(bytes).take(most).read_to_end(&mut all),
        Encoding::Deflate => ZlibDecoder::new(bytes).take(most).read_to_end(&mut all),
    };
    if all.len() > limit {
        return Err(too_large(limit));
    }
    read.map_err(|e| Fault::input(format!("the body is no {}: {e}", encoding.name())))?;
    Ok(all.into())
}

/// An answer's body, compressed.
pub(super) fn compress(encoding: Encoding, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
    }
}
