//! What can be wrong with a machine: each case in a process of its own, on an emulated device that has it.

use crate::cuda;
use crate::policies::policy;
use candle_core::DType;
use candle_models::device::DeviceChoice;
use candle_models::engine::{Placement, Runner};
use candle_models::exec::Launches;
use candle_models::policy::{BackboneConfig, PolicyConfig};
use std::path::Path;
use std::process::Command;

/// Opens a runner for a large batch.
#[test]
#[ignore = "deep: nothing of its own; the others run it in processes of their own"]
fn opens_a_runner() {
    let backbone = BackboneConfig::Mamba { layers: 1, block: Default::default() };
    let model = policy(&PolicyConfig { hidden: 32, backbone, embedding: 4, ..Default::default() }).0;
    let place = Placement { device: DeviceChoice::Cuda(0), threads: 1, dtype: Some(DType::F32), launches: Launches::Eager };
    match Runner::on(model, (8192, 1), &place) {
        Ok(_) => println!("opened"),
        Err(error) => println!("error: {error}"),
    }
}

/// What the test above says in such a process.
fn said(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["faults::opens_a_runner", "--exact", "--ignored", "--nocapture"]);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{environment:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A hardware device takes no orders from the environment.
fn is_emulated() -> bool {
    !said(&[("CUDA_EMULATOR_DEVICES", "0")]).contains("opened")
}

#[test]
fn machines_that_lack_something_are_told_what() {
    let Some(_device) = cuda() else { return };
    if !is_emulated() {
        return;
    }
    let cases: [(&str, &str, &[&str]); 6] = [
        ("CUDA_EMULATOR_DEVICES", "0", &["error: device cuda:0: no CUDA device was found: nvidia-smi should list one"]),
        ("CUDA_EMULATOR_DRIVER_VERSION", "12040", &["error: device cuda:0: the driver supports CUDA 12.4, this program needs 13.0"]),
        ("CUDA_EMULATOR_CAPABILITY", "7.5", &["error: device cuda:0: CUDA emulator has compute capability 7.5: 8.0 (Ampere) or newer"]),
        // Room for all states, but not for passes of as many rows; then not for the states; then not for the workspace.
        ("CUDA_EMULATOR_MEMORY", "100663296", &["instead of 8192: the GPU has ", "opened"]),
        ("CUDA_EMULATOR_MEMORY", "67108864", &["error: the GPU's memory: asked for ", " MiB for a batch of one with 8192 states, found "]),
        ("CUDA_EMULATOR_MEMORY", "16777216", &["error: ", "OUT_OF_MEMORY"]),
    ];
    for (variable, value, expected) in cases {
        let said = said(&[(variable, value)]);
        assert!(expected.iter().all(|text| said.contains(text)), "{variable}={value}: {said}");
    }
}

#[test]
fn a_damaged_kernel_cache_is_made_again() {
    let Some(_device) = cuda() else { return };
    let dir = tempfile::tempdir().unwrap();
    let cache = [("CANDLE_KERNEL_CACHE", dir.path().to_str().unwrap())];
    let kernels = |dir: &Path| {
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect();
        files.sort();
        files
    };
    assert!(said(&cache).contains("opened"));
    let whole = kernels(dir.path());
    assert!(whole.len() > 3, "{} files", whole.len());
    for (i, (path, bytes)) in whole.iter().enumerate() {
        let damaged = if i % 2 == 0 { bytes[..bytes.len() / 2].to_vec() } else { vec![b'x'; 100] };
        std::fs::write(path, damaged).unwrap();
    }
    assert!(said(&cache).contains("opened"));
    assert_eq!(kernels(dir.path()), whole);
    // A cache that cannot be written costs time, not the start.
    let nowhere = dir.path().join("a file");
    std::fs::write(&nowhere, "").unwrap();
    assert!(said(&[("CANDLE_KERNEL_CACHE", nowhere.to_str().unwrap())]).contains("opened"));
}
