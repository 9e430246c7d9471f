//! Agents by description on a GPU and on the CPU: convolutions over grids, inputs that are looked up alone, every kind of component.

use crate::{assert_close, cuda};
use candle_core::{DType, Device};
use candle_models::agent::{Agent, AgentConfig, AgentFamily};
use candle_models::device::DeviceChoice;
use candle_models::engine::{Model, Placement, Runner};
use candle_models::exec::Launches;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::Family;
use std::sync::Arc;

const PLACE: Placement = Placement { device: DeviceChoice::Cuda(0), threads: 1, dtype: Some(DType::F32), launches: Launches::Captured };

/// Logits and numbers of a pass, and the classes as floats. Actions are given: a rounding must not become another history.
fn outputs(model: &Arc<dyn Model>, (batch, steps): (usize, usize), place: &Placement) -> Vec<f32> {
    let mut runner = Runner::on(model.clone(), (batch, steps), place).unwrap();
    for spec in &model.signature().inputs {
        let values = spec.draw(&[batch, steps], &Random::new(4)).unwrap().flatten_all().unwrap();
        match spec.dtype() {
            DType::U32 => runner.set_u32(&spec.name, &values.to_vec1().unwrap()).unwrap(),
            _ => runner.set_f32(&spec.name, &values.to_vec1().unwrap()).unwrap(),
        }
    }
    runner.step(&(0..batch * steps).map(|row| row == 1).collect::<Vec<_>>()).unwrap();
    assert!(runner.on_tensors().is_empty(), "{:?}", runner.on_tensors());
    let mut found = Vec::new();
    for spec in &model.signature().outputs {
        for row in 0..batch * steps {
            match spec.dtype() {
                DType::U32 => found.extend(runner.indices(&spec.name, row).unwrap().iter().map(|class| *class as f32)),
                _ => found.extend(runner.floats(&spec.name, row).unwrap()),
            }
        }
    }
    found
}

#[test]
fn agents_by_description_answer_like_on_the_cpu() {
    let Some(_device) = cuda() else { return };
    for manifest in AgentFamily.examples().unwrap() {
        let config: AgentConfig = serde_json::from_value(manifest.model).unwrap();
        let model: Arc<dyn Model> = Arc::new(Agent::new(&config, &Params::init(Random::new(3), &Device::Cpu)).unwrap());
        for sizes in [(3, 1), (2, 3)] {
            let (found, want) = (outputs(&model, sizes, &PLACE), outputs(&model, sizes, &Placement::cpu(1)));
            assert_close(&format!("{} {sizes:?}", config.name()), &found, &want, 2e-5);
        }
    }
}
