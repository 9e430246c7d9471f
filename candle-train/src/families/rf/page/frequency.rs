//! The frequency among the repaired features, beside the bound.

use crate::report::sections::Section;
use candle_models::Result;
use candle_models::random::Random;
use candle_models::rf::Complex32;
use candle_models::rf::features::{Extractor, FEATURES, Form};
use candle_models::rf::synthesis::{Content, Physical, Reception};
use rayon::prelude::*;

const RATE: f64 = 200e3;
const CHUNK: usize = 40_000;
const SNRS_DB: [f64; 5] = [0.0, 5.0, 10.0, 15.0, 20.0];

/// The table.
pub fn section(random: Random, tones: usize) -> Result<Section> {
    let mut text = format!(
        "\n## At which frequency a carrier is\n\n{tones} carriers within 50 Hz of the centre, in chunks of {CHUNK} samples at 200 kHz with white noise. `frequency_offset_hz` of the repaired features; \
         the compatible ones know it to the grid of the transform, 1443 mHz.\n\n| dB | error, mHz | at best (Cramer and Rao) | of the bound |\n|---|---|---|---|\n"
    );
    let scenario = Physical { sample_rate: RATE, samples: CHUNK, content: Content::Carrier, longest_us: 0.0, ..Physical::ideal() };
    let feature = FEATURES.iter().position(|feature| feature.name == "frequency_offset_hz").unwrap_or_default();
    let extractor = Extractor::new(RATE, CHUNK, Form::Repaired)?;
    for (row, snr_db) in SNRS_DB.into_iter().enumerate() {
        let error = |own: &mut (Extractor, Vec<Complex32>), i: usize| {
            let address = random.at(row as u64).at(i as u64);
            let frequency_offset_hz = 100.0 * (f64::from(address.stream("frequency").uniform(0)) - 0.5);
            scenario.generate(address, &[Reception { frequency_offset_hz, power_dbm: -90.0, snr_db }], &[0.0], &mut own.1)?;
            Ok((own.0.extract(&own.1)?[feature] - frequency_offset_hz).powi(2))
        };
        let squares: Vec<f64> =
            (0..tones).into_par_iter().map_init(|| (extractor.clone(), vec![Complex32::default(); CHUNK]), error).collect::<Result<_>>()?;
        let found = 1e3 * (squares.iter().sum::<f64>() / tones as f64).sqrt();
        let n = CHUNK as f64;
        let best = 1e3 * (6.0 * RATE * RATE / (std::f64::consts::TAU.powi(2) * 10f64.powf(snr_db / 10.0) * n * (n * n - 1.0))).sqrt();
        text += &format!("| {snr_db:.0} | {found:.3} | {best:.3} | {:.2} |\n", found / best);
    }
    Ok(Section { text, figures: Vec::new() })
}
