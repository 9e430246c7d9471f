//! What a GPU has to compute as the CPU does. It needs no files outside this repository and no network. Without a CUDA device every
//! test says so and passes, unless `CANDLE_REQUIRE_CUDA=1` makes that a failure.
// Helpers of tests may unwrap as tests do; the setting in clippy.toml sees `#[test]` functions only.
#![allow(clippy::unwrap_used)]

mod agent;
mod beam;
mod device;
mod engine;
mod faults;
mod fft;
mod fno;
mod operations;
mod ops;
#[path = "../it/policies.rs"]
mod policies;
mod rf;
mod sequences;
mod training_ops;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_models::random::Random;
use device::cuda;

/// Whether a part of the cases is enough: `CANDLE_CUDA_QUICK=1`, for an emulated device, which takes seconds for what a GPU does at once.
fn is_quick() -> bool {
    std::env::var("CANDLE_CUDA_QUICK").is_ok_and(|v| v == "1")
}

/// All cases, or one in `stride` from the first on where a part is enough.
fn cases<T>(all: impl IntoIterator<Item = T>, stride: usize) -> impl Iterator<Item = T> {
    all.into_iter().step_by(if is_quick() { stride } else { 1 })
}

/// Random numbers of that shape, f32 on the CPU.
fn normal(name: &str, shape: &[usize]) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    Random::new(21).stream(name).fill_normal(0, &mut values);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// On a device, in a dtype.
fn on(tensor: &Tensor, device: &Device, dtype: DType) -> Tensor {
    tensor.to_dtype(dtype).unwrap().to_device(device).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// An operation: from activations and behind them parameters to a value with a gradient, and behind it what has none.
type Op<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

struct Run {
    outputs: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

/// Runs an operation and its backward: activations in `dtype`, parameters in f32. Every output counts differently in the loss; the
/// weights are those that `rounding` can hold.
fn run(device: &Device, [dtype, rounding]: [DType; 2], [rows, params]: [&[Tensor]; 2], op: Op) -> Run {
    let var = |x: &Tensor, dtype| Var::from_tensor(&on(x, device, dtype)).unwrap();
    let vars: Vec<Var> = rows.iter().map(|x| var(x, dtype)).chain(params.iter().map(|x| var(x, DType::F32))).collect();
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let outputs = op(&tensors).unwrap();
    let weights = on(&normal("loss", outputs[0].dims()), &Device::Cpu, rounding);
    let store = (&outputs[0] * on(&weights, device, dtype)).unwrap().sum_all().unwrap().backward().unwrap();
    let gradients = vars.iter().map(|v| flat(store.get(v).expect("every input has a gradient"))).collect();
    Run { outputs: outputs.iter().map(flat).collect(), gradients }
}

fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what} at {i}: {g} instead of {w} (scale {scale})");
    }
}

/// The largest difference from the CPU in f32 on the same rounded inputs, relative to the largest value or 1: what rounding the
/// results alone would make, twice for narrow dtypes whose sums round as well.
const DTYPES: [(DType, f32); 3] = [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)];

/// The device against the CPU in every dtype, values and gradients, and the device against itself.
fn check(device: &Device, name: &str, rows: &[Tensor], params: &[Tensor], op: Op) {
    for (dtype, tolerance) in cases(DTYPES, 2) {
        let name = format!("{name}, {dtype:?}");
        // The CPU computes in f32 from what rounding left.
        let rounded: Vec<Tensor> = rows.iter().map(|x| on(x, &Device::Cpu, dtype)).collect();
        let want = run(&Device::Cpu, [DType::F32, dtype], [&rounded, params], op);
        let on_device = || run(device, [dtype, dtype], [&rounded, params], op);
        let got = on_device();
        for (i, (got, want)) in got.outputs.iter().zip(&want.outputs).enumerate() {
            assert_close(&format!("{name}: output {i}"), got, want, tolerance);
        }
        for (i, (got, want)) in got.gradients.iter().zip(&want.gradients).enumerate() {
            assert_close(&format!("{name}: gradient {i}"), got, want, 3.0 * tolerance);
        }
        if !is_quick() || dtype == DType::F32 {
            let again = on_device();
            assert!(got.outputs == again.outputs && got.gradients == again.gradients, "{name}: two runs differ");
        }
    }
}
