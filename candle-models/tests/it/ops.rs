//! Every fused operation against its plain form: values, gradients, and finite differences in f64.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_models::bundle::ParameterSpec;
use candle_models::exec::tensors::{Indices, Regularisation, TensorExecutor};
use candle_models::exec::{Choice, SAMPLE};
use candle_models::nn::{Autoregressive, Mamba, MambaConfig, Params};
use candle_models::ops::{self, Activation, Attention, LossGroup, NormKind};
use candle_models::random::Random;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use std::collections::BTreeMap;

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
    }
    check("gate", &[normal("a", &[4, 19]), normal("z", &[4, 19])], &|x| ops::gate(&x[0], &x[1]));
    check("gate of columns", &[normal("az", &[4, 38])], &|x| ops::gate(&x[0].narrow(1, 0, 19)?, &x[0].narrow(1, 19, 19)?));
}

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu];

#[test]
fn linear_layers_with_and_without_bias_and_of_column_slices() {
    for ((rows, inputs, outputs), act) in [(1, 1, 1), (3, 7, 16), (130, 33, 7), (65, 16, 33)].into_iter().zip(ACTIVATIONS.into_iter().rev())
    {
        let all = [normal("x", &[rows, inputs]), normal("w", &[inputs, outputs]), normal("b", &[outputs])];
        let name = format!("linear {rows} x {inputs} x {outputs}, {act:?}");
        check(&name, &all, &|x| ops::linear(&x[0], &x[1], Some(&x[2]), act));
        check(&format!("{name}, no bias"), &all[..2], &|x| ops::linear(&x[0], &x[1], None, act));
        let wide = [normal("wide", &[rows, inputs + 3]), all[1].clone()];
        check(&format!("{name}, of columns"), &wide, &|x| ops::linear(&x[0].narrow(1, 2, inputs)?, &x[1], None, act));
    }
}

#[test]
fn a_linear_layer_refuses_rows_of_another_width() {
    let (x, w) = (normal("x", &[2, 3]).to_dtype(DType::F32).unwrap(), normal("w", &[4, 5]).to_dtype(DType::F32).unwrap());
    assert!(ops::linear(&x, &w, None, Activation::None).is_err());
}

#[test]
fn rows_of_tables_added_and_joined() {
    for (rows, entries, width, columns) in [(1, 1, 1, 1), (3, 5, 7, 2), (300, 9, 33, 4)] {
        let index: Vec<u32> = (0..rows * columns).map(|i| Random::new(4).below(i as u64, entries as u32)).collect();
        for act in [Activation::None, Activation::Relu, Activation::Gelu] {
            let inputs = [normal("x", &[rows, width]), normal("table", &[entries, width])];
            check(&format!("{columns} rows added, {act:?}"), &inputs, &|x| ops::add_rows(&x[0], &x[1], index.clone(), columns, act));
        }
        let inputs = [normal("x", &[rows, 5]), normal("table", &[entries, width])];
        check(&format!("{columns} rows joined"), &inputs, &|x| ops::join_rows(&x[0], &x[1], index.clone(), columns));
        let outside: Vec<u32> = index.iter().map(|i| i + entries as u32).collect();
        assert!(ops::add_rows(&inputs[0], &inputs[1], outside, columns, Activation::None).is_err());
    }
    let factors: Vec<f32> = (0..33).map(|i| if i % 3 == 0 { 0.0 } else { 1.5 }).collect();
    check("mask", &[normal("x", &[3, 11])], &|x| ops::mask(&x[0], factors.clone()));
}

#[test]
fn layers_over_rows_looked_up() {
    // Few rows look up first, many multiply first; two columns share a table.
    for (rows, floats, width, outputs) in [(1, 1, 1, 1), (5, 3, 2, 7), (6, 9, 4, 16), (150, 5, 3, 33)] {
        let columns = [0..5, 5..9, 0..5];
        let limit = |i: usize| columns[i % 3].start as u32 + Random::new(4).below(i as u64, columns[i % 3].len() as u32);
        let index: Vec<u32> = (0..rows * 3).map(limit).collect();
        let inputs = [normal("table", &[9, width]), normal("w", &[floats + 3 * width, outputs]), normal("b", &[outputs])];
        let x = normal("x", &[rows, floats]);
        let op = |x: &Tensor, p: &[Tensor]| ops::lookup_linear(x, &p[0], &columns, index.clone(), &p[1], Some(&p[2]));
        let name = format!("lookup of {rows} rows");
        check(&name, &inputs, &|p| op(&x.to_dtype(p[0].dtype())?, p));
        let with_x: Vec<Tensor> = inputs.iter().cloned().chain([x.clone()]).collect();
        check(&format!("{name}, with a gradient of x"), &with_x, &|p| op(&p[3], p));
        let outside = index.iter().map(|i| i + 5).collect();
        assert!(ops::lookup_linear(&x, &inputs[0], &columns, outside, &inputs[1], Some(&inputs[2])).is_err());
        assert!(ops::lookup_linear(&x, &inputs[0], &columns[..2], index.clone(), &inputs[1], None).is_err());
    }
}

#[test]
fn cross_entropies_of_mixed_choices() {
    // Logits 1..4 Bernoulli, 5..11 two columns of three classes, 12..29 one of 17; the others belong to nobody.
    let group = |logit, column, columns, classes| LossGroup { logit, column, columns, classes };
    let groups = [group(1, 0, 3, 2), group(5, 4, 2, 3), group(12, 3, 1, 17)];
    let classes = [2, 2, 2, 17, 3, 3];
    for (rows, smoothing, scale) in [(1, 0.0, 1.0), (3, 0.1, 3.0), (70, 0.1, 1.0)] {
        let wanted = (0..rows * 6).map(|i| Random::new(8).below(i as u64, classes[i % 6])).collect::<Vec<u32>>();
        let wanted = Tensor::from_vec(wanted, (rows, 6), &Device::Cpu).unwrap();
        let logits = [(normal("logits", &[rows, 31]) * scale).unwrap()];
        check(&format!("cross entropy of {rows} rows"), &logits, &|x| ops::cross_entropy(&x[0], &wanted, &groups, smoothing));
        let far = [(normal("logits", &[rows, 31]) * 100.0).unwrap()];
        let losses = [DType::F32, DType::F64].map(|dtype| run(dtype, &far, &|x| ops::cross_entropy(&x[0], &wanted, &groups, smoothing)));
        assert_close("far logits", &losses[0].output, &losses[1].output, 1e-6);
        assert_close("far logits, gradient", &losses[0].gradients[0], &losses[1].gradients[0], 1e-5);
        assert!(ops::cross_entropy(&logits[0], &(&wanted + &wanted).unwrap(), &groups, smoothing).is_err() || rows == 1);
        assert!(ops::cross_entropy(&logits[0].narrow(1, 0, 20).unwrap(), &wanted, &groups, smoothing).is_err());
    }
}

fn resets(batch: usize, steps: usize) -> Vec<bool> {
    (0..batch * steps).map(|i| Random::new(9).uniform(i as u64) < 0.3).collect()
}

#[test]
fn grus_with_resets_and_carried_state() {
    for (batch, steps, width) in [(1, 1, 1), (3, 1, 7), (1, 5, 16), (3, 5, 33)] {
        let (resets, state) = (resets(batch, steps), normal("state", &[batch, width]));
        let inputs = [normal("x", &[batch * steps, 3 * width]), normal("w", &[width, 3 * width]), normal("b", &[3 * width])];
        let op = |x: &[Tensor]| ops::gru(&x[0], &x[1], &x[2], &state.to_dtype(x[0].dtype())?, &resets);
        let name = format!("gru {batch} x {steps} x {width}");
        check(&name, &inputs, &|x| Ok(op(x)?.0));
        let after = |dtype| flat(&op(&inputs.clone().map(|x| x.to_dtype(dtype).unwrap())).unwrap().1);
        assert_close(&format!("{name}: state"), &after(DType::F32), &after(DType::F64), 1e-5);
    }
}

#[test]
fn a_reset_clears_a_state_of_a_gru_that_is_not_finite() {
    let state = Tensor::new(&[[f32::NAN, f32::INFINITY]], &Device::Cpu).unwrap();
    let inputs = [normal("x", &[2, 6]), normal("w", &[2, 6]), normal("b", &[6])].map(|x| x.to_dtype(DType::F32).unwrap());
    let (y, after) = ops::gru(&inputs[0], &inputs[1], &inputs[2], &state, &[true, false]).unwrap();
    assert!(flat(&y).iter().chain(&flat(&after)).all(|x| x.is_finite()));
}

/// What a block has: its parameters and its states.
fn mamba_parts(width: usize, config: &MambaConfig) -> (Vec<ParameterSpec>, Vec<TensorSpec>) {
    let (params, mut states) = (Params::description(), Vec::new());
    Mamba::new(width, config, &params, &mut states).unwrap();
    (params.specs(), states)
}

/// An input of the block and random parameters of about that size.
fn mamba_inputs(rows: usize, width: usize, config: &MambaConfig, scale: f64) -> Vec<Tensor> {
    let parameters = mamba_parts(width, config).0.into_iter().map(|spec| (normal(&spec.name, &spec.shape) * scale).unwrap());
    std::iter::once(normal("x", &[rows, width])).chain(parameters).collect()
}

/// The block on `[x, parameters]`: f32 runs it as one operation, f64 operation by operation.
fn mamba(config: &MambaConfig, resets: &[bool], batch: usize, dropout: f32, x: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    let width = x[0].dim(1)?;
    let (parameters, states) = mamba_parts(width, config);
    let given: BTreeMap<String, Tensor> = parameters.into_iter().map(|spec| spec.name).zip(x[1..].iter().cloned()).collect();
    let error = |e: candle_models::Error| candle_core::Error::Msg(e.to_string());
    let block = Mamba::new(width, config, &Params::given(given, &Device::Cpu), &mut Vec::new()).map_err(error)?;
    let state = |spec: TensorSpec| normal(&spec.name, &[&[batch], &spec.shape[..]].concat()).to_dtype(x[0].dtype());
    let states = states.into_iter().map(state).collect::<Result<Vec<_>>>()?;
    let inputs = NamedTensors::new();
    let noise = Regularisation { dropout, drop_ids: 0.0, random: Random::new(2), first_row: 0 };
    let mut executor = TensorExecutor::new(&inputs, resets, states, &Device::Cpu).with_noise(noise);
    let y = block.forward(&mut executor, &x[0]).map_err(error)?;
    Ok((y, executor.into_states()))
}

#[test]
fn mamba_blocks_as_one_operation() {
    for (batch, steps, width, dropout, config) in [
        (1, 1, 1, 0.0, MambaConfig { state: 1, expand: 1, conv: 2 }),
        (3, 5, 7, 0.0, MambaConfig { state: 5, expand: 1, conv: 4 }),
        (1, 5, 16, 0.3, MambaConfig { state: 4, expand: 2, conv: 4 }),
        (3, 1, 33, 0.0, MambaConfig { state: 16, expand: 1, conv: 3 }),
        (2, 9, 17, 0.3, MambaConfig { state: 3, expand: 2, conv: 5 }),
    ] {
        let resets = resets(batch, steps);
        let inputs = mamba_inputs(batch * steps, width, &config, 0.5);
        let name = format!("mamba {batch} x {steps} x {width}, {config:?}");
        check(&name, &inputs, &|x| Ok(mamba(&config, &resets, batch, dropout, x)?.0));
        let after = |dtype| {
            let x: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(dtype).unwrap()).collect();
            mamba(&config, &resets, batch, dropout, &x).unwrap().1.iter().flat_map(flat).collect::<Vec<_>>()
        };
        assert_close(&format!("{name}: states"), &after(DType::F32), &after(DType::F64), 1e-5);
    }
}

/// Components of an action, their columns one behind the other: (columns, classes) each.
struct Heads {
    trunk: usize,
    width: usize,
    components: Vec<(String, Choice)>,
    /// What the priors know, if there are some.
    given: Option<&'static [&'static [usize]]>,
}

impl Heads {
    fn new(trunk: usize, width: usize, shapes: &[(usize, usize)]) -> Self {
        let mut column = 0;
        let choices = shapes.iter().enumerate().map(|(g, &(columns, classes))| {
            column += columns;
            (format!("c{g}"), Choice { column: column - columns, columns, classes })
        });
        Self { trunk, width, components: choices.collect(), given: None }
    }

    fn network(&self, params: &Params) -> candle_models::Result<Autoregressive> {
        let components: Vec<(&str, Choice)> = self.components.iter().map(|(name, choice)| (name.as_str(), *choice)).collect();
        Autoregressive::new(self.trunk, self.width, &components, self.given, params)
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let params = Params::description();
        self.network(&params).unwrap();
        params.specs()
    }

    fn inputs(&self, rows: usize) -> Vec<Tensor> {
        let parameters = self.parameters().into_iter().map(|spec| (normal(&spec.name, &spec.shape) * 0.3).unwrap());
        std::iter::once(normal("x", &[rows, self.trunk])).chain(parameters).collect()
    }

    /// Random classes `[rows, columns]`.
    fn classes(&self, rows: usize, seed: u64) -> Tensor {
        let limits: Vec<usize> = self.components.iter().flat_map(|(_, c)| vec![c.classes; c.columns]).collect();
        let class = |i: usize| Random::new(seed).below(i as u64, limits[i % limits.len()] as u32);
        Tensor::from_vec((0..rows * limits.len()).map(class).collect::<Vec<_>>(), (rows, limits.len()), &Device::Cpu).unwrap()
    }

    /// Logits and classes on `[x, parameters]`: f32 runs them as one operation, f64 operation by operation. The classes are those of the frame
    /// before, those wanted, and with priors those of the frame before the last.
    fn run(&self, classes: &[&Tensor], x: &[Tensor]) -> Result<(Tensor, Tensor)> {
        let given: BTreeMap<String, Tensor> = self.parameters().into_iter().map(|spec| spec.name).zip(x[1..].iter().cloned()).collect();
        let error = |e: candle_models::Error| candle_core::Error::Msg(e.to_string());
        let heads = self.network(&Params::given(given, &Device::Cpu)).map_err(error)?;
        let inputs = NamedTensors::new();
        let mut executor = TensorExecutor::new(&inputs, &[], Vec::new(), &Device::Cpu);
        let uniform = Tensor::full(-1f32, classes[1].dims(), &Device::Cpu)?;
        let indices = |t: &&Tensor| Ok::<_, candle_core::Error>(Indices::new(t.flatten_all()?.to_vec1()?, t.dim(1)?));
        let classes = classes.iter().map(indices).collect::<Result<Vec<_>>>()?;
        let classes: Vec<&Indices> = classes.iter().collect();
        let (logits, chosen) = heads.forward(&mut executor, &x[0], &classes, &uniform).map_err(error)?;
        Ok((logits, chosen.to_tensor().map_err(error)?))
    }
}

#[test]
fn autoregressive_heads_as_one_operation() {
    for (rows, trunk, width, shapes) in [
        (1, 1, 1, &[(1, 3)][..]),
        (3, 7, 5, &[(3, 2), (1, 5)]),
        (70, 16, 16, &[(2, 3), (4, 2), (1, 7), (2, 4)]),
        (300, 9, 33, &[(8, 2), (1, 17), (1, 5)]),
    ] {
        let heads = Heads::new(trunk, width, shapes);
        let classes = [heads.classes(rows, 3), heads.classes(rows, 4)];
        let name = format!("heads of {rows} rows, {shapes:?}");
        check(&name, &heads.inputs(rows), &|x| Ok(heads.run(&classes.each_ref(), x)?.0));
        let x: Vec<Tensor> = heads.inputs(rows).iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
        let (logits, chosen) = heads.run(&classes.each_ref(), &x).unwrap();
        assert_eq!(flat(&chosen), flat(&classes[1]), "{name}");
        // What is most likely where one class is left open is found operation by operation; given back, it changes nothing.
        let open =
            (0..rows * classes[1].dims()[1]).map(|i| if i % 5 == 0 { SAMPLE } else { flat(&classes[1])[i] as u32 }).collect::<Vec<_>>();
        let open = Tensor::from_vec(open, classes[1].dims(), &Device::Cpu).unwrap();
        let (sampled, chosen) = heads.run(&[&classes[0], &open], &x).unwrap();
        assert_close(&name, &flat(&heads.run(&[&classes[0], &chosen], &x).unwrap().0), &flat(&sampled), 1e-5);
        assert!(logits.dims() == sampled.dims());
        let outside = Tensor::full(17u32, classes[1].dims(), &Device::Cpu).unwrap();
        assert!(heads.run(&[&classes[0], &outside], &x).is_err() && heads.run(&[&outside, &classes[0]], &x).is_err(), "{name}");
    }
}

/// Two buttons, an axis that knows nothing of them, one that knows the axis before it and the second button.
const GIVEN: &[&[usize]] = &[&[], &[], &[2, 1]];

#[test]
fn logits_begin_with_the_row_of_a_prior() {
    let rows = 40;
    let heads = Heads { given: Some(GIVEN), ..Heads::new(6, 8, &[(2, 2), (1, 5), (1, 3)]) };
    let [previous, wanted, before] = [3, 4, 5].map(|seed| heads.classes(rows, seed));
    let x = heads.inputs(rows);
    let run = |dtype| {
        let x: Vec<Tensor> = x.iter().map(|x| x.to_dtype(dtype).unwrap()).collect();
        let with = heads.run(&[&previous, &wanted, &before], &x).unwrap().0;
        let zeros = heads.parameters().iter().map(|spec| spec.name.ends_with("prior")).collect::<Vec<_>>();
        let without = x.iter().enumerate().map(|(i, x)| if i > 0 && zeros[i - 1] { x.zeros_like().unwrap() } else { x.clone() });
        let without = heads.run(&[&previous, &wanted, &before], &without.collect::<Vec<_>>()).unwrap().0;
        flat(&(with - without).unwrap())
    };
    // What the tables say, by the definition of a context.
    let class = |t: &Tensor, row: usize, column: usize| flat(t)[row * 4 + column] as usize;
    let table = |name: &str| {
        let place = heads.parameters().iter().position(|spec| spec.name == format!("{name}.prior")).unwrap();
        (flat(&x[1 + place]), x[1 + place].dims()[1])
    };
    let mut expected = Vec::new();
    for r in 0..rows {
        let [a, b, now] = [&previous, &before, &wanted].map(|t| (0..4).map(|c| class(t, r, c)).collect::<Vec<_>>());
        let (buttons, width) = table("c0");
        let rows_of = [a[0] * 2 + b[0], 4 + a[1] * 2 + b[1]];
        expected.extend((0..width).map(|i| rows_of.iter().map(|row| buttons[row * width + i]).sum::<f64>()));
        let (axis, width) = table("c1");
        expected.extend(&axis[(a[2] * 5 + b[2]) * width..][..width]);
        let (last, width) = table("c2");
        expected.extend(&last[(((a[3] * 3 + b[3]) * 5 + now[2]) * 2 + now[1]) * width..][..width]);
    }
    for dtype in [DType::F32, DType::F64] {
        assert_close(&format!("priors in {dtype:?}"), &run(dtype), &expected, 1e-5);
    }
    let unknown = Autoregressive::new(4, 4, &[("a", Choice { column: 0, columns: 1, classes: 3 })], Some(&[&[0]]), &Params::description());
    assert!(unknown.unwrap_err().to_string().contains("no component before it holds column 0"));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let config = MambaConfig { state: 4, expand: 2, conv: 4 };
    let (batch, steps, width) = (3, 50, 96);
    let resets = resets(batch, steps);
    let block = mamba_inputs(batch * steps, width, &config, 0.3);
    let rows = 600;
    let index: Vec<u32> = (0..rows * 2).map(|i| i % 9).collect();
    let classes = Tensor::from_vec((0..rows).map(|i| i % 17).collect::<Vec<u32>>(), (rows as usize, 1), &Device::Cpu).unwrap();
    let group = [LossGroup { logit: 0, column: 0, columns: 1, classes: 17 }];
    let state = normal("h", &[batch, 40]).to_dtype(DType::F32).unwrap();
    let n = rows as usize;
    let linear = [normal("x", &[n, 200]), normal("w", &[200, 150]), normal("b", &[150])];
    let gru = [normal("x", &[batch * steps, 120]), normal("w", &[40, 120]), normal("b", &[120])];
    let norm = [normal("x", &[n, 70]), normal("w", &[70]), normal("b", &[70])];
    let table = [normal("x", &[n, 33]), normal("table", &[9, 33])];
    type Op<'a> = &'a (dyn Fn(&[Tensor]) -> Result<Tensor> + Sync);
    let heads = Heads::new(70, 128, &[(8, 2), (1, 17), (1, 5)]);
    let chosen = [heads.classes(n, 3), heads.classes(n, 4)];
    let head_inputs = heads.inputs(n);
    let (lookup, looked_up) = ([normal("table", &[9, 33]), normal("w", &[70 + 33 * 2, 200]), normal("b", &[200])], [0..9, 0..9]);
    let floats = normal("floats", &[n, 70]).to_dtype(DType::F32).unwrap();
    let cases: [(&str, &[Tensor], Op); 9] = [
        ("lookup", &lookup, &|x| ops::lookup_linear(&floats, &x[0], &looked_up, index.clone(), &x[1], Some(&x[2]))),
        ("heads", &head_inputs, &|x| Ok(heads.run(&chosen.each_ref(), x)?.0)),
        ("linear", &linear, &|x| ops::linear(&x[0], &x[1], Some(&x[2]), Activation::Gelu)),
        ("gru", &gru, &|x| Ok(ops::gru(&x[0], &x[1], &x[2], &state, &resets)?.0)),
        ("norm", &norm, &|x| ops::norm(&x[0], NormKind::Layer, 1e-5, &x[1], Some(&x[2]), Activation::Gelu)),
        ("add rows", &table, &|x| ops::add_rows(&x[0], &x[1], index.clone(), 2, Activation::Relu)),
        ("join rows", &table, &|x| ops::join_rows(&x[0], &x[1], index.clone(), 2)),
        ("cross entropy", &table[..1], &|x| ops::cross_entropy(&x[0], &classes, &group, 0.1)),
        ("mamba", &block, &|x| Ok(mamba(&config, &resets, batch, 0.2, x)?.0)),
    ];
    for (name, inputs, op) in cases {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(DType::F32, inputs, op))
        };
        let (one, two) = (on(1), on(2));
        assert_eq!(one.output, two.output, "{name}: output");
        assert_eq!(one.gradients, two.gradients, "{name}: gradients");
    }
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
        let act = [Activation::Gelu, Activation::Silu][width % 2];
        check("rms norm and activation", &[x.clone(), w.clone()], &|x| ops::norm(&x[0], NormKind::Rms, 1e-5, &x[1], None, act));
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
    let inputs: Vec<Tensor> = inputs.into_iter().chain([normal("slopes", &[3])]).collect();
    check("attention", &inputs, &|x| {
        let cast = |t: &Tensor| t.to_dtype(x[0].dtype());
        let state = (cast(&state.0)?, cast(&state.1)?, cast(&state.2)?);
        Ok(ops::attention(shape, [&x[0], &x[1], &x[2]], &x[3], &state, &resets)?.0)
    });
}
