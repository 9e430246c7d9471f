//! How a server begins and ends: in this process, and as the program.

use crate::client::{Client, PATIENCE, Running, options, weights};
use crate::grpc::ready;
use crate::program::Program;
use crate::sum::{self, WAITS};
use candle_models::families;
use candle_serve::{Address, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-serve");

fn infer(x: f32) -> Value {
    json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]})
}

#[test]
fn a_server_is_alive_before_it_is_ready() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(options(weights().join("policy-mlp")), families::shipped())).unwrap();
    let Address::Tcp(address) = server.addresses()[0] else { panic!("expected a port") };
    let mut client = Client::connect(address);
    client.get("/v2/health/live").ok();
    let reply = client.get("/v2/health/ready");
    assert_eq!((reply.status, reply.error().as_str()), (503, "models are being loaded"));
    assert_eq!(runtime.block_on(server.load()).unwrap(), 1);
    client.get("/v2/health/ready").ok();
}

#[test]
fn what_runs_is_finished_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "end");
    let mut options = sum::options(folder.path());
    options.patience = PATIENCE;
    let mut running = Running::new(options, sum::families());
    let gate = sum::gate("end");
    let (mut busy, mut client) = (running.client().patient(), running.client().patient());
    busy.send("POST", "/v2/models/m/infer", &[], infer(WAITS).to_string().as_bytes());
    gate.reached(1);
    let server = running.server.take().unwrap();
    let address = match &server.addresses()[0] {
        Address::Tcp(address) => *address,
        Address::Unix(_) => panic!("expected a port"),
    };
    client.get("/v2/health/ready").ok();
    running.runtime.block_on(server.leave());
    let reply = client.get("/v2/health/ready");
    assert_eq!((reply.status, reply.error().as_str()), (503, "the server is about to end"));
    client.get("/v2/health/live").ok();
    client.get("/v2/models/m").ok();
    let stopped = running.runtime.spawn(server.stop());
    // The other connection is closed, and none is taken; the one that is busy is answered first.
    assert!(client.try_receive().is_none());
    let since = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!stopped.is_finished());
    gate.open();
    busy.receive().ok();
    assert!(busy.try_receive().is_none());
    assert!(running.runtime.block_on(stopped).unwrap());
}

#[test]
fn a_unix_socket_is_made_used_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    sum::save(folder.path(), "m", "unix");
    // What a server that was killed has left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut options = sum::options(folder.path().join("m"));
    options.http.push(format!("unix:{}", path.display()).parse().unwrap());
    let again = options.clone();
    let mut running = Running::new(options, sum::families());
    let mut client = Client::new(UnixStream::connect(&path).unwrap());
    client.post("/v2/models/m/infer", &infer(1.0)).ok();
    // One that is in use stays in use.
    let second = running.runtime.block_on(Server::start(again, sum::families()));
    assert_eq!(second.err().map(|error| error.kind()), Some(std::io::ErrorKind::AddrInUse));
    client.post("/v2/models/m/infer", &infer(1.0)).ok();
    drop(client);
    let server = running.server.take().unwrap();
    assert!(running.runtime.block_on(server.stop()));
    assert!(!path.exists());
}

/// The program, and where it says that it serves.
fn program(arguments: &[&str]) -> (Program, String) {
    let mut program = Program::spawn(Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(program.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (program, line)
}

/// The program that serves a bundle, and its ports for HTTP and gRPC. It ends without grace; nobody reads its log.
pub fn serve(bundle: &str, arguments: &[&str]) -> (Program, [SocketAddr; 2]) {
    serve_by(Command::new(PROGRAM), bundle, arguments)
}

/// The same with all memory in one arena of the allocator. An arena of each thread keeps what the largest model that was loaded there has needed: one
/// after the other, for minutes, which looks like growth. And large blocks are given back at once: between small ones they would stay.
pub fn serve_in_one_arena(bundle: &str, arguments: &[&str]) -> (Program, [SocketAddr; 2]) {
    let mut command = Command::new(PROGRAM);
    command.envs([("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "65536")]);
    serve_by(command, bundle, arguments)
}

fn serve_by(mut command: Command, bundle: &str, arguments: &[&str]) -> (Program, [SocketAddr; 2]) {
    command.args([bundle, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grace", "0"]).args(arguments);
    let mut program = Program::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut line = String::new();
    BufReader::new(program.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let addresses = line.trim().strip_prefix("1 models are served at http://").unwrap();
    let (http, grpc) = addresses.strip_suffix(" (gRPC)").unwrap().split_once(", ").unwrap();
    (program, [http, grpc].map(|address| address.parse().unwrap()))
}

#[test]
fn the_program_serves_until_it_is_told_to_end() {
    for signal in ["TERM", "INT"] {
        let bundle = weights().join("policy-mlp");
        let (mut program, [http, grpc]) = serve(bundle.to_str().unwrap(), &[]);
        Client::connect(http).get("/v2/health/ready").ok();
        assert_eq!(ready(grpc), Ok(true));
        assert_eq!(program.end(signal).code(), Some(0));
    }
}

#[test]
fn the_program_says_why_it_cannot_serve() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("m")).unwrap();
    std::fs::write(folder.path().join("m/config.json"), "{").unwrap();
    let at = folder.path().to_str().unwrap();
    for (arguments, code, message) in [
        (vec![at, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"], 1, "error: no bundle could be loaded"),
        (vec!["no/such/folder", "--http", "127.0.0.1:0"], 1, "no/such/folder: No such file or directory"),
        (vec![at, "--http", "8000"], 2, "expected HOST:PORT or unix:PATH"),
        (vec![at, "--grpc", "unix:"], 2, "expected a path behind unix:"),
        (
            vec![at, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--threads", "0"],
            1,
            "config: threads: expected from 1 to 1024, found 0",
        ),
        (vec![], 2, "Usage"),
    ] {
        let (mut program, _) = program(&arguments);
        let mut text = String::new();
        program.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(program.0.wait().unwrap().code(), Some(code), "{text}");
        assert!(text.contains(message), "{text}");
    }
}
