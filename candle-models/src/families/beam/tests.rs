//! The fused episode against plain tensor operations, and these against finite differences in f64.

use super::*;
use crate::nn::{MambaConfig, Params};
use crate::random::Random;
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

fn small(edit: impl Fn(&mut BeamConfig)) -> BeamConfig {
    let mut config = BeamConfig { measurements: 5, hidden: 12, base: 8, ..BeamConfig::default() };
    config.channel.transmit = Array::Ula { elements: 6 };
    config.channel.receive = Array::Planar { rows: 2, columns: 2 };
    config.codebook = CodebookConfig::Random { count: 3, seed: 4 };
    config.feedback = Feedback::Reals { values: 4 };
    edit(&mut config);
    config
}

fn variants() -> Vec<BeamConfig> {
    vec![
        small(|_| {}),
        small(|c| c.channel.mobility = Some(Mobility { doppler: 0.05, drift: 1.0 })),
        small(|c| (c.receive_weights, c.transmit_weights) = (Weighting::Phases, Weighting::Phases)),
        small(|c| c.memory = MemoryConfig::Mamba { layers: 2, block: MambaConfig { state: 3, ..MambaConfig::default() } }),
        small(|c| c.sweep = Sweep::Free),
        small(|c| (c.sweep, c.view, c.decision) = (Sweep::Free, View::Scalars, DecisionConfig::State)),
        small(|c| (c.view, c.decision) = (View::Scalars, DecisionConfig::State)),
        small(|c| (c.measurements, c.feedback) = (2, Feedback::Quantised { values: 3, bits: 3 })),
    ]
}

fn episodes(config: &BeamConfig, batch: usize) -> Episodes {
    let random = Random::new(9);
    let channels = Channels::generate(&config.channel, random.stream("channels"), 7, batch, config.measurements).unwrap();
    Episodes {
        channels: Arc::new(channels),
        measurements: config.measurements,
        start: (0..batch as u32).map(|i| i % 3).collect(),
        snr_db: (0..batch).map(|i| i as f32 - 4.0).collect(),
        noise: random.stream("noise"),
        first: 7,
        sensing: Sensing::Measurements,
    }
}

/// A smooth function of everything that an episode leads to.
fn loss(model: &Beam, episodes: &Episodes) -> Tensor {
    let steps = episodes.measurements;
    let tapes = Tapes::default();
    let outputs = model.measure(episodes, &tapes).unwrap();
    let decided = model.decide(&outputs, episodes, &tapes).unwrap();
    let found = alignment(&episodes.channels, steps - 1, &decided.receive, &decided.transmit).unwrap();
    // All three shares, and everything that was seen.
    let weights = Tensor::new(&[[1.0f64, 0.3, 0.2]], &Device::Cpu).unwrap().to_dtype(found.dtype()).unwrap();
    let end = ((found + 1e-2).unwrap().log().unwrap().broadcast_mul(&weights)).unwrap().mean_all().unwrap();
    let places = Tensor::arange(0f32, outputs.elem_count() as f32, &Device::Cpu).unwrap().to_dtype(outputs.dtype()).unwrap();
    let mixed = (outputs.flatten_all().unwrap() * places.sin().unwrap()).unwrap().mean_all().unwrap();
    (end + mixed).unwrap()
}

#[test]
fn the_fused_episode_is_the_plain_one() {
    for (i, config) in variants().iter().enumerate() {
        let episodes = episodes(config, 9);
        let gradients = |dtype: DType| {
            let params = Params::init_dtype(Random::new(3), dtype, &Device::Cpu);
            let loss = loss(&Beam::new(config, &params).unwrap(), &episodes);
            let grads = loss.backward().unwrap();
            let of = |(name, var): (String, candle_core::Var)| {
                let grad = grads.get(&var).unwrap().to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                (name, grad.to_vec1::<f64>().unwrap())
            };
            (loss.to_dtype(DType::F64).unwrap().to_scalar::<f64>().unwrap(), params.vars().into_iter().map(of).collect::<Vec<_>>())
        };
        let ((want_loss, want), (loss, found)) = (gradients(DType::F64), gradients(DType::F32));
        assert!((loss - want_loss).abs() < 1e-5, "variant {i}: {loss} {want_loss}");
        for ((name, found), (_, want)) in found.iter().zip(&want) {
            let size = want.iter().fold(1e-4f64, |m, x| m.max(x.abs()));
            let worst = found.iter().zip(want).map(|(f, w)| (f - w).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-4 * size, "variant {i}, {name}: {worst} of {size}");
        }
    }
}

#[test]
fn finite_differences_confirm_the_gradient_through_the_whole_episode() {
    let directions = Random::new(11);
    // A rounded feedback has no difference to take.
    for (i, config) in variants().iter().enumerate().take(7) {
        let episodes = episodes(config, 4);
        let params = Params::init_dtype(Random::new(3), DType::F64, &Device::Cpu);
        let model = Beam::new(config, &params).unwrap();
        let grads = loss(&model, &episodes).backward().unwrap();
        for (name, var) in params.vars() {
            // One direction that moves every value takes the place of one difference for each.
            let start = var.as_tensor().copy().unwrap();
            let toward: Vec<f64> = (0..start.elem_count() as u64).map(|at| f64::from(directions.stream(&name).normal(at))).collect();
            let toward = Tensor::from_vec(toward, start.shape(), &Device::Cpu).unwrap();
            let moved = |by: f64| {
                var.set(&(&start + (&toward * by).unwrap()).unwrap()).unwrap();
                loss(&model, &episodes).to_scalar::<f64>().unwrap()
            };
            let difference = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            var.set(&start).unwrap();
            let found = (grads.get(&var).unwrap() * &toward).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
            assert!((difference - found).abs() < 1e-7 + 1e-4 * difference.abs(), "variant {i}, {name}: {found} {difference}");
        }
    }
}

/// What measures learns through an estimate of what it measured: at first, when heads are zero, through nothing else.
#[test]
fn an_estimate_hands_gradients_to_what_measures() {
    let config = small(|c| {
        (c.scheme, c.feedback) = (Scheme::C2, Feedback::Reals { values: 16 });
        c.channel.receive = Array::Ula { elements: 4 };
        c.decision = DecisionConfig::Measurements { width: 8, layers: 1, paths: 2, again: 0, directions: 2, places: 0, unexplained: 0.0 };
    });
    let mut episodes = episodes(&config, 6);
    episodes.snr_db.iter_mut().for_each(|snr| *snr += 15.0);
    let gain = |model: &Beam| {
        let tapes = Tapes::default();
        let seen = model.measure(&episodes, &tapes).unwrap();
        let decided = model.decide(&seen, &episodes, &tapes).unwrap();
        let found = alignment(&episodes.channels, episodes.measurements - 1, &decided.receive, &decided.transmit).unwrap();
        found.narrow(1, 0, 1).unwrap().mean_all().unwrap()
    };
    let of = |dtype: DType| {
        let params = Params::init_dtype(Random::new(3), dtype, &Device::Cpu);
        let model = Beam::new(&config, &params).unwrap();
        (gain(&model).backward().unwrap(), params, model)
    };
    let ((fused, params, _), (plain, wide, model)) = (of(DType::F32), of(DType::F64));
    let directions = Random::new(11);
    for ((name, var), (_, wide_var)) in
        params.vars().into_iter().zip(wide.vars()).filter(|((name, _), _)| name.starts_with("user") || name == "first")
    {
        let start = wide_var.as_tensor().copy().unwrap();
        let toward: Vec<f64> = (0..start.elem_count() as u64).map(|at| f64::from(directions.stream(&name).normal(at))).collect();
        let toward = Tensor::from_vec(toward, start.shape(), &Device::Cpu).unwrap();
        let along = |grad: &Tensor| (grad.to_dtype(DType::F64).unwrap() * &toward).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
        let [found, expected] = [fused.get(&var).unwrap(), plain.get(&wide_var).unwrap()].map(along);
        let moved = |by: f64| {
            wide_var.set(&(&start + (&toward * by).unwrap()).unwrap()).unwrap();
            gain(&model).to_scalar::<f64>().unwrap()
        };
        let difference = (moved(1e-3) - moved(-1e-3)) / 2e-3;
        wide_var.set(&start).unwrap();
        for found in [found, expected] {
            assert!((found - difference).abs() < 1e-4 + 0.02 * difference.abs(), "{name}: {found} {difference}");
        }
        assert!(difference.abs() > 1e-4, "{name}: {difference}");
    }
}
