//! What the command prints, writes and refuses.

use crate::{replays, run, small, text};
use std::path::Path;
use std::process::Command;

fn train(arguments: &[&str]) -> (i32, String, String) {
    let output = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).arg("policy").args(arguments));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_run_leaves_a_bundle_that_can_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 400), dir.path().join("out"));
    // Without count tables, over which even an untrained policy has a small loss.
    let output = run(small(&replays, &out).args(["--set", "model.prior=false"]));
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

    // The report is there, shows no private path, and comes out the same when it is made again.
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    for part in [
        "candle-train policy --preset mamba",
        "trained on: 2 games, g1.slp, g2.slp",
        "heads.buttons.*",
        "<svg ",
        "over_markov",
        "calibration_error",
        "Came true",
    ] {
        assert!(report.contains(part), "no '{part}' in the report");
    }
    assert!(!report.contains(&*dir.path().to_string_lossy()), "a private path in the report");
    std::fs::remove_file(out.join("report.html")).unwrap();
    let again = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).arg("report").arg(&out));
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap() == report);

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

    let percent = |text: &str| text.lines().find(|line| line.starts_with("expected calibration error")).map(str::to_owned);
    assert!(percent(&stdout).is_some() && percent(&stdout) == percent(&card), "{stdout}");

    // The calibrated policy finds the same games at least as likely, and its card says how it came about.
    let calibrated = dir.path().join("calibrated");
    let place = calibrated.to_string_lossy().into_owned();
    let games = ["--replays", &replays, "--hold-out", "g0", "--cache", &cache];
    let calibrate = |own: &[&str]| {
        let (code, stdout, stderr) = train(&[&["--calibrate", "--model", &bundle, "--out", &place], own, &games].concat());
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    let stdout = calibrate(&[]);
    let total = |text: &str, name: &str| row(text, name).and_then(|row| row.split(' ').nth(6)?.parse::<f64>().ok()).unwrap();
    assert!(total(&stdout, "calibrated") <= total(&card, "mamba, autoregressive heads"), "{stdout}\n{card}");
    let after = calibrated.join("bundle").to_string_lossy().into_owned();
    let measured = train(&[&["--eval-only", "--model", &after], &games[..]].concat()).1;
    assert_eq!(row(&measured, "this policy"), row(&stdout, "calibrated"));
    let said = std::fs::read_to_string(calibrated.join("bundle/README.md")).unwrap();
    for part in
        ["## Training", "## Calibration", "\nbuttons ", "fitted on 1 games", "- g0.slp (400 frames", "candle-train policy --calibrate"]
    {
        assert!(said.contains(part), "no '{part}' in\n{said}");
    }
    assert!(!said.contains(&*dir.path().to_string_lossy()), "a private path in\n{said}");
    let factors = stdout.lines().find_map(|line| line.strip_prefix("factors: ")).unwrap();
    let factors: Vec<&str> = factors.split(", ").filter_map(|one| one.rsplit(' ').next()).collect();
    assert_eq!(row(&calibrate(&["--factors", &factors.join(",")]), "calibrated"), row(&stdout, "calibrated"));

    // A run from that policy begins where it ended.
    let tuned = dir.path().join("tuned").to_string_lossy().into_owned();
    let arguments = ["--start-from", &bundle, "--replays", &replays, "--cache", &cache, "--out", &tuned, "--max-time", "0"];
    let (code, _, stderr) = train(&[&arguments[..], &["--set", "data.batch=4"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let tuned = std::fs::read_to_string(Path::new(&tuned).join("metrics.jsonl")).unwrap();
    let tuned: serde_json::Value = serde_json::from_str(tuned.lines().next().unwrap()).unwrap();
    let [tuned, first] = [&tuned, &first].map(|line| line["loss"].as_f64().unwrap());
    assert!(tuned < 0.7 * first, "{tuned} nats a frame after {first}");
    let (code, _, stderr) = train(&[&arguments[..], &["--set", "model.hidden=8"]].concat());
    assert!(code == 2 && stderr.contains("model: the architecture is that of --start-from"), "{stderr}");
}

#[test]
fn a_dry_run_needs_no_directory_and_trains_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [replays, cache] = [replays(dir.path(), 3, 1000), dir.path().join("cache")].map(|p| p.to_string_lossy().into_owned());
    let (code, stdout, stderr) = train(&["--dry-run", "--replays", &replays, "--cache", &cache, "--set", "data.batch=8"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("[trainer.schedule]") && stdout.contains("batch = 8") && stdout.contains("parameters, "), "{stdout}");
    assert!(stdout.contains("  672 x 512    344 064     688 128"), "{stdout}");
}

#[test]
fn the_environment_chooses_where_nothing_was_typed() {
    let dir = tempfile::tempdir().unwrap();
    let [replays, cache] = [replays(dir.path(), 3, 400), dir.path().join("cache")].map(|p| p.to_string_lossy().into_owned());
    let train = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
        command.args(["policy", "--dry-run", "--replays", &replays, "--cache", &cache, "--set", "data.batch=8"]).args(arguments);
        let output = run(command.envs(variables.iter().copied()));
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, stdout, stderr) = train(&[("CANDLE_DEVICE", "cpu"), ("CANDLE_DTYPE", "f32")], &[]);
    assert!(code == 0 && stdout.contains("on the CPU, in f32"), "{stderr}");
    for (variable, message) in [
        (("CANDLE_DEVICE", "cuda:77"), "error: device cuda:77: "),
        (("CANDLE_DEVICE", "tpu"), "error: CANDLE_DEVICE: expected auto, cpu, cuda or cuda:NUMBER"),
        (("CANDLE_DTYPE", "f8"), "error: config: dtype: CANDLE_DTYPE: expected f32, f16 or bf16"),
    ] {
        let (code, _, stderr) = train(&[variable], &[]);
        assert!(code != 0 && stderr.contains(message) && !stderr.contains("warning"), "{variable:?}: {stderr}");
        let (code, _, stderr) = train(&[variable], &["--device", "cpu", "--dtype", "f32"]);
        assert_eq!(code, 0, "what was typed comes first: {variable:?}: {stderr}");
    }
    let (code, _, stderr) = train(&[("CANDLE_DEVICE", "cpu"), ("CANDLE_DTYPE", "f16")], &[]);
    assert!(code == 2 && stderr.contains(" on this device, found f16"), "{stderr}");
}

#[test]
fn what_cannot_work_is_one_line_and_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").to_string_lossy().into_owned();
    let empty = dir.path().join("empty").to_string_lossy().into_owned();
    std::fs::create_dir(&empty).unwrap();
    for (arguments, code, message) in [
        (vec!["--out", &out, "--set", "trainer.speed=1"], 2, "config: trainer.speed: no such key"),
        (vec!["--out", &out, "--replays", "/nowhere/at/all"], 1, "/nowhere/at/all: No such file"),
        (vec!["--out", &out, "--replays", &empty], 1, "the folder holds no .slp file"),
        (vec!["--out", &out, "--config", "/nowhere.toml"], 1, "/nowhere.toml: No such file"),
        (vec!["--eval-only", "--model", "/nowhere"], 1, "/nowhere: No such file"),
        (vec!["--calibrate", "--model", "/nowhere"], 1, "/nowhere: No such file"),
        (vec!["--out", &out, "--model", "../weights/policy-mlp"], 2, "config: --model: it is measured with --eval-only"),
        (vec!["--calibrate", "--model", "../weights/policy-mlp", "--replays", &empty], 1, "the folder holds no .slp file"),
        (vec!["--out", &out, "--device", "cuda:77"], 1, "device cuda:77: "),
        (vec!["--out", &out, "--device", "cpu", "--dtype", "f16"], 2, " on this device, found f16"),
    ] {
        let (found, _, stderr) = train(&arguments);
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(message), "{arguments:?}: {stderr}");
    }
    let (code, _, stderr) = train(&["--out", &out, "--device", "gpu"]);
    assert!(code == 2 && stderr.contains("expected auto, cpu, cuda or cuda:NUMBER, found \"gpu\""), "{stderr}");
    assert_eq!(train(&["--max-time", "soon", "--out", &out]).0, 2);
}
