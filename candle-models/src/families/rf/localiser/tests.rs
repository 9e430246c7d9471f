//! What the mixture of a localiser is, and what the network sees.

use super::*;
use crate::random::Random;

fn mixture() -> Mixture {
    Mixture::of(&[0.5, -0.3], &[0.2, -0.1, 1.5, 0.8], &[0.3, 0.4, 1.0, -0.5, -0.9, 0.2]).unwrap()
}

/// A density is one: it adds up to 1 over the plane, and its mean and covariance are those of its parts.
#[test]
fn a_mixture_is_a_density() {
    let (mixture, step) = (mixture(), 0.02);
    let axis = || (-500..500).map(|i| f64::from(i) * step);
    let (mut total, mut mean) = (0.0, [0.0; 2]);
    for x in axis() {
        for y in axis() {
            let share = mixture.log_density([x, y]).exp() * step * step;
            total += share;
            (mean[0], mean[1]) = (mean[0] + share * x, mean[1] + share * y);
        }
    }
    assert!((total - 1.0).abs() < 1e-3, "{total}");
    assert!((mean[0] - mixture.mean()[0]).abs() < 3e-3 && (mean[1] - mixture.mean()[1]).abs() < 3e-3, "{mean:?} {:?}", mixture.mean());
}

#[test]
fn draws_have_the_mean_and_covariance_of_their_part() {
    let part = Gaussian { weight: 1.0, mean: [1.0, -2.0], factor: [2.0, 0.7, 0.5] };
    let (one, n) = (Mixture(vec![part]), 40_000);
    let random = Random::new(1);
    let draws: Vec<[f64; 2]> = (0..n).map(|i| one.draw(0.5, [0, 1].map(|j| f64::from(random.normal(2 * i + j))))).collect();
    let mean = |of: &dyn Fn(&[f64; 2]) -> f64| draws.iter().map(of).sum::<f64>() / n as f64;
    let [x, y] = [mean(&|d| d[0]), mean(&|d| d[1])];
    assert!((x - 1.0).abs() < 0.02 && (y + 2.0).abs() < 0.04, "{x} {y}");
    let found = [mean(&|d| (d[0] - x).powi(2)), mean(&|d| (d[0] - x) * (d[1] - y)), mean(&|d| (d[1] - y).powi(2))];
    for (found, expected) in found.iter().zip(part.covariance()) {
        assert!((found - expected).abs() < 0.03 * expected.abs().max(1.0), "{found} {expected}");
    }
}

/// Points that are drawn from a mixture lie in its region of so much in so much of all cases.
#[test]
fn regions_hold_what_they_say() {
    let (mixture, random) = (mixture(), Random::new(2));
    let draw = |i: u64| (f64::from(random.stream("which").uniform(i)), [0, 1].map(|j| f64::from(random.stream("where").normal(2 * i + j))));
    let n = 1500;
    let within =
        |share: f64| (0..n).filter(|i| mixture.level(mixture.draw(draw(*i).0, draw(*i).1), (n..n + 300).map(draw)) <= share).count();
    for share in [0.5, 0.9] {
        let found = within(share) as f64 / n as f64;
        assert!((found - share).abs() < 0.06, "{share} {found}");
    }
}

#[test]
fn what_is_no_mixture_is_refused() {
    for (logits, means, factors) in
        [(vec![], vec![], vec![]), (vec![0.0], vec![0.0], vec![0.0; 3]), (vec![f32::NAN], vec![0.0; 2], vec![0.0; 3])]
    {
        assert!(Mixture::of(&logits, &means, &factors).is_err());
    }
}

#[test]
fn receivers_are_encoded_around_their_middle() {
    let config = LocaliserConfig { receivers: 3, ..LocaliserConfig::default() };
    let heard =
        |latitude, power_dbm| Heard { receiver: Place::new(latitude, 8.0, 250.0), power_dbm, snr_db: 20.0, frequency_offset_hz: -25.0 };
    let (mut numbers, mut present) = ([9.0; 18], [9.0; 3]);
    let origin = middle(&[Place::new(45.0, 8.0, 0.0), Place::new(46.0, 8.0, 0.0)]);
    config.encode(&[heard(45.5, -80.0), heard(46.0, -120.0)], &origin, &mut numbers, &mut present).unwrap();
    assert_eq!(present, [1.0, 1.0, 0.0]);
    assert_eq!(numbers[..6], [1.0, 1.0, -0.5, 0.0, 0.0, 0.5]);
    assert!((numbers[6] + 1.0).abs() < 1e-6 && (numbers[10] - 0.555_97).abs() < 1e-4, "{numbers:?}");
    assert_eq!(numbers[12..], [0.0; 6]);
    let refused = |heard: &[Heard], why: &str| {
        let error = config.encode(heard, &origin, &mut [0.0; 18], &mut [0.0; 3]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&[], "receivers: expected from 1 to 3, found 0");
    refused(&[heard(45.0, 0.0); 4], "found 4");
    refused(&[heard(45.0, 0.0), heard(45.0, f64::NAN)], "receiver 1: power_dbm: expected a finite number, found NaN");
}

#[test]
fn configurations_without_sense_are_named() {
    let base = LocaliserConfig::default;
    for (config, field) in [
        (LocaliserConfig { receivers: 1, ..base() }, "receivers"),
        (LocaliserConfig { hidden: 2, ..base() }, "hidden"),
        (LocaliserConfig { heads: 5, ..base() }, "heads"),
        (LocaliserConfig { heads: 0, ..base() }, "heads"),
        (LocaliserConfig { layers: 17, ..base() }, "layers"),
        (LocaliserConfig { components: 0, ..base() }, "components"),
    ] {
        assert!(config.validate().unwrap_err().to_string().contains(field), "{field}");
    }
}
