//! Data sets of radio events whose signals and features are made on the device.

use crate::cuda;
use candle_models::rf::Complex32;
use candle_models::rf::features::{COUNT, Extractor, FEATURES, STATISTICS, SUMMARY, summarise};
use candle_models::rf::localiser::events::Events;
use candle_train::rf::scenario::{Row, Scenario};
use std::cell::Cell;

/// The features are those that the CPU extracts of the device's own samples; everything else is that of the CPU.
#[test]
fn rows_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for (preset, form) in [("compatible", "compatible"), ("compatible", "repaired"), ("physical", "repaired")] {
        // Two chunks of 256 samples, and 88 that make none.
        let sets = ["signals.samples=600", "chunk=0.00128", "iq=true", &format!("form=\"{form}\"")].map(str::to_owned);
        let scenario = Scenario::resolve(preset, None, &sets).unwrap();
        let (events, mut extractor, done) = (Events::default(), scenario.extractor().unwrap(), Cell::new(0));
        let rows = scenario.rows(&events, &extractor, 3..5, &device, || done.set(done.get() + 1)).unwrap();
        assert_eq!((rows.len(), done.get()), (2, 2));
        for (event, row) in (3..5).zip(&rows) {
            let host = scenario.row(&events, &mut extractor, event).unwrap();
            assert!(row.emitter == host.emitter && row.receptions == host.receptions && row.iq.len() == host.iq.len(), "{event}");
            check(event, row, &mut extractor, scenario.samples());
        }
        let without = Scenario { iq: false, ..scenario }.rows(&events, &extractor, 3..5, &device, || ()).unwrap();
        assert!(without.iter().zip(&rows).all(|(row, with)| row.iq.is_empty() && row.features == with.features));
    }
}

fn check(event: u64, row: &Row, extractor: &mut Extractor, samples: usize) {
    let iq: Vec<Complex32> = row.iq.chunks(2).map(|x| Complex32::new(x[0], x[1])).collect();
    for (receiver, (signal, found)) in iq.chunks(samples).zip(row.features.chunks(SUMMARY)).enumerate() {
        let chunks = signal.chunks_exact(extractor.samples());
        let chunks: Vec<[f64; COUNT]> = chunks.map(|chunk| extractor.extract(chunk).unwrap()).collect();
        for (place, (found, expected)) in found.iter().zip(summarise(&chunks)).enumerate() {
            let (feature, statistic) = (FEATURES[place / STATISTICS.len()].name, STATISTICS[place % STATISTICS.len()]);
            let tolerance = if feature.ends_with("_hz") { 0.1 } else { 1e-3 } + 1e-5 * expected.abs();
            let what = format!("event {event}, receiver {receiver}, {statistic} of {feature}");
            assert!((f64::from(*found) - expected).abs() < tolerance, "{what}: {found}, on the CPU {expected}");
        }
    }
}
