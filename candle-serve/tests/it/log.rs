//! The log: which lines there are, and how they are changed at run time.

use crate::client::{Client, PATIENCE, SHIPPED, options};
use crate::life::PROGRAM;
use crate::program::Program;
use crate::sum;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// The program on a folder of a bundle that is right and one that is not; its lines on standard error.
struct Logged {
    program: Program,
    client: Client<std::net::TcpStream>,
    lines: Receiver<String>,
    _folder: tempfile::TempDir,
}

impl Logged {
    fn new(format: &str) -> Self {
        Self::with(format, |_| Vec::new())
    }

    /// With arguments that may be about files in its folder.
    fn with(format: &str, more: impl FnOnce(&std::path::Path) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("damaged")).unwrap();
        std::fs::write(folder.path().join("damaged/config.json"), "{").unwrap();
        let bundle = folder.path().join("good");
        std::fs::create_dir(&bundle).unwrap();
        for entry in std::fs::read_dir(crate::client::weights().join("cartpole")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), bundle.join(entry.file_name())).unwrap();
        }
        let listen = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        let arguments = [&[folder.path().to_str().unwrap()], &listen[..], &["--grace", "0", "--log-format", format]].concat();
        let more = more(folder.path());
        let mut program = Program::spawn(Command::new(PROGRAM).args(arguments).args(more).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let (sender, lines) = channel();
        let errors = BufReader::new(program.0.stderr.take().unwrap());
        // It ends with the program.
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut line = String::new();
        BufReader::new(program.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let (_, addresses) = line.split_once("http://").unwrap();
        let client = Client::connect(addresses.split_once(',').unwrap().0.parse().unwrap());
        Self { program, client, lines, _folder: folder }
    }

    /// The next line that holds this.
    #[track_caller]
    fn line(&self, part: &str) -> String {
        let [line] = self.lines([part]);
        line
    }

    /// The next lines that hold these, which may come in any order: bundles are loaded side by side.
    #[track_caller]
    fn lines<const COUNT: usize>(&self, parts: [&str; COUNT]) -> [String; COUNT] {
        let mut found = [const { None }; COUNT];
        while let Some(missing) = found.iter().position(Option::is_none) {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line has {}", parts[missing]));
            for (found, _) in found.iter_mut().zip(parts).filter(|(found, part)| found.is_none() && line.contains(part)) {
                *found = Some(line.clone());
            }
        }
        found.map(Option::unwrap)
    }

    fn end(mut self) -> Self {
        assert_eq!(self.program.end("TERM").code(), Some(0));
        self
    }
}

fn set(client: &mut Client<std::net::TcpStream>, settings: Value) -> Value {
    client.post("/v2/logging", &settings).ok().json()
}

#[test]
fn what_happens_is_logged_as_json() {
    let mut program = Logged::new("json");
    let read = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let [listening, damaged, loaded] = program.lines(["listening at http://127.0.0.1:", "damaged", "\"good\""]).map(read);
    assert!(listening["timestamp"].is_string());
    assert_eq!((&damaged["level"], &damaged["model"], &damaged["message"]), (&json!("ERROR"), &json!("damaged"), &json!("failed to load")));
    assert!(damaged["error"].as_str().unwrap().contains("EOF while parsing"), "{damaged}");
    assert_eq!((&loaded["level"], &loaded["message"]), (&json!("INFO"), &json!("loaded")));
    assert!(loaded["ms"].as_f64().unwrap() > 0.0);
    // One line for each request that fails, and no more than a line whatever a client says.
    let client = &mut program.client;
    client.get("/v2/models/good").ok();
    assert_eq!(client.get("/v2/models/none%0a%22\\/config").status, 404);
    assert_eq!(client.post("/v2/models/good/infer", &json!({"inputs": [{"name": "a\nb"}]})).status, 400);
    client.post("/v2/repository/models/good/unload", &json!({})).ok();
    let refused = read(program.line("request"));
    assert_eq!((&refused["level"], &refused["kind"], &refused["protocol"]), (&json!("WARN"), &json!("NotFound"), &json!("HTTP")));
    assert_eq!(refused["model"], json!("none%0a%22\\"));
    let refused = read(program.line("request"));
    assert_eq!((&refused["kind"], &refused["call"], &refused["model"]), (&json!("Input"), &json!("/v2/models/good/infer"), &json!("good")));
    assert_eq!(read(program.line("unloaded"))["model"], json!("good"));
    // Requests that succeed only where they are asked for, and others only as long as they are.
    set(&mut program.client, json!({"log_verbose_level": 1, "log_warning": false, "log_info": false}));
    assert_eq!(program.client.get("/v2/models/none").status, 404);
    program.client.get("/v2/models/stats").ok();
    let line = read(program.line("/v2/models"));
    assert_eq!((&line["message"], &line["call"]), (&json!("request answered"), &json!("/v2/models/stats")), "a warning was logged");
    set(&mut program.client, json!({"log_info": true, "log_verbose_level": 0}));
    program.client.get("/v2/health/live").ok();
    let program = program.end();
    let rest: Vec<String> = program.lines.iter().collect();
    assert!(!rest.iter().any(|line| line.contains("/v2/health/live")), "{rest:?}");
    assert!(rest.last().unwrap().contains("stopped"), "{rest:?}");
}

#[test]
fn what_happens_is_logged_as_text() {
    let mut program = Logged::new("text");
    let line = program.line("failed to load");
    assert!(line.contains("ERROR") && line.contains("model=\"damaged\""), "{line}");
    assert_eq!(program.client.get("/v2/repository/index").status, 405);
    let line = program.line("request refused");
    assert!(line.contains("kind=Method") && line.contains("error=\"expected POST, found GET\""), "{line}");
    assert_eq!(program.client.get("/v2/models/none").status, 404);
    let line = program.line("request refused");
    assert!(line.contains("WARN") && line.contains("kind=NotFound") && line.contains("call=\"/v2/models/none\""), "{line}");
    assert!(!line.contains('\u{1b}'), "a log has no colours");
    program.end();
}

#[test]
fn settings_of_the_log_are_changed_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "log");
    let server = crate::client::Running::new(options(folder.path()), sum::families());
    let mut client = server.client();
    let mut settings = json!({
        "log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0, "log_format": "default",
    });
    assert_eq!(client.get("/v2/logging").ok().json(), settings);
    // What was read can be sent back.
    assert_eq!(set(&mut client, settings.clone()), settings);
    settings["log_error"] = json!(false);
    settings["log_verbose_level"] = json!(3);
    assert_eq!(set(&mut client, json!({"log_error": false, "log_verbose_level": 3})), settings);
    for (change, message) in [
        (
            json!({"log_info": false, "log_file": "/tmp/log"}),
            "log_file: expected \"\", which is set where the server is started, found \"/tmp/log\"",
        ),
        (json!({"log_format": "ISO8601"}), "log_format: expected \"default\", which is set where the server is started, found \"ISO8601\""),
        (json!({"log_info": "yes"}), "request: invalid type: string \"yes\", expected a boolean"),
        (json!({"log_verbose_level": -1}), "request: invalid value: integer `-1`, expected u32"),
    ] {
        let reply = client.post("/v2/logging", &change);
        // Where in the text a value ends is for people to look at.
        let error = reply.error();
        assert_eq!((reply.status, error.split(" at line ").next()), (400, Some(message)));
    }
    assert!(client.post("/v2/logging", &json!({"level": 1})).error().starts_with("request: unknown field `level`"));
    assert_eq!(client.get("/v2/logging").ok().json(), settings);
    // Another server has its own.
    assert_eq!(SHIPPED.client().get("/v2/logging").ok().json()["log_error"], json!(true));
}

#[test]
fn a_snapshot_that_is_not_written_is_a_line() {
    let mut program = Logged::with("json", |folder| {
        let snapshots = folder.join("snapshots");
        // Nothing can be written below a file.
        std::fs::create_dir(&snapshots).unwrap();
        std::fs::write(snapshots.join("good"), "").unwrap();
        ["--snapshot-every", "1", "--snapshots", snapshots.to_str().unwrap()].map(str::to_owned).into()
    });
    let input = json!({"name": "state", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]});
    let parameters = json!({"sequence_id": "forged\nline", "sequence_start": true});
    program.client.post("/v2/models/good/infer", &json!({"inputs": [input], "parameters": parameters})).ok();
    let line: Value = serde_json::from_str(&program.line("the snapshot of sequence")).unwrap();
    assert_eq!((&line["level"], &line["model"]), (&json!("ERROR"), &json!("good")));
    assert!(line["message"].as_str().unwrap().starts_with("the snapshot of sequence forged"), "{line}");
    assert!(line["error"].as_str().unwrap().contains("snapshots/good"), "{line}");
    program.end();
}
