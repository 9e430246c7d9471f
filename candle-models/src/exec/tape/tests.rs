//! The tape against the same network on tensors whose states carry gradients.

use super::*;
use crate::exec::program::Recorder;
use crate::exec::tensors::TensorExecutor;
use crate::exec::{Executor, Target};
use crate::network::Network;
use crate::nn::{Gru, Init, Linear, Norm, Params};
use crate::ops::Activation;
use crate::random::Random;
use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor, Var};

const INPUTS: usize = 5;
const WIDTH: usize = 24;
const OUTPUTS: usize = 4;
const ROWS: usize = 6;
const STEPS: usize = 5;
/// Rows of a table: two of which one is added, and one that is added always.
const KINDS: usize = 3;

/// Every operation that a tape knows.
struct Net {
    signature: Signature,
    first: Linear,
    norm: Norm,
    table: Tensor,
    grus: [Gru; 2],
    heads: [Linear; 2],
    groups: Norm,
}

impl Net {
    fn new(params: &Params) -> Result<Self> {
        let mut state = Vec::new();
        let grus =
            [Gru::new(INPUTS + WIDTH, WIDTH, &params.pp("gru.0"), &mut state)?, Gru::new(WIDTH, WIDTH, &params.pp("gru.1"), &mut state)?];
        Ok(Self {
            first: Linear::new(INPUTS, WIDTH, &params.pp("first"))?,
            norm: Norm::layer(WIDTH, &params.pp("norm"))?,
            table: params.get("table", &[KINDS, WIDTH], Init::Uniform(1.0))?,
            grus,
            heads: [Linear::new(WIDTH, OUTPUTS, &params.pp("head.0"))?, Linear::new(2 * WIDTH, OUTPUTS, &params.pp("head.1"))?],
            groups: Norm::rms(2, &params.pp("groups"))?,
            signature: Signature {
                inputs: vec![TensorSpec::f32("x", &[INPUTS]), TensorSpec::u32("kind", &[2]).below(&[2, 1])],
                outputs: vec![TensorSpec::f32("y", &[OUTPUTS]), TensorSpec::f32("z", &[OUTPUTS])],
                state,
            },
        })
    }

    fn pass<E: Executor>(&self, e: &mut E) -> Result<[E::V; 2]> {
        let x = e.input("x")?;
        let h = e.linear(&x, &self.first, Activation::Silu)?;
        let h = e.norm(&h, &self.norm, Activation::Gelu)?;
        let kind = e.indices("kind")?;
        let h = e.add_rows(&h, &self.table, &kind, &[(0, 0), (1, 2)], Activation::Silu)?;
        let both = e.join(&[x, h.clone()])?;
        let a = self.grus[0].forward(e, &both)?;
        let b = self.grus[1].forward(e, &a)?;
        let sum = e.add(&a, &b)?;
        let gated = e.gate(&sum, &h)?;
        let y = e.linear(&gated, &self.heads[0], Activation::Relu)?;
        // A weight that two operations multiply by.
        let again = e.linear(&b, &self.heads[0], Activation::None)?;
        let y = e.add(&y, &again)?;
        let turned = turned(e, &gated)?;
        let wide = e.join(&[b, turned])?;
        let z = e.linear(&wide, &self.heads[1], Activation::Gelu)?;
        let z = e.norm(&z, &self.groups, Activation::None)?;
        Ok([y, z])
    }
}

/// Some columns in another order, so that a matrix is read in parts.
fn turned<E: Executor>(e: &mut E, x: &E::V) -> Result<E::V> {
    let halves = [e.columns(x, WIDTH / 2, WIDTH / 2)?, e.columns(x, 0, WIDTH / 2)?];
    e.join(&halves)
}

/// What step t reads: noise, and what the step before gave.
fn noise(t: usize) -> Vec<f32> {
    let mut values = vec![0.0; ROWS * INPUTS];
    Random::new(5).at(t as u64).fill_normal(0, &mut values);
    values
}

/// The indices of a row in step t.
fn kind(t: usize, r: usize) -> [u32; 2] {
    [((t + r / 2) % 2) as u32, 0]
}

/// The loss is the sum of the products of all outputs with fixed numbers.
fn weights(t: usize, output: usize) -> Vec<f32> {
    let mut values = vec![0.0; ROWS * OUTPUTS];
    Random::new(6).at((2 * t + output) as u64).fill_normal(0, &mut values);
    values
}

/// Loss and gradients by name on tensors.
fn with_tensors(params: &Params, net: &Net) -> (f32, Vec<(String, Vec<f32>)>) {
    let device = Device::Cpu;
    let resets = vec![false; ROWS];
    let zeros = |spec: &TensorSpec| Tensor::zeros((ROWS, spec.width()), candle_core::DType::F32, &device).unwrap();
    let mut states: Vec<Tensor> = net.signature.state.iter().map(zeros).collect();
    let mut fed = Tensor::zeros((ROWS, OUTPUTS), candle_core::DType::F32, &device).unwrap();
    let mut loss = Tensor::zeros((), candle_core::DType::F32, &device).unwrap();
    for t in 0..STEPS {
        let x = Tensor::from_vec(noise(t), (ROWS, INPUTS), &device).unwrap();
        let x = (x + fed.pad_with_zeros(1, 0, INPUTS - OUTPUTS).unwrap()).unwrap();
        let kinds = Tensor::from_vec((0..ROWS).flat_map(|r| kind(t, r)).collect(), (ROWS, 1, 2), &device).unwrap();
        let inputs = NamedTensors::from_iter([("x".to_owned(), x.unsqueeze(1).unwrap()), ("kind".to_owned(), kinds)]);
        let mut executor = TensorExecutor::new(&inputs, &resets, states, &device).through_time();
        let outputs = net.pass(&mut executor).unwrap();
        states = executor.into_states();
        for (i, output) in outputs.iter().enumerate() {
            let weights = Tensor::from_vec(weights(t, i), (ROWS, OUTPUTS), &device).unwrap();
            loss = (loss + (output * weights).unwrap().sum_all().unwrap()).unwrap();
        }
        fed = outputs[1].clone();
    }
    let grads = loss.backward().unwrap();
    let gradient = |(name, var): (String, candle_core::Var)| {
        let grad = grads.get(&var).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        (name, grad)
    };
    (loss.to_scalar().unwrap(), params.vars().into_iter().map(gradient).collect())
}

/// The same on a tape.
fn with_tape(params: &Params, net: &Net, tapes: &Tapes) -> (f32, Vec<(String, Vec<f32>)>) {
    let record = |recorder: &mut Recorder| Ok(net.pass(recorder)?.map(Output::Floats).to_vec());
    let program = Program::new(&net.signature, Target::Tape, record).unwrap();
    let net = Differentiable::new(&program, Products::F32).unwrap();
    let mut tape = tapes.take(&net, ROWS, STEPS);
    let mut loss = 0.0;
    for t in 0..STEPS {
        tape.input_mut(&net, 0, t).copy_from_slice(&noise(t));
        (0..ROWS).for_each(|r| tape.indices_mut(&net, 0, (t, r)).copy_from_slice(&kind(t, r)));
        if t > 0 {
            let fed: Vec<f32> = (0..ROWS).flat_map(|r| tape.output(&net, 1, t - 1).row(r).to_vec()).collect();
            for (to, from) in tape.input_mut(&net, 0, t).chunks_mut(INPUTS).zip(fed.chunks(OUTPUTS)) {
                crate::ops::add_into(&mut to[..OUTPUTS], from);
            }
        }
        tape.forward(&net, t);
        for i in 0..2 {
            let weights = weights(t, i);
            for r in 0..ROWS {
                loss += tape.output(&net, i, t).row(r).iter().zip(&weights[r * OUTPUTS..]).map(|(y, w)| y * w).sum::<f32>();
            }
        }
    }
    let mut fed = vec![0.0; ROWS * OUTPUTS];
    for t in (0..STEPS).rev() {
        tape.clear(&net, t);
        for i in 0..2 {
            let weights = weights(t, i);
            tape.add_output_grad(&net, i, t, |r, grad| crate::ops::add_into(grad, &weights[r * OUTPUTS..][..OUTPUTS]));
        }
        tape.add_output_grad(&net, 1, t, |r, grad| crate::ops::add_into(grad, &fed[r * OUTPUTS..][..OUTPUTS]));
        tape.backward(&net, t);
        let grads = tape.input_grad(&net, 0, t);
        fed = (0..ROWS).flat_map(|r| grads.row(r)[..OUTPUTS].to_vec()).collect();
    }
    let (gradients, parameters) = (net.gradients(&[&tape]).unwrap(), net.parameters());
    let gradient = |(name, var): (String, candle_core::Var)| {
        let at = parameters.iter().position(|t| t.id() == var.as_tensor().id()).unwrap();
        (name, gradients[at].flatten_all().unwrap().to_vec1().unwrap())
    };
    tapes.put(tape);
    (loss, params.vars().into_iter().map(gradient).collect())
}

#[test]
fn gradients_through_time_are_those_of_tensors() {
    let params = Params::init(Random::new(1), &Device::Cpu);
    let net = Net::new(&params).unwrap();
    let (want_loss, want) = with_tensors(&params, &net);
    let tapes = Tapes::default();
    // The second time in the memory of the first.
    for _ in 0..2 {
        let (loss, found) = with_tape(&params, &net, &tapes);
        assert!((loss - want_loss).abs() < 1e-4 * (1.0 + want_loss.abs()), "{loss} {want_loss}");
        for ((name, found), (_, want)) in found.iter().zip(&want) {
            let scale = want.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
            let worst = found.iter().zip(want).map(|(f, w)| (f - w).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-5 * scale, "{name}: {worst} of {scale}");
        }
    }
}

#[test]
fn gradients_of_wide_weights_are_products_over_all_rows() {
    let (rows, inputs, outputs) = (BLOCK + 6, PART[0] + 100, PART[1] + 33);
    let params = Params::init(Random::new(1), &Device::Cpu);
    let layer = Linear::new(inputs, outputs, &params).unwrap();
    let numbers = |n: usize, stream: &str| {
        let mut values = vec![0.0f32; n];
        Random::new(2).stream(stream).fill_normal(0, &mut values);
        values
    };
    let x = Tensor::from_vec(numbers(rows * inputs, "x"), (rows, inputs), &Device::Cpu).unwrap();
    let dy = Tensor::from_vec(numbers(rows * outputs, "dy"), (rows, outputs), &Device::Cpu).unwrap();
    let signature =
        Signature { inputs: vec![TensorSpec::f32("x", &[inputs])], outputs: vec![TensorSpec::f32("y", &[outputs])], state: Vec::new() };
    let record = |recorder: &mut Recorder| {
        let x = recorder.input("x")?;
        Ok(vec![Output::Floats(recorder.linear(&x, &layer, Activation::None)?)])
    };
    let y = feed(&signature, record, &x, &Tapes::default()).unwrap();
    let grads = (y * &dy).unwrap().sum_all().unwrap().backward().unwrap();
    let exact = x.t().unwrap().to_dtype(DType::F64).unwrap().matmul(&dy.to_dtype(DType::F64).unwrap()).unwrap();
    let found = grads.get(&layer.weight).unwrap().to_dtype(DType::F64).unwrap();
    let worst = (found - exact).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
    // Sums of 70 products of size one, the worst of 200 000: one after the other in f32 they are off by up to 1.6e-5, in
    // three planes of bf16 by less.
    assert!(worst < 4e-5, "{worst}");
}

/// Parameters have the same gradients where nobody asks for those of the inputs, in front of layers and behind them.
#[test]
fn inputs_without_gradients_change_none_of_the_parameters() {
    struct Gated(Linear, Linear);
    impl crate::network::Layers for Gated {
        fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
            let x = e.input("x")?;
            let (a, z) = (e.columns(&x, 0, 3)?, e.columns(&x, 3, 3)?);
            let gated = e.gate(&a, &z)?;
            let y = e.linear(&gated, &self.0, Activation::None)?;
            let again = e.gate(&y, &gated)?;
            Ok(vec![Output::Floats(e.linear(&again, &self.1, Activation::None)?)])
        }
    }
    let params = Params::init(Random::new(1), &Device::Cpu);
    let [first, second] = ["first", "second"].map(|name| Linear::new(3, 3, &params.pp(name)).unwrap());
    let signature = Signature { inputs: vec![TensorSpec::f32("x", &[6])], outputs: vec![TensorSpec::f32("y", &[3])], state: Vec::new() };
    let network = Network::of(("gated", &0), signature, &Device::Cpu, Gated(first, second)).unwrap();
    let x = Var::randn(0f32, 1.0, (70, 6), &Device::Cpu).unwrap();
    let of = |x: &Tensor| network.feed(x, &Tapes::default()).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let (with, without) = (of(x.as_tensor()), of(&x.as_tensor().detach()));
    for (name, var) in params.vars() {
        let [with, without] = [&with, &without].map(|grads| grads.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert!(with == without && with.iter().any(|g| *g != 0.0), "{name}");
    }
    assert!(with.get(&x).is_some() && without.get(&x).is_none());
}

#[test]
fn indices_are_fed_as_numbers_and_have_no_gradient() {
    let signature = Signature {
        inputs: vec![TensorSpec::u32("kind", &[1]).below(&[3]), TensorSpec::f32("x", &[2])],
        outputs: vec![TensorSpec::f32("y", &[2])],
        state: Vec::new(),
    };
    struct Shifted(Tensor);
    impl crate::network::Layers for Shifted {
        fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
            let (x, kind) = (e.input("x")?, e.indices("kind")?);
            Ok(vec![Output::Floats(e.add_rows(&x, &self.0, &kind, &[(0, 0)], Activation::None)?)])
        }
    }
    let network = |table: &candle_core::Var| {
        let layers = Shifted(table.as_tensor().clone());
        crate::network::Network::of(("shifted", &()), signature.clone(), &Device::Cpu, layers).unwrap()
    };
    let rows = [[0.5, -1.0], [3.0, 3.0], [0.25, 8.0]];
    let of = |dtype: DType| candle_core::Var::from_tensor(&Tensor::new(&rows, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()).unwrap();
    // In f64 it goes through the layers on tensors.
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::new(&[[1.0f32, 2.0, 2.0], [3.0, 4.0, 0.0]], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let (table, x) = (of(dtype), candle_core::Var::from_tensor(&x).unwrap());
        let y = network(&table).feed(&x, &Tapes::default()).unwrap();
        let numbers = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        assert_eq!(numbers(&y), [[1.25, 10.0], [3.5, 3.0]], "{dtype:?}");
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(numbers(gradients.get(&x).unwrap()), [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], "{dtype:?}");
        assert_eq!(numbers(gradients.get(&table).unwrap()), [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], "{dtype:?}");
    }
    let outside = Tensor::new(&[[1.0f32, 2.0, 3.0]], &Device::Cpu).unwrap();
    let error = network(&of(DType::F32)).feed(&outside, &Tapes::default()).unwrap_err().to_string();
    assert!(error.contains("kind") && error.contains("index up to 2"), "{error}");
}
