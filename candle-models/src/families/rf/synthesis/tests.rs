//! What generated signals are like.

use super::*;
use crate::random::Random;
use crate::rf::{power, wide};
use candle_core::Device;
use rustfft::num_complex::{Complex32, Complex64};
use std::f64::consts::TAU;

const RECEPTION: Reception = Reception { frequency_offset_hz: -37.5, power_dbm: -85.0, snr_db: 12.0 };

fn generate(generator: &Compatible, reception: &Reception, random: Random) -> (Vec<Complex32>, Labels) {
    let mut out = vec![Complex32::default(); generator.samples];
    let labels = generator.generate(random, reception, &mut out).unwrap();
    (out, labels)
}

/// The generator by its definition, step by step in f64 from the same numbers.
#[test]
fn the_compatible_generator_follows_its_definition() {
    for n in [1, 9, 3000, 50_000] {
        let generator = Compatible { samples: n, ..Compatible::default() };
        let random = Random::new(5).at(3).at(1);
        let (found, labels) = generate(&generator, &RECEPTION, random);
        let theta: Vec<f64> = (0..n).map(|i| 0.3 * f64::from(random.stream("phase").normal(i as u64))).collect();
        // numpy.convolve(theta, ones(10) / 10, mode="same") where there are ten samples.
        let smooth = |i: usize| (0..10).filter_map(|k| theta.get((i + 4).checked_sub(k)?)).sum::<f64>() / 10.0;
        let clean: Vec<Complex64> =
            (0..n).map(|i| Complex64::cis(TAU * RECEPTION.frequency_offset_hz * i as f64 / 200e3 + smooth(i))).collect();
        let multipath = random.stream("multipath");
        let echoes = 2 + u64::from(multipath.below(0, 2));
        assert_eq!(labels.echoes as u64, echoes);
        let mut signal = clean.clone();
        for echo in 0..echoes {
            let draw = |index| f64::from(multipath.at(echo).uniform(index));
            // At 200 kHz no delay is longer than a sample.
            let gain = 10f64.powf((-25.0 + 15.0 * draw(1)) / 20.0) * Complex64::cis(TAU * draw(2));
            for i in 1..n {
                signal[i] += gain * clean[i - 1];
            }
        }
        let held = ((0.05 + 0.15 * f64::from(random.stream("fading").uniform(0))) * 200e3) as usize;
        assert_eq!(labels.amplitudes.len(), (n / held).max(1));
        for (i, x) in signal.iter_mut().enumerate() {
            *x *= f64::from(labels.amplitudes[(i / held).min(labels.amplitudes.len() - 1)]);
        }
        let watts = 1e-3 * 10f64.powf(-8.5);
        let scale = (watts / (signal.iter().map(Complex64::norm_sqr).sum::<f64>() / n as f64)).sqrt();
        let deviation = (watts / 10f64.powf(1.2) / 2.0).sqrt();
        let noise = |i: usize| deviation * f64::from(random.stream("noise").normal(i as u64));
        for (i, (found, x)) in found.iter().zip(&signal).enumerate() {
            let expected = scale * x + Complex64::new(noise(2 * i), noise(2 * i + 1));
            assert!((wide(*found) - expected).norm() < 2e-6 * watts.sqrt(), "sample {i} of {n}: {found} {expected}");
        }
    }
}

#[test]
fn a_signal_has_its_power_and_its_noise() {
    let quiet = Compatible { samples: 100_000, multipath: false, fading: false, ..Compatible::default() };
    for (power_dbm, snr_db) in [(-60.0, 40.0), (-120.0, 0.0), (10.0, -10.0)] {
        let reception = Reception { power_dbm, snr_db, ..RECEPTION };
        let all = power(&generate(&quiet, &reception, Random::new(1)).0);
        let clean = power(&generate(&quiet, &Reception { snr_db: 200.0, ..reception }, Random::new(1)).0);
        assert!((10.0 * clean.log10() + 30.0 - power_dbm).abs() < 1e-4);
        // Three standard errors of the noise's power, and of its product with the signal.
        let expected = 1.0 + 10f64.powf(-snr_db / 10.0);
        assert!((all / clean / expected - 1.0).abs() < 0.03, "{} {expected}", all / clean);
    }
}

#[test]
fn amplitudes_are_rayleigh_distributed() {
    let generator = Compatible { samples: 40_000, ..Compatible::default() };
    let amplitudes: Vec<f64> =
        (0..400).flat_map(|event| generate(&generator, &RECEPTION, Random::new(2).at(event)).1.amplitudes).map(f64::from).collect();
    let n = amplitudes.len() as f64;
    let square = amplitudes.iter().map(|x| x * x).sum::<f64>() / n;
    // E r^2 = 2, and its variance is 4.
    assert!((square - 2.0).abs() < 3.0 * 2.0 / n.sqrt(), "{square}");
    let below = amplitudes.iter().filter(|x| **x < 1.0).count() as f64 / n;
    let expected = 1.0 - (-0.5f64).exp();
    assert!((below - expected).abs() < 3.0 * (expected * (1.0 - expected) / n).sqrt(), "{below} {expected}");
}

#[test]
fn all_signals_of_a_batch_are_those_generated_alone() {
    let generator = Compatible { samples: 5000, ..Compatible::default() };
    let reception = |event: usize, receiver: usize| Reception { power_dbm: -80.0 - event as f64, snr_db: receiver as f64, ..RECEPTION };
    let receptions: Vec<Vec<Reception>> = (0..3).map(|event| (0..4).map(|receiver| reception(event, receiver)).collect()).collect();
    let mut out = vec![Complex32::default(); 3 * 4 * 5000];
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let labels = pool.install(|| generator.generate_all(Random::new(9), 17, &receptions, &mut out)).unwrap();
        for (i, found) in out.chunks_exact(5000).enumerate() {
            let (event, receiver) = (i / 4, i % 4);
            let (alone, label) =
                generate(&generator, &receptions[event][receiver], Random::new(9).at(17 + event as u64).at(receiver as u64));
            assert!(found == alone && labels[event][receiver] == label, "{event} {receiver}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let generator = Compatible { samples: 100, ..Compatible::default() };
    let refused = |generator: Compatible, reception: Reception, n: usize, why: &str| {
        let error = generator.generate(Random::new(1), &reception, &mut vec![Complex32::default(); n]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(Compatible { sample_rate: 0.0, ..generator }, RECEPTION, 100, "sample_rate: expected from 100 to 1e9");
    refused(Compatible { sample_rate: f64::NAN, ..generator }, RECEPTION, 100, "sample_rate");
    refused(Compatible { samples: 0, ..generator }, RECEPTION, 0, "samples: expected from 1 to ");
    refused(generator, Reception { power_dbm: f64::NAN, ..RECEPTION }, 100, "power_dbm: expected from -200 to 100, found NaN");
    refused(generator, Reception { snr_db: 1e9, ..RECEPTION }, 100, "snr_db");
    refused(generator, Reception { frequency_offset_hz: 150e3, ..RECEPTION }, 100, "frequency_offset_hz: expected from -100000 to 100000");
    refused(generator, RECEPTION, 99, "iq: expected [100], found [99]");
}

/// A carrier alone.
fn plain() -> Physical {
    Physical { samples: 40_000, content: Content::Carrier, ..Physical::ideal() }
}

fn physical(config: &Physical, receptions: &[Reception], delays: &[f64]) -> (Vec<Vec<Complex32>>, Vec<Truth>) {
    let mut out = vec![Complex32::default(); receptions.len() * config.samples];
    let truth = config.generate(Random::new(4), receptions, delays, &mut out).unwrap();
    (out.chunks(config.samples).map(<[_]>::to_vec).collect(), truth)
}

const LOUD: Reception = Reception { frequency_offset_hz: 1000.0, power_dbm: -30.0, snr_db: 200.0 };

/// The phase of a signal's product with a tone of that frequency, in turns, sample by sample and without jumps.
fn phases(signal: &[Complex32], hz: f64) -> Vec<f64> {
    let (mut turns, mut last) = (0.0, 0.0);
    let phase = |(n, x): (usize, &Complex32)| {
        let phase = (wide(*x) * Complex64::cis(-TAU * hz * n as f64 / 200e3)).arg() / TAU;
        turns += (phase - last + 0.5f64).rem_euclid(1.0) - 0.5;
        last = phase;
        turns
    };
    signal.iter().enumerate().map(phase).collect()
}

#[test]
fn nothing_asked_for_is_a_tone() {
    let (signals, _) = physical(&plain(), &[LOUD], &[0.0]);
    let watts = 1e-3 * 10f64.powf(-3.0);
    assert!((power(&signals[0]) / watts - 1.0).abs() < 1e-5);
    let phases = phases(&signals[0], 1000.0);
    assert!(phases.iter().all(|phase| (phase - phases[0]).abs() < 1e-5));
}

#[test]
fn drift_and_clock_turn_the_phase_as_they_should() {
    let seconds = 0.2f64;
    let drifting = Physical { drift_hz_per_s: Range(40.0, 40.0), ..plain() };
    let (signals, truth) = physical(&drifting, &[LOUD], &[0.0]);
    let turned = phases(&signals[0], 1000.0);
    let found = turned[39_999] - turned[0];
    assert!((found - 0.5 * 40.0 * seconds * seconds).abs() < 1e-3 && truth[0].drift_hz_per_s == 40.0, "{found}");
    // A fast clock takes its samples later than it thinks: more of the tone has gone by.
    let fast = Physical { clock_ppm: Range(100.0, 100.0), ..plain() };
    let turned = phases(&physical(&fast, &[LOUD], &[0.0]).0[0], 1000.0);
    assert!((turned[39_999] - turned[0] - 1000.0 * seconds * 1e-4).abs() < 1e-3, "{}", turned[39_999] - turned[0]);
}

/// The steps of a walk have the variance 2 pi width / rate.
#[test]
fn a_line_has_its_width() {
    let noisy = Physical { line_hz: Range(5.0, 5.0), samples: 100_000, ..plain() };
    let turned = phases(&physical(&noisy, &[LOUD], &[0.0]).0[0], 1000.0);
    let steps = turned.windows(2).map(|pair| (TAU * (pair[1] - pair[0])).powi(2));
    let (found, expected) = (steps.sum::<f64>() / 99_999.0, 2.0 * TAU * 5.0 / 200e3);
    // The emitter's and the receiver's; three standard errors.
    assert!((found / expected - 1.0).abs() < 3.0 * (2f64 / 1e5).sqrt(), "{found} {expected}");
}

#[test]
fn delays_are_in_the_signal() {
    let delays = [0.0, 123.456e-6, 0.7e-3];
    let config = Physical { content: Content::Carrier, ..plain() };
    let (signals, truth) = physical(&config, &[LOUD; 3], &delays);
    let first = phases(&signals[0], 1000.0)[20_000];
    for (signal, (truth, delay)) in signals.iter().zip(truth.iter().zip(delays)) {
        let turned = phases(signal, 1000.0)[20_000] - first;
        let apart = (turned + 1000.0 * delay + 0.5).rem_euclid(1.0) - 0.5;
        assert!(apart.abs() < 1e-4 && truth.delay == delay, "{delay}: {apart}");
    }
}

#[test]
fn a_mixer_has_its_image_and_a_converter_its_steps() {
    let config = Physical { imbalance_db: Range(1.0, 1.0), imbalance_degrees: Range(2.0, 2.0), ..plain() };
    let (signals, truth) = physical(&config, &[LOUD], &[0.0]);
    let line = |hz: f64| {
        let sum: Complex64 = signals[0].iter().enumerate().map(|(n, x)| wide(*x) * Complex64::cis(-TAU * hz * n as f64 / 200e3)).sum();
        sum.norm_sqr()
    };
    let rejection = 10.0 * (line(1000.0) / line(-1000.0)).log10();
    assert!((rejection - 24.424).abs() < 0.01 && (truth[0].image_rejection_db - 24.424).abs() < 1e-3, "{rejection}");
    let coarse = Physical { bits: Some(3), ..plain() };
    let (signals, truth) = physical(&coarse, &[LOUD], &[0.0]);
    let mut levels: Vec<u32> = signals[0].iter().map(|x| x.re.to_bits()).collect();
    levels.sort_unstable();
    levels.dedup();
    assert!(levels.len() <= 8 && truth[0].clipped == 0, "{}", levels.len());
}

#[test]
fn physical_signals_are_the_same_again_and_have_their_power() {
    let config = Physical { samples: 20_000, ..Physical::default() };
    let receptions = [RECEPTION, Reception { power_dbm: -100.0, snr_db: 3.0, ..RECEPTION }];
    let (signals, truth) = physical(&config, &receptions, &[0.0, 1e-4]);
    assert_eq!((&signals, &truth), (&physical(&config, &receptions, &[0.0, 1e-4]).0, &physical(&config, &receptions, &[0.0, 1e-4]).1));
    for (signal, reception) in signals.iter().zip(&receptions) {
        let expected = 1e-3 * 10f64.powf(reception.power_dbm / 10.0) * (1.0 + 10f64.powf(-reception.snr_db / 10.0));
        // Imbalance, constant and steps have their share.
        assert!((power(signal) / expected - 1.0).abs() < 0.1, "{} {expected}", power(signal));
    }
    // What is received alone is what is received beside others.
    assert_eq!(physical(&config, &receptions[..1], &[0.0]).0[0], signals[0]);
}

#[test]
fn physical_signals_of_many_events_are_those_of_each() {
    let config = Physical { samples: 3000, ..Physical::default() };
    let receptions = [vec![RECEPTION; 2], vec![LOUD; 2]];
    let delays = [vec![0.0, 1e-3], vec![1e-4, 2e-4]];
    let (signals, truths) = config.generate_on(Random::new(6), 9, &receptions, &delays, &Device::Cpu).unwrap();
    let signals = signals.flatten_from(1).unwrap().to_vec2::<f32>().unwrap();
    for (event, (found, truth)) in signals.iter().zip(&truths).enumerate() {
        let mut alone = vec![Complex32::default(); 6000];
        let expected = config.generate(Random::new(6).at(9 + event as u64), &receptions[event], &delays[event], &mut alone).unwrap();
        assert_eq!((truth, found), (&expected, &alone.iter().flat_map(|x| [x.re, x.im]).collect()));
    }
    let (none, truths) = config.generate_on(Random::new(6), 9, &[vec![], vec![]], &[vec![], vec![]], &Device::Cpu).unwrap();
    assert_eq!((none.dims(), truths), (&[2, 0, 3000, 2][..], vec![vec![], vec![]]));
    let refused = |receptions: &[Vec<Reception>], delays: &[Vec<f64>]| {
        config.generate_on(Random::new(6), 9, receptions, delays, &Device::Cpu).unwrap_err().to_string()
    };
    assert!(refused(&receptions, &delays[..1]).contains("delays: expected [2], found [1]"));
    assert!(refused(&[vec![LOUD; 2], vec![LOUD]], &delays).contains("event 1: expected 2 receivers"));
}

#[test]
fn absurd_scenarios_are_named() {
    let refused = |config: Physical, field: &str| {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    };
    refused(Physical { sample_rate: 0.0, ..plain() }, "sample_rate");
    refused(Physical { samples: 0, ..plain() }, "samples");
    refused(Physical { line_hz: Range(1.0, f64::NAN), ..plain() }, "line_hz");
    refused(Physical { line_hz: Range(2.0, 1.0), ..plain() }, "line_hz");
    refused(Physical { echo_us: Range(0.0, 1e9), ..plain() }, "echo_us");
    refused(Physical { fading: Fading::Rayleigh { doppler_hz: Range(-1.0, 1.0) }, ..plain() }, "fading.doppler_hz");
    refused(Physical { longest_us: -1.0, ..plain() }, "longest_us");
    refused(Physical { bits: Some(1), ..plain() }, "bits");
    refused(
        Physical { amplifier: Some(impairments::Amplifier::Rapp { smoothness: 0.0, back_off_db: 3.0 }), ..plain() },
        "amplifier.smoothness",
    );
    let mut out = vec![Complex32::default(); 40_000];
    let error = plain().generate(Random::new(1), &[LOUD], &[1.0], &mut out).unwrap_err().to_string();
    assert!(error.contains("delays: expected from 0 to 0.001, found 1"), "{error}");
    // A scenario is TOML's and JSON's.
    let text = serde_json::to_string(&Physical::default()).unwrap();
    assert_eq!(serde_json::from_str::<Physical>(&text).unwrap(), Physical::default());
    // What TOML leaves out because it is none stays none.
    let none = serde_json::from_str::<Physical>("{}").unwrap();
    assert_eq!(none, Physical { amplifier: None, bits: None, ..Physical::default() });
    assert!(serde_json::from_str::<Physical>(r#"{"speed": 1}"#).unwrap_err().to_string().contains("unknown field `speed`"));
}
