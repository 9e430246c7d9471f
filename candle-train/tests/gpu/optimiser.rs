//! AdamW over flat buffers.

use crate::cuda;
use candle_core::{DType, Device, Tensor, Var};
use candle_models::random::Random;
use candle_train::gradients::Gradients;
use candle_train::optim::{Optimiser, OptimiserConfig, Step};
use std::collections::BTreeMap;

type Vars = BTreeMap<String, Var>;

/// Parameters of different sizes, with and without decay; `unused` never gets a gradient, `late` from step 5 on.
const SHAPES: [(&str, &[usize]); 6] =
    [("a.a_log", &[3, 5]), ("b.weight", &[70, 61]), ("c.bias", &[61]), ("d.d", &[1]), ("late", &[4, 4]), ("unused", &[7])];

fn normal(name: &str, step: u64, shape: &[usize]) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    Random::new(2).stream(name).at(step).fill_normal(0, &mut values);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn vars(device: &Device) -> Vars {
    let var = |(name, shape): (&str, &[usize])| {
        let start = normal(name, u64::MAX, shape).to_device(device).unwrap();
        (name.to_owned(), Var::from_tensor(&start).unwrap())
    };
    SHAPES.into_iter().map(var).collect()
}

/// One step of two micro batches whose gradients are random numbers of that step.
fn step(optimiser: &mut Optimiser, vars: &Vars, number: u64, factor: f64) -> Step {
    let device = vars["a.a_log"].device();
    let mut gradients = Gradients::zeros(vars).unwrap();
    for half in 0..2 {
        let present = vars.iter().filter(|(name, _)| *name != "unused" && (*name != "late" || number >= 5));
        let part = |(name, var): (&String, &Var)| {
            let gradient = (normal(name, 2 * number + half, var.dims()) * factor).unwrap().to_device(device).unwrap();
            (var.as_tensor() * gradient).unwrap().sum_all().unwrap()
        };
        let loss = present.map(part).reduce(|a, b| (a + b).unwrap()).unwrap();
        gradients.add(vars, &loss.backward().unwrap()).unwrap();
    }
    let figures = Tensor::new(&[1.5f32, number as f32], device).unwrap();
    optimiser.step(&gradients, &figures, 0.01 / (1.0 + number as f64 / 20.0)).unwrap()
}

fn bits(vars: &Vars) -> Vec<Vec<u32>> {
    let values = vars.values().map(|v| v.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    values.map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
}

fn config() -> OptimiserConfig {
    // Clips some of the steps: the norm of a step's gradients is about 90.
    OptimiserConfig { clip: 92.0, ..OptimiserConfig::default() }
}

#[test]
fn fifty_steps_equal_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let [host, there] = [&Device::Cpu, &*device].map(vars);
    let mut optimisers = [&host, &there].map(|vars| Optimiser::new(config(), vars).unwrap());
    let mut clipped = 0;
    for number in 0..50 {
        let expected = step(&mut optimisers[0], &host, number, 1.0);
        let found = step(&mut optimisers[1], &there, number, 1.0);
        assert!((found.norm - expected.norm).abs() < 1e-6 * expected.norm, "{found:?} instead of {expected:?}");
        assert!(found.updated && found.figures == [1.5, number as f32]);
        clipped += usize::from(expected.norm > 92.0);
    }
    assert!((5..45).contains(&clipped), "{clipped} of 50 steps clipped");
    // The same operations in the same order: not a bit differs.
    assert_eq!(bits(&there), bits(&host));
    let [expected, found] = optimisers.each_ref().map(|o| o.moments().unwrap().into_iter().chain(o.average().unwrap()));
    for ((name, expected), (_, found)) in expected.zip(found) {
        let [expected, found] = [expected, found].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn restored_moments_continue_bit_for_bit() {
    let Some(device) = cuda() else { return };
    let run = |split: Option<u64>| {
        let vars = vars(&device);
        let mut optimiser = Optimiser::new(config(), &vars).unwrap();
        for number in 0..8 {
            if split == Some(number) {
                let (updates, moments, average) = (optimiser.updates(), optimiser.moments().unwrap(), optimiser.average().unwrap());
                optimiser = Optimiser::new(config(), &vars).unwrap();
                optimiser.restore(updates, &moments, &average).unwrap();
            }
            step(&mut optimiser, &vars, number, 1.0);
        }
        bits(&vars)
    };
    assert_eq!(run(None), run(Some(6)));
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_names_its_parameter() {
    let Some(device) = cuda() else { return };
    let vars = vars(&device);
    let mut optimiser = Optimiser::new(config(), &vars).unwrap();
    step(&mut optimiser, &vars, 0, 1.0);
    let (before, average) = (bits(&vars), optimiser.average().unwrap());
    for factor in [f64::NAN, f64::INFINITY] {
        assert!(!step(&mut optimiser, &vars, 1, factor).updated);
    }
    assert_eq!((bits(&vars), optimiser.updates()), (before.clone(), 1));
    let mut gradients = Gradients::zeros(&vars).unwrap();
    let broken = Tensor::full(f32::NAN, 61, &device).unwrap();
    let loss = (vars["b.weight"].sum_all().unwrap() + (vars["c.bias"].as_tensor() * broken).unwrap().sum_all().unwrap()).unwrap();
    gradients.add(&vars, &loss.backward().unwrap()).unwrap();
    assert_eq!(gradients.not_finite().unwrap(), Some("c.bias"));
    let absent: Vec<&str> = vars.keys().zip(gradients.present()).filter(|(_, p)| !p).map(|(n, _)| n.as_str()).collect();
    assert_eq!(absent, ["a.a_log", "d.d", "late", "unused"]);
    assert!(!gradients.norm().unwrap().is_finite());
    // A loss that is not finite stops the update too.
    gradients.clear();
    gradients.add(&vars, &vars["b.weight"].sum_all().unwrap().backward().unwrap()).unwrap();
    let loss = Tensor::new(&[f32::NAN], &device).unwrap();
    assert!(!optimiser.step(&gradients, &loss, 0.1).unwrap().updated);
    assert_eq!(bits(&vars), before);
    for ((name, a), (_, b)) in average.into_iter().zip(optimiser.average().unwrap()) {
        let [a, b] = [a, b].map(|t| t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(a, b, "{name}");
    }
}
