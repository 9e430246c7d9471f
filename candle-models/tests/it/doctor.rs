//! `candle-infer doctor` on whatever machine this is, with its GPUs hidden.

use serde_json::{Value, json};
use std::process::{Command, Output};

const BUNDLE: &str = "../weights/policy-mamba";

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-infer"));
    command.arg("doctor").args(arguments).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

fn text(output: Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn text_names_what_is_off_and_its_remedy() {
    let text = text(doctor(&[BUNDLE]));
    for part in [
        "CPU: ",
        "NVIDIA driver: ",
        "cuBLAS",
        "H200",
        "not measured",
        " 1 rows, f32  on 1 threads: ",
        "findings:",
        "remedy: ",
        "(128 x 17)",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("in_proj"), "only the layers that miss the alignment are named: {text}");
}

#[test]
fn programs_get_the_same_as_json() {
    let report = |arguments: &[&str]| -> Value { serde_json::from_str(&text(doctor(arguments))).unwrap() };
    let found = report(&[BUNDLE, "--json"]);
    assert_eq!(found["features"]["cuda"], cfg!(feature = "cuda"));
    assert_eq!(found["devices"], json!([]));
    assert_eq!(found["bundle"]["recommended"].as_array().unwrap().len(), 7);
    assert_eq!(found["bundle"]["footprint"]["state_bytes"], (2 * (3 * 256 + 256 * 4) + 13) * 4, "two blocks and the last action");
    let steps = found["bundle"]["steps"].as_array().unwrap();
    assert!(steps.len() >= 2 && steps.iter().all(|step| step["us"].as_f64().unwrap() > 0.0), "{steps:?}");
    let findings = found["findings"].as_array().unwrap();
    assert!(findings.iter().all(|f| !f["remedy"].as_str().unwrap().is_empty()) && findings.len() >= 2, "{findings:?}");
    assert_eq!(report(&["--json"])["bundle"], Value::Null);
}

#[test]
fn a_missing_bundle_is_one_line() {
    let output = doctor(&["no/such/bundle"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: no/such/bundle") && error.lines().count() == 1, "{error}");
}
