//! Golden values of the published extractor, and what the repaired form promises.

use super::*;
use crate::random::Random;
use candle_core::Device;

const RATE: f64 = 200e3;
const N: usize = 40_000;

/// A tone of -80 dBm at 25 Hz.
fn tone() -> Vec<Complex32> {
    (0..N).map(|n| (1e-11f64.sqrt() * Complex64::cis(TAU * 25.0 * n as f64 / RATE)).to_f32()).collect()
}

/// The same with something like noise, 15 dB below it in all bins alike.
fn with_chirp() -> Vec<Complex32> {
    let amplitude = (1e-11 / 10f64.powf(1.5)).sqrt();
    let chirp = |n: usize| amplitude * Complex64::cis(PI * ((7919 * n as u64 * n as u64) % 80_000) as f64 / 40_000.0);
    (0..N).map(|n| (1e-11f64.sqrt() * Complex64::cis(TAU * 25.0 * n as f64 / RATE) + chirp(n)).to_f32()).collect()
}

trait Narrow {
    fn to_f32(self) -> Complex32;
}

impl Narrow for Complex64 {
    fn to_f32(self) -> Complex32 {
        Complex32::new(self.re as f32, self.im as f32)
    }
}

fn extract(chunk: &[Complex32], form: Form) -> [f64; COUNT] {
    Extractor::new(RATE, chunk.len(), form).unwrap().extract(chunk).unwrap()
}

/// A place and what is expected there, which is known to six places behind the point.
fn check(found: &[f64; COUNT], expected: &[(usize, f64)]) {
    for (place, expected) in expected {
        let (found, name) = (found[place - 1], FEATURES[place - 1].name);
        assert!((found - expected).abs() <= 6e-7 + 1e-6 * expected.abs(), "{name}: found {found}, expected {expected}");
    }
}

#[test]
fn the_compatible_form_is_the_published_one() {
    let found = extract(&tone(), Form::Compatible);
    let expected = [
        (1, -79.586_073),
        (2, 10.0),
        (3, -90.0),
        (4, 25.0),
        (5, 5.0),
        (6, -85.228_787),
        (8, 25.0),
        (11, 1.0),
        (12, -0.413_927),
        (13, 0.000_25),
    ];
    check(&found, &expected);
    assert!((found[8] - 1.0).abs() < 1e-6 && found[9] < 1e-6 && (found[13] - 8547.184).abs() < 0.01, "{found:?}");
    let found = extract(&with_chirp(), Form::Compatible);
    let expected = [(1, -79.467_007), (2, 8.937_484), (3, -88.806_69), (4, 25.0), (5, 5.0), (6, -85.231_821), (8, 25.0)];
    check(&found, &expected);
    check(
        &found,
        &[(7, 24.156_115), (9, 0.855_284), (10, 0.106_604), (11, 1.0), (12, 0.888_644), (13, 0.047_75)].map(|(place, x)| (place, x)),
    );
    assert!((found[13] - 8276.567).abs() < 0.02, "{}", found[13]);
}

#[test]
fn the_repaired_form_measures_at_any_power() {
    let chunk = with_chirp();
    let found = extract(&chunk, Form::Repaired);
    check(&found, &[(1, -79.869_205), (6, -86.994_251), (12, 1.290_842)]);
    assert!((found[13] - 34_166.513).abs() < 0.5, "{}", found[13]);
    // Sixty dB less of everything moves the powers, and nothing else.
    let faint: Vec<Complex32> = chunk.iter().map(|x| x * 1e-3).collect();
    let other = extract(&faint, Form::Repaired);
    for (place, feature) in FEATURES.iter().enumerate() {
        let moved = if ["rssi_dbm", "noise_floor_dbm", "psd_dbm_per_hz"].contains(&feature.name) { -60.0 } else { 0.0 };
        let difference = other[place] - found[place] - moved;
        assert!(difference.abs() < 1e-4 * found[place].abs().max(1.0), "{}: {} {}", feature.name, found[place], other[place]);
    }
}

fn noisy(frequency: f64, snr_db: f64, n: usize, random: Random) -> Vec<Complex32> {
    let deviation = (10f64.powf(-snr_db / 10.0) / 2.0).sqrt();
    let mut noise = vec![0.0; 2 * n];
    random.fill_normal(0, &mut noise);
    let part = |i: usize| f64::from(noise[i]) * deviation;
    (0..n)
        .map(|i| (Complex64::cis(TAU * frequency * i as f64 / RATE + 1.0) + Complex64::new(part(2 * i), part(2 * i + 1))).to_f32())
        .collect()
}

/// Over many chunks the signal-to-noise ratio is what was put in, and the noise floor the noise.
#[test]
fn signal_and_noise_are_told_apart() {
    for snr in [0.0, 10.0, 20.0] {
        let chunks = (0..20).map(|i| extract(&noisy(1234.5, snr, 8000, Random::new(3).at(i)), Form::Repaired));
        let summary = summarise(&chunks.collect::<Vec<_>>());
        assert!((summary[4] - snr).abs() < 0.3, "{snr}: {}", summary[4]);
        assert!((summary[8] - (30.0 - snr)).abs() < 0.3, "{snr}: {}", summary[8]);
    }
    let silent = extract(&noisy(0.0, -90.0, 8000, Random::new(4)), Form::Repaired);
    assert!((-30.1..0.5).contains(&silent[1]) && silent[17] < 0.02, "{silent:?}");
}

/// The variance of a frequency is at least 6 fs^2 / ((2 pi)^2 snr N (N^2 - 1)) (Rife and Boorstyn 1974).
#[test]
fn frequencies_are_as_good_as_can_be() {
    let n = 2000;
    for snr_db in [5.0, 10.0, 20.0] {
        let errors = (0..300).map(|i| {
            let frequency = -90e3 + 180e3 * f64::from(Random::new(5).uniform(i));
            extract(&noisy(frequency, snr_db, n, Random::new(6).at(i)), Form::Repaired)[3] - frequency
        });
        let found = (errors.map(|error| error * error).sum::<f64>() / 300.0).sqrt();
        let (snr, n) = (10f64.powf(snr_db / 10.0), n as f64);
        let bound = (6.0 * RATE * RATE / (TAU * TAU * snr * n * (n * n - 1.0))).sqrt();
        // Three standard errors of a deviation from 300 draws are 12%.
        assert!((0.85..1.2).contains(&(found / bound)), "{snr_db} dB: {found} Hz, at best {bound}");
    }
}

#[test]
fn frequencies_at_the_edges_are_found() {
    for frequency in [-100e3, -99_999.0, -0.5, 0.0, 0.5, 99_999.0] {
        let found = extract(&noisy(frequency, 40.0, 4000, Random::new(7)), Form::Repaired)[3];
        let distance = (found - frequency + 100e3).rem_euclid(200e3) - 100e3;
        assert!(distance.abs() < 0.05, "{frequency} {found}");
    }
}

#[test]
fn odd_and_short_chunks_have_features() {
    for n in [2, 3, 5, 257, 1001] {
        for form in [Form::Compatible, Form::Repaired] {
            let found = extract(&noisy(1000.0, 10.0, n, Random::new(8)), form);
            assert!(found.iter().all(|x| x.is_finite()), "{n} {found:?}");
        }
    }
}

#[test]
fn what_has_no_features_is_refused() {
    let refused = |chunk: &[Complex32], form, why: &str| {
        let error = Extractor::new(RATE, 4, form).unwrap().extract(chunk).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let one = Complex32::new(1.0, 0.0);
    refused(&[one; 3], Form::Repaired, "expected 4 samples, found 3");
    refused(&[one, one, Complex32::new(0.0, f32::NAN), one], Form::Compatible, "sample 2 is ");
    refused(&[Complex32::new(f32::MAX, 0.0); 4], Form::Repaired, "beyond f32");
    refused(&[Complex32::default(); 4], Form::Repaired, "all of its samples are 0");
    // As published, silence has the power of what is added.
    let silent = Extractor::new(RATE, 4, Form::Compatible).unwrap().extract(&[Complex32::default(); 4]).unwrap();
    check(&silent, &[(1, -90.0), (3, -90.0), (14, 0.0)]);
    for (rate, n, field) in [(0.0, 4, "rate"), (f64::INFINITY, 4, "rate"), (1.0, 1, "chunk"), (1.0, 0, "chunk"), (1.0, 1 << 25, "chunk")] {
        assert!(Extractor::new(rate, n, Form::Repaired).err().unwrap().to_string().contains(field));
    }
}

/// Chunks of a tensor have the features of each alone, and the first one without any is named.
#[test]
fn many_chunks_at_once_are_each_alone() {
    let chunks: Vec<_> = (0..5).map(|i| noisy(1e3 * i as f64, 10.0, 300, Random::new(9).at(i))).collect();
    let tensor = |chunks: &[Vec<Complex32>]| {
        let values: Vec<f32> = chunks.iter().flatten().flat_map(|x| [x.re, x.im]).collect();
        Tensor::from_vec(values, (chunks.len(), chunks[0].len(), 2), &Device::Cpu).unwrap()
    };
    for form in [Form::Compatible, Form::Repaired] {
        let extractor = Extractor::new(RATE, 300, form).unwrap();
        let alone: Vec<_> = chunks.iter().map(|chunk| extract(chunk, form)).collect();
        assert!(extractor.extract_all(&tensor(&chunks)).unwrap() == alone);
        let error = extractor.extract_all(&tensor(&[vec![Complex32::default(); 299]])).unwrap_err().to_string();
        assert!(error.contains("chunks: expected [count, 300, 2] of f32"), "{error}");
        let mut wrong = chunks.clone();
        (wrong[3][7], wrong[4]) = (Complex32::new(0.0, f32::NAN), vec![Complex32::new(f32::MAX, 0.0); 300]);
        let error = extractor.extract_all(&tensor(&wrong)).unwrap_err().to_string();
        assert!(error.contains("chunk 3: expected finite numbers, sample 7 is "), "{error}");
    }
}

#[test]
fn summaries_are_population_statistics() {
    let chunks: Vec<[f64; COUNT]> =
        (0..4).map(|i| std::array::from_fn(|place| if place == 16 { f64::from(i % 2) } else { f64::from(i) })).collect();
    let found = summarise(&chunks);
    assert_eq!(found[..4], [1.5, 1.25f64.sqrt(), 0.0, 3.0]);
    assert_eq!(found[64..68], [0.5, 0.0, 0.0, 1.0]);
    assert_eq!(summarise(&[]), [0.0; SUMMARY]);
}
