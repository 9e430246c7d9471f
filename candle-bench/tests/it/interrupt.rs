//! Ctrl-C: what was measured is kept, marked, and read back.

use crate::{latency, run};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn an_interrupted_run_keeps_its_rows_and_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let [out, temporary] = ["run", "temporary"].map(|name| scratch.path().join(name));
    std::fs::create_dir(&temporary).unwrap();
    let many: Vec<String> = (3..300).map(|batch| batch.to_string()).collect();
    let mut command = latency(&out);
    command.args(["--window-batches", &many.join(",")]).env("TMPDIR", &temporary);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (mut line, mut said) = (String::new(), String::new());
    while !line.starts_with("2/") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended early: {said}");
        said.push_str(&line);
    }
    assert!(Command::new("kill").arg("-INT").arg(child.id().to_string()).status().unwrap().success());
    lines.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("kept, marked as interrupted: ") && said.ends_with("\ninterrupted\n"), "{said}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "its networks are left behind");

    let report: Value = serde_json::from_str(&std::fs::read_to_string(out.join("latency.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap().len();
    assert!(report["interrupted"] == json!(true) && (2..299).contains(&rows), "{rows} rows");
    let page = std::fs::read_to_string(out.join("latency.md")).unwrap();
    assert!(page.contains("**Interrupted: rows are missing.**"), "{page}");
    assert_eq!(std::fs::read_to_string(out.join("latency.csv")).unwrap().lines().count(), rows + 1);

    let (code, text, _) = run(Command::new(env!("CARGO_BIN_EXE_candle-bench")).arg("compare").arg(&out).arg(&out));
    assert_eq!(code, Some(0));
    assert!(text.contains("before: interrupted, rows are missing"), "{text}");
}

#[test]
fn a_whole_run_is_not_marked() {
    let scratch = tempfile::tempdir().unwrap();
    let (code, page, said) = run(latency(scratch.path()).env("COLUMNS", "100"));
    assert_eq!(code, Some(0), "{said}");
    let measured = page.lines().any(|line| line.split_whitespace().take(2).eq(["step", "2"]));
    assert!(page.contains("Backbone mlp") && measured && !page.contains("nterrupted") && !said.contains("nterrupted"), "{page}{said}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(scratch.path().join("latency.json")).unwrap()).unwrap();
    assert_eq!((&report["format"], report.get("interrupted")), (&json!(1), None));
}
