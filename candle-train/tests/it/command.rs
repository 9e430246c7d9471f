//! What the command prints, writes and refuses.

use crate::{replays, run, small, text};
use std::process::Command;

fn train(arguments: &[&str]) -> (i32, String, String) {
    let output = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).arg("policy").args(arguments));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_run_leaves_a_bundle_that_can_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 400), dir.path().join("out"));
    let output = run(&mut small(&replays, &out));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let bundle = out.join("bundle");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "baselines.safetensors", "README.md"] {
        assert!(bundle.join(file).exists(), "{file}");
    }
    let card = std::fs::read_to_string(bundle.join("README.md")).unwrap();
    for part in ["candle-train policy --preset mamba", "g1.slp (400 frames", "first-order Markov", "mamba, autoregressive heads"] {
        assert!(card.contains(part), "no '{part}' in\n{card}");
    }
    assert!(!card.contains(&*dir.path().to_string_lossy()), "a private path in\n{card}");
    let first = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert!(first["loss"].as_f64().unwrap() > 10.0, "untrained, all 81 logits near zero");

    let [bundle, replays, cache] = [bundle, replays, dir.path().join("cache")].map(|p| p.to_string_lossy().into_owned());
    let arguments = ["--eval-only", "--model", &bundle, "--replays", &replays, "--hold-out", "g0", "--cache", &cache];
    let (code, stdout, stderr) = train(&arguments);
    assert_eq!(code, 0, "{stderr}");
    // The same games and the same parameters give the same row.
    let row = |text: &str, name: &str| {
        text.lines()
            .find(|l| l.starts_with("| ") && l.contains(name))
            .map(|l| l.split('|').skip(2).map(str::trim).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(row(&stdout, "this policy"), row(&card, "mamba, autoregressive heads"));
    assert_eq!(row(&stdout, "second-order, conditioned"), row(&card, "second-order, conditioned"));

    // A second run must not touch the first one's files.
    let (code, _, stderr) = train(&["--replays", &replays, "--out", &out.to_string_lossy()]);
    assert_eq!(code, 1);
    assert!(stderr.contains("holds a run already; --resume continues it"), "{stderr}");
}

#[test]
fn a_dry_run_needs_no_directory_and_trains_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [replays, cache] = [replays(dir.path(), 3, 1000), dir.path().join("cache")].map(|p| p.to_string_lossy().into_owned());
    let (code, stdout, stderr) = train(&["--dry-run", "--replays", &replays, "--cache", &cache, "--set", "data.batch=8"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("[trainer.schedule]") && stdout.contains("batch = 8") && stdout.contains("parameters, "), "{stdout}");
}

#[test]
fn what_cannot_work_is_one_line_and_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").to_string_lossy().into_owned();
    let empty = dir.path().join("empty").to_string_lossy().into_owned();
    std::fs::create_dir(&empty).unwrap();
    for (arguments, code, message) in [
        (vec!["--out", &out, "--set", "trainer.speed=1"], 2, "config: trainer.speed: no such key"),
        (vec!["--out", &out, "--preset", "huge"], 2, "config: preset: expected one of"),
        (vec!["--out", &out, "--replays", "/nowhere/at/all"], 1, "/nowhere/at/all: No such file"),
        (vec!["--out", &out, "--replays", &empty], 1, "the folder holds no .slp file"),
        (vec!["--out", &out, "--config", "/nowhere.toml"], 1, "/nowhere.toml: No such file"),
        (vec!["--eval-only", "--model", "/nowhere"], 1, "/nowhere: No such file"),
    ] {
        let (found, _, stderr) = train(&arguments);
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(message), "{arguments:?}: {stderr}");
    }
    assert_eq!(train(&["--max-time", "soon", "--out", &out]).0, 2);
    assert_eq!(train(&[]).0, 2, "--out is needed");
}
