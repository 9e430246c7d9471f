//! `candle-bench peers` where packages of the peer are missing, with its real program in a stand-in environment.

use crate::run;
use std::path::Path;
use std::process::Command;

/// The command on one small case of each library, in an environment in which these packages cannot be imported. NumPy and safetensors are
/// empty stand-ins: nothing gets as far as computing.
fn peers_without(packages: &str, scratch: &Path) -> (Option<i32>, String, String) {
    let stand_in = scratch.join("stand-in");
    std::fs::create_dir_all(stand_in.join("safetensors")).unwrap();
    for module in ["numpy.py", "safetensors/__init__.py", "safetensors/numpy.py"] {
        std::fs::write(stand_in.join(module), "").unwrap();
    }
    let blocking = format!(
        r#"import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {packages:?}.split(","):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"#
    );
    std::fs::write(stand_in.join("sitecustomize.py"), blocking).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    command.args(["peers", "--python", "python3", "--script", concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peer.py")]);
    command.args([
        "--backbones",
        "mlp",
        "--libraries",
        "jax,onnxruntime,openvino,pytorch-compile,pytorch-graphs,tract",
        "--passes",
        "step",
        "--batches",
        "1,2",
    ]);
    command.args(["--rust-peer", "/nowhere/candle-bench-peer"]);
    command.args(["--threads", "1", "--out"]).arg(scratch.join("out")).env("PYTHONPATH", &stand_in).env("PYTHONDONTWRITEBYTECODE", "1");
    run(&mut command)
}

#[test]
fn every_missing_package_is_named_with_the_command_that_installs_it() {
    let scratch = tempfile::tempdir().unwrap();
    let (code, _, said) = peers_without("jax,torch,onnxruntime,openvino", scratch.path());
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "error: jax: 2 cases left out: the Python package jax is not installed; candle-bench/peers/setup.sh installs it",
        "error: onnxruntime: 2 cases left out: the Python package onnxruntime is not installed; candle-bench/peers/setup.sh installs it",
        "error: openvino: 2 cases left out: the Python package openvino is not installed; candle-bench/peers/setup.sh installs it",
        "error: pytorch-compile: 2 cases left out: the Python package torch is not installed; candle-bench/peers/setup.sh installs it",
        "error: pytorch-graphs: 2 cases left out: pytorch-graphs has no step pass on cpu here",
    ] {
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    assert!(
        said.contains("error: tract: 2 cases left out: /nowhere/candle-bench-peer: cannot be started (candle-bench/peers/setup.sh"),
        "{said}"
    );
}

#[test]
fn without_numpy_there_is_no_peer() {
    let scratch = tempfile::tempdir().unwrap();
    let (code, _, said) = peers_without("numpy", scratch.path());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No module named 'numpy'; candle-bench/peers/setup.sh installs what is needed"), "{said}");
}
