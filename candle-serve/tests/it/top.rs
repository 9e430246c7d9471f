//! The table of what a server is at.

use crate::client::{PATIENCE, Running, options};
use crate::life::PROGRAM;
use crate::program::Program;
use crate::sum::{self, FAILS};
use crate::{keys, tls};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("top").args(arguments).env_remove("CANDLE_SERVE_KEY");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The words of a model's line.
fn row<'a>(table: &'a str, model: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(model));
    line.unwrap_or_else(|| panic!("{table}")).split_whitespace().collect()
}

/// One table, of an interval in which `work` is done over and over.
fn while_working(mut command: Command, mut work: impl FnMut()) -> Output {
    let mut child = command.args(["--once", "--every", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        work();
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_table_has_what_a_model_did_in_the_interval() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "top");
    sum::save(folder.path(), "idle", "top");
    let mut options = options(folder.path());
    options.http.push(format!("unix:{}", folder.path().join("socket").display()).parse().unwrap());
    let server = Running::new(options, sum::families());
    let mut client = server.client();
    let body = |x: f32, id: u64, start: bool| {
        let inputs = json!([{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]);
        json!({"inputs": inputs, "parameters": {"sequence_id": id, "sequence_start": start}})
    };
    client.post("/v2/models/m/infer", &body(1.0, 7, true)).ok();
    assert_eq!(client.post("/v2/models/m/infer", &body(FAILS, 8, true)).status, 500);
    let address = format!("http://{}", server.address());
    let unix = format!("unix:{}", folder.path().join("socket").display());
    for address in [&address, &unix] {
        let output = while_working(top(&[address]), || {
            client.post("/v2/models/m/infer", &body(1.0, 7, false)).ok();
            assert_eq!(client.post("/v2/models/m/infer", &body(FAILS, 0, false)).status, 500);
        });
        let table = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(table.starts_with(&format!("{address}  up ")) && !table.contains('\x1b'), "{table}");
        let found = row(&table, "m");
        let number = |at: usize| found[at].parse::<f64>().unwrap();
        let (requests, failures, steps) = (number(1), number(2), number(3));
        assert!(requests > 0.0 && failures > 0.0 && steps > 0.0 && failures < requests && steps < requests, "{table}");
        // Nobody else shares a batch, and one sequence is open.
        assert_eq!((found[4], found[14], found[15]), ("1.00", "1", "0"), "{table}");
        assert!(found[5..14].iter().all(|time| time.ends_with('s')), "{table}");
        assert_eq!(row(&table, "idle")[1..5], ["0.0", "0.0", "0.0", "-"], "{table}");
    }
    let metrics = text(&client.get("/metrics").ok().body);
    for name in [
        "candle_connections ",
        "process_start_time_seconds ",
        "nv_cpu_utilization ",
        "candle_rejected_total{reason=\"input\"} 0",
        "candle_sequences_ended_total{reason=\"lost\"} 1\n",
    ] {
        assert!(metrics.contains(name), "{name} is not among them");
    }
}

#[test]
fn a_server_with_keys_and_tls_is_asked_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, ..]) = keys::server(folder.path());
    let key = alice.strip_prefix("Bearer ").unwrap();
    let address = format!("http://{}", server.address());
    let without = top(&[&address, "--once"]).output().unwrap();
    assert_eq!((without.status.code(), text(&without.stdout)), (Some(1), String::new()));
    assert!(text(&without.stderr).contains("401 Unauthorized"), "{}", text(&without.stderr));
    let with = top(&[&address, "--once", "--every", "0.1"]).env("CANDLE_SERVE_KEY", key).output().unwrap();
    assert!(with.status.success(), "{}", text(&with.stderr));
    let file = folder.path().join("key");
    fs::write(&file, format!("{key}\n")).unwrap();
    let with = top(&[&address, "--once", "--every", "0.1", "--key-file", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(row(&text(&with.stdout), "m")[0], "m");

    let authority = tls::Authority::new();
    let server = tls::server(tls::files(folder.path(), &authority, None), PATIENCE);
    let address = format!("https://localhost:{}", server.address().port());
    let once = |ca: &tls::Authority| {
        let file = folder.path().join("ca.pem");
        fs::write(&file, ca.pem()).unwrap();
        top(&[&address, "--once", "--every", "0.1", "--ca", file.to_str().unwrap()]).output().unwrap()
    };
    let found = once(&authority);
    assert_eq!(row(&text(&found.stdout), "policy-mlp")[0], "policy-mlp", "{}", text(&found.stderr));
    assert_eq!(once(&tls::Authority::new()).status.code(), Some(1));
    let without = top(&[&address, "--once"]).output().unwrap();
    assert!(text(&without.stderr).contains("https needs --ca FILE"), "{}", text(&without.stderr));
}

/// Answers what it is told to, one request after the other.
struct Fake(TcpListener);

impl Fake {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Takes a connection and answers each of its requests with the next text; then closes it.
    fn answer(&self, texts: &[String]) {
        let (stream, _) = self.0.accept().unwrap();
        let mut reader = BufReader::new(stream);
        for text in texts {
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            reader.get_mut().write_all(format!("{head}{text}").as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_server_that_goes_away_is_asked_again_and_may_count_anew() {
    let counted = |count: u64| format!("nv_inference_count{{model=\"m\"}} {count}\n");
    let fake = Fake::new();
    let address = fake.0.local_addr().unwrap();
    let mut program = Program::spawn(top(&[&address.to_string(), "--every", "0.05"]).stdout(Stdio::piped()));
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    fake.answer(&[counted(1_000_000), counted(1_000_000)]);
    assert_eq!(row(&lines.find(|line| line.starts_with("m ")).unwrap(), "m")[3], "0.0");
    // Nobody listens any more; who comes back at the same place has counted less.
    drop(fake);
    let said = lines.find(|line| line.contains("it is asked again")).unwrap();
    assert!(said.starts_with(&address.to_string()), "{said}");
    let since = Instant::now();
    let fake = loop {
        match TcpListener::bind(address) {
            Ok(listener) => break Fake(listener),
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
    };
    fake.answer(&[counted(10)]);
    let line = lines.find(|line| line.starts_with("m ")).unwrap();
    let steps: f64 = row(&line, "m")[3].parse().unwrap();
    assert!((0.0..=10.0 / 0.05).contains(&steps), "{line}");
    // What is no answer of a server is said as well.
    fake.answer(&["<html>".to_owned()]);
    lines.find(|line| line.contains("expected metrics in Prometheus' text format, found \"<html>\"")).unwrap();
}

#[test]
fn what_cannot_be_shown_is_said() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (arguments, code, message) in [
        (vec![closed.as_str(), "--once"], 1, "Connection refused"),
        (vec!["host"], 2, "expected HOST:PORT"),
        (vec!["--every", "0"], 2, "expected from 0.05 to 86400 seconds"),
        (vec!["--key-file", "no/such/file"], 1, "no/such/file: No such file"),
        (vec!["https://localhost:1", "--ca", "no/such/file"], 1, "no/such/file"),
    ] {
        let mut child = top(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{text}");
        assert!(text.contains(message), "{text}");
    }
}
