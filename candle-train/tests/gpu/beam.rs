//! Runs of beam controllers: the command beside the same on the CPU, every scheme that trains differently, half width, a resume.

use crate::run::losses;
use crate::{cuda, in_stretches};
use candle_core::{DType, Device, Tensor};
use candle_models::beam::{Array, DecisionConfig, Feedback, MemoryConfig};
use candle_train::beam::config::RunConfig;
use candle_train::beam::run::{Plan, Trained};
use candle_train::run::Place;
use candle_train::stop::Stop;
use candle_train::trainer::{Outcome, Resources, with_large_stack};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Two steps of three episodes.
fn config(preset: &str) -> RunConfig {
    let mut config = RunConfig::preset(preset).unwrap();
    (config.episodes, config.episode.batch, config.episode.evaluated, config.episode.fewest) = (6, 3, 4, 2);
    let model = &mut config.model;
    (model.hidden, model.base, model.measurements, model.memory) = (16, 8, 3, MemoryConfig::Gru { layers: 1 });
    (model.channel.transmit, model.channel.receive) = (Array::Ula { elements: 8 }, Array::Ula { elements: 4 });
    model.decision = DecisionConfig::measurements(16, 1);
    if preset != "c1" {
        model.feedback = Feedback::Reals { values: 4 };
    }
    (config.trainer.log_every, config.trainer.save_every) = (1, 1);
    config.trainer.schedule.warmup = 0;
    config
}

fn train(config: &RunConfig, (device, dtype): (&Device, DType), place: &Place, stop: &Stop) -> Trained {
    with_large_stack(|| {
        let resources = Resources { device: device.clone(), dtype, ..Resources::default() };
        Plan::new(config.clone(), None, resources)?.train(place, stop)
    })
    .unwrap()
}

fn values(parameters: &BTreeMap<String, Tensor>) -> BTreeMap<&str, Vec<f32>> {
    parameters.iter().map(|(name, x)| (name.as_str(), x.flatten_all().unwrap().to_vec1().unwrap())).collect()
}

/// That every parameter is near, as a share of the parameter's largest value.
fn assert_near(what: &str, found: &BTreeMap<String, Tensor>, want: &BTreeMap<String, Tensor>, tolerance: f32) {
    let (found, want) = (values(found), values(want));
    assert!(found.keys().eq(want.keys()), "{what}");
    for (name, want) in want {
        let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let worst = found[name].iter().zip(&want).map(|(f, w)| (f - w).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance * largest, "{what}, {name}: {worst} of {largest}");
    }
}

fn assert_losses(what: &str, found: &[f64], want: &[f64], tolerance: f64) {
    assert!(want.len() == 2 && found.len() == 2, "{what}: {} and {} steps", found.len(), want.len());
    for (step, (found, want)) in found.iter().zip(want).enumerate() {
        assert!((found - want).abs() < tolerance * want.abs(), "{what}, step {step}: {found} instead of {want}");
    }
}

#[test]
fn a_run_of_scheme_c1_follows_that_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let config = config("c1");
    let on = |device: &Device, dtype| {
        let dir = tempfile::tempdir().unwrap();
        let trained = train(&config, (device, dtype), &Place::create(dir.path()), &Stop::after(None));
        assert_eq!(trained.ended.outcome, Outcome::Finished);
        (losses(dir.path()), trained)
    };
    let (expected, host) = on(&Device::Cpu, DType::F32);
    let (found, there) = on(&device, DType::F32);
    assert_losses("f32", &found, &expected, 1e-5);
    assert_near("f32", &there.ended.parameters, &host.ended.parameters, 1e-3);
    let (found, want) = (there.figures["gain_db"], host.figures["gain_db"]);
    assert!((found - want).abs() < 1e-2, "{found} dB instead of {want}");
    let (found, _) = on(&device, DType::BF16);
    assert_losses("bf16", &found, &expected, 0.05);
}

#[test]
fn a_stopped_run_of_a_beam_controller_continues_bit_for_bit() {
    let Some(device) = cuda() else { return };
    let (config, computing) = (config("c3"), (&*device, DType::BF16));
    let whole = train(&config, computing, &Place::memory(), &Stop::after(None));
    let parts = in_stretches(|place, stop| train(&config, computing, place, stop), |trained| trained.ended.outcome == Outcome::Finished);
    assert_eq!(parts.ended.step, whole.ended.step);
    assert_eq!(values(&parts.ended.parameters), values(&whole.ended.parameters));
}

/// The command: beside these tests where both have been carried to another machine, otherwise where Cargo has built it.
fn program() -> PathBuf {
    let carried = std::env::current_exe().unwrap().with_file_name("candle-train");
    if carried.exists() { carried } else { env!("CARGO_BIN_EXE_candle-train").into() }
}

#[test]
fn the_command_trains_on_a_gpu_what_it_trains_on_the_cpu() {
    let Some(_device) = cuda() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    std::fs::write(&file, config("c3").to_toml().unwrap()).unwrap();
    let trained = |device: &str| {
        let out = dir.path().join(device);
        let mut command = Command::new(program());
        command.args(["beam", "--preset", "c3", "--threads", "1", "--dtype", "f32", "--device", device]);
        let output = command.arg("--config").arg(&file).arg("--out").arg(&out).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let model = candle_core::safetensors::load(out.join("bundle/model.safetensors"), &Device::Cpu).unwrap();
        (losses(&out), BTreeMap::from_iter(model))
    };
    let ((expected, host), (found, there)) = (trained("cpu"), trained("cuda"));
    assert_losses("c3", &found, &expected, 1e-5);
    assert_near("c3", &there, &host, 1e-3);
}
