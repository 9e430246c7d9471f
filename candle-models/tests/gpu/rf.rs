//! Generated signals.

use super::cuda;
use candle_core::{Device, Tensor};
use candle_models::random::Random;
use candle_models::rf::synthesis::{Compatible, Reception};
use candle_models::rf::{Complex32, power};

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
