//! `candle-bench peers` where packages of the peer are missing, with its real program in a stand-in environment.

use crate::run;
use candle_models::fno::{Fno, FnoConfig};
use candle_models::nn::Params;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of empty modules.
fn stand_in(scratch: &Path, modules: &[&str]) -> PathBuf {
    let folder = scratch.join("stand-in");
    std::fs::create_dir_all(folder.join("safetensors")).unwrap();
    modules.iter().for_each(|module| std::fs::write(folder.join(module), "").unwrap());
    folder
}

/// The command on one small case of each library, in an environment in which these packages cannot be imported. NumPy and safetensors are
/// empty stand-ins: nothing gets as far as computing.
fn peers_without(packages: &str, scratch: &Path) -> (Option<i32>, String, String) {
    let stand_in = stand_in(scratch, &["numpy.py", "safetensors/__init__.py", "safetensors/numpy.py"]);
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

/// The state dicts of neuralop.models.FNO of neuraloperator 2.0.0 with one block, dense and by Tucker.
#[test]
fn parameters_of_operators_have_the_names_of_neuraloperator() {
    let scratch = tempfile::tempdir().unwrap();
    let modules = ["numpy.py", "torch.py", "safetensors/__init__.py", "safetensors/numpy.py", "safetensors/torch.py"];
    let path = [stand_in(scratch.path(), &modules), Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")];
    let theirs = |rank: Option<f64>| {
        let description = Params::description();
        Fno::new(&FnoConfig { layers: 1, rank, ..FnoConfig::default() }, &description).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", "import fno, sys; print(*map(fno.their_name, sys.argv[1:]), sep='\\n')"]);
        command.args(description.specs().into_iter().map(|spec| spec.name));
        command.env("PYTHONPATH", std::env::join_paths(&path).unwrap()).env("PYTHONDONTWRITEBYTECODE", "1");
        let (code, names, said) = run(&mut command);
        assert_eq!(code, Some(0), "{said}");
        names.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let weight = "fno_blocks.convs.0.weight";
    let perceptron = |name: &str| ["fcs.0.weight", "fcs.0.bias", "fcs.1.weight", "fcs.1.bias"].map(|part| format!("{name}.{part}"));
    let expected = |waves: &[&str]| {
        let single = ["fno_blocks.convs.0.bias", "fno_blocks.fno_skips.0.conv.weight", "fno_blocks.channel_mlp_skips.0.weight"];
        let perceptrons = ["fno_blocks.channel_mlp.0", "lifting", "projection"].into_iter().flat_map(perceptron);
        let waves = waves.iter().map(|part| format!("{weight}.{part}"));
        single.map(str::to_owned).into_iter().chain(perceptrons).chain(waves).collect::<BTreeSet<_>>()
    };
    assert_eq!(theirs(None), expected(&["tensor"]));
    assert_eq!(theirs(Some(0.5)), expected(&["core", "factors.factor_0", "factors.factor_1", "factors.factor_2", "factors.factor_3"]));
}
