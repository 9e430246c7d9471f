//! TLS for whatever is spoken over a listener, with certificates of clients where those are asked for.

use crate::options::TlsFiles;
use candle_models::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name of HTTP/1.1 in a handshake.
pub(crate) const HTTP_1: &[u8] = b"http/1.1";
/// The name of HTTP/2, which gRPC is spoken over.
pub(crate) const HTTP_2: &[u8] = b"h2";

/// Makes streams of connections.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    limit: Duration,
}

impl Tls {
    /// Reads the files, for listeners that speak `protocol`, and whose clients have `limit` for the handshake.
    ///
    /// # Errors
    /// With the file, if one cannot be read, has nothing of what it is for, or the key is not the certificate's.
    pub fn open(files: &TlsFiles, protocol: &[u8], limit: Duration) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| Error::config("TLS", e))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|e| Error::file(path, e))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| Error::file(path, e))?)
            }
        };
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|e| Error::file(&files.key, format!("no private key: {e}")))?;
        let with = |e| Error::file(&files.key, format!("with the certificate {}: {e}", files.certificate.display()));
        let mut config = builder.with_single_cert(chain, key).map_err(with)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self { acceptor: Arc::new(config).into(), limit })
    }

    /// The stream of a connection; `None` where the client is not one that this server talks to, or takes too long.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<TlsStream<S>> {
        tokio::time::timeout(self.limit, self.acceptor.accept(stream)).await.ok()?.ok()
    }
}

/// Connects to servers whose certificates one of those in a file has signed.
///
/// # Errors
/// With the file, if it cannot be read, or has none.
pub(crate) fn client(ca: &Path) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|e| Error::file(ca, e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.map_err(|e| Error::config("TLS", e))?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(Arc::new(config).into())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::io(path))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|e| Error::file(path, format!("no certificates: {e}")))?;
    if found.is_empty() {
        return Err(Error::file(path, "expected certificates in PEM, found none"));
    }
    Ok(found)
}
