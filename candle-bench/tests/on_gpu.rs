//! The suites on a CUDA device, with the least of everything, on a policy so small that an emulated device is done in seconds. Without a
//! device every test says so and passes, unless `CANDLE_REQUIRE_CUDA=1` makes that a failure.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

#[path = "../../candle-models/tests/gpu/device.rs"]
mod device;

use candle_bench::network::Network;
use candle_models::bundle::Manifest;
use candle_models::nn::MambaConfig;
use candle_models::policy::{BackboneConfig, FAMILY, Heads, PolicyConfig, PolicyFamily};
use device::cuda;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Mamba policy with random weights.
fn tiny(directory: &Path) -> PathBuf {
    let backbone = BackboneConfig::Mamba { layers: 1, block: MambaConfig { state: 4, expand: 2, conv: 4 } };
    let config = PolicyConfig { hidden: 32, backbone, heads: Heads::Independent, embedding: 8, ..PolicyConfig::default() };
    Network::untrained(&PolicyFamily, &Manifest::new(FAMILY, &config).unwrap(), &directory.join("tiny")).unwrap().bundle
}

/// The rows of a suite, all of them of the device, and what the command said. It may refuse rows that lay above their roofs: something else
/// ran beside the measurement of these.
fn suite(name: &str, arguments: &[&str]) -> (Vec<Value>, String) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    command.args([
        name,
        "--device",
        "cuda:0",
        "--threads",
        "1",
        "--warm-up",
        "0",
        "--window-length",
        "0.001",
        "--rounds",
        "4",
        "--limit",
        "1",
    ]);
    command.args(["--max-windows", "3", "--host", "bench-1", "--out"]).arg(scratch.path());
    command.arg("--bundles").arg(tiny(scratch.path())).args(arguments);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() || said.contains(REFUSED), "{name}: {said}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(scratch.path().join(format!("{name}.json"))).unwrap()).unwrap();
    assert_ne!(report["interrupted"], true, "{name}");
    let rows = report["rows"].as_array().unwrap().clone();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["device"] == "cuda:0"), "{name}: {rows:?}");
    (rows, said)
}

/// How the command begins to name a row above its roof.
const REFUSED: &str = "error: refused: ";

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn passes_are_timed_captured_and_eager() {
    if cuda().is_none() {
        return;
    }
    let (rows, _) = suite(
        "latency",
        &["--batches", "1,3", "--window-batches", "1", "--window", "2", "--dtypes", "f32,bf16", "--executions", "captured,eager"],
    );
    assert_eq!(rows.len(), 2 * 2 * 3);
    assert!(rows.iter().all(|row| positive(&row["latency_us"]["p50"]) && positive(&row["bytes"])), "{rows:?}");

    let (rows, _) = suite("graph", &["--batches", "1", "--window", "2"]);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["agreement"]["worst"].as_f64().unwrap() < 1e-4 && positive(&row["capture_us"])), "{rows:?}");

    let (rows, _) = suite("batch-size", &["--dtypes", "f16", "--most", "2", "--latency-limit", "1e9", "--memory-limit", "0.5"]);
    assert!(rows.iter().all(|row| row["dtype"] == "f16"), "{rows:?}");
}

#[test]
fn products_of_every_dtype_have_a_peak_and_an_error() {
    if cuda().is_none() {
        return;
    }
    let (rows, said) = suite("precision", &["--products", "64", "--rows", "2"]);
    for row in &rows {
        let dtype = row["dtype"].as_str().unwrap();
        assert_eq!(row["unavailable"].is_string(), dtype == "q8", "{row}");
        let error = row["error"].as_f64().unwrap_or(0.0);
        let [least, most] = match dtype {
            "f32" => [0.0, 1e-6],
            // An emulated device may round nothing.
            "tf32" => [0.0, 2e-3],
            "f16" => [1e-5, 2e-3],
            "bf16" => [1e-4, 5e-3],
            _ => continue,
        };
        assert!((least..most).contains(&error) && positive(&row["roofs"]["gflop_per_s"]), "{row}");
    }
    // What has no row of its own lay above its roof.
    let refused = said.matches(&format!("{REFUSED}product ")).count();
    assert_eq!(rows.iter().filter(|row| row["what"] == "product").count() + refused, 5, "{said}");
}

#[test]
fn operations_and_passes_are_placed_under_the_roofs_of_the_device() {
    if cuda().is_none() {
        return;
    }
    let (rows, _) =
        suite("roofline", &["--batches", "1", "--window", "2", "--sequences", "1", "--dtypes", "f32,bf16", "--only", "silu,gate,product"]);
    let named = |part: &str| rows.iter().filter(|row| row["operation"].as_str().unwrap().contains(part)).count();
    // A forward each, with and without backward; a step and a window in two dtypes. Products with packed weights are the CPU's.
    assert_eq!((named("silu"), named("gate"), named("mamba"), named("product")), (2, 2, 4, 0), "{rows:?}");
    assert!(rows.iter().all(|row| row["reason"].as_str().unwrap().contains("GFLOP/s") && positive(&row["us"])), "{rows:?}");
}

#[test]
fn steps_of_training_have_parts_and_uploads_overlap() {
    if cuda().is_none() {
        return;
    }
    let (rows, _) = suite("train", &["--batches", "2", "--window", "2", "--dtypes", "f32,bf16"]);
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(["data", "forward", "backward", "optimiser"].iter().all(|part| positive(&row["split"][part])), "{row}");
        assert!(row["note"] == "" && positive(&row["parts_over_step"]), "{row}");
    }
    let (rows, said) = suite("overlap", &["--batches", "2", "--window", "2"]);
    let hidden: Vec<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(hidden, ["loader's thread", "upload"], "{said}");
    assert!(rows.iter().all(|row| ["copy_us", "compute_us", "both_us"].iter().all(|time| positive(&row[time]["mean"]))), "{rows:?}");
    // An emulated device computes when it is waited for: then nothing need be hidden, and the row may refuse to say so.
    let efficiencies = rows.iter().filter_map(|row| row["hidden"]["efficiency"].as_f64());
    assert!(efficiencies.into_iter().all(|efficiency| (0.0..=1.0).contains(&efficiency)), "{rows:?}");
}

#[test]
fn agents_and_starts_are_served() {
    if cuda().is_none() {
        return;
    }
    let (rows, _) = suite("load", &["--arrivals", "closed", "--sessions", "2", "--duration", "0.5"]);
    assert_eq!(rows.len(), 1);
    let (rows, _) = suite("scaling", &["--frames", "2,3,4", "--batches", "1,2", "--sessions", "1,2", "--load-seconds", "0.3"]);
    let axes: Vec<_> = rows.iter().map(|row| row["axis"].as_str().unwrap()).collect();
    assert!(["frames", "batch", "sessions"].iter().all(|axis| axes.contains(axis)), "{axes:?}");
    let (rows, _) = suite("startup", &["--starts", "2"]);
    let kernels: Vec<_> = rows.iter().map(|row| row["gpu_us"].as_array().unwrap().iter().all(positive)).collect();
    assert_eq!(kernels, [true; 2], "cold and warm: {rows:?}");
}
