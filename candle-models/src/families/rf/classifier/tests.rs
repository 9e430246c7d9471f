//! What a classifier reads and says.

use super::*;
use crate::random::Random;
use crate::recurrent::Recurrent;
use crate::tensors::NamedTensors;
use candle_core::{Device, Tensor};

#[test]
fn signals_are_scaled_as_the_network_knows_them() {
    let config = ClassifierConfig { samples: 4, ..ClassifierConfig::new(["a", "b"]) };
    let signal: Vec<Complex32> = [(3e-9, 0.0), (0.0, -4e-9), (0.0, 0.0), (1e-9, 1e-9)].map(|(re, im)| Complex32::new(re, im)).to_vec();
    let mut iq = [0.0; 8];
    config.encode(&signal, None, &mut iq).unwrap();
    assert!((iq.iter().map(|x| x * x).sum::<f32>() / 4.0 - 1.0).abs() < 1e-6 && iq[3] < 0.0, "{iq:?}");
    let given = ClassifierConfig { scale: Scale::Given, ..config.clone() };
    let mut known = [0.0; 12];
    given.encode(&signal, Some(-5.0), &mut known).unwrap();
    assert_eq!(known[..6], [3e-9, 0.0, -0.5, 0.0, -4e-9, -0.5]);
    let refused = |config: &ClassifierConfig, signal: &[Complex32], snr_db: Option<f64>, len: usize, why: &str| {
        let error = config.encode(signal, snr_db, &mut vec![0.0; len]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&config, &signal[..3], None, 8, "expected 4 samples, found 3");
    refused(&config, &signal, None, 7, "iq: expected 8 values, found 7");
    refused(&config, &[Complex32::default(); 4], None, 8, "all of its samples are 0");
    refused(&config, &[Complex32::new(f32::NAN, 0.0); 4], None, 8, "sample 0: expected finite numbers");
    refused(&config, &signal, Some(3.0), 8, "does not read a signal-to-noise ratio");
    refused(&given, &signal, None, 12, "reads the signal-to-noise ratio, which is missing");
    refused(&given, &signal, Some(f64::NAN), 12, "expected from -100 to 100 dB");
}

#[test]
fn the_first_of_the_greatest_scores_is_taken() {
    assert_eq!(greatest(&[0.5, 2.0, -1.0, 2.0]), 1);
    assert_eq!(greatest(&[f64::NEG_INFINITY]), 0);
}

#[test]
fn configurations_without_sense_are_named() {
    let base = || ClassifierConfig::new(["a", "b"]);
    for (config, field) in [
        (ClassifierConfig::new(["a"]), "classes"),
        (ClassifierConfig::new(["a", "b", "a"]), "classes: expected each name once, found 'a' again"),
        (ClassifierConfig { samples: 0, ..base() }, "samples"),
        (ClassifierConfig { channels: 3, ..base() }, "channels"),
        (ClassifierConfig { kernel: 4, ..base() }, "kernel: expected an odd number"),
        (ClassifierConfig { blocks: 0, ..base() }, "blocks"),
        (ClassifierConfig { stride: 3, ..base() }, "stride"),
    ] {
        assert!(config.validate().unwrap_err().to_string().contains(field), "{field}");
    }
}

/// With kernels of one sample, symbols in another order are the same to it.
#[test]
fn the_order_of_symbols_does_not_count_where_kernels_see_one() {
    let config = ClassifierConfig { samples: 6, channels: 8, kernel: 1, blocks: 2, stride: 1, ..ClassifierConfig::new(["a", "b", "c"]) };
    let network = Classifier::new(&config, &Params::init(Random::new(1), &Device::Cpu)).unwrap();
    let values: Vec<f32> = (0..12).map(|i| Random::new(2).normal(i)).collect();
    let turned: Vec<f32> = values[4..].iter().chain(&values[..4]).copied().collect();
    let scores = |values: &[f32]| {
        let iq = Tensor::from_slice(values, (1, 1, 6, 2), &Device::Cpu).unwrap();
        let inputs = NamedTensors::from_iter([("iq".to_owned(), iq)]);
        let (outputs, _) = network.unroll(&inputs, &[true], &NamedTensors::new()).unwrap();
        outputs.get("logits").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    for (a, b) in scores(&values).iter().zip(scores(&turned)) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}
