//! How long a second of IQ at 200 kHz takes, and its features in five chunks, with parity of both to the script beside it.
//!
//!     cargo run --release -p candle-models --example rf_speed -- [FILE.f32]
//!
//! `scripts/rf-speed.py` prints the same for NumPy and SciPy; with a file, the samples are written there (complex, 32 bits) and the features of the compatible
//! form printed, which the script then compares with its own. Times are the median of runs and, in brackets, the best.

use candle_models::random::Random;
use candle_models::rf::Complex32;
use candle_models::rf::features::{Extractor, FEATURES, Form};
use candle_models::rf::synthesis::{Compatible, Physical, Reception};
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::time::Instant;

const RATE: f64 = 200e3;
const SAMPLES: usize = 200_000;
const CHUNK: usize = 40_000;
const RECEPTION: Reception = Reception { frequency_offset_hz: 37.5, power_dbm: -70.0, snr_db: 15.0 };

fn main() -> Result<()> {
    let mut iq = vec![Complex32::default(); SAMPLES];
    let generator = Compatible::default();
    time("1 s of IQ, as published, 1 thread", 40, |i| generator.generate(Random::new(1).at(i), &RECEPTION, &mut iq).map(drop))?;
    let mut several = vec![Complex32::default(); 8 * SAMPLES];
    let receptions = vec![vec![RECEPTION; 8]];
    time("8 x 1 s of IQ, all threads", 10, |i| generator.generate_all(Random::new(1), i, &receptions, &mut several).map(drop))?;
    let physical = Physical::default();
    time("1 s of IQ, physical, 1 thread", 5, |i| physical.generate(Random::new(1).at(i), &[RECEPTION], &[0.0], &mut iq).map(drop))?;
    generator.generate(Random::new(1).at(0), &RECEPTION, &mut iq)?;
    for form in [Form::Compatible, Form::Repaired] {
        let mut extractor = Extractor::new(RATE, CHUNK, form)?;
        time(&format!("5 x 18 features, {form:?}, 1 thread"), 40, |_| {
            iq.chunks(CHUNK).try_for_each(|chunk| extractor.extract(chunk).map(drop))
        })?;
        time(&format!("8 x 5 x 18 features, {form:?}, all threads"), 10, |_| {
            several
                .par_chunks(CHUNK)
                .map_init(|| extractor.clone(), |own, chunk| own.extract(chunk).map(drop))
                .collect::<Result<Vec<_>>>()
                .map(drop)
        })?;
    }
    let Some(path) = std::env::args().nth(1) else { return Ok(()) };
    let bytes: Vec<u8> = iq.iter().flat_map(|x| [x.re, x.im]).flat_map(f32::to_le_bytes).collect();
    std::fs::write(&path, bytes).map_err(Error::io(&path))?;
    let mut extractor = Extractor::new(RATE, CHUNK, Form::Compatible)?;
    for chunk in iq.chunks(CHUNK) {
        let values = extractor.extract(chunk)?;
        let named: Vec<String> = FEATURES.iter().zip(values).map(|(feature, value)| format!("{}={value:?}", feature.name)).collect();
        println!("{}", named.join(" "));
    }
    Ok(())
}

fn time(what: &str, runs: u64, mut run: impl FnMut(u64) -> Result<()>) -> Result<()> {
    run(0)?;
    let mut times = Vec::new();
    for i in 0..runs {
        let begun = Instant::now();
        run(i)?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{what:<46} {:>8.3} ms [{:.3}]", times[times.len() / 2], times[0]);
    Ok(())
}
