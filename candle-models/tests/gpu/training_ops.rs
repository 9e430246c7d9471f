//! Products, rows looked up, noise, losses and choices on CUDA, and whole passes of a policy.

use crate::{assert_close, cases, check, cuda, flat, normal, on, run};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::device::{Purpose, compute_dtype};
use candle_models::exec::tensors::{Indices, Regularisation, TensorExecutor};
use candle_models::exec::{Choice, Executor, SAMPLE};
use candle_models::nn::Params;
use candle_models::ops::skip::Skip;
use candle_models::ops::spectral_conv::{SpectralConv, WaveWeight};
use candle_models::ops::{self, Activation, LossGroup};
use candle_models::policy::{BackboneConfig, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use std::collections::BTreeMap;

#[test]
fn linear_layers() {
    let Some(device) = cuda() else { return };
    let layer = |rows: usize, inputs, outputs, act| {
        let matrices = [normal("x", &[rows, inputs]), normal("w", &[inputs, outputs])];
        let name = format!("linear {rows} x {inputs} x {outputs}, {act:?}");
        check(&device, &name, &matrices, &[normal("b", &[outputs])], &|x| Ok(vec![ops::linear(&x[0], &x[1], Some(&x[2]), act)?]));
        check(&device, &format!("{name}, no bias"), &matrices, &[], &|x| Ok(vec![ops::linear(&x[0], &x[1], None, act)?]));
    };
    for act in [Activation::None, Activation::Gelu, Activation::Silu] {
        layer(70, 33, 40, act);
    }
    // Small ones for the ReLU too, of whose sums none lies so near to zero that rounding takes it to the other side.
    for act in [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu] {
        layer(1, 1, 1, act);
        layer(3, 7, 5, act);
        layer(9, 8, 1, act);
    }
    let wide = [normal("x", &[6, 20]), normal("w", &[7, 5])];
    check(&device, "linear over some columns", &wide, &[], &|x| {
        Ok(vec![ops::linear(&x[0].narrow(1, 4, 7)?, &x[1], None, Activation::Gelu)?])
    });
    // Sums over more rows than one block adds up.
    let tall = [normal("x", &[1500, 2]), normal("w", &[2, 3])];
    check(&device, "linear of many rows", &tall, &[normal("b", &[3])], &|x| {
        Ok(vec![(ops::linear(&x[0], &x[1], Some(&x[2]), Activation::Silu)? * 0.02)?])
    });
}

/// Layers at the places of a row, and what is added to their results there.
#[test]
fn layers_at_places_and_sums_behind_them() {
    let Some(device) = cuda() else { return };
    for (rows, places, [inputs, outputs]) in cases([(2, 7, [3, 5]), (3, 1, [5, 4]), (9, 40, [4, 33])], 2) {
        let x = [normal("x", &[rows, places * inputs]), normal("r", &[rows, places * outputs]), normal("w", &[inputs, outputs])];
        for act in [Activation::None, Activation::Gelu, Activation::Silu] {
            for params in [&["b"][..], &["b", "g"]] {
                let params: Vec<Tensor> = params.iter().map(|name| normal(name, &[outputs])).collect();
                check(&device, &format!("{rows} rows of {places} places, {act:?}, {} parameters", params.len()), &x, &params, &|x| {
                    let (none, resets) = (NamedTensors::new(), vec![false; rows]);
                    let mut e = TensorExecutor::new(&none, &resets, Vec::new(), x[0].device());
                    let layer = ops::Linear { weight: x[2].clone(), bias: Some(x[3].clone()), format: ops::Format::F32 };
                    let y = e.linear_at_places(places, &x[0], &layer, act).unwrap();
                    Ok(vec![e.apply(Skip { gain: x.get(4).cloned(), act }, &[&y, &x[1]]).unwrap()])
                });
            }
        }
    }
}

#[test]
fn layers_over_rows_looked_up() {
    let Some(device) = cuda() else { return };
    for (rows, floats, width, outputs) in [(1, 1, 1, 1), (5, 3, 2, 7), (150, 5, 3, 33)] {
        let columns = [0..5, 5..9, 0..5];
        let limit = |i: usize| columns[i % 3].start as u32 + Random::new(4).below(i as u64, columns[i % 3].len() as u32);
        let index: Vec<u32> = (0..rows * 3).map(limit).collect();
        let matrices = [normal("x", &[rows, floats]), normal("w", &[floats + 3 * width, outputs])];
        let params = [normal("b", &[outputs]), normal("table", &[9, width])];
        check(&device, &format!("lookup of {rows} rows"), &matrices, &params, &|x| {
            Ok(vec![ops::lookup_linear(&x[0], &x[3], &columns, index.clone(), &x[1], Some(&x[2]))?])
        });
    }
}

#[test]
fn convolutions_over_waves() {
    let Some(device) = cuda() else { return };
    // Lines and planes, fewer waves than are stored, more waves, places, rows and channels than a thread or a block takes.
    let sizes = [
        (1, [1, 9], [1, 4], [2, 3]),
        (3, [5, 7], [3, 4], [1, 130]),
        (2, [6, 6], [8, 4], [33, 2]),
        (9, [18, 24], [12, 12], [9, 5]),
        // As many lines as make a thread take several of the input, and of the result.
        (64, [33, 3], [2, 2], [128, 1]),
        (40, [4, 17], [4, 3], [3, 3]),
        (64, [33, 3], [2, 2], [1, 128]),
    ];
    for (rows, grid, [down, across], [inputs, outputs]) in cases(sizes, 2) {
        let x = [normal("x", &[rows, grid[0] * grid[1] * inputs])];
        let params = [normal("weight", &[down, across, inputs, 2 * outputs]), normal("bias", &[outputs])];
        check(&device, &format!("{rows} x {grid:?}, {down} x {across} modes, {inputs} to {outputs} channels"), &x, &params, &|x| {
            let op = SpectralConv::new(grid, &WaveWeight::Dense(x[1].clone()), Some(&x[2])).unwrap();
            let (none, resets) = (NamedTensors::new(), vec![false; rows]);
            Ok(vec![TensorExecutor::new(&none, &resets, Vec::new(), x[0].device()).apply(op, &[&x[0]]).unwrap()])
        });
    }
}

#[test]
fn random_numbers_have_the_bits_of_the_host() {
    let Some(device) = cuda() else { return };
    for (i, n) in [1usize, 2, 3, 4, 5, 1023, 1024, 1025, 5000].into_iter().enumerate() {
        let random = Random::new(0x0123_4567_89ab_cdef << i).stream("device").at(i as u64);
        let mut expected = vec![0.0; n];
        random.fill_uniform(0, &mut expected);
        assert_eq!(ops::uniform(random, n, &device).unwrap().to_vec1::<f32>().unwrap(), expected, "{n} numbers");
        for (probability, dtype) in [(0.3, DType::F32), (0.5, DType::BF16)] {
            let ones = |device: &Device| Tensor::ones(n, dtype, device).unwrap();
            let [host, there] = [&Device::Cpu, &*device].map(|d| flat(&ops::dropout(&ones(d), probability, random).unwrap()));
            assert_eq!(host, there, "dropout of {n} {dtype:?}");
            // Counted from elsewhere: by the kernel from the start of a block, by the host's numbers from inside one.
            for first in [4 * n as u64, 4 * n as u64 + 3] {
                let part = random.from_index(first);
                let [host, there] = [&Device::Cpu, &*device].map(|d| flat(&ops::dropout(&ones(d), probability, part).unwrap()));
                assert_eq!(host, there, "dropout of {n} {dtype:?} from index {first}");
            }
        }
    }
    check(&device, "dropout", &[normal("x", &[7, 11])], &[], &|x| Ok(vec![ops::dropout(&x[0], 0.4, Random::new(5))?]));
}

#[test]
fn cross_entropies_of_mixed_choices() {
    let Some(device) = cuda() else { return };
    let group = |logit, column, columns, classes| LossGroup { logit, column, columns, classes };
    let groups = [group(1, 0, 3, 2), group(5, 4, 2, 3), group(12, 3, 1, 17)];
    let classes = [2, 2, 2, 17, 3, 3];
    for (rows, smoothing, scale) in [(1, 0.0, 1.0), (3, 0.1, 3.0), (70, 0.1, 1.0), (5, 0.0, 100.0)] {
        let wanted = (0..rows * 6).map(|i| Random::new(8).below(i as u64, classes[i % 6])).collect::<Vec<u32>>();
        let wanted = Tensor::from_vec(wanted, (rows, 6), &Device::Cpu).unwrap();
        let logits = (normal("logits", &[rows, 31]) * scale).unwrap();
        let op: crate::Op = &|x| Ok(vec![ops::cross_entropy(&x[0], &wanted, &groups, smoothing)?]);
        let [expected, found, again] =
            [&Device::Cpu, &*device, &*device].map(|d| run(d, [DType::F32; 2], [&[], std::slice::from_ref(&logits)], op));
        let name = format!("cross entropy of {rows} rows");
        assert_close(&name, &found.outputs[0], &expected.outputs[0], 1e-5);
        assert_close(&format!("{name}, gradient"), &found.gradients[0], &expected.gradients[0], 1e-5);
        assert!(found.gradients == again.gradients && found.outputs == again.outputs, "{name}: two runs differ");
    }
    let outside = Tensor::full(17u32, (1, 6), &Device::Cpu).unwrap();
    assert!(ops::cross_entropy(&on(&normal("logits", &[1, 31]), &device, DType::F32), &outside, &groups, 0.0).is_err());
}

/// The classes that an executor chooses, where `open` says so for a place.
fn choose(device: &Device, logits: &Tensor, uniform: &Tensor, choice: Choice, open: impl Fn(usize) -> bool) -> Vec<u32> {
    let inputs = NamedTensors::new();
    let mut executor = TensorExecutor::new(&inputs, &[], Vec::new(), device);
    let (rows, columns) = uniform.dims2().unwrap();
    let wanted = (0..rows * columns).map(|i| if open(i) { SAMPLE } else { 0 }).collect();
    let to = |t: &Tensor| t.to_device(device).unwrap();
    let chosen = executor.choose(&to(logits), &Indices::new(wanted, columns), &to(uniform), choice).unwrap();
    chosen.to_tensor().unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn classes_are_picked_as_on_the_host() {
    let Some(device) = cuda() else { return };
    for (columns, classes) in [(3, 2), (1, 17), (2, 5), (1, 40)] {
        let choice = Choice { column: 1, columns, classes };
        let (rows, width) = (64, if classes == 2 { 1 } else { classes });
        let logits = (normal("logits", &[rows, columns * width]) * 2.0).unwrap();
        // Column 0 belongs to another component; a fifth asks for the most likely class.
        let number = |i: usize| if i.is_multiple_of(5) { -1.0 } else { Random::new(6).uniform(i as u64) };
        let uniform: Vec<f32> = (0..rows * (columns + 1)).map(number).collect();
        let at = |shift: f32| {
            let values: Vec<f32> = uniform.iter().map(|u| if *u < 0.0 { *u } else { (u + shift).clamp(0.0, 0.999_999) }).collect();
            Tensor::from_vec(values, (rows, columns + 1), &Device::Cpu).unwrap()
        };
        let open = |i: usize| i % 7 != 3 || classes == 2;
        let found = choose(&device, &logits, &at(0.0), choice, open);
        // Where a number lies at the border of two classes, the rounding of an exponential decides.
        let [below, above] = [-1e-5, 1e-5].map(|shift| choose(&Device::Cpu, &logits, &at(shift), choice, open));
        for (i, ((found, below), above)) in found.iter().zip(below).zip(above).enumerate() {
            assert!(*found == below || *found == above, "{columns} x {classes}, place {i}: {found}, on the host {below} or {above}");
        }
        assert_eq!(found, choose(&device, &logits, &at(0.0), choice, open), "two runs differ");
    }
}

fn configs() -> Vec<PolicyConfig> {
    let small = PolicyConfig { hidden: 16, embedding: 4, ..PolicyConfig::default() };
    let kinds = BackboneConfig::KINDS.into_iter().map(|kind| {
        let mut config = PolicyConfig { backbone: BackboneConfig::named(kind).unwrap(), heads: Heads::Autoregressive, ..small.clone() };
        match &mut config.backbone {
            BackboneConfig::Mlp { layers } => (*layers, config.heads) = (vec![16, 16], Heads::Independent),
            BackboneConfig::Gru { layers } => (*layers, config.prior) = (1, true),
            BackboneConfig::Mamba { layers, block } => (*layers, block.state) = (1, 4),
            BackboneConfig::Attention { layers, heads, window } => (*layers, *heads, *window) = (1, 2, 4),
            BackboneConfig::Hybrid { layers, heads, window, block } => (*layers, *heads, *window, block.state) = (3, 2, 4, 4),
        }
        config
    });
    kinds.collect()
}

/// Random inputs of a pass, on the host.
fn inputs(policy: &Policy, batch: usize, steps: usize) -> NamedTensors {
    let one = |spec: &TensorSpec| (spec.name.clone(), spec.draw(&[batch, steps], &Random::new(9)).unwrap());
    policy.signature().inputs.iter().map(one).collect()
}

/// Logits, values, gradients by name and states behind the pass, with training noise.
fn pass(config: &PolicyConfig, vars: &BTreeMap<String, Var>, device: &Device, dtype: DType) -> Named {
    let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
    let policy = Policy::new(config, &Params::given(tensors, device).computing_in(dtype)).unwrap();
    let (batch, steps) = (4, 8);
    let resets: Vec<bool> = (0..batch * steps).map(|i| i == 3).collect();
    let noise = Regularisation { dropout: 0.2, drop_ids: 0.2, random: Random::new(11), first_row: 0 };
    let state = policy.initial_state(batch).unwrap();
    let (outputs, after) = policy.train_unroll(&inputs(&policy, batch, steps), &resets, &state, &noise).unwrap();
    let part =
        |name: &str| (outputs.get(name).unwrap() * on(&normal(name, outputs.get(name).unwrap().dims()), device, DType::F32)).unwrap();
    let loss = (part("logits").sum_all().unwrap() + part("value").sum_all().unwrap()).unwrap();
    let store = loss.backward().unwrap();
    let trained = vars.iter().filter(|(name, _)| !name.ends_with(".prior"));
    let gradients = trained.map(|(name, var)| (format!("gradient of {name}"), flat(store.get(var).expect("a gradient"))));
    let named = |tensors: &NamedTensors| tensors.iter().map(|(name, t)| (name.to_owned(), flat(t))).collect::<Vec<_>>();
    named(&outputs).into_iter().chain(named(&after)).chain(gradients).collect()
}

#[test]
fn a_pass_of_a_policy_with_its_gradients() {
    let Some(device) = cuda() else { return };
    for config in cases(configs(), 2) {
        let params = Params::init(Random::new(3), &Device::Cpu);
        Policy::new(&config, &params).unwrap();
        let host = params.vars();
        // Tables of counts begin with zeros.
        for (name, var) in host.iter().filter(|(name, _)| name.ends_with(".prior")) {
            var.set(&normal(name, var.dims())).unwrap();
        }
        let there = host.iter().map(|(name, v)| (name.clone(), Var::from_tensor(&v.to_device(&device).unwrap()).unwrap())).collect();
        let kind = config.backbone.kind();
        let exact = pass(&config, &host, &Device::Cpu, DType::F32);
        let found = pass(&config, &there, &device, DType::F32);
        assert!(found == pass(&config, &there, &device, DType::F32), "{kind}: two runs differ");
        let (_, worst, name) = distances(&found, &exact);
        assert!(worst < 1e-5, "{kind}: {name} is {worst} away");
        // Rounding takes a value behind a ReLU to the other side now and then, so two ways to compute in bf16 differ by as much as
        // each of them from f32: the device is to be as near to that as the CPU, which computes in f32 and rounds every result.
        let narrow = pass(&config, &there, &device, DType::BF16);
        assert!(narrow == pass(&config, &there, &device, DType::BF16), "{kind}, bf16: two runs differ");
        let (mean, worst, name) = distances(&narrow, &exact);
        let (limit, worst_limit, _) = distances(&pass(&config, &host, &Device::Cpu, DType::BF16), &exact);
        eprintln!("{kind}, bf16: mean {mean} (the CPU {limit}), worst {worst} of {name} (the CPU {worst_limit})");
        assert!(
            mean < 1.6 * limit && worst < 2.0 * worst_limit && limit < 0.08,
            "{kind}, bf16: {mean} for {limit}, {worst} for {worst_limit}"
        );
    }
}

type Named = Vec<(String, Vec<f32>)>;

/// Mean and largest distance of all tensors, and which has that.
fn distances<'a>(found: &'a Named, expected: &Named) -> (f32, f32, &'a str) {
    let each = found.iter().zip(expected).map(|((name, f), (_, e))| (distance(f, e), name.as_str()));
    let all: Vec<_> = each.collect();
    let (worst, name) = all.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    (all.iter().map(|d| d.0).sum::<f32>() / all.len() as f32, worst, name)
}

/// The norm of the difference over the norm of what is expected, which counts as 1e-3 a value at least.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    let floor = 1e-3 * (expected.len() as f32).sqrt();
    norm(&mut found.iter().zip(expected).map(|(f, e)| f - e)) / norm(&mut expected.iter().copied()).max(floor)
}

#[test]
fn the_dtype_falls_out_for_the_purpose() {
    let Some(device) = cuda() else { return };
    assert_eq!(compute_dtype(None, &device, Purpose::Inference).unwrap(), DType::BF16);
    assert_eq!(compute_dtype(None, &device, Purpose::Training).unwrap(), DType::F32);
    for dtype in [DType::BF16, DType::F16] {
        assert_eq!(compute_dtype(Some(dtype), &device, Purpose::Training).unwrap(), dtype);
    }
    let error = compute_dtype(Some(DType::F64), &device, Purpose::Training).unwrap_err().to_string();
    assert_eq!(error, "config: dtype: expected f32 or bf16 or f16 in training, found f64");
}
