//! What an operator answers, and what it refuses.

use super::*;
use crate::nn::Params;
use crate::random::Random;
use crate::recurrent::Recurrent;
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor};

fn answer(config: &FnoConfig, params: &Params, x: Vec<f32>) -> Vec<f64> {
    output("y", config, params, x)
}

fn output(name: &str, config: &FnoConfig, params: &Params, x: Vec<f32>) -> Vec<f64> {
    let network = Fno::new(config, params).unwrap();
    let shape = (1, 1, config.grid[0], config.grid[1], config.channels[0]);
    let x = Tensor::from_vec(x, shape, &Device::Cpu).unwrap();
    let (outputs, _) = network.unroll(&NamedTensors::from_iter([("x".to_owned(), x)]), &[true], &NamedTensors::new()).unwrap();
    outputs.get(name).unwrap().flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// Parameters of a configuration, for any grid.
fn parameters(config: &FnoConfig) -> Params {
    let drawn = Params::init(Random::new(1), &Device::Cpu);
    Fno::new(config, &drawn).unwrap();
    Params::given(drawn.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect(), &Device::Cpu)
}

#[test]
fn it_has_as_many_parameters_as_the_published_one() {
    let description = Params::description();
    Fno::new(&FnoConfig::default(), &description).unwrap();
    let count: usize = description.specs().iter().map(|spec| spec.shape.iter().product::<usize>()).sum();
    assert_eq!(count, 191_881);
}

#[test]
fn padding_is_rounded_as_neuraloperator_rounds_it() {
    let padded = |grid: [usize; 2]| FnoConfig { grid, padding: 0.25, ..FnoConfig::default() }.padded();
    assert_eq!((padded([12, 10]), padded([14, 1]), padded([16, 9])), ([18, 14], [22, 1], [24, 13]));
}

#[test]
fn answers_are_physical_values() {
    let plain = FnoConfig { grid: [4, 4], modes: [2, 2], hidden: 4, layers: 1, ..FnoConfig::default() };
    let moved = FnoConfig { output: Normaliser { mean: -3.0, deviation: 0.5 }, ..plain.clone() };
    let (params, x) = (parameters(&plain), (0..16).map(|i| i as f32).collect::<Vec<_>>());
    for (y, moved) in answer(&plain, &params, x.clone()).iter().zip(answer(&moved, &params, x)) {
        assert!((0.5 * y - 3.0 - moved).abs() < 1e-5);
    }
}

#[test]
fn an_ensemble_answers_with_the_mean_and_the_variance_of_its_members() {
    let member = FnoConfig { grid: [4, 5], channels: [1, 2], modes: [2, 2], hidden: 4, layers: 1, ..FnoConfig::default() };
    let (noise, scale) = (0.3, 1.5);
    for member in [member.clone(), FnoConfig { variance: true, ..member }] {
        let config = FnoConfig { ensemble: Some(Ensemble { members: 3, noise, scale }), ..member.clone() };
        let (params, x) = (parameters(&config), (0..20).map(|i| (i as f32).sin()).collect::<Vec<_>>());
        let of_members = |name: &str| [0, 1, 2].map(|i| output(name, &member, &params.pp("members").pp(i), x.clone()));
        let answers = of_members("y");
        assert_ne!(answers[0], answers[1]);
        let own = if member.variance { of_members("variance") } else { [0, 1, 2].map(|_| vec![0.0; 40]) };
        let (y, variance) = (answer(&config, &params, x.clone()), output("variance", &config, &params, x.clone()));
        for (at, (y, variance)) in y.iter().zip(variance).enumerate() {
            let (of, own) = ([0, 1, 2].map(|i| answers[i][at]), [0, 1, 2].map(|i| own[i][at]).iter().sum::<f64>() / 3.0);
            let mean = of.iter().sum::<f64>() / 3.0;
            let spread = of.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 2.0;
            assert!((y - mean).abs() < 1e-6 && (variance - scale * scale * (noise * noise + spread + own)).abs() < 1e-5, "{at}");
        }
    }
}

/// A residual operator with the same parameters differs by the field that it reads.
#[test]
fn a_change_is_added_to_what_is_read() {
    let plain = FnoConfig { grid: [4, 5], channels: [2, 2], modes: [2, 2], hidden: 4, layers: 1, ..FnoConfig::default() };
    let (params, x) = (parameters(&plain), (0..40).map(|i| (i as f32).sin()).collect::<Vec<_>>());
    let residual = FnoConfig { residual: true, ..plain.clone() };
    let found = answer(&residual, &params, x.clone());
    for ((change, x), found) in answer(&plain, &params, x.clone()).iter().zip(x).zip(found) {
        assert!((change + f64::from(x) - found).abs() < 1e-6);
    }
}

/// Its answers are those of the operator without it, and a deviation lies between 0 and that of all answers.
#[test]
fn a_variance_of_its_own_leaves_the_answer_as_it_is() {
    let plain = FnoConfig { grid: [4, 5], modes: [2, 2], hidden: 4, layers: 1, ..FnoConfig::default() };
    let config = FnoConfig { variance: true, output: Normaliser { mean: 1.0, deviation: 3.0 }, ..plain.clone() };
    let (params, x) = (parameters(&config), (0..20).map(|i| (i as f32).sin()).collect::<Vec<_>>());
    let without = FnoConfig { variance: false, ..config.clone() };
    assert_eq!(answer(&config, &params, x.clone()), answer(&without, &params, x.clone()));
    let variance = output("variance", &config, &params, x.clone());
    assert!(variance.iter().all(|variance| (0.0..9.0).contains(variance)) && variance[0] != variance[7], "{variance:?}");
    let small = FnoConfig { output: Normaliser { mean: 1.0, deviation: 1.5 }, ..config };
    let of = output("variance", &small, &params, x);
    assert!(variance.iter().zip(of).all(|(variance, of)| (variance - 4.0 * of).abs() < 1e-5));
}

/// Without coordinates of its own a field that is constant has an answer that is as smooth as the coordinates: on a finer grid the same at the same places
/// but for the waves that the activations make.
#[test]
fn parameters_serve_any_grid() {
    let config = FnoConfig { grid: [16, 16], modes: [4, 4], hidden: 8, layers: 2, ..FnoConfig::default() };
    let params = parameters(&config);
    let field = |n: usize| (0..n * n).map(|p| (std::f32::consts::TAU * (p / n) as f32 / n as f32).cos()).collect::<Vec<_>>();
    let (coarse, fine) = (answer(&config, &params, field(16)), answer(&config.on_grid([32, 32]), &params, field(32)));
    let finer = answer(&config.on_grid([64, 64]), &params, field(64));
    let apart = |n: usize, y: &[f64], of: &[f64]| {
        (0..n * n).map(|p| (y[p] - of[(2 * (p / n)) * 2 * n + 2 * (p % n)]).powi(2)).sum::<f64>() / (n * n) as f64
    };
    let (first, second) = (apart(16, &coarse, &fine), apart(32, &fine, &finer));
    assert!(second < first && first < 1e-2, "{first} {second}");
    // Fewer waves than there are weights.
    assert_eq!(answer(&config.on_grid([3, 3]), &params, field(3)).len(), 9);
}

#[test]
fn configurations_without_sense_are_named() {
    let base = FnoConfig::default();
    let ensemble = |members, noise| FnoConfig { ensemble: Some(Ensemble { members, noise, scale: 1.0 }), ..base.clone() };
    let output = |mean, deviation| FnoConfig { output: Normaliser { mean, deviation }, ..base.clone() };
    for (config, field) in [
        (FnoConfig { grid: [0, 4], ..base.clone() }, "grid.0"),
        (FnoConfig { channels: [1, 257], ..base.clone() }, "channels.1"),
        (FnoConfig { modes: [4, 0], ..base.clone() }, "modes.1"),
        (FnoConfig { hidden: 1, ..base.clone() }, "hidden"),
        (FnoConfig { layers: 0, ..base.clone() }, "layers"),
        (FnoConfig { padding: -0.1, ..base.clone() }, "padding"),
        (FnoConfig { padding: f64::NAN, ..base.clone() }, "padding"),
        (FnoConfig { rank: Some(0.0), ..base.clone() }, "rank"),
        (FnoConfig { residual: true, channels: [1, 2], ..base.clone() }, "residual"),
        (FnoConfig { periodic: true, padding: 0.25, ..base.clone() }, "periodic"),
        (output(0.0, 0.0), "output.deviation"),
        (output(f64::NAN, 1.0), "output.mean"),
        (ensemble(1, 0.1), "ensemble.members"),
        (ensemble(2, f64::INFINITY), "ensemble.noise"),
    ] {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    assert!(Normaliser::of(&[1.0; 9]).is_err() && Normaliser::of(&[1.0, f32::NAN]).is_err() && Normaliser::of(&[2.0]).is_err());
    let found = Normaliser::of(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(found, Normaliser { mean: 2.0, deviation: 1.0 });
}
