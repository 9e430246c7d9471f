//! Small policies of every kind and inputs for them.

use candle_core::{Device, Tensor};
use candle_models::exec::SAMPLE;
use candle_models::nn::Params;
use candle_models::policy::embedding::{ACTION_STATES, CHARACTERS, WIDTH};
use candle_models::policy::{Policy, PolicyConfig, PolicyFamily};
use candle_models::random::Random;
use candle_models::registry::Family;
use candle_models::tensors::NamedTensors;
use std::sync::Arc;

pub const CLASSES: [u32; 13] = [2, 2, 2, 2, 2, 2, 2, 2, 17, 17, 17, 17, 5];

/// The family's examples: every backbone with both heads, and two over count tables.
pub fn configs() -> Vec<PolicyConfig> {
    PolicyFamily.examples().unwrap().into_iter().map(|manifest| serde_json::from_value(manifest.model).unwrap()).collect()
}

/// A policy whose zero-initialised parameters are moved too, so that nothing hides behind a zero.
pub fn policy(config: &PolicyConfig) -> (Arc<Policy>, Params) {
    let params = Params::init(Random::new(7), &Device::Cpu);
    let policy = Policy::new(config, &params).unwrap();
    for (name, var) in params.vars() {
        if name.ends_with("chosen") || name.ends_with("prior") {
            let mut noise = vec![0.0; var.elem_count()];
            Random::new(8).stream(&name).fill_normal(0, &mut noise);
            var.set(&Tensor::from_vec(noise, var.shape(), &Device::Cpu).unwrap().affine(0.3, 0.0).unwrap()).unwrap();
        }
    }
    (Arc::new(policy), params)
}

/// Random inputs `[batch, steps, ...]`; the actions are given (`sampled` = false) or to be chosen.
pub fn inputs(batch: usize, steps: usize, sampled: bool) -> NamedTensors {
    let (rows, random) = (batch * steps, Random::new(3));
    let mut features = vec![0.0; rows * WIDTH];
    random.stream("features").fill_normal(0, &mut features);
    let classes = |name: &str| -> Vec<u32> { (0..rows * 13).map(|i| random.stream(name).below(i as u64, CLASSES[i % 13])).collect() };
    let ids: Vec<u32> =
        (0..rows * 6).map(|i| random.stream("ids").below(i as u64, if i % 6 < 4 { ACTION_STATES } else { CHARACTERS })).collect();
    let mut uniform = vec![0.0; rows * 13];
    random.stream("uniform").fill_uniform(0, &mut uniform);
    uniform.iter_mut().step_by(5).for_each(|u| *u = -1.0);
    let action = if sampled { vec![SAMPLE; rows * 13] } else { classes("action") };
    let float = |v: Vec<f32>, w: usize| Tensor::from_vec(v, (batch, steps, w), &Device::Cpu).unwrap();
    let index = |v: Vec<u32>, w: usize| Tensor::from_vec(v, (batch, steps, w), &Device::Cpu).unwrap();
    [
        ("features".to_string(), float(features, WIDTH)),
        ("ids".to_string(), index(ids, 6)),
        ("previous_action".to_string(), index(classes("previous"), 13)),
        ("action".to_string(), index(action, 13)),
        ("uniform".to_string(), float(uniform, 13)),
    ]
    .into_iter()
    .collect()
}

pub fn resets(batch: usize, steps: usize) -> Vec<bool> {
    (0..batch * steps).map(|i| Random::new(11).stream("resets").uniform(i as u64) < 0.15).collect()
}
