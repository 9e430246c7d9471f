//! Where a server's metrics come from.

use crate::options::Address;
use crate::tls::client;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer: 4096 models whose every bucket holds something stay below it.
const MOST: usize = 1 << 30;

/// A server, as it stands in a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// As it was written.
    text: String,
    kind: PlaceKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PlaceKind {
    /// Host and port.
    Tcp(String),
    Tls(String),
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = |rest: &str| {
            let place = rest.strip_suffix('/').unwrap_or(rest);
            let known = place.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if known && !place.contains('/') { Ok(place.to_owned()) } else { Err(format!("expected HOST:PORT, found {rest:?}")) }
        };
        let kind = match text.split_once("://") {
            Some(("http", rest)) => PlaceKind::Tcp(with_port(rest)?),
            Some(("https", rest)) => PlaceKind::Tls(with_port(rest)?),
            Some(_) => return Err(format!("expected http://HOST:PORT, https://HOST:PORT or unix:PATH, found {text:?}")),
            None => match text.strip_prefix("unix:") {
                Some(_) => match text.parse()? {
                    Address::Unix(path) => PlaceKind::Unix(path),
                    Address::Tcp(_) => unreachable!("what begins with unix: is one"),
                },
                None => PlaceKind::Tcp(with_port(text)?),
            },
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Asks a server for its metrics, over one connection as long as that lives.
pub(super) struct Source {
    place: Place,
    tls: Option<TlsConnector>,
    /// `Bearer KEY`.
    key: Option<HeaderValue>,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Source {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// If the server speaks TLS and `ca`, the certificates that it is known by, are not there.
    pub fn new(place: Place, ca: Option<&Path>, key: Option<HeaderValue>) -> Result<Self, String> {
        let tls = match (&place.kind, ca) {
            (PlaceKind::Tls(_), None) => return Err("https needs --ca FILE: the certificates that the server is known by".to_owned()),
            (PlaceKind::Tls(_), Some(ca)) => Some(client(ca).map_err(|e| e.to_string())?),
            _ => None,
        };
        Ok(Self { place, tls, key, connection: None })
    }

    /// The metrics as they are now. After an error the next call connects anew.
    ///
    /// # Errors
    /// In words, if the server is not there, takes too long, or answers something else.
    pub async fn read(&mut self) -> Result<String, String> {
        let read = tokio::time::timeout(PATIENCE, self.ask()).await;
        let read = read.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
        if read.is_err() {
            self.connection = None;
        }
        read
    }

    async fn ask(&mut self) -> Result<String, String> {
        // The server may have closed a connection that was idle, which is found out by using it.
        if let Some(mut connection) = self.connection.take().filter(|connection| !connection.is_closed())
            && let Ok(answer) = self.ask_over(&mut connection).await
        {
            self.connection = Some(connection);
            return answer;
        }
        let mut connection = self.connect().await?;
        let answer = self.ask_over(&mut connection).await?;
        self.connection = Some(connection);
        answer
    }

    /// An error is the connection's; the inner one is the server's.
    async fn ask_over(&self, connection: &mut SendRequest<Empty<Bytes>>) -> Result<Result<String, String>, String> {
        let host = match &self.place.kind {
            PlaceKind::Tcp(host) | PlaceKind::Tls(host) => host,
            PlaceKind::Unix(_) => "localhost",
        };
        let mut request = Request::get("/metrics").header(HOST, host);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        let request = request.body(Empty::new()).map_err(|e| e.to_string())?;
        connection.ready().await.map_err(|e| e.to_string())?;
        let (head, body) = connection.send_request(request).await.map_err(|e| e.to_string())?.into_parts();
        let body = Limited::new(body, MOST).collect().await.map_err(|e| e.to_string())?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        Ok(match head.status {
            StatusCode::OK => Ok(text.into_owned()),
            status => Err(format!("{status}: {}", text.trim())),
        })
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, String> {
        let wrong = |e: std::io::Error| e.to_string();
        match (&self.place.kind, &self.tls) {
            (PlaceKind::Unix(path), _) => begin(UnixStream::connect(path).await.map_err(wrong)?).await,
            (PlaceKind::Tls(place), Some(tls)) => {
                let host = place.rsplit_once(':').map_or(&**place, |(host, _)| host).trim_matches(['[', ']']);
                let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
                let stream = TcpStream::connect(place).await.map_err(wrong)?;
                begin(tls.connect(name, stream).await.map_err(wrong)?).await
            }
            (PlaceKind::Tcp(place) | PlaceKind::Tls(place), _) => begin(TcpStream::connect(place).await.map_err(wrong)?).await,
        }
    }
}

async fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Result<SendRequest<Empty<Bytes>>, String> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    // How it ends is told to whoever asks.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_they_name_themselves() {
        for (text, kind) in [
            ("http://127.0.0.1:8000", PlaceKind::Tcp("127.0.0.1:8000".to_owned())),
            ("http://host:8000/", PlaceKind::Tcp("host:8000".to_owned())),
            ("[::1]:80", PlaceKind::Tcp("[::1]:80".to_owned())),
            ("https://host:8443", PlaceKind::Tls("host:8443".to_owned())),
            ("unix:/run/candle.sock", PlaceKind::Unix("/run/candle.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(Place { text: text.to_owned(), kind }));
        }
        for text in ["", "host", ":8000", "http://host", "ftp://host:21", "http://host:8000/metrics", "host:99999", "unix:"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        let secure: Place = "https://host:1".parse().unwrap();
        assert!(Source::new(secure, None, None).is_err_and(|reason| reason.contains("--ca")));
    }
}
