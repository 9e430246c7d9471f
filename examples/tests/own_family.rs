//! The example `own_family`: a family from outside the library under the commands, which know no family.
//!
//! The command sets the environment of its process, so this program starts itself anew for each call.
#![allow(clippy::unwrap_used)]

#[path = "../examples/own_family/main.rs"]
mod own_family;

use candle_core::{DType, Device, Tensor};
use candle_models::bundle::Bundle;
use candle_models::families;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::registry::Family;
use candle_models::tensors::NamedTensors;
use own_family::{Pursuer, PursuerFamily};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Set where this program is the command.
const CHILD: &str = "OWN_FAMILY_CHILD";

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        return own_family::main();
    }
    a_family_from_outside_is_trained_run_inspected_exported_measured_and_refused_like_any_other();
    println!("a family from outside the library is trained, run, inspected, exported, measured and refused like any other: ok");
    ExitCode::SUCCESS
}

/// Exit code, standard output and standard error of a call.
fn call(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(std::env::current_exe().unwrap()).args(arguments).env(CHILD, "1").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn done(arguments: &[&str]) -> String {
    let (code, out, err) = call(arguments);
    assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
    out
}

fn refused(arguments: &[&str], code: i32, parts: &[&str]) {
    let (found, _, err) = call(arguments);
    assert_eq!(found, code, "{err}");
    parts.iter().for_each(|part| assert!(err.contains(part), "{part} is not in {err}"));
}

fn values(tensors: &NamedTensors, name: &str) -> Vec<f32> {
    tensors.get(name).unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Trains a pursuer at once, into `chase`, and in parts, with what the command prints, writes and refuses. Gives the parameters of both.
fn trained(root: &Path) -> (Vec<u8>, Vec<u8>) {
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let train = |out: &str, more: &[&str]| {
        let sets = ["--set=steps=60", "--set=batch=16", "--set=model.hidden=16", "--set=trainer.log_every=1", "--threads=1"];
        let (code, printed, err) = call(&[&["train", "pursuer", "--out", &path(out)], &sets[..], more].concat());
        assert_eq!(code, 0, "{err}");
        printed
    };
    let printed = train("chase", &[]);
    for part in ["steps = 60", "memory.", "60 steps of 16 chases; on the CPU, in f32\n", "mean squared error 0."] {
        assert!(printed.contains(part), "{part} is not in {printed}");
    }
    let metrics = std::fs::read_to_string(root.join("chase/metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let losses: Vec<f64> = lines.filter_map(|line| line["loss"].as_f64()).collect();
    assert!(losses.len() == 60 && losses[59] < 0.5 * losses[0], "{losses:?}");
    for (file, part) in [("bundle/README.md", "train pursuer --out chase"), ("report.html", "fresh chases in every step")] {
        let text = std::fs::read_to_string(root.join("chase").join(file)).unwrap();
        assert!(text.contains(part), "{part} is not in {text}");
    }

    let printed = train("parts", &["--max-time", "0"]);
    assert!(printed.contains("stopped by the time limit at step 1; --resume continues\n"), "{printed}");
    train("parts", &["--resume"]);
    let exported = done(&["train", "export", &path("parts"), "--out", &path("exported"), "--step", "60"]);
    assert!(exported.starts_with("step 60: model in "), "{exported}");
    let parameters = |bundle: &str| Bundle::open(path(bundle)).unwrap().parameters().unwrap();
    assert_eq!(parameters("exported"), parameters("parts/bundle"));
    refused(&["train", "pursuer", "--out", &path("chase")], 1, &["holds a run already; --resume continues it"]);
    refused(&["train", "pursuer", "--dry-run", "--preset", "large"], 2, &["config: preset: expected one of small, found 'large'"]);
    refused(&["train", "pursuer", "--dry-run", "--set", "model.speed=1"], 2, &["config: model.speed: no such key (there are hidden)"]);
    // The families of the library are there, too.
    let help = done(&["train", "--help"]);
    for part in ["Trains a pursuer to steer", "policy", "beam-page", "launch"] {
        assert!(help.contains(part), "{part} is not in {help}");
    }
    let model = |run: &str| std::fs::read(root.join(run).join("bundle/model.safetensors")).unwrap();
    (model("chase"), model("parts"))
}

/// The suites that need nothing of a family but its networks, on the least of everything: their rows, not their times.
fn measured(root: &Path, bundle: &str) {
    let out = root.join("rows");
    let bench = |suite: &str, more: &[&str]| -> Vec<serde_json::Value> {
        let least = [
            "--threads=1",
            "--warm-up=0",
            "--window-length=0.001",
            "--max-windows=3",
            "--rounds=4",
            "--limit=1",
            "--window=2",
            "--host=here",
        ];
        let call = call(&[&["bench", suite, "--out", out.to_str().unwrap()], &least[..], more].concat());
        assert_eq!(call.0, 0, "{}", call.2);
        let report = std::fs::read(out.join(format!("{suite}.json"))).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let command = report["command"].as_str().unwrap();
        assert!(command.starts_with(&format!("candle-bench {suite} --out ")), "{command}");
        report["rows"].as_array().unwrap().clone()
    };
    let rows =
        bench("latency", &["--bundles", bundle, "--dtypes=f32,q8", "--batches=1,3", "--window-batches=2", "--executions=captured,eager"]);
    let of = |dtype: &str| rows.iter().filter(|row| row["model"] == "pursuer 16" && row["dtype"] == dtype).count();
    // Two steps and a window, both ways; in 8 bits through the engine alone.
    assert_eq!((of("f32"), of("q8"), rows.len()), (6, 3, 9), "{rows:?}");
    let rows = bench("graph", &["--bundles", bundle, "--batches=2"]);
    assert!(rows.len() == 2 && rows.iter().all(|row| row["agreement"]["worst"].as_f64().unwrap() < 1e-4), "{rows:?}");
    // Every start is this program again, with its own argument before those of the benchmark.
    assert_eq!(bench("startup", &["--bundles", bundle, "--starts=1"]).len(), 2);
    // It has no usual networks and no training here, and those of the library are still there.
    let refused =
        |arguments: &[&str], part: &str| refused(&[&["bench"], arguments, &["--out", out.to_str().unwrap()]].concat(), 1, &[part]);
    refused(&["train", "--bundles", bundle], "a pursuer is not trained");
    refused(&["latency", "--backbones", "pursuer"], "backbone pursuer: not one of mlp, mamba");
    let (code, page, _) = call(&["bench", "report", out.to_str().unwrap()]);
    assert!(code == 0 && page.trim().ends_with("report.html"), "{page}");
}

fn a_family_from_outside_is_trained_run_inspected_exported_measured_and_refused_like_any_other() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (bundle, input, output) = (path("chase/bundle"), path("in.safetensors"), path("out.safetensors"));
    let (whole, parts) = trained(root.path());
    assert!(whole == parts, "a run that was stopped and resumed gives another model");

    let (batch, steps) = (3, 5);
    let random = |name: &str, width: usize| {
        let mut values = vec![0.0; batch * steps * width];
        Random::new(1).stream(name).fill_normal(0, &mut values);
        (name.to_owned(), Tensor::from_vec(values, (batch, steps, width), &Device::Cpu).unwrap())
    };
    let inputs: NamedTensors = [random("position", 2), random("speed", 1)].into_iter().collect();
    inputs.save_safetensors(&input).unwrap();
    let report = done(&["run", &bundle, &input, "--out", &output]);
    assert!(report.contains("15 frames, 1 of 1 inputs"), "{report}");
    let model = {
        let opened = Bundle::open(&bundle).unwrap();
        let parameters = opened.read_parameters(&PursuerFamily.parameters(&opened).unwrap()).unwrap();
        let params = candle_models::nn::Params::stored(parameters, &Device::Cpu);
        Pursuer::network(&opened.config().unwrap(), &params).unwrap()
    };
    let resets: Vec<bool> = (0..batch * steps).map(|i| i % steps == 0).collect();
    let (want, _) = model.unroll(&inputs, &resets, &model.initial_state(batch).unwrap()).unwrap();
    let found = NamedTensors::load_safetensors(&output).unwrap();
    assert_eq!(found.get("steering").unwrap().dims(), [batch, steps, 2]);
    for (x, y) in values(&found, "steering").into_iter().zip(values(&want, "steering")) {
        assert!((x - y).abs() <= 1e-5, "{x} and {y}");
    }
    assert!(done(&["run", &bundle, &input, "--every", "2"]).contains("sequence 2 frame 4: steering ["));

    let text = done(&["inspect", &bundle]);
    for part in ["pursuer, format version 1", "position", "steering", "memory", "multiply-adds per row and frame"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Three numbers to 16, a gated unit of 16 from 16 and 16, two numbers.
    let report: serde_json::Value = serde_json::from_str(&done(&["inspect", &bundle, "--json"])).unwrap();
    assert_eq!(report["multiply_adds"], 3 * 16 + 2 * 16 * 48 + 16 * 2);

    let small = path("small");
    let text = done(&["export", &bundle, &small, "--dtype", "q8"]);
    assert!(text.contains("over 4 random sequences of 64 frames") && text.contains("steering differs by at most"), "{text}");
    done(&["run", &small, &input]);
    assert!(done(&["doctor", &bundle]).contains("recommended load"));

    measured(root.path(), &bundle);

    // The families of the library are registered too, and what is theirs means nothing here.
    refused(&["run", &bundle, &input, "--port", "1"], 2, &["--port means nothing to a pursuer"]);
    refused(&["run", &bundle, &input, "--snr", "3"], 2, &["--snr means nothing to a pursuer"]);
    refused(&["export", &bundle, &path("x"), "--replay", "x.slp"], 2, &["--replay means nothing to a pursuer"]);
    refused(&["run", &bundle], 2, &["no inputs", "pursuer"]);
    refused(&["generate", "pursuer"], 2, &["pursuer"]);
    let config = root.path().join("chase/bundle/config.json");
    let renamed = std::fs::read_to_string(&config).unwrap().replace("\"pursuer\"", "\"hunter\"");
    std::fs::write(&config, renamed).unwrap();
    refused(&["inspect", &bundle], 1, &["expected one of [policy, beam, agent, muzero, rf, fno, pursuer], found hunter"]);
    let error = families::shipped().load(&Bundle::open(&small).unwrap()).err().unwrap().to_string();
    assert!(error.ends_with("expected one of [policy, beam, agent, muzero, rf, fno], found pursuer"), "{error}");
}
