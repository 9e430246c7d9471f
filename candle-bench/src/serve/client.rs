//! A client of one connection that waits for every answer: what it sends is made before the clock runs.

use crate::harness::Subject;
use anyhow::{Context, Result, bail, ensure};
use candle_models::candle_core::DType;
use candle_models::random::Random;
use candle_models::signature::Signature;
use candle_serve::Address;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A connection: TCP, a Unix socket, TLS.
trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A client that sends one request again and again.
pub struct Client {
    stream: Box<dyn Stream>,
    request: Vec<u8>,
    /// What has been read of an answer.
    answer: Vec<u8>,
}

impl Client {
    /// Connects. `request` is sent as it is, headers and body.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn connect(address: &Address, request: Vec<u8>) -> Result<Self> {
        let stream: Box<dyn Stream> = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).with_context(|| address.to_string())?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).with_context(|| path.display().to_string())?),
        };
        Ok(Self::over(stream, request))
    }

    /// Connects under TLS to a server that has this certificate for `localhost`.
    ///
    /// # Errors
    /// If nobody listens there, or it has another certificate.
    pub fn secure(address: &Address, certificate: &CertificateDer<'static>, request: Vec<u8>) -> Result<Self> {
        let Address::Tcp(address) = address else { bail!("a Unix socket has no TLS") };
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
        let stream = TcpStream::connect(address).with_context(|| address.to_string())?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Box::new(StreamOwned::new(connection, stream)), request))
    }

    fn over(stream: Box<dyn Stream>, request: Vec<u8>) -> Self {
        Self { stream, request, answer: vec![0; 1 << 16] }
    }

    /// Asks and reads the answer: its headers, and how many bytes they and the body have.
    ///
    /// # Errors
    /// If the connection is lost, or the answer is not a success.
    pub fn ask(&mut self) -> Result<&[u8]> {
        self.stream.write_all(&self.request)?;
        let (mut read, mut whole) = (0, None);
        while whole.is_none_or(|whole| read < whole) {
            if read == self.answer.len() {
                self.answer.resize(2 * read, 0);
            }
            let more = self.stream.read(&mut self.answer[read..])?;
            ensure!(more > 0, "the server closed the connection");
            read += more;
            if whole.is_none() {
                whole = length(&self.answer[..read])?;
            }
        }
        Ok(&self.answer[..read])
    }
}

impl Subject for Client {
    fn run(&mut self) -> Result<()> {
        self.ask().map(drop)
    }
}

/// Bytes of a whole answer, once its headers are there.
fn length(answer: &[u8]) -> Result<Option<usize>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let headers = std::str::from_utf8(&answer[..end])?;
    if !headers.starts_with("HTTP/1.1 200") {
        bail!("the server answered {}", String::from_utf8_lossy(answer));
    }
    let length = headers.lines().find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")));
    let (_, length) = length.context("an answer without a length")?;
    Ok(Some(end + 4 + length.trim().parse::<usize>()?))
}

/// An input of a request, with random values.
pub struct Drawn {
    /// The name.
    pub name: String,
    /// `FP32` or `UINT32`.
    pub datatype: &'static str,
    /// The whole shape, the batch first.
    pub shape: Vec<usize>,
    /// The values, little-endian.
    pub bytes: Vec<u8>,
}

/// `rows` rows of the inputs that the model has to be given.
///
/// # Errors
/// If one cannot be drawn.
pub fn draw(signature: &Signature, rows: usize) -> Result<Vec<Drawn>> {
    let required = signature.inputs.iter().filter(|spec| spec.is_required());
    let drawn = required.map(|spec| {
        let values = spec.draw(&[rows], &Random::new(1))?.flatten_all()?;
        let (datatype, bytes) = match spec.dtype() {
            DType::U32 => ("UINT32", values.to_vec1::<u32>()?.into_iter().flat_map(u32::to_le_bytes).collect()),
            _ => ("FP32", values.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect()),
        };
        let shape = std::iter::once(rows).chain(spec.shape.iter().copied()).collect();
        Ok(Drawn { name: spec.name.clone(), datatype, shape, bytes })
    });
    drawn.collect()
}

/// The bytes of a request for a step of `rows` rows with random inputs, values behind the JSON. With `sequences`, row `i` is the next step of sequence `i + 1`,
/// or its first one. Every further header ends its line.
///
/// # Errors
/// If an input cannot be drawn.
pub fn request(signature: &Signature, model: &str, rows: usize, sequences: Option<Begin>, headers: &str) -> Result<Vec<u8>> {
    let (mut inputs, mut data): (Vec<Value>, Vec<u8>) = (Vec::new(), Vec::new());
    for Drawn { name, datatype, shape, bytes } in draw(signature, rows)? {
        inputs.push(tensor(&name, datatype, &shape, bytes.len()));
        data.extend(bytes);
    }
    if let Some(begin) = sequences {
        inputs.push(tensor("__sequence_id", "UINT64", &[rows], 8 * rows));
        data.extend((1..=rows as u64).flat_map(u64::to_le_bytes));
        inputs.push(tensor("__sequence_start", "BOOL", &[rows], rows));
        data.extend(std::iter::repeat_n(u8::from(begin == Begin::Start), rows));
    }
    let json = json!({ "inputs": inputs, "parameters": { "binary_data_output": true } }).to_string();
    let headers = format!("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {}\r\n{headers}", json.len());
    Ok(post(&format!("/v2/models/{model}/infer"), &headers, &[json.as_bytes(), &data].concat()))
}

/// The bytes of a request with a body; every further header ends its line.
pub fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// What a request is to its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Their first step.
    Start,
    /// The next one.
    GoOn,
}

fn tensor(name: &str, datatype: &str, shape: &[usize], bytes: usize) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape, "parameters": { "binary_data_size": bytes } })
}
