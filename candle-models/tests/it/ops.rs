//! Every fused operation against its plain form: values, gradients, and finite differences in f64.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_models::ops::{self, Activation, Attention, NormKind};
use candle_models::random::Random;

/// Random numbers of that shape in f64.
fn normal(name: &str, shape: &[usize]) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    Random::new(21).stream(name).fill_normal(0, &mut values);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap()
}

fn flat(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A scalar that weighs every output differently.
fn loss(y: &Tensor) -> Tensor {
    let weights = normal("loss", y.dims()).to_dtype(y.dtype()).unwrap();
    (y * weights).unwrap().sum_all().unwrap()
}

struct Run {
    output: Vec<f64>,
    gradients: Vec<Vec<f64>>,
}

fn run(dtype: DType, inputs: &[Tensor], op: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Run {
    let vars: Vec<Var> = inputs.iter().map(|x| Var::from_tensor(&x.to_dtype(dtype).unwrap()).unwrap()).collect();
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let y = op(&tensors).unwrap();
    let store = loss(&y).backward().unwrap();
    let gradients = vars.iter().map(|v| flat(store.get(v).expect("every input has a gradient"))).collect();
    Run { output: flat(&y), gradients }
}

fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what} at {i}: {g} instead of {w} (scale {scale})");
    }
}

/// f32 takes the fused form, f64 the plain one; finite differences hold the plain one.
fn check(name: &str, inputs: &[Tensor], op: &dyn Fn(&[Tensor]) -> Result<Tensor>) {
    let plain = run(DType::F64, inputs, op);
    let fused = run(DType::F32, inputs, op);
    assert_close(&format!("{name}: output"), &fused.output, &plain.output, 1e-5);
    for (i, (f, p)) in fused.gradients.iter().zip(&plain.gradients).enumerate() {
        assert_close(&format!("{name}: gradient {i}"), f, p, 3e-5);
    }
    let step = 1e-6;
    for (i, x) in inputs.iter().enumerate() {
        let values = flat(x);
        // A dozen places spread over the tensor: each costs two passes.
        for place in (0..values.len()).step_by(values.len().div_ceil(12)) {
            let at = |delta: f64| {
                let mut moved = values.clone();
                moved[place] += delta;
                let mut inputs = inputs.to_vec();
                inputs[i] = Tensor::from_vec(moved, x.dims(), &Device::Cpu).unwrap();
                flat(&loss(&op(&inputs).unwrap()))[0]
            };
            let want = (at(step) - at(-step)) / (2.0 * step);
            let got = plain.gradients[i][place];
            assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "{name}: finite difference of input {i} at {place}: {got}, {want}");
        }
    }
}

#[test]
fn activations_and_the_gate() {
    for act in [Activation::Relu, Activation::Gelu, Activation::Silu] {
        check(&format!("{act:?}"), &[normal("x", &[5, 37])], &|x| ops::activation(&x[0], act));
        let inputs = [normal("x", &[5, 37]), normal("b", &[37])];
        check(&format!("bias and {act:?}"), &inputs, &|x| ops::bias_activation(&x[0], &x[1], act));
    }
    check("bias", &[normal("x", &[5, 37]), normal("b", &[37])], &|x| ops::bias_activation(&x[0], &x[1], Activation::None));
    check("gate", &[normal("a", &[4, 19]), normal("z", &[4, 19])], &|x| ops::gate(&x[0], &x[1]));
    check("gate of columns", &[normal("az", &[4, 38])], &|x| ops::gate(&x[0].narrow(1, 0, 19)?, &x[0].narrow(1, 19, 19)?));
}

#[test]
fn norms() {
    for width in [1, 16, 31, 70] {
        let (x, w, b) = (normal("x", &[131, width]), normal("w", &[width]), normal("b", &[width]));
        if width > 1 {
            check("layer norm", &[x.clone(), w.clone(), b], &|x| {
                ops::norm(&x[0], NormKind::Layer, 1e-5, &x[1], Some(&x[2]), Activation::None)
            });
        }
        check("rms norm", &[x, w], &|x| ops::norm(&x[0], NormKind::Rms, 1e-5, &x[1], None, Activation::None));
    }
}

#[test]
fn convolutions_with_resets_and_carried_state() {
    for (batch, steps, width, taps) in [(1, 1, 3, 4), (2, 6, 17, 4), (3, 2, 16, 5), (2, 5, 8, 2)] {
        let resets: Vec<bool> = (0..batch * steps).map(|i| i % 4 == 2).collect();
        let state = normal("state", &[batch, taps - 1, width]);
        let inputs = [normal("x", &[batch * steps, width]), normal("w", &[taps, width]), normal("b", &[width])];
        let name = format!("conv {batch}x{steps}x{width}, {taps} taps");
        check(&name, &inputs, &|x| Ok(ops::causal_conv(&x[0], &x[1], &x[2], &state.to_dtype(x[0].dtype())?, &resets)?.0));
        let after = |dtype| {
            let x: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(dtype).unwrap()).collect();
            flat(&ops::causal_conv(&x[0], &x[1], &x[2], &state.to_dtype(dtype).unwrap(), &resets).unwrap().1)
        };
        assert_close(&format!("{name}: state"), &after(DType::F32), &after(DType::F64), 1e-6);
    }
}

#[test]
fn selective_scans_with_resets_and_carried_state() {
    for (batch, steps, width, states) in [(1, 1, 1, 1), (2, 7, 16, 4), (3, 4, 37, 5), (2, 9, 33, 16)] {
        let resets: Vec<bool> = (0..batch * steps).map(|i| i % 5 == 3).collect();
        let state = normal("state", &[batch, states, width]);
        let a = (normal("a", &[states, width]).abs().unwrap() + 0.1).unwrap().neg().unwrap();
        let params = Tensor::cat(&[a, normal("skip", &[1, width])], 0).unwrap();
        let inputs = [normal("u", &[batch * steps, width]), normal("packed", &[batch * steps, width + 2 * states]), params];
        let name = format!("scan {batch}x{steps}x{width}, {states} states");
        check(&name, &inputs, &|x| Ok(ops::selective_scan(&x[0], &x[1], &x[2], &state.to_dtype(x[0].dtype())?, &resets)?.0));
        let after = |dtype| {
            let x: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(dtype).unwrap()).collect();
            flat(&ops::selective_scan(&x[0], &x[1], &x[2], &state.to_dtype(dtype).unwrap(), &resets).unwrap().1)
        };
        assert_close(&format!("{name}: state"), &after(DType::F32), &after(DType::F64), 1e-5);
    }
}

#[test]
fn gates_of_a_gru_and_attention() {
    let inputs = [normal("x", &[3, 15]), normal("h", &[3, 15]), normal("s", &[3, 5])];
    check("gru gates", &inputs, &|x| ops::gru_gates(&x[0], &x[1], &x[2]));
    let (batch, steps, width, shape) = (2, 6, 12, Attention { heads: 3, window: 4 });
    let resets: Vec<bool> = (0..batch * steps).map(|i| i == 8).collect();
    let count = Tensor::from_vec(vec![2.0f64, 0.0], (batch, 1), &Device::Cpu).unwrap();
    let state = (normal("keys", &[batch, 3, width]), normal("values", &[batch, 3, width]), count);
    let inputs = ["q", "k", "v"].map(|n| normal(n, &[batch * steps, width]));
    let inputs: Vec<Tensor> = inputs.into_iter().chain([normal("bias", &[3, 4])]).collect();
    check("attention", &inputs, &|x| {
        let cast = |t: &Tensor| t.to_dtype(x[0].dtype());
        let state = (cast(&state.0)?, cast(&state.1)?, cast(&state.2)?);
        Ok(ops::attention(shape, [&x[0], &x[1], &x[2]], &x[3], &state, &resets)?.0)
    });
}
