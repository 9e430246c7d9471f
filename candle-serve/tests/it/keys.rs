//! Who may do what.

use crate::client::{Client, PATIENCE, Running, options, weights};
use crate::life::serve;
use crate::sum;
use candle_serve::{Options, Role, Server, create_key};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PATH: &str = "/v2/models/m/infer";

/// A server of one model that sums, with the keys of two who infer and of one who may do everything.
pub fn server(folder: &Path) -> (Running, [String; 3]) {
    fs::create_dir(folder.join("models")).unwrap();
    sum::save(&folder.join("models"), "m", "keys");
    let made = [("alice", Role::Infer), ("bob", Role::Infer), ("root", Role::Admin)].map(|(name, role)| create_key(name, role).unwrap());
    fs::write(folder.join("keys"), made.each_ref().map(|(_, line)| line.as_str()).join("\n")).unwrap();
    let options = Options {
        keys: Some(folder.join("keys")),
        snapshots: Some(folder.join("snapshots").into()),
        shared_memory: true,
        ..options(folder.join("models"))
    };
    (Running::new(options, sum::families()), made.map(|(key, _)| format!("Bearer {key}")))
}

fn call(client: &mut Client<TcpStream>, key: &str, method: &str, path: &str, body: Option<Value>) -> crate::client::Reply {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    client.call(method, path, &[("Authorization", key)], body.as_bytes())
}

fn step(x: f32, id: &str, start: bool) -> Option<Value> {
    let inputs = json!([{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]);
    Some(json!({"inputs": inputs, "parameters": {"sequence_id": id, "sequence_start": start}}))
}

#[test]
fn without_a_key_only_health_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, ..]) = server(folder.path());
    let mut client = server.client();
    client.get("/v2/health/live").ok();
    client.get("/v2/health/ready").ok();
    let pages = [
        ("GET", "/v2"),
        ("GET", "/metrics"),
        ("GET", "/v2/models/m"),
        ("GET", "/v2/models/m/ready"),
        ("GET", "/v2/models/m/config"),
        ("GET", "/v2/models/stats"),
        ("POST", PATH),
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/logging"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/status"),
        ("POST", "/v2/repository/models/m/load"),
        ("POST", "/v2/repository/models/m/unload"),
        ("GET", "/v2/models/m/sequences/1"),
        ("PUT", "/v2/models/m/sequences/1/state"),
        ("POST", "/v2/models/m/sequences/1/fork"),
        ("GET", "/v2/models/none"),
        ("PATCH", "/v2/models/m"),
        ("GET", "/nowhere"),
        ("GET", "/v2/health/live/more"),
        ("GET", "/v2/models/m/versions/2"),
    ];
    for (method, path) in pages {
        let reply = client.call(method, path, &[], b"");
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")), "{method} {path}");
        assert_eq!(reply.error(), "expected a key: Authorization: Bearer KEY");
        let wrong = format!("{alice}0");
        let reply = client.call(method, path, &[("Authorization", &wrong)], b"");
        assert_eq!((reply.status, reply.error().as_str()), (401, "the key is not known"), "{method} {path}");
    }
    call(&mut client, &alice, "POST", PATH, step(1.0, "", false)).ok();
    assert_eq!(call(&mut client, &alice, "GET", "/nowhere", None).status, 404);
}

#[test]
fn a_role_that_is_too_low_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, _, root]) = server(folder.path());
    let mut client = server.client();
    for page in ["load", "unload", "load"] {
        let path = format!("/v2/repository/models/m/{page}");
        let reply = call(&mut client, &alice, "POST", &path, None);
        assert_eq!((reply.status, reply.error().as_str()), (403, "the key of alice is for infer: expected one for admin"));
        call(&mut client, &root, "POST", &path, None).ok();
    }
    for page in ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"] {
        assert_eq!(call(&mut client, &alice, "GET", page, None).status, 403, "{page}");
        call(&mut client, &root, "GET", page, None).ok();
    }
    call(&mut client, &alice, "POST", PATH, step(1.0, "", false)).ok();
    call(&mut client, &root, "POST", PATH, step(1.0, "", false)).ok();
    call(&mut client, &alice, "GET", "/metrics", None).ok();
}

#[test]
fn a_sequence_belongs_to_whoever_began_it() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, bob, root]) = server(folder.path());
    let mut client = server.client();
    let sum = |reply: crate::client::Reply| reply.ok().json()["outputs"][0]["data"][0].as_f64().unwrap();
    assert_eq!(sum(call(&mut client, &alice, "POST", PATH, step(5.0, "x", true))), 5.0);
    let page = "/v2/models/m/sequences/x";
    for other in [&bob, &root] {
        assert_eq!(call(&mut client, other, "POST", PATH, step(1.0, "x", false)).status, 400);
        for (method, path) in [("GET", page.to_owned()), ("DELETE", page.to_owned()), ("GET", format!("{page}/state"))] {
            let reply = call(&mut client, other, method, &path, None);
            assert_eq!((reply.status, reply.error().as_str()), (404, "model 'm' has no sequence x"));
        }
        assert_eq!(call(&mut client, other, "POST", &format!("{page}/fork"), Some(json!({"sequence_id": "y"}))).status, 404);
    }
    assert_eq!(sum(call(&mut client, &bob, "POST", PATH, step(1.0, "x", true))), 1.0);
    call(&mut client, &alice, "POST", &format!("{page}/fork"), Some(json!({"sequence_id": "y"}))).ok();
    assert_eq!(call(&mut client, &bob, "GET", "/v2/models/m/sequences/y", None).status, 404);
    // Several in one request are the same principal's.
    let many = json!({"inputs": [
        {"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [0, 0]},
        {"name": "__sequence_id", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]},
    ]});
    assert_eq!(call(&mut client, &bob, "POST", PATH, Some(many.clone())).status, 400);
    assert_eq!(call(&mut client, &alice, "POST", PATH, Some(many)).ok().json()["outputs"][0]["data"], json!([5.0, 5.0]));
    // Over a restart as well.
    let options = Options {
        keys: Some(folder.path().join("keys")),
        snapshots: Some(folder.path().join("snapshots").into()),
        ..options(folder.path().join("models"))
    };
    drop(client);
    let mut server = server;
    let ended = server.server.take().unwrap().stop();
    assert!(server.runtime.block_on(ended));
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    assert_eq!(call(&mut client, &root, "POST", PATH, step(0.0, "x", false)).status, 400);
    assert_eq!(sum(call(&mut client, &alice, "POST", PATH, step(0.0, "x", false))), 5.0);
    assert_eq!(sum(call(&mut client, &bob, "POST", PATH, step(0.0, "x", false))), 1.0);
}

/// Waits until a request with that key has that status.
fn wait_for(client: &mut Client<TcpStream>, key: &str, status: u16) {
    let since = Instant::now();
    while call(client, key, "POST", PATH, step(1.0, "", false)).status != status {
        assert!(since.elapsed() < PATIENCE, "{status} does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn keys_are_replaced_while_requests_come() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, bob, root]) = server(folder.path());
    let mut client = server.client();
    let path = folder.path().join("keys");
    let lines = fs::read_to_string(&path).unwrap();
    let (carol, line) = create_key("carol", Role::Infer).unwrap();
    let carol = format!("Bearer {carol}");
    assert_eq!(call(&mut client, &carol, "POST", PATH, step(1.0, "", false)).status, 401);
    // Alice's key is taken back, and Carol has one: the same connection hears of it.
    let without: Vec<&str> = lines.lines().skip(1).chain([&*line]).collect();
    fs::write(&path, without.join("\n")).unwrap();
    wait_for(&mut client, &carol, 200);
    assert_eq!(call(&mut client, &alice, "POST", PATH, step(1.0, "", false)).status, 401);
    call(&mut client, &bob, "POST", PATH, step(1.0, "", false)).ok();
    // Files that are none, empty or not there take nobody's key away.
    for damage in [Some("{"), Some(""), None] {
        damage.map_or_else(|| fs::remove_file(&path), |text| fs::write(&path, text)).unwrap();
        for _ in 0..3 {
            server.server.as_ref().unwrap().renew();
            call(&mut client, &root, "POST", PATH, step(1.0, "", false)).ok();
        }
    }
    fs::write(&path, &lines).unwrap();
    wait_for(&mut client, &alice, 200);
    assert_eq!(call(&mut client, &carol, "POST", PATH, step(1.0, "", false)).status, 401);
}

#[test]
fn the_program_reads_keys_anew_at_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let [(old, before), (new, after)] = ["old", "new"].map(|name| create_key(name, Role::Infer).unwrap());
    fs::write(&path, before).unwrap();
    let (program, [http, _]) = serve(weights().join("policy-mlp").to_str().unwrap(), &["--keys", path.to_str().unwrap()]);
    let mut client = Client::connect(http).patient();
    let mut status = |key: &str| client.call("GET", "/v2", &[("Authorization", &format!("Bearer {key}"))], b"").status;
    assert_eq!((status(&old), status(&new)), (200, 401));
    fs::write(&path, after).unwrap();
    program.signal("HUP");
    let since = Instant::now();
    while status(&new) != 200 {
        assert!(since.elapsed() < PATIENCE);
    }
    assert_eq!(status(&old), 401);
}

#[test]
fn the_program_makes_keys_that_servers_know() {
    let program = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_candle-serve")).args(arguments).output().unwrap();
    let made = program(&["key", "agent", "--role", "infer"]);
    assert!(made.status.success());
    let (line, key) = (String::from_utf8(made.stdout).unwrap(), String::from_utf8(made.stderr).unwrap());
    assert!(!line.contains(key.trim()));
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "made");
    fs::write(folder.path().join("keys"), line).unwrap();
    let right = Options { keys: Some(folder.path().join("keys")), ..options(folder.path()) };
    let server = Running::new(right.clone(), sum::families());
    call(&mut server.client(), &format!("Bearer {}", key.trim()), "GET", "/v2", None).ok();
    assert_eq!(program(&["key", "a b", "--role", "infer"]).status.code(), Some(1));
    assert_eq!(program(&["key", "agent", "--role", "root"]).status.code(), Some(2));
    // A file that holds the key in place of its line is refused, and not repeated.
    fs::write(folder.path().join("keys"), &key).unwrap();
    let error = server.runtime.block_on(Server::start(right, sum::families())).err().unwrap().to_string();
    assert!(error.contains("keys: line 1: expected {") && !error.contains(key.trim()), "{error}");
}
