//! Generated signals and their features.

use super::cuda;
use candle_core::{DType, Device, Tensor};
use candle_models::random::Random;
use candle_models::rf::features::{COUNT, Extractor, FEATURES, Form};
use candle_models::rf::synthesis::impairments::Amplifier;
use candle_models::rf::synthesis::{Compatible, Content, Digital, Fading, Modulation, Physical, Range, Reception, Sound, Truth};
use candle_models::rf::{Complex32, Complex64, narrow, power, wide};

/// Signals of a GPU are those of the CPU but for rounding: parts of 1024 samples that are whole and one that is not, echoes over many samples, no echoes and no
/// fading.
#[test]
fn signals_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for (samples, sample_rate, plain) in [(2125, 200e3, false), (3000, 20e6, false), (5, 200e3, true)] {
        let generator = Compatible { samples, sample_rate, multipath: !plain, fading: !plain };
        let reception =
            |i: usize| Reception { frequency_offset_hz: 37.5 - 20.0 * i as f64, power_dbm: -80.0 - i as f64, snr_db: 12.0 + i as f64 };
        let receptions: Vec<Vec<Reception>> = (0..2).map(|event| (0..3).map(|i| reception(event + i)).collect()).collect();
        let (cpu, labels) = generator.generate_on(Random::new(3), 5, &receptions, &Device::Cpu).unwrap();
        let (gpu, found) = generator.generate_on(Random::new(3), 5, &receptions, &device).unwrap();
        assert_eq!((gpu.dims(), &found), (cpu.dims(), &labels));
        let rows = |x: &Tensor| x.flatten(0, 1).unwrap().flatten(1, 2).unwrap().to_vec2::<f32>().unwrap();
        for (i, (gpu, cpu)) in rows(&gpu).iter().zip(rows(&cpu)).enumerate() {
            let watts = 1e-3 * 10f32.powf(labels[i / 3][i % 3].reception.power_dbm as f32 / 10.0);
            for (n, (a, b)) in gpu.iter().zip(&cpu).enumerate() {
                assert!((a - b).abs() < 1e-5 * watts.sqrt(), "signal {i}, number {n} of {samples} samples: {a} {b}");
            }
            let db = |row: &[f32]| 10.0 * power(&row.chunks(2).map(|x| Complex32::new(x[0], x[1])).collect::<Vec<_>>()).log10();
            assert!((db(gpu) - db(&cpu)).abs() < 1e-4);
        }
    }
    let refused = Compatible { samples: 0, ..Compatible::default() }.generate_on(Random::new(1), 0, &[vec![]], &device);
    assert!(refused.unwrap_err().to_string().contains("samples"));
}

/// Two events of three receivers, on both devices: the samples as numbers, and what is true of them.
fn received(config: &Physical, device: &Device) -> [(Vec<Vec<f32>>, Vec<Truth>); 2] {
    let reception =
        |i: usize| Reception { frequency_offset_hz: 37.5 - 20.0 * i as f64, power_dbm: -80.0 - i as f64, snr_db: 12.0 + i as f64 };
    let receptions: Vec<Vec<Reception>> = (0..2).map(|event| (0..3).map(|i| reception(event + i)).collect()).collect();
    let delays = [vec![0.0, 12.3e-6, 100e-6], vec![7e-6, 5e-6, 99.9e-6]];
    [&Device::Cpu, device].map(|device| {
        let (signals, truths) = config.generate_on(Random::new(3), 5, &receptions, &delays, device).unwrap();
        assert_eq!(signals.dims(), [2, 3, config.samples, 2]);
        (signals.flatten(0, 1).unwrap().flatten(1, 2).unwrap().to_vec2().unwrap(), truths.concat())
    })
}

/// The power of a signal and its noise.
fn level(truth: &Truth) -> f32 {
    let Reception { power_dbm, snr_db, .. } = truth.reception;
    (1e-3 * 10f64.powf(power_dbm / 10.0) * (1.0 + 10f64.powf(-snr_db / 10.0))) as f32
}

/// What emitters, paths and receivers of a GPU make is what those of the CPU make but for rounding: everything at once, every kind of amplifier, fading and
/// content, nothing at all, and signals that are no whole part and shorter than a thread's samples.
#[test]
fn physical_signals_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let all = Physical { samples: 2125, longest_us: 100.0, bits: None, ..Physical::default() };
    let wide_line =
        Physical { line_hz: Range(50.0, 90.0), drift_hz_per_s: Range(900.0, 1000.0), clock_ppm: Range(400.0, 500.0), ..all.clone() };
    let digital = Content::Digital(Digital { modulation: Modulation::Qam16, samples_per_symbol: 5 });
    let tube = Some(Amplifier::Saleh { back_off_db: 3.0 });
    let waves = Fading::Rayleigh { doppler_hz: Range(100.0, 200.0) };
    let tones = Content::Am { sound: Sound::Tones { hz: vec![500.0, 1200.0] }, depth: 0.7 };
    let ideal = Physical { longest_us: 100.0, ..Physical::ideal() };
    let configs = [
        all.clone(),
        wide_line,
        Physical { content: digital, amplifier: tube, fading: waves, echoes: 1, samples: 1024, ..all },
        Physical { content: tones, samples: 1100, echoes: 3, echo_us: Range(10.0, 80.0), ..ideal.clone() },
        Physical { samples: 3, ..ideal },
    ];
    for (i, config) in super::cases(configs, 3).enumerate() {
        let [(cpu, expected), (gpu, found)] = received(&config, &device);
        assert_eq!(found, expected);
        for (signal, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
            let most = 2e-5 * level(&expected[signal]).sqrt();
            for (n, (a, b)) in gpu.iter().zip(cpu).enumerate() {
                assert!((a - b).abs() < most, "config {i}, signal {signal}, number {n}: {a} {b}");
            }
        }
    }
}

/// Rounding may move a number to the next step of a converter, seldom; beyond the full scale it is clipped.
#[test]
fn converted_signals_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let bits = 8;
    let config = Physical { samples: 1500, longest_us: 100.0, bits: Some(bits), headroom_db: -3.0, ..Physical::default() };
    let [(cpu, expected), (gpu, found)] = received(&config, &device);
    for (signal, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
        let step = 2f32.powi(1 - bits as i32) * level(&expected[signal]).sqrt() * 10f32.powf(-3.0 / 20.0);
        let apart = gpu.iter().zip(cpu).filter(|(a, b)| (*a - *b).abs() > 1e-3 * step).count();
        let most = gpu.iter().zip(cpu).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= 3 && most < 1.001 * step, "signal {signal}: {apart} of {} differ, by {most} at most", gpu.len());
        let (found, expected) = (found[signal].clipped, expected[signal].clipped);
        assert!(expected > 0 && found.abs_diff(expected) <= 3, "signal {signal}: {found} and {expected} clipped");
    }
}

#[test]
fn physical_signals_that_make_no_sense_are_refused() {
    let Some(device) = cuda() else { return };
    let config = Physical { samples: 100, longest_us: 100.0, ..Physical::ideal() };
    let one = Reception { frequency_offset_hz: 0.0, power_dbm: -80.0, snr_db: 10.0 };
    let refused = |receptions: &[Vec<Reception>], delays: &[Vec<f64>]| {
        config.generate_on(Random::new(1), 0, receptions, delays, &device).unwrap_err().to_string()
    };
    assert!(refused(&[vec![one]], &[vec![1.0]]).contains("delays: expected from 0 to 0.0001, found 1"));
    assert!(refused(&[vec![one]], &[]).contains("delays: expected [1], found [0]"));
    assert!(refused(&[vec![one; 2], vec![one]], &[vec![0.0; 2], vec![0.0]]).contains("event 1: expected 2 receivers"));
}

const RATE: f64 = 200e3;

/// A tone in white noise; a level of noise below -200 dB is none.
fn tone(watts: f64, frequency: f64, noise_db: f64, n: usize, random: u64) -> Vec<Complex32> {
    let mut noise = vec![0.0; 2 * n];
    Random::new(random).fill_normal(0, &mut noise);
    let deviation = if noise_db < -200.0 { 0.0 } else { (watts * 10f64.powf(noise_db / 10.0) / 2.0).sqrt() };
    let sample = |i: usize| {
        let carrier = watts.sqrt() * Complex64::cis(std::f64::consts::TAU * frequency * i as f64 / RATE + 0.7);
        narrow(carrier + deviation * wide(Complex32::new(noise[2 * i], noise[2 * i + 1])))
    };
    (0..n).map(sample).collect()
}

/// Chunks of every kind: tones in little and much noise, at both ends of the band and between two bins, at powers from 100 W to far below 1e-12 W, noise,
/// two tones of almost the same power, a pulse, and a carrier that begins late.
fn chunks(n: usize) -> Vec<Vec<Complex32>> {
    let late = |at: usize| tone(1e-9, 12e3, -20.0, n, 9).into_iter().enumerate().map(|(i, x)| if i < at { x * 1e-3 } else { x }).collect();
    let two = tone(1e-8, 5e3, -25.0, n, 7).iter().zip(tone(0.9e-8, -61e3, -300.0, n, 0)).map(|(a, b)| a + b).collect();
    let mut pulse = tone(1e-10, 0.0, 60.0, n, 8);
    pulse[n / 3] += 1.0;
    vec![
        tone(1e-8, 1234.5, -15.0, n, 1),
        tone(1e-11, -45_678.9, -5.0, n, 2),
        tone(1e2, 99_990.0, -10.0, n, 3),
        tone(1e-15, -99_900.0, -20.0, n, 4),
        tone(1e-7, RATE * (n / 5) as f64 / n as f64 + 0.4 * RATE / n as f64, -40.0, n, 5),
        tone(1e-10, 0.0, 90.0, n, 6),
        two,
        pulse,
        late(n / 2),
        late(9 * n / 10),
        tone(1e-9, 777.0, 0.0, n, 10),
    ]
}

fn tensor(chunks: &[Vec<Complex32>], device: &Device) -> Tensor {
    let values: Vec<f32> = chunks.iter().flatten().flat_map(|x| [x.re, x.im]).collect();
    Tensor::from_vec(values, (chunks.len(), chunks[0].len(), 2), device).unwrap()
}

/// Those of a GPU beside those of the CPU: powers within a thousandth of a dB, frequencies within a tenth of a hertz.
fn compare(what: &str, found: &[f64; COUNT], expected: &[f64; COUNT], places: impl Fn(&str) -> bool) {
    for (feature, (found, expected)) in FEATURES.iter().zip(found.iter().zip(expected)).filter(|(feature, _)| places(feature.name)) {
        let tolerance = match feature.name {
            name if name.contains("_db") => 1e-3,
            name if name.ends_with("_hz") => 0.1,
            "zero_crossing_rate" | "signal_present" => 0.0,
            "multipath_delay_spread_us" | "coherence_bandwidth_khz" => 1e-5 * expected.abs(),
            "delay_spread_confidence" | "confidence_score" => 1e-4,
            _ => 1e-6 * expected.abs().max(1.0),
        };
        // Silence has as much signal as nothing: minus infinity.
        assert!(found == expected || (found - expected).abs() <= tolerance, "{what}: {} is {found}, on the CPU {expected}", feature.name);
    }
}

/// Chunks of powers of two, of other and of odd lengths, and so short that bins are their own neighbours; more of them than one group of a power of two.
#[test]
fn features_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for n in super::cases([1000, 257, 2, 3, 1024, 64], 2) {
        let chunks = chunks(n);
        for form in [Form::Compatible, Form::Repaired] {
            let mut extractor = Extractor::new(RATE, n, form).unwrap();
            let on_device = tensor(&chunks, &device);
            let found = extractor.extract_all(&on_device).unwrap();
            assert_eq!(found.len(), chunks.len());
            for (i, (found, chunk)) in found.iter().zip(&chunks).enumerate() {
                compare(&format!("{form:?}, {n} samples, chunk {i}"), found, &extractor.extract(chunk).unwrap(), |_| true);
            }
            if n == 257 {
                assert!(extractor.extract_all(&on_device).unwrap() == found, "two runs differ");
                // Rows of a larger tensor, which begin within its memory.
                for (found, there) in found[3..8].iter().zip(extractor.extract_all(&on_device.narrow(0, 3, 5).unwrap()).unwrap()) {
                    compare(&format!("{form:?}, rows of a larger tensor"), &there, found, |_| true);
                }
            }
        }
    }
}

/// Without noise the noise floor is what rounding leaves: everything else is the CPU's, and as published silence has features.
#[test]
fn features_of_clean_tones_and_of_silence_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let n = 1000;
    let chunks = [tone(1e-11, 25.0 * RATE / n as f64, -300.0, n, 0), tone(1e-11, -31_234.5, -300.0, n, 0), vec![Complex32::default(); n]];
    for (form, of) in [(Form::Compatible, 3), (Form::Repaired, 2)] {
        let mut extractor = Extractor::new(RATE, n, form).unwrap();
        let found = extractor.extract_all(&tensor(&chunks[..of], &device)).unwrap();
        let places = |name: &str| form == Form::Compatible || !matches!(name, "snr_db" | "noise_floor_dbm");
        for (i, (found, chunk)) in found.iter().zip(&chunks).enumerate() {
            compare(&format!("{form:?}, chunk {i}"), found, &extractor.extract(chunk).unwrap(), places);
        }
    }
}

#[test]
fn what_has_no_features_is_refused() {
    let Some(device) = cuda() else { return };
    let n = 256;
    let noise = || tone(1e-9, 0.0, 10.0, n, 1);
    let refused = |third: Vec<Complex32>, form| {
        let chunks = tensor(&[noise(), noise(), third, noise()], &device);
        Extractor::new(RATE, n, form).unwrap().extract_all(&chunks).unwrap_err().to_string()
    };
    let with = |at: usize, x: f32| {
        let mut chunk = noise();
        chunk[at] = Complex32::new(0.0, x);
        chunk
    };
    for form in [Form::Compatible, Form::Repaired] {
        for (third, what) in [
            (with(77, f32::NAN), "chunk 2: expected finite numbers, sample 77 is "),
            (with(255, f32::INFINITY), "chunk 2: expected finite numbers, sample 255 is "),
            (with(0, f32::MAX), "chunk 2: expected finite numbers, its power is beyond f32"),
        ] {
            let error = refused(third, form);
            assert!(error.contains(what), "{error}");
        }
    }
    let error = refused(vec![Complex32::default(); n], Form::Repaired);
    assert!(error.contains("chunk 2: all of its samples are 0"), "{error}");
    let extractor = Extractor::new(RATE, n, Form::Repaired).unwrap();
    for chunks in [tensor(&[vec![Complex32::default(); n - 1]], &device), Tensor::zeros((1, n, 2), DType::F64, &device).unwrap()] {
        let error = extractor.extract_all(&chunks).unwrap_err().to_string();
        assert!(error.contains("chunks: expected [count, 256, 2] of f32"), "{error}");
    }
    let none = tensor(&[noise()], &device).narrow(0, 0, 0).unwrap();
    assert!(extractor.extract_all(&none).unwrap().is_empty());
}
