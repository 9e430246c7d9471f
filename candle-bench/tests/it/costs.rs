//! The suites of time and memory on sizes that take no time, and their reports read back.

use crate::run;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A suite with the least of everything, its reports below `out`.
fn suite(name: &str, out: &Path, arguments: &[&str]) -> (Vec<Value>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    command.arg(name).args(["--threads", "1", "--warm-up", "0", "--window-length", "0.001", "--rounds", "4", "--limit", "1"]);
    command.args(["--max-windows", "3", "--host", "bench-1", "--out"]).arg(out).args(arguments);
    let (code, page, said) = run(&mut command);
    assert_eq!(code, Some(0), "{said}");
    assert!(page.starts_with("Command: candle-bench "), "{page}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap()).unwrap();
    (report["rows"].as_array().unwrap().clone(), said)
}

#[test]
fn every_suite_of_costs_can_be_run_and_compared() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path();

    let (rows, said) = suite("train", out, &["--backbones", "mlp", "--batches", "2", "--window", "4"]);
    assert_eq!(rows.len(), 1, "{said}");
    let peak_mb = rows[0]["peak_mb"].as_f64().unwrap();
    assert!(peak_mb > 1.0 && rows[0]["note"] == "", "{peak_mb} MB, {}", rows[0]["note"]);

    let arguments = ["--backbones", "attention", "--frames", "30,60,90", "--batches", "1,2", "--sessions", "1,2", "--load-seconds", "0.05"];
    let (rows, said) = suite("scaling", out, &arguments);
    assert_eq!(rows.len(), 6, "{said}");
    assert!(said.contains("up to the window of 60") && said.contains("not available: ranks are processes of candle-train"), "{said}");

    let sizes = ["--rows", "1", "--batch", "2", "--window", "3", "--episodes", "2", "--beam-hidden", "16"];
    let arguments = [&["--backbones", "mlp"][..], &sizes, &["--operator-pairs", "1", "--operator-hidden", "4"]].concat();
    let (rows, said) = suite("memory", out, &arguments);
    let works: Vec<_> = rows.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    assert_eq!(works, ["engine step", "step on tensors", "training step", "beam episodes", "operator training step"], "{said}");
    for row in &rows {
        let [off, on] = ["without", "with"].map(|side| &row[side]);
        assert_eq!((off["allocator"].as_str(), on["allocator"].as_str()), (Some("system"), Some("mimalloc")));
        let asked = [off, on].map(|side| side["requests"].as_f64().unwrap());
        match row["workload"] == "engine step" {
            true => assert_eq!(asked, [0.0; 2], "a step of the engine allocates nothing"),
            false => assert!(asked.iter().all(|requests| *requests >= 1.0), "{row}"),
        }
        assert!([off, on].iter().all(|side| side["peak_mb"].as_f64().unwrap() > 1.0), "{row}");
    }

    let (rows, said) = suite("overlap", out, &["--backbones", "mlp", "--batches", "2", "--window", "4"]);
    assert_eq!(rows.len(), 1, "{said}");
    assert!(said.contains("upload: not available on the CPU: values are computed where they lie"), "{said}");

    let (code, text, said) = run(Command::new(env!("CARGO_BIN_EXE_candle-bench")).arg("compare").arg(out).arg(out));
    assert_eq!(code, Some(0), "{text}{said}");
    assert!(["train", "scaling", "memory", "overlap"].iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn what_the_suites_of_costs_cannot_do_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let error = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
        let (code, _, said) = run(command.args(arguments).arg("--out").arg(scratch.path()));
        assert_eq!(code, Some(1), "{said}");
        said
    };
    let said = error(&["train", "--backbones", "lstm"]);
    assert!(said.contains("backbone lstm: not one of mlp"), "{said}");
    let said = error(&["train", "--backbones", "mlp", "--batches", "2", "--window", "4", "--dtypes", "f16"]);
    assert!(said.contains(" on this device, found f16") && said.contains("nothing that was asked for"), "{said}");
    let said = error(&["scaling", "--backbones", "mlp", "--frames", "60,30"]);
    assert!(said.contains("frames: expected rising numbers"), "{said}");
    let said = error(&["scaling", "--backbones", "mlp", "--rank-counts", "2,4"]);
    assert!(said.contains("one rank, which is missing"), "{said}");
}

/// In a process of its own, as the comparison with PyTorch has it: beside other tests a peak says nothing of one of them.
#[test]
fn training_raises_the_peak_of_its_process_by_what_it_holds() {
    let bundle = Path::new("../weights/policy-mlp");
    let config: Value = serde_json::from_slice(&std::fs::read(bundle.join("config.json")).unwrap()).unwrap();
    let case = json!({ "model": "mlp", "backbone": "mlp", "pass": "train", "batch": 2, "frames": 4, "threads": 1, "device": "cpu", "dtype": "f32" });
    let request = json!({ "config": config, "case": case }).to_string();
    let (code, said, error) = run(Command::new(env!("CARGO_BIN_EXE_candle-bench")).arg("train-memory").arg(request));
    assert_eq!(code, Some(0), "{error}");
    let [before, peak] = said.split_whitespace().map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>()[..] else { panic!("{said}") };
    // Parameters, gradients and two moments, all f32 as the weights on disk.
    let held = 4 * std::fs::metadata(bundle.join("model.safetensors")).unwrap().len() / 1024;
    assert!(before > 1000 && peak > before + held, "{before} and {peak} kB, {held} kB held");
}
