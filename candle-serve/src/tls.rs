//! TLS for whatever is spoken over a listener, with certificates of clients where those are asked for.

use crate::options::TlsFiles;
use crate::renewal::Renewed;
use candle_models::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name of HTTP/1.1 in a handshake.
const HTTP_1: &[u8] = b"http/1.1";

/// How connections are secured, by what is spoken over them.
pub(crate) struct Certificates {
    http: TlsAcceptor,
    grpc: TlsAcceptor,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// With the file, if one cannot be read, has nothing of what it is for, or the key is not the certificate's.
    pub fn open(files: &TlsFiles) -> Result<Self> {
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
        let config = builder.with_single_cert(chain, key).map_err(with)?;
        let speaks = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config).into()
        };
        Ok(Self { http: speaks(HTTP_1), grpc: speaks(b"h2") })
    }

    /// Where they are read from.
    pub fn files(TlsFiles { certificate, key, client_ca }: &TlsFiles) -> Vec<PathBuf> {
        [certificate, key].into_iter().chain(client_ca).cloned().collect()
    }
}

/// What is spoken over the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spoken {
    /// HTTP/1.1.
    Http,
    /// HTTP/2, which gRPC is spoken over.
    Grpc,
}

/// Makes streams of connections, each with the certificates of its time.
#[derive(Clone)]
pub(crate) struct Tls {
    pub certificates: Arc<Renewed<Certificates>>,
    pub spoken: Spoken,
    /// For a handshake.
    pub limit: Duration,
}

impl Tls {
    /// The stream of a connection; `None` where the client is not one that this server talks to, or takes too long.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<TlsStream<S>> {
        let certificates = self.certificates.get();
        let acceptor = match self.spoken {
            Spoken::Http => &certificates.http,
            Spoken::Grpc => &certificates.grpc,
        };
        tokio::time::timeout(self.limit, acceptor.accept(stream)).await.ok()?.ok()
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
