//! Everything at once for a long time: sequences, rows, mistakes and clients that vanish, over both protocols, while models are loaded anew and the
//! server is killed, ended and started again.

use crate::client::{Client, PATIENCE, weights};
use crate::endurance::proc;
use crate::grpc::{input, parameter};
use crate::life::serve_in_one_arena;
use crate::program::Program;
use candle_serve::proto::ModelInferRequest;
use candle_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use candle_serve::proto::infer_parameter::ParameterChoice::{BoolParam, StringParam};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tonic::transport::Endpoint;

const MODEL: &str = "policy-mamba";
/// Sequences over each of the protocols.
const SEQUENCES: usize = 3;

/// How often the server's memory is looked at in its long life.
const SAMPLES: u32 = 40;

/// Where the server is, and how often it has been another one.
#[derive(Clone, Copy)]
struct Place {
    http: SocketAddr,
    grpc: SocketAddr,
    life: u64,
}

struct Soak {
    place: RwLock<Place>,
    /// Whether the server is about to go, or has gone.
    going: AtomicBool,
    over: AtomicBool,
    /// Good requests that were answered, mistakes that were refused, clients that vanished, loads.
    counts: [AtomicU64; 4],
}

impl Soak {
    fn place(&self) -> Place {
        *self.place.read().unwrap()
    }

    fn count(&self, kind: usize) {
        self.counts[kind].fetch_add(1, SeqCst);
    }

    /// Whether a request to the server of that life may have failed because that has gone.
    fn excuses(&self, life: u64) -> bool {
        self.going.load(SeqCst) || self.place().life != life
    }

    /// Makes requests with `turn` over connections that last as long as the server. An error is one only where that has not gone.
    fn work<C>(&self, open: impl Fn(Place) -> Result<C, String>, mut turn: impl FnMut(&mut C, u64) -> Result<(), String>) {
        while !self.over.load(SeqCst) {
            let place = self.place();
            let mut run = || {
                let mut client = open(place)?;
                while !self.over.load(SeqCst) && !self.excuses(place.life) {
                    turn(&mut client, place.life)?;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok::<_, String>(())
            };
            if let Err(error) = run() {
                assert!(self.excuses(place.life), "{error}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn http(place: Place) -> Result<Client<TcpStream>, String> {
    TcpStream::connect(place.http).map(|stream| Client::new(stream).patient()).map_err(|e| e.to_string())
}

fn ask(client: &mut Client<TcpStream>, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), String> {
    client.try_call(method, path, &[], body).map(|reply| (reply.status, reply.body)).ok_or_else(|| format!("{method} {path}: closed"))
}

fn good(found: (u16, Vec<u8>)) -> Result<Vec<u8>, String> {
    if found.0 == 200 { Ok(found.1) } else { Err(format!("{}: {}", found.0, String::from_utf8_lossy(&found.1))) }
}

fn body(rows: usize, value: f32, parameters: Value) -> Vec<u8> {
    let inputs = json!([
        {"name": "features", "shape": [rows, 288], "datatype": "FP32", "data": vec![value; rows * 288]},
        {"name": "ids", "shape": [rows, 6], "datatype": "UINT32", "data": vec![14; rows * 6]},
    ]);
    json!({"inputs": inputs, "parameters": parameters}).to_string().into_bytes()
}

/// A sequence that is held against its own past: the state that a server goes on from is one that it has answered with before, and none older
/// than what it said was in a snapshot.
struct Sequence {
    id: String,
    /// States by the frames behind them.
    states: BTreeMap<u64, Vec<u8>>,
    /// Frames that were in a snapshot.
    saved: u64,
    life: u64,
}

impl Sequence {
    fn new(id: String) -> Self {
        Self { id, states: BTreeMap::new(), saved: 0, life: 0 }
    }

    fn frames(&self) -> u64 {
        self.states.last_key_value().map_or(0, |(frames, _)| *frames)
    }

    /// A step by `step`, which is told whether the sequence begins; then its state is noted.
    fn turn(
        &mut self,
        client: &mut Client<TcpStream>,
        life: u64,
        step: impl FnOnce(&str, bool) -> Result<(), String>,
    ) -> Result<(), String> {
        let path = format!("/v2/models/{MODEL}/sequences/{}", self.id);
        if self.life != life && !self.states.is_empty() {
            let (status, found) = ask(client, "GET", &path, b"")?;
            if status == 404 && self.saved == 0 {
                // The server was killed before it had written anything of it.
                self.states.clear();
                return Ok(());
            }
            let found: Value = serde_json::from_slice(&good((status, found))?).unwrap();
            let frames = found["frames"].as_u64().unwrap();
            let state = good(ask(client, "GET", &format!("{path}/state"), b"")?)?;
            // A step in flight at the end may have been made and not heard of: then one frame more is right, and its state is unknown.
            let last = self.frames();
            assert!((self.saved..=last + 1).contains(&frames), "{} at {frames}, {} were saved of {last}", self.id, self.saved);
            if let Some(noted) = self.states.get(&frames) {
                assert!(*noted == state, "{} goes on at {frames} with another state", self.id);
            }
            self.states.retain(|noted, _| *noted < frames);
            self.states.insert(frames, state);
        }
        self.life = life;
        step(&self.id, self.states.is_empty())?;
        let state = good(ask(client, "GET", &format!("{path}/state"), b"")?)?;
        let found: Value = serde_json::from_slice(&good(ask(client, "GET", &path, b"")?)?).unwrap();
        let frames = found["frames"].as_u64().unwrap();
        assert!(frames > self.frames(), "{} has made a step and is at {frames} after {}", self.id, self.frames());
        self.states.insert(frames, state);
        self.saved = self.saved.max(found["snapshot_frames"].as_u64().unwrap_or(0));
        // Nothing goes back behind what is saved.
        let saved = self.saved;
        self.states.retain(|noted, _| *noted >= saved);
        Ok(())
    }
}

fn sequences_over_http(soak: &Soak, at: usize) {
    let mut sequence = Sequence::new(format!("http-{at}"));
    soak.work(http, |client, life| {
        let mut second = http(soak.place())?;
        let value = 0.01 * (sequence.frames() % 100) as f32;
        sequence.turn(client, life, |id, start| {
            let body = body(1, value, json!({"sequence_id": id, "sequence_start": start}));
            good(ask(&mut second, "POST", &format!("/v2/models/{MODEL}/infer"), &body)?).map(drop)
        })?;
        soak.count(0);
        Ok(())
    });
}

fn sequences_over_grpc(soak: &Soak, at: usize) {
    let mut sequence = Sequence::new(format!("grpc-{at}"));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let open = |place: Place| {
        let client = http(place)?;
        let endpoint = Endpoint::from_shared(format!("http://{}", place.grpc)).unwrap().timeout(PATIENCE);
        let channel = runtime.block_on(endpoint.connect()).map_err(|e| e.to_string())?;
        Ok((client, GrpcInferenceServiceClient::new(channel)))
    };
    soak.work(open, |(client, grpc), life| {
        let value = 0.01 * (sequence.frames() % 100) as f32;
        sequence.turn(client, life, |id, start| {
            let request = ModelInferRequest {
                model_name: MODEL.to_owned(),
                inputs: vec![input("features", "FP32", &[1, 288]), input("ids", "UINT32", &[1, 6])],
                raw_input_contents: vec![
                    bytes_of([value; 288].map(f32::to_le_bytes).as_flattened()),
                    bytes_of([14u32; 6].map(u32::to_le_bytes).as_flattened()),
                ],
                parameters: [("sequence_id", StringParam(id.to_owned())), ("sequence_start", BoolParam(start))]
                    .map(|(name, choice)| (name.to_owned(), parameter(choice)))
                    .into(),
                ..ModelInferRequest::default()
            };
            runtime.block_on(grpc.model_infer(request)).map(drop).map_err(|status| status.to_string())
        })?;
        soak.count(0);
        Ok(())
    });
}

fn bytes_of(bytes: &[u8]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

fn rows(soak: &Soak) {
    let mut rows = 0;
    soak.work(http, |client, _| {
        rows = rows % 32 + 1;
        good(ask(client, "POST", &format!("/v2/models/{MODEL}/infer"), &body(rows, 0.5, json!({})))?)?;
        good(ask(client, "GET", "/metrics", b"")?)?;
        soak.count(0);
        Ok(())
    });
}

fn mistakes(soak: &Soak) {
    let path = format!("/v2/models/{MODEL}/infer");
    let wrong: [(&str, &str, Vec<u8>, u16); 6] = [
        ("POST", &path, b"{".to_vec(), 400),
        ("POST", &path, body(33, 0.5, json!({})), 400),
        ("POST", &path, body(1, 0.5, json!({"sequence_id": "nobody's"})), 400),
        ("POST", "/v2/models/none/infer", body(1, 0.5, json!({})), 404),
        ("GET", "/nowhere", Vec::new(), 404),
        ("PUT", "/v2/models/policy-mamba/sequences/new/state", vec![7; 100], 400),
    ];
    let mut at = 0;
    soak.work(http, |client, _| {
        let (method, path, body, expected) = &wrong[at % wrong.len()];
        at += 1;
        let (status, answer) = ask(client, method, path, body)?;
        soak.count(1);
        if status == *expected { Ok(()) } else { Err(format!("{method} {path}: {status}: {}", String::from_utf8_lossy(&answer))) }
    });
}

fn vanishing(soak: &Soak) {
    let body = body(32, 0.5, json!({}));
    let whole =
        [format!("POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let mut length = 0;
    soak.work(
        |_| Ok(()),
        |(), _| {
            let place = soak.place();
            length = (length + 997) % (whole.len() + 1);
            for (address, bytes) in [(place.http, &whole[..length]), (place.grpc, &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..])] {
                let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
                // The server may have gone, or be slower than this.
                let _ = stream.write_all(bytes);
                soak.count(2);
            }
            Ok(())
        },
    );
}

fn loads(soak: &Soak) {
    soak.work(http, |client, _| {
        good(ask(client, "POST", &format!("/v2/repository/models/{MODEL}/load"), b"")?)?;
        soak.count(3);
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    });
}

fn start(snapshots: &Path, life: u64) -> (Program, Place) {
    let arguments = ["--snapshots", snapshots.to_str().unwrap(), "--snapshot-every", "1"];
    let (program, [http, grpc]) = serve_in_one_arena(weights().join(MODEL).to_str().unwrap(), &arguments);
    (program, Place { http, grpc, life })
}

/// Kilobytes of memory, and open files.
fn size(program: &Program) -> (usize, usize) {
    let files = std::fs::read_dir(format!("/proc/{}/fd", program.0.id())).unwrap().count();
    (proc(&format!("/proc/{}/status", program.0.id()), "VmRSS:"), files)
}

#[test]
#[ignore = "deep: CANDLE_SOAK_SECONDS, by default 20"]
fn everything_at_once_for_a_long_time() {
    let seconds = std::env::var("CANDLE_SOAK_SECONDS").map_or(20, |text| text.parse().unwrap());
    let snapshots = tempfile::tempdir().unwrap();
    let (mut program, place) = start(snapshots.path(), 1);
    let soak = Soak { place: RwLock::new(place), going: AtomicBool::new(false), over: AtomicBool::new(false), counts: Default::default() };
    std::thread::scope(|scope| {
        let soak = &soak;
        // Whatever becomes of the test, its threads end.
        let _over = Over(soak);
        let mut workers: Vec<_> = (0..SEQUENCES).map(|at| scope.spawn(move || sequences_over_http(soak, at))).collect();
        workers.extend((0..SEQUENCES).map(|at| scope.spawn(move || sequences_over_grpc(soak, at))));
        workers.extend([rows, mistakes, vanishing, loads].map(|work| scope.spawn(move || work(soak))));
        let healthy = || assert!(!workers.iter().any(|worker| worker.is_finished()), "a worker has failed");
        // The first half is for ends of every kind, the second for one long life.
        let since = Instant::now();
        let half = Duration::from_secs(seconds) / 2;
        for life in 2.. {
            std::thread::sleep((half / 8).clamp(Duration::from_secs(2), Duration::from_secs(20)));
            healthy();
            soak.going.store(true, SeqCst);
            let signal = if life % 2 == 0 { "KILL" } else { "TERM" };
            let status = program.end(signal);
            assert!(signal == "KILL" || status.success(), "{status}");
            let (next, place) = start(snapshots.path(), life);
            program = next;
            *soak.place.write().unwrap() = place;
            soak.going.store(false, SeqCst);
            if since.elapsed() > half {
                break;
            }
        }
        let curve: Vec<usize> = (0..SAMPLES)
            .map(|_| {
                std::thread::sleep((half / SAMPLES).max(Duration::from_millis(500)));
                healthy();
                size(&program).0
            })
            .collect();
        soak.over.store(true, SeqCst);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        check_memory(&curve);
        check_rest(&program, soak.place());
    });
    let counts = soak.counts.each_ref().map(|count| count.load(SeqCst));
    println!("{} lives; {counts:?} good requests, mistakes, clients that vanished, loads", soak.place().life);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Memory goes up and down, with a second engine at each load. What it comes down to has to stay where it was once threads, loads and the allocator have
/// what they keep for themselves.
fn check_memory(curve: &[usize]) {
    let least = |quarter: usize| curve.chunks(curve.len() / 4).nth(quarter).and_then(|part| part.iter().min()).copied().unwrap();
    let (before, after) = (least(1), least(3));
    println!("{before} kB in the second quarter became {after} kB in the last: {curve:?}");
    assert!(after < before + 4096, "{before} kB became {after} kB: {curve:?}");
}

/// What is left when nobody asks any more: the files of a server without connections.
fn check_rest(program: &Program, place: Place) {
    let (idle, idle_place) = {
        let folder = tempfile::tempdir().unwrap();
        start(folder.path(), 0)
    };
    http(idle_place).and_then(|mut client| ask(&mut client, "GET", "/v2/health/ready", b"")).unwrap();
    let expected = size(&idle).1;
    drop(idle);
    let since = Instant::now();
    while size(program).1 > expected + 1 {
        assert!(since.elapsed() < PATIENCE, "{} files are open, {expected} of a server without clients", size(program).1);
        std::thread::sleep(Duration::from_millis(50));
    }
    http(place).and_then(|mut client| ask(&mut client, "GET", "/v2/health/ready", b"")).and_then(good).unwrap();
}

struct Over<'s>(&'s Soak);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, SeqCst);
    }
}
