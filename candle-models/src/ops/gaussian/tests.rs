use super::*;
use crate::ops::check::{check, normal, refuses};
use crate::random::Random;
use candle_core::{Device, Var};

#[test]
fn every_form_of_it_is_the_reference() {
    let free = Gaussian { low: f32::NEG_INFINITY, high: f32::INFINITY };
    for op in [free, Gaussian { low: -0.5, high: 1.0 }, Gaussian { low: 0.0, ..free }, Gaussian { high: 0.3, ..free }] {
        for n in [1, 2, 17] {
            check(op, &[2 * n, n]);
        }
    }
    refuses(&free, &[3, 1]);
    refuses(&free, &[2]);
}

/// Means, deviations and bounds of what is drawn.
#[test]
fn what_is_drawn_has_the_distribution_that_was_asked_for() {
    let (op, n) = (Gaussian { low: -1.0, high: 4.0 }, 20_000);
    // tanh(0) = 0: the middle of the logarithm.
    let (parameters, deviation) = ([1.0, 0.0], MIDDLE.exp());
    let mut uniform = vec![0.0; n];
    Random::new(4).stream("uniform").fill_uniform(0, &mut uniform);
    let (mut y, mut sums) = ([0.0; 3], [0.0f64; 2]);
    for u in &uniform {
        op.row(&parameters, &[*u], &mut y);
        let apart = f64::from((y[0] - 1.0) / deviation);
        sums = [sums[0] + apart, sums[1] + apart * apart];
        assert_eq!((y[1], y[2]), (1.0, MIDDLE));
    }
    let [mean, square] = sums.map(|sum| sum / n as f64);
    assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.04, "mean {mean}, variance {square}");
    op.row(&parameters, &[-1.0], &mut y);
    assert_eq!(y[0], 1.0, "the mean where it does not draw");
    for (mean, want) in [(-7.0, -1.0), (9.0, 4.0)] {
        op.row(&[mean, 0.0], &[0.5], &mut y);
        assert_eq!((y[0], y[1]), (want, mean), "a number within the bounds, a mean as it is");
    }
}

#[test]
fn deviations_stay_within_their_bounds() {
    let op = Gaussian { low: f32::NEG_INFINITY, high: f32::INFINITY };
    for (raw, log) in [(-50.0, LOG_DEVIATION[0]), (50.0, LOG_DEVIATION[1])] {
        let mut y = [0.0; 3];
        op.row(&[0.0, raw], &[-1.0], &mut y);
        assert!((y[2] - log).abs() < 1e-6, "{raw}: {}", y[2]);
    }
}

/// The density in the textbook's form, and its gradients by finite differences in f64.
#[test]
fn nats_are_those_of_the_density() {
    let [distribution, numbers] = [("distribution", 6), ("numbers", 3)].map(|(name, width)| {
        let values = normal(name, &[4, width]).to_dtype(DType::F64).unwrap();
        Var::from_tensor(&values).unwrap()
    });
    let nats = gaussian_nats(&distribution, &numbers).unwrap();
    let (d, x) = (distribution.to_vec2::<f64>().unwrap(), numbers.to_vec2::<f64>().unwrap());
    for ((found, d), x) in nats.to_vec2::<f64>().unwrap().iter().zip(&d).zip(&x) {
        let density = |i: usize| {
            let deviation = d[3 + i].exp();
            (-0.5 * ((x[i] - d[i]) / deviation).powi(2)).exp() / (deviation * (2.0 * std::f64::consts::PI).sqrt())
        };
        let want: f64 = (0..3).map(|i| -density(i).ln()).sum();
        assert!((found[0] - want).abs() < 1e-9, "{} instead of {want}", found[0]);
    }
    let store = nats.sum_all().unwrap().backward().unwrap();
    let exact = store.get(&distribution).unwrap().to_vec2::<f64>().unwrap();
    for (row, column) in [(0, 0), (1, 2), (2, 3), (3, 5)] {
        let at = |delta: f64| {
            let mut moved = d.clone();
            moved[row][column] += delta;
            let moved = Tensor::new(moved, &Device::Cpu).unwrap();
            gaussian_nats(&moved, &numbers).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap()
        };
        let want = (at(1e-6) - at(-1e-6)) / 2e-6;
        assert!((exact[row][column] - want).abs() < 1e-6 * (1.0 + want.abs()), "{row}, {column}: {} and {want}", exact[row][column]);
    }
}
