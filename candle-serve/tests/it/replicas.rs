//! Two replicas of the program that share their snapshots, behind HAProxy with the file that is shipped.

use crate::client::{Client, PATIENCE, Reply, Running, weights};
use crate::grpc;
use crate::life::PROGRAM;
use crate::program::Program;
use bytes::Bytes;
use candle_models::families;
use candle_serve::Arguments;
use candle_serve::proto::ModelInferRequest;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

const MODEL: &str = "policy-mamba";
const SEQUENCES: usize = 12;

/// A replica, and where it is asked past the balancer.
struct Replica {
    program: Program,
    address: SocketAddr,
}

impl Replica {
    fn client(&self) -> Client<TcpStream> {
        Client::connect(self.address).patient()
    }

    /// Rows that it has answered.
    fn answered(&self) -> f64 {
        self.client().metric("nv_inference_count", MODEL)
    }
}

/// Two replicas in a folder of their own, and the balancer.
struct Cluster {
    replicas: BTreeMap<&'static str, Replica>,
    every: &'static str,
    _balancer: Program,
    folder: tempfile::TempDir,
}

/// What is to be skipped where there is no HAProxy.
fn has_haproxy() -> bool {
    let found = Command::new("haproxy").arg("-v").output().is_ok_and(|output| output.status.success());
    assert!(found || std::env::var_os("CANDLE_REQUIRE_HAPROXY").is_none(), "there is no haproxy");
    if !found {
        eprintln!("skipped: there is no haproxy");
    }
    found
}

/// Arguments that answer to the bit what others answer: those of a row depend on how many rows share its batch, in the last place.
fn arguments(folder: &Path, every: &str) -> Vec<String> {
    let snapshots = folder.join("snapshots");
    let bundle = weights().join(MODEL);
    let pairs = [
        ("--http", "127.0.0.1:0"),
        ("--grpc", "127.0.0.1:0"),
        ("--max-batch", "1"),
        ("--sequence-idle", "3600"),
        ("--grace", "3600"),
        ("--snapshot-every", every),
        ("--snapshots", snapshots.to_str().unwrap()),
    ];
    let pairs = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
    std::iter::once(bundle.to_str().unwrap().to_owned()).chain(pairs).collect()
}

impl Cluster {
    fn new(every: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let replicas = ["a", "b"].map(|name| (name, replica(folder.path(), name, every))).into();
        let balancer = balancer(folder.path());
        Self { replicas, every, _balancer: balancer, folder }
    }

    fn start(&mut self, name: &'static str) {
        self.replicas.insert(name, replica(self.folder.path(), name, self.every));
    }

    fn client(&self) -> Client<UnixStream> {
        client(&self.folder.path().join("http"))
    }

    /// Steps every sequence some times, one after the other: which replica each goes to.
    fn places(&self, reference: &Mutex<Reference>, histories: &mut [History]) -> Vec<&'static str> {
        let mut client = self.client();
        let mut place = |(id, history): (u64, &mut History)| {
            let before: Vec<f64> = self.replicas.values().map(Replica::answered).collect();
            for _ in 0..3 {
                history.push(history.len() as u64);
                let reply = step(&mut client, id, history).unwrap();
                assert_eq!(outputs(reply), reference.lock().unwrap().answer(id, history), "sequence {id}: {history:?}");
            }
            let more = self.replicas.iter().zip(before).map(|((name, replica), before)| (*name, replica.answered() - before));
            let more: Vec<_> = more.filter(|(_, more)| *more > 0.0).collect();
            let [(name, 3.0)] = more[..] else { panic!("sequence {id} is at {more:?}") };
            name
        };
        (1..).zip(histories).map(&mut place).collect()
    }
}

/// The program, with a Unix socket for the balancer. A program of that name may have been there before.
fn replica(folder: &Path, name: &str, every: &str) -> Replica {
    let socket = |kind: &str| format!("unix:{}", folder.join(format!("{name}-{kind}")).display());
    let mut command = Command::new(PROGRAM);
    command.args(arguments(folder, every)).args(["--http", &socket("http"), "--grpc", &socket("grpc")]);
    let mut program = Program::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut line = String::new();
    BufReader::new(program.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (_, addresses) = line.split_once("http://").unwrap();
    Replica { program, address: addresses.split(',').next().unwrap().parse().unwrap() }
}

/// HAProxy with the file that is shipped, in which addresses alone are other ones.
fn balancer(folder: &Path) -> Program {
    let mut text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/haproxy.cfg")).unwrap();
    let sockets = [("8080", "http"), ("8081", "grpc"), ("8000", "a-http"), ("8010", "b-http"), ("8001", "a-grpc"), ("8011", "b-grpc")];
    for (port, name) in sockets {
        let address = format!(" 127.0.0.1:{port} ");
        let at = if port.starts_with("808") { format!(" 127.0.0.1:{port}") } else { address };
        assert_eq!(text.matches(&at).count(), 1, "{at}");
        let end = if at.ends_with(' ') { " " } else { "" };
        text = text.replace(&at, &format!(" unix@{}{end}", folder.join(name).display()));
    }
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("haproxy");
    let balancer = Program::spawn(command.args(["-db", "-f"]).arg(&file).stdout(Stdio::null()).stderr(Stdio::null()));
    let since = Instant::now();
    while UnixStream::connect(folder.join("http")).is_err() {
        assert!(since.elapsed() < PATIENCE, "HAProxy does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    balancer
}

fn client(path: &Path) -> Client<UnixStream> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::new(stream)
}

/// What a sequence was given, step by step: numbers that stand for inputs.
type History = Vec<u64>;

/// What the last step of a sequence is given, and no other.
fn value(id: u64, history: &[u64]) -> f32 {
    (id * 1000 + history[history.len() - 1] % 1000) as f32 / 16_384.0
}

/// The last step of a sequence.
fn request(id: u64, history: &[u64]) -> Value {
    let value = value(id, history);
    let inputs = json!([
        {"name": "features", "shape": [1, 288], "datatype": "FP32", "data": vec![value; 288]},
        {"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [14, 14, 14, 14, 14, 14]},
    ]);
    json!({"inputs": inputs, "parameters": {"sequence_start": history.len() == 1}})
}

#[track_caller]
fn outputs(reply: Reply) -> Value {
    reply.ok().json()["outputs"].take()
}

fn path() -> String {
    format!("/v2/models/{MODEL}/infer")
}

/// `None` where there is no answer.
fn step(client: &mut Client<UnixStream>, id: u64, history: &[u64]) -> Option<Reply> {
    client.try_call("POST", &path(), &[("x-sequence-id", &id.to_string())], request(id, history).to_string().as_bytes())
}

/// Frames behind a sequence, and behind its snapshot, where it is now.
fn frames(client: &mut Client<UnixStream>, id: u64) -> Option<(u64, u64)> {
    let id = id.to_string();
    let reply = client.try_call("GET", &format!("/v2/models/{MODEL}/sequences/{id}"), &[("x-sequence-id", &id)], b"")?;
    let found = Some(reply).filter(|reply| reply.status < 500)?.ok().json();
    Some((found["frames"].as_u64().unwrap(), found["snapshot_frames"].as_u64().unwrap_or(0)))
}

/// The same sequences in one server that is never disturbed.
struct Reference {
    _server: Running,
    client: Client<TcpStream>,
    /// What each has been given, and the last answer.
    sequences: BTreeMap<u64, (History, Value)>,
}

impl Reference {
    fn new() -> Mutex<Self> {
        let folder = tempfile::tempdir().unwrap();
        let arguments = arguments(folder.path(), "3600");
        let options = Arguments::parse_from(std::iter::once("candle-serve".to_owned()).chain(arguments)).options();
        let server = Running::new(candle_serve::Options { snapshots: None, ..options }, families::shipped());
        let client = server.client().patient();
        Mutex::new(Self { _server: server, client, sequences: BTreeMap::new() })
    }

    /// The answer to the last step of a sequence that was given nothing else.
    fn answer(&mut self, id: u64, history: &[u64]) -> Value {
        let (done, answer) = self.sequences.entry(id).or_default();
        if !history.starts_with(done) {
            done.clear();
        }
        for end in done.len() + 1..=history.len() {
            let mut request = request(id, &history[..end]);
            request["parameters"]["sequence_id"] = json!(id);
            *answer = outputs(self.client.post(&path(), &request));
        }
        *done = history.to_vec();
        answer.clone()
    }
}

/// Clients that step a sequence each until they are told to stop.
struct Load<'a> {
    reference: &'a Mutex<Reference>,
    socket: PathBuf,
    over: AtomicBool,
    /// Steps that were answered, of all sequences.
    answered: AtomicU64,
    sequences: Vec<Sequence>,
}

#[derive(Default)]
struct Sequence {
    /// What its present state has behind it.
    history: Mutex<History>,
    /// Frames behind its last known snapshot.
    snapshot: AtomicU64,
    /// Requests that failed.
    failed: AtomicU64,
    /// How often it went on from its snapshot without an error that would have told.
    moved: AtomicU64,
}

impl<'a> Load<'a> {
    fn new(cluster: &Cluster, reference: &'a Mutex<Reference>, histories: Vec<History>) -> Self {
        let sequences = histories.into_iter().map(|history| Sequence { history: history.into(), ..Sequence::default() }).collect();
        let socket = cluster.folder.path().join("http");
        Self { reference, socket, over: false.into(), answered: 0.into(), sequences }
    }

    /// Steps a sequence. Where a request fails it asks how far the sequence is, as a client has to, and goes on from there.
    fn run(&self, id: u64) {
        let sequence = &self.sequences[id as usize - 1];
        let mut connection = client(&self.socket);
        let mut next = sequence.history.lock().unwrap().len() as u64;
        while !self.over.load(Relaxed) {
            let mut tried = sequence.history.lock().unwrap().clone();
            tried.push(next);
            next += 1;
            if self.step(&mut connection, id, tried.clone()).is_some() {
                continue;
            }
            let (found, snapshot) = loop {
                sequence.failed.fetch_add(1, Relaxed);
                connection = client(&self.socket);
                if let Some(found) = frames(&mut connection, id) {
                    break found;
                }
            };
            let known = sequence.snapshot.load(Relaxed);
            assert!((known..=tried.len() as u64).contains(&found), "sequence {id} is at {found} of {}, snapshot {known}", tried.len());
            assert_eq!(found, snapshot, "sequence {id} goes on from its snapshot");
            tried.truncate(found as usize);
            *sequence.history.lock().unwrap() = tried;
        }
    }

    /// A step, and now and then how far the snapshot is; `None` where a request fails.
    fn step(&self, connection: &mut Client<UnixStream>, id: u64, mut history: History) -> Option<()> {
        let sequence = &self.sequences[id as usize - 1];
        let reply = step(connection, id, &history).filter(|reply| reply.status < 500)?;
        let found = outputs(reply);
        if found != self.reference.lock().unwrap().answer(id, &history) {
            // The other replica has made this step, with what the snapshot has behind it.
            let last = history.pop()?;
            let before = frames(connection, id)?.0 - 1;
            let known = sequence.snapshot.load(Relaxed);
            assert!(
                (known..history.len() as u64).contains(&before),
                "sequence {id} was at {before} of {}, snapshot {known}",
                history.len()
            );
            history.truncate(before as usize);
            history.push(last);
            assert_eq!(found, self.reference.lock().unwrap().answer(id, &history), "sequence {id}: {history:?}");
            sequence.moved.fetch_add(1, Relaxed);
        }
        let steps = history.len();
        *sequence.history.lock().unwrap() = history;
        self.answered.fetch_add(1, Relaxed);
        if steps.is_multiple_of(4) {
            sequence.snapshot.fetch_max(frames(connection, id)?.1, Relaxed);
        }
        Some(())
    }

    /// Waits while the clients go on, until so many more of all their steps were answered.
    fn wait(&self, steps: u64) {
        let until = self.answered.load(Relaxed) + steps;
        self.wait_until(|| self.answered.load(Relaxed) >= until);
    }

    /// Waits until every sequence was stepped twice more, so that one step at least began since: where one is busy others may be stepped a hundred times.
    fn wait_for_all(&self) {
        let lengths = || self.sequences.iter().map(|sequence| sequence.history.lock().unwrap().len());
        let until: Vec<usize> = lengths().map(|length| length + 2).collect();
        self.wait_until(|| lengths().zip(&until).all(|(length, until)| length >= *until));
    }

    fn wait_until(&self, reached: impl Fn() -> bool) {
        let since = Instant::now();
        while !reached() {
            assert!(since.elapsed() < PATIENCE, "clients do not go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Does something while all sequences are stepped.
    fn during(self, work: impl FnOnce(&Self)) -> Vec<Sequence> {
        std::thread::scope(|threads| {
            let load = &self;
            let stops = Stops(&load.over);
            (1..=load.sequences.len() as u64).for_each(|id| drop(threads.spawn(move || load.run(id))));
            work(load);
            drop(stops);
        });
        self.sequences
    }
}

/// Clients stop when the test fails as well.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn histories(sequences: Vec<Sequence>) -> Vec<History> {
    sequences.into_iter().map(|sequence| sequence.history.into_inner().unwrap()).collect()
}

#[test]
fn sequences_of_a_replica_that_was_killed_go_on_in_the_other_one() {
    if !has_haproxy() {
        return;
    }
    let mut cluster = Cluster::new("1");
    let reference = Reference::new();
    let mut given = vec![History::new(); SEQUENCES];
    let places = cluster.places(&reference, &mut given);
    assert!(places.contains(&"a") && places.contains(&"b"), "{places:?}");
    assert_eq!(cluster.places(&reference, &mut given), places);
    let load = Load::new(&cluster, &reference, given);
    let sequences = load.during(|load| {
        // Each has a snapshot by now, and has gone on from there.
        load.wait_until(|| load.sequences.iter().all(|sequence| sequence.snapshot.load(Relaxed) > 6));
        load.wait(100);
        cluster.replicas["a"].program.signal("KILL");
        load.wait(200);
    });
    for (at, (place, sequence)) in places.iter().zip(&sequences).enumerate() {
        let (failed, moved) = (sequence.failed.load(Relaxed), sequence.moved.load(Relaxed));
        // One that was being answered, and one on a connection of the balancer that was just being closed.
        let most = if *place == "a" { (2, 1) } else { (0, 0) };
        assert!(failed <= most.0 && moved <= most.1, "sequence {} at replica {place}: {failed} failed, {moved} moved", at + 1);
    }
    let mut given = histories(sequences);
    let mut client = cluster.client();
    cluster.replicas.remove("a");
    assert!(cluster.places(&reference, &mut given).iter().all(|place| *place == "b"));
    // When it comes back, sequences that have gone on in the other one stay there: what they have done since is only there.
    cluster.start("a");
    let (since, mut new) = (Instant::now(), 100..);
    while cluster.replicas["a"].answered() == 0.0 {
        assert!(since.elapsed() < PATIENCE, "no new sequence comes to the replica");
        new.by_ref().take(20).for_each(|id| drop(step(&mut client, id, &[0]).unwrap().ok()));
    }
    assert!(cluster.places(&reference, &mut given).iter().all(|place| *place == "b"));
}

#[test]
fn a_replica_that_ends_hands_its_sequences_over_without_losing_a_frame() {
    if !has_haproxy() {
        return;
    }
    // Nothing is written in time but what has to be when the replica ends.
    let mut cluster = Cluster::new("3600");
    let reference = Reference::new();
    let mut given = vec![History::new(); SEQUENCES];
    let places = cluster.places(&reference, &mut given);
    assert!(places.contains(&"a") && places.contains(&"b"), "{places:?}");
    let mut ending = cluster.replicas.remove("a").unwrap();
    let load = Load::new(&cluster, &reference, given);
    let sequences = load.during(|load| {
        load.wait(100);
        ending.program.signal("TERM");
        // The balancer turns away, with the replica still there.
        let since = Instant::now();
        loop {
            let before = ending.answered();
            load.wait_for_all();
            if ending.answered() == before {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "the balancer does not turn away");
        }
        ending.program.signal("TERM");
        assert_eq!(ending.program.0.wait().unwrap().code(), Some(0));
        load.wait(100);
    });
    for (at, (place, sequence)) in places.iter().zip(&sequences).enumerate() {
        let (failed, moved) = (sequence.failed.load(Relaxed), sequence.moved.load(Relaxed));
        assert_eq!((failed, moved), (0, 0), "sequence {} at replica {place}: requests that failed, and moves that nothing told", at + 1);
    }
    let mut given = histories(sequences);
    assert!(cluster.places(&reference, &mut given).iter().all(|place| *place == "b"));
    let mut client = cluster.client();
    for (id, history) in (1..).zip(given) {
        assert_eq!(frames(&mut client, id).unwrap().0, history.len() as u64, "sequence {id}");
    }
}

#[test]
fn with_a_snapshot_of_every_step_a_kill_loses_no_frame() {
    if !has_haproxy() {
        return;
    }
    let mut cluster = Cluster::new("0");
    let reference = Reference::new();
    let mut given = vec![History::new(); SEQUENCES];
    let places = cluster.places(&reference, &mut given);
    let load = Load::new(&cluster, &reference, given);
    let sequences = load.during(|load| {
        load.wait(100);
        // What was answered is there.
        for sequence in &load.sequences {
            sequence.snapshot.fetch_max(sequence.history.lock().unwrap().len() as u64, Relaxed);
        }
        cluster.replicas["b"].program.signal("KILL");
        load.wait(100);
    });
    for (place, sequence) in places.iter().zip(&sequences) {
        assert!(sequence.failed.load(Relaxed) == 0 || *place == "b");
        assert_eq!(sequence.moved.load(Relaxed), 0);
    }
    cluster.replicas.remove("b");
    assert!(cluster.places(&reference, &mut histories(sequences)).iter().all(|place| *place == "a"));
}

/// The last step of a sequence over gRPC, which is named in the metadata alone.
fn grpc_step(socket: &Path, id: u64, history: &[u64]) -> Code {
    let raw = |values: Vec<f32>| Bytes::from(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    let message = ModelInferRequest {
        model_name: MODEL.to_owned(),
        inputs: vec![grpc::input("features", "FP32", &[1, 288]), grpc::input("ids", "UINT32", &[1, 6])],
        raw_input_contents: vec![raw(vec![value(id, history); 288]), raw(vec![f32::from_bits(14); 6])],
        ..ModelInferRequest::default()
    };
    let request =
        Request::post(format!("http://balancer{}", grpc::INFER)).header("content-type", "application/grpc").header("te", "trailers");
    let request =
        request.header("x-sequence-id", id.to_string()).body(Full::new(Bytes::from(grpc::frame(&message.encode_to_vec())))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = TokioIo::new(tokio::net::UnixStream::connect(socket).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned();
        Status::from_header_map(&trailers.unwrap_or(head.headers)).expect("a status").code()
    })
}

#[test]
fn a_sequence_is_in_one_place_whatever_protocol_it_is_asked_by() {
    if !has_haproxy() {
        return;
    }
    let cluster = Cluster::new("3600");
    let reference = Reference::new();
    let mut given = vec![History::new(); SEQUENCES];
    let places = cluster.places(&reference, &mut given);
    let socket = cluster.folder.path().join("grpc");
    for (id, (place, history)) in (1..).zip(places.iter().zip(&mut given)) {
        let before = cluster.replicas[place].answered();
        history.push(history.len() as u64);
        assert_eq!(grpc_step(&socket, id, history), Code::Ok, "sequence {id}");
        assert_eq!(cluster.replicas[place].answered(), before + 1.0, "sequence {id}");
    }
    // The states are those after all steps.
    assert_eq!(cluster.places(&reference, &mut given), places);
}
