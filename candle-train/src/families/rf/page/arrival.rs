//! Places by differences of arrival, beside the bound.

use crate::report::figure::{Axes, Line, chart};
use crate::report::sections::Section;
use candle_models::Result;
use candle_models::random::Random;
use candle_models::rf::arrival::{Search, locate};
use candle_models::rf::geometry::{LIGHT, Measured, least_error};
use candle_models::rf::localiser::events::RECEIVERS;
use candle_models::rf::localiser::middle;
use candle_models::rf::synthesis::{Content, Digital, Modulation, Physical, Reception};
use candle_models::rf::{Complex32, Complex64};
use rayon::prelude::*;

const RATE: f64 = 200e3;
/// QPSK of 12.5 thousand symbols a second: with its roll-off of 0.35 it fills that band.
const SYMBOL: usize = 16;
const BANDWIDTH: f64 = 16_875.0;
/// Signal-to-noise ratios in that band, dB.
const SNRS_DB: [f64; 5] = [0.0, 5.0, 10.0, 15.0, 20.0];
/// Kilometres around the middle of the receivers within which emitters stand.
const WITHIN_KM: f64 = 60.0;
/// The greatest difference of frequencies between two receivers, Hz.
const OFFSET_HZ: f64 = 50.0;

/// Errors at one signal-to-noise ratio: found and at best, of a difference of delays in ns and of a place in m.
struct Row {
    snr_db: f64,
    delay_ns: [f64; 2],
    place_m: [f64; 2],
}

/// The table and its figure.
pub fn section(random: Random, emitters: usize, seconds: f64) -> Result<Section> {
    let scenario = Physical {
        sample_rate: RATE,
        samples: (RATE * seconds) as usize,
        content: Content::Digital(Digital { modulation: Modulation::Qpsk, samples_per_symbol: SYMBOL }),
        ..Physical::ideal()
    };
    let rows: Vec<Row> = SNRS_DB.iter().map(|snr_db| row(&scenario, random, *snr_db, emitters)).collect::<Result<_>>()?;
    let mut text = format!(
        "\n## Where an emitter is, by when it is heard\n\n{emitters} emitters within {WITHIN_KM:.0} km of the receivers' middle send QPSK at 12.5 thousand symbols a second, for {seconds} s. Receivers are \
         up to {OFFSET_HZ:.0} Hz apart, sample at 200 kHz and have that signal-to-noise ratio in the signal's band. Differences of delay come from the cross-ambiguity function of the samples, places \
         from the differences. The bounds are those of Stein (with the signal's own spectrum) and of Cramer and Rao.\n\n\
         | dB | a delay, ns | at best | of the bound | a place, m | at best | of the bound |\n|---|---|---|---|---|---|---|\n"
    );
    for Row { snr_db, delay_ns: [delay, best_delay], place_m: [place, best_place] } in &rows {
        text += &format!(
            "| {snr_db:.0} | {delay:.1} | {best_delay:.1} | {:.2} | {place:.1} | {best_place:.1} | {:.2} |\n",
            delay / best_delay,
            place / best_place
        );
    }
    text += "\n![arrival.svg](arrival.svg)\n";
    let line = |name: &str, dashed: bool, index: usize| Line {
        name: name.to_owned(),
        dashed,
        points: rows.iter().map(|row| (row.snr_db, row.place_m[index].log10())).collect(),
    };
    let lines = [line("differences of arrival", false, 0), line("Cramer and Rao", true, 1)];
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min).floor(), values().fold(f64::NEG_INFINITY, f64::max).ceil());
    let axes = Axes {
        across: (SNRS_DB[0]..SNRS_DB[SNRS_DB.len() - 1], "SNR in the band (dB)"),
        up: (low..high, "log10 of the error (m)".to_owned()),
    };
    Ok(Section { text, figures: vec![("arrival.svg".to_owned(), chart(&axes, &lines)?)] })
}

fn row(scenario: &Physical, random: Random, snr_db: f64, emitters: usize) -> Result<Row> {
    let search = Search { rate: RATE, bandwidth: BANDWIDTH, most_delay: 1e-3, most_offset: 2.0 * OFFSET_HZ };
    let origin = middle(&RECEIVERS);
    let receivers = RECEIVERS.map(|place| origin.plane_km(&place));
    let heard = |address: Random, delays: &[f64], snr_db: f64| {
        let hz = |i: usize| OFFSET_HZ * (f64::from(address.stream("offset").uniform(i as u64)) - 0.5);
        let reception =
            |i: usize| Reception { frequency_offset_hz: hz(i), power_dbm: -90.0, snr_db: snr_db - 10.0 * (RATE / BANDWIDTH).log10() };
        let receptions: Vec<Reception> = (0..delays.len()).map(reception).collect();
        let mut iq = vec![Complex32::default(); delays.len() * scenario.samples];
        scenario.generate(address, &receptions, delays, &mut iq)?;
        let wide = |x: &Complex32| Complex64::new(f64::from(x.re), f64::from(x.im));
        Ok::<_, candle_models::Error>(
            iq.chunks(scenario.samples).map(|signal| signal.iter().map(wide).collect()).collect::<Vec<Vec<Complex64>>>(),
        )
    };
    let clean = heard(random.stream("clean"), &[0.0], 200.0)?;
    let best_delay = search.least_error(&clean[0], 10f64.powf(snr_db / 10.0));
    // A difference has the errors of two.
    let deviation = best_delay * LIGHT / 2f64.sqrt() / 1000.0;
    // Squares of errors of delays, s, and of places, km; and the bound's.
    let squares: Vec<[f64; 3]> = (0..emitters)
        .into_par_iter()
        .map(|i| {
            let address = random.at(i as u64);
            let angle = std::f64::consts::TAU * f64::from(address.stream("place").uniform(0));
            let radius = WITHIN_KM * f64::from(address.stream("place").uniform(1)).sqrt();
            let emitter = [radius * angle.cos(), radius * angle.sin()];
            let delays = receivers.map(|at| 1000.0 * (emitter[0] - at[0]).hypot(emitter[1] - at[1]) / LIGHT);
            let signals = heard(address.stream(&format!("{snr_db} dB")), &delays, snr_db)?;
            let mut found = vec![0.0];
            for signal in &signals[1..] {
                found.push(search.between(&signals[0], signal)?.delay);
            }
            let apart = found.iter().zip(delays).skip(1).map(|(found, delay)| (found - (delay - delays[0])).powi(2));
            let delay = apart.sum::<f64>() / (receivers.len() - 1) as f64;
            let place = locate(&receivers, &found)?;
            let best = least_error(emitter, &receivers, Measured::Arrival { deviation });
            Ok([delay, (place[0] - emitter[0]).powi(2) + (place[1] - emitter[1]).powi(2), best * best])
        })
        .collect::<Result<_>>()?;
    let root = |index: usize| (squares.iter().map(|row| row[index]).sum::<f64>() / emitters as f64).sqrt();
    Ok(Row { snr_db, delay_ns: [1e9 * root(0), 1e9 * best_delay], place_m: [1000.0 * root(1), 1000.0 * root(2)] })
}
