//! Whole runs: losses beside those of the CPU, evaluation, checkpoints.

use crate::{cuda, in_stretches};
use candle_core::{DType, Device};
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, Heads};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan, Trained};
use candle_train::policy::shards::Shard;
use candle_train::run::Place;
use candle_train::stop::Stop;
use candle_train::trainer::{Outcome, Resources, with_large_stack};
use std::path::Path;
use std::sync::Arc;

/// Frames of a game: eight steps an epoch.
const FRAMES: usize = 20;

fn games() -> Games {
    let shard = |seed: u64| Arc::new(Shard::from_game(&simulate(seed, FRAMES), &format!("simulated{seed}")).unwrap());
    Games { train: vec![shard(0)], held_out: vec![shard(1).into()] }
}

fn config(backbone: &str) -> RunConfig {
    let mut config = RunConfig::preset("quick").unwrap();
    (config.epochs, config.data.files) = (1, 0);
    config.model.heads = Heads::Autoregressive;
    config.model.backbone = BackboneConfig::named(backbone).unwrap();
    match &mut config.model.backbone {
        BackboneConfig::Mamba { layers, block } => (*layers, block.state) = (1, 4),
        BackboneConfig::Mlp { layers } => *layers = vec![16],
        _ => {}
    }
    (config.model.hidden, config.model.embedding) = (16, 4);
    (config.data.batch, config.data.unroll) = (2, 3);
    (config.trainer.log_every, config.trainer.accumulate, config.trainer.save_every) = (1, 2, 1);
    config
}

fn train(config: &RunConfig, (device, dtype): (&Device, DType), place: &Place, stop: &Stop) -> Trained {
    with_large_stack(|| {
        let resources = Resources { device: device.clone(), dtype, ..Resources::default() };
        Plan::new(config.clone(), &games(), Order::Epochs)?.on(resources)?.train(place, stop)
    })
    .unwrap()
}

/// The losses of all steps.
pub fn losses(directory: &Path) -> Vec<f64> {
    let lines = std::fs::read_to_string(directory.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn losses_follow_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for (backbone, dtype, tolerance) in [("mamba", DType::F32, 1e-4), ("mamba", DType::BF16, 0.02), ("mlp", DType::F32, 1e-4)] {
        let [(expected, host), (found, there)] = [&Device::Cpu, &*device].map(|device| {
            let dir = tempfile::tempdir().unwrap();
            let trained = train(&config(backbone), (device, dtype), &Place::create(dir.path()), &Stop::after(None));
            assert_eq!(trained.ended.outcome, Outcome::Finished);
            (losses(dir.path()), trained)
        });
        assert!(expected.len() >= 3 && expected.len() == found.len(), "{} and {} steps", expected.len(), found.len());
        for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let error = (found - expected).abs() / expected;
            assert!(error < tolerance, "{backbone}, {dtype:?}, step {step}: {found} instead of {expected}");
        }
        // The held-out games, with the averaged parameters.
        let [expected, found] = [&host, &there].map(|t| t.table.last().unwrap().1.all().total());
        assert!((found - expected).abs() < tolerance * expected, "{backbone}, {dtype:?}: evaluation {found} instead of {expected}");
    }
}

#[test]
fn a_stopped_run_continues_bit_for_bit() {
    let Some(device) = cuda() else { return };
    let (config, computing) = (config("mamba"), (&*device, DType::BF16));
    let whole = train(&config, computing, &Place::memory(), &Stop::after(None));
    let parts = in_stretches(|place, stop| train(&config, computing, place, stop), |trained| trained.ended.outcome == Outcome::Finished);
    assert_eq!(parts.ended.step, whole.ended.step);
    for ((name, whole), parts) in whole.ended.parameters.iter().zip(parts.ended.parameters.values()) {
        let [whole, parts] = [whole, parts].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(whole, parts, "{name}");
    }
}
