//! `candle-bench compare`: what it prints, and the exit codes that CI goes by.

use crate::{latency, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn compare(before: &Path, after: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    run(command.arg("compare").arg(before).arg(after).args(more).env("COLUMNS", "60"))
}

/// A run, and the same run after an edit of its report.
fn edited(scratch: &Path, edit: impl Fn(&mut Value)) -> [PathBuf; 2] {
    let [before, after] = ["before", "after"].map(|name| scratch.join(name));
    if !before.exists() {
        let (code, _, said) = run(&mut latency(&before));
        assert_eq!(code, Some(0), "{said}");
        // On a busy machine the windows of a measurement this short need not agree, and its interval can be wider than the mean.
        rewrite(&before, &before, |report| rows(report).for_each(settle));
    }
    std::fs::create_dir_all(&after).unwrap();
    rewrite(&before, &after, edit);
    [before, after]
}

fn rewrite(from: &Path, to: &Path, edit: impl Fn(&mut Value)) {
    let mut report: Value = serde_json::from_str(&std::fs::read_to_string(from.join("latency.json")).unwrap()).unwrap();
    edit(&mut report);
    std::fs::write(to.join("latency.json"), report.to_string()).unwrap();
}

fn rows(report: &mut Value) -> impl Iterator<Item = &mut Value> {
    report["rows"].as_array_mut().unwrap().iter_mut()
}

/// A measurement as of an idle machine, around the mean that was found.
fn settle(row: &mut Value) {
    row["steady"] = json!(true);
    let mean = row["latency_us"]["mean"].as_f64().unwrap();
    row["latency_us"]["mean_ci"]["low"] = json!(0.99 * mean);
    row["latency_us"]["mean_ci"]["high"] = json!(1.01 * mean);
}

/// A latency so many times as long.
fn stretch(row: &mut Value, factor: f64) {
    for pointer in ["/latency_us/mean", "/latency_us/mean_ci/low", "/latency_us/mean_ci/high"] {
        let value = row.pointer_mut(pointer).unwrap();
        *value = json!(value.as_f64().unwrap() * factor);
    }
}

#[test]
fn a_regression_is_named_and_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let [before, after] = edited(scratch.path(), |report| {
        let rows = report["rows"].as_array_mut().unwrap();
        rows.reverse();
        stretch(&mut rows[0], 100.0);
        stretch(&mut rows[1], 0.01);
    });
    let (code, text, said) = compare(&before, &after, &[]);
    assert_eq!(code, Some(1), "{text}{said}");
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    assert!(text.contains("latency: 3 rows in both, 1 faster, 1 slower, 1 unclear"), "{text}");
    let (_, named) = text.split_once("Regressions: 1\n").unwrap();
    let named = named.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        named.starts_with("latency: mlp 512-512, autoregressive heads, window 2, batch 1, threads 1, cpu, f32, captured: mean latency"),
        "{named}"
    );
    assert!(named.ends_with("(+9900.0%), slower"), "{named}");

    let (code, text, _) = compare(&before, &after, &["--json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &found["regressions"]), (Some(1), &json!(1)));
    let row = &found["suites"][0]["rows"][0];
    assert_eq!((&row["case"]["Pass"], &row["figures"][0]["verdict"]), (&json!("window 2"), &json!("slower")));
    assert!(row["figures"][0]["before"]["interval"]["low"].as_f64().unwrap() > 0.0, "{row}");

    let (code, text, said) = compare(&before, &before, &[]);
    assert_eq!(code, Some(0), "{text}{said}");
    assert!(text.ends_with("No regression.\n"), "{text}");
}

#[test]
fn rows_of_one_run_alone_and_other_machines_are_listed_and_pass() {
    let scratch = tempfile::tempdir().unwrap();
    let [before, after] = edited(scratch.path(), |report| {
        rows(report).for_each(|row| {
            stretch(row, 100.0);
            row["cpu"] = json!("another");
        });
        report["rows"][0]["batch"] = json!(77);
    });
    std::fs::write(after.join("later.json"), "{}").unwrap();
    let (code, text, said) = compare(&before, &after, &[]);
    assert_eq!(code, Some(0), "{text}{said}");
    for part in [
        "2 of 2 rows were measured elsewhere",
        "(other cpu)",
        "Only before: 1",
        "Only after: 1",
        "batch 77",
        "Not known to this version: later",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_compared_is_bad_use() {
    let scratch = tempfile::tempdir().unwrap();
    let refused = |before: &Path, after: &Path, part: &str| {
        let (code, text, said) = compare(before, after, &[]);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{part}: {said}");
    };
    let [before, after] = edited(scratch.path(), |report| report["format"] = json!(7));
    refused(&before, &after, "after/latency.json: format 7 is that of another version");
    edited(scratch.path(), |report| drop(report["rows"][0].as_object_mut().unwrap().remove("calls_per_s")));
    refused(&after, &before, "latency.json: not a report of suite latency: missing field `calls_per_s`");
    edited(scratch.path(), |report| rows(report).for_each(|row| row["device"] = json!("cuda:0")));
    refused(&before, &after, "no row is in both");
    std::fs::write(after.join("latency.json"), "[]").unwrap();
    refused(&before, &after, "latency.json: not a report");
    std::fs::remove_file(after.join("latency.json")).unwrap();
    refused(&before, &after, "not a run directory");
    refused(&scratch.path().join("nowhere"), &before, "nowhere: no such directory");
    refused(&before.join("latency.md"), &before, "latency.md: not a directory");
    let (code, _, said) = compare(&before, &before, &["--threshold", "100"]);
    assert!(code == Some(2) && said.contains("threshold"), "{said}");
    let (code, _, _) = run(Command::new(env!("CARGO_BIN_EXE_candle-bench")).arg("compare").arg(&before));
    assert_eq!(code, Some(2));
}
