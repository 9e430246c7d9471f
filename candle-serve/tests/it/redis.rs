//! Snapshots in Redis.

use crate::client::{PATIENCE, Running, options, weights};
use crate::life::PROGRAM;
use crate::program::Program;
use crate::snapshots::{frames, step, stop, sum_of};
use crate::sum;
use crate::tls::{self, Authority};
use candle_serve::{Options, Server};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A Redis of its own in a folder, reached by a port and a Unix socket.
struct Redis {
    program: Program,
    port: u16,
}

/// Whether there is one; where there has to be, it is an error that there is none.
fn has_redis() -> bool {
    let found = Command::new("redis-server").arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(found || std::env::var_os("CANDLE_REQUIRE_REDIS").is_none(), "there is no redis-server");
    if !found {
        eprintln!("skipped: there is no redis-server");
    }
    found
}

impl Redis {
    /// On a port that was free a moment ago; another one if it is not any more.
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(redis) = Self::at(port, folder, arguments) {
                return redis;
            }
        }
    }

    /// `None` where it ends at once, as the port is taken.
    fn at(port: u16, folder: &Path, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(folder.join("redis")).arg("--dir").arg(folder).args(arguments);
        let mut redis = Self { program: Program::spawn(command.stdout(Stdio::null()).stderr(Stdio::null())), port };
        let since = Instant::now();
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
            if redis.program.0.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(since.elapsed() < PATIENCE, "Redis does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }

    /// What it answers to a command without a password: an error's line, a number's, or a text's length and the text.
    fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port))).unwrap();
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).trim_end_matches("+OK\r\n").trim_end().to_owned()
    }

    fn keys(&self) -> String {
        self.ask("DBSIZE")
    }
}

fn redis_options(folder: &Path, url: String) -> Options {
    if !folder.join("models").exists() {
        std::fs::create_dir(folder.join("models")).unwrap();
        sum::save(&folder.join("models"), "m", "redis");
    }
    let options = options(folder.join("models"));
    Options { snapshots: Some(url.into()), snapshot_every: Duration::from_secs(3600), patience: PATIENCE, ..options }
}

#[test]
fn a_sequence_goes_on_in_another_server_by_way_of_redis() {
    if !has_redis() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(folder.path(), &[]);
    // A user who may do nothing else.
    assert_eq!(redis.ask("ACL SETUSER agent on >secret ~candle-sequence:* +get +set +del +ping"), "");
    let ways = [
        format!("redis://127.0.0.1:{}", redis.port),
        format!("redis+unix://{}", folder.path().join("redis").display()),
        format!("redis://agent:secret@127.0.0.1:{}", redis.port),
    ];
    let options = ways.map(|url| redis_options(folder.path(), url));
    for (round, options) in options.iter().enumerate() {
        let server = Running::new(options.clone(), sum::families());
        let mut client = server.client();
        for id in ["7", "a\r\nFLUSHALL\r\n", "ö 🙂"] {
            assert_eq!(sum_of(step(&mut client, 2.0, json!({"sequence_id": id, "sequence_start": round == 0}))), 2.0 * (round + 1) as f64);
            assert_eq!(frames(&mut client, id), round as u64 + 1);
        }
        assert_eq!(client.metric("candle_snapshot_faults", "m"), 0.0);
        drop(client);
        stop(server);
        assert_eq!(redis.keys(), ":3");
    }
    // What ends leaves nothing; without a time to be kept the others stay.
    let server = Running::new(options[0].clone(), sum::families());
    step(&mut server.client(), 0.0, json!({"sequence_id": 7, "sequence_end": true})).ok();
    assert_eq!(redis.keys(), ":2");
    let key = redis.ask("RANDOMKEY");
    let key = key.lines().nth(1).unwrap();
    assert!(key.starts_with("candle-sequence:m:"), "{key}");
    assert_eq!(redis.ask(&format!("TTL {key}")), ":-1");
}

#[test]
fn redis_keeps_a_snapshot_as_long_as_it_is_told_to() {
    if !has_redis() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(folder.path(), &[]);
    let mut options = redis_options(folder.path(), format!("redis://127.0.0.1:{}/0", redis.port));
    options.snapshot_keep = Some(Duration::from_secs(1000));
    let server = Running::new(options, sum::families());
    step(&mut server.client(), 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    stop(server);
    let key = redis.ask("RANDOMKEY");
    let left: u32 = redis.ask(&format!("TTL {}", key.lines().nth(1).unwrap())).trim_start_matches(':').parse().unwrap();
    assert!((1..=1000).contains(&left));
}

#[test]
fn a_redis_that_is_killed_does_not_hurt_serving_and_is_used_again_once_it_is_back() {
    if !has_redis() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut redis = Redis::start(folder.path(), &[]);
    let mut options = redis_options(folder.path(), format!("redis://127.0.0.1:{}", redis.port));
    options.snapshot_every = Duration::from_millis(1);
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let mut sum = 0.0;
    let mut next = |client: &mut _| {
        sum += 1.0;
        assert_eq!(sum_of(step(client, 1.0, json!({"sequence_id": 1, "sequence_start": sum == 1.0}))), sum);
    };
    let wait = |client: &mut _, next: &mut dyn FnMut(&mut _), reached: &dyn Fn(&mut _) -> bool| {
        let since = Instant::now();
        while !reached(client) {
            assert!(since.elapsed() < PATIENCE);
            next(client);
        }
    };
    let port = redis.port;
    wait(&mut client, &mut next, &|client| client.metric("candle_snapshots_written", "m") >= 3.0);
    assert_eq!(client.metric("candle_snapshot_faults", "m"), 0.0);
    // One that answers nothing is waited for, by nobody's step.
    redis.program.signal("STOP");
    wait(&mut client, &mut next, &|client| client.metric("candle_snapshot_faults", "m") >= 2.0);
    redis.program.signal("CONT");
    let written = client.metric("candle_snapshots_written", "m");
    wait(&mut client, &mut next, &|client| client.metric("candle_snapshots_written", "m") > written);
    let faults = client.metric("candle_snapshot_faults", "m");
    drop(redis);
    wait(&mut client, &mut next, &|client| client.metric("candle_snapshot_faults", "m") >= faults + 3.0);
    // Nobody knows whether there is one.
    let reply = step(&mut client, 1.0, json!({"sequence_id": 2}));
    assert_eq!((reply.status, reply.error().as_str()), (503, "sequence 2 of model 'm': its snapshot could not be read"));
    let since = Instant::now();
    redis = loop {
        assert!(since.elapsed() < PATIENCE, "the port is taken");
        if let Some(redis) = Redis::at(port, folder.path(), &[]) {
            break redis;
        }
    };
    let written = client.metric("candle_snapshots_written", "m");
    wait(&mut client, &mut next, &|client| client.metric("candle_snapshots_written", "m") > written);
    assert_eq!(redis.keys(), ":1");
    assert_eq!(step(&mut client, 1.0, json!({"sequence_id": 2})).status, 400);
}

/// What a server says that cannot be started.
fn refusal(options: Options) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let refused = runtime.block_on(Server::start(options, sum::families()));
    refused.err().expect("it starts").to_string()
}

#[test]
fn what_is_wrong_with_redis_is_said_at_the_start_without_its_password() {
    if !has_redis() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(folder.path(), &["--requirepass", "right-secret"]);
    let port = redis.port;
    let right = redis_options(folder.path(), format!("redis://:right-secret@127.0.0.1:{port}/3"));
    assert!(!format!("{right:?}").contains("secret"), "{right:?}");
    let server = Running::new(right, sum::families());
    step(&mut server.client(), 1.0, json!({"sequence_id": 1, "sequence_start": true})).ok();
    stop(server);
    for (url, message) in [
        (format!("redis://:wrong-secret@127.0.0.1:{port}"), format!("Redis at 127.0.0.1:{port}: ")),
        (format!("redis://agent:wrong-secret@127.0.0.1:{port}"), format!("Redis at 127.0.0.1:{port}: ")),
        (format!("redis://127.0.0.1:{port}"), "NOAUTH".to_owned()),
        (format!("redis://:right-secret@127.0.0.1:{port}/999"), format!("Redis at 127.0.0.1:{port}: ")),
        (format!("redis+unix://{}?pass=secret", folder.path().join("none").display()), "No such file".to_owned()),
        ("redis://:secret@[".to_owned(), "snapshots: expected redis://[USER:PASSWORD@]HOST:PORT[/DB]".to_owned()),
        ("redis://:secret@127.0.0.1:port".to_owned(), "snapshots: expected redis://[USER:PASSWORD@]HOST:PORT[/DB]".to_owned()),
    ] {
        let refused = refusal(redis_options(folder.path(), url));
        assert!(refused.contains(&message) && !refused.contains("secret"), "{refused}");
    }
}

#[test]
fn redis_is_reached_over_tls_if_its_certificate_is_trusted() {
    if !has_redis() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let files = tls::files(folder.path(), &authority, Some(&authority));
    let pem = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key, ca) = (pem(&files.certificate), pem(&files.key), pem(files.client_ca.as_deref().unwrap()));
    // Any of them that is free for both: the first is without TLS.
    let tls_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let arguments =
        ["--tls-port", &tls_port.to_string(), "--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-auth-clients", "no"];
    let _redis = Redis::start(folder.path(), &arguments);
    let bundle = pem(&weights().join("policy-mamba"));
    let url = format!("rediss://localhost:{tls_port}");
    let run = |trusted: &str| {
        let listen = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--snapshots", &url];
        let mut command = Command::new(PROGRAM);
        command.arg(&bundle).args(listen).env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // It has ended by itself, or says that it serves.
        let _ = child.kill();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        child.wait().unwrap();
        (line, errors)
    };
    let (line, errors) = run(&ca);
    assert!(line.contains("1 models are served"), "{errors}");
    let stranger = tempfile::tempdir().unwrap();
    let other = tls::files(stranger.path(), &authority, Some(&Authority::new())).client_ca;
    let (line, errors) = run(&pem(other.as_deref().unwrap()));
    assert!(line.is_empty() && errors.contains("certificate"), "{line}{errors}");
}

#[test]
fn a_snapshot_is_kept_longer_than_a_sequence_may_be_idle() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("snapshots").to_str().unwrap().to_owned();
    let options = Options { snapshot_keep: Some(Duration::from_secs(60)), ..redis_options(folder.path(), store) };
    assert_eq!(refusal(options), "snapshot_keep: expected longer than a sequence may be idle (60s), found 60s");
}
