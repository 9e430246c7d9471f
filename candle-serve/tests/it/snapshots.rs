//! Sequences that go on where they were, in another server.

use crate::client::{Client, PATIENCE, Reply, Running, options, weights};
use crate::life::serve;
use crate::program::Program;
use crate::sum;
use candle_serve::Options;
use serde_json::{Value, json};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

const PATH: &str = "/v2/models/m/infer";

struct Folders {
    folder: tempfile::TempDir,
    snapshots: PathBuf,
}

/// Two folders: of a model that sums, and of snapshots.
fn folders(gate: &str) -> Folders {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("models")).unwrap();
    sum::save(&folder.path().join("models"), "m", gate);
    let snapshots = folder.path().join("snapshots");
    Folders { folder, snapshots }
}

impl Folders {
    /// A server that writes a snapshot when it has to.
    fn options(&self) -> Options {
        let options = options(self.folder.path().join("models"));
        Options { snapshots: Some(self.snapshots.clone().into()), snapshot_every: Duration::from_secs(3600), patience: PATIENCE, ..options }
    }

    fn server(&self) -> Running {
        Running::new(self.options(), sum::families())
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.snapshots.join("m")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

pub fn stop(mut server: Running) {
    let ended = server.server.take().unwrap().stop();
    assert!(server.runtime.block_on(ended));
}

pub fn step(client: &mut Client<TcpStream>, x: f32, parameters: Value) -> Reply {
    let input = json!({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]});
    client.post(PATH, &json!({"inputs": [input], "parameters": parameters}))
}

#[track_caller]
pub fn sum_of(reply: Reply) -> f64 {
    reply.ok().json()["outputs"][0]["data"][0].as_f64().unwrap()
}

fn percent(id: &str) -> String {
    id.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

pub fn frames(client: &mut Client<TcpStream>, id: &str) -> u64 {
    client.get(&format!("/v2/models/m/sequences/{}", percent(id))).ok().json()["frames"].as_u64().unwrap()
}

#[test]
fn a_sequence_of_any_id_goes_on_in_the_next_server() {
    let folders = folders("any id");
    let long = "ö".repeat(64);
    let ids = ["7", "07", "../../etc/passwd", "a/b", "..", "%2e%2e", "new\nline \0", "日本語 🙂", &long];
    let server = folders.server();
    let mut client = server.client();
    for (at, id) in ids.iter().enumerate() {
        step(&mut client, at as f32, json!({"sequence_id": id, "sequence_start": true})).ok();
        step(&mut client, 100.0, json!({"sequence_id": id})).ok();
    }
    drop(client);
    stop(server);
    assert_eq!(folders.files().len(), ids.len());
    let names = fs::read_dir(folders.folder.path()).unwrap().count();
    assert_eq!(names, 2, "nothing lies outside of the folder");
    let server = folders.server();
    let mut client = server.client();
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(frames(&mut client, id), 2, "{id:?}");
        assert_eq!(sum_of(step(&mut client, 1000.0 / 8.0, json!({"sequence_id": id}))), at as f64 + 225.0, "{id:?}");
        assert_eq!(frames(&mut client, id), 3, "{id:?}");
    }
    // What ends leaves nothing, whichever way it ends.
    step(&mut client, 0.0, json!({"sequence_id": ids[0], "sequence_end": true})).ok();
    for id in &ids[1..] {
        client.call("DELETE", &format!("/v2/models/m/sequences/{}", percent(id)), &[], b"").ok();
    }
    assert_eq!(folders.files(), Vec::<PathBuf>::new());
    drop(client);
    stop(server);
    assert_eq!(folders.files(), Vec::<PathBuf>::new());
}

#[test]
fn what_begins_anew_leaves_nothing_of_what_was_before() {
    let folders = folders("begins anew");
    let server = folders.server();
    let mut client = server.client();
    for id in 1..=3 {
        step(&mut client, 5.0, json!({"sequence_id": id, "sequence_start": true})).ok();
    }
    let state = client.get("/v2/models/m/sequences/1/state").ok().body;
    drop(client);
    stop(server);
    assert_eq!(folders.files().len(), 3);
    let server = folders.server();
    let mut client = server.client();
    step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    client.call("PUT", "/v2/models/m/sequences/2/state", &[], &state).ok();
    client.post("/v2/models/m/sequences/1/fork", &json!({"sequence_id": 3})).ok();
    assert_eq!(folders.files(), Vec::<PathBuf>::new());
    assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": 3}))), 1.0);
}

#[test]
fn one_that_was_idle_goes_on() {
    let folders = folders("idle");
    let mut options = folders.options();
    options.limits.sequence_time = Duration::from_millis(1);
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    for round in 1..=3 {
        let start = round == 1;
        assert_eq!(sum_of(step(&mut client, 2.0, json!({"sequence_id": "x", "sequence_start": start}))), f64::from(2 * round));
        client.wait_for("candle_sequences", "m", 0.0);
    }
    assert_eq!(client.metric("candle_snapshot_faults", "m"), 0.0);
    let reply = step(&mut client, 1.0, json!({"sequence_id": "y"}));
    assert_eq!(reply.status, 400);
}

#[test]
fn two_servers_share_a_folder() {
    let folders = folders("share");
    let mut options = folders.options();
    options.limits.sequence_time = Duration::from_millis(1);
    let servers = [Running::new(options.clone(), sum::families()), Running::new(options, sum::families())];
    let mut clients = [servers[0].client(), servers[1].client()];
    for turn in 1..=6 {
        let client = &mut clients[turn % 2];
        assert_eq!(sum_of(step(client, 1.0, json!({"sequence_id": 1, "sequence_start": turn == 1}))), turn as f64);
        client.wait_for("candle_sequences", "m", 0.0);
    }
}

#[test]
fn with_a_snapshot_of_every_step_any_server_makes_the_next_one() {
    let folders = folders("any server");
    let options = Options { snapshot_every: Duration::ZERO, ..folders.options() };
    let servers = [Running::new(options.clone(), sum::families()), Running::new(options, sum::families())];
    let mut clients = [servers[0].client(), servers[1].client()];
    // In no order, and each server has the sequence open all the time.
    let turns = [0, 1, 1, 0, 1, 0, 0, 0, 1];
    for (turn, at) in turns.into_iter().enumerate() {
        let client = &mut clients[at];
        assert_eq!(sum_of(step(client, 1.0, json!({"sequence_id": 1, "sequence_start": turn == 0}))), turn as f64 + 1.0);
        assert_eq!(frames(client, "1"), turn as u64 + 1);
    }
    // One that begins anew elsewhere, as often as the one before was stepped; one that gets a state.
    let state = clients[0].get("/v2/models/m/sequences/1/state").ok().body;
    for turn in 1..=9 {
        assert_eq!(sum_of(step(&mut clients[0], 2.0, json!({"sequence_id": 1, "sequence_start": turn == 1}))), f64::from(2 * turn));
    }
    assert_eq!(sum_of(step(&mut clients[1], 2.0, json!({"sequence_id": 1}))), 20.0);
    clients[0].call("PUT", "/v2/models/m/sequences/1/state", &[], &state).ok();
    assert_eq!(sum_of(step(&mut clients[1], 2.0, json!({"sequence_id": 1}))), 11.0);
    clients[1].post("/v2/models/m/sequences/1/fork", &json!({"sequence_id": 2})).ok();
    assert_eq!(sum_of(step(&mut clients[0], 2.0, json!({"sequence_id": 2}))), 13.0);
    // A store that has nothing any more ends no sequence that is open.
    folders.files().iter().for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(sum_of(step(&mut clients[1], 2.0, json!({"sequence_id": 1}))), 13.0);
    assert_eq!(sum_of(step(&mut clients[0], 2.0, json!({"sequence_id": 1}))), 15.0);
}

#[test]
fn snapshots_that_are_damaged_or_of_another_model_are_refused_and_stay() {
    let folders = folders("damaged");
    let server = folders.server();
    let mut client = server.client();
    step(&mut client, 5.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    drop(client);
    stop(server);
    let [file] = &folders.files()[..] else { panic!("expected a file") };
    let whole = fs::read(file).unwrap();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let text = |from: &str, to: &str| {
        let text = String::from_utf8_lossy(&whole[8..]).find(from).unwrap() + 8;
        [&whole[..text], to.as_bytes(), &whole[text + from.len()..]].concat()
    };
    let cases = [
        (whole[..whole.len() - 1].to_vec(), "is damaged: "),
        (whole[..8].to_vec(), "is damaged: "),
        (Vec::new(), "is damaged: "),
        (vec![0xff; 4096], "is damaged: "),
        (changed(whole.len() - 1), "is damaged: its checksum is another one"),
        (text("\"frames\":\"1\"", "\"frames\":\"2\""), "is damaged: its checksum is another one"),
        (text("candle-sequence 1", "candle-sequence 9"), "has another format: expected candle-sequence 1, found \"candle-sequence 9\""),
    ];
    let server = folders.server();
    let mut client = server.client();
    for (bytes, reason) in &cases {
        fs::write(file, bytes).unwrap();
        let reply = step(&mut client, 1.0, json!({"sequence_id": 1}));
        let start = format!("sequence 1 of model 'm': its snapshot {reason}");
        assert!(reply.status == 409 && reply.error().starts_with(&start), "{}", reply.error());
        assert_eq!(&fs::read(file).unwrap(), bytes);
    }
    // Under the name of another sequence, and of another model.
    fs::write(file, &whole).unwrap();
    step(&mut client, 1.0, json!({"sequence_id": 2, "sequence_start": true})).ok();
    drop(client);
    stop(server);
    let other = folders.files().into_iter().find(|found| found != file).unwrap();
    fs::copy(file, &other).unwrap();
    let server = folders.server();
    let reply = step(&mut server.client(), 1.0, json!({"sequence_id": 2}));
    assert_eq!((reply.status, reply.error()), (409, "sequence 2 of model 'm': its snapshot is of another sequence".to_owned()));
    drop(server);
    let key = file.file_name().unwrap();
    fs::create_dir(folders.snapshots.join("policy-mamba")).unwrap();
    fs::copy(file, folders.snapshots.join("policy-mamba").join(key)).unwrap();
    let options = Options { snapshots: Some(folders.snapshots.clone().into()), ..options(weights().join("policy-mamba")) };
    let server = Running::new(options, sum::families());
    let reply = server.client().get("/v2/models/policy-mamba/sequences/1");
    let reason = "its snapshot is of a model with other inputs, outputs or states: begin the sequence anew";
    assert_eq!((reply.status, reply.error()), (409, format!("sequence 1 of model 'policy-mamba': {reason}")));
}

#[test]
fn a_folder_that_fails_does_not_hurt_serving() {
    let folders = folders("fails to be a folder");
    let mut options = folders.options();
    options.snapshot_every = Duration::from_millis(1);
    let server = Running::new(options, sum::families());
    // Nothing can be written below a file, whoever asks for it.
    fs::write(folders.snapshots.join("m"), "").unwrap();
    let mut client = server.client();
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 1, "sequence_start": true}))), 1.0);
    let since = Instant::now();
    while client.metric("candle_snapshot_faults", "m") < 3.0 {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(sum_of(step(&mut client, 1.0, json!({"sequence_id": 1}))), 2.0);
    let reply = step(&mut client, 1.0, json!({"sequence_id": 2}));
    let message = "sequence 2 of model 'm': its snapshot could not be read";
    assert_eq!((reply.status, reply.error().as_str()), (503, message));
    // Once it can be written again it is.
    fs::remove_file(folders.snapshots.join("m")).unwrap();
    let since = Instant::now();
    while folders.files().is_empty() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_server_that_ends_under_load_loses_no_sequence() {
    let folders = folders("under load");
    let mut server = folders.server();
    let address = server.address();
    let answered = AtomicUsize::new(0);
    let counts: Vec<u64> = std::thread::scope(|threads| {
        let clients: Vec<_> = (1..=16)
            .map(|id| {
                let answered = &answered;
                threads.spawn(move || {
                    let mut client = Client::connect(address).patient();
                    let mut count = 0;
                    loop {
                        let input = json!({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]});
                        let parameters = json!({"sequence_id": id, "sequence_start": count == 0});
                        let body = json!({"inputs": [input], "parameters": parameters}).to_string();
                        let Some(reply) = client.try_call("POST", PATH, &[], body.as_bytes()) else { return count };
                        count += 1;
                        assert_eq!(sum_of(reply), count as f64);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while answered.load(Ordering::Relaxed) < 500 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = server.server.take().unwrap().stop();
        assert!(server.runtime.block_on(ended));
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let server = folders.server();
    let mut client = server.client();
    for (id, count) in (1..).zip(counts) {
        assert_eq!(frames(&mut client, &id.to_string()), count);
        assert_eq!(sum_of(step(&mut client, 0.0, json!({"sequence_id": id}))), count as f64);
    }
}

#[test]
fn files_that_are_too_old_are_removed_and_no_others() {
    let folders = folders("too old");
    let mut options = folders.options();
    options.limits.sequence_time = Duration::from_millis(1);
    options.snapshot_keep = Some(Duration::from_secs(1000));
    let old = SystemTime::now() - Duration::from_secs(2000);
    let files = folders.snapshots.join("m");
    fs::create_dir_all(&files).unwrap();
    let key = "0123456789abcdef".repeat(4);
    let names = [&format!("{key}.safetensors"), &format!(".{key}.safetensors.tmp-12-3"), "notes.safetensors", &format!("{key}.txt")];
    for name in names {
        fs::write(files.join(name), "").unwrap();
        fs::File::options().write(true).open(files.join(name)).unwrap().set_modified(old).unwrap();
    }
    let server = Running::new(options.clone(), sum::families());
    step(&mut server.client(), 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    server.client().wait_for("candle_sequences", "m", 0.0);
    stop(server);
    assert_eq!(folders.files().len(), 5, "not yet looked at");
    // What is looked at every eighth of the time that a file is kept.
    options.snapshot_keep = Some(Duration::from_millis(1000));
    let young = folders.files().into_iter().find(|path| !names.iter().any(|name| path.ends_with(name))).unwrap();
    fs::File::options().write(true).open(&young).unwrap().set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    let _server = Running::new(options, sum::families());
    let since = Instant::now();
    while folders.files().len() > 3 {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut left = folders.files();
    left.sort();
    let mut expected = vec![files.join(names[2]), files.join(names[3]), young];
    expected.sort();
    assert_eq!(left, expected);
}

/// The program with snapshots of a policy with memory, and where it serves.
fn program(snapshots: &Path) -> (Program, SocketAddr) {
    let (program, [http, _]) =
        serve(weights().join("policy-mamba").to_str().unwrap(), &["--snapshot-every", "1", "--snapshots", snapshots.to_str().unwrap()]);
    (program, http)
}

fn policy_step(client: &mut Client<TcpStream>, start: bool, value: f32) {
    let inputs = json!([
        {"name": "features", "shape": [1, 288], "datatype": "FP32", "data": vec![value; 288]},
        {"name": "ids", "shape": [1, 6], "datatype": "UINT32", "data": [14, 14, 14, 14, 14, 14]},
    ]);
    let parameters = json!({"sequence_id": "bits", "sequence_start": start});
    client.post("/v2/models/policy-mamba/infer", &json!({"inputs": inputs, "parameters": parameters})).ok();
}

#[test]
fn a_server_that_was_killed_goes_on_from_its_last_snapshot_to_the_bit() {
    const SEQUENCE: &str = "/v2/models/policy-mamba/sequences/bits";
    let folder = tempfile::tempdir().unwrap();
    let mut states: Vec<Vec<u8>> = Vec::new();
    let mut known = 0;
    for (round, signal) in ["KILL", "KILL", "TERM", "KILL"].into_iter().enumerate() {
        let (mut program, address) = program(folder.path());
        let mut client = Client::connect(address).patient();
        if round > 0 {
            let found = client.get(SEQUENCE).ok().json()["frames"].as_u64().unwrap() as usize;
            assert!(found >= known && found <= states.len(), "{found} of {}, {known} of which were in a snapshot", states.len());
            states.truncate(found);
            assert_eq!(client.get(&format!("{SEQUENCE}/state")).ok().body, states[found - 1]);
        }
        for _ in 0..5 {
            policy_step(&mut client, states.is_empty(), 0.01 * states.len() as f32);
            states.push(client.get(&format!("{SEQUENCE}/state")).ok().body);
        }
        // The server says when there is a snapshot of these; then some more steps that need not be there.
        let since = Instant::now();
        let saved = |client: &mut Client<TcpStream>| client.get(SEQUENCE).ok().json()["snapshot_frames"].as_u64().unwrap_or(0) as usize;
        known = saved(&mut client);
        while known < states.len() {
            assert!(since.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
            known = saved(&mut client);
        }
        for _ in 0..3 {
            policy_step(&mut client, false, 0.01 * states.len() as f32);
            states.push(client.get(&format!("{SEQUENCE}/state")).ok().body);
        }
        if signal == "TERM" {
            known = states.len();
        }
        program.end(signal);
    }
}
