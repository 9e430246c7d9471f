//! Connections under TLS, with and without certificates of clients.

use crate::client::{Client, PATIENCE, Running, options, weights};
use candle_models::families;
use candle_serve::{Options, Server, TlsFiles};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// An authority that signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }
}

/// Writes the certificate of a server that `authority` has signed; clients are to be signed by `clients`.
pub fn files(folder: &Path, authority: &Authority, clients: Option<&Authority>) -> TlsFiles {
    let (certificate, key) = authority.sign("localhost");
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    TlsFiles {
        certificate: write("server.pem", certificate.pem()),
        key: write("server.key", key.serialize_pem()),
        client_ca: clients.map(|clients| write("clients.pem", clients.certificate.pem())),
    }
}

/// A server that gives its clients so much time for a handshake.
pub fn server(files: TlsFiles, time: Duration) -> Running {
    let mut options = Options { tls: Some(files), ..options(weights().join("policy-mlp")) };
    options.limits.header_time = time;
    options.limits.idle_time = Duration::from_secs(3600);
    Running::new(options, families::shipped())
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A client that trusts `roots` and shows a certificate, if it has one.
pub fn connect(address: SocketAddr, roots: RootCertStore, own: Option<(Certificate, KeyPair)>) -> Secure {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![CertificateDer::from(certificate.der().to_vec())], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap(), stream)
}

/// Whether a request is answered; otherwise the connection is at its end.
fn answered(mut stream: Secure) -> bool {
    // The end of a handshake that the server does not accept may come with the first bytes.
    let sent = stream.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n").and_then(|()| stream.flush());
    let mut start = [0; 15];
    sent.is_ok() && stream.read_exact(&mut start).is_ok() && &start == b"HTTP/1.1 200 OK"
}

#[test]
fn requests_are_answered_under_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = server(files(folder.path(), &authority, None), PATIENCE);
    let mut stream = connect(server.address(), authority.roots(), None);
    stream.conn.complete_io(&mut stream.sock).unwrap();
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut client = Client::new(stream);
    for _ in 0..3 {
        client.get("/v2/models/policy-mlp").ok();
    }
    // Somebody else's certificate is the client's to refuse.
    assert!(!answered(connect(server.address(), Authority::new().roots(), None)));
}

#[test]
fn clients_are_known_by_their_certificates() {
    let (folder, authority, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let server = server(files(folder.path(), &authority, Some(&clients)), PATIENCE);
    assert!(answered(connect(server.address(), authority.roots(), Some(clients.sign("agent")))));
    assert!(!answered(connect(server.address(), authority.roots(), None)));
    assert!(!answered(connect(server.address(), authority.roots(), Some(Authority::new().sign("agent")))));
    assert!(answered(connect(server.address(), authority.roots(), Some(clients.sign("other")))));
}

#[test]
fn certificates_are_replaced_while_clients_come() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second, clients, others) = (Authority::new(), Authority::new(), Authority::new(), Authority::new());
    let server = server(files(folder.path(), &first, Some(&clients)), PATIENCE);
    let address = server.address();
    let mut old = Client::new(connect(address, first.roots(), Some(clients.sign("agent"))));
    old.get("/v2/health/ready").ok();
    // Clients that trust both, and are trusted before and after, come all the time.
    let mut roots = first.roots();
    roots.add(second.certificate.der().clone()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0;
            while !over.load(Relaxed) {
                assert!(answered(connect(address, roots.clone(), Some(clients.sign("agent")))), "after {count}");
                count += 1;
            }
            count
        });
        let until = |condition: &dyn Fn() -> bool| {
            let since = Instant::now();
            while !condition() {
                assert!(since.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let trusts = |authority: &Authority, own| answered(connect(address, authority.roots(), Some(own)));
        assert!(!trusts(&second, clients.sign("agent")));
        // Those of two authorities are clients from now on.
        files(folder.path(), &second, Some(&clients));
        fs::write(folder.path().join("clients.pem"), clients.certificate.pem() + &others.certificate.pem()).unwrap();
        until(&|| trusts(&second, others.sign("agent")));
        assert!(!trusts(&first, clients.sign("agent")));
        // What is half-written or does not belong together changes nothing; what is whole again does.
        fs::write(folder.path().join("server.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        server.server.as_ref().unwrap().renew();
        std::thread::sleep(Duration::from_millis(50));
        fs::write(folder.path().join("server.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
        server.server.as_ref().unwrap().renew();
        assert!(trusts(&second, others.sign("agent")));
        files(folder.path(), &first, Some(&clients));
        until(&|| trusts(&first, clients.sign("agent")));
        assert!(!trusts(&first, others.sign("agent")));
        over.store(true, Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    old.get("/v2/health/ready").ok();
}

#[test]
fn a_client_that_speaks_no_tls_or_is_slow_is_closed() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let server = server(files(folder.path(), &authority, None), Duration::from_millis(100));
    let end = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut found = Vec::new();
        // A connection that is reset is at its end as well.
        let ended = stream.read_to_end(&mut found);
        assert!(ended.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true));
        found
    };
    assert!(!end(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with(b"HTTP"));
    // Nothing, and the beginning of a handshake.
    assert_eq!(end(b""), b"");
    assert_eq!(end(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), b"");
    // One that is in time is served, on a machine that is busy at the second try.
    let since = Instant::now();
    while !answered(connect(server.address(), authority.roots(), None)) {
        assert!(since.elapsed() < PATIENCE);
    }
}

#[test]
fn files_that_are_wrong_are_told_at_the_start() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let right = files(folder.path(), &authority, Some(&authority));
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("damaged"), "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    fs::write(at("other.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (files, messages) in [
        (TlsFiles { certificate: at("none"), ..right.clone() }, ["none: ", "No such file"]),
        (TlsFiles { certificate: at("empty"), ..right.clone() }, ["empty: ", "expected certificates in PEM, found none"]),
        (TlsFiles { certificate: at("damaged"), ..right.clone() }, ["damaged: ", "no certificates"]),
        (TlsFiles { certificate: right.key.clone(), ..right.clone() }, ["server.key: ", "expected certificates in PEM, found none"]),
        (TlsFiles { key: right.certificate.clone(), ..right.clone() }, ["server.pem: ", "no private key"]),
        (TlsFiles { key: at("other.key"), ..right.clone() }, ["other.key: ", "with the certificate"]),
        (TlsFiles { client_ca: Some(at("empty")), ..right.clone() }, ["empty: ", "expected certificates in PEM, found none"]),
    ] {
        let options = Options { tls: Some(files), ..options(weights().join("policy-mlp")) };
        let error = runtime.block_on(Server::start(options, families::shipped())).err().unwrap().to_string();
        assert!(messages.iter().all(|message| error.contains(message)), "{error}");
    }
}
