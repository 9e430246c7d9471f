//! A server in this process, and a client that says exactly what it is told to.

use candle_models::families;
use candle_models::registry::{Family, Registry};
use candle_serve::{Address, Options, Server};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Far longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The shipped bundles.
pub fn weights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights")
}

/// A server that runs until it is dropped.
pub struct Running {
    pub runtime: Runtime,
    pub server: Option<Server>,
}

impl Running {
    /// Loads everything first.
    pub fn new(options: Options, families: Registry<dyn Family>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(async {
            let server = Server::start(options, families).await.unwrap();
            server.load().await.unwrap();
            server
        });
        Self { runtime, server: Some(server) }
    }

    pub fn address(&self) -> SocketAddr {
        port(self.server.as_ref().unwrap().addresses())
    }

    pub fn grpc_address(&self) -> SocketAddr {
        port(self.server.as_ref().unwrap().grpc_addresses())
    }

    pub fn client(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.address()).unwrap())
    }
}

fn port(addresses: &[Address]) -> SocketAddr {
    match &addresses[0] {
        Address::Tcp(address) => *address,
        Address::Unix(_) => panic!("expected a port"),
    }
}

/// Options for tests: ports that are free.
pub fn options(folder: impl Into<PathBuf>) -> Options {
    let http = vec!["127.0.0.1:0".parse().unwrap()];
    Options { grpc: http.clone(), http, ..Options::new(folder) }
}

/// One server of all shipped bundles for all tests that only ask it something.
pub static SHIPPED: LazyLock<Running> = LazyLock::new(|| Running::new(options(weights()), families::shipped()));

/// The same for tests that compare bits, one at a time: those of a row depend on how many rows share its batch, in the last place.
pub fn alone() -> MutexGuard<'static, Running> {
    static ALONE: LazyLock<Mutex<Running>> = LazyLock::new(|| Mutex::new(Running::new(options(weights()), families::shipped())));
    // A test that has failed has not harmed the server.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection.
pub struct Client<S>(BufReader<S>);

fn message(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    [head.as_bytes(), b"\r\n", body].concat()
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The message of a fault.
    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    /// The same, if it was answered.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

impl Client<TcpStream> {
    pub fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    /// Goes away.
    pub fn hang_up(self) {
        self.0.into_inner().shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Whether nothing has come that was not read.
    pub fn is_silent(&self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).unwrap();
        let found = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        found.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    pub fn patient(self) -> Self {
        self.0.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        self
    }
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.write(&message(method, path, headers, body));
    }

    pub fn receive(&mut self) -> Reply {
        self.try_receive().unwrap()
    }

    /// `None` where the connection is closed instead.
    pub fn try_receive(&mut self) -> Option<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        reply.body = vec![0; reply.header("content-length").map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut reply.body).unwrap();
        Some(reply)
    }

    pub fn call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(method, path, headers, body);
        self.receive()
    }

    /// `None` where the connection is closed, before or after the request was sent.
    pub fn try_call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Reply> {
        self.0.get_mut().write_all(&message(method, path, headers, body)).ok()?;
        self.try_receive()
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.call("GET", path, &[], b"")
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, &[], body.to_string().as_bytes())
    }

    /// The value of a metric of a model.
    pub fn metric(&mut self, name: &str, model: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").ok().body).unwrap();
        let start = format!("{name}{{model=\"{model}\"");
        text.lines().find(|line| line.starts_with(&start)).unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub fn wait_for(&mut self, name: &str, model: &str, value: f64) {
        let since = Instant::now();
        while self.metric(name, model) != value {
            assert!(since.elapsed() < PATIENCE, "{name} of {model} does not become {value}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
