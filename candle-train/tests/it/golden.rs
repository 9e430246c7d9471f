//! Ten optimiser steps against PyTorch, loss by loss and parameter by parameter (`candle-models/tests/golden/make.py`).

use candle_core::{DType, Device, Tensor, Var};
use candle_models::exec::Executor;
use candle_models::exec::tensors::TensorExecutor;
use candle_models::nn::{Gru, Mamba, MambaConfig, Params};
use candle_models::tensors::NamedTensors;
use candle_train::gradients::Gradients;
use candle_train::optim::{Optimiser, OptimiserConfig};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

const LEARNING_RATE: f64 = 1e-2;
/// Relative to the loss.
const LOSS_TOLERANCE: f64 = 2e-6;
/// Relative to the parameter and one learning rate. AdamW divides by the root of the squared gradient, so a small gradient
/// amplifies rounding: PyTorch in f32 is up to 2e-5 away from itself in f64.
const PARAMETER_TOLERANCE: f64 = 5e-5;

struct Golden(HashMap<String, Tensor>);

impl Golden {
    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../candle-models/tests/golden").join(name);
        Self(candle_core::safetensors::load(path, &Device::Cpu).unwrap())
    }

    fn get(&self, name: &str) -> &Tensor {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// A state in our order: the scan keeps `[B, E, N]` in PyTorch's file and `[B, N, E]` here.
    fn state(&self, name: &str) -> Tensor {
        let state = self.get(&format!("state.{name}"));
        if name.ends_with(".ssm") { state.transpose(1, 2).unwrap().contiguous().unwrap() } else { state.clone() }
    }
}

fn flat(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Runs the layers that the parameters belong to.
type Forward = fn(&Params, &mut TensorExecutor, &Tensor) -> Tensor;

fn loss(golden: &Golden, states: &[&str], parameters: BTreeMap<String, Tensor>, forward: Forward) -> Tensor {
    let x = golden.get("input.x").clone();
    let inputs: NamedTensors = [("x".to_owned(), x)].into_iter().collect();
    let resets: Vec<bool> = flat(golden.get("input.resets")).iter().map(|r| *r == 1.0).collect();
    let states = states.iter().map(|s| golden.state(s)).collect();
    let mut executor = TensorExecutor::new(&inputs, &resets, states, &Device::Cpu);
    let rows = executor.input("x").unwrap();
    let y = forward(&Params::given(parameters, &Device::Cpu), &mut executor, &rows);
    y.sqr().unwrap().mean_all().unwrap()
}

fn check(file: &str, states: &[&str], forward: Forward) {
    let golden = Golden::load(file);
    let names: Vec<&str> = golden.0.keys().filter_map(|n| n.strip_prefix("param.")).collect();
    // PyTorch's run decays every parameter, ours only matrices that are no `a_log`: the optimiser sees rows of matrices, by
    // another name.
    let row = |name: &&str| Var::from_tensor(&golden.get(&format!("param.{name}")).reshape((1, ())).unwrap()).unwrap();
    let vars: BTreeMap<String, Var> = names.iter().map(|name| (format!("{name}.row"), row(name))).collect();
    let mut optimiser =
        Optimiser::new(OptimiserConfig { weight_decay: 0.1, clip: 0.0, ema: 0.0, ..OptimiserConfig::default() }, &vars).unwrap();
    let shaped = |name: &&str| {
        let values = vars[&format!("{name}.row")].as_tensor().reshape(golden.get(&format!("param.{name}")).dims()).unwrap();
        (name.to_string(), values)
    };
    for (step, expected) in flat(golden.get("adamw.loss")).into_iter().enumerate() {
        let loss = loss(&golden, states, names.iter().map(shaped).collect(), forward);
        let found = flat(&loss)[0];
        assert!(
            (found - expected).abs() <= LOSS_TOLERANCE * expected,
            "{file}, loss before step {step}: found {found}, expected {expected}"
        );
        let mut gradients = Gradients::zeros(&vars).unwrap();
        gradients.add(&vars, &loss.backward().unwrap()).unwrap();
        assert!(gradients.present().iter().all(|p| *p), "{file}: some of {names:?} have no gradient");
        optimiser.step(&gradients, &loss.detach().reshape(1).unwrap(), LEARNING_RATE).unwrap();
    }
    for name in names {
        let (found, expected) = (flat(&vars[&format!("{name}.row")]), flat(golden.get(&format!("adamw.param.{name}"))));
        let errors = found.iter().zip(&expected).map(|(f, e)| (f - e).abs() / (e.abs() + LEARNING_RATE));
        // The total order puts what is not a number last: it is the worst.
        let (worst, error) = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!(
            error <= PARAMETER_TOLERANCE,
            "{file}, {name}: worst at index {worst}: found {}, expected {}; relative error {error:e}",
            found[worst],
            expected[worst]
        );
    }
}

#[test]
fn ten_steps_of_a_gru_equal_pytorch() {
    check("gru.f32.safetensors", &["gru"], |params, executor, x| {
        let gru = Gru::new(6, 8, &params.pp("gru"), &mut Vec::new()).unwrap();
        gru.forward(executor, x).unwrap()
    });
}

#[test]
fn ten_steps_of_two_mamba_blocks_equal_pytorch() {
    let states = ["layers.0.conv", "layers.0.ssm", "layers.1.conv", "layers.1.ssm"];
    check("mamba.f32.safetensors", &states, |params, executor, x| {
        let config = MambaConfig { state: 4, expand: 2, conv: 4 };
        let (width, mut specs, mut x) = (x.dim(1).unwrap(), Vec::new(), x.clone());
        for i in 0..2 {
            let block = Mamba::new(width, &config, &params.pp(format!("layers.{i}")), &mut specs).unwrap();
            x = block.forward(executor, &x).unwrap();
        }
        x
    });
}
