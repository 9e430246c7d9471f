//! PyTorch's numbers (`tests/golden/make.py`), fused in f32 and plain in f64; and the names and shapes that bundles rely on.
//!
//! The ten optimiser steps of the same files are in candle-train, which has the optimiser.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_models::exec::Executor;
use candle_models::exec::tensors::TensorExecutor;
use candle_models::nn::{Gru, Mamba, MambaConfig, Params};
use candle_models::ops::{self, Activation, NormKind};
use candle_models::policy::{BackboneConfig, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn flat(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// One file of reference numbers.
struct Golden {
    file: String,
    /// Largest difference, relative to the value plus the median magnitude of its tensor.
    tolerance: f64,
    tensors: HashMap<String, Tensor>,
}

impl Golden {
    fn load(name: &str, dtype: DType) -> Self {
        let (suffix, tolerance) = if dtype == DType::F32 { ("f32", 1e-5) } else { ("f64", 1e-12) };
        let file = format!("{name}.{suffix}.safetensors");
        let tensors = candle_core::safetensors::load(path(&file), &Device::Cpu).unwrap();
        Self { file, tolerance, tensors }
    }

    fn get(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.file))
    }

    fn compare(&self, name: &str, found: &Tensor) {
        let expected = self.get(name);
        assert_eq!(found.dims(), expected.dims(), "{} {name}", self.file);
        let (found, expected) = (flat(found), flat(expected));
        let mut magnitudes: Vec<f64> = expected.iter().map(|x| x.abs()).collect();
        magnitudes.sort_by(f64::total_cmp);
        let typical = magnitudes[magnitudes.len() / 2];
        let errors = found.iter().zip(&expected).map(|(f, e)| (f - e).abs() / (e.abs() + typical).max(f64::MIN_POSITIVE));
        // The total order puts what is not a number last: it is the worst.
        let (worst, error) = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!(
            error <= self.tolerance,
            "{} {name}: worst at index {worst}: found {:e}, expected {:e}; relative error {error:e}, allowed {:e}",
            self.file,
            found[worst],
            expected[worst],
            self.tolerance
        );
    }
}

fn check_op(golden: &Golden, name: &str, arguments: &[&str], op: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let var = |argument: &&str| Var::from_tensor(golden.get(&format!("{name}.{argument}"))).unwrap();
    let vars: Vec<Var> = arguments.iter().map(var).collect();
    let y = op(&vars.iter().map(|v| v.as_tensor().clone()).collect::<Vec<_>>()).unwrap();
    golden.compare(&format!("{name}.y"), &y);
    let gradients = y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
    for (argument, var) in arguments.iter().zip(&vars) {
        golden.compare(&format!("{name}.grad.{argument}"), gradients.get(var).unwrap());
    }
}

#[test]
fn norms_and_activations_equal_pytorch() {
    for dtype in [DType::F32, DType::F64] {
        let golden = Golden::load("layers", dtype);
        check_op(&golden, "layer_norm", &["x", "weight", "bias"], |x| {
            ops::norm(&x[0], NormKind::Layer, 1e-5, &x[1], Some(&x[2]), Activation::None)
        });
        check_op(&golden, "rms_norm", &["x", "weight"], |x| ops::norm(&x[0], NormKind::Rms, 1e-5, &x[1], None, Activation::None));
        check_op(&golden, "gelu", &["x"], |x| ops::activation(&x[0], Activation::Gelu));
        check_op(&golden, "silu", &["x"], |x| ops::activation(&x[0], Activation::Silu));
    }
}

type Forward = Box<dyn Fn(&mut TensorExecutor, &Tensor) -> candle_models::Result<Tensor>>;

/// Between PyTorch's order of a state and ours, both ways: the scan keeps `[B, E, N]` there and `[B, N, E]` here.
fn reorder(name: &str, state: &Tensor) -> Tensor {
    if name.ends_with(".ssm") { state.transpose(1, 2).unwrap().contiguous().unwrap() } else { state.clone() }
}

/// Forward, final state and the gradients of every parameter and of the input. The state before the sequence has no
/// gradient to compare: training cuts it there.
fn check_recurrent(file: &str, states: &[&str], build: fn(&Tensor, &Params, &mut Vec<TensorSpec>) -> Forward) {
    for dtype in [DType::F32, DType::F64] {
        let golden = Golden::load(file, dtype);
        let x = Var::from_tensor(golden.get("input.x")).unwrap();
        let (batch, steps, _) = x.dims3().unwrap();
        let params = Params::init_dtype(Random::new(0), dtype, &Device::Cpu);
        let mut specs = Vec::new();
        let forward = build(golden.get("output.y"), &params, &mut specs);
        let vars = params.vars();
        let ours: BTreeSet<&str> = vars.keys().map(String::as_str).collect();
        let theirs: BTreeSet<&str> = golden.tensors.keys().filter_map(|n| n.strip_prefix("param.")).collect();
        assert_eq!(ours, theirs, "parameters of {file}");
        vars.iter().for_each(|(name, var)| var.set(golden.get(&format!("param.{name}"))).unwrap());

        let inputs: NamedTensors = [("x".to_owned(), x.as_tensor().clone())].into_iter().collect();
        let resets: Vec<bool> = flat(golden.get("input.resets")).iter().map(|r| *r == 1.0).collect();
        let before: Vec<Tensor> = states.iter().map(|s| reorder(s, golden.get(&format!("state.{s}")))).collect();
        assert!(before.iter().zip(&specs).all(|(t, spec)| t.dims()[1..] == spec.shape) && before.len() == specs.len());
        let mut executor = TensorExecutor::new(&inputs, &resets, before, &Device::Cpu);
        let rows = executor.input("x").unwrap();
        let y = forward(&mut executor, &rows).unwrap().reshape((batch, steps, ())).unwrap();
        golden.compare("output.y", &y);
        for (name, after) in states.iter().zip(executor.into_states()) {
            golden.compare(&format!("final.{name}"), &reorder(name, &after));
        }
        let loss = y.sqr().unwrap().mean_all().unwrap();
        golden.compare("loss", &loss.reshape(1).unwrap());
        let gradients = loss.backward().unwrap();
        golden.compare("grad.input.x", gradients.get(&x).unwrap());
        for (name, var) in &vars {
            golden.compare(&format!("grad.param.{name}"), gradients.get(var).unwrap());
        }
    }
}

#[test]
fn a_gru_equals_pytorch() {
    check_recurrent("gru", &["gru"], |y, params, states| {
        let gru = Gru::new(6, y.dim(2).unwrap(), &params.pp("gru"), states).unwrap();
        Box::new(move |e, x| gru.forward(e, x))
    });
}

#[test]
fn two_mamba_blocks_equal_pytorch() {
    let states = ["layers.0.conv", "layers.0.ssm", "layers.1.conv", "layers.1.ssm"];
    check_recurrent("mamba", &states, |y, params, states| {
        let config = MambaConfig { state: 4, expand: 2, conv: 4 };
        let width = y.dim(2).unwrap();
        let blocks = [0, 1].map(|i| Mamba::new(width, &config, &params.pp(format!("layers.{i}")), states).unwrap());
        Box::new(move |e, x| {
            let x = blocks[0].forward(e, x)?;
            blocks[1].forward(e, &x)
        })
    });
}

/// A bundle is read by names and shapes: a change of either makes every stored policy unreadable.
#[test]
fn parameters_and_states_keep_their_names_and_shapes() {
    let mut found = String::new();
    for kind in BackboneConfig::KINDS {
        for heads in [Heads::Independent, Heads::Autoregressive] {
            let config = PolicyConfig { backbone: BackboneConfig::named(kind).unwrap(), heads, ..PolicyConfig::default() };
            let policy = Policy::new(&config, &Params::description()).unwrap();
            writeln!(found, "# {kind}, {heads:?}").unwrap();
            for spec in Policy::parameters(&config).unwrap() {
                writeln!(found, "parameter {} {:?}", spec.name, spec.shape).unwrap();
            }
            for spec in &policy.signature().state {
                writeln!(found, "state {} {:?}", spec.name, spec.shape).unwrap();
            }
        }
    }
    let path = path("parameters.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = stored.lines().zip(found.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(stored.lines().count().min(found.lines().count()));
    assert!(
        stored == found,
        "tests/golden/parameters.txt, line {}: stored {:?}, found {:?}\nStored policies can no longer be read. If that is meant, raise the \
         bundle's format version and run: UPDATE_SNAPSHOTS=1 cargo test -p candle-models --test it parameters_and_states",
        line + 1,
        stored.lines().nth(line).unwrap_or("the end"),
        found.lines().nth(line).unwrap_or("the end"),
    );
}
